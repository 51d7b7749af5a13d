/* simd.h - vectors of TR_LANES floats for the fast kernels, on the compilers' vector extension.
 *
 * A kernel file is compiled once per instruction set (fast_avx2.c, fast_avx512.c) with that set's width, and gives the
 * same bits on all of them: every lane runs the same IEEE operations, nothing is contracted to fma, and sums use
 * TR_SUM_LANES partial sums whatever the width. Rejected: one 16-lane type everywhere (gcc keeps vectors wider than the
 * machine's in memory); intrinsics (three copies of each kernel). Loads and stores take the element type at run time:
 * a branch that is always predicted costs nothing beside the memory. Loops over arrays of vectors carry an unroll
 * pragma: unrolled, the array lives in registers.
 */
#ifndef TR_OPS_CPU_SIMD_H
#define TR_OPS_CPU_SIMD_H

#include "ops/cpu/fast.h"
#if defined(__SSE2__)
#include <immintrin.h>
#endif

#ifndef TR_LANES
#define TR_LANES 4
#endif
#define TR_SUM_LANES 32
#define TR_SUM_VECS  (TR_SUM_LANES / TR_LANES)

typedef float vf __attribute__((vector_size(TR_LANES * 4)));
typedef int32_t vi __attribute__((vector_size(TR_LANES * 4)));
typedef uint32_t vu __attribute__((vector_size(TR_LANES * 4)));
typedef uint16_t vh __attribute__((vector_size(TR_LANES * 2)));
typedef uint64_t vl __attribute__((vector_size(TR_LANES * 4))); /* half as many lanes */

/* A run of F32 or BF16 elements; p NULL: an absent view. */
struct run {
    char *p;
    bool is_bf16;
};

static inline struct run run_at(const struct tr_view *v, int64_t row, int64_t col)
{
    bool is_bf16 = v->dtype == TR_BF16;
    return (struct run){ v->data ? (char *)v->data + (row * v->ld + col) * (is_bf16 ? 2 : 4) : NULL, is_bf16 };
}

static inline vf v_set(float f)
{
    return f - (vf){ 0 };
}

static inline vf v_select(vi mask, vf yes, vf no)
{
    return (vf)((mask & (vi)yes) | (~mask & (vi)no));
}

static inline vf v_abs(vf x)
{
    return (vf)((vu)x & 0x7fffffffu);
}

static inline vf v_sqrt(vf x)
{
    float lane[TR_LANES];
    memcpy(lane, &x, sizeof lane);
    for (int i = 0; i < TR_LANES; i++)
        lane[i] = __builtin_sqrtf(lane[i]);
    memcpy(&x, lane, sizeof lane);
    return x;
}

static inline vf v_of_bf16(vh h)
{
#if TR_LANES == 16 /* gcc would convert two halves and join them */
    return (vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)h), 16);
#else
    return (vf)(__builtin_convertvector(h, vu) << 16);
#endif
}

static inline vh v_to_bf16(vf f) /* as tr_bf16_of_f32 */
{
    vu u = (vu)f;
    vi is_nan = f != f;
    vu rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    vu quiet = (u >> 16) | 0x40u;
    return __builtin_convertvector(((vu)is_nan & quiet) | (~(vu)is_nan & rounded), vh);
}

static inline vf v_load_tail(struct run r, int64_t i, int64_t n, float fill)
{
    float lane[TR_LANES];
    vf f;
    for (int l = 0; l < TR_LANES; l++) {
        lane[l] = fill;
        if (i + l < n)
            lane[l] = r.is_bf16 ? tr_f32_of_bf16(((const uint16_t *)r.p)[i + l]) : ((const float *)r.p)[i + l];
    }
    memcpy(&f, lane, sizeof f);
    return f;
}

