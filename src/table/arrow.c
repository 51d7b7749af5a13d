/* arrow.c - Arrow IPC as records, in the stream and in the file format. A file is a stream between two marks, with a
 * footer, which is not needed to read it in order. */
#include "table/arrow.h"

#include <stdlib.h>
#include <string.h>

static uint64_t le(const uint8_t *p, size_t n)
{
    uint64_t x = 0;
    for (size_t i = 0; i < n; i++)
        x |= (uint64_t)p[i] << (8 * i);
    return x;
}

static int64_t signed_le(const uint8_t *p, size_t n)
{
    unsigned shift = 64 - 8 * (unsigned)n;
    return (int64_t)(le(p, n) << shift) >> shift;
}

/* ---- cells ---- */

static enum tr_status write_cell(struct tr_table *t, const struct tr_ar *a, size_t i, uint64_t row);

static void write_real(struct tr_table *t, const uint8_t *p, size_t width)
{
    uint64_t bits = le(p, width);
    uint32_t narrow = (uint32_t)bits;
    float x;
    double wide;
    memcpy(&x, &narrow, 4);
    memcpy(&wide, &bits, 8);
    tr_cell_real(t, width == 2 ? tr_half((uint16_t)bits) : width == 4 ? (double)x : wide);
}

/* Elements [at, end) of field i. */
static enum tr_status write_list(struct tr_table *t, const struct tr_ar *a, size_t i, uint64_t at, uint64_t end)
{
    if (at > end || end > a->fields[i].n)
        return tr_ar_damaged(t, "a list lies outside its elements");
    tr_cell_raw(t, "[", 1);
    for (uint64_t k = at; k < end && t->text.n <= TR_LINE_MAX; k++) {
        if (k > at)
            tr_cell_raw(t, ",", 1);
        TR_PASS(write_cell(t, a, i, k));
    }
    tr_cell_raw(t, "]", 1);
    return TR_OK;
}

static enum tr_status write_struct(struct tr_table *t, const struct tr_ar *a, size_t first, size_t end, uint64_t row)
{
    tr_cell_raw(t, "{", 1);
    for (size_t i = first; i < end; i = a->fields[i].end) {
        TR_PASS(tr_table_work(t, a->names.p[i].n));
        tr_cell_name(t, &a->names, i, i == first);
        TR_PASS(write_cell(t, a, i, row));
    }
    tr_cell_raw(t, "}", 1);
    return TR_OK;
}

static enum tr_status write_entry(struct tr_table *t, const struct tr_ar *a, const struct tr_ar_field *f, uint64_t row)
{
    uint64_t at = f->index_kind == AR_UINT ? le(f->values + row * f->index_width, f->index_width)
                                           : (uint64_t)signed_le(f->values + row * f->index_width, f->index_width);
    if (!f->dict || !f->dict->is_read || at >= a->fields[f->dict->root].n)
        return tr_ar_damaged(t, "a value is not in its dictionary");
    return write_cell(t, a, f->dict->root, at);
}

/* A text of a column of views. */
static enum tr_status write_view(struct tr_table *t, const struct tr_ar_field *f, uint64_t row)
{
    const uint8_t *view = f->values + row * AR_VIEW_BYTES;
    uint64_t n = le(view, 4), i = le(view + 8, 4), at = le(view + 12, 4);
    const char *text = (const char *)view + 4;
    if (n > AR_VIEW_INLINE) {
        const struct tr_ar_block *block =
            i < f->n_blocks - f->first_block ? &f->body->blocks[f->first_block + i] : NULL;
        if (block == NULL || at > block->n || n > block->n - at)
            return tr_ar_damaged(t, "a text lies outside its column");
        text = (const char *)block->p + at;
    }
    return (f->is_bytes ? tr_cell_bytes : tr_cell_text)(t, text, (size_t)n);
}

