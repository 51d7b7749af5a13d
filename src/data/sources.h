/* sources.h - what --data names: files, directories and globs become one ordered list of files. */
#ifndef TR_DATA_SOURCES_H
#define TR_DATA_SOURCES_H

#include "base/base.h"

enum tr_source_kind { TR_SOURCE_SHARD, TR_SOURCE_TEXT, TR_SOURCE_JSONL };

struct tr_source {
    char *path;
    enum tr_source_kind kind;
    size_t i_path; /* the path it came from */
};

struct tr_sources {
    struct tr_source *p;
    size_t n, n_cap;
};

/* Keeps the order of paths; inside a directory or glob by name, bytewise. Everything that is not read is refused by
 * name: data that is silently left out is the worst kind of surprise. Only hidden names in a directory are passed over.
 */
enum tr_status tr_sources_expand(const char *const *paths, size_t n_paths, struct tr_sources *out);
void tr_sources_release(struct tr_sources *s);

#endif
