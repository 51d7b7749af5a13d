/* sources.c - see sources.h. A name that exists is taken as it stands before ":weight" or glob characters are looked
 * at. */
#include "data/sources.h"

#include <dirent.h>
#include <errno.h>
#include <glob.h>
#include <stdlib.h>
#include <string.h>

void tr_sources_release(struct tr_sources *s)
{
    for (size_t i = 0; i < s->n; i++)
        free(s->p[i].path);
    free(s->p);
    *s = (struct tr_sources){ 0 };
}

static enum tr_status kind_of(const char *path, enum tr_source_kind *out)
{
    static const struct {
        const char *suffix;
        enum tr_source_kind kind;
    } kinds[] = { { ".trtok", TR_SOURCE_SHARD }, { ".txt", TR_SOURCE_TEXT }, { ".jsonl", TR_SOURCE_JSONL } };
    size_t n = strlen(path);
    for (size_t i = 0; i < TR_COUNT_OF(kinds); i++) {
        size_t k = strlen(kinds[i].suffix);
        if (n > k && strcmp(path + n - k, kinds[i].suffix) == 0) {
            *out = kinds[i].kind;
            return TR_OK;
        }
    }
    return tr_fail(TR_USAGE, "%s: not .txt, .jsonl or .trtok; name the files to read, or a glob such as DIR/*.jsonl",
                   path);
}

static enum tr_status add_file(struct tr_sources *s, const char *path)
{
    enum tr_source_kind kind = TR_SOURCE_SHARD;
    if (tr_dir_exists(path))
        return tr_fail(TR_USAGE, "%s: a directory inside a directory or glob is not read; name it by itself", path);
    enum tr_status st = kind_of(path, &kind);
    if (st != TR_OK)
        return st;
    if (s->n == s->n_cap) {
        size_t cap = s->n_cap * 2 + 16;
        struct tr_source *p = realloc(s->p, cap * sizeof *p);
        if (!p)
            return tr_fail(TR_NOMEM, "no memory for %zu data files", cap);
        s->p = p;
        s->n_cap = cap;
    }
    char *copy = strdup(path);
    if (!copy)
        return tr_fail(TR_NOMEM, "no memory for a data path");
    s->p[s->n++] = (struct tr_source){ copy, kind };
    return TR_OK;
}

static int compare_sources(const void *a, const void *b)
{
    return strcmp(((const struct tr_source *)a)->path, ((const struct tr_source *)b)->path);
}

static enum tr_status add_dir(struct tr_sources *s, const char *path)
{
    enum tr_status st = TR_OK;
    char file[TR_PATH_MAX];
    struct dirent *e;
    size_t n_before = s->n;
    DIR *dir = opendir(path);
    if (!dir)
        return tr_fail(TR_IO, "%s: cannot be listed: %s", path, strerror(errno));
    while (errno = 0, (e = readdir(dir)) != NULL) {
        if (e->d_name[0] == '.')
            continue;
        TR_TRY(tr_path_join(file, path, e->d_name));
        TR_TRY(add_file(s, file));
    }
    if (errno)
        TR_TRY(tr_fail(TR_IO, "%s: cannot be listed: %s", path, strerror(errno)));
    if (s->n == n_before)
        TR_TRY(tr_fail(TR_USAGE, "%s: no data files in this directory", path));
    qsort(s->p + n_before, s->n - n_before, sizeof *s->p, compare_sources);
out:
    closedir(dir);
    return st;
}

static enum tr_status add_glob(struct tr_sources *s, const char *pattern)
{
    enum tr_status st = TR_OK;
    size_t n_before = s->n;
    glob_t g = { 0 };
    int rc = glob(pattern, GLOB_ERR | GLOB_NOSORT, NULL, &g); /* sorted below: glob's own order follows the locale */
    if (rc == GLOB_NOMATCH)
        TR_TRY(tr_fail(TR_USAGE, "%s: no such file or directory, and no match", pattern));
    if (rc != 0)
        TR_TRY(tr_fail(TR_IO, "%s: cannot be searched", pattern));
    for (size_t i = 0; i < g.gl_pathc; i++)
        TR_TRY(add_file(s, g.gl_pathv[i]));
    qsort(s->p + n_before, s->n - n_before, sizeof *s->p, compare_sources);
out:
    globfree(&g);
    return st;
}

/* Cuts ":weight" off a name that does not exist with it. Mixing by weight is refused, not ignored. */
static enum tr_status cut_weight(char *path)
{
    char *colon = strrchr(path, ':');
    double weight;
    if (!colon || tr_file_exists(path) || tr_dir_exists(path) || tr_parse_real(colon + 1, &weight) != TR_OK)
        return TR_OK;
    if (weight < 1 || weight > 1)
        return tr_fail(TR_USAGE, "%s: weight %g is not supported; every source has weight 1", path, weight);
    *colon = 0;
    return TR_OK;
}

enum tr_status tr_sources_expand(const char *const *paths, size_t n_paths, struct tr_sources *out)
{
    enum tr_status st = TR_OK;
    struct tr_sources s = { 0 };
    char path[TR_PATH_MAX];
    for (size_t i = 0; i < n_paths; i++) {
        TR_TRY(tr_format(path, sizeof path, "%s", paths[i]));
        TR_TRY(cut_weight(path));
        if (tr_dir_exists(path))
            TR_TRY(add_dir(&s, path));
        else if (tr_file_exists(path))
            TR_TRY(add_file(&s, path));
        else
            TR_TRY(add_glob(&s, path));
    }
    if (s.n == 0)
        TR_TRY(tr_fail(TR_USAGE, "no data: give --data at least one file, directory or glob"));
    *out = s;
    s = (struct tr_sources){ 0 };
out:
    tr_sources_release(&s);
    return st;
}
