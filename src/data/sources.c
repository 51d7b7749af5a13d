/* sources.c - see sources.h. A path that exists is taken literally, even if it holds glob characters. */
#include "data/sources.h"
#include "data/dataset_dir.h"

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
    struct stat info;
    bool is_there = stat(path, &info) == 0;
    if (is_there && S_ISDIR(info.st_mode))
        return tr_fail(TR_USAGE, "%s: a directory inside a directory or glob is not read; name it by itself", path);
    TR_PASS(kind_of(path, &source));
    TR_PASS(TR_ROOM(s->p, s->n + 1, &s->n_cap, "%zu data files", s->n + 1));
    source.n_bytes = is_there ? (uint64_t)info.st_size : 0;
    source.changed = is_there ? info.st_mtim : (struct timespec){ 0 };
    source.path = strdup(path);
    if (!source.path)
        return tr_fail(TR_NOMEM, "no memory for a data path");
    s->p[s->n++] = source;
    return TR_OK;
}

/* The files of one split of a data set. *is_dataset false: the directory is none, and nothing is added. */
static enum tr_status add_dataset(struct tr_sources *s, const char *path, const char *split, bool *is_dataset)
{
    enum tr_status st = TR_OK;
    struct tr_dataset_files files = { 0 };
    TR_TRY(tr_dataset_find(path, split, is_dataset, &files));
    for (size_t i = 0; i < files.n; i++)
        TR_TRY(add_file(s, files.p[i]));
out:
    tr_dataset_files_release(&files);
    return st;
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
    qsort(s->p + n_before, s->n - n_before, sizeof *s->p, tr_by_text);
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
    qsort(s->p + n_before, s->n - n_before, sizeof *s->p, tr_by_text);
out:
    globfree(&g);
    return st;
}

/* ---- splits ---- */

/* The number of records in a file: from the seal of an earlier start, or by reading it. */
static enum tr_status count(const struct tr_source *source, const struct tr_seals *seals, uint64_t *out)
{
    enum { SETTLED_S = 2 };
    struct tr_hash128 kept = { 0 };
    struct stat before;
    char what[32];
    bool is_known = stat(source->path, &before) == 0;
    enum tr_status st = tr_format(what, sizeof what, "records %s", tr_table_kind_name(source->table));
    if (st == TR_OK && is_known && tr_seal_find(seals, &before, what, &kept)) {
        *out = kept.lo;
        return TR_OK;
    }
    if (st == TR_OK)
        st = tr_table_count(source->path, source->table, out);
    kept.lo = *out;
    if (st == TR_OK && is_known)
        tr_seal_save(seals, &before, SETTLED_S, what, kept);
    return st;
}

/* Keeps the records of the slice, of the files from `first` on as if they were one. */
static enum tr_status cut(struct tr_sources *s, size_t first, const struct tr_table_split *split, const char *path,
                          const struct tr_seals *seals)
{
    uint64_t n_all = 0, from, to, at = 0;
    size_t n_kept = first;
    for (size_t i = first; i < s->n; i++) {
        if (s->p[i].kind != TR_SOURCE_RECORDS)
            return tr_fail(TR_USAGE, "%s: a slice is of records, and this file is %s; leave [...] out", s->p[i].path,
                           s->p[i].kind == TR_SOURCE_TEXT ? "one document" : "a token shard");
        TR_PASS(count(&s->p[i], seals, &s->p[i].end));
        n_all += s->p[i].end;
    }
    tr_table_split_of(split, n_all, &from, &to);
    if (from == to)
        return tr_fail(TR_USAGE, "%s: the slice holds none of the %" PRIu64 " records; give another one", path, n_all);
    for (size_t i = first; i < s->n; i++) {
        struct tr_source *x = &s->p[i], kept = *x;
        uint64_t n = x->end, end = at + n;
        kept.first = from <= at ? 0 : from < end ? from - at : n;
        kept.end = to < end ? (to > at ? to - at : 0) : n;
        kept.is_part = kept.first > 0 || kept.end < n;
        at = end;
        x->path = NULL;
        if (kept.first < kept.end)
            s->p[n_kept++] = kept;
        else
            free(kept.path);
    }
    s->n = n_kept;
    return TR_OK;
}

/* Where the split of a path begins, or where the path ends. */
static const char *split_of(const char *path)
{
    const char *mark = strrchr(path, '#');
    return mark && !tr_file_exists(path) && !tr_dir_exists(path) ? mark : path + strlen(path);
}

static enum tr_status add_path(struct tr_sources *s, const char *given, const struct tr_seals *seals)
{
    struct tr_table_split split = { 0 };
    char path[TR_PATH_MAX];
    bool is_dataset = false;
    const char *mark = split_of(given);
    size_t first = s->n;
    TR_PASS(tr_format(path, sizeof path, "%.*s", (int)(mark - given), given));
    if (*mark) {
        enum tr_status st = tr_table_split_parse(mark + 1, &split);
        if (st != TR_OK)
            return tr_fail_at(st, "%s: ", path);
    }
    if (tr_dir_exists(path))
        TR_PASS(add_dataset(s, path, split.name, &is_dataset));
    if (!is_dataset && split.name[0] && strcmp(split.name, "train") != 0)
        return tr_fail(TR_USAGE, "%s: a file or a glob is one split, train; %s is not there", path, split.name);
    if (!is_dataset)
        TR_PASS(tr_dir_exists(path) ? add_dir(s, path) : tr_file_exists(path) ? add_file(s, path) : add_glob(s, path));
    if (!tr_table_split_is_all(&split))
        TR_PASS(cut(s, first, &split, given, seals));
    return TR_OK;
}

/* ---- joined files ---- */

enum { SMALL_BYTES = 64 << 10, FEWEST_JOINED = 64, MOST_JOINED = 4096, MOST_BYTES = 16 << 20 };

static bool is_small_text(const struct tr_source *s)
{
    return s->kind == TR_SOURCE_TEXT && ends_with(s->path, ".txt") && s->n_bytes <= SMALL_BYTES;
}

/* Counted from the first file of a path, so that files added at the end leave the joined shards before them as they
 * are. */
static void join_small(struct tr_sources *s)
{
    size_t i = 0;
    while (i < s->n) {
        uint64_t n_bytes = 0;
        size_t n = 0;
        while (n < MOST_JOINED && n_bytes <= MOST_BYTES && i + n < s->n && s->p[i + n].i_path == s->p[i].i_path &&
               is_small_text(&s->p[i + n]))
            n_bytes += s->p[i + n++].n_bytes;
        s->p[i].n_joined = n >= FEWEST_JOINED ? n : 0;
        i += n ? n : 1;
    }
}

enum tr_status tr_sources_expand(const char *const *paths, size_t n_paths, const struct tr_seals *seals,
                                 struct tr_sources *out)
{
    enum tr_status st = TR_OK;
    struct tr_sources s = { 0 };
    for (size_t i = 0; i < n_paths; i++) {
        size_t n_before = s.n;
        TR_TRY(add_path(&s, paths[i], seals));
        for (size_t k = n_before; k < s.n; k++)
            s.p[k].i_path = i;
    }
    if (s.n == 0)
        TR_TRY(tr_fail(TR_USAGE, "no data: give --data at least one file, directory or glob"));
    join_small(&s);
    *out = s;
    s = (struct tr_sources){ 0 };
out:
    tr_sources_release(&s);
    return st;
}
