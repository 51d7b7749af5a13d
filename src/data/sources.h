/* sources.h - turns the files, directories and globs of --data into one ordered list of files. */
#ifndef TR_DATA_SOURCES_H
#define TR_DATA_SOURCES_H

#include "base/base.h"
#include "table/table.h"

enum tr_source_kind { TR_SOURCE_SHARD, TR_SOURCE_TEXT, TR_SOURCE_RECORDS };

struct tr_source {
    char *path;
    enum tr_source_kind kind;
    enum tr_table_kind table; /* of records */
    size_t i_path;            /* the path it came from */
};

struct tr_sources {
    struct tr_source *p;
    size_t n, n_cap;
};

/* Keeps the order of paths; inside a directory or glob, files are sorted by the bytes of their names. A file that
 * cannot be read as data is refused with its name, because data that is left out silently is the worst surprise. Only
 * hidden files in a directory are ignored. */
enum tr_status tr_sources_expand(const char *const *paths, size_t n_paths, struct tr_sources *out);
void tr_sources_release(struct tr_sources *s);

#endif
