/* Conversions are exact one way and round to nearest even the other way: checked at every representable 16-bit value
 * and at every midpoint between two neighbours, which is where rounding decides. No tolerances. */
#include "base/base.h"
#include <setjmp.h>
#include <stdarg.h>
#include <math.h>
#include <cmocka.h>

static void names_parse_both_ways(void **state)
{
    (void)state;
    for (unsigned i = 0; i < TR_DTYPE_COUNT; i++) {
        enum tr_dtype d = (enum tr_dtype)i, got = TR_DTYPE_COUNT;
        assert_int_equal(tr_dtype_parse(tr_dtype_name(d), &got), TR_OK);
        assert_int_equal(got, d);
        assert_int_equal(tr_dtype_parse(tr_dtype_safetensors(d), &got), TR_OK);
        assert_int_equal(got, d);
    }
    enum tr_dtype got = TR_U8;
    assert_int_equal(tr_dtype_parse("float12", &got), TR_USAGE);
    assert_int_equal(got, TR_U8);
    assert_non_null(strstr(tr_error_text(), "bfloat16"));
    assert_int_equal(tr_dtype_bytes(TR_BF16), 2);
    assert_int_equal(tr_dtype_bytes(TR_F64), 8);
}

/* Codecs of all types that are not raw agree with the scalar functions, and narrow what they widened to itself. */
static void traits_convert_every_code(void **state)
{
    (void)state;
    const enum tr_dtype narrow[] = { TR_BF16, TR_F16, TR_E4M3, TR_E5M2 };
    for (size_t k = 0; k < TR_COUNT_OF(narrow); k++) {
        const struct tr_dtype_traits *t = tr_dtype_traits(narrow[k]);
        for (uint32_t code = 0; code < 1u << t->bits; code++) {
            uint8_t one = (uint8_t)code;
            uint16_t two = (uint16_t)code, back = 0;
            float x = 0, y = 0;
            t->to_f32(t->bits == 8 ? (void *)&one : (void *)&two, &x, 1);
            t->from_f32(&x, &back, 1);
            if (isfinite(x))
                assert_int_equal(back, code);
            tr_convert(&back, narrow[k], &y, TR_F32, 1);
            assert_true(isnan(x) ? isnan(y) : isinf(x) || x == y);
        }
    }
    assert_null(tr_dtype_traits(TR_U8)->to_f32);
    assert_null(tr_dtype_traits(TR_I64)->from_f32);
    float third = 1.0f / 3;
    uint8_t small = 0;
    tr_convert(&third, TR_F32, &small, TR_E4M3, 1);
    assert_int_equal(small, tr_e4m3_of_f32(third));
}

/* Blocks of a quantised format count from the first element, and the last may be short. */
static void storage_formats_count_the_bytes_of_their_planes(void **state)
{
    (void)state;
    const struct tr_storage_format blocks = {
        "blocks",
        64,
        4,
        { { "", TR_U8, 2 }, { ".absmax", TR_F32, 64 }, { ".nested", TR_U8, 16384 }, { ".offset", TR_F32, 0 } }
    };
    const int64_t n = 16384 + 65; /* a second nested block, with one whole block and one of a single element */
    const size_t want[] = { 8192 + 33, (256 + 2) * sizeof(float), 2, sizeof(float) };
    size_t sum = 0;
    for (int i = 0; i < blocks.n_planes; i++) {
        assert_int_equal(tr_plane_bytes(&blocks.plane[i], n), want[i]);
        sum += want[i];
    }
    assert_int_equal(tr_storage_bytes(&blocks, n), sum);
}

typedef float widen_fn(uint16_t);
typedef uint16_t narrow_fn(float);

