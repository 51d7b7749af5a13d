/* row_fp8.c - rows of products of 8-bit floats (pass `fp8`). E4M3 is at most 448, E5M2 at most 57344. */
#include "ops/ops.h"

/* q = 8-bit(x * (largest / amax)), NaN for an infinite x; qt is q transposed; scale = amax / largest; both factors are
 * 1 when amax is 0. amax is the largest |x|, or history[0] where there is a history and that is not 0; history[1] is
 * raised to the largest |x|. */
const struct tr_op_row tr_row_quant = {
    .name = "quant",
    .in = { { "x", "(N, D)" } },
    .out = { { "q", "(N, D)" },
             { "qt", "(D, N)" },
             { "scale", "(1, 1) F32" },
             { "history", "(1, 2) F32", .is_optional = true } },
};

/* y += scale_a * scale_b * a b^T + bias + addend; a or b may be E5M2, not both. attr: is_gradient */
const struct tr_op_row tr_row_matmul8 = {
    .name = "matmul8",
    .in = { { "a", "(N, I)" },
            { "scale_a", "(1, 1) F32" },
            { "b", "(O, I)" },
            { "scale_b", "(1, 1) F32" },
            { "bias", "(1, O)", .is_optional = true },
            { "addend", "(N, O)", .is_optional = true, .may_alias = true } },
    .out = { { "y", "(N, O)", .accumulates = true } },
    .flops = tr_flops_product,
};
