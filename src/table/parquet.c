/* parquet.c - parquet files as records: rows assembled from the entries of their columns.
 *
 * The assembly follows the schema: a node looks at the current entry of its first leaf, whose levels say whether the
 * node is there, and for a list whether another element follows. A value that JSON has no form for (decimals, INT96)
 * is null; dates and times are their integers.
 */
#include "table/parquet.h"

#include <stdlib.h>

static enum tr_status disagree(const struct tr_table *t)
{
    return tr_table_fail(t, TR_USAGE, "its columns disagree on where lists begin and end; copy or make the file again");
}

/* ---- values ---- */

static enum tr_status write_value(struct tr_table *t, struct tr_pq_leaf *f)
{
    struct tr_pq_value v = { 0 };
    if (!tr_pq_values_next(&f->values, &v))
        return tr_table_fail(t, TR_USAGE,
                             "a page has fewer values than it says, or damaged ones; copy or make the file "
                             "again");
    if (f->cell == PQ_AS_NULL)
        tr_cell_raw(t, "null", 4);
    else if (f->cell == PQ_AS_HALF)
        tr_cell_real(t, tr_half((uint16_t)((unsigned char)v.p[0] | (unsigned char)v.p[1] << 8)));
    else if (f->type == PQ_BOOLEAN)
        tr_cell_raw(t, v.i ? "true" : "false", v.i ? 4 : 5);
    else if (f->type == PQ_FLOAT || f->type == PQ_DOUBLE)
        tr_cell_real(t, v.real);
    else if (f->type == PQ_BYTE_ARRAY || f->type == PQ_FIXED)
        TR_PASS(f->cell == PQ_AS_BYTES ? tr_cell_bytes(t, v.p, v.n) : tr_cell_text(t, v.p, v.n));
    else if (f->cell == PQ_AS_UNSIGNED)
        tr_cell_uint(t, f->type == PQ_INT32 ? (uint32_t)v.i : (uint64_t)v.i);
    else
        tr_cell_int(t, v.i);
    TR_PASS(tr_pq_advance(t, f));
    return TR_OK;
}

/* ---- nodes ---- */

/* All leaves of a node that is not there have one entry, which says so. */
static enum tr_status pass_absent(struct tr_table *t, struct tr_pq *q, const struct tr_pq_node *n, unsigned def)
{
    for (size_t i = n->leaf; i < n->end_leaf; i++) {
        if (!q->leaves[i].has_entry || q->leaves[i].def >= def)
            TR_PASS(disagree(t));
        TR_PASS(tr_pq_advance(t, &q->leaves[i]));
    }
    return TR_OK;
}

static enum tr_status write_node(struct tr_table *t, struct tr_pq *q, size_t i);

static enum tr_status write_members(struct tr_table *t, struct tr_pq *q, size_t i)
{
    tr_cell_raw(t, "{", 1);
    for (size_t k = i + 1; k < q->nodes[i].end; k = q->nodes[k].end) {
        TR_PASS(tr_table_work(t, q->names.p[k].n));
        tr_cell_name(t, &q->names, k, k == i + 1);
        TR_PASS(write_node(t, q, k));
    }
    tr_cell_raw(t, "}", 1);
    return TR_OK;
}

/* A node that is there, without its elements if it is repeated. */
static enum tr_status write_one(struct tr_table *t, struct tr_pq *q, size_t i)
{
    const struct tr_pq_node *n = &q->nodes[i];
    if (n->kind == PQ_LEAF)
        return q->leaves[n->leaf].def == n->def ? write_value(t, &q->leaves[n->leaf]) : disagree(t);
    return n->is_wrapper ? write_node(t, q, i + 1) : write_members(t, q, i);
}

/* The elements of a repeated node. */
static enum tr_status write_elements(struct tr_table *t, struct tr_pq *q, size_t i)
{
    const struct tr_pq_node *n = &q->nodes[i];
    const struct tr_pq_leaf *first = &q->leaves[n->leaf];
    tr_cell_raw(t, "[", 1);
    if (first->def < n->def) {
        TR_PASS(pass_absent(t, q, n, n->def));
    } else {
        TR_PASS(write_one(t, q, i));
        while (first->has_entry && first->rep == n->rep) {
            for (size_t k = n->leaf; k < n->end_leaf; k++)
                if (!q->leaves[k].has_entry || q->leaves[k].rep != n->rep)
                    TR_PASS(disagree(t));
            tr_cell_raw(t, ",", 1);
            TR_PASS(write_one(t, q, i));
        }
    }
    tr_cell_raw(t, "]", 1);
    return TR_OK;
}

