/* tensor.c - pass: a segment for one rank of the tensor axis (Megatron's column and row parallel, sequence parallel).
 *
 * Every value has a layout. whole: every rank holds all of it. rows: rows are split between products (sequence
 * parallel). cols: columns are split (heads, ffn columns). shared: every rank computes the same value but uses only its
 * own heads, so gradients are parts of a sum. partial: every rank holds one term of a sum. The layouts of parameters
 * come from the model's split rules. A product with split outputs reads its input whole and makes cols. A product with
 * split inputs reads cols and makes partial sums; only rank 0 adds its bias. Products with a whole weight, scales and
 * sums of partial values stay partial, so that an adapter's part joins the sum of its linear; the first other reader
 * gets the reduced value. A parameter that stays whole but sees split data is marked: its gradients are summed over
 * this axis too.
 */
#include "parallel/parallel_impl.h"
#include "parallel/rules.h"
#include <stdlib.h>

enum layout { WHOLE, ROWS, COLS, SHARED, PARTIAL };
enum { KEPT_LOGITS = 32 << 20 }; /* elements of logits up to which the head keeps them for its gradient */

struct tensor {
    struct tr_program *p;
    const struct tr_program *from; /* the program before the pass */
    int size, rank;
    bool is_training;
    enum layout between; /* of values between products: whole, or rows with sequence parallel */
    int n_values;        /* values of the program before the pass */
    enum layout *layout; /* layout of each of those values */
    tr_val *now;         /* the value that replaces it */
    tr_val *all;         /* the value that products with split outputs read instead, or TR_NONE */
    tr_val *rows;        /* of a batch value: this rank's rows, or TR_NONE */
};

static struct tr_value *value(const struct tensor *t, tr_val v)
{
    return &t->p->value[v];
}

static struct tr_tp_shard shard_of(const struct tensor *t, tr_val param)
{
    const struct tr_local_param *l = &t->p->param[value(t, param)->slot];
    return tr_tp_shard_of(l->n_dims, l->rows, l->cols, l->split, t->size, t->rank);
}

static void add(struct tensor *t, const struct tr_node *n)
{
    *tr_node_add(t->p, n->op, n->phase) = *n;
}

static void add_collective(struct tensor *t, enum tr_opcode op, tr_val in, tr_val out)
{
    tr_node_put(t->p, op, TR_FORWARD, TR_VALS(in), TR_VALS(out), &(struct tr_attr){ .axis = TR_AXIS_TP });
}

/* A new value like v with another number of rows. */
static tr_val resized(struct tensor *t, tr_val v, int64_t rows, const char *what)
{
    char name[TR_NAME_MAX];
    (void)tr_format(name, sizeof name, "%.80s%s", value(t, v)->name, what);
    tr_val out = tr_value_like(t->p, v, name);
    value(t, out)->rows = rows;
    return out;
}

/* v whole on every rank. Each rank uses a part of it, so its gradient is a sum over ranks. */
static tr_val all_of(struct tensor *t, tr_val v)
{
    if (t->layout[v] == SHARED)
        return t->now[v];
    TR_BUG_ON(t->layout[v] != WHOLE && t->layout[v] != ROWS);
    if (t->all[v] == TR_NONE) {
        tr_val x = t->now[v];
        bool is_rows = t->layout[v] == ROWS;
        t->all[v] = is_rows ? resized(t, x, value(t, x)->rows * t->size, ".all") : tr_value_alias(t->p, x, "all");
        add_collective(t, is_rows ? TR_OP_ALL_GATHER : TR_OP_COPY, x, t->all[v]);
    }
    return t->all[v];
}

/* Reduces v, of which every rank holds a term. */
static void reduce(struct tensor *t, tr_val v)
{
    bool is_rows = t->between == ROWS;
    tr_val sum = resized(t, v, value(t, v)->rows / (is_rows ? t->size : 1), ".sum");
    add_collective(t, is_rows ? TR_OP_REDUCE_SCATTER : TR_OP_ALL_REDUCE, v, sum);
    t->now[v] = sum;
    t->layout[v] = t->between;
}

/* Gives v and its slices this rank's share of their columns: n_now of n_was. */
static void make_cols(struct tensor *t, tr_val v, int64_t n_was, int64_t n_now)
{
    value(t, v)->cols = value(t, v)->cols * n_now / n_was;
    t->layout[v] = COLS;
    for (tr_val w = 0; w < t->n_values; w++) {
        struct tr_value *s = value(t, w);
        if (s->base != v)
            continue;
        TR_BUG_ON(s->col * n_now % n_was || s->cols * n_now % n_was);
        s->col = s->col * n_now / n_was;
        s->cols = s->cols * n_now / n_was;
        t->layout[w] = COLS;
    }
}

