/* row_optim.c - rows of the ops that run after the backward: the gradient norm and the optimizers. The executor calls
 * them on buckets; they are never nodes of a program. */
#include "ops/muon.h"
#include "ops/op_row.h"

/* The sum of squares. Each chunk of 64 Ki elements is summed, then the chunks are added in order. */
const struct tr_op_row tr_row_sumsq = {
    .name = "sumsq",
    .in = { { "g", "(1, E)" } },
    .out = { { "sum", "(1, 1) F64", .accumulates = true } },
};

/* g is multiplied by CLIP first; weight decay is decoupled (p *= 1 - lr * decay). The update uses m and v before they
 * are rounded for storage. p, m and v in BF16 are rounded stochastically: 16 random bits are added to the bits of the
 * float, which are then truncated. Element e = first + column has the random word w = tr_philox(key, step number, e /
 * 4).v[e % 4]: p gets the low half of w, m its high half, v the high half of 0x9E3779B1 * w. copy is p rounded to
 * nearest. attr: decay, key, first */
const struct tr_op_row tr_row_adamw = {
    .name = "adamw",
    .in = { { "g", "(1, E)" }, { "step", "(1, S) F32" } },
    .out = { { "p", "(1, E)" }, { "copy", "(1, E)", .is_optional = true }, { "m", "(1, E)" }, { "v", "(1, E)" } },
    .price = TR_PRICE_UPDATE,
};

/* adamw with m and v in 8 bits, as bitsandbytes has it: a code of the dynamic map (base/quant.h; signed for m, unsigned
 * for v) for each element, times the largest magnitude of its block of 256 elements. The first element of a call begins
 * a block. The update uses m and v before they are rounded; weight decay follows it. p in BF16 and copy as in adamw.
 * attr: decay, key, first */
const struct tr_op_row tr_row_adamw8 = {
    .name = "adamw8",
    .in = { { "g", "(1, E)" }, { "step", "(1, S) F32" } },
    .out = { { "p", "(1, E)" },
             { "copy", "(1, E)", .is_optional = true },
             { "m8", "(1, E) U8" },
             { "v8", "(1, E) U8" },
             { "m8_max", "(1, B) F32" },
             { "v8_max", "(1, B) F32" } },
    .price = TR_PRICE_UPDATE,
};

/* p -= lr * sign(beta1 m + (1 - beta1) g), m = beta2 m + (1 - beta2) g. attr: decay, key, first */
const struct tr_op_row tr_row_lion = {
    .name = "lion",
    .in = { { "g", "(1, E)" }, { "step", "(1, S) F32" } },
    .out = { { "p", "(1, E)" }, { "copy", "(1, E)", .is_optional = true }, { "m", "(1, E)" } },
    .price = TR_PRICE_UPDATE,
};

/* lion with m in 8 bits, as adamw8 has it. p in BF16 and copy as in adamw. attr: decay, key, first */
const struct tr_op_row tr_row_lion8 = {
    .name = "lion8",
    .in = { { "g", "(1, E)" }, { "step", "(1, S) F32" } },
    .out = { { "p", "(1, E)" },
             { "copy", "(1, E)", .is_optional = true },
             { "m8", "(1, E) U8" },
             { "m8_max", "(1, B) F32" } },
    .price = TR_PRICE_UPDATE,
};

/* m = beta1 m + g, p -= lr * m; without m: p -= lr * g. attr: decay, key, first */
const struct tr_op_row tr_row_sgd = {
    .name = "sgd",
    .in = { { "g", "(1, E)" }, { "step", "(1, S) F32" } },
    .out = { { "p", "(1, E)" }, { "copy", "(1, E)", .is_optional = true }, { "m", "(1, E)", .is_optional = true } },
    .price = TR_PRICE_UPDATE,
};

/* The first phase of Muon: m += (1 - momentum) (g - m), d = m + (1 - momentum) (g - m) rounded to BF16: Nesterov's
 * momentum. m in BF16 as in adamw. attr: key, first */
const struct tr_op_row tr_row_muon = {
    .name = "muon",
    .in = { { "g", "(1, E)" }, { "step", "(1, S) F32" } },
    .out = { { "-" }, { "-" }, { "m", "(1, E)" }, { "d", "(1, E) BF16" } },
    .price = TR_PRICE_UPDATE,
};

