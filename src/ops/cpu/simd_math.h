/* simd_math.h - exp, tanh, the normal distribution and Philox on the vectors of simd.h, which includes this.
 *
 * Polynomials are minimax fits (Remez) on the stated interval. No tables: a gather costs more than the terms it saves.
 */
#ifndef TR_OPS_CPU_SIMD_MATH_H
#define TR_OPS_CPU_SIMD_MATH_H

#include "ops/cpu/simd.h"

/* exp within 2 ulp: x = n ln2 + r, |r| <= ln2/2, exp r = 1 + r + r^2 q(r), q a minimax fit (error 3e-9).
 * Results below the smallest normal number are 0, arguments above 88.37 count as 88.37, NaN stays. */
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

/* Within 3 ulp: an odd polynomial below 0.625, where the form on exp cancels. */
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

/* The low half of each element of a, times m. This is one instruction, which gcc does not find by itself. */
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

/* tr_philox (10 rounds) or tr_philox7 for a vector of low counters: word k of each counter is in the low half of w[k];
 * the high halves are undefined. */
static inline void v_philox(int n_rounds, uint64_t key, uint64_t hi, vl lo, vl w[4])
{
    uint64_t k0 = key, k1 = key >> 32;
    vl c0 = lo, c1 = lo >> 32, c2 = hi + (vl){ 0 }, c3 = (hi >> 32) + (vl){ 0 };
    for (int round = 0; round < n_rounds; round++) {
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
