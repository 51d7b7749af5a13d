/* fused.c - the fused ops on the CPU: each runs its two kernels one after the other. Pass `fuse` makes these ops only
 * for devices where one kernel does both (cuda); the CPU has them so that tests can compare the devices. */
#include "ops/cpu/fast.h"

static void run(const struct tr_call *c, enum tr_opcode op)
{
    tr_op_cpu_fast(op)(c);
}

void tr_fast_linear_add(const struct tr_call *c)
{
    struct tr_call product = *c, bias = *c;
    product.op = TR_OP_LINEAR_DX; /* this op is a product with an addend; it reads the weight transposed */
    product.attr.weight_is_in_out = !c->attr.weight_is_in_out;
    product.in[2] = c->in[3];
    run(&product, TR_OP_LINEAR_DX);
    bias.op = TR_OP_ADD;
    bias.in[0] = c->out[0];
    bias.in[1] = c->in[2];
    bias.in[1].rows = c->out[0].rows;
    bias.in[1].ld = 0; /* every row is the same row */
    if (c->in[2].data)
        run(&bias, TR_OP_ADD);
}

void tr_fast_linear_act(const struct tr_call *c)
{
    struct tr_call linear = *c, act = *c;
    linear.op = TR_OP_LINEAR;
    linear.out[0] = c->out[1];
    run(&linear, TR_OP_LINEAR);
    act.op = TR_OP_ACT;
    act.in[0] = c->out[1];
    run(&act, TR_OP_ACT);
}

void tr_fast_linear_dx_act(const struct tr_call *c)
{
    struct tr_call dx = *c, act = *c;
    dx.op = TR_OP_LINEAR_DX;
    dx.in[2] = (struct tr_view){ 0 };
    run(&dx, TR_OP_LINEAR_DX);
    act.op = TR_OP_ACT_BWD;
    act.in[0] = c->out[0];
    act.in[1] = c->in[2];
    run(&act, TR_OP_ACT_BWD);
}
