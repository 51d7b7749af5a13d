/* row_head.c - rows of the head: logits, loss and their gradients. logit = softcap(scale * (x.w + u.b) + bias), where
 * an adapter of the head has u and b; a token with a target below 0 has no loss. attr of all: softcap, scale, first
 * (the rank's first row of the vocabulary) */
#include "ops/ops.h"

/* factor: of W; more: of what an adapter has. */
static double logit_flops(const struct tr_call *c, double factor, double more)
{
    double cols = factor * (double)c->in[0].cols + more * (double)c->in[tr_head_u(c->op)].cols;
    return (double)c->in[0].rows * cols * (double)c->in[1].rows;
}

static double loss_flops(const struct tr_call *c)
{
    return logit_flops(c, 2.0, 2.0);
}

static double grad_flops(const struct tr_call *c) /* dx and dW; logits that are recomputed or saved do not count */
{
    return logit_flops(c, c->out[1].cols ? 4.0 : 2.0, 4.0); /* a frozen W has no dW */
}

static double loss_grad_flops(const struct tr_call *c)
{
    return logit_flops(c, c->out[2].cols ? 6.0 : 4.0, 6.0);
}

/* The loss of each token, 0 where it has no target. No kernel holds the whole (N, V) matrix. squares: the passes make
 * head_stats and head_combine of a node that has it, because only losses of pairs ask for it; no kernel of head_loss
 * writes it. */
const struct tr_op_row tr_row_head_loss = {
    .name = "head_loss",
    .in = { { "x", "(N, D)" },
            { "W", "(V, D)" },
            { "bias", "(1, V)", .is_optional = true },
            { "target", "(N, 1) I32" },
            { "step", "(1, S) F32", .is_optional = true, .is_grad_only = true },
            { "u", "(N, O)", .is_optional = true },
            { "B", "(V, O)", .is_optional = true } },
    .out = { { "loss", "(N, 1) F32" }, { "squares", "(N, 1) F32", .is_optional = true } },
    .flops = loss_flops,
    .price = TR_PRICE_HEAD,
};

/* Gradients of sum(loss) * INV_TOKENS. One pass over blocks of rows: logits, loss, their gradient, dx, dW. Nothing is
 * computed twice. */
const struct tr_op_row tr_row_head_loss_grad = {
    .name = "head_loss_grad",
    .in = { { "x", "(N, D)" },
            { "W", "(V, D)" },
            { "bias", "(1, V)", .is_optional = true },
            { "target", "(N, 1) I32" },
            { "step", "(1, S) F32" },
            { "u", "(N, O)", .is_optional = true },
            { "B", "(V, O)", .is_optional = true } },
    .out = { { "loss", "(N, 1) F32" },
             { "dx", "(N, D)" },
             { "dW", "(V, D)", .is_optional = true, .accumulates = true },
             { "db", "(1, V)", .is_optional = true, .accumulates = true },
             { "du", "(N, O)", .is_optional = true },
             { "dB", "(V, O)", .is_optional = true, .accumulates = true } },
    .flops = loss_grad_flops,
    .price = TR_PRICE_HEAD_BOTH,
};

/* The next three ops are the head when each rank holds rows [first, first + V) of W, and the head of losses that weigh
 * or regularise tokens. Targets index the whole vocabulary. stats = the log-sum-exp of this rank's logits, and the
 * logit of the target, or 0 where another rank holds it; (-FLT_MAX, 0) where the token has no target. With smoothing
 * the logit of the target counts 1 - smoothing, and all logits count smoothing_each. A third column, where there is
 * one, is the log-sum-exp of twice the logits. logits are saved for head_grad.
 * attr of all: smoothing, smoothing_each, z_loss */
const struct tr_op_row tr_row_head_stats = {
    .name = "head_stats",
    .in = { { "x", "(N, D)" },
            { "W", "(V, D)" },
            { "bias", "(1, V)", .is_optional = true },
            { "target", "(N, 1) I32" },
            { "u", "(N, O)", .is_optional = true },
            { "B", "(V, O)", .is_optional = true } },
    .out = { { "stats", "(N, C) F32" }, { "logits", "(N, V) F32", .is_optional = true } },
    .flops = loss_flops,
    .price = TR_PRICE_HEAD,
};

/* stats has the rows of all ranks, rank after rank. loss and lse are 0 where the token has no target, and so is
 * squares: the logarithm of the sum of the squared probabilities of all tokens, of the third column of stats. The
 * inputs of head_grad are listed here too, because `grad` makes that node from this one. */
const struct tr_op_row tr_row_head_combine = {
    .name = "head_combine",
    .in = { { "stats", "(R, C) F32" },
            { "x", "(N, D)", .is_optional = true, .is_grad_only = true },
            { "W", "(V, D)", .is_optional = true, .is_grad_only = true },
            { "bias", "(1, V)", .is_optional = true, .is_grad_only = true },
            { "target", "(N, 1) I32", .is_optional = true, .is_grad_only = true },
            { "step", "(1, S) F32", .is_optional = true, .is_grad_only = true },
            { "logits", "(N, V) F32", .is_optional = true, .is_grad_only = true },
            { "u", "(N, O)", .is_optional = true, .is_grad_only = true },
            { "B", "(V, O)", .is_optional = true, .is_grad_only = true } },
    .out = { { "loss", "(N, 1) F32" }, { "lse", "(N, 1) F32" }, { "squares", "(N, 1) F32", .is_optional = true } },
};

/* dx is this rank's part of the sum over the vocabulary. weight: a factor for the gradient of each token. */
const struct tr_op_row tr_row_head_grad = {
    .name = "head_grad",
    .in = { { "x", "(N, D)" },
            { "W", "(V, D)" },
            { "bias", "(1, V)", .is_optional = true },
            { "target", "(N, 1) I32" },
            { "step", "(1, S) F32" },
            { "lse", "(N, 1) F32" },
            { "logits", "(N, V) F32", .is_optional = true, .is_overwritten = true },
            { "u", "(N, O)", .is_optional = true },
            { "B", "(V, O)", .is_optional = true },
            { "weight", "(N, 1) F32", .is_optional = true } },
    .out = { { "dx", "(N, D)" },
             { "dW", "(V, D)", .is_optional = true, .accumulates = true },
             { "db", "(1, V)", .is_optional = true, .accumulates = true },
             { "du", "(N, O)", .is_optional = true },
             { "dB", "(V, O)", .is_optional = true, .accumulates = true } },
    .flops = grad_flops,
    .price = TR_PRICE_HEAD_GRAD,
};

/* The sums of the columns of x, in row order. */
const struct tr_op_row tr_row_sum = {
    .name = "sum",
    .in = { { "x", "(N, D) F32" } },
    .out = { { "sum", "(1, D) F64", .accumulates = true } },
};