/* Value `row` of field i, which has more values than that. */
static enum tr_status write_cell(struct tr_table *t, const struct tr_ar *a, size_t i, uint64_t row)
{
    const struct tr_ar_field *f = &a->fields[i];
    TR_PASS(tr_table_work(t, TR_TABLE_ENTRY));
    if (f->kind == AR_NULL || f->kind == AR_OTHER || (f->valid && !(f->valid[row / 8] >> row % 8 & 1))) {
        tr_cell_raw(t, "null", 4);
        return TR_OK;
    }
    if (f->is_dict)
        return write_entry(t, a, f, row);
    uint64_t from = 0, to = 0;
    if (f->offsets) {
        from = le(f->offsets + row * f->width, f->width);
        to = le(f->offsets + (row + 1) * f->width, f->width);
    }
    switch (f->kind) {
    case AR_BOOL: {
        bool is_true = f->values[row / 8] >> row % 8 & 1;
        tr_cell_raw(t, is_true ? "true" : "false", is_true ? 4 : 5);
        return TR_OK;
    }
    case AR_INT:
        tr_cell_int(t, signed_le(f->values + row * f->width, f->width));
        return TR_OK;
    case AR_UINT:
        tr_cell_uint(t, le(f->values + row * f->width, f->width));
        return TR_OK;
    case AR_REAL:
        write_real(t, f->values + row * f->width, f->width);
        return TR_OK;
    case AR_TEXT:
        if (f->is_view)
            return write_view(t, f, row);
        if (from > to || to > f->n_values)
            return tr_ar_damaged(t, "a text lies outside its column");
        return (f->is_bytes ? tr_cell_bytes : tr_cell_text)(t, (const char *)f->values + from, (size_t)(to - from));
    case AR_FIXED_TEXT:
        return tr_cell_bytes(t, (const char *)f->values + row * f->width, f->width);
    case AR_LIST:
        return write_list(t, a, i + 1, from, to);
    case AR_FIXED_LIST:
        return write_list(t, a, i + 1, row * f->width, (row + 1) * f->width);
    default:
        return write_struct(t, a, i + 1, f->end, row);
    }
}

/* ---- rows ---- */

/* Reads messages up to the next batch that has rows; a->n_rows = 0: there is none. */
static enum tr_status next_batch(struct tr_table *t, struct tr_ar *a)
{
    struct tr_ar_message m;
    for (a->n_rows = a->i_row = 0; a->n_rows == 0;) {
        TR_PASS(tr_ar_next_message(t, a, &m));
        if (m.kind == 0)
            return TR_OK;
        if (m.kind == AR_DICTIONARY) {
            TR_PASS(tr_ar_read_dictionary(t, a, &m));
        } else if (m.kind == AR_BATCH) {
            TR_PASS(tr_ar_read_batch(t, a, &m, m.header, 0, a->n_top, &a->body));
            a->n_rows = (uint64_t)tr_flat_int(&m.text, m.header, 0, 8, 0);
        } else {
            TR_PASS(tr_ar_damaged(t, "a message is neither a dictionary nor a batch"));
        }
    }
    return TR_OK;
}

static enum tr_status next_arrow(struct tr_table *t, struct tr_row *row)
{
    struct tr_ar *a = t->state;
    if (a->i_row == a->n_rows)
        TR_PASS(next_batch(t, a));
    if (a->n_rows == 0)
        return TR_OK;
    tr_str_clear(&t->text);
    TR_PASS(tr_table_work(t, TR_TABLE_ROW));
    TR_PASS(write_struct(t, a, 0, a->n_top, a->i_row));
    a->i_row++;
    return tr_table_give(t, row, NULL);
}

