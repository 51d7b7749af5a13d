/* parquet.h - a parquet file as the files of its reader share it: schema, leaves with their cursors, pages.
 *
 * A leaf is a column of values with two levels at each entry (the Dremel encoding): `rep` says at which list a new
 * element begins, `def` how much of the path to the value is there. Each leaf has one page in memory and a cursor in
 * it; a row is assembled from the cursors of all leaves, so neither a row group nor a column is ever held.
 */
#ifndef TR_TABLE_PARQUET_H
#define TR_TABLE_PARQUET_H

#include "table/block.h"
#include "table/table_impl.h"
#include "table/thrift.h"

enum tr_pq_type { PQ_BOOLEAN, PQ_INT32, PQ_INT64, PQ_INT96, PQ_FLOAT, PQ_DOUBLE, PQ_BYTE_ARRAY, PQ_FIXED, PQ_TYPES };
enum tr_pq_encoding {
    PQ_PLAIN = 0,
    PQ_PLAIN_DICTIONARY = 2,
    PQ_RLE = 3,
    PQ_DELTA_BINARY = 5,
    PQ_DELTA_LENGTH = 6,
    PQ_DELTA_BYTES = 7,
    PQ_RLE_DICTIONARY = 8,
    PQ_SPLIT = 9, /* BYTE_STREAM_SPLIT */
};
/* What a value is printed as. */
enum tr_pq_cell { PQ_AS_VALUE, PQ_AS_BYTES, PQ_AS_UNSIGNED, PQ_AS_HALF, PQ_AS_NULL };

enum { PQ_MAX_DEPTH = 32, PQ_MAX_NODES = 1 << 14 };

/* ---- cursors in a page ---- */

/* RLE and bit-packed runs of numbers of `width` bits. */
struct tr_runs {
    const uint8_t *p, *end;
    unsigned width, n_bits;
    uint64_t n_left, bits;
    uint32_t value;
    bool is_packed;
};
bool tr_runs_next(struct tr_runs *r, uint32_t *out); /* false: no number is left */

/* DELTA_BINARY_PACKED. */
struct tr_deltas {
    const uint8_t *p, *end;
    uint64_t n_left;            /* values, with the first */
    uint64_t n_mini, n_in_mini; /* miniblocks of a block, and values of each */
    uint64_t i_mini, i_value;   /* the next */
    const uint8_t *widths;      /* of the miniblocks */
    uint64_t value, min_delta, bits;
    unsigned n_bits;
    bool is_first;
};
bool tr_deltas_open(struct tr_deltas *d, const uint8_t *p, const uint8_t *end);
bool tr_deltas_next(struct tr_deltas *d, int64_t *out);
/* Where the bytes behind the deltas begin; NULL: the deltas are damaged. d stays as it is. */
const uint8_t *tr_deltas_end(const struct tr_deltas *d);

struct tr_pq_value {
    int64_t i; /* of integers and bool */
    double real;
    const char *p; /* of text */
    size_t n;
};

struct tr_pq_values {
    enum tr_pq_type type;
    size_t n_fixed; /* bytes of PQ_FIXED */
    int encoding;
    const uint8_t *p, *end;
    uint64_t n_all, i_next; /* of PQ_SPLIT: how many there are, and the next */
    unsigned bit;           /* of PLAIN bool: the next bit of *p */
    struct tr_runs runs;    /* indices, or RLE bool */
    struct tr_deltas deltas, lengths;
    struct tr_str before; /* of PQ_DELTA_BYTES: the last value */
    const struct tr_pq_dict {
        uint8_t *p;
        size_t n_cap, n_bytes; /* of the page */
        struct tr_pq_span {
            uint32_t at, n;
        } * spans; /* of text */
        size_t n_spans_cap;
        uint64_t n;
    } * dict;
};
/* Values of this encoding in [p, end). False: the encoding does not go with the type, or the bytes are damaged. */
bool tr_pq_values_open(struct tr_pq_values *v, int encoding, const uint8_t *p, const uint8_t *end);
/* False: no value is left, or the bytes are damaged. */
bool tr_pq_values_next(struct tr_pq_values *v, struct tr_pq_value *out);
size_t tr_pq_width(enum tr_pq_type type, size_t n_fixed); /* bytes of a PLAIN value; 0: they differ */

/* ---- leaves ---- */

struct tr_pq_leaf {
    enum tr_pq_type type;
    enum tr_pq_cell cell;
    unsigned max_def, max_rep;
    size_t i_node;
    /* the chunk of the row group */
    int codec;
    uint64_t at, end;   /* its bytes in the file that are not yet read */
    uint64_t n_entries; /* that no page has given yet */
    /* the page */
    uint8_t *page;
    size_t n_page_cap;
    uint64_t n_in_page; /* entries after the current one */
    struct tr_runs reps, defs;
    struct tr_pq_values values;
    struct tr_pq_dict dict;
    /* the current entry; has_entry false: the row group has no more */
    bool has_entry;
    unsigned rep, def;
};
/* Goes to the next entry. */
enum tr_status tr_pq_advance(struct tr_table *t, struct tr_pq_leaf *f);

/* ---- the file ---- */

enum tr_pq_kind { PQ_LEAF, PQ_STRUCT, PQ_LIST };
struct tr_pq_node {
    enum tr_pq_kind kind;
    bool is_optional, is_repeated;
    unsigned def, rep; /* levels at which it is there */
    size_t end;        /* its members are the nodes (i, end), each with its own */
    size_t leaf, end_leaf;
    bool is_wrapper; /* of a repeated group: it stands for its only member */
};

struct tr_pq {
    uint8_t *meta;
    size_t n_meta_cap, n_meta;
    struct tr_pq_node *nodes; /* [0] is the root */
    size_t n_nodes;
    struct tr_names names; /* of the nodes */
    struct tr_pq_leaf *leaves;
    size_t n_leaves;
    uint8_t *raw; /* of the page that is being read */
    size_t n_raw_cap;
    size_t *groups; /* where each row group begins in meta */
    size_t n_groups, i_group;
    uint64_t n_left; /* rows of the open group */
};
/* Footer and schema. */
enum tr_status tr_pq_read_meta(struct tr_table *t, struct tr_pq *q);
/* Rows of group i, and with `opens` the chunk of every leaf. */
enum tr_status tr_pq_read_group(struct tr_table *t, struct tr_pq *q, size_t i, bool opens, uint64_t *n_rows);

#endif
