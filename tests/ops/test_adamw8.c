/* AdamW with moments of 8 bits follows bitsandbytes: 50 steps of its AdamW8bit on a GPU, recorded by
 * tests/golden/make_adamw8.py, which has the same gradients. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>

#include "base/file.h"
#include "base/quant.h"
#include "ops/ops.h"
#include <stdlib.h>

enum { N = 5000, STEPS = 50 };

/* Numbers in [-1, 1) of 24 bits, which float32 holds: the same in C and in Python. */
static float noise(uint32_t i)
{
    uint32_t x = i * 2654435761u;
    x ^= x >> 15;
    x *= 2246822519u;
    x ^= x >> 13;
    return (float)((int32_t)(x >> 8) - (1 << 23)) / (float)(1 << 23);
}

static float gradient(int step, int i)
{
    static const float scale[] = { 1.0f, 0.5f, 0.75f, 1.25f, 0.625f };
    return noise((uint32_t)(step * N + i)) * scale[i / 100 % 5] * scale[i % 3];
}

static struct tr_view view(void *data, enum tr_dtype dtype, int64_t n)
{
    return (struct tr_view){ .data = data, .dtype = dtype, .rows = 1, .cols = n, .ld = n };
}

static void fifty_steps_are_those_of_bitsandbytes(void **state)
{
    enum { BLOCKS = (N + TR_DYNAMIC_BLOCK - 1) / TR_DYNAMIC_BLOCK };
    static float p[N], g[N], max_m[BLOCKS], max_v[BLOCKS];
    static uint8_t m[N], v[N];
    float step[TR_STEP_COUNT] = { 0 };
    char *text = NULL;
    size_t n = 0;
    double worst = 0;
    (void)state;
    struct tr_call c = { .op = TR_OP_ADAMW8,
                         .in = { view(g, TR_F32, N), view(step, TR_F32, TR_STEP_COUNT) },
                         .out = { view(p, TR_F32, N),
                                  { 0 },
                                  view(m, TR_U8, N),
                                  view(v, TR_U8, N),
                                  view(max_m, TR_F32, BLOCKS),
                                  view(max_v, TR_F32, BLOCKS) },
                         .attr = { .decay = true } };
    for (int i = 0; i < N; i++)
        p[i] = noise(0x80000000u + (uint32_t)i);
    step[TR_STEP_LR] = 1e-4f, step[TR_STEP_CLIP] = 1, step[TR_STEP_DECAY] = 0.1f;
    step[TR_STEP_BETA1] = 0.9f, step[TR_STEP_BETA2] = 0.999f, step[TR_STEP_EPS] = 1e-8f;
    for (int t = 0; t < STEPS; t++) {
        step[TR_STEP_BIAS1] = (float)(1 - pow(0.9, t + 1)), step[TR_STEP_BIAS2] = (float)(1 - pow(0.999, t + 1));
        for (int i = 0; i < N; i++)
            g[i] = gradient(t, i);
        tr_op_cpu_fast(c.op)(&c);
    }
    assert_int_equal(tr_file_read(TR_SOURCE_DIR "/tests/golden/adamw8/p.f32", 1 << 20, &text, &n), TR_OK);
    assert_int_equal(n, sizeof p);
    for (int i = 0; i < N; i++) {
        float want;
        memcpy(&want, text + (size_t)i * sizeof want, sizeof want);
        worst = fmax(worst, fabs((double)p[i] - (double)want));
    }
    printf("largest difference after %d steps: %.3g\n", STEPS, worst);
    assert_true(worst <= 0.05 * 1e-4); /* a code that rounds the other way changes an update by 0.4 % of the rate */
    free(text);
}

static void every_code_is_the_nearest(void **state)
{
    float map[256];
    (void)state;
    for (int is_signed = 0; is_signed < 2; is_signed++) {
        const struct tr_dynamic *d = tr_dynamic(is_signed);
        tr_dynamic_map(is_signed, map);
        for (uint32_t bits = 0; bits <= 0x3f800000u; bits += 997) {
            float x;
            memcpy(&x, &bits, sizeof x);
            for (int sign = is_signed ? -1 : 1; sign <= 1; sign += 2) {
                float y = (float)sign * x;
                int code = is_signed ? tr_dynamic_code_signed(d, y) : tr_dynamic_code(d, y), near = 0;
                double off = fabs((double)map[code] - (double)y);
                for (int k = code - 1; k <= code + 1; k++)
                    near += k >= 0 && k < 256 && fabs((double)map[k] - (double)y) < off * (1 - 1e-4);
                bool is_turned = y < 0 && code == 126; /* a small negative number does not become zero */
                if (near && !is_turned)
                    fail_msg("%.9g (signed %d) has code %d, %.9g", (double)y, is_signed, code, (double)map[code]);
                assert_true(y >= 0 || map[code] < 0 || x == 0);
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fifty_steps_are_those_of_bitsandbytes),
        cmocka_unit_test(every_code_is_the_nearest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