/* Elements i .. i + TR_LANES - 1 of a run that ends at n; what lies at or behind the end reads as `fill`. */
static inline vf v_load_or(struct run r, int64_t i, int64_t n, float fill)
{
    vf f;
    if (TR_UNLIKELY(n - i < TR_LANES))
        return v_load_tail(r, i, n, fill);
    if (r.is_bf16) {
        vh h;
        memcpy(&h, r.p + i * 2, sizeof h);
        return v_of_bf16(h);
    }
    memcpy(&f, r.p + i * 4, sizeof f);
    return f;
}

static inline vf v_load(struct run r, int64_t i, int64_t n)
{
    return v_load_or(r, i, n, 0.0f);
}

static inline void v_store_tail(struct run r, int64_t i, int64_t n, vf f)
{
    float lane[TR_LANES];
    memcpy(lane, &f, sizeof lane);
    for (int l = 0; l < TR_LANES && i + l < n; l++) {
        if (r.is_bf16)
            ((uint16_t *)r.p)[i + l] = tr_bf16_of_f32(lane[l]);
        else
            ((float *)r.p)[i + l] = lane[l];
    }
}

static inline void v_store(struct run r, int64_t i, int64_t n, vf f)
{
    if (TR_UNLIKELY(n - i < TR_LANES)) {
        v_store_tail(r, i, n, f);
    } else if (r.is_bf16) {
        vh h = v_to_bf16(f);
        memcpy(r.p + i * 2, &h, sizeof h);
    } else {
        memcpy(r.p + i * 4, &f, sizeof f);
    }
}

/* Sum of TR_SUM_LANES partial sums by halves: the same tree for every width. */
static inline float v_sum(vf part[TR_SUM_VECS])
{
    float lane[TR_LANES];
#pragma GCC unroll 16
    for (int h = TR_SUM_VECS / 2; h > 0; h /= 2)
#pragma GCC unroll 16
        for (int i = 0; i < h; i++)
            part[i] += part[i + h];
    memcpy(lane, &part[0], sizeof lane);
#pragma GCC unroll 16
    for (int h = TR_LANES / 2; h > 0; h /= 2)
#pragma GCC unroll 16
        for (int i = 0; i < h; i++)
            lane[i] += lane[i + h];
    return lane[0];
}

/* A stripe of a parameter gradient while rows are added to it: columns col .. end, at most TR_STRIPE. */
struct stripe {
    vf sum[TR_STRIPE / TR_LANES];
};

static inline void stripe_load(struct stripe *s, struct run r, int64_t col, int64_t end, bool is_accumulated)
{
    vf *sum = s->sum;
    for (int64_t j = col; j < end; j += TR_LANES)
        *sum++ = is_accumulated ? v_load(r, j, end) : v_set(0.0f);
}

static inline void stripe_store(const struct stripe *s, struct run r, int64_t col, int64_t end)
{
    const vf *sum = s->sum;
    for (int64_t j = col; j < end; j += TR_LANES)
        v_store(r, j, end, *sum++);
}

static inline float v_factor(const struct tr_call *c) /* attr.scale: 0 = 1 */
{
    return c->attr.scale == 0.0f ? 1.0f : c->attr.scale;
}

/* exp within 2 ulp: x = n ln2 + r, |r| <= ln2/2, exp r = 1 + r + r^2 q(r), q a minimax fit (error 3e-9).
 * 0 below the smallest normal number, 2.4e38 above its argument; NaN stays. */
static inline vf v_exp(vf x)
{
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer, kept in the low bits */
    vi is_zero = x < -87.336540f;
    x = v_select(x > 88.37f, v_set(88.37f), x);
    vf shifted = x * 1.44269504f + magic;
    vf n = shifted - magic;
    vf r = x - n * 0.693359375f + n * 2.12194440e-4f; /* ln2 in two parts: the first product is exact */
    vf q = ((((r * 1.38144670e-3f + 8.36878041e-3f) * r + 4.16683942e-2f) * r + 1.66665201e-1f) * r + 4.99999934e-1f);
    vf y = (q * (r * r) + r) + 1.0f;
    vf power = (vf)(((vu)shifted - 0x4b400000u + 127u) << 23);
    return (vf)(~is_zero & (vi)(y * power));
}

