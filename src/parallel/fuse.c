/* fuse.c - two passes for a device whose kernels combine several ops (cuda). On other devices they only let a short
 * product (an adapter's) add to what the product in front of it wrote.
 *
 * side, before grad: linears that read the same value become one linear with their weights side by side (q/k/v,
 * gate/up). Their outputs become columns of its output, so their gradients are side by side too. Their parameters are
 * neighbours in the bucket, because tr_buckets_measure puts matrices in front of vectors. fuse, after grad and
 * recompute: a linear and the add or activation behind it become one op, and so do their backwards, where no other op
 * reads the value between them.
 */
#include "parallel/parallel_impl.h"

static int n_readers(const struct tr_program *p, tr_val v)
{
    int n = 0;
    for (int i = 0; i < p->n_nodes; i++)
        for (int k = 0; k < TR_MAX_IN; k++)
            n += p->node[i].in[k] != TR_NONE && tr_value_root(p, p->node[i].in[k]) == v;
    return n;
}

/* ---- side ---- */

/* Is parameter `b` right behind `a` in the bucket? Both must be matrices, or both vectors, of whole alignment units.
 * Parameters whose gradients are summed over the tensor axis (keys and values that ranks share) lie in front of the
 * rest and are not joined with it. */
static bool is_next(const struct tr_program *p, const struct tr_layout *l, tr_val a, tr_val b)
{
    int first = p->value[a].slot, second = p->value[b].slot;
    const struct tr_local_param *x = &p->param[first], *y = &p->param[second];
    int64_t n = p->value[a].rows * p->value[a].cols;
    if (x->n_dims != y->n_dims || x->is_global || y->is_global || x->is_partial || y->is_partial ||
        x->is_frozen != y->is_frozen || x->packed != y->packed || n % tr_bucket_align(l) != 0)
        return false;
    for (int i = first + 1; i < second; i++) /* other parameters between them in the same bucket */
        if ((p->param[i].n_dims == 2) == (x->n_dims == 2) && p->param[i].is_frozen == x->is_frozen &&
            p->param[i].packed == x->packed)
            return false;
    return first < second;
}

static bool is_side_by_side(const struct tr_program *p, const struct tr_layout *l, const struct tr_node *a,
                            const struct tr_node *last, const struct tr_node *b)
{
    bool has_bias = a->in[2] != TR_NONE;
    return b->op == TR_OP_LINEAR && b->in[0] == a->in[0] && b->phase == TR_FORWARD && !b->attr.weight_is_in_out &&
           has_bias == (b->in[2] != TR_NONE) && b->out[0] != p->out && n_readers(p, b->out[0]) == 1 &&
           is_next(p, l, last->in[1], b->in[1]) && (!has_bias || is_next(p, l, last->in[2], b->in[2]));
}

/* A parameter value that spans the parameters behind it as well. */
static tr_val wide_param(struct tr_program *p, tr_val first, int64_t rows, int64_t cols)
{
    struct tr_value x = p->value[first];
    tr_val v = tr_value_add(p, TR_V_PARAM, x.dtype, rows, cols, x.name);
    p->value[v].slot = x.slot;
    p->value[v].dtype_is_fixed = x.dtype_is_fixed;
    return v;
}

static void become_columns(struct tr_program *p, tr_val v, tr_val base, int64_t col)
{
    p->value[v].base = base;
    p->value[v].col = col;
}

static int side_from(struct tr_program *p, const struct tr_layout *l, int i)
{
    struct tr_node a = p->node[i];
    int group[4] = { i }, n = 1;
    if (a.op != TR_OP_LINEAR || a.phase != TR_FORWARD || a.attr.weight_is_in_out || a.out[0] == p->out ||
        n_readers(p, a.out[0]) != 1)
        return 0;
    for (int j = i + 1; j < p->n_nodes && n < (int)TR_COUNT_OF(group); j++)
        if (is_side_by_side(p, l, &a, &p->node[group[n - 1]], &p->node[j]))
            group[n++] = j;
    if (n == 1)
        return 0;
    int64_t total = 0, n_in = p->value[a.in[1]].cols;
    for (int k = 0; k < n; k++)
        total += p->value[p->node[group[k]].out[0]].cols;
    struct tr_value like = p->value[a.out[0]];
    tr_val y = tr_value_add(p, TR_V_TEMP, like.dtype, like.rows, total, like.name);
    p->value[y].dtype_is_fixed = like.dtype_is_fixed;
    int64_t col = 0;
    for (int k = 0; k < n; k++) {
        tr_val v = p->node[group[k]].out[0];
        become_columns(p, v, y, col);
        col += p->value[v].cols;
    }
    tr_val w = wide_param(p, a.in[1], total, n_in), b = a.in[2] == TR_NONE ? TR_NONE : wide_param(p, a.in[2], 1, total);
    p->node[i].in[1] = w;
    p->node[i].in[2] = b;
    p->node[i].out[0] = y;
    for (int k = n - 1; k > 0; k--) {
        memmove(&p->node[group[k]], &p->node[group[k] + 1], (size_t)(p->n_nodes - group[k] - 1) * sizeof *p->node);
        p->n_nodes--;
    }
    return n - 1;
}

