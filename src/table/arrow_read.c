/* arrow_read.c - messages of Arrow IPC: schema, dictionaries, record batches. */
#include "table/arrow.h"
#include "table/block.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_META = 256 << 20 };

enum tr_status tr_ar_damaged(const struct tr_table *t, const char *what)
{
    return tr_table_fail(t, TR_USAGE, "the file is not Arrow IPC, or is damaged: %s; copy or make it again", what);
}

/* ---- messages ---- */

/* The length of the next message's metadata; 0: the end. */
static enum tr_status read_length(struct tr_table *t, struct tr_ar *a, uint64_t *n)
{
    uint8_t head[4];
    *n = UINT32_MAX;
    for (int i = 0; i < 2 && *n == UINT32_MAX; i++) { /* since version 0.15 a mark goes before it */
        if (a->end - a->at < 4) {
            *n = 0;
            return a->end == a->at && i == 0 ? TR_OK : tr_ar_damaged(t, "it is truncated");
        }
        TR_PASS(tr_pread_all(t->file.fd, t->path, head, 4, a->at));
        *n = head[0] | (uint64_t)head[1] << 8 | (uint64_t)head[2] << 16 | (uint64_t)head[3] << 24;
        a->at += 4;
    }
    return TR_OK;
}

enum tr_status tr_ar_next_message(struct tr_table *t, struct tr_ar *a, struct tr_ar_message *m)
{
    uint64_t n = 0;
    *m = (struct tr_ar_message){ 0 };
    TR_PASS(tr_table_work(t, 1));
    TR_PASS(read_length(t, a, &n));
    if (n == 0)
        return TR_OK;
    if (n > a->end - a->at || n > MAX_META || n < 8)
        TR_PASS(tr_ar_damaged(t, "a message is longer than the file, or than 256 MiB"));
    TR_PASS(tr_table_hold(t, &a->meta, &a->n_meta_cap, (size_t)n));
    TR_PASS(tr_pread_all(t->file.fd, t->path, a->meta, (size_t)n, a->at));
    m->text = (struct tr_flat){ a->meta, (size_t)n };
    struct tr_flat_at root = { (size_t)tr_flat_le(&m->text, 0, 4), 0 };
    if (root.at < 4 || root.at > n - 4)
        TR_PASS(tr_ar_damaged(t, "a message cannot be read"));
    m->kind = (int)tr_flat_int(&m->text, root, 1, 1, 0);
    m->header = tr_flat_table(&m->text, root, 2);
    m->body_at = a->at + n;
    m->n_body = (uint64_t)tr_flat_int(&m->text, root, 3, 8, 0);
    if (m->kind == 0 || m->header.at == 0 || m->n_body > a->end - m->body_at)
        TR_PASS(tr_ar_damaged(t, "a message cannot be read, or is longer than the file"));
    a->at = m->body_at + m->n_body;
    return TR_OK;
}

/* ---- schema ---- */

enum {
    TYPE_NULL = 1,
    TYPE_INT,
    TYPE_FLOAT,
    TYPE_BINARY,
    TYPE_UTF8,
    TYPE_BOOL,
    TYPE_DECIMAL,
    TYPE_DATE,
    TYPE_TIME,
    TYPE_TIMESTAMP,
    TYPE_INTERVAL,
    TYPE_LIST,
    TYPE_STRUCT,
    TYPE_UNION,
    TYPE_FIXED_BINARY,
    TYPE_FIXED_LIST,
    TYPE_MAP,
    TYPE_DURATION,
    TYPE_LARGE_BINARY,
    TYPE_LARGE_UTF8,
    TYPE_LARGE_LIST,
    TYPE_BINARY_VIEW = 23,
    TYPE_UTF8_VIEW
};

