/* row_collective.c - rows of ops that communicate with the ranks of attr.axis. With one rank they only copy, which is
 * what the kernels do; with more ranks the executor runs them on the communicator of the axis. */
#include "ops/ops.h"

/* The sum over ranks. Backward: the gradient, unchanged. */
const struct tr_op_row tr_row_all_reduce = {
    .name = "all_reduce",
    .in = { { "x", "(N, D)", .may_alias = true } },
    .out = { { "y", "(N, D)" } },
    .price = TR_PRICE_ALL_REDUCE,
    .is_collective = true,
};

/* The rows of all ranks, in rank order. Backward: reduce_scatter, because each rank uses y for a part of the result.
 * Cheap: recompute saves only this rank's rows. */
const struct tr_op_row tr_row_all_gather = {
    .name = "all_gather",
    .in = { { "x", "(N, D)" } },
    .out = { { "y", "(M, D)" } },
    .price = TR_PRICE_ALL_GATHER,
    .is_collective = true,
    .is_cheap = true,
};

/* This rank's rows of the sum over all ranks. Backward: all_gather. */
const struct tr_op_row tr_row_reduce_scatter = {
    .name = "reduce_scatter",
    .in = { { "x", "(M, D)" } },
    .out = { { "y", "(N, D)" } },
    .price = TR_PRICE_REDUCE_SCATTER,
    .is_collective = true,
};

/* x has this rank's tokens of every row and all n_heads_q = X heads; y has all tokens and this rank's heads: max(1, X /
 * ranks) heads from head rank * X / ranks on. inverse goes from y to x and sums the heads that several ranks have. The
 * op is its own backward, with inverse flipped.
 * attr: n_heads_q, head_dim, seq_len (tokens of a row), inverse */
const struct tr_op_row tr_row_all_to_all = {
    .name = "all_to_all",
    .in = { { "x", "(N, A)" } },
    .out = { { "y", "(M, B)" } },
    .price = TR_PRICE_ALL_TO_ALL,
    .is_collective = true,
};

/* y is an alias of x (tr_value_alias). Each rank uses y for a part of the result. Backward: all_reduce. */
const struct tr_op_row tr_row_copy = {
    .name = "copy",
    .in = { { "x", "(N, D)" } },
    .out = { { "y", "(N, D)" } },
    .price = TR_PRICE_FREE,
    .is_collective = true,
};
