/* table_impl.h - what the readers of this room share: the table, its hooks, and cells as JSON. */
#ifndef TR_TABLE_TABLE_IMPL_H
#define TR_TABLE_TABLE_IMPL_H

#include "table/table.h"

/* One format. next and skip keep t->n_rows; the others may be NULL. */
struct tr_table_hooks {
    const char *name;
    bool is_text;                               /* read in order, through t->file */
    enum tr_status (*open)(struct tr_table *t); /* may leave t->state, for close */
    enum tr_status (*next)(struct tr_table *t, struct tr_row *row);
    enum tr_status (*skip)(struct tr_table *t, uint64_t n);     /* NULL: by next */
    enum tr_status (*count)(struct tr_table *t, uint64_t *out); /* NULL: by next */
    void (*close)(struct tr_table *t);
};
extern const struct tr_table_hooks tr_jsonl_hooks, tr_json_hooks, tr_csv_hooks, tr_tsv_hooks, tr_parquet_hooks,
    tr_arrow_hooks;

struct tr_table {
    const char *path; /* a copy */
    const struct tr_table_hooks *hooks;
    struct tr_textfile file; /* of text; else fd and n_bytes alone */
    int64_t n_rows;          /* returned or passed over so far */
    struct tr_str text;      /* of the row that was returned */
    uint64_t n_made, n_may;  /* work so far, in bytes of rows and entries of columns, and its bound */
    size_t n_held, n_hold;   /* memory of pages and batches, and its bound */
    void *state;
};

/* "PATH: row 12: " + the rest. */
enum tr_status tr_table_fail(const struct tr_table *t, enum tr_status st, const char *fmt, ...) TR_PRINTF(3, 4);
/* Counts work; an entry of a column, which may be a bit of a run in the file, is TR_TABLE_ENTRY bytes of it. TR_USAGE:
 * it is more than a file of this size may make; see TR_ZIP_RATIO. */
enum { TR_TABLE_ENTRY = 8, TR_TABLE_ROW = 32 }; /* a row of no column costs a file nothing, and its reader a step */
enum tr_status tr_table_work(struct tr_table *t, uint64_t n);
/* Makes *buf at least n bytes long; *cap is its size. TR_USAGE: the file holds more at once than one of its size may.
 * The content is kept. */
enum tr_status tr_table_hold(struct tr_table *t, void *buf, size_t *cap, size_t n);
void tr_table_drop(struct tr_table *t, void *buf, size_t *cap);

/* A row is complete: its text, or the reason why it is not used. */
enum tr_status tr_table_give(struct tr_table *t, struct tr_row *row, const char *why);

/* Cells at the end of a row's text. A row that is already too long stays as it is. */
void tr_cell_raw(struct tr_table *t, const char *json, size_t n);
enum tr_status tr_cell_text(struct tr_table *t, const char *p, size_t n); /* bytes that are not UTF-8 stay */
/* Bytes that the file does not call a text: one where they are, null otherwise (images, sounds). */
enum tr_status tr_cell_bytes(struct tr_table *t, const char *p, size_t n);
void tr_cell_int(struct tr_table *t, int64_t x);
void tr_cell_uint(struct tr_table *t, uint64_t x);
void tr_cell_real(struct tr_table *t, double x); /* null, where JSON has no number for it */
double tr_half(uint16_t bits);

/* The names of columns as the beginnings of JSON members: "name": */
struct tr_names {
    struct tr_str text;
    struct tr_name {
        size_t at, n;
    } * p;
    size_t n;
};
enum tr_status tr_names_add(struct tr_names *s, const char *name, size_t n);
/* TR_USAGE: one of those that pick names (NULL: the first n) is there twice. */
enum tr_status tr_names_check(const struct tr_names *s, const size_t *pick, size_t n);
void tr_cell_name(struct tr_table *t, const struct tr_names *s, size_t i, bool is_first);
void tr_names_release(struct tr_names *s);

#endif