static bool read_int(const struct tr_flat *x, struct tr_flat_at type, enum tr_ar_kind *kind, size_t *width)
{
    int64_t bits = tr_flat_int(x, type, 0, 4, 0);
    *kind = tr_flat_int(x, type, 1, 1, 0) ? AR_INT : AR_UINT;
    *width = (size_t)bits / 8;
    return bits == 8 || bits == 16 || bits == 32 || bits == 64;
}

/* Kind and width of a type. False: the layout is not known. */
static bool read_type(const struct tr_flat *x, int64_t id, struct tr_flat_at type, struct tr_ar_field *f)
{
    static const size_t interval[] = { 4, 8, 16 };
    int64_t n;
    f->width = 0;
    switch (id) {
    case TYPE_NULL:
        f->kind = AR_NULL;
        return true;
    case TYPE_INT:
        return read_int(x, type, &f->kind, &f->width);
    case TYPE_FLOAT:
        n = tr_flat_int(x, type, 0, 2, 0);
        f->kind = AR_REAL;
        f->width = n == 0 ? 2 : n == 1 ? 4 : 8;
        return n >= 0 && n <= 2;
    case TYPE_BINARY:
    case TYPE_UTF8:
    case TYPE_LARGE_BINARY:
    case TYPE_LARGE_UTF8:
        f->kind = AR_TEXT;
        f->is_bytes = id == TYPE_BINARY || id == TYPE_LARGE_BINARY;
        f->width = id >= TYPE_LARGE_BINARY ? 8 : 4;
        return true;
    case TYPE_BINARY_VIEW:
    case TYPE_UTF8_VIEW:
        f->kind = AR_TEXT;
        f->is_view = true;
        f->is_bytes = id == TYPE_BINARY_VIEW;
        f->width = AR_VIEW_BYTES;
        return true;
    case TYPE_BOOL:
        f->kind = AR_BOOL;
        return true;
    case TYPE_DECIMAL:
        n = tr_flat_int(x, type, 2, 4, 128);
        f->kind = AR_OTHER;
        f->width = (size_t)n / 8;
        return n == 32 || n == 64 || n == 128 || n == 256;
    case TYPE_DATE:
        f->kind = AR_INT;
        f->width = tr_flat_int(x, type, 0, 2, 1) == 0 ? 4 : 8;
        return true;
    case TYPE_TIME:
        f->kind = AR_INT;
        f->width = tr_flat_int(x, type, 1, 4, 32) == 32 ? 4 : 8;
        return true;
    case TYPE_TIMESTAMP:
    case TYPE_DURATION:
        f->kind = AR_INT;
        f->width = 8;
        return true;
    case TYPE_INTERVAL:
        n = tr_flat_int(x, type, 0, 2, 0);
        f->kind = AR_OTHER;
        f->width = n >= 0 && n <= 2 ? interval[n] : 0;
        return n >= 0 && n <= 2;
    case TYPE_LIST:
    case TYPE_MAP:
    case TYPE_LARGE_LIST:
        f->kind = AR_LIST;
        f->width = id == TYPE_LARGE_LIST ? 8 : 4;
        return true;
    case TYPE_STRUCT:
        f->kind = AR_STRUCT;
        return true;
    case TYPE_FIXED_BINARY:
    case TYPE_FIXED_LIST:
        n = tr_flat_int(x, type, 0, 4, 0);
        f->kind = id == TYPE_FIXED_BINARY ? AR_FIXED_TEXT : AR_FIXED_LIST;
        f->width = (size_t)n;
        return n >= 0 && n <= 1 << 24;
    default:
        return false;
    }
}

static enum tr_status add_field(struct tr_table *t, struct tr_ar *a, size_t *i)
{
    if (a->n_fields == AR_MAX_FIELDS)
        return tr_ar_damaged(t, "it has over 16,384 columns");
    if (!TR_GROW(a->fields, a->n_fields + 1, &a->n_fields_cap))
        return tr_table_fail(t, TR_NOMEM, "no memory for its columns");
    *i = a->n_fields++;
    a->fields[*i] = (struct tr_ar_field){ 0 };
    return TR_OK;
}

