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

/* Refuses a format that is not read, with a command that converts it to one that is. */
static enum tr_status refuse_kind(const char *path)
{
    struct tr_str word = { 0 };
    enum tr_status st;
    tr_str_shell(&word, path);
    const char *quoted = tr_str_ok(&word) ? word.p : "FILE";
    if (ends_with(path, ".parquet"))
        st = tr_fail(TR_USAGE,
                     "%s: parquet is not read; convert it: python3 -c \"import pandas as p, sys; "
                     "p.read_parquet(sys.argv[1]).to_json('data.jsonl', orient='records', lines=True, "
                     "force_ascii=False)\" %s",
                     path, quoted);
    else if (ends_with(path, ".json"))
        st = tr_fail(
            TR_USAGE,
            "%s: only .jsonl, with one record on each line, is read; convert an array: jq -c '.[]' %s > data.jsonl",
            path, quoted);
    else
        st = tr_fail(TR_USAGE,
                     "%s: the file is not .txt, .jsonl (also with .gz or .zst) or .trtok; name the files to read, or a "
                     "glob such as DIR/*.jsonl",
                     path);
    tr_str_release(&word);
    return st;
}

static enum tr_status kind_of(const char *path, enum tr_source_kind *out)
{
    static const struct {
        const char *suffix;
        enum tr_source_kind kind;
    } kinds[] = {
        { ".trtok", TR_SOURCE_SHARD },     { ".txt", TR_SOURCE_TEXT },    { ".txt.gz", TR_SOURCE_TEXT },
        { ".txt.zst", TR_SOURCE_TEXT },    { ".jsonl", TR_SOURCE_JSONL }, { ".jsonl.gz", TR_SOURCE_JSONL },
        { ".jsonl.zst", TR_SOURCE_JSONL },
    };
    for (size_t i = 0; i < TR_COUNT_OF(kinds); i++)
        if (ends_with(path, kinds[i].suffix)) {
            *out = kinds[i].kind;
            return TR_OK;
        }
    return refuse_kind(path);
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
    s->p[s->n++] = (struct tr_source){ copy, kind, 0 };
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
