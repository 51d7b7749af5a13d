/* shapes.h - what the views of each op look like (`shapes`), and how a backward op is fed from its forward op
 * (`grads`).
 */
#ifndef TR_TESTS_OPS_SHAPES_H
#define TR_TESTS_OPS_SHAPES_H

#include "ops/ops.h"

/* A view is kind, rows, columns; views are separated by blanks. In front: `?` optional, `%` only with dropout.
 * Kinds: a activation or weight, f statistics (F32), e positive statistics (F32), g gradient, D F64 sum, c the other
 * float type, i index, t target, b begin, o other, s sample, p position, l position in a cache, r rope table, z step, P
 * parameter, m and v optimizer state, q and h 8-bit floats, the first and second of a product, k the largest elements
 * of the past (F32), x grains of packed weights (never a slice), u codes of optimizer state (U8), w their scales (F32),
 * d direction of an update (BF16), F sums that become factors (F64), y state in F32,
 * - absent. In front of a view that only a case with has_more has: ~ (J 3 and not 2 columns then, L all
 * sums of documents). Sizes: N D O V as in ops.h, Ww weight and Tt
 * table in either order, Gg groups and columns per group, Q K H query columns, key columns, query heads, R rope
 * columns, S step slots, A N x D elements, F a sum and one for each of N and of D, Bb grains of D x O elements and
 * their bytes, E blocks of 256 of D, digits.
 */
static const struct op_shape {
    enum tr_opcode op;
    const char *in, *out;
    bool rounds_inside; /* may hold an intermediate in the activation type, as tensor cores want it */
} shapes[] = {
    { TR_OP_EMBED, "iN1 aTt", "aND", false },
    { TR_OP_EMBED_DW, "iN1 aND", "gTt", false },
    { TR_OP_LINEAR, "aND aWw ?a1O", "aNO", false },
    { TR_OP_LINEAR_DX, "aNO aWw ?aND", "aND", false },
    { TR_OP_LINEAR_DW, "aNO aND", "gWw ?g1O", false },
    { TR_OP_LAYERNORM, "aND a1D ?a1D", "aND fN2", false },
    { TR_OP_LAYERNORM_BWD, "aND aND a1D fN2 ?aND", "aND g1D g1D", false },
    { TR_OP_RMSNORM, "aND a1g", "aND fNG", false },
    { TR_OP_RMSNORM_BWD, "aND aND a1g fNG ?aND", "aND g1g", false },
    { TR_OP_ROPE, "aND pN1 rVR", "aND", false },
    { TR_OP_REGROUP, "aND", "aND", false },
    { TR_OP_ATTENTION, "aNQ aNK aNK bN1 %sN1 %pN1 %z1S", "aNQ fNH", false },
    { TR_OP_ATTENTION_BWD, "aNQ aNQ aNK aNK aNQ fNH bN1 %sN1 %pN1 %z1S", "aNQ aNK aNK", false },
    { TR_OP_CACHE_PUT, "aND pN1", "aVD", false },
    { TR_OP_ATTENTION_CACHED, "aNQ aVK aVK lN1", "aNQ", false },
    { TR_OP_ACT, "aND", "aND", false },
    { TR_OP_ACT_BWD, "aND aND", "aND", false },
    { TR_OP_GLU, "aND aND", "aND", false },
    { TR_OP_GLU_BWD, "aND aND aND", "aND aND", false },
    { TR_OP_ADD, "aND aND", "aND", false },
    { TR_OP_SCALE, "aND", "aND", false },
    { TR_OP_NOISE, "aND sN1 pN1 z1S", "aND", false },
    { TR_OP_DROPOUT, "aND sN1 pN1 z1S", "aND", false },
    { TR_OP_ROW_SQUARES, "aWw a3D aO3 ?a3D ?aO3", "f1O", false },
    { TR_OP_COL_SCALE, "aND a1D e1D ?a1D", "aND", false },
    { TR_OP_COL_SCALE_BWD, "aND aND a1D e1D", "aND g1D ?g1D", false },
    { TR_OP_HEAD_LOSS, "aND aVD ?a1V tN1 ?z1S ?aNO ?aVO", "fN1", false },
    { TR_OP_HEAD_LOSS_GRAD, "aND aVD ?a1V tN1 z1S ?aNO ?aVO", "fN1 aND gVD ?g1V ?aNO ?gVO", true },
    { TR_OP_HEAD_STATS, "aND aVD ?a1V tN1 ?aNO ?aVO", "fNJ", false }, /* logits: of rows with a target only */
    { TR_OP_HEAD_COMBINE, "fVJ", "fN1 fN1 ~fN1", false },
    { TR_OP_HEAD_GRAD, "aND aVD ?a1V tN1 z1S fN1 ?fNV ?aNO ?aVO ?fN1", "aND gVD ?g1V ?aNO ?gVO", true },
    { TR_OP_LINEAR_ADD, "aND aWw ?a1O aNO", "aNO", true },
    { TR_OP_LINEAR_ACT, "aND aWw ?a1O", "aNO aNO", true },
    { TR_OP_LINEAR_DX_ACT, "aNO aWw aND", "aND", true },
    { TR_OP_DEQUANT, "xBb", "aOD", false },
    { TR_OP_QUANT, "aND", "qND qDN f11 ~k12", false },
    { TR_OP_MATMUL8, "qND f11 hOD f11 ?a1O ?aNO", "aNO", true },
    { TR_OP_SUM, "fND", "D1D", false },
    { TR_OP_DFT_LOSS, "fN1", "fN1 fN1", false },
    { TR_OP_WEIGH_LOSS, "fN1 fN1", "fN1", false },
    { TR_OP_DOC_SUMS, "fN1 tN1 bN1 fN1 ~fN1 ~fN1 ~fN1", "fNL", false },
    { TR_OP_PAIR_LOSS, "fNL bN1 pN1 oN1 ~z1S ~fN1", "fN6 fN1", false },
    { TR_OP_SUMSQ, "g1D", "D11", false },
    { TR_OP_ADAMW, "g1D z1S", "P1D ?a1D m1D v1D", false },
    { TR_OP_ADAMW8, "g1D z1S", "P1D ?a1D u1D u1D w1E w1E", false },
    { TR_OP_LION, "g1D z1S", "P1D ?a1D m1D", false },
    { TR_OP_LION8, "g1D z1S", "P1D ?a1D u1D w1E", false },
    { TR_OP_SGD, "g1D z1S", "P1D ?a1D ?m1D", false },
    { TR_OP_MUON, "g1D z1S", "- - m1D d1D", false },
    { TR_OP_ORTHOGONAL, "- z1S", "dND", true },
    { TR_OP_MUON_APPLY, "- z1S", "P1D ?a1D - d1D", false },
    { TR_OP_ADAFACTOR_SUMS, "g1A z1S", "P1A - - - D1F", false },
    { TR_OP_ADAFACTOR_FACTORS, "- z1S", "- - y1N y1D F1F", false },
    { TR_OP_ADAFACTOR_NORM, "g1A z1S", "- - ?y1A - F1F D11", false },
    { TR_OP_ADAFACTOR_APPLY, "g1A z1S", "P1A ?a1A ?y1A - F1F F11", false },
    { TR_OP_CAST, "aND", "cND", false },
    { TR_OP_ZERO, "", "aND", false },
    { TR_OP_ALL_REDUCE, "aND", "aND", false },
    { TR_OP_ALL_GATHER, "aND", "aND", false },
    { TR_OP_REDUCE_SCATTER, "aND", "aND", false },
    { TR_OP_ALL_TO_ALL, "aND", "aND", false },
    { TR_OP_RING_ATTENTION, "aNQ aNK aNK bN1 %sN1 %pN1 %z1S", "aNQ fNH", false },
    { TR_OP_RING_ATTENTION_BWD, "aNQ aNQ aNK aNK aNQ fNH bN1 %sN1 %pN1 %z1S", "aNQ aNK aNK", false },
    { TR_OP_COPY, "aND", "aND", false },
};