static enum tr_status refuse_type(const struct tr_table *t, const struct tr_ar *a, size_t i, int64_t type)
{
    const struct tr_name *name = &a->names.p[i];
    return tr_table_fail(
        t, TR_USAGE,
        "column %.*s has type %" PRId64
        " of Arrow (a union, a view of lists or run-end encoding), which is not read; cast it, or leave it out",
        (int)name->n - 1, a->names.text.p + name->at, type);
}

/* Reads a field and its children. With `as_values` the values of its dictionary, else what is in the batch. */
static enum tr_status read_field(struct tr_table *t, struct tr_ar *a, const struct tr_flat *x, struct tr_flat_at at,
                                 bool as_values, int depth)
{
    size_t i = 0;
    struct tr_flat_at name = tr_flat_vector(x, at, 0, 1), dict = tr_flat_table(x, at, 4);
    struct tr_flat_at children = tr_flat_vector(x, at, 5, 4);
    if (depth > AR_MAX_DEPTH || at.at == 0)
        return tr_ar_damaged(t, "its schema is too deep, or cannot be read");
    TR_PASS(add_field(t, a, &i));
    TR_PASS(tr_names_add(&a->names, (const char *)x->p + name.at, name.n));
    struct tr_ar_field f = { 0 };
    int64_t type = (uint8_t)tr_flat_int(x, at, 2, 1, 0);
    if (!read_type(x, type, tr_flat_table(x, at, 3), &f))
        TR_PASS(refuse_type(t, a, i, type));
    f.is_dict = dict.at != 0 && !as_values;
    f.id = tr_flat_int(x, dict, 0, 8, 0);
    struct tr_flat_at index = tr_flat_table(x, dict, 1);
    f.index_kind = AR_INT;
    f.index_width = 4;
    if (f.is_dict && index.at && !read_int(x, index, &f.index_kind, &f.index_width))
        TR_PASS(tr_ar_damaged(t, "a dictionary has an index that is not an integer"));
    for (size_t k = 0; !f.is_dict && k < children.n; k++)
        TR_PASS(read_field(t, a, x, tr_flat_follow(x, children.at + 4 * k), false, depth + 1));
    size_t n_children = f.is_dict ? 0 : children.n;
    if ((f.kind == AR_LIST || f.kind == AR_FIXED_LIST) && !f.is_dict && n_children != 1)
        TR_PASS(tr_ar_damaged(t, "a list has not one type of elements"));
    f.end = a->n_fields;
    a->fields[i] = f;
    return TR_OK;
}

/* Fields for the values of every dictionary that the schema's fields name. A dictionary of dictionaries is refused. */
static enum tr_status add_dictionaries(struct tr_table *t, struct tr_ar *a, const struct tr_flat *x,
                                       struct tr_flat_at at, size_t *i, int depth)
{
    size_t k = 0, own = *i;
    struct tr_flat_at children = tr_flat_vector(x, at, 5, 4);
    ++*i;
    for (; own < a->n_top && !a->fields[own].is_dict && k < children.n && depth <= AR_MAX_DEPTH; k++)
        TR_PASS(add_dictionaries(t, a, x, tr_flat_follow(x, children.at + 4 * k), i, depth + 1));
    if (own >= a->n_top || !a->fields[own].is_dict)
        return TR_OK;
    struct tr_ar_dict *p = realloc(a->dicts, (a->n_dicts + 1) * sizeof *p);
    if (!p)
        return tr_table_fail(t, TR_NOMEM, "no memory for a dictionary");
    a->dicts = p;
    p[a->n_dicts++] = (struct tr_ar_dict){ .id = a->fields[own].id, .root = a->n_fields };
    TR_PASS(read_field(t, a, x, at, true, 0));
    for (size_t f = p[a->n_dicts - 1].root; f < a->n_fields; f++)
        if (a->fields[f].is_dict)
            TR_PASS(tr_ar_damaged(t, "a dictionary has a dictionary, which is not read"));
    return TR_OK;
}