/* Every rank has all of v, and uses a part of it. */
static void make_shared(struct tensor *t, tr_val v)
{
    t->layout[v] = SHARED;
    for (tr_val w = 0; w < t->n_values; w++)
        if (value(t, w)->base == v)
            t->layout[w] = SHARED;
}

static void mark_partial(struct tensor *t, tr_val param)
{
    if (param != TR_NONE)
        t->p->param[value(t, param)->slot].is_partial = true;
}

/* The value that an op on data of this layout reads in place of v. A parameter gets a gradient that is a part of a sum.
 * A batch value loses the rows of other ranks. */
static tr_val read(struct tensor *t, tr_val v, enum layout l)
{
    if (v == TR_NONE)
        return v;
    struct tr_value x = *value(t, v);
    if (x.kind == TR_V_PARAM && l != WHOLE)
        mark_partial(t, v);
    if (x.kind != TR_V_BATCH || l != ROWS)
        return t->now[v];
    if (t->rows[v] == TR_NONE) {
        int64_t rows = x.rows / t->size;
        tr_val part = tr_value_fixed(t->p, TR_V_BATCH, x.dtype, rows, x.cols, x.name);
        value(t, part)->slot = x.slot;
        value(t, part)->row = t->rank * rows;
        t->rows[v] = part;
    }
    return t->rows[v];
}

/* Ops that work row by row, column by column or head by head: their outputs have the layout of the first input. */
static void apply_same(struct tensor *t, struct tr_node n)
{
    enum layout l = t->layout[n.in[0]];
    int64_t cols_was = value(t, n.out[0])->cols, cols = value(t, t->now[n.in[0]])->cols;
    for (int k = 0; k < TR_MAX_OUT; k++) {
        if (n.out[k] == TR_NONE)
            continue;
        value(t, n.out[k])->rows /= l == ROWS ? t->size : 1;
        t->layout[n.out[k]] = l;
        if (l == COLS)
            make_cols(t, n.out[k], cols_was, cols);
        else if (l == SHARED)
            make_shared(t, n.out[k]);
    }
    for (int k = 0; k < TR_MAX_IN; k++)
        n.in[k] = read(t, n.in[k], l);
    add(t, &n);
}

/* Split columns allow only norms over whole heads. */
static void apply_norm(struct tensor *t, struct tr_node n)
{
    TR_BUG_ON(t->layout[n.in[0]] == COLS && (n.attr.group == 0 || value(t, n.in[0])->cols % n.attr.group != 0));
    apply_same(t, n);
}

/* Is v the input of products with split outputs? */
static bool feeds_split_products(const struct tensor *t, tr_val v)
{
    for (int i = 0; i < t->from->n_nodes; i++) {
        const struct tr_node *n = &t->from->node[i];
        if (n->op != TR_OP_LINEAR || n->in[0] != v)
            continue;
        const struct tr_local_param *w = &t->p->param[value(t, n->in[1])->slot];
        return w->split.dim == w->out_dim;
    }
    return false;
}

/* Dropout in front of products with split outputs (of an adapter) works on the value that they read, so that it needs
 * no collective of its own. */
static void apply_dropout(struct tensor *t, struct tr_node n)
{
    size_t first = 0, count = 0;
    if (feeds_split_products(t, n.out[0])) {
        n.in[0] = all_of(t, n.in[0]);
        t->layout[n.out[0]] = SHARED;
        add(t, &n);
        return;
    }
    if (t->layout[n.in[0]] == COLS) {
        tr_shard((size_t)value(t, n.out[0])->cols, t->size, t->rank, &first, &count);
        n.attr.first += (int64_t)first;
    }
    apply_same(t, n);
}

static void apply_add(struct tensor *t, struct tr_node n)
{
    TR_BUG_ON(t->layout[n.in[0]] != t->layout[n.in[1]]);
    apply_same(t, n);
}

