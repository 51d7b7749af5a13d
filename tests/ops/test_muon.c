/* Muon follows torch.optim.Muon: 50 steps on matrices of several shapes, recorded by tests/golden/make_muon.py, which
 * has the same gradients. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/file.h"
#include "ops/muon.h"
#include "ops/ops.h"

enum { STEPS = 50, N_MOST = 64 * 48 };

static const struct {
    int rows, cols;
    enum tr_muon_adjust adjust;
} shapes[] = { { 24, 24, TR_MUON_ORIGINAL },
               { 16, 40, TR_MUON_MATCH_RMS_ADAMW },
               { 40, 16, TR_MUON_MATCH_RMS_ADAMW },
               { 8, 96, TR_MUON_SPECTRAL_UNCLAMPED },
               { 64, 48, TR_MUON_ORIGINAL } };

/* Numbers in [-1, 1) of 24 bits, which float32 holds: the same in C and in Python. */
static float noise(uint32_t i)
{
    uint32_t x = i * 2654435761u;
    x ^= x >> 15;
    x *= 2246822519u;
    x ^= x >> 13;
    return (float)((int32_t)(x >> 8) - (1 << 23)) / (float)(1 << 23);
}

static struct tr_view view(void *data, enum tr_dtype dtype, int64_t rows, int64_t cols)
{
    return (struct tr_view){ .data = data, .dtype = dtype, .rows = rows, .cols = cols, .ld = cols };
}

static void run(enum tr_opcode op, const struct tr_view *g, const struct tr_view *step, const struct tr_view out[4])
{
    struct tr_call c = { .op = op, .in = { *g, *step }, .attr = { .decay = true } };
    for (int k = 0; k < 4; k++)
        c.out[k] = out[k];
    c.scratch = aligned_alloc(64, tr_round_up(tr_op_scratch(&c, 1), 64) + 64);
    assert_non_null(c.scratch);
    tr_op_cpu_fast(op)(&c);
    free(c.scratch);
}

/* How far the way that the matrix went in 50 steps is from torch's, as a share of it. A product that rounds the other
 * way changes an element of a direction by 2^-8 of the largest; such changes are random, and each step adds its own. */
static double off_by(int rows, int cols, enum tr_muon_adjust adjust)
{
    static float p[N_MOST], first[N_MOST], g[N_MOST], m[N_MOST];
    static uint16_t d[N_MOST];
    float step[TR_STEP_COUNT] = { 0 };
    char path[256], *text = NULL;
    size_t bytes = 0;
    int n = rows * cols;
    double off = 0, way = 0;
    struct tr_view gv = view(g, TR_F32, 1, n), sv = view(step, TR_F32, 1, TR_STEP_COUNT);
    struct tr_view flat[4] = { view(p, TR_F32, 1, n), { 0 }, view(m, TR_F32, 1, n), view(d, TR_BF16, 1, n) };
    struct tr_view whole[4] = { view(d, TR_BF16, rows, cols) };
    step[TR_STEP_LR] = 1e-2f, step[TR_STEP_CLIP] = 1, step[TR_STEP_DECAY] = 0.1f;
    step[TR_STEP_MOMENTUM] = 0.95f, step[TR_STEP_ADJUST] = (float)adjust, step[TR_STEP_BIAS1] = step[TR_STEP_BIAS2] = 1;
    memset(m, 0, sizeof m);
    for (int i = 0; i < n; i++)
        p[i] = first[i] = noise(0x80000000u + (uint32_t)i);
    for (int t = 0; t < STEPS; t++) {
        for (int i = 0; i < n; i++)
            g[i] = noise((uint32_t)(t * n + i));
        run(TR_OP_MUON, &gv, &sv, flat);
        run(TR_OP_ORTHOGONAL, &gv, &sv, whole);
        run(TR_OP_MUON_APPLY, &gv, &sv, flat);
    }
    (void)snprintf(path, sizeof path, TR_SOURCE_DIR "/tests/golden/muon/%dx%d.f32", rows, cols);
    assert_int_equal(tr_file_read(path, 1 << 20, &text, &bytes), TR_OK);
    assert_int_equal(bytes, (size_t)n * sizeof *p);
    for (int i = 0; i < n; i++) {
        float want;
        memcpy(&want, text + (size_t)i * sizeof want, sizeof want);
        off += pow((double)p[i] - (double)want, 2);
        way += pow((double)want - (double)first[i], 2);
    }
    free(text);
    return sqrt(off / way);
}

static void fifty_steps_are_those_of_torch(void **state)
{
    (void)state;
    for (size_t i = 0; i < TR_COUNT_OF(shapes); i++) {
        double off = off_by(shapes[i].rows, shapes[i].cols, shapes[i].adjust);
        printf("%d x %d: off by %.2g of the way\n", shapes[i].rows, shapes[i].cols, off);
        assert_true(off <= 0x1p-8);
    }
}

static void the_result_is_nearly_orthogonal(void **state)
{
    enum { R = 12, C = 40 };
    uint16_t d[R * C];
    float step[TR_STEP_COUNT] = { [TR_STEP_ADJUST] = TR_MUON_ORIGINAL };
    struct tr_view none = { 0 }, sv = view(step, TR_F32, 1, TR_STEP_COUNT), whole[4] = { view(d, TR_BF16, R, C) };
    (void)state;
    for (int i = 0; i < R * C; i++)
        d[i] = tr_bf16_of_f32(noise((uint32_t)i + 77) * (float)(1 + i / C));
    run(TR_OP_ORTHOGONAL, &none, &sv, whole);
    for (int i = 0; i < R; i++)
        for (int k = 0; k < R; k++) {
            double dot = 0;
            for (int j = 0; j < C; j++)
                dot += (double)tr_f32_of_bf16(d[i * C + j]) * (double)tr_f32_of_bf16(d[k * C + j]);
            /* the singular values of five steps lie between 0.7 and 1.2 */
            assert_true(i == k ? dot > 0.4 && dot < 1.5 : fabs(dot) < 0.45);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fifty_steps_are_those_of_torch),
        cmocka_unit_test(the_result_is_nearly_orthogonal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
