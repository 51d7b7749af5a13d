/* table.h - room header of table: a data file as a row of records, each the text of one JSON object.
 *
 * Every format gives the same form, so whoever reads records knows nothing of files: JSON lines as they are, elements
 * of a JSON array as they are, rows of CSV, parquet and Arrow as an object with a member for each column. A file is
 * read once, from start to end, in memory that does not depend on its length (docs/formats/limits.md).
 */
#ifndef TR_TABLE_TABLE_H
#define TR_TABLE_TABLE_H

#include "base/base.h"
#include "table/textfile.h"

enum tr_table_kind {
    TR_TABLE_JSONL,
    TR_TABLE_JSON, /* an array of records, {"data": [...]}, or objects one after another */
    TR_TABLE_CSV,
    TR_TABLE_TSV,
    TR_TABLE_PARQUET,
    TR_TABLE_ARROW, /* IPC, as a stream or as a file */
    TR_TABLE_KINDS
};
const char *tr_table_kind_name(enum tr_table_kind kind);
/* By the end of its name. False: it is no file of records. */
bool tr_table_kind_of(const char *path, enum tr_table_kind *out);

struct tr_row {
    const char *text; /* a JSON object; NULL: there are no more records; valid until the next call */
    size_t n;
    int64_t number;  /* of the record in the file, from 1; of JSON lines the line */
    const char *why; /* not NULL: the record cannot be read, and text is "" */
};

struct tr_table;

enum tr_status tr_table_open(const char *path, enum tr_table_kind kind, struct tr_table **out);
void tr_table_close(struct tr_table *t); /* NULL is fine */
enum tr_status tr_table_next(struct tr_table *t, struct tr_row *row);
/* Passes over the next n records, or over those that are left. */
enum tr_status tr_table_skip(struct tr_table *t, uint64_t n);
/* The hash of the bytes on disk, as they were read or, of a file that is not read in order, as they are now. After it,
 * no record can be read. */
enum tr_status tr_table_hash(struct tr_table *t, struct tr_hash128 *out);
/* How many records a file has. */
enum tr_status tr_table_count(const char *path, enum tr_table_kind kind, uint64_t *out);

/* ---- slices: the part of a split that is used, as the package `datasets` writes, rounds and clips it ---- */

/* "train", "train[:5%]", "train[100:200]", "train[-10%:]", and without a name "[:5%]". A boundary in percent is rounded
 * to the nearest record, of two as near to the even one. */
struct tr_table_split {
    char name[128];
    bool has_from, has_to, is_percent;
    int64_t from, to;
};
enum tr_status tr_table_split_parse(const char *text, struct tr_table_split *out);
bool tr_table_split_is_all(const struct tr_table_split *s);
/* The records [first, end) of n. */
void tr_table_split_of(const struct tr_table_split *s, uint64_t n, uint64_t *first, uint64_t *end);

#endif
