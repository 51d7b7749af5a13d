/* dataset_dir.c - see dataset_dir.h.
 *
 * Three layouts: what Dataset.save_to_disk writes (state.json names the files), DatasetDict.save_to_disk (a directory
 * for each split, dataset_dict.json names them), and a snapshot of the hub or a directory of the datasets cache: files
 * whose names or directories hold the name of a split, beside files that are no data. There the rules are those of
 * `datasets`: a name counts as a word between the characters "-._ 0-9/", that
 * of a sharded file is the whole of it (train_sft-00000-of-00001.parquet), and files without any split's name are
 * train.
 */
#include "data/dataset_dir.h"
#include "table/table.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_STATE = 16 << 20, MAX_DEPTH = 4, MAX_FILES = 1 << 20 };

void tr_dataset_files_release(struct tr_dataset_files *f)
{
    for (size_t i = 0; i < f->n; i++)
        free(f->p[i]);
    free(f->p);
    *f = (struct tr_dataset_files){ 0 };
}

static enum tr_status add(struct tr_dataset_files *f, const char *path)
{
    if (f->n == MAX_FILES)
        return tr_fail(TR_USAGE, "%s: the directory holds over %d files", path, MAX_FILES);
    TR_PASS(TR_ROOM(f->p, f->n + 1, &f->n_cap, "%zu data files", f->n + 1));
    f->p[f->n] = strdup(path);
    if (!f->p[f->n])
        return tr_fail(TR_NOMEM, "no memory for a data path");
    f->n++;
    return TR_OK;
}

/* ---- save_to_disk ---- */

static enum tr_status find_saved(const char *dir, struct tr_dataset_files *out)
{
    enum tr_status st = TR_OK;
    char path[TR_PATH_MAX];
    const char *name = NULL;
    cJSON *state = NULL;
    TR_TRY(tr_path_join(path, dir, "state.json"));
    TR_TRY(tr_json_load(path, MAX_STATE, &state));
    const cJSON *files = cJSON_GetObjectItemCaseSensitive(state, "_data_files");
    const cJSON *indices = cJSON_GetObjectItemCaseSensitive(state, "_indices_data_files");
    if (!cJSON_IsArray(files))
        TR_TRY(tr_fail(TR_USAGE, "%s: \"_data_files\" is not a list; save the data set again", path));
    if (cJSON_IsArray(indices) && indices->child)
        TR_TRY(tr_fail(TR_USAGE,
                       "%s: the rows are chosen by a file of indices, which is not read; save the data set "
                       "after flatten_indices()",
                       path));
    for (const cJSON *f = files->child; f; f = f->next) {
        TR_TRY(tr_json_str(f, "filename", true, &name));
        if (!tr_name_is_plain(name))
            TR_TRY(tr_fail(TR_USAGE, "%s: a file of the data set is not in its directory", path));
        TR_TRY(tr_path_join(path, dir, name));
        TR_TRY(add(out, path));
    }
out:
    cJSON_Delete(state);
    return st;
}

/* The directory of the split: the one that is named, or train, or the only one. */
static enum tr_status find_in_dict(const char *dir, const char *split, char out[TR_PATH_MAX])
{
    enum tr_status st = TR_OK;
    char path[TR_PATH_MAX], names[256] = "";
    size_t n = 0;
    cJSON *dict = NULL;
    const char *found = NULL;
    TR_TRY(tr_path_join(path, dir, "dataset_dict.json"));
    TR_TRY(tr_json_load(path, MAX_STATE, &dict));
    const cJSON *splits = cJSON_GetObjectItemCaseSensitive(dict, "splits");
    for (const cJSON *s = cJSON_IsArray(splits) ? splits->child : NULL; s; s = s->next) {
        if (!cJSON_IsString(s) || !tr_name_is_plain(s->valuestring))
            TR_TRY(tr_fail(TR_USAGE, "%s: the name of a split is not a plain name", path));
        if (strcmp(s->valuestring, *split ? split : "train") == 0 || (!*split && cJSON_GetArraySize(splits) == 1))
            found = s->valuestring;
        if (n < sizeof names - 64)
            n += (size_t)snprintf(names + n, sizeof names - n, "%s%.40s", n ? ", " : "", s->valuestring);
    }
    if (!found)
        TR_TRY(tr_fail(TR_USAGE, "%s: the data set has no split %s; it has %s: write PATH#SPLIT", dir,
                       *split ? split : "train", n ? names : "none"));
    TR_TRY(tr_path_join(out, dir, found));
out:
    cJSON_Delete(dict);
    return st;
}

