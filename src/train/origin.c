/* origin.c - where a run comes from: command line, build, and the commit of the user's tree. It is read once, at the
 * start. No other program is started for it; a value that cannot be read is null. */
#include "train/state.h"
#include <limits.h>
#include <stdlib.h>
#include <unistd.h>

/* Words of /proc/self/cmdline as a JSON array. */
static void add_command(struct tr_str *out)
{
    char *text = NULL;
    size_t n = 0;
    tr_str_addf(out, "[");
    if (tr_file_read("/proc/self/cmdline", 1 << 20, &text, &n) == TR_OK)
        for (size_t at = 0; at < n; at += strlen(text + at) + 1) {
            tr_str_addf(out, at ? ", " : "");
            tr_str_json(out, text + at);
        }
    tr_str_addf(out, "]");
    free(text);
}

/* A hash of this program's bytes: two builds that differ in any way have different hashes. */
static void add_build(struct tr_str *out)
{
    char *text = NULL, hex[33];
    size_t n = 0;
    if (tr_file_read("/proc/self/exe", (size_t)1 << 30, &text, &n) != TR_OK) {
        tr_str_addf(out, "null");
        return;
    }
    tr_hash_hex(tr_hash(text, n), hex);
    tr_str_addf(out, "\"%s\"", hex);
    free(text);
}

static bool read_line(const char *dir, const char *name, char *out, size_t n_out)
{
    char path[TR_PATH_MAX], *text = NULL;
    size_t n = 0;
    bool ok = tr_path_join(path, dir, name) == TR_OK && tr_file_read(path, 1 << 16, &text, &n) == TR_OK;
    if (ok) {
        text[strcspn(text, "\n")] = 0;
        ok = tr_format(out, n_out, "%s", text) == TR_OK;
    }
    free(text);
    return ok;
}

/* A ref without a file of its own is a line "hash ref" of packed-refs. */
static bool find_packed(const char *git, const char *ref, char *out, size_t n_out)
{
    char path[TR_PATH_MAX], *text = NULL;
    size_t n = 0;
    bool found = false;
    if (tr_path_join(path, git, "packed-refs") != TR_OK || tr_file_read(path, 16 << 20, &text, &n) != TR_OK)
        return false;
    for (char *line = text, *end; line && *line && !found; line = end ? end + 1 : NULL) {
        end = strchr(line, '\n');
        if (end)
            *end = 0;
        char *space = strchr(line, ' ');
        if (space && strcmp(space + 1, ref) == 0)
            found = tr_format(out, n_out, "%.*s", (int)(space - line), line) == TR_OK;
    }
    free(text);
    return found;
}

/* The commit of HEAD in the nearest .git above `dir`. The .git of a worktree is a file that names a directory. */
static bool find_commit(char *dir, char *out, size_t n_out)
{
    char git[TR_PATH_MAX], line[TR_PATH_MAX], common[TR_PATH_MAX];
    for (;;) {
        if (tr_path_join(git, dir, ".git") != TR_OK)
            return false;
        if (tr_file_exists(git) && read_line(dir, ".git", line, sizeof line) && strncmp(line, "gitdir: ", 8) == 0)
            (void)tr_format(git, sizeof git, "%s", line + 8);
        if (tr_dir_exists(git))
            break;
        char *slash = strrchr(dir, '/');
        if (!slash || slash == dir)
            return false;
        *slash = 0;
    }
    if (!read_line(git, "HEAD", line, sizeof line))
        return false;
    if (strncmp(line, "ref: ", 5) != 0)
        return tr_format(out, n_out, "%s", line) == TR_OK;
    const char *ref = line + 5;
    char rel[TR_PATH_MAX];
    bool is_tree = read_line(git, "commondir", rel, sizeof rel);
    if (!is_tree || tr_path_join(common, rel[0] == '/' ? "" : git, rel) != TR_OK)
        (void)tr_format(common, sizeof common, "%s", git);
    return read_line(common, ref, out, n_out) || find_packed(common, ref, out, n_out);
}

void tr_origin_write(struct tr_str *out)
{
    char dir[PATH_MAX] = "", commit[128] = "";
    bool has_dir = getcwd(dir, sizeof dir) != NULL;
    tr_str_addf(out, "{\"command\": ");
    add_command(out);
    tr_str_member(out, ", \"directory\": ", dir);
    tr_str_addf(out, ", \"version\": \"%s\", \"build\": ", TR_VERSION);
    add_build(out);
    tr_str_addf(out, ", \"git_commit\": ");
    if (has_dir && find_commit(dir, commit, sizeof commit))
        tr_str_json(out, commit);
    else
        tr_str_addf(out, "null");
    tr_str_addf(out, "}");
    tr_error_clear();
}
