/* op_row.h - the row of an op: everything that is true of it on every device.
 *
 * A row names the op's inputs and outputs (slots), says how large each is and how it may be treated, what the op costs
 * in flops, how the planner prices it, and two facts for passes. Programs are checked against rows
 * (program/check.c), printed with the names of slots and laid out by their flags. Passes add rules of their own
 * (parallel/rules.h), devices their kernels.
 *
 * Shapes are text: "(N, D)", with a dtype behind it where only one is right: "(N, 1) I32". A size is a product of
 * letters and digits. A letter stands for one number throughout a call; the first slot with that letter sets the
 * number. Usual letters: N tokens, D width, I and O columns in and out, V vocabulary, E elements of a tensor. Four
 * letters come from attr, where attr has them: H query heads, K key heads, d head size, g columns of a norm's group. S
 * is TR_STEP_COUNT. A call that is not a node of a program (a block of ring attention) may have other shapes; the
 * comment on the row says so.
 */
#ifndef TR_OPS_OP_ROW_H
#define TR_OPS_OP_ROW_H

#include "ops/ops.h"

struct tr_slot {
    const char *name;  /* NULL: the op has no such slot; "-": an unused slot that keeps the numbers of the later ones */
    const char *shape; /* see the top of this file */
    bool is_optional;  /* a node may leave it empty */
    bool accumulates;  /* output: the kernel adds to it when call->accumulate is set and overwrites it otherwise, so the
                          first use needs no memset. Parameter gradients and running sums */
    bool may_alias;    /* input: out[0] may share its memory when no later node reads it */
    bool is_overwritten; /* input: the kernel destroys its contents, so no later node may read it */
    bool is_grad_only;   /* input: the kernel does not read it; `grad` passes it to the backward op */
    bool is_weight;      /* a weight matrix: stored transposed when attr.weight_is_in_out */
};

/* How the planner prices an op (plan/price.c has one line for each). */
enum tr_price_class {
    TR_PRICE_STREAM, /* GPU: by bytes; CPU: by elements, at the speed of an add; the next ten at their own speed */
    TR_PRICE_NORM,
    TR_PRICE_NORM_BWD,
    TR_PRICE_RMSNORM,
    TR_PRICE_RMSNORM_BWD,
    TR_PRICE_ACT,
    TR_PRICE_ACT_BWD,
    TR_PRICE_GLU,
    TR_PRICE_GLU_BWD,
    TR_PRICE_ROPE,
    TR_PRICE_UPDATE,
    TR_PRICE_PRODUCT,    /* in[0] times a matrix */
    TR_PRICE_PRODUCT_DW, /* in[0]^T in[1], a product that sums over rows, and a sum of columns */
    TR_PRICE_HEAD,       /* one product: the logits */
    TR_PRICE_HEAD_GRAD,  /* two products: dx and dW */
    TR_PRICE_HEAD_BOTH,  /* three products: the logits, dx and dW */
    TR_PRICE_ATTENTION,
    TR_PRICE_ATTENTION_BWD,
    TR_PRICE_RING,
    TR_PRICE_RING_BWD,
    TR_PRICE_ALL_REDUCE,
    TR_PRICE_ALL_GATHER,
    TR_PRICE_REDUCE_SCATTER,
    TR_PRICE_ALL_TO_ALL,
    TR_PRICE_FLOPS, /* by its flops, at the speed of products */
    TR_PRICE_FREE,  /* takes no time */
    TR_PRICE_COUNT
};

struct tr_op_row {
    const char *name;
    struct tr_slot in[TR_MAX_IN], out[TR_MAX_OUT];
    double (*flops)(const struct tr_call *c); /* NULL: 0 */
    enum tr_price_class price;
    bool is_collective; /* the executor communicates with the ranks of attr.axis; the kernel serves one rank alone */
    bool is_cheap;      /* `recompute op` computes out[0] again in the backward instead of saving it */
};

const struct tr_op_row *tr_op_row(enum tr_opcode op);

/* How many slots the op has, unused ones included. */
static inline int tr_op_n_slots(const struct tr_slot *slot, int max)
{
    int n = 0;
    while (n < max && slot[n].name)
        n++;
    return n;
}
static inline int tr_op_n_in(enum tr_opcode op)
{
    return tr_op_n_slots(tr_op_row(op)->in, TR_MAX_IN);
}
static inline int tr_op_n_out(enum tr_opcode op)
{
    return tr_op_n_slots(tr_op_row(op)->out, TR_MAX_OUT);
}

static inline bool tr_op_is_collective(enum tr_opcode op)
{
    return tr_op_row(op)->is_collective;
}

/* Model flops of a call: a multiply-add counts 2, elementwise and recomputed work counts 0. Reads no data: attention
 * assumes full documents of seq_len rows. */
static inline double tr_op_flops(const struct tr_call *c)
{
    const struct tr_op_row *row = tr_op_row(c->op);
    return row->flops ? row->flops(c) : 0;
}

/* Flops of out[0] = in[0] times a matrix. */
static inline double tr_flops_product(const struct tr_call *c)
{
    return 2.0 * ((double)c->in[0].rows * (double)c->in[0].cols) * (double)c->out[0].cols;
}

#define X(id, name) extern const struct tr_op_row tr_row_##name;
TR_OP_LIST(X)
#undef X

#endif