static double orthogonal_flops(const struct tr_call *c)
{
    double rows = (double)c->out[0].rows, cols = (double)c->out[0].cols, m = rows < cols ? rows : cols;
    return TR_MUON_STEPS * (4 * m * rows * cols + 2 * m * m * m);
}

/* The second phase, on a whole matrix: d becomes the nearest orthogonal matrix, roughly, by five Newton-Schulz steps in
 * BF16, times the factor of its shape. X = d / |d|, with rows and columns exchanged where there are more rows; then A =
 * X X^T, X = a X + (b A + c A A) X. Products are summed in float32; X, A and b A + c A A are rounded to BF16. */
const struct tr_op_row tr_row_orthogonal = {
    .name = "orthogonal",
    .in = { { "-" }, { "step", "(1, S) F32" } },
    .out = { { "d", "(N, D) BF16" } },
    .flops = orthogonal_flops,
    .price = TR_PRICE_FLOPS,
};

/* The third phase: p = p * (1 - lr * decay) - lr * d. p in BF16 and copy as in adamw. attr: decay, key, first */
const struct tr_op_row tr_row_muon_apply = {
    .name = "muon_apply",
    .in = { { "-" }, { "step", "(1, S) F32" } },
    .out = { { "p", "(1, E)" }, { "copy", "(1, E)", .is_optional = true }, { "-" }, { "d", "(1, E) BF16" } },
    .price = TR_PRICE_UPDATE,
};

/* Adafactor, in four phases over the elements [at, at + E) of a matrix (R, C), which is a rank's part of a tensor of
 * n_all elements; R = 0: of a vector. Let u = g^2 + 1e-30 with g times CLIP. First phase: the sum of p^2, of u in each
 * row and of u in each column, over these elements: F = 1 + R + C. attr: at, rows, cols */
const struct tr_op_row tr_row_adafactor_sums = {
    .name = "adafactor_sums",
    .in = { { "g", "(1, E)" }, { "step", "(1, S) F32" } },
    .out = { { "p", "(1, E)" }, { "-" }, { "-" }, { "-" }, { "sums", "(1, F) F64" } },
    .price = TR_PRICE_UPDATE,
};

/* The second phase, on the sums over all of a tensor (R, C), of all ranks: averages of the means of rows and columns
 * decay by BETA2, row += (1 - BETA2) (mean - row); the sums become factors, 1 / sqrt(row / mean of all rows) and
 * 1 / sqrt(col). attr: rows, cols */
const struct tr_op_row tr_row_adafactor_factors = {
    .name = "adafactor_factors",
    .in = { { "-" }, { "step", "(1, S) F32" } },
    .out = { { "-" }, { "-" }, { "row", "(1, R) F32" }, { "col", "(1, C) F32" }, { "sums", "(1, F) F64" } },
    .price = TR_PRICE_UPDATE,
};

/* The third phase: the sum of the squares of the update d = g * factor of its row * factor of its column; of a vector
 * v decays as above, and d = g / sqrt(v). attr: at, rows, cols */
const struct tr_op_row tr_row_adafactor_norm = {
    .name = "adafactor_norm",
    .in = { { "g", "(1, E)" }, { "step", "(1, S) F32" } },
    .out = { { "-" },
             { "-" },
             { "v", "(1, E) F32", .is_optional = true },
             { "-" },
             { "sums", "(1, F) F64" },
             { "norm", "(1, 1) F64" } },
    .price = TR_PRICE_UPDATE,
};

/* The fourth phase: p = p - rate * decay * p - rate * d / max(1, rms of d), with the rate LR, times max(1e-3, rms of p)
 * where ADJUST is 1. p in BF16 and copy as in adamw. attr: at, rows, cols, n_all, decay, key, first */
const struct tr_op_row tr_row_adafactor_apply = {
    .name = "adafactor_apply",
    .in = { { "g", "(1, E)" }, { "step", "(1, S) F32" } },
    .out = { { "p", "(1, E)" },
             { "copy", "(1, E)", .is_optional = true },
             { "v", "(1, E) F32", .is_optional = true },
             { "-" },
             { "sums", "(1, F) F64" },
             { "norm", "(1, 1) F64" } },
    .price = TR_PRICE_UPDATE,
};