enum tr_status tr_pass_side(struct tr_program *p, const struct tr_pass_ctx *ctx)
{
    for (int i = 0; ctx->fuses && i < p->n_nodes; i++)
        (void)side_from(p, &ctx->layout, i);
    return p->failed;
}

/* ---- fuse ---- */

/* Is v available at node i: made by an earlier node, or an input of the program? */
static bool is_ready(const struct tr_program *p, tr_val v, int i)
{
    for (int j = i; j < p->n_nodes; j++)
        for (int k = 0; k < TR_MAX_OUT; k++)
            if (p->node[j].out[k] != TR_NONE && tr_value_root(p, p->node[j].out[k]) == tr_value_root(p, v))
                return false;
    return true;
}

static bool is_whole(const struct tr_program *p, tr_val v)
{
    return p->value[v].base == TR_NONE && p->value[v].kind == TR_V_TEMP;
}

/* Can a node that reads `in` and writes `out` find it in the place of its output? Nothing else may read it. */
static bool may_share(const struct tr_program *p, tr_val in, tr_val out)
{
    const struct tr_value *a = &p->value[in], *b = &p->value[out];
    return is_whole(p, in) && is_whole(p, out) && in != p->out && in != p->din && out != p->out && out != p->din &&
           n_readers(p, in) == 1 && a->rows == b->rows && a->cols == b->cols && a->dtype == b->dtype;
}

/* Are linear and add one op with the same bits on this device? */
static bool adds_alike(const struct tr_program *p, const struct tr_pass_ctx *ctx, const struct tr_node *linear,
                       tr_val other, tr_val out)
{
    const struct tr_value *x = &p->value[linear->in[0]];
    return x->cols <= ctx->column->add_terms && linear->in[2] == TR_NONE && p->value[out].dtype == TR_F32 &&
           may_share(p, other, out);
}

/* linear, add -> linear_add; linear, act -> linear_act (which still writes the input of the activation, for the
 * backward); linear_dx, act_bwd -> linear_dx_act. `first` is the linear, `second` the only reader of its output in this
 * phase. */
static bool join(struct tr_program *p, const struct tr_pass_ctx *ctx, int first, int second)
{
    struct tr_node *a = &p->node[first], *b = &p->node[second];
    tr_val between = a->out[0];
    if (a->phase != b->phase || !is_whole(p, between) || between == p->out || between == p->din)
        return false;
    if (a->op == TR_OP_LINEAR && b->op == TR_OP_ADD && n_readers(p, between) == 1) {
        tr_val other = b->in[0] == between ? b->in[1] : b->in[0];
        if (other == between || !is_ready(p, other, first) || !(ctx->fuses || adds_alike(p, ctx, a, other, b->out[0])))
            return false;
        if (may_share(p, other, b->out[0])) /* asked while the add is its only reader */
            become_columns(p, other, b->out[0], 0);
        a->op = TR_OP_LINEAR_ADD;
        a->in[3] = other;
        a->out[0] = b->out[0];
        return true;
    }
    if (!ctx->fuses)
        return false;
    if (a->op == TR_OP_MATMUL8 && a->in[5] == TR_NONE && b->op == TR_OP_ADD && n_readers(p, between) == 1) {
        tr_val other = b->in[0] == between ? b->in[1] : b->in[0];
        if (other == between || !is_ready(p, other, first))
            return false;
        a->in[5] = other;
        a->out[0] = b->out[0];
        return true;
    }
    if (a->op == TR_OP_LINEAR && b->op == TR_OP_ACT && b->attr.act == TR_ACT_GELU_TANH) {
        a->op = TR_OP_LINEAR_ACT;
        a->attr.act = b->attr.act;
        a->out[1] = between;
        a->out[0] = b->out[0];
        return true;
    }
    if (a->op == TR_OP_LINEAR_DX && a->in[2] == TR_NONE && b->op == TR_OP_ACT_BWD && b->in[0] == between &&
        b->attr.act == TR_ACT_GELU_TANH && n_readers(p, between) == 1 && is_ready(p, b->in[1], first)) {
        a->op = TR_OP_LINEAR_DX_ACT;
        a->attr.act = b->attr.act;
        a->in[2] = b->in[1];
        a->out[0] = b->out[0];
        return true;
    }
    return false;
}

static bool reads(const struct tr_node *n, tr_val v)
{
    for (int k = 0; k < TR_MAX_IN; k++)
        if (n->in[k] == v)
            return true;
    return false;
}

enum tr_status tr_pass_fuse(struct tr_program *p, const struct tr_pass_ctx *ctx)
{
    for (int i = 0; i < p->n_nodes; i++) {
        int j = i + 1;
        if (p->node[i].op == TR_OP_ATTENTION_BWD && ctx->fuses)
            p->node[i].attr.any_order = ctx->any_order;
        if (p->node[i].out[0] == TR_NONE)
            continue;
        while (j < p->n_nodes && !reads(&p->node[j], p->node[i].out[0]))
            j++;
        if (j < p->n_nodes && join(p, ctx, i, j)) {
            memmove(&p->node[j], &p->node[j + 1], (size_t)(p->n_nodes - j - 1) * sizeof *p->node);
            p->n_nodes--;
        }
    }
    return p->failed;
}