/* Every rank gets the parts of all ranks, one below the other: (ranks x rows, columns of the widest part). */
static tr_val parts_of(struct tensor *t, tr_val v)
{
    size_t first, most;
    tr_val wide = tr_value_like(t->p, v, "part");
    tr_shard((size_t)t->from->value[v].cols, t->size, 0, &first, &most);
    value(t, wide)->cols = (int64_t)most;
    value(t, v)->base = wide;
    tr_val all = resized(t, wide, value(t, wide)->rows * t->size, "s");
    add_collective(t, TR_OP_ALL_GATHER, wide, all);
    return all;
}

/* A table that is split by rows gives zeros for the tokens of other ranks' rows: a term of a sum. A value is a table
 * too: the head picks the rows whose logits are wanted. */
static void apply_embed(struct tensor *t, struct tr_node n)
{
    if (value(t, n.in[1])->kind != TR_V_PARAM) {
        TR_BUG_ON(t->layout[n.in[1]] != WHOLE);
        n.in[1] = t->now[n.in[1]];
        add(t, &n);
        return;
    }
    struct tr_tp_shard c = shard_of(t, n.in[1]);
    if (c.is_split) {
        n.attr.index_offset -= (int32_t)(n.attr.weight_is_in_out ? c.col.first : c.row.first);
        t->layout[n.out[0]] = PARTIAL;
        add(t, &n);
        return;
    }
    n.in[0] = read(t, n.in[0], t->between);
    n.in[1] = read(t, n.in[1], t->between);
    value(t, n.out[0])->rows = value(t, n.in[0])->rows;
    t->layout[n.out[0]] = t->between;
    add(t, &n);
}

/* A product that makes one term of a sum on each rank. */
static void apply_term(struct tensor *t, struct tr_node n)
{
    n.in[0] = t->now[n.in[0]];
    if (t->rank > 0) { /* listed for its gradient, which every rank has whole; not added again */
        n.in[3] = n.in[2];
        n.in[2] = TR_NONE;
    }
    t->layout[n.out[0]] = PARTIAL;
    add(t, &n);
}

static void apply_linear(struct tensor *t, struct tr_node n)
{
    const struct tr_local_param *w = &t->p->param[value(t, n.in[1])->slot];
    struct tr_tp_shard c = shard_of(t, n.in[1]);
    if (t->layout[n.in[0]] == PARTIAL) {
        mark_partial(t, n.in[1]);
        apply_term(t, n);
    } else if (w->split.dim == TR_WHOLE) {
        apply_same(t, n);
    } else if (!c.is_split) { /* heads that the ranks do not divide */
        mark_partial(t, n.in[1]);
        mark_partial(t, n.in[2]);
        make_shared(t, n.out[0]);
        n.in[0] = all_of(t, n.in[0]);
        add(t, &n);
    } else if (w->split.dim == w->out_dim) {
        const struct tr_tp_dim *d = w->split.dim == 1 ? &c.col : &c.row;
        make_cols(t, n.out[0], d->part, d->n);
        n.in[0] = all_of(t, n.in[0]);
        add(t, &n);
    } else {
        TR_BUG_ON(t->layout[n.in[0]] != COLS);
        apply_term(t, n);
    }
}

/* The squares of a weight's rows are split, shared or whole like its outputs. Split inputs make terms of them. */
static void apply_squares(struct tensor *t, struct tr_node n)
{
    const struct tr_local_param *w = &t->p->param[value(t, n.in[0])->slot];
    struct tr_tp_shard c = shard_of(t, n.in[0]);
    int out_dim = n.attr.weight_is_in_out; /* a table of tokens is read by its columns here, and by rows as a head */
    if (!c.is_split) {
        t->layout[n.out[0]] = w->split.dim == TR_WHOLE ? WHOLE : SHARED;
    } else if (w->split.dim == out_dim) {
        const struct tr_tp_dim *d = w->split.dim == 1 ? &c.col : &c.row;
        make_cols(t, n.out[0], d->part, d->n);
    }
    add(t, &n);
    if (c.is_split && w->split.dim != out_dim) {
        t->now[n.out[0]] = tr_value_like(t->p, n.out[0], "squares.sum");
        add_collective(t, TR_OP_ALL_REDUCE, n.out[0], t->now[n.out[0]]);
    }
}

