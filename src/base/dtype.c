/* dtype.c - element type names and conversions.
 *
 * Every narrowing rounds once, to nearest even: float64 goes to a 16-bit type through a float rounded to odd, which
 * keeps the sticky bit that plain double rounding loses. Rejected: a table of functions for all pairs; a codec for each
 * type and a block buffer cover all of them.
 */
#include "base/dtype.h"
#include "base/str.h"
#include "base/banned.h"
#include <math.h>

static float f32_of_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static uint32_t bits_of_f32(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

float tr_f32_of_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t magnitude = h & 0x7fffu;
    if (magnitude >= 0x7c00u) /* infinity or NaN */
        return f32_of_bits(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
    if (magnitude < 0x400u) /* subnormal: units of 2^-24, exact in float */
        return f32_of_bits(sign | bits_of_f32((float)magnitude * 0x1p-24f));
    return f32_of_bits(sign | ((magnitude << 13) + ((127u - 15u) << 23)));
}

uint16_t tr_f16_of_f32(float f)
{
    uint32_t u = bits_of_f32(f);
    uint32_t sign = u >> 16 & 0x8000u;
    u &= 0x7fffffffu;
    if (u > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | (u >> 13 & 0x3ffu)); /* quiet NaN */
    if (u >= 0x47800000u)
        return (uint16_t)(sign | 0x7c00u); /* 65536 and above */
    if (u < 0x38800000u)                   /* below 2^-14: one unit of 0.5f is 2^-24, so the addition rounds for us */
        return (uint16_t)(sign | (bits_of_f32(f32_of_bits(u) + 0.5f) - 0x3f000000u));
    u += 0xfffu + (u >> 13 & 1u); /* may carry into infinity: right from 65520 on */
    return (uint16_t)(sign | (u - ((127u - 15u) << 23)) >> 13);
}

/* Truncates, then sets the last bit if anything was cut: a later rounding to fewer bits is then the only one. */
static float f32_of_f64_odd(double d)
{
    float f = (float)d;
    if ((double)f == d || d != d)
        return f;
    uint32_t u = bits_of_f32(f);
    double away = f < 0 ? d - (double)f : (double)f - d; /* > 0: the cast went away from zero */
    if (away > 0)
        u--;
    return f32_of_bits(u | 1u);
}

float tr_f32_of_e4m3(uint8_t b)
{
    int exponent = b >> 3 & 15, mantissa = b & 7;
    float x = exponent ? ldexpf((float)(8 + mantissa), exponent - 10) : ldexpf((float)mantissa, -9);
    if ((b & 0x7f) == 0x7f)
        x = NAN;
    return b & 0x80 ? -x : x;
}

float tr_f32_of_e5m2(uint8_t b)
{
    return tr_f32_of_f16((uint16_t)(b << 8));
}

/* To the nearest of `n_bits` of mantissa, halfway to the even one; least: log2 of the smallest number. */
static uint8_t float8_of_f32(float f, int n_bits, int least, float most, uint8_t most_code)
{
    uint8_t sign = signbit(f) ? 0x80 : 0;
    int exponent = 0;
    if (isnan(f))
        return sign | 0x7f;
    float x = fabsf(f);
    if (x == 0.0f)
        return sign;
    if (x >= most)
        return sign | most_code;
    (void)frexpf(x, &exponent);                                               /* x = 0.1... * 2^exponent */
    int unit = exponent - n_bits - 1 < least ? least : exponent - n_bits - 1; /* log2 of the spacing there */
    int n = (int)nearbyintf(ldexpf(x, -unit));
    return (uint8_t)(sign | (n + (unit - least) * (1 << n_bits))); /* a carry goes into the exponent by itself */
}

uint8_t tr_e4m3_of_f32(float f)
{
    return float8_of_f32(f, 3, -9, TR_E4M3_MOST, 0x7e);
}

uint8_t tr_e5m2_of_f32(float f)
{
    return float8_of_f32(f, 2, -16, TR_E5M2_MOST, 0x7b);
}

/* ---- traits ---- */

#define CODEC(name, type, widen, narrow)                                                                               \
    static void name##_to_f32(const void *src, float *dst, size_t n)                                                   \
    {                                                                                                                  \
        for (size_t i = 0; i < n; i++)                                                                                 \
            dst[i] = widen(((const type *)src)[i]);                                                                    \
    }                                                                                                                  \
    static void name##_from_f32(const float *src, void *dst, size_t n)                                                 \
    {                                                                                                                  \
        for (size_t i = 0; i < n; i++)                                                                                 \
            ((type *)dst)[i] = narrow(src[i]);                                                                         \
    }
CODEC(f32, float, , )
CODEC(bf16, uint16_t, tr_f32_of_bf16, tr_bf16_of_f32)
CODEC(f16, uint16_t, tr_f32_of_f16, tr_f16_of_f32)
CODEC(f64, double, (float), (double))
CODEC(e5m2, uint8_t, tr_f32_of_e5m2, tr_e5m2_of_f32)
CODEC(e4m3, uint8_t, tr_f32_of_e4m3, tr_e4m3_of_f32)
#undef CODEC
#define raw_to_f32   NULL
#define raw_from_f32 NULL

static const struct tr_dtype_traits rows[] = {
#define X(id, bits, st_name, name, codec) { name, st_name, bits, codec##_to_f32, codec##_from_f32 },
    TR_DTYPE_LIST(X)
#undef X
};
_Static_assert(TR_COUNT_OF(rows) == TR_DTYPE_COUNT, "one row a dtype");

const struct tr_dtype_traits *tr_dtype_traits(enum tr_dtype d)
{
    TR_BUG_ON((unsigned)d >= TR_DTYPE_COUNT);
    return &rows[d];
}

size_t tr_dtype_bytes(enum tr_dtype d)
{
    return tr_dtype_traits(d)->bits / 8;
}

const char *tr_dtype_name(enum tr_dtype d)
{
    return tr_dtype_traits(d)->name;
}

const char *tr_dtype_safetensors(enum tr_dtype d)
{
    return tr_dtype_traits(d)->st_name;
}

enum tr_status tr_dtype_parse(const char *name, enum tr_dtype *out)
{
    struct tr_str legal = { 0 };
    for (unsigned d = 0; d < TR_DTYPE_COUNT; d++) {
        if (strcmp(name, rows[d].name) == 0 || strcmp(name, rows[d].st_name) == 0) {
            *out = (enum tr_dtype)d;
            tr_str_release(&legal);
            return TR_OK;
        }
        tr_str_addf(&legal, "%s%s", d ? ", " : "", rows[d].name);
    }
    char shown[64];
    enum tr_status st = tr_fail(TR_USAGE, "dtype \"%s\" is not one of %s", tr_escape(name, shown, sizeof shown),
                                tr_str_ok(&legal) ? legal.p : "the known types");
    tr_str_release(&legal);
    return st;
}

void tr_convert(const void *src, enum tr_dtype src_dtype, void *dst, enum tr_dtype dst_dtype, size_t n)
{
    const struct tr_dtype_traits *from = tr_dtype_traits(src_dtype), *to = tr_dtype_traits(dst_dtype);
    TR_BUG_ON(!from->to_f32 || !to->from_f32);
    if (n == 0)
        return;
    if (src_dtype == dst_dtype) {
        memmove(dst, src, n * tr_dtype_bytes(src_dtype));
        return;
    }
    if (dst_dtype == TR_F32) {
        from->to_f32(src, dst, n);
        return;
    }
    if (src_dtype == TR_F32) {
        to->from_f32(src, dst, n);
        return;
    }
    float block[256];
    for (size_t at = 0; at < n; at += TR_COUNT_OF(block)) {
        size_t n_now = n - at < TR_COUNT_OF(block) ? n - at : TR_COUNT_OF(block);
        if (src_dtype == TR_F64)
            for (size_t i = 0; i < n_now; i++)
                block[i] = f32_of_f64_odd(((const double *)src)[at + i]);
        else
            from->to_f32((const char *)src + at * tr_dtype_bytes(src_dtype), block, n_now);
        to->from_f32(block, (char *)dst + at * tr_dtype_bytes(dst_dtype), n_now);
    }
}

/* ---- storage formats ---- */

size_t tr_plane_bytes(const struct tr_plane *p, int64_t n)
{
    int64_t count = p->per == 0 ? 1 : (n + p->per - 1) / p->per;
    return (size_t)count * tr_dtype_bytes(p->dtype);
}

size_t tr_storage_bytes(const struct tr_storage_format *f, int64_t n)
{
    size_t sum = 0;
    for (int i = 0; i < f->n_planes; i++)
        sum += tr_plane_bytes(&f->plane[i], n);
    return sum;
}
