/* sources.c - see sources.h. A path that exists is taken literally, even if it holds glob characters. */
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

static bool ends_with(const char *path, const char *suffix)
{
    size_t n = strlen(path), k = strlen(suffix);
    return n > k && strcmp(path + n - k, suffix) == 0;
}

/* By the end of its name. */
static enum tr_status kind_of(const char *path, struct tr_source *out)
{
    out->kind = TR_SOURCE_RECORDS;
    if (tr_table_kind_of(path, &out->table))
        return TR_OK;
    if (ends_with(path, ".trtok"))
        out->kind = TR_SOURCE_SHARD;
    else if (ends_with(path, ".txt") || ends_with(path, ".txt.gz") || ends_with(path, ".txt.zst"))
        out->kind = TR_SOURCE_TEXT;
    else
        return tr_fail(
            TR_USAGE,
            "%s: the file is not .jsonl, .json, .csv, .tsv or .txt (also with .gz or .zst), .parquet, .arrow "
            "or .trtok; name the files to read, or a glob such as DIR/*.jsonl",
            path);
    return TR_OK;
}

static enum tr_status add_file(struct tr_sources *s, const char *path)
{
    struct tr_source source = { 0 };
    if (tr_dir_exists(path))
        return tr_fail(TR_USAGE, "%s: a directory inside a directory or glob is not read; name it by itself", path);
    enum tr_status st = kind_of(path, &source);
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
    source.path = strdup(path);
    if (!source.path)
        return tr_fail(TR_NOMEM, "no memory for a data path");
    s->p[s->n++] = source;
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
        TR_TRY(tr_fail(TR_USAGE, "%s: this directory holds no data files", path));
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
    /* sorted below, because glob's own order depends on the locale */
    int rc = glob(pattern, GLOB_ERR | GLOB_NOSORT, NULL, &g);
    if (rc == GLOB_NOMATCH)
        TR_TRY(tr_fail(TR_USAGE, "%s: no such file or directory, and as a glob it matches nothing", pattern));
    if (rc != 0)
        TR_TRY(tr_fail(TR_IO, "%s: cannot be searched", pattern));
    for (size_t i = 0; i < g.gl_pathc; i++)
        TR_TRY(add_file(s, g.gl_pathv[i]));
    qsort(s->p + n_before, s->n - n_before, sizeof *s->p, compare_sources);
out:
    globfree(&g);
    return st;
}

enum tr_status tr_sources_expand(const char *const *paths, size_t n_paths, struct tr_sources *out)
{
    enum tr_status st = TR_OK;
    struct tr_sources s = { 0 };
    for (size_t i = 0; i < n_paths; i++) {
        size_t n_before = s.n;
        if (tr_dir_exists(paths[i]))
            TR_TRY(add_dir(&s, paths[i]));
        else if (tr_file_exists(paths[i]))
            TR_TRY(add_file(&s, paths[i]));
        else
            TR_TRY(add_glob(&s, paths[i]));
        for (size_t k = n_before; k < s.n; k++)
            s.p[k].i_path = i;
    }
    if (s.n == 0)
        TR_TRY(tr_fail(TR_USAGE, "no data: give --data at least one file, directory or glob"));
    *out = s;
    s = (struct tr_sources){ 0 };
out:
    tr_sources_release(&s);
    return st;
}