enum tr_status tr_ar_read_schema(struct tr_table *t, struct tr_ar *a, const struct tr_ar_message *m)
{
    enum tr_status st = TR_OK;
    const struct tr_flat *x = &m->text;
    struct tr_flat_at fields = tr_flat_vector(x, m->header, 1, 4);
    size_t *top = NULL, n_top = 0, i = 0;
    if (a->has_schema || tr_flat_int(x, m->header, 0, 2, 0) != 0)
        return tr_ar_damaged(t, "it has two schemas, or numbers in big-endian order");
    for (size_t k = 0; k < fields.n; k++)
        TR_TRY(read_field(t, a, x, tr_flat_follow(x, fields.at + 4 * k), false, 0));
    a->n_top = a->n_fields;
    for (size_t k = 0; k < fields.n; k++)
        TR_TRY(add_dictionaries(t, a, x, tr_flat_follow(x, fields.at + 4 * k), &i, 0));
    for (size_t k = 0; k < a->n_top; k++)
        for (size_t d = 0; d < a->n_dicts && a->fields[k].is_dict; d++)
            if (a->dicts[d].id == a->fields[k].id) {
                a->fields[k].dict = &a->dicts[d];
                break;
            }
    top = calloc(fields.n + 1, sizeof *top);
    if (!top)
        TR_TRY(tr_table_fail(t, TR_NOMEM, "no memory for its columns"));
    for (size_t k = 0; k < a->n_top; k = a->fields[k].end)
        top[n_top++] = k;
    st = tr_names_check(&a->names, top, n_top);
    if (st != TR_OK)
        TR_TRY(tr_fail_at(st, "%s: ", t->path));
    a->has_schema = true;
out:
    free(top);
    return st;
}

/* ---- batches ---- */

struct batch {
    const struct tr_flat *x;
    struct tr_flat_at nodes, buffers, counts; /* counts: of the buffers of each column of views */
    size_t i_node, i_buffer, i_count;
    int codec; /* -1: not compressed */
    struct tr_ar_body *body;
};

/* The next buffer of the batch, decompressed. */
static enum tr_status next_buffer(struct tr_table *t, struct batch *b, const uint8_t **out, size_t *n)
{
    struct tr_ar_body *body = b->body;
    if (b->i_buffer == b->buffers.n)
        return tr_ar_damaged(t, "a batch has too few buffers");
    size_t at = b->buffers.at + 16 * b->i_buffer++;
    uint64_t offset = tr_flat_le(b->x, at, 8), length = tr_flat_le(b->x, at + 8, 8);
    if (offset > body->n_raw || length > body->n_raw - offset)
        return tr_ar_damaged(t, "a buffer lies outside its batch");
    *out = body->raw + offset;
    *n = (size_t)length;
    if (b->codec < 0 || length == 0)
        return TR_OK;
    struct tr_flat head = { *out, *n };
    int64_t n_plain = (int64_t)tr_flat_le(&head, 0, 8);
    if (length < 8 || n_plain < -1)
        return tr_ar_damaged(t, "a compressed buffer has no length");
    *out += 8;
    *n -= 8;
    if (n_plain == -1)
        return TR_OK;
    if ((uint64_t)n_plain > body->n_unpacked_cap - body->n_unpacked)
        return tr_ar_damaged(t, "a compressed buffer is longer than before");
    uint8_t *to = body->unpacked + body->n_unpacked;
    if (!tr_block_unpack(b->codec == 0 ? TR_BLOCK_LZ4_FRAME : TR_BLOCK_ZSTD, *out, *n, to, (size_t)n_plain))
        TR_PASS(tr_ar_damaged(t, "a buffer cannot be decompressed"));
    body->n_unpacked += (size_t)n_plain;
    *out = to;
    *n = (size_t)n_plain;
    return TR_OK;
}