/* ---- by name ---- */

static bool is_between(char c)
{
    return c == 0 || strchr("-._ 0123456789/,", c) != NULL;
}

/* Whether the path holds this word. */
static bool has_word(const char *path, const char *word)
{
    size_t n = strlen(word);
    for (const char *at = strstr(path, word); at; at = strstr(at + 1, word))
        if ((at == path || is_between(at[-1])) && is_between(at[n]))
            return true;
    return false;
}

static const struct {
    const char *split, *words[4];
} splits[] = {
    { "train", { "train", "training" } },
    { "validation", { "validation", "valid", "dev", "val" } },
    { "test", { "test", "testing", "eval", "evaluation" } },
};

/* The split in [NAME-]SPLIT-00000-of-00002.parquet; its length is 0: the name has another form. */
static const char *sharded(const char *path, size_t *n)
{
    const char *slash = strrchr(path, '/'), *from = slash ? slash + 1 : path;
    *n = 0;
    for (const char *dash = strchr(from, '-'); dash; from = dash + 1, dash = strchr(from, '-'))
        if (strspn(dash + 1, "0123456789") == 5 && strncmp(dash + 6, "-of-", 4) == 0 &&
            strspn(dash + 10, "0123456789") == 5) {
            *n = (size_t)(dash - from);
            break;
        }
    return from;
}

/* Whether a file is of the split: a sharded one by its name alone, others by any word of the path. */
static bool is_of(const char *path, const char *split)
{
    size_t n;
    const char *own = sharded(path, &n);
    if (n > 0)
        return n == strlen(split) && memcmp(own, split, n) == 0;
    for (size_t i = 0; i < TR_COUNT_OF(splits); i++)
        for (size_t k = 0; k < TR_COUNT_OF(splits[i].words) && strcmp(split, splits[i].split) == 0; k++)
            if (splits[i].words[k] && has_word(path, splits[i].words[k]))
                return true;
    return has_word(path, split);
}

/* Files that other programs keep beside data. */
static bool is_data(const char *name)
{
    static const char *const others[] = { "dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json",
                                          "config.json" };
    enum tr_table_kind kind;
    return !TR_ROW(others, name) && strncmp(name, "cache-", 6) != 0 && tr_table_kind_of(name, &kind);
}

/* All data files below the directory, hidden ones left out. */
static enum tr_status list(const char *dir, int depth, struct tr_dataset_files *out)
{
    enum tr_status st = TR_OK;
    char path[TR_PATH_MAX];
    const struct dirent *e;
    DIR *d = opendir(dir);
    if (!d)
        return tr_fail(TR_IO, "%s: cannot be listed: %s", dir, strerror(errno));
    while (errno = 0, (e = readdir(d)) != NULL) {
        if (e->d_name[0] == '.')
            continue;
        TR_TRY(tr_path_join(path, dir, e->d_name));
        if (tr_dir_exists(path))
            TR_TRY(depth < MAX_DEPTH ? list(path, depth + 1, out) : TR_OK);
        else if (is_data(e->d_name))
            TR_TRY(add(out, path));
    }
    if (errno)
        TR_TRY(tr_fail(TR_IO, "%s: cannot be listed: %s", dir, strerror(errno)));
out:
    closedir(d);
    return st;
}

static void add_name(const char *name, size_t n_name, char *out, size_t n_out)
{
    size_t n = strlen(out);
    char word[64];
    (void)snprintf(word, sizeof word, "%.*s", (int)(n_name < 60 ? n_name : 60), name);
    if (n < n_out - 70 && !has_word(out, word))
        (void)snprintf(out + n, n_out - n, "%s%s", n ? ", " : "", word);
}

