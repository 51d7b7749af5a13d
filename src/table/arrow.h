/* arrow.h - an Arrow IPC file as the files of its reader share it: fields, their buffers, batches.
 *
 * One record batch is in memory at a time, as its bytes in the file and, where they are compressed, decompressed. A
 * field has the buffers of its layout; every length and offset in them is checked before it is used.
 */
#ifndef TR_TABLE_ARROW_H
#define TR_TABLE_ARROW_H

#include "table/flat.h"
#include "table/table_impl.h"

enum tr_ar_kind {
    AR_NULL,
    AR_BOOL,
    AR_INT, /* signed, as dates and times are */
    AR_UINT,
    AR_REAL,
    AR_TEXT,
    AR_LIST,
    AR_FIXED_TEXT,
    AR_FIXED_LIST,
    AR_STRUCT,
    AR_OTHER /* of fixed width, and null in records */
};

enum { AR_MAX_DEPTH = 32, AR_MAX_FIELDS = 1 << 14, AR_VIEW_BYTES = 16, AR_VIEW_INLINE = 12 };

struct tr_ar_field {
    enum tr_ar_kind kind;
    size_t width;  /* bytes of a value or of an offset; elements of AR_FIXED_LIST */
    size_t end;    /* its children are the fields (i, end), each with its own */
    int64_t id;    /* of its dictionary */
    bool is_bytes; /* not called a text */
    bool is_view;  /* a text whose values are views: a length, and the text itself or where it lies */
    bool is_dict;  /* the values here are indices of the dictionary's */
    struct tr_ar_dict *dict;
    enum tr_ar_kind index_kind;
    size_t index_width;
    /* of the batch */
    uint64_t n;
    const uint8_t *valid, *offsets, *values; /* valid NULL: all are */
    size_t n_values;                         /* bytes */
    const struct tr_ar_body *body;           /* of views: their texts are blocks [first_block, n_blocks) of it */
    size_t first_block, n_blocks;
};

struct tr_ar_block {
    const uint8_t *p;
    size_t n;
};

/* Bytes of a batch, and of its buffers that were decompressed. */
struct tr_ar_body {
    uint8_t *raw, *unpacked;
    size_t n_raw_cap, n_raw, n_unpacked_cap, n_unpacked;
    struct tr_ar_block *blocks; /* buffers that views point into */
    size_t n_blocks, n_blocks_cap;
};

struct tr_ar_dict {
    int64_t id;
    size_t root; /* field of tr_ar.fields that holds the values: the fields behind those of the schema */
    bool is_read;
    struct tr_ar_body body;
};

struct tr_ar {
    uint64_t at, end; /* of the messages that are not yet read */
    uint8_t *meta;
    size_t n_meta_cap;
    struct tr_ar_field *fields;
    size_t n_fields, n_fields_cap, n_top; /* top: fields [0, n_top) are those of the schema and their children */
    struct tr_names names;                /* of all fields */
    struct tr_ar_dict *dicts;
    size_t n_dicts;
    struct tr_ar_body body;
    uint64_t n_rows, i_row; /* of the batch */
    bool has_schema;
};

enum tr_status tr_ar_damaged(const struct tr_table *t, const char *what);

struct tr_ar_message {
    struct tr_flat text;
    struct tr_flat_at header;
    int kind; /* 0: the end */
    uint64_t body_at, n_body;
};
enum { AR_SCHEMA = 1, AR_DICTIONARY = 2, AR_BATCH = 3 };
/* Reads the metadata of the next message; its body lies at body_at, and a->at behind it. */
enum tr_status tr_ar_next_message(struct tr_table *t, struct tr_ar *a, struct tr_ar_message *m);
enum tr_status tr_ar_read_schema(struct tr_table *t, struct tr_ar *a, const struct tr_ar_message *m);
enum tr_status tr_ar_read_dictionary(struct tr_table *t, struct tr_ar *a, const struct tr_ar_message *m);
/* Reads the body of a batch, and gives the fields [first, end) their buffers. */
enum tr_status tr_ar_read_batch(struct tr_table *t, struct tr_ar *a, const struct tr_ar_message *m,
                                struct tr_flat_at batch, size_t first, size_t end, struct tr_ar_body *body);

#endif
