/* row_head.c - rows of the head: logits, loss and their gradients. logit = softcap(scale * x.w + bias); a target below
 * 0 has no loss. attr of all: softcap, scale, first (the rank's first row of the vocabulary) */
#include "ops/ops.h"

static double logit_flops(const struct tr_call *c, double factor)
{
    return factor * ((double)c->in[0].rows * (double)c->in[0].cols) * (double)c->in[1].rows;
}

static double loss_flops(const struct tr_call *c)
{
    return logit_flops(c, 2.0);
}

static double grad_flops(const struct tr_call *c) /* dx and dW: the logits, computed again or kept, do not count */
{
    return logit_flops(c, c->out[1].cols ? 4.0 : 2.0); /* no dW of what is frozen */
}

static double loss_grad_flops(const struct tr_call *c)
{
    return logit_flops(c, c->out[2].cols ? 6.0 : 4.0);
}

/* loss of each token, 0 where it has no target. Never holds (N, V). */
const struct tr_op_row tr_row_head_loss = {
    .name = "head_loss",
    .in = { { "x", "(N, D)" },
            { "W", "(V, D)" },
            { "bias", "(1, V)", .is_optional = true },
            { "target", "(N, 1) I32" },
            { "step", "(1, S) F32", .is_optional = true, .is_grad_only = true } },
    .out = { { "loss", "(N, 1) F32" } },
    .flops = loss_flops,
    .price = TR_PRICE_HEAD,
};

/* Gradients of sum(loss) * INV_TOKENS. One pass: logits of a block of rows, loss, their gradient, dx, dW; nothing is
 * computed twice. */
const struct tr_op_row tr_row_head_loss_grad = {
    .name = "head_loss_grad",
    .in = { { "x", "(N, D)" },
            { "W", "(V, D)" },
            { "bias", "(1, V)", .is_optional = true },
            { "target", "(N, 1) I32" },
            { "step", "(1, S) F32" } },
    .out = { { "loss", "(N, 1) F32" },
             { "dx", "(N, D)" },
             { "dW", "(V, D)", .is_optional = true, .accumulates = true },
             { "db", "(1, V)", .is_optional = true, .accumulates = true } },
    .flops = loss_grad_flops,
    .price = TR_PRICE_HEAD_BOTH,
};

/* The next three are the head of ranks that hold rows [first, first + V) of W each; targets are of the whole
 * vocabulary. stats = log-sum-exp of these rows' logits, and the logit of the target where it is one of them, else 0;
 * (-FLT_MAX, 0) where there is no target. logits are kept for head_grad. */
const struct tr_op_row tr_row_head_stats = {
    .name = "head_stats",
    .in = { { "x", "(N, D)" },
            { "W", "(V, D)" },
            { "bias", "(1, V)", .is_optional = true },
            { "target", "(N, 1) I32" } },
    .out = { { "stats", "(N, 2) F32" }, { "logits", "(N, V) F32", .is_optional = true } },
    .flops = loss_flops,
    .price = TR_PRICE_HEAD,
};

/* stats of all ranks, one rank below the other; loss and lse are 0 where there is no target. What head_grad will read
 * is listed here, because `grad` makes it from this node. */
const struct tr_op_row tr_row_head_combine = {
    .name = "head_combine",
    .in = { { "stats", "(R, 2) F32" },
            { "x", "(N, D)", .is_optional = true, .is_grad_only = true },
            { "W", "(V, D)", .is_optional = true, .is_grad_only = true },
            { "bias", "(1, V)", .is_optional = true, .is_grad_only = true },
            { "target", "(N, 1) I32", .is_optional = true, .is_grad_only = true },
            { "step", "(1, S) F32", .is_optional = true, .is_grad_only = true },
            { "logits", "(N, V) F32", .is_optional = true, .is_grad_only = true } },
    .out = { { "loss", "(N, 1) F32" }, { "lse", "(N, 1) F32" } },
};

/* dx is these rows' part of it. */
const struct tr_op_row tr_row_head_grad = {
    .name = "head_grad",
    .in = { { "x", "(N, D)" },
            { "W", "(V, D)" },
            { "bias", "(1, V)", .is_optional = true },
            { "target", "(N, 1) I32" },
            { "step", "(1, S) F32" },
            { "lse", "(N, 1) F32" },
            { "logits", "(N, V) F32", .is_optional = true, .is_overwritten = true } },
    .out = { { "dx", "(N, D)" },
             { "dW", "(V, D)", .is_optional = true, .accumulates = true },
             { "db", "(1, V)", .is_optional = true, .accumulates = true } },
    .flops = grad_flops,
    .price = TR_PRICE_HEAD_GRAD,
};

/* The sum of x, in row order. */
const struct tr_op_row tr_row_sum = {
    .name = "sum",
    .in = { { "x", "(N, 1) F32" } },
    .out = { { "sum", "(1, 1) F64", .accumulates = true } },
};
