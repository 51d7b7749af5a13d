/* ops.c - the op table, the reference column, and what an op costs. */
#include "ops/cpu/ref.h"
#include <assert.h>

static const struct tr_op_row rows[] = {
#define X(id, op_name, ins, outs, acc) { .name = op_name, .n_in = ins, .n_out = outs, .acc_mask = acc },
    TR_OP_LIST(X)
#undef X
};
static_assert(TR_COUNT_OF(rows) == TR_OP_COUNT, "one row per op");

#define X(id, name, n_in, n_out, acc)                                                                                  \
    static_assert((n_in) <= TR_MAX_IN && (n_out) <= TR_MAX_OUT && (acc) >> (n_out) == 0, "op " name " fits a "         \
                                                                                         "tr_call");
TR_OP_LIST(X)
#undef X

const struct tr_op_row *tr_op_row(enum tr_opcode op)
{
    TR_BUG_ON((unsigned)op >= TR_OP_COUNT);
    return &rows[op];
}

tr_kernel tr_op_cpu_ref(enum tr_opcode op)
{
    static const tr_kernel kernels[] = {
#define X(id, name, n_in, n_out, acc) tr_ref_##id,
        TR_OP_LIST(X)
#undef X
    };
    static_assert(TR_COUNT_OF(kernels) == TR_OP_COUNT, "one reference per op");
    TR_BUG_ON((unsigned)op >= TR_OP_COUNT);
    return kernels[op];
}

/* Pairs (row, row it sees) of N rows in full documents of seq_len rows. */
static double visible_pairs(const struct tr_attr *a, int64_t n_rows)
{
    double len = (double)(a->seq_len > 0 ? a->seq_len : n_rows);
    double window = a->window > 0 && a->window < len ? a->window : len;
    double per_document = window * (window + 1) / 2 + (len - window) * window;
    return len > 0 ? per_document * (double)n_rows / len : 0;
}

double tr_op_flops(const struct tr_call *c)
{
    const struct tr_view *a = &c->in[0], *b = &c->in[1];
    double rows_cols = (double)a->rows * (double)a->cols;
    double heads = 2.0 * (double)c->attr.n_heads_q * (double)c->attr.head_dim;
    if (tr_op_is_product(c->op))
        return 2.0 * rows_cols * (double)c->out[0].cols;
    switch (c->op) {
    case TR_OP_LINEAR_DW:
        return 2.0 * rows_cols * (double)b->cols;
    case TR_OP_RING_ATTENTION:
    case TR_OP_ATTENTION: /* q.k and p.v */
        return 2.0 * heads * visible_pairs(&c->attr, a->rows);
    case TR_OP_RING_ATTENTION_BWD:
    case TR_OP_ATTENTION_BWD: /* dv, do.v, dq, dk */
        return 4.0 * heads * visible_pairs(&c->attr, a->rows);
    case TR_OP_HEAD_LOSS:
    case TR_OP_HEAD_STATS:
        return 2.0 * rows_cols * (double)b->rows;
    case TR_OP_HEAD_GRAD: /* logits are computed again */
        return 4.0 * rows_cols * (double)b->rows;
    case TR_OP_HEAD_LOSS_GRAD:
        return 6.0 * rows_cols * (double)b->rows;
    default:
        return 0;
    }
}
