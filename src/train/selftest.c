/* selftest.c - checks that this process computes as all others do (fault D8).
 *
 * A library may change the rounding mode or flush small numbers to zero, and a node may have other instructions. A
 * fixed vector goes through a product, a norm and an activation, with the kernels of the training. The hash of the
 * result must be the same on all ranks. A single rank also checks its rounding and its small numbers against known
 * results.
 */
#include "train/selftest.h"
#include <fenv.h>
#include <stdlib.h>

enum { N = 16, D = 96, O = 40 };

static struct tr_view matrix(float *data, int64_t rows, int64_t cols)
{
    return (struct tr_view){ .data = data, .dtype = TR_F32, .rows = rows, .cols = cols, .ld = cols };
}

static enum tr_status check_rounding(void)
{
    volatile float one = 1, half_ulp = 0x1p-24f, tiny = 0x1p-126f, quarter = 0.25f;
    volatile float up = one + half_ulp, small = tiny * quarter;
    if (up != 1 || one - half_ulp / 2 != 1)
        return tr_fail(TR_USAGE, "this process does not round to nearest: a library changed the rounding mode; start "
                                 "without LD_PRELOAD and check what it links");
    if (small != 0x1p-128f)
        return tr_fail(TR_USAGE, "this process flushes small numbers to zero: a library changed the floating-point "
                                 "mode; start without LD_PRELOAD and check what it links");
    return TR_OK;
}

enum tr_status tr_self_test(int64_t *hash)
{
    enum tr_status st = TR_OK;
    float *x = calloc(N * D + O * D + 2 * N * O + N + O, sizeof *x);
    void *scratch = NULL;
    if (tr_failpoint("train.rounding") != TR_OK) { /* as a library might */
        tr_error_clear();
        fesetround(FE_UPWARD);
    }
    if (!x)
        return tr_fail(TR_NOMEM, "no memory for the self-test");
    float *w = x + N * D, *pre = w + O * D, *y = pre + N * O, *rstd = y + N * O, *gain = rstd + N;
    for (int i = 0; i < N * D + O * D; i++)
        x[i] = (float)((i * 7919 + 13) % 2003 - 1001) * 0x1p-10f;
    for (int i = 0; i < O; i++)
        gain[i] = 1 + (float)i * 0x1p-7f;
    if (tr_failpoint("train.other_cpu") != TR_OK) { /* a product with other bits */
        tr_error_clear();
        x[5] += 0x1p-20f;
    }
    TR_TRY(check_rounding());
    struct tr_call linear = { .op = TR_OP_LINEAR_ACT, .attr = { .act = TR_ACT_SILU } };
    linear.in[0] = matrix(x, N, D);
    linear.in[1] = matrix(w, O, D);
    linear.out[0] = matrix(y, N, O);
    linear.out[1] = matrix(pre, N, O);
    struct tr_call norm = { .op = TR_OP_RMSNORM, .attr = { .eps = 1e-5f } };
    norm.in[0] = matrix(y, N, O);
    norm.in[1] = matrix(gain, 1, O);
    norm.out[0] = matrix(pre, N, O);
    norm.out[1] = matrix(rstd, N, 1);
    size_t bytes = tr_op_scratch(&linear, 1) + tr_op_scratch(&norm, 1) + 64;
    scratch = aligned_alloc(64, tr_round_up(bytes, 64));
    if (!scratch)
        TR_TRY(tr_fail(TR_NOMEM, "no memory for the self-test"));
    linear.scratch = norm.scratch = scratch;
    tr_op_cpu_fast(TR_OP_LINEAR_ACT)(&linear);
    tr_op_cpu_fast(TR_OP_RMSNORM)(&norm);
    /* shifted so that its negative exists too (tr_mesh_agree) */
    *hash = (int64_t)(tr_hash(pre, (2 * N * O + N) * sizeof *pre).lo >> 2);
out:
    free(x);
    free(scratch);
    return st;
}
