/* op_row.h - the row of an op: everything that is true of it on every device.
 *
 * A row names the op's inputs and outputs (slots), says how large each is and how it may be treated, what the op costs
 * in flops, how the planner prices it, and two facts for passes. Programs are checked against rows
 * (program/check.c), printed with the names of slots and laid out by their flags. Passes add rules of their own
 * (parallel/rules.h), devices their kernels.
 *
 * Shapes are text: "(N, D)", with a dtype behind it where only one is right: "(N, 1) I32". A size is a product of
 * letters and digits. A letter is one number throughout a call: the first slot that has it decides. Usual letters: N
 * tokens, D width, I and O columns in and out, V vocabulary, E elements of a tensor. Four are known from attr before
 * any slot is read: H query heads, K key heads, d head size, g columns of a norm's group (where attr has them), and S
 * is TR_STEP_COUNT. Shapes of calls that are not nodes of a program (blocks of ring attention) may differ; the row says
 * so.
 */
#ifndef TR_OPS_OP_ROW_H
#define TR_OPS_OP_ROW_H

#include "ops/ops.h"

struct tr_slot {
    const char *name;  /* NULL: the op has no such slot; "-": a hole that keeps the later slots in place */
    const char *shape; /* see above */
    bool is_optional;  /* may be absent */
    bool accumulates;  /* output: the kernel adds to what is there when call->accumulate is set, else it overwrites, so
                          that a first touch needs no memset: parameter gradients and running sums */
    bool may_alias;    /* input: out[0] may be written over it, when nothing reads it later */
    bool is_overwritten; /* input: the kernel leaves other numbers in it, so nothing may read it later */
    bool is_grad_only;   /* input: the kernel does not read it; `grad` passes it to the backward op */
    bool is_weight;      /* a weight matrix: stored transposed when attr.weight_is_in_out */
};

/* How the planner prices an op (plan/price.c has one line for each). */
enum tr_price_class {
    TR_PRICE_STREAM, /* by bytes on a GPU, by elements at the speed of an add on a CPU; the next ten at their own speed
                      */
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
    TR_PRICE_PRODUCT_DW, /* a sum over rows of in[0] and in[1], and a sum of columns */
    TR_PRICE_HEAD,       /* logits; */
    TR_PRICE_HEAD_GRAD,  /* and their gradient for x or W again; */
    TR_PRICE_HEAD_BOTH,  /* and for both */
    TR_PRICE_ATTENTION,
    TR_PRICE_ATTENTION_BWD,
    TR_PRICE_RING,
    TR_PRICE_RING_BWD,
    TR_PRICE_ALL_REDUCE,
    TR_PRICE_ALL_GATHER,
    TR_PRICE_REDUCE_SCATTER,
    TR_PRICE_ALL_TO_ALL,
    TR_PRICE_FREE, /* moves nothing */
    TR_PRICE_COUNT
};

struct tr_op_row {
    const char *name;
    struct tr_slot in[TR_MAX_IN], out[TR_MAX_OUT];
    double (*flops)(const struct tr_call *c); /* NULL: 0 */
    enum tr_price_class price;
    bool is_collective; /* the executor talks to the ranks of attr.axis; the kernel is what one rank alone does */
    bool is_cheap;      /* `recompute op` makes out[0] again in the backward rather than save it */
};

const struct tr_op_row *tr_op_row(enum tr_opcode op);

/* Slots up to the last one that the op has. */
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

/* Multiply-adds counted as 2; elementwise and recomputed work counts 0: what "model flops" means. Reads no data:
 * attention counts the pairs of full documents of seq_len rows. */
static inline double tr_op_flops(const struct tr_call *c)
{
    const struct tr_op_row *row = tr_op_row(c->op);
    return row->flops ? row->flops(c) : 0;
}

/* Of out[0] = in[0] times a matrix. */
static inline double tr_flops_product(const struct tr_call *c)
{
    return 2.0 * ((double)c->in[0].rows * (double)c->in[0].cols) * (double)c->out[0].cols;
}

#define X(id, name) extern const struct tr_op_row tr_row_##name;
TR_OP_LIST(X)
#undef X

#endif