/* Memory for all buffers of the batch that are compressed; it does not move while they are filled. */
static enum tr_status reserve_unpacked(struct tr_table *t, struct batch *b)
{
    size_t all = 0;
    struct tr_ar_body *body = b->body;
    body->n_unpacked = 0;
    for (size_t i = 0; b->codec >= 0 && i < b->buffers.n; i++) {
        size_t at = b->buffers.at + 16 * i;
        uint64_t offset = tr_flat_le(b->x, at, 8), length = tr_flat_le(b->x, at + 8, 8);
        struct tr_flat raw = { body->raw, body->n_raw };
        int64_t n = length >= 8 && offset < body->n_raw ? (int64_t)tr_flat_le(&raw, (size_t)offset, 8) : 0;
        if (n > 0 && !tr_add_size(all, (size_t)n, &all))
            return tr_ar_damaged(t, "its buffers are too long");
    }
    return tr_table_hold(t, &body->unpacked, &body->n_unpacked_cap, all + 1);
}

/* The bytes that n values of a field need; false: no number holds them. */
static bool need(const struct tr_ar_field *f, uint64_t n, size_t *out)
{
    if (n > SIZE_MAX / 2)
        return false;
    if (f->kind == AR_BOOL)
        *out = (size_t)n / 8 + (n % 8 != 0);
    else if (f->kind == AR_LIST || (f->kind == AR_TEXT && !f->is_view))
        return n == 0 ? (*out = 0, true) : tr_mul_size((size_t)n + 1, f->width, out);
    else
        return tr_mul_size((size_t)n, f->width, out);
    return true;
}

/* The buffers that the views of a field point into. */
static enum tr_status open_blocks(struct tr_table *t, struct batch *b, struct tr_ar_field *f)
{
    struct tr_ar_body *body = b->body;
    if (b->i_count == b->counts.n)
        return tr_ar_damaged(t, "a batch does not say how many buffers its views have");
    uint64_t n = tr_flat_le(b->x, b->counts.at + 8 * b->i_count++, 8);
    f->body = body;
    f->first_block = body->n_blocks;
    if (n > b->buffers.n - b->i_buffer)
        return tr_ar_damaged(t, "a batch has too few buffers");
    if (!TR_GROW(body->blocks, body->n_blocks + (size_t)n, &body->n_blocks_cap))
        return tr_table_fail(t, TR_NOMEM, "no memory for its columns");
    for (uint64_t i = 0; i < n; i++) {
        struct tr_ar_block block = { NULL, 0 };
        TR_PASS(next_buffer(t, b, &block.p, &block.n));
        body->blocks[body->n_blocks++] = block;
    }
    f->n_blocks = body->n_blocks;
    return TR_OK;
}