static enum tr_status write_node(struct tr_table *t, struct tr_pq *q, size_t i)
{
    const struct tr_pq_node *n = &q->nodes[i];
    const struct tr_pq_leaf *first = &q->leaves[n->leaf];
    if (!first->has_entry)
        return disagree(t);
    if (n->is_repeated)
        return write_elements(t, q, i);
    if (n->is_optional && first->def < n->def) {
        tr_cell_raw(t, "null", 4);
        return pass_absent(t, q, n, n->def);
    }
    return n->kind == PQ_LIST ? write_node(t, q, i + 1) : write_one(t, q, i);
}

/* ---- rows ---- */

/* Opens the next row group that has rows. */
static enum tr_status next_group(struct tr_table *t, struct tr_pq *q)
{
    while (q->n_left == 0 && q->i_group < q->n_groups) {
        TR_PASS(tr_pq_read_group(t, q, q->i_group++, true, &q->n_left));
        for (size_t i = 0; i < q->n_leaves && q->n_left > 0; i++) {
            struct tr_pq_leaf *f = &q->leaves[i];
            f->n_in_page = 0;
            f->dict.n = 0;
            tr_table_drop(t, &f->dict.p, &f->dict.n_cap);
            TR_PASS(tr_pq_advance(t, f));
        }
    }
    return TR_OK;
}

static enum tr_status next_parquet(struct tr_table *t, struct tr_row *row)
{
    struct tr_pq *q = t->state;
    TR_PASS(next_group(t, q));
    if (q->n_left == 0)
        return TR_OK;
    tr_str_clear(&t->text);
    TR_PASS(tr_table_work(t, TR_TABLE_ROW));
    for (size_t i = 0; i < q->n_leaves; i++)
        if (!q->leaves[i].has_entry || q->leaves[i].rep != 0)
            TR_PASS(disagree(t));
    TR_PASS(write_members(t, q, 0));
    for (size_t i = 0; i < q->n_leaves && q->n_left == 1; i++)
        if (q->leaves[i].has_entry)
            TR_PASS(disagree(t));
    q->n_left--;
    return tr_table_give(t, row, NULL);
}

/* Row groups that are passed over as a whole are not read. */
static enum tr_status skip_parquet(struct tr_table *t, uint64_t n)
{
    struct tr_pq *q = t->state;
    struct tr_row row = { .text = "" };
    uint64_t n_group;
    while (n > 0 && row.text) {
        while (q->n_left == 0 && q->i_group < q->n_groups) {
            TR_PASS(tr_pq_read_group(t, q, q->i_group, false, &n_group));
            if (n_group > n)
                break;
            q->i_group++;
            t->n_rows += (int64_t)n_group;
            n -= n_group;
        }
        if (n > 0)
            TR_PASS(tr_table_next(t, &row));
        n -= n > 0;
    }
    return TR_OK;
}

static enum tr_status count_parquet(struct tr_table *t, uint64_t *out)
{
    struct tr_pq *q = t->state;
    uint64_t n;
    *out = 0;
    for (size_t i = 0; i < q->n_groups; i++) {
        TR_PASS(tr_pq_read_group(t, q, i, false, &n));
        *out += n;
    }
    return TR_OK;
}

static enum tr_status open_parquet(struct tr_table *t)
{
    struct tr_pq *q = t->state = calloc(1, sizeof *q);
    return q ? tr_pq_read_meta(t, q) : tr_fail(TR_NOMEM, "no memory for a reader of %s", t->path);
}

static void close_parquet(struct tr_table *t)
{
    struct tr_pq *q = t->state;
    for (size_t i = 0; q && i < q->n_leaves; i++) {
        struct tr_pq_leaf *f = &q->leaves[i];
        free(f->page);
        free(f->dict.p);
        free(f->dict.spans);
        tr_str_release(&f->values.before);
    }
    if (!q)
        return;
    free(q->meta);
    free(q->raw);
    free(q->nodes);
    free(q->leaves);
    free(q->groups);
    tr_names_release(&q->names);
    free(q);
}

const struct tr_table_hooks tr_parquet_hooks = {
    .name = "parquet",
    .open = open_parquet,
    .next = next_parquet,
    .skip = skip_parquet,
    .count = count_parquet,
    .close = close_parquet,
};