/* Its parameters are split as the columns of x are, so they are whole for partial and shared x. */
static void apply_col_scale(struct tensor *t, struct tr_node n)
{
    enum layout l = t->layout[n.in[0]];
    n.in[2] = t->now[n.in[2]];
    if (l == PARTIAL) {
        mark_partial(t, n.in[1]);
        if (t->rank > 0) { /* as in apply_term */
            n.in[4] = n.in[3];
            n.in[3] = TR_NONE;
        }
        t->layout[n.out[0]] = PARTIAL;
        add(t, &n);
    } else if (l == COLS) {
        make_cols(t, n.out[0], value(t, n.out[0])->cols, value(t, t->now[n.in[0]])->cols);
        add(t, &n);
    } else {
        apply_same(t, n);
    }
}

/* Columns of v, which may be a slice itself: a slice of a slice would have no gradient. */
static tr_val columns_of(struct tensor *t, tr_val v, int64_t col, int64_t cols)
{
    struct tr_value x = *value(t, v);
    bool is_slice = x.base != TR_NONE && !x.is_alias;
    return tr_value_view(t->p, is_slice ? x.base : v, col + (is_slice ? x.col : 0), cols, "heads");
}

static void apply_attention(struct tensor *t, struct tr_node n)
{
    struct tr_attr *a = &n.attr;
    int32_t group = a->n_heads_q / a->n_heads_kv, n_q = a->n_heads_q / t->size, first = t->rank * n_q;
    enum layout l = t->layout[n.in[0]];
    TR_BUG_ON(l != COLS && l != SHARED); /* shared: it was made with other heads, or has a norm over all */
    int32_t first_kv = first / group, n_kv = (first + n_q - 1) / group - first_kv + 1;
    for (int k = 0; k < 3; k++) {
        int64_t col = (k == 0 ? first : first_kv) * (int64_t)a->head_dim;
        bool is_shared = t->layout[n.in[k]] == SHARED;
        n.in[k] = t->now[n.in[k]];
        if (is_shared)
            n.in[k] = columns_of(t, n.in[k], col, (k == 0 ? n_q : n_kv) * (int64_t)a->head_dim);
    }
    a->n_heads_q = n_q;
    a->n_heads_kv = n_kv;
    a->first += first;
    value(t, n.out[0])->cols = (int64_t)n_q * a->head_dim;
    value(t, n.out[1])->cols = n_q;
    t->layout[n.out[0]] = t->layout[n.out[1]] = COLS;
    add(t, &n);
}

/* Each rank computes log-sum-exp and target logit of its part of the vocabulary; both are then combined over ranks. The
 * gradient follows from the combined values. */
static void apply_head(struct tensor *t, struct tr_node n)
{
    tr_val x = all_of(t, n.in[0]), parts[2];
    int64_t rows = value(t, x)->rows, n_stats = n.out[1] != TR_NONE ? 3 : 2;
    struct tr_tp_shard c = shard_of(t, n.in[1]);
    TR_BUG_ON(!c.is_split);
    for (int i = 0; i < 2; i++)
        parts[i] =
            tr_value_fixed(t->p, TR_V_TEMP, TR_F32, rows * (i ? t->size : 1), n_stats, i ? "stats.all" : "stats");
    tr_val logits = TR_NONE; /* kept from the forward to the gradient; recomputed where there are too many */
    if (t->is_training && rows * c.rows <= KEPT_LOGITS)
        logits = tr_value_fixed(t->p, TR_V_TEMP, TR_F32, rows, c.rows, "logits");
    /* every rank has computed u of an adapter, and has its own rows of B */
    TR_BUG_ON(n.in[5] != TR_NONE && t->layout[n.in[5]] != SHARED);
    tr_val u = n.in[5] == TR_NONE ? TR_NONE : t->now[n.in[5]], b = n.in[6];
    n.attr.first = c.row.first;
    tr_node_put(t->p, TR_OP_HEAD_STATS, TR_FORWARD, TR_VALS(x, n.in[1], n.in[2], n.in[3], u, b),
                TR_VALS(parts[0], logits), &n.attr);
    add_collective(t, TR_OP_ALL_GATHER, parts[0], parts[1]);
    tr_val lse = tr_value_like(t->p, n.out[0], "lse");
    /* inputs from x on are read by the gradient only */
    tr_node_put(t->p, TR_OP_HEAD_COMBINE, TR_FORWARD,
                TR_VALS(parts[1], x, n.in[1], n.in[2], n.in[3], n.in[4], logits, u, b),
                TR_VALS(n.out[0], lse, n.out[1]), &n.attr);
}

static void apply_sum(struct tensor *t, struct tr_node n)
{
    add(t, &n);
}

