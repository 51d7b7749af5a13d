/* parquet_meta.c - the footer of a parquet file: its schema as a tree of nodes, and where its columns are.
 *
 * The text of the footer stays in memory and is read again for each row group, so the memory of a file with many row
 * groups is the size of its footer, not that of a tree of it.
 */
#include "table/parquet.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_META = 256 << 20 };

static enum tr_status damaged(const struct tr_table *t, const char *what)
{
    return tr_fail(TR_USAGE, "%s: the file is not parquet, or is damaged: %s; copy or make it again", t->path, what);
}

/* ---- schema ---- */

struct element {
    int64_t type, n_fixed, repetition, n_children, converted;
    int logical;               /* field of the union LogicalType; 0: none */
    int64_t n_bits, is_signed; /* of a logical integer */
    const char *name;
    size_t n_name;
};

static void read_logical(struct tr_thrift *x, struct element *e)
{
    struct tr_thrift_field f = { 0 }, g = { 0 };
    while (tr_thrift_field(x, &f)) {
        e->logical = f.id;
        if (!tr_thrift_struct(x, &f))
            return;
        for (g = (struct tr_thrift_field){ 0 }; tr_thrift_field(x, &g);)
            if (f.id == 10 && g.id == 1)
                e->n_bits = tr_thrift_int(x, &g);
            else if (f.id == 10 && g.id == 2)
                e->is_signed = tr_thrift_int(x, &g);
            else
                tr_thrift_skip(x, g.type);
    }
}

static void read_element(struct tr_thrift *x, struct element *e)
{
    struct tr_thrift_field f = { 0 };
    *e = (struct element){ .type = -1, .converted = -1, .is_signed = 1 };
    while (tr_thrift_field(x, &f)) {
        int64_t *const numbers[] = { NULL, &e->type, &e->n_fixed, &e->repetition, NULL, &e->n_children, &e->converted };
        if (f.id > 0 && f.id < (int)TR_COUNT_OF(numbers) && numbers[f.id])
            *numbers[f.id] = tr_thrift_int(x, &f);
        else if (f.id == 4)
            e->name = tr_thrift_text(x, &f, &e->n_name);
        else if (f.id == 10 && tr_thrift_struct(x, &f))
            read_logical(x, e);
        else
            tr_thrift_skip(x, f.type);
    }
}

static enum tr_pq_cell cell_of(const struct element *e)
{
    enum { TEXT = 0, LOGICAL_TEXT = 1, DECIMAL = 5, UINT_8 = 11, UINT_64 = 14, LOGICAL_DECIMAL = 5, LOGICAL_HALF = 15 };
    if (e->type == PQ_INT96 || e->converted == DECIMAL || e->logical == LOGICAL_DECIMAL)
        return PQ_AS_NULL;
    if (e->logical == LOGICAL_HALF)
        return e->type == PQ_FIXED && e->n_fixed == 2 ? PQ_AS_HALF : PQ_AS_NULL;
    if (e->type == PQ_BYTE_ARRAY || e->type == PQ_FIXED)
        return e->converted == TEXT || e->logical == LOGICAL_TEXT ? PQ_AS_VALUE : PQ_AS_BYTES;
    bool is_unsigned = (e->converted >= UINT_8 && e->converted <= UINT_64) || (e->logical == 10 && !e->is_signed);
    return is_unsigned ? PQ_AS_UNSIGNED : PQ_AS_VALUE;
}

static enum tr_status add_leaf(struct tr_table *t, struct tr_pq *q, const struct element *e, struct tr_pq_node *node)
{
    if (e->type < 0 || e->type >= PQ_TYPES || (e->type == PQ_FIXED && (e->n_fixed < 0 || e->n_fixed > 1 << 24)))
        return damaged(t, "a column has a type that is not known");
    struct tr_pq_leaf *p = realloc(q->leaves, (q->n_leaves + 1) * sizeof *p);
    if (!p)
        return tr_fail(TR_NOMEM, "%s: no memory for its columns", t->path);
    q->leaves = p;
    p[q->n_leaves] = (struct tr_pq_leaf){
        .type = (enum tr_pq_type)e->type,
        .cell = cell_of(e),
        .max_def = node->def,
        .max_rep = node->rep,
        .i_node = q->n_nodes - 1,
        .values = { .type = (enum tr_pq_type)e->type, .n_fixed = (size_t)e->n_fixed },
    };
    q->n_leaves++;
    return TR_OK;
}

/* Whether the repeated group stands for its only member (the rules of the format for lists that old writers made): not
 * for one with other than one member, and not if its name says that it is the element itself. */
static bool is_wrapper(const struct element *e)
{
    static const char tuple[] = "_tuple";
    size_t k = sizeof tuple - 1;
    return e->n_children == 1 && !(e->n_name == 5 && memcmp(e->name, "array", 5) == 0) &&
           !(e->n_name > k && memcmp(e->name + e->n_name - k, tuple, k) == 0);
}

