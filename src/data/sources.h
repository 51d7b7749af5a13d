/* sources.h - turns the files, directories and globs of --data into one ordered list of files. */
#ifndef TR_DATA_SOURCES_H
#define TR_DATA_SOURCES_H

#include "data/seal.h"
#include "data/shape.h"
#include "table/table.h"

enum tr_source_kind { TR_SOURCE_SHARD, TR_SOURCE_TEXT, TR_SOURCE_RECORDS };

struct tr_source {
    char *path;
    enum tr_source_kind kind;
    enum tr_table_kind table; /* of records */
    size_t i_path;            /* the path it came from */
    bool is_part;             /* only the records [first, end) of the file are used */
    uint64_t first, end;
    uint64_t n_bytes; /* on disk, when it was listed */
    struct timespec changed;
    size_t n_joined; /* > 0: shards are made of this file and those after it in the list together, so many in all */
    bool is_slice;   /* the slice of a stream that begins at `first`: a record, or of text the number of the slice */
    struct tr_hash128 identity; /* of a slice: of the file */
    enum tr_shape shape;        /* of records, where it is known already; AUTO: it is not */
};

struct tr_sources {
    struct tr_source *p;
    size_t n, n_cap;
};

/* A path may end in #SPLIT, #SPLIT[FROM:TO] or #[FROM:TO] (struct tr_table_split); a path that exists as it is has no
 * such end. A file is one split, train. Keeps the order of paths; inside a directory or glob, files are sorted by the
 * bytes of their names. A file that cannot be read as data is refused with its name, because data that is left out
 * silently is the worst surprise. Only hidden files in a directory are ignored, and in a directory of a data set
 * (dataset_dir.h) what is no data. A slice needs the number of records of each file, which is kept as a seal. Many
 * small text files in a row are joined: a shard and a wait for the disk for each would take far longer than their text.
 */
enum tr_status tr_sources_expand(const char *const *paths, size_t n_paths, const struct tr_seals *seals,
                                 struct tr_sources *out);
void tr_sources_release(struct tr_sources *s);

#endif