/* Batches that are passed over as a whole are not read; their dictionaries are. */
static enum tr_status skip_arrow(struct tr_table *t, uint64_t n)
{
    struct tr_ar *a = t->state;
    struct tr_ar_message m;
    while (n > 0) {
        uint64_t here = a->n_rows - a->i_row < n ? a->n_rows - a->i_row : n;
        a->i_row += here;
        t->n_rows += (int64_t)here;
        n -= here;
        if (n == 0)
            return TR_OK;
        uint64_t at = a->at;
        TR_PASS(tr_ar_next_message(t, a, &m));
        if (m.kind == 0)
            return TR_OK;
        int64_t n_rows = m.kind == AR_BATCH ? tr_flat_int(&m.text, m.header, 0, 8, 0) : 0;
        if (n_rows < 0 || n_rows > INT64_C(1) << 48)
            TR_PASS(tr_ar_damaged(t, "a batch has a length that is not known"));
        if (m.kind == AR_BATCH && (uint64_t)n_rows <= n) {
            t->n_rows += n_rows;
            n -= (uint64_t)n_rows;
            continue;
        }
        a->at = at;
        if (m.kind == AR_DICTIONARY) {
            TR_PASS(tr_ar_next_message(t, a, &m));
            TR_PASS(tr_ar_read_dictionary(t, a, &m));
        } else {
            TR_PASS(next_batch(t, a));
        }
        if (m.kind != AR_DICTIONARY && a->n_rows == 0)
            return TR_OK;
    }
    return TR_OK;
}

static enum tr_status open_arrow(struct tr_table *t)
{
    uint8_t head[8] = { 0 }, tail[10] = { 0 };
    uint64_t size = t->file.n_bytes;
    struct tr_ar_message m;
    struct tr_ar *a = t->state = calloc(1, sizeof *a);
    if (!a)
        return tr_fail(TR_NOMEM, "no memory for a reader of %s", t->path);
    a->end = size;
    if (size >= 8)
        TR_PASS(tr_pread_all(t->file.fd, t->path, head, 8, 0));
    if (memcmp(head, "ARROW1", 6) == 0) {
        if (size >= 18)
            TR_PASS(tr_pread_all(t->file.fd, t->path, tail, 10, size - 10));
        uint64_t n_footer = le(tail, 4);
        if (memcmp(tail + 4, "ARROW1", 6) != 0 || n_footer > size - 18)
            TR_PASS(tr_ar_damaged(t, "it does not end with ARROW1, so it may be truncated"));
        a->at = 8;
        a->end = size - 10 - n_footer;
    }
    TR_PASS(tr_ar_next_message(t, a, &m));
    if (m.kind != AR_SCHEMA)
        TR_PASS(tr_ar_damaged(t, "it does not begin with a schema"));
    TR_PASS(tr_ar_read_schema(t, a, &m));
    return TR_OK;
}

static enum tr_status count_arrow(struct tr_table *t, uint64_t *out)
{
    struct tr_ar *a = t->state;
    struct tr_ar_message m = { .kind = -1 };
    for (*out = 0; m.kind != 0;) {
        TR_PASS(tr_ar_next_message(t, a, &m));
        int64_t n = m.kind == AR_BATCH ? tr_flat_int(&m.text, m.header, 0, 8, 0) : 0;
        if (n < 0 || n > INT64_C(1) << 48)
            TR_PASS(tr_ar_damaged(t, "a batch has a length that is not known"));
        *out += (uint64_t)n;
    }
    return TR_OK;
}

static void close_arrow(struct tr_table *t)
{
    struct tr_ar *a = t->state;
    if (!a)
        return;
    for (size_t i = 0; i < a->n_dicts; i++) {
        free(a->dicts[i].body.raw);
        free(a->dicts[i].body.unpacked);
        free(a->dicts[i].body.blocks);
    }
    free(a->body.raw);
    free(a->body.unpacked);
    free(a->body.blocks);
    free(a->dicts);
    free(a->fields);
    free(a->meta);
    tr_names_release(&a->names);
    free(a);
}

const struct tr_table_hooks tr_arrow_hooks = {
    .name = "arrow",
    .open = open_arrow,
    .next = next_arrow,
    .skip = skip_arrow,
    .count = count_arrow,
    .close = close_arrow,
};
