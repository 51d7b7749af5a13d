/* row_norm.c - rows of norms. A backward adds the gradient that x already has (addend), so a residual connection costs
 * no pass of its own. */
#include "ops/ops.h"

/* stats = the mean and 1 / standard deviation of each row. attr: eps */
const struct tr_op_row tr_row_layernorm = {
    .name = "layernorm",
    .in = { { "x", "(N, D)" }, { "w", "(1, D)" }, { "b", "(1, D)", .is_optional = true } },
    .out = { { "y", "(N, D)" }, { "stats", "(N, 2) F32" } },
    .price = TR_PRICE_NORM,
    .is_cheap = true,
};

const struct tr_op_row tr_row_layernorm_bwd = {
    .name = "layernorm_bwd",
    .in = { { "dy", "(N, D)" },
            { "x", "(N, D)" },
            { "w", "(1, D)" },
            { "stats", "(N, 2) F32" },
            { "addend", "(N, D)", .is_optional = true, .may_alias = true } },
    .out = { { "dx", "(N, D)" },
             { "dw", "(1, D)", .is_optional = true, .accumulates = true },
             { "db", "(1, D)", .is_optional = true, .accumulates = true } },
    .price = TR_PRICE_NORM_BWD,
};

/* y = x * rstd * (weight_offset + w), with one rstd for each group of g columns. group 0: the whole row is one group.
 * attr: eps, weight_offset, group */
const struct tr_op_row tr_row_rmsnorm = {
    .name = "rmsnorm",
    .in = { { "x", "(N, Gg)" }, { "w", "(1, g)" } },
    .out = { { "y", "(N, Gg)" }, { "rstd", "(N, G) F32" } },
    .price = TR_PRICE_RMSNORM,
    .is_cheap = true,
};

const struct tr_op_row tr_row_rmsnorm_bwd = {
    .name = "rmsnorm_bwd",
    .in = { { "dy", "(N, Gg)" },
            { "x", "(N, Gg)" },
            { "w", "(1, g)" },
            { "rstd", "(N, G) F32" },
            { "addend", "(N, Gg)", .is_optional = true, .may_alias = true } },
    .out = { { "dx", "(N, Gg)" }, { "dw", "(1, g)", .is_optional = true, .accumulates = true } },
    .price = TR_PRICE_RMSNORM_BWD,
};
