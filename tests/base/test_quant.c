/* 4-bit blocks by their own definition: the nearest value, planes of the right size, and bytes that do not depend on
 * how a tensor is divided among threads. That they are bitsandbytes' bytes is the claim of ckpt/test_quant. */
#include "base/base.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <math.h>
#include <cmocka.h>

enum { N = 64 * 37 + 13 };

static float *numbers(uint64_t seed)
{
    float *x = malloc(N * sizeof *x);
    assert_non_null(x);
    uint32_t s = (uint32_t)seed;
    for (int i = 0; i < N; i++) {
        s = s * 1664525u + 1013904223u;
        x[i] = (float)(int32_t)s * 1e-9f;
    }
    memset(x + 64, 0, 64 * sizeof *x);
    return x;
}

static void a_code_is_the_nearest_value(void **state)
{
    (void)state;
    float *x = numbers(1);
    for (unsigned t = 0; t < TR_Q4_COUNT; t++) {
        enum tr_q4 q = (enum tr_q4)t;
        const struct tr_storage_format *f = tr_storage_q4(q);
        uint8_t codes[(N + 1) / 2];
        float absmax[N / 64 + 1];
        assert_int_equal(tr_plane_bytes(&f->plane[0], N), sizeof codes);
        assert_int_equal(tr_plane_bytes(&f->plane[1], N), sizeof absmax);
        tr_q4_encode(q, x, N, codes, absmax);
        for (int i = 0; i < N; i++) {
            int code = codes[i / 2] >> (i % 2 ? 0 : 4) & 15;
            float most = absmax[i / 64], got = tr_q4_values(q)[code] * most;
            assert_true(fabsf(x[i]) <= most);
            for (int k = 0; k < 16; k++) /* no other value is nearer, but for the rounding of x / absmax */
                assert_true(fabsf(x[i] - got) <= fabsf(x[i] - tr_q4_values(q)[k] * most) + most * 0x1p-22f);
        }
        assert_true(absmax[1] == 0);
    }
    free(x);
}

static void ranges_give_the_bytes_of_the_whole(void **state)
{
    (void)state;
    float *x = numbers(2), whole[N], part[N];
    uint8_t codes[(N + 1) / 2], codes_2[(N + 1) / 2];
    float absmax[N / 64 + 1], absmax_2[N / 64 + 1];
    tr_q4_encode(TR_NF4, x, N, codes, absmax);
    for (int at = 0; at < N; at += 64 * 5)
        tr_q4_encode(TR_NF4, x + at, tr_min64(64 * 5, N - at), codes_2 + at / 2, absmax_2 + at / 64);
    assert_memory_equal(codes, codes_2, sizeof codes);
    assert_memory_equal(absmax, absmax_2, sizeof absmax);
    tr_q4_decode(TR_NF4, codes, absmax, 0, N, whole, TR_F32);
    for (int first = 0; first < 130; first++) { /* odd and even, within a block and over its end */
        int n = N - first - first % 3;
        tr_q4_decode(TR_NF4, codes, absmax, first, n, part, TR_F32);
        assert_memory_equal(part, whole + first, (size_t)n * sizeof *part);
    }
    uint16_t half[N], rounded[N];
    tr_q4_decode(TR_NF4, codes, absmax, 0, N, half, TR_BF16);
    tr_convert(whole, TR_F32, rounded, TR_BF16, N);
    assert_memory_equal(half, rounded, sizeof half);
    free(x);
}

static void the_dynamic_map_ascends(void **state)
{
    (void)state;
    for (int is_signed = 0; is_signed < 2; is_signed++) {
        float map[256];
        tr_dynamic_map(is_signed, map);
        for (int i = 1; i < 256; i++)
            assert_true(map[i - 1] < map[i]);
        assert_true(map[255] == 1.0f && map[is_signed ? 127 : 0] == 0.0f);
    }
}

static void nested_absmax_come_back_within_a_step(void **state)
{
    (void)state;
    float absmax[700], back[700], nested[3], offset, map[256];
    uint8_t codes[700];
    tr_dynamic_map(true, map);
    for (int i = 0; i < 700; i++)
        absmax[i] = 0.05f + 0.01f * sinf((float)i);
    tr_q4_nest(absmax, 700, codes, nested, &offset);
    tr_q4_unnest(map, codes, nested, offset, 0, 300, back);
    tr_q4_unnest(map, codes, nested, offset, 300, 400, back + 300);
    for (int i = 0; i < 700; i++)
        assert_true(fabsf(back[i] - absmax[i]) < 0.01f * 0.008f); /* half of the widest step of the map */
    float same[5] = { 2, 2, 2, 2, 2 };
    tr_q4_nest(same, 5, codes, nested, &offset); /* nothing is left but the offset */
    tr_q4_unnest(map, codes, nested, offset, 0, 5, back);
    assert_true(offset == 2.0f && nested[0] == 0.0f && memcmp(back, same, sizeof same) == 0);
}

static void eight_bit_floats_decode_every_code(void **state)
{
    (void)state;
    uint8_t codes[256];
    float x[256], scaled[256];
    const float scale[2] = { 0.5f, 3.0f };
    for (int i = 0; i < 256; i++)
        codes[i] = (uint8_t)i;
    tr_f8_values(codes, 256, x);
    tr_f8_decode(codes, scale, 0, 256, scaled, TR_F32);
    for (int i = 0; i < 256; i++) {
        float want = tr_f32_of_e4m3((uint8_t)i);
        assert_true(isnan(want) ? isnan(x[i]) : x[i] == want && !signbit(x[i]) == !signbit(want));
        assert_true(isnan(want) || scaled[i] == want * scale[i / 128]);
    }
    assert_true(tr_mx4_value(7, 127) == 6.0f && tr_mx4_value(9, 128) == -1.0f && isnan(tr_mx4_value(1, 255)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_code_is_the_nearest_value),
        cmocka_unit_test(ranges_give_the_bytes_of_the_whole),
        cmocka_unit_test(the_dynamic_map_ascends),
        cmocka_unit_test(nested_absmax_come_back_within_a_step),
        cmocka_unit_test(eight_bit_floats_decode_every_code),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
