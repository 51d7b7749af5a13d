/* row_fp8.c - rows of products of 8-bit floats (pass `fp8`). The largest finite value of E4M3 is 448, that of E5M2 is
 * 57344. */
#include "ops/ops.h"

/* q = 8-bit(x * (largest / amax)), with NaN for an infinite x; qt is q transposed; scale = amax / largest. Both factors
 * are 1 when amax is 0. amax is history[0] when the call has a history and history[0] is not 0, else the largest |x|.
 * history[1] becomes max(history[1], the largest |x|). */
const struct tr_op_row tr_row_quant = {
    .name = "quant",
    .in = { { "x", "(N, D)" } },
    .out = { { "q", "(N, D)" },
             { "qt", "(D, N)" },
             { "scale", "(1, 1) F32" },
             { "history", "(1, 2) F32", .is_optional = true } },
};

/* y += scale_a * scale_b * a b^T + bias + addend; at most one of a and b is E5M2. attr: is_gradient */
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