/* Reads an element and its members. x is at the elements, of which n_left are there. */
static enum tr_status read_node(struct tr_table *t, struct tr_pq *q, struct tr_thrift *x, size_t *n_left,
                                const struct tr_pq_node *above, bool is_in_list, int depth)
{
    enum { LIST = 3, MAP = 1, MAP_KEY_VALUE = 2, LOGICAL_MAP = 2, LOGICAL_LIST = 3 };
    struct element e;
    if (depth > PQ_MAX_DEPTH || *n_left == 0 || q->n_nodes == PQ_MAX_NODES)
        return damaged(t, "its schema is too deep, too large or incomplete");
    --*n_left;
    read_element(x, &e);
    if (x->is_bad || e.n_children < 0 || (uint64_t)e.n_children > *n_left || e.repetition < 0 || e.repetition > 2)
        return damaged(t, "its schema cannot be read");
    size_t i = q->n_nodes++;
    struct tr_pq_node node = { .is_optional = e.repetition == 1, .is_repeated = e.repetition == 2 };
    if (i == 0)
        node = (struct tr_pq_node){ 0 };
    else
        TR_PASS(tr_names_add(&q->names, e.name ? e.name : "", e.n_name));
    if (i == 0)
        TR_PASS(tr_names_add(&q->names, "", 0));
    node.def = (above ? above->def : 0) + (node.is_optional || node.is_repeated);
    node.rep = (above ? above->rep : 0) + node.is_repeated;
    node.leaf = q->n_leaves;
    bool is_list = i > 0 && e.n_children == 1 && !node.is_repeated &&
                   (e.converted == LIST || e.converted == MAP || e.converted == MAP_KEY_VALUE ||
                    e.logical == LOGICAL_LIST || e.logical == LOGICAL_MAP);
    node.kind = is_list ? PQ_LIST : e.type >= 0 && e.n_children == 0 ? PQ_LEAF : PQ_STRUCT;
    node.is_wrapper = is_in_list && node.is_repeated && node.kind == PQ_STRUCT && is_wrapper(&e);
    if (node.kind == PQ_LEAF)
        TR_PASS(add_leaf(t, q, &e, &node));
    for (int64_t k = 0; k < e.n_children; k++)
        TR_PASS(read_node(t, q, x, n_left, &node, is_list, depth + 1));
    if (is_list && !q->nodes[i + 1].is_repeated)
        node.kind = PQ_STRUCT; /* annotated as a list, and is none */
    node.end = q->n_nodes;
    node.end_leaf = q->n_leaves;
    if (node.leaf == node.end_leaf && i > 0)
        TR_PASS(damaged(t, "a column has no values"));
    q->nodes[i] = node;
    return TR_OK;
}

static enum tr_status read_schema(struct tr_table *t, struct tr_pq *q, struct tr_thrift *x,
                                  const struct tr_thrift_field *f)
{
    enum tr_status st = TR_OK;
    size_t *top = NULL, n_top = 0;
    int type;
    size_t n = tr_thrift_list(x, f, &type), n_left = n;
    if (x->is_bad || type != TR_THRIFT_STRUCT || n > PQ_MAX_NODES || q->nodes)
        return damaged(t, "its schema cannot be read, or has over 16,384 columns");
    q->nodes = calloc(n + 1, sizeof *q->nodes);
    if (!q->nodes)
        return tr_fail(TR_NOMEM, "%s: no memory for its columns", t->path);
    TR_TRY(read_node(t, q, x, &n_left, NULL, false, 0));
    if (n_left > 0 || q->nodes[0].kind != PQ_STRUCT)
        TR_TRY(damaged(t, "its schema cannot be read"));
    top = calloc(n, sizeof *top);
    if (!top)
        TR_TRY(tr_fail(TR_NOMEM, "%s: no memory for its columns", t->path));
    for (size_t i = 1; i < q->n_nodes; i = q->nodes[i].end)
        top[n_top++] = i;
    st = tr_names_check(&q->names, top, n_top);
    if (st != TR_OK)
        TR_TRY(tr_fail_at(st, "%s: ", t->path));
out:
    free(top);
    return st;
}

/* ---- footer ---- */

static enum tr_status read_groups(struct tr_table *t, struct tr_pq *q, struct tr_thrift *x,
                                  const struct tr_thrift_field *f)
{
    int type;
    size_t n = tr_thrift_list(x, f, &type);
    if (x->is_bad || type != TR_THRIFT_STRUCT || q->groups)
        return damaged(t, "its row groups cannot be read");
    q->groups = calloc(n + 1, sizeof *q->groups);
    if (!q->groups)
        return tr_fail(TR_NOMEM, "%s: no memory for its row groups", t->path);
    for (; q->n_groups < n && !x->is_bad; q->n_groups++) {
        q->groups[q->n_groups] = (size_t)(x->p - q->meta);
        tr_thrift_skip(x, TR_THRIFT_STRUCT);
    }
    return x->is_bad ? damaged(t, "its row groups cannot be read") : TR_OK;
}

