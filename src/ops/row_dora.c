/* row_dora.c - rows of the ops that DoRA adds to LoRA: the norms of the rows of an adapted weight, and a scale for each
 * output. */
#include "ops/ops.h"

/* squares = the sum of the squares of each row of W + scale * (B A - B0 A0). It is a sum over inputs, so ranks that
 * split them add theirs. attr: weight_is_in_out, scale */
const struct tr_op_row tr_row_row_squares = {
    .name = "row_squares",
    .in = { { "W", "(O, I)", .is_weight = true },
            { "A", "(R, I)" },
            { "B", "(O, R)" },
            { "A0", "(R, I)", .is_optional = true },
            { "B0", "(O, R)", .is_optional = true } },
    .out = { { "squares", "(1, O) F32" } },
};

/* y = x * m / sqrt(squares) + bias, column by column. bias_grad: as in linear. */
const struct tr_op_row tr_row_col_scale = {
    .name = "col_scale",
    .in = { { "x", "(N, O)" },
            { "m", "(1, O)" },
            { "squares", "(1, O) F32" },
            { "bias", "(1, O)", .is_optional = true },
            { "bias_grad", "(1, O)", .is_optional = true, .is_grad_only = true } },
    .out = { { "y", "(N, O)" } },
    .is_cheap = true,
};

/* dx = dy * m / sqrt(squares), dm += the sum of the rows of dy * x / sqrt(squares), db += that of dy. squares is a
 * constant here, as DoRA has it. */
const struct tr_op_row tr_row_col_scale_bwd = {
    .name = "col_scale_bwd",
    .in = { { "dy", "(N, O)" }, { "x", "(N, O)" }, { "m", "(1, O)" }, { "squares", "(1, O) F32" } },
    .out = { { "dx", "(N, O)" },
             { "dm", "(1, O)", .is_optional = true, .accumulates = true },
             { "db", "(1, O)", .is_optional = true, .accumulates = true } },
};
