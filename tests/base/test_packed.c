/* test_packed.c - grains: whatever is written in pieces, joined from planes or given other scales decodes as the codec
 * of base/quant.h says. */
#include "base/packed.h"
#include "base/quant.h"
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>

enum { N = 64 * 5 + 23, N_GRAINS = 6 };

static void fill(float x[N])
{
    for (int i = 0; i < N; i++)
        x[i] = i / 64 == 2 ? 0.0f : (float)((i * 7919) % 401 - 200) / 131.0f; /* the third block is all zeros */
}

static enum tr_q4 codec_of(enum tr_packed p)
{
    return p == TR_PACKED_FP4 ? TR_FP4 : TR_NF4;
}

static void grains_decode_as_planes_do(void **state)
{
    static const enum tr_dtype dtypes[] = { TR_F32, TR_BF16, TR_F16 };
    float x[N], absmax[N_GRAINS];
    uint8_t codes[N / 2 + 1];
    char grains[N_GRAINS * 36], joined[N_GRAINS * 36];
    (void)state;
    fill(x);
    for (enum tr_packed p = TR_PACKED_NF4; tr_packed_is_q4(p); p++) {
        assert_int_equal(tr_packed_grain_bytes(p), 36);
        assert_int_equal(tr_packed_bytes(p, N), sizeof grains);
        assert_int_equal(tr_packed_bytes(p, 0), 0);
        tr_q4_encode(codec_of(p), x, N, codes, absmax);
        tr_packed_encode(p, x, N, grains);
        tr_packed_join(p, codes, absmax, N, joined);
        assert_memory_equal(grains, joined, sizeof grains);
        for (size_t d = 0; d < TR_COUNT_OF(dtypes); d++)
            for (int first = 0; first < N; first += 37) {
                uint32_t a[N] = { 0 }, b[N] = { 0 };
                tr_packed_decode(p, grains, first, N - first, a, dtypes[d]);
                tr_q4_decode(codec_of(p), codes, absmax, first, N - first, b, dtypes[d]);
                assert_memory_equal(a, b, sizeof a);
            }
    }
}

static void pieces_have_the_bytes_of_the_whole(void **state)
{
    float x[N];
    char grains[N_GRAINS * 36], pieces[N_GRAINS * 36];
    (void)state;
    fill(x);
    tr_packed_encode(TR_PACKED_NF4, x, N, grains);
    for (int at = 0; at < N; at += 128)
        tr_packed_encode(TR_PACKED_NF4, x + at, tr_min64(128, N - at), pieces + tr_packed_bytes(TR_PACKED_NF4, at));
    assert_memory_equal(grains, pieces, sizeof grains);
}

static void scales_can_be_replaced(void **state)
{
    float x[N], scales[N_GRAINS], other[N_GRAINS], y[N], z[N];
    char grains[N_GRAINS * 36];
    (void)state;
    fill(x);
    tr_packed_encode(TR_PACKED_NF4, x, N, grains);
    tr_packed_decode(TR_PACKED_NF4, grains, 0, N, y, TR_F32);
    tr_packed_get_scales(TR_PACKED_NF4, grains, N_GRAINS, scales);
    for (int i = 0; i < N_GRAINS; i++)
        scales[i] *= 2;
    tr_packed_set_scales(TR_PACKED_NF4, grains, N_GRAINS, scales);
    tr_packed_get_scales(TR_PACKED_NF4, grains, N_GRAINS, other);
    assert_memory_equal(scales, other, sizeof scales);
    tr_packed_decode(TR_PACKED_NF4, grains, 0, N, z, TR_F32);
    for (int i = 0; i < N; i++)
        assert_true(z[i] == 2 * y[i]);
}

/* Three bits of mantissa: at most 2^-4 of an element, and 2^-10 of a grain's scale near zero. */
static void eight_bits_are_near(void **state)
{
    float x[N], y[N], scales[3];
    char grains[3 * 132];
    (void)state;
    fill(x);
    assert_int_equal(tr_packed_bytes(TR_PACKED_FP8, N), sizeof grains);
    tr_packed_encode(TR_PACKED_FP8, x, N, grains);
    tr_packed_get_scales(TR_PACKED_FP8, grains, 3, scales);
    tr_packed_decode(TR_PACKED_FP8, grains, 0, N, y, TR_F32);
    for (int i = 0; i < N; i++)
        assert_true(fabsf(y[i] - x[i]) <= 0x1p-4f * fabsf(x[i]) + 0x1p-10f * scales[i / 128]);
    memset(x, 0, sizeof x);
    tr_packed_encode(TR_PACKED_FP8, x, N, grains);
    tr_packed_decode(TR_PACKED_FP8, grains, 0, N, y, TR_F32);
    assert_memory_equal(x, y, sizeof x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(grains_decode_as_planes_do),
        cmocka_unit_test(pieces_have_the_bytes_of_the_whole),
        cmocka_unit_test(scales_can_be_replaced),
        cmocka_unit_test(eight_bits_are_near),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