static inline vf v_tanh(vf x)
{
    vf a = v_abs(x), s = x * x;
    vf p = ((((s * -5.71704538e-3f + 2.06505876e-2f) * s - 5.37434982e-2f) * s + 1.33314913e-1f) * s - 3.33332839e-1f);
    vf small = x + x * s * p;
    vf large = 1.0f - 2.0f / (v_exp(a + a) + 1.0f);
    vf with_sign = (vf)((vu)large | ((vu)x & 0x80000000u));
    return v_select(a < 0.625f, small, with_sign);
}

/* The normal distribution: *cdf = P(X < x), *bell = exp(-x^2/2). For |x| < 1: 1/2 + x R(x^2). Beyond, with
 * y = |x| / sqrt 2 and t = 1 / (1 + 0.4 y): erfc(y) = exp(-y^2) t Q(t), so a small tail keeps its relative accuracy.
 * R and Q are minimax fits (relative errors 4e-8 and 6e-8). */
static inline void v_normal(vf x, vf *cdf, vf *bell)
{
    vf a = v_abs(x), s = x * x;
    vf r = (((s * 9.42352437e-5f - 1.16935370e-3f) * s + 9.96719686e-3f) * s - 6.64895827e-2f) * s + 3.98942264e-1f;
    vf t = 1.0f / (a * 0.282842712f + 1.0f);
    vf q = t * 3.98350909e-2f - 1.33334611e-1f;
    q = ((q * t + 6.93487888e-2f) * t + 1.04970873e-1f) * t + 6.78090278e-2f;
    q = ((q * t + 1.98576611e-1f) * t + 2.00534852e-1f) * t + 2.26636825e-1f;
    q = q * t + 2.25622598e-1f;
    *bell = v_exp(s * -0.5f);
    vf tail = *bell * t * q * 0.5f;
    vf outer = v_select(x < 0.0f, tail, 1.0f - tail);
    *cdf = v_select(a < 1.0f, r * x + 0.5f, outer);
}

/* a * m, all below 2^32. One instruction that gcc does not find: it multiplies 64 by 64 bits, at three times the cost.
 */
static inline vl v_mul(vl a, uint32_t m)
{
#if TR_LANES == 16
    return (vl)_mm512_mul_epu32((__m512i)a, _mm512_set1_epi64(m));
#elif TR_LANES == 8
    return (vl)_mm256_mul_epu32((__m256i)a, _mm256_set1_epi64x(m));
#elif defined(__SSE2__)
    return (vl)_mm_mul_epu32((__m128i)a, _mm_set1_epi64x(m));
#else
    return (a & 0xffffffffu) * m;
#endif
}

/* tr_philox for a vector of low counters: word k of each in the low half of w[k]; the high halves are noise. */
static inline void v_philox(uint64_t key, uint64_t hi, vl lo, vl w[4])
{
    uint64_t k0 = key, k1 = key >> 32;
    vl c0 = lo, c1 = lo >> 32, c2 = hi + (vl){ 0 }, c3 = (hi >> 32) + (vl){ 0 };
    for (int round = 0; round < 10; round++) {
        vl p0 = v_mul(c0, 0xD2511F53u), p1 = v_mul(c2, 0xCD9E8D57u);
        c0 = (p1 >> 32) ^ c1 ^ k0;
        c1 = p1;
        c2 = (p0 >> 32) ^ c3 ^ k1;
        c3 = p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    w[0] = c0, w[1] = c1, w[2] = c2, w[3] = c3;
}

static inline vl v_count_from(uint64_t first) /* first, first + 1, ... */
{
    uint64_t lane[TR_LANES / 2];
    vl v;
    for (int l = 0; l < TR_LANES / 2; l++)
        lane[l] = first + (uint64_t)l;
    memcpy(&v, lane, sizeof v);
    return v;
}

#endif