/* Gives field i its node and buffers, and then its children theirs. */
static enum tr_status open_field(struct tr_table *t, struct tr_ar *a, struct batch *b, size_t i)
{
    struct tr_ar_field *f = &a->fields[i];
    struct tr_ar_field plain = *f; /* the layout in the batch: the indices of a dictionary */
    size_t n = 0, n_need = 0, n_valid = 0;
    if (f->is_dict) {
        plain.kind = f->index_kind;
        plain.width = f->index_width;
        plain.is_view = false;
    }
    if (b->i_node == b->nodes.n)
        return tr_ar_damaged(t, "a batch has too few columns");
    size_t at = b->nodes.at + 16 * b->i_node++;
    f->n = tr_flat_le(b->x, at, 8);
    uint64_t n_nulls = tr_flat_le(b->x, at + 8, 8);
    f->valid = f->offsets = f->values = NULL;
    f->n_values = 0;
    if (!need(&plain, f->n, &n_need))
        return tr_ar_damaged(t, "a column is too long");
    if (plain.kind == AR_NULL)
        return TR_OK;
    TR_PASS(next_buffer(t, b, &f->valid, &n_valid));
    if (n_nulls == 0 || n_valid == 0)
        f->valid = NULL;
    else if (n_valid < f->n / 8 + (f->n % 8 != 0))
        TR_PASS(tr_ar_damaged(t, "the nulls of a column are shorter than it"));
    bool has_offsets = plain.kind == AR_LIST || (plain.kind == AR_TEXT && !plain.is_view);
    if (has_offsets) {
        TR_PASS(next_buffer(t, b, &f->offsets, &n));
        if (n < n_need)
            TR_PASS(tr_ar_damaged(t, "the offsets of a column are shorter than it"));
    }
    if (plain.kind != AR_LIST && plain.kind != AR_FIXED_LIST && plain.kind != AR_STRUCT) {
        TR_PASS(next_buffer(t, b, &f->values, &f->n_values));
        if ((plain.kind != AR_TEXT || plain.is_view) && f->n_values < n_need)
            TR_PASS(tr_ar_damaged(t, "the values of a column are shorter than it"));
    }
    if (plain.is_view)
        TR_PASS(open_blocks(t, b, f));
    for (size_t k = i + 1; k < f->end; k = a->fields[k].end) {
        TR_PASS(open_field(t, a, b, k));
        if ((f->kind == AR_STRUCT && a->fields[k].n < f->n) || (f->kind == AR_FIXED_LIST && a->fields[k].n < n_need))
            TR_PASS(tr_ar_damaged(t, "a column is shorter than the one around it"));
    }
    return TR_OK;
}

enum tr_status tr_ar_read_batch(struct tr_table *t, struct tr_ar *a, const struct tr_ar_message *m,
                                struct tr_flat_at at, size_t first, size_t end, struct tr_ar_body *body)
{
    const struct tr_flat *x = &m->text;
    struct tr_flat_at packed = tr_flat_table(x, at, 3);
    struct batch b = { .x = x,
                       .nodes = tr_flat_vector(x, at, 1, 16),
                       .buffers = tr_flat_vector(x, at, 2, 16),
                       .counts = tr_flat_vector(x, at, 4, 8),
                       .codec = -1,
                       .body = body };
    int64_t n = tr_flat_int(x, at, 0, 8, 0);
    if (packed.at)
        b.codec = (int)tr_flat_int(x, packed, 0, 1, 0);
    if (n < 0 || b.codec > 1 || b.codec < -1)
        return tr_ar_damaged(t, "a batch has a length or a codec that is not known");
    TR_PASS(tr_table_hold(t, &body->raw, &body->n_raw_cap, (size_t)m->n_body + 1));
    body->n_raw = (size_t)m->n_body;
    TR_PASS(tr_pread_all(t->file.fd, t->path, body->raw, body->n_raw, m->body_at));
    TR_PASS(reserve_unpacked(t, &b));
    body->n_blocks = 0;
    for (size_t i = first; i < end; i = a->fields[i].end) {
        TR_PASS(open_field(t, a, &b, i));
        if (a->fields[i].n != (uint64_t)n)
            TR_PASS(tr_ar_damaged(t, "a column is not as long as its batch"));
    }
    return TR_OK;
}

enum tr_status tr_ar_read_dictionary(struct tr_table *t, struct tr_ar *a, const struct tr_ar_message *m)
{
    int64_t id = tr_flat_int(&m->text, m->header, 0, 8, 0);
    struct tr_flat_at batch = tr_flat_table(&m->text, m->header, 1);
    if (tr_flat_int(&m->text, m->header, 2, 1, 0))
        return tr_table_fail(t, TR_USAGE, "a dictionary grows between batches, which is not read; write it again");
    for (size_t i = 0; i < a->n_dicts; i++)
        if (a->dicts[i].id == id) {
            size_t root = a->dicts[i].root;
            TR_PASS(tr_ar_read_batch(t, a, m, batch, root, a->fields[root].end, &a->dicts[i].body));
            a->dicts[i].is_read = true;
            return TR_OK;
        }
    return tr_ar_damaged(t, "a dictionary belongs to no column");
}