static void check_rounding(widen_fn *widen, narrow_fn *narrow, uint16_t infinity)
{
    for (uint32_t i = 0; i < infinity; i++) {
        uint16_t h = (uint16_t)i, next = (uint16_t)(i + 1), even = h & 1 ? next : h;
        float a = widen(h);
        assert_int_equal(narrow(a), h);
        assert_int_equal(narrow(-a), h | 0x8000);
        /* Beyond the largest finite value the next step would be as wide as the one before it. */
        double b = next == infinity ? 2 * (double)a - (double)widen((uint16_t)(i - 1)) : (double)widen(next);
        float middle = (float)(((double)a + b) / 2); /* exact: one more bit than the 16-bit type has */
        assert_int_equal(narrow(middle), even);
        assert_int_equal(narrow(-middle), even | 0x8000);
        assert_int_equal(narrow(nextafterf(middle, INFINITY)), next);
        assert_int_equal(narrow(nextafterf(middle, 0)), h);
    }
    assert_int_equal(narrow(INFINITY), infinity);
    assert_int_equal(narrow(-INFINITY), infinity | 0x8000);
    assert_true(isnan(widen(narrow(NAN))));
    for (uint32_t i = infinity + 1u; i < 0x8000; i++)
        assert_true(isnan(widen((uint16_t)i)) && isnan(widen(narrow(widen((uint16_t)i)))));
}

/* Inline functions of the header need an address. */
static float widen_bf16(uint16_t h)
{
    return tr_f32_of_bf16(h);
}

static uint16_t narrow_bf16(float f)
{
    return tr_bf16_of_f32(f);
}

static void bf16_rounds_to_nearest_even_everywhere(void **state)
{
    (void)state;
    check_rounding(widen_bf16, narrow_bf16, 0x7f80);
    uint32_t bits = 0x7f800001u; /* a NaN whose payload would be cut to infinity */
    float nan;
    memcpy(&nan, &bits, sizeof nan);
    assert_true(isnan(widen_bf16(narrow_bf16(nan))));
}

static void f16_rounds_to_nearest_even_everywhere(void **state)
{
    (void)state;
    check_rounding(tr_f32_of_f16, tr_f16_of_f32, 0x7c00);
    assert_true(tr_f32_of_f16(0x3c00) == 1.0f && tr_f32_of_f16(0x0001) == 0x1p-24f && tr_f32_of_f16(0x7bff) == 65504);
}

static void f64_to_16_bits_rounds_once(void **state)
{
    (void)state;
    /* Just above a midpoint by less than a float can hold: a float in between would fall on the tie and go to even. */
    double above[2] = { 1 + 0x1p-8 + 0x1p-40, -(1 + 0x1p-8 + 0x1p-40) };
    uint16_t h[2];
    tr_convert(above, TR_F64, h, TR_BF16, 2);
    assert_int_equal(h[0], 0x3f81);
    assert_int_equal(h[1], 0xbf81);
    double below[2] = { 1 + 3 * 0x1p-8 - 0x1p-40, 1e300 };
    tr_convert(below, TR_F64, h, TR_BF16, 2);
    assert_int_equal(h[0], 0x3f81);
    assert_int_equal(h[1], 0x7f80);
    double half[2] = { 1 + 0x1p-11 + 0x1p-40, 65520 - 0x1p-20 };
    tr_convert(half, TR_F64, h, TR_F16, 2);
    assert_int_equal(h[0], 0x3c01);
    assert_int_equal(h[1], 0x7bff);
}

static void convert_agrees_with_the_scalar_functions_for_every_pair(void **state)
{
    (void)state;
    enum { N = 700 }; /* more than two blocks and a rest */
    static float f32[N], f32_back[N];
    static double f64[N];
    static uint16_t bf16[N], f16[N], other[N];
    for (int i = 0; i < N; i++)
        f32[i] = (float)(i - 350) * 0.37f;
    tr_convert(f32, TR_F32, bf16, TR_BF16, N);
    tr_convert(f32, TR_F32, f16, TR_F16, N);
    tr_convert(f32, TR_F32, f64, TR_F64, N);
    for (int i = 0; i < N; i++) {
        assert_int_equal(bf16[i], tr_bf16_of_f32(f32[i]));
        assert_int_equal(f16[i], tr_f16_of_f32(f32[i]));
        assert_true(f64[i] == (double)f32[i]);
    }
    tr_convert(f64, TR_F64, f32_back, TR_F32, N);
    assert_memory_equal(f32, f32_back, sizeof f32);
    tr_convert(f64, TR_F64, other, TR_BF16, N);
    assert_memory_equal(other, bf16, sizeof bf16);
    tr_convert(bf16, TR_BF16, other, TR_F16, N);
    for (int i = 0; i < N; i++)
        assert_int_equal(other[i], tr_f16_of_f32(tr_f32_of_bf16(bf16[i])));
    tr_convert(bf16, TR_BF16, bf16, TR_BF16, N); /* in place, same type */
    tr_convert(NULL, TR_F32, NULL, TR_BF16, 0);
}