/* The splits that the names of the files tell, for a message. */
static void name_splits(const struct tr_dataset_files *all, size_t n_dir, char *out, size_t n_out)
{
    out[0] = 0;
    for (size_t i = 0; i < all->n; i++) {
        size_t n;
        const char *name = sharded(all->p[i] + n_dir, &n);
        if (n > 0)
            add_name(name, n, out, n_out);
        for (size_t k = 0; k < TR_COUNT_OF(splits) && n == 0; k++)
            if (is_of(all->p[i] + n_dir, splits[k].split))
                add_name(splits[k].split, strlen(splits[k].split), out, n_out);
    }
}

/* Several directories, or several formats, are several data sets. */
static enum tr_status check_one(const char *dir, const struct tr_dataset_files *f)
{
    enum tr_table_kind first = TR_TABLE_KINDS, kind = TR_TABLE_KINDS;
    for (size_t i = 0; i < f->n; i++) {
        size_t n = (size_t)(strrchr(f->p[i], '/') - f->p[i]), n_0 = (size_t)(strrchr(f->p[0], '/') - f->p[0]);
        if (n != n_0 || memcmp(f->p[i], f->p[0], n) != 0)
            return tr_fail(TR_USAGE,
                           "%s: the directory holds several data sets, such as %.*s and %.*s; name one of them", dir,
                           (int)n_0, f->p[0], (int)n, f->p[i]);
        (void)tr_table_kind_of(f->p[i], i == 0 ? &first : &kind);
        if (i > 0 && kind != first)
            return tr_fail(TR_USAGE,
                           "%s: the directory holds the split as %s and as %s; name the files of one, as a glob", dir,
                           tr_table_kind_name(first), tr_table_kind_name(kind));
    }
    return TR_OK;
}

static enum tr_status find_by_name(const char *dir, const char *split, struct tr_dataset_files *out)
{
    enum tr_status st = TR_OK;
    struct tr_dataset_files all = { 0 };
    char names[256];
    size_t n_dir = strlen(dir);
    TR_TRY(list(dir, 0, &all));
    if (all.n == 0)
        TR_TRY(tr_fail(TR_USAGE, "%s: this directory holds no data files", dir));
    qsort(all.p, all.n, sizeof *all.p, tr_by_text);
    name_splits(&all, n_dir, names, sizeof names);
    for (size_t i = 0; i < all.n; i++)
        if (is_of(all.p[i] + n_dir, *split ? split : "train") ||
            (!names[0] && (!*split || strcmp(split, "train") == 0)))
            TR_TRY(add(out, all.p[i]));
    if (out->n == 0)
        TR_TRY(tr_fail(TR_USAGE, "%s: the data set has no split %s; it has %s: write PATH#SPLIT", dir,
                       *split ? split : "train", names[0] ? names : "train"));
    TR_TRY(check_one(dir, out));
out:
    tr_dataset_files_release(&all);
    return st;
}

enum tr_status tr_dataset_find(const char *dir, const char *split, bool *is_dataset, struct tr_dataset_files *out)
{
    enum tr_status st = TR_OK;
    char below[TR_PATH_MAX];
    struct tr_dataset_files files = { 0 };
    *is_dataset = true;
    if (tr_dir_has(dir, "dataset_dict.json")) {
        TR_TRY(find_in_dict(dir, split, below));
        TR_TRY(find_saved(below, &files));
    } else if (tr_dir_has(dir, "state.json")) {
        if (*split && strcmp(split, "train") != 0)
            TR_TRY(tr_fail(TR_USAGE, "%s: the directory holds one split, which is called train; %s is not there", dir,
                           split));
        TR_TRY(find_saved(dir, &files));
    } else if (*split || tr_dir_has(dir, "README.md") || tr_dir_has(dir, "dataset_info.json") ||
               tr_dir_has(dir, "dataset_infos.json") || tr_dir_has(dir, ".gitattributes")) {
        TR_TRY(find_by_name(dir, split, &files));
    } else {
        *is_dataset = false;
    }
    *out = files;
    files = (struct tr_dataset_files){ 0 };
out:
    tr_dataset_files_release(&files);
    return st;
}
