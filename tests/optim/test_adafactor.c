/* Adafactor follows transformers' Adafactor: 50 steps on tensors of several shapes, recorded by
 * tests/golden/make_adafactor.py, which has the same gradients; in one call, and in pieces as ranks have them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/file.h"
#include "ops/ops.h"
#include "optim/optim.h"

enum { STEPS = 50, N_MOST = 24 * 24 + 64, SUMS_MOST = 256, PIECES = 3 };

static const struct {
    int rows, cols; /* rows 0: a vector */
} shapes[] = { { 24, 24 }, { 16, 40 }, { 40, 16 }, { 1, 96 }, { 64, 3 }, { 1, 1 }, { 0, 129 } };

/* Numbers in [-1, 1) of 24 bits, which float32 holds: the same in C and in Python. */
static float noise(uint32_t i)
{
    uint32_t x = i * 2654435761u;
    x ^= x >> 15;
    x *= 2246822519u;
    x ^= x >> 13;
    return (float)((int32_t)(x >> 8) - (1 << 23)) / (float)(1 << 23);
}

struct tensor {
    int rows, cols, n, n_sums;
    float p[N_MOST], g[N_MOST], state[2][N_MOST], step[TR_STEP_COUNT];
    double sums[SUMS_MOST], last, scratch[N_MOST];
};

static struct tr_view view(void *data, enum tr_dtype dtype, int64_t n)
{
    return (struct tr_view){ .data = data, .dtype = dtype, .rows = 1, .cols = n, .ld = n };
}

/* Elements [at, at + n), into these sums. */
static void call(struct tensor *t, enum tr_opcode op, int at, int n, double *sums, double *last)
{
    bool is_matrix = t->rows > 0;
    struct tr_call c = { .op = op, .scratch = t->scratch };
    c.in[0] = view(t->g + at, TR_F32, n);
    c.in[1] = view(t->step, TR_F32, TR_STEP_COUNT);
    c.out[0] = view(t->p + at, TR_F32, n);
    c.out[2] = is_matrix ? view(t->state[0], TR_F32, t->rows) : view(t->state[0] + at, TR_F32, n);
    if (is_matrix)
        c.out[3] = view(t->state[1], TR_F32, t->cols);
    c.out[4] = view(sums, TR_F64, t->n_sums);
    c.out[5] = view(last, TR_F64, 1);
    c.attr = (struct tr_attr){ .decay = true, .at = at, .rows = t->rows, .cols = t->cols, .n_all = t->n };
    tr_op_cpu_fast(op)(&c);
}

/* A phase in so many pieces, of which none begins where a row does; sums of the pieces are added. */
static void run(struct tensor *t, enum tr_opcode op, int n_pieces)
{
    double sums[SUMS_MOST] = { 0 }, part[SUMS_MOST], last = 0, last_part = 0;
    bool adds = op == TR_OP_ADAFACTOR_SUMS;
    for (int k = 0; k < n_pieces; k++) {
        int at = t->n * k / n_pieces, end = t->n * (k + 1) / n_pieces;
        call(t, op, at, end - at, adds ? part : t->sums, op == TR_OP_ADAFACTOR_NORM ? &last_part : &t->last);
        for (int i = 0; adds && i < t->n_sums; i++)
            sums[i] += part[i];
        last += last_part;
    }
    if (adds)
        memcpy(t->sums, sums, sizeof sums);
    if (op == TR_OP_ADAFACTOR_NORM)
        t->last = last;
}

static void fill(struct tensor *t, int rows, int cols)
{
    *t = (struct tensor){ .rows = rows, .cols = cols };
    t->n = rows ? rows * cols : cols;
    t->n_sums = rows ? 1 + rows + cols : 1;
    for (int i = 0; i < t->n; i++)
        t->p[i] = noise(0x80000000u + (uint32_t)i);
}

static void train(struct tensor *t, bool is_own, int n_pieces)
{
    struct tr_config cfg = { .adafactor_relative_step = is_own, .adafactor_scale_parameter = is_own };
    int n_rows = t->rows ? t->rows : t->n; /* as Python has it: shape[0] */
    for (int s = 0; s < STEPS; s++) {
        t->step[TR_STEP_LR] = 1e-2f, t->step[TR_STEP_CLIP] = 1, t->step[TR_STEP_DECAY] = is_own ? 0 : 0.1f;
        tr_adafactor.step_values(&cfg, s + 1, t->step);
        for (int i = 0; i < t->n; i++) {
            t->g[i] = noise((uint32_t)(s * t->n + i)) * ldexpf(1, i * n_rows / t->n % 12);
        }
        run(t, TR_OP_ADAFACTOR_SUMS, n_pieces);
        if (t->rows)
            run(t, TR_OP_ADAFACTOR_FACTORS, 1);
        run(t, TR_OP_ADAFACTOR_NORM, n_pieces);
        run(t, TR_OP_ADAFACTOR_APPLY, n_pieces);
    }
}

/* The largest distance from transformers' result, as a share of the longest way that an element went. */
static double off_by(const struct tensor *t, bool is_own)
{
    char path[256], *text = NULL;
    size_t bytes = 0;
    double off = 0, way = 0;
    (void)snprintf(path, sizeof path,
                   t->rows ? TR_SOURCE_DIR "/tests/golden/adafactor/%dx%d%s.f32"
                           : TR_SOURCE_DIR "/tests/golden/adafactor/%.0d%d%s.f32",
                   t->rows, t->cols, is_own ? "-own" : "");
    assert_int_equal(tr_file_read(path, 1 << 20, &text, &bytes), TR_OK);
    assert_int_equal(bytes, (size_t)t->n * sizeof *t->p);
    for (int i = 0; i < t->n; i++) {
        float want;
        memcpy(&want, text + (size_t)i * sizeof want, sizeof want);
        off = fmax(off, fabs((double)t->p[i] - (double)want));
        way = fmax(way, fabs((double)want - (double)noise(0x80000000u + (uint32_t)i)));
    }
    free(text);
    return off / way;
}

/* An update has errors of a few 2^-24 of itself, and p is rounded 50 times by at most 2^-25 of a number up to 1, where
 * the way is 0.5 or so. A factor 1 - rate * decay would be off by as much in one direction in every step: such a result
 * was off by 4.8e-6 of the way, and one number alone by 9.2e-6. */
static void fifty_steps_are_those_of_transformers(void **state)
{
    static struct tensor t;
    (void)state;
    for (size_t i = 0; i < TR_COUNT_OF(shapes); i++)
        for (int is_own = 0; is_own < 2; is_own++) {
            fill(&t, shapes[i].rows, shapes[i].cols);
            train(&t, is_own, 1);
            double off = off_by(&t, is_own);
            printf("%d x %d%s: off by %.2g of the way\n", t.rows, t.cols, is_own ? " (own rates)" : "", off);
            assert_true(off <= 50 * 0x1p-24);
        }
}

static void pieces_have_the_same_bits(void **state)
{
    static struct tensor t, cut;
    (void)state;
    for (size_t i = 0; i < TR_COUNT_OF(shapes); i++) {
        fill(&t, shapes[i].rows, shapes[i].cols);
        fill(&cut, shapes[i].rows, shapes[i].cols);
        train(&t, true, 1);
        train(&cut, true, PIECES);
        assert_memory_equal(t.p, cut.p, sizeof t.p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fifty_steps_are_those_of_transformers),
        cmocka_unit_test(pieces_have_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
