/* dequant.c - pass, after fuse: a packed weight is decoded in front of every op that reads it.
 *
 * The decoded matrix is a value of the compute dtype in the work arena. It lives for that one op, so a program holds
 * one decoded weight at a time, and forward, backward and recompute each decode it anew. No other pass knows that a
 * weight is packed, and every kernel of every device takes it as it takes any weight. Rejected: products that decode
 * while they read (a second set of products on each device; a decoded matrix is read many times by a product, and
 * decoding costs a few per cent of it), and one decoded copy for forward and backward (it would be saved like an
 * activation).
 */
#include "parallel/parallel_impl.h"

static tr_val add_value(struct tr_program *p, enum tr_value_kind kind, enum tr_dtype dtype, int64_t rows, int64_t cols,
                        const char *what, const char *of)
{
    char name[TR_NAME_MAX];
    (void)tr_format(name, sizeof name, "%s%.80s", what, of);
    return tr_value_fixed(p, kind, dtype, rows, cols, name);
}

/* Emits the op that decodes a weight for a reader in this phase. is_turned: the weight is (in, out), and its grains are
 * those of the transpose, (out, in), which is what the reader gets. */
static tr_val decode(struct tr_program *p, tr_val weight, enum tr_phase phase, bool is_turned)
{
    struct tr_value w = p->value[weight];
    enum tr_packed packed = p->param[w.slot].packed;
    size_t grain_bytes = tr_packed_grain_bytes(packed);
    int64_t n_grains = (int64_t)(tr_packed_bytes(packed, w.rows * w.cols) / grain_bytes);
    tr_val grains = add_value(p, TR_V_PARAM, TR_U8, n_grains, (int64_t)grain_bytes, "packed_", w.name);
    p->value[grains].slot = w.slot;
    tr_val out =
        add_value(p, TR_V_TEMP, w.dtype, is_turned ? w.cols : w.rows, is_turned ? w.rows : w.cols, "w_", w.name);
    p->value[out].is_of_weights = true;
    tr_node_put(p, TR_OP_DEQUANT, phase, TR_VALS(grains), TR_VALS(out), &(struct tr_attr){ .packed = (int32_t)packed });
    return out;
}

/* Gives input k of a node the decoded weight. Readers of a weight take it in either order. */
static enum tr_status replace(struct tr_program *p, struct tr_node *n, int k)
{
    tr_val v = n->in[k], root = tr_value_root(p, v);
    if (v == TR_NONE || p->value[root].kind != TR_V_PARAM || !p->param[p->value[root].slot].packed)
        return TR_OK;
    struct tr_value x = p->value[v];
    bool is_turned = p->param[p->value[root].slot].out_dim == 1;
    if (is_turned && (v != root || !tr_op_row(n->op)->in[k].is_weight))
        return tr_fail(TR_USAGE,
                       "op %s reads part of %s, a packed matrix (in, out); drop --fp8, or hold the base in 16 bits",
                       tr_op_row(n->op)->name, x.name);
    tr_val out = decode(p, root, n->phase, is_turned);
    n->in[k] = v == root ? out : tr_value_view(p, out, x.col, x.cols, x.name);
    if (is_turned)
        n->attr.weight_is_in_out = false;
    return TR_OK;
}

enum tr_status tr_pass_dequant(struct tr_program *p, const struct tr_pass_ctx *ctx)
{
    enum tr_status st = TR_OK;
    struct tr_program *from = NULL;
    bool has_packed = false;
    (void)ctx;
    for (int i = 0; i < p->n_params; i++)
        has_packed |= p->param[i].packed != TR_NOT_PACKED;
    if (!has_packed)
        return TR_OK;
    TR_TRY(tr_program_copy(p, &from));
    p->n_nodes = 0;
    for (int i = 0; i < from->n_nodes; i++) {
        struct tr_node n = from->node[i];
        for (int k = 0; k < TR_MAX_IN; k++)
            TR_TRY(replace(p, &n, k));
        *tr_node_add(p, n.op, n.phase) = n;
    }
    st = p->failed;
out:
    tr_program_close(from);
    return st;
}