/* `in` names the source of each backward input: digit = forward input, A B = forward output 0 1, y = gradient of
 * forward output 0, n = random addend, z = step. `out` names the forward input whose gradient each output is; - = none.
 */
static const struct op_grad {
    enum tr_opcode forward, backward;
    const char *in, *out;
} grads[] = {
    { TR_OP_EMBED, TR_OP_EMBED_DW, "0y", "1" },
    { TR_OP_LINEAR, TR_OP_LINEAR_DX, "y1n", "0" },
    { TR_OP_LINEAR, TR_OP_LINEAR_DW, "y0", "12" },
    { TR_OP_LAYERNORM, TR_OP_LAYERNORM_BWD, "y01Bn", "012" },
    { TR_OP_RMSNORM, TR_OP_RMSNORM_BWD, "y01Bn", "01" },
    { TR_OP_ROPE, TR_OP_ROPE, "y12", "0" },
    { TR_OP_REGROUP, TR_OP_REGROUP, "y", "0" },
    { TR_OP_ATTENTION, TR_OP_ATTENTION_BWD, "y012AB3456", "012" },
    { TR_OP_RING_ATTENTION, TR_OP_RING_ATTENTION_BWD, "y012AB3456", "012" },
    { TR_OP_ACT, TR_OP_ACT_BWD, "y0", "0" },
    { TR_OP_GLU, TR_OP_GLU_BWD, "y01", "01" },
    { TR_OP_SCALE, TR_OP_SCALE, "y", "0" },
    { TR_OP_DROPOUT, TR_OP_DROPOUT, "y123", "0" },
    { TR_OP_COL_SCALE, TR_OP_COL_SCALE_BWD, "y012", "013" },
    { TR_OP_HEAD_LOSS, TR_OP_HEAD_LOSS_GRAD, "0123z56", "-01256" },
};

#endif