static void e4m3_rounds_to_the_nearest_and_keeps_every_code(void **state)
{
    (void)state;
    for (int b = 0; b < 256; b++)
        if ((b & 0x7f) != 0x7f)
            assert_int_equal(tr_e4m3_of_f32(tr_f32_of_e4m3((uint8_t)b)), b);
    assert_true(tr_f32_of_e4m3(0x7e) == 448.0f && tr_f32_of_e4m3(0x01) == 0x1p-9f && tr_f32_of_e4m3(0x38) == 1.0f);
    assert_int_equal(tr_e4m3_of_f32(1e9f), 0x7e); /* no infinity: the largest */
    assert_int_equal(tr_e4m3_of_f32(-INFINITY), 0xfe);
    assert_int_equal(tr_e4m3_of_f32(NAN) & 0x7f, 0x7f);
    for (int b = 0; b < 0x7e; b++) { /* halfway goes to the even code, a little more to the next */
        float x = tr_f32_of_e4m3((uint8_t)b), next = tr_f32_of_e4m3((uint8_t)(b + 1)), half = (x + next) / 2;
        assert_int_equal(tr_e4m3_of_f32(half), b + (b & 1));
        assert_int_equal(tr_e4m3_of_f32(nextafterf(half, next)), b + 1);
        assert_int_equal(tr_e4m3_of_f32(nextafterf(half, 0)), b);
    }
}

static void e5m2_rounds_to_the_nearest_and_keeps_every_code(void **state)
{
    (void)state;
    for (int b = 0; b < 256; b++)
        if ((b & 0x7f) < 0x7c)
            assert_int_equal(tr_e5m2_of_f32(tr_f32_of_e5m2((uint8_t)b)), b);
    assert_true(tr_f32_of_e5m2(0x7b) == TR_E5M2_MOST && tr_f32_of_e5m2(0x01) == 0x1p-16f &&
                tr_f32_of_e5m2(0x3c) == 1.0f);
    assert_int_equal(tr_e5m2_of_f32(1e9f), 0x7b);
    assert_int_equal(tr_e5m2_of_f32(-INFINITY), 0xfb);
    assert_int_equal(tr_e5m2_of_f32(NAN) & 0x7f, 0x7f);
    for (int b = 0; b < 0x7b; b++) {
        float x = tr_f32_of_e5m2((uint8_t)b), next = tr_f32_of_e5m2((uint8_t)(b + 1)), half = (x + next) / 2;
        assert_int_equal(tr_e5m2_of_f32(half), b + (b & 1));
        assert_int_equal(tr_e5m2_of_f32(nextafterf(half, next)), b + 1);
        assert_int_equal(tr_e5m2_of_f32(nextafterf(half, 0)), b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_parse_both_ways),
        cmocka_unit_test(traits_convert_every_code),
        cmocka_unit_test(storage_formats_count_the_bytes_of_their_planes),
        cmocka_unit_test(bf16_rounds_to_nearest_even_everywhere),
        cmocka_unit_test(f16_rounds_to_nearest_even_everywhere),
        cmocka_unit_test(f64_to_16_bits_rounds_once),
        cmocka_unit_test(convert_agrees_with_the_scalar_functions_for_every_pair),
        cmocka_unit_test(e4m3_rounds_to_the_nearest_and_keeps_every_code),
        cmocka_unit_test(e5m2_rounds_to_the_nearest_and_keeps_every_code),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
