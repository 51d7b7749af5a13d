/* row_elementwise.c - rows of ops that work element by element. */
#include "ops/ops.h"

/* attr: act */
const struct tr_op_row tr_row_act = {
    .name = "act",
    .in = { { "x", "(N, D)" } },
    .out = { { "y", "(N, D)" } },
    .price = TR_PRICE_ACT,
    .is_cheap = true,
};

const struct tr_op_row tr_row_act_bwd = {
    .name = "act_bwd",
    .in = { { "dy", "(N, D)" }, { "x", "(N, D)" } },
    .out = { { "dx", "(N, D)" } },
    .price = TR_PRICE_ACT_BWD,
};

/* y = act(g) * u. attr: act */
const struct tr_op_row tr_row_glu = {
    .name = "glu",
    .in = { { "g", "(N, D)" }, { "u", "(N, D)" } },
    .out = { { "y", "(N, D)" } },
    .price = TR_PRICE_GLU,
    .is_cheap = true,
};

const struct tr_op_row tr_row_glu_bwd = {
    .name = "glu_bwd",
    .in = { { "dy", "(N, D)" }, { "g", "(N, D)" }, { "u", "(N, D)" } },
    .out = { { "dg", "(N, D)" }, { "du", "(N, D)" } },
    .price = TR_PRICE_GLU_BWD,
};

const struct tr_op_row tr_row_add = {
    .name = "add",
    .in = { { "a", "(N, D)", .may_alias = true }, { "b", "(N, D)" } },
    .out = { { "y", "(N, D)" } },
};

/* y = scale * x. attr: scale */
const struct tr_op_row tr_row_scale = {
    .name = "scale",
    .in = { { "x", "(N, D)" } },
    .out = { { "y", "(N, D)" } },
    .is_cheap = true,
};

/* Its own backward. (sample, position) identifies a token of a step uniquely. ops/dropout.h defines the mask. attr:
 * dropout_p, key, first */
const struct tr_op_row tr_row_dropout = {
    .name = "dropout",
    .in = { { "x", "(N, D)" }, { "sample", "(N, 1) I64" }, { "position", "(N, 1) I32" }, { "step", "(1, S) F32" } },
    .out = { { "y", "(N, D)" } },
    .is_cheap = true,
};

/* y = x + scale * u, u uniform in [-1, 1): a function of the token, the column and the step, as the mask of dropout is.
 * Its gradient passes unchanged. attr: scale, key, first */
const struct tr_op_row tr_row_noise = {
    .name = "noise",
    .in = { { "x", "(N, D)" }, { "sample", "(N, 1) I64" }, { "position", "(N, 1) I32" }, { "step", "(1, S) F32" } },
    .out = { { "y", "(N, D)" } },
    .is_cheap = true,
};

/* y = x in y's dtype. */
const struct tr_op_row tr_row_cast = {
    .name = "cast",
    .in = { { "x", "(N, D)" } },
    .out = { { "y", "(N, D)" } },
};

/* y = 0 */
const struct tr_op_row tr_row_zero = {
    .name = "zero",
    .out = { { "y", "(N, D)" } },
};