struct tensor_rule {
    void (*apply)(struct tensor *t, struct tr_node n);
    const char *reason; /* apply NULL: why there is none */
};
static const struct tensor_rule rule_squares = { apply_squares, NULL }, rule_col_scale = { apply_col_scale, NULL },
                                rule_same = { apply_same, NULL }, rule_norm = { apply_norm, NULL },
                                rule_add = { apply_add, NULL }, rule_dropout = { apply_dropout, NULL },
                                rule_embed = { apply_embed, NULL }, rule_linear = { apply_linear, NULL },
                                rule_attention = { apply_attention, NULL }, rule_head = { apply_head, NULL },
                                rule_sum = { apply_sum, NULL }, rule_later = { NULL, TR_WHY_LATER },
                                rule_update = { NULL, TR_WHY_UPDATE };

static const struct tensor_rule *const rules[TR_OP_COUNT] = {
#define X(id, tensor, context, grad, fp8) [TR_OP_##id] = &rule_##tensor,
    TR_RULE_LIST(X)
#undef X
};

/* Does the op make a term of a sum from terms of sums? */
static bool keeps_terms(const struct tensor *t, const struct tr_node *n)
{
    bool is_partial = t->layout[n->in[0]] == PARTIAL;
    if (n->op == TR_OP_ADD)
        return is_partial && t->layout[n->in[1]] == PARTIAL;
    if (n->op == TR_OP_LINEAR)
        return is_partial && t->p->param[value(t, n->in[1])->slot].split.dim == TR_WHOLE;
    return is_partial && (n->op == TR_OP_SCALE || n->op == TR_OP_COL_SCALE);
}

static void reduce_inputs(struct tensor *t, const struct tr_node *n)
{
    for (int k = 0; k < TR_MAX_IN && !keeps_terms(t, n); k++)
        if (n->in[k] != TR_NONE && t->layout[n->in[k]] == PARTIAL)
            reduce(t, n->in[k]);
}

static enum tr_status rewrite(struct tensor *t)
{
    const struct tr_program *from = t->from;
    for (int v = 0; v < t->n_values; v++) {
        t->now[v] = v;
        t->all[v] = t->rows[v] = TR_NONE;
        if (value(t, v)->kind == TR_V_PARAM) {
            struct tr_tp_shard c = shard_of(t, v);
            value(t, v)->rows = c.rows;
            value(t, v)->cols = c.cols;
        }
    }
    if (t->p->in != TR_NONE) {
        t->layout[t->p->in] = t->between;
        value(t, t->p->in)->rows /= t->between == ROWS ? t->size : 1;
    }
    t->p->n_nodes = 0;
    for (int i = 0; i < from->n_nodes; i++) {
        const struct tensor_rule *rule = rules[from->node[i].op];
        if (!rule->apply)
            tr_no_rule("tensor", from, from->node[i].op, rule->reason);
        reduce_inputs(t, &from->node[i]);
        rule->apply(t, from->node[i]);
    }
    if (t->p->out != TR_NONE && t->layout[t->p->out] == PARTIAL)
        reduce(t, t->p->out);
    if (t->p->out != TR_NONE)
        t->p->out = t->layout[t->p->out] == COLS ? parts_of(t, t->p->out) : t->now[t->p->out];
    return t->p->failed;
}

enum tr_status tr_pass_tensor(struct tr_program *p, const struct tr_pass_ctx *ctx)
{
    struct tensor t = { .p = p,
                        .size = ctx->layout.size[TR_AXIS_TP],
                        .rank = ctx->layout.coord[TR_AXIS_TP],
                        .is_training = ctx->is_training,
                        .between = ctx->layout.sp ? ROWS : WHOLE,
                        .n_values = p->n_values };
    if (t.size <= 1)
        return TR_OK;
    struct tr_program *from = NULL;
    enum tr_status st = tr_program_copy(p, &from);
    t.layout = calloc((size_t)p->n_values, sizeof *t.layout);
    t.now = malloc((size_t)p->n_values * sizeof *t.now);
    t.all = malloc((size_t)p->n_values * sizeof *t.all);
    t.rows = malloc((size_t)p->n_values * sizeof *t.rows);
    if (st == TR_OK && !(t.layout && t.now && t.all && t.rows))
        st = tr_fail(TR_NOMEM, "program %s: out of memory", p->name);
    t.from = from;
    if (st == TR_OK)
        st = rewrite(&t);
    tr_program_close(from);
    free(t.layout);
    free(t.now);
    free(t.all);
    free(t.rows);
    return st;
}
