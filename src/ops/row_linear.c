/* row_linear.c - rows of products with a weight, and of the embedding. */
#include "ops/ops.h"

static double weight_flops(const struct tr_call *c)
{
    bool has_weight = c->out[0].cols > 0; /* else the weight is frozen and only the bias learns */
    return has_weight ? 2.0 * ((double)c->in[0].rows * (double)c->in[0].cols) * (double)c->in[1].cols : 0;
}

/* y = scale * W[index + index_offset]. An index outside 0..V-1 gives a row of zeros and no gradient, so a shard of W
 * needs only another index_offset. attr: scale, index_offset, weight_is_in_out */
const struct tr_op_row tr_row_embed = {
    .name = "embed",
    .in = { { "index", "(N, 1) I32" }, { "W", "(V, D)", .is_weight = true } },
    .out = { { "y", "(N, D)" } },
};

/* dW += scale * dy, in row order. */
const struct tr_op_row tr_row_embed_dw = {
    .name = "embed_dw",
    .in = { { "index", "(N, 1) I32" }, { "dy", "(N, D)" } },
    .out = { { "dW", "(V, D)", .accumulates = true, .is_weight = true } },
};

/* y = x W^T + bias. bias_grad is a bias that another rank adds; this rank only computes its gradient.
 * attr: weight_is_in_out, is_decoded */
const struct tr_op_row tr_row_linear = {
    .name = "linear",
    .in = { { "x", "(N, I)" },
            { "W", "(O, I)", .is_weight = true },
            { "bias", "(1, O)", .is_optional = true },
            { "bias_grad", "(1, O)", .is_optional = true, .is_grad_only = true } },
    .out = { { "y", "(N, O)" } },
    .flops = tr_flops_product,
    .price = TR_PRICE_PRODUCT,
};

/* dx = dy W + addend */
const struct tr_op_row tr_row_linear_dx = {
    .name = "linear_dx",
    .in = { { "dy", "(N, O)" },
            { "W", "(O, I)", .is_weight = true },
            { "addend", "(N, I)", .is_optional = true, .may_alias = true } },
    .out = { { "dx", "(N, I)" } },
    .flops = tr_flops_product,
    .price = TR_PRICE_PRODUCT,
};

/* dW += dy^T x, db += the sum of the rows of dy. dW is absent where pass `fp8` computes it in 8 bits. */
const struct tr_op_row tr_row_linear_dw = {
    .name = "linear_dw",
    .in = { { "dy", "(N, O)" }, { "x", "(N, I)" } },
    .out = { { "dW", "(O, I)", .is_optional = true, .accumulates = true, .is_weight = true },
             { "db", "(1, O)", .is_optional = true, .accumulates = true } },
    .flops = weight_flops,
    .price = TR_PRICE_PRODUCT_DW,
};

/* W = the weight whose grains these are (base/packed.h), rounded to the dtype of W. W is one run of elements: the
 * grains go on over the ends of rows. attr: packed */
const struct tr_op_row tr_row_dequant = {
    .name = "dequant",
    .in = { { "grains", "(G, B) U8" } },
    .out = { { "W", "(O, I)" } },
};

/* Pass `fuse` makes the next three ops from two ops each, on devices where one kernel does both.
 * y = addend + x W^T + bias. attr: weight_is_in_out */
const struct tr_op_row tr_row_linear_add = {
    .name = "linear_add",
    .in = { { "x", "(N, I)" },
            { "W", "(O, I)", .is_weight = true },
            { "bias", "(1, O)", .is_optional = true },
            { "addend", "(N, O)", .may_alias = true } },
    .out = { { "y", "(N, O)" } },
    .flops = tr_flops_product,
    .price = TR_PRICE_PRODUCT,
};

/* pre = x W^T + bias, y = act(pre). attr: weight_is_in_out, act */
const struct tr_op_row tr_row_linear_act = {
    .name = "linear_act",
    .in = { { "x", "(N, I)" }, { "W", "(O, I)", .is_weight = true }, { "bias", "(1, O)", .is_optional = true } },
    .out = { { "y", "(N, O)" }, { "pre", "(N, O)" } },
    .flops = tr_flops_product,
    .price = TR_PRICE_PRODUCT,
};

/* dx = (dy W) * act'(pre). attr: weight_is_in_out, act */
const struct tr_op_row tr_row_linear_dx_act = {
    .name = "linear_dx_act",
    .in = { { "dy", "(N, O)" }, { "W", "(O, I)", .is_weight = true }, { "pre", "(N, I)" } },
    .out = { { "dx", "(N, I)" } },
    .flops = tr_flops_product,
    .price = TR_PRICE_PRODUCT,
};