static enum tr_status read_footer(struct tr_table *t, struct tr_pq *q)
{
    uint8_t tail[8];
    uint64_t size = t->file.n_bytes;
    if (size < 12)
        return damaged(t, "it is shorter than 12 bytes");
    TR_PASS(tr_pread_all(t->file.fd, t->path, tail, 8, size - 8));
    if (memcmp(tail + 4, "PARE", 4) == 0)
        return tr_fail(TR_USAGE, "%s: the file is encrypted parquet, which is not read", t->path);
    if (memcmp(tail + 4, "PAR1", 4) != 0)
        TR_PASS(damaged(t, "it does not end with PAR1, so it may be truncated"));
    uint64_t n = tail[0] | (uint64_t)tail[1] << 8 | (uint64_t)tail[2] << 16 | (uint64_t)tail[3] << 24;
    if (n > size - 12 || n > MAX_META)
        TR_PASS(damaged(t, "its footer is longer than the file, or than 256 MiB"));
    TR_PASS(tr_table_hold(t, &q->meta, &q->n_meta_cap, (size_t)n + 1));
    q->n_meta = (size_t)n;
    return tr_pread_all(t->file.fd, t->path, q->meta, (size_t)n, size - 8 - n);
}

enum tr_status tr_pq_read_meta(struct tr_table *t, struct tr_pq *q)
{
    struct tr_thrift_field f = { 0 };
    TR_PASS(read_footer(t, q));
    struct tr_thrift x = { q->meta, q->meta + q->n_meta, false };
    while (tr_thrift_field(&x, &f)) {
        if (f.id == 2) {
            TR_PASS(read_schema(t, q, &x, &f));
        } else if (f.id == 4) {
            TR_PASS(read_groups(t, q, &x, &f));
        } else {
            tr_thrift_skip(&x, f.type);
        }
    }
    if (x.is_bad || !q->nodes || !q->groups)
        TR_PASS(damaged(t, "its footer cannot be read"));
    return TR_OK;
}

/* ---- a row group ---- */

static bool read_chunk_meta(struct tr_thrift *x, struct tr_pq_leaf *leaf)
{
    struct tr_thrift_field f = { 0 };
    int64_t type = -1, codec = -1, n_values = -1, n_bytes = -1, data = -1, dictionary = -1;
    while (tr_thrift_field(x, &f)) {
        int64_t *const numbers[] = { NULL, &type,    NULL, NULL,  &codec, &n_values,
                                     NULL, &n_bytes, NULL, &data, NULL,   &dictionary };
        if (f.id > 0 && f.id < (int)TR_COUNT_OF(numbers) && numbers[f.id])
            *numbers[f.id] = tr_thrift_int(x, &f);
        else
            tr_thrift_skip(x, f.type);
    }
    if (x->is_bad || type != (int64_t)leaf->type || n_values < 0 || n_bytes < 0 || data < 0 || codec < 0 || codec > 15)
        return false;
    leaf->codec = (int)codec;
    leaf->n_entries = (uint64_t)n_values;
    leaf->at = (uint64_t)(dictionary > 0 && dictionary < data ? dictionary : data);
    leaf->end = leaf->at + (uint64_t)n_bytes;
    return true;
}

static enum tr_status read_chunk(struct tr_table *t, struct tr_thrift *x, struct tr_pq_leaf *leaf)
{
    struct tr_thrift_field f = { 0 };
    bool has_meta = false;
    while (tr_thrift_field(x, &f)) {
        if (f.id == 1)
            return tr_fail(TR_USAGE, "%s: a column is in another file, which is not read", t->path);
        if (f.id == 3 && tr_thrift_struct(x, &f))
            has_meta = read_chunk_meta(x, leaf);
        else
            tr_thrift_skip(x, f.type);
    }
    if (x->is_bad || !has_meta || leaf->end > t->file.n_bytes || leaf->end < leaf->at)
        return damaged(t, "the place of a column cannot be read, or is outside the file");
    return TR_OK;
}

enum tr_status tr_pq_read_group(struct tr_table *t, struct tr_pq *q, size_t i, bool opens, uint64_t *n_rows)
{
    struct tr_thrift x = { q->meta + q->groups[i], q->meta + q->n_meta, false };
    struct tr_thrift_field f = { 0 };
    size_t n_chunks = 0;
    int64_t rows = -1;
    int type = 0;
    while (tr_thrift_field(&x, &f)) {
        if (f.id == 3) {
            rows = tr_thrift_int(&x, &f);
        } else if (f.id == 1 && opens) {
            n_chunks = tr_thrift_list(&x, &f, &type);
            if (n_chunks != q->n_leaves || type != TR_THRIFT_STRUCT)
                TR_PASS(damaged(t, "a row group has another number of columns than the schema"));
            for (size_t k = 0; k < n_chunks; k++)
                TR_PASS(read_chunk(t, &x, &q->leaves[k]));
        } else {
            tr_thrift_skip(&x, f.type);
        }
    }
    if (x.is_bad || rows < 0 || rows > INT64_C(1) << 48 || (opens && n_chunks != q->n_leaves))
        TR_PASS(damaged(t, "a row group cannot be read"));
    *n_rows = (uint64_t)rows;
    return TR_OK;
}
