/* simd.h - vectors of TR_LANES floats for the fast kernels, on the compilers' vector extension.
 *
 * A kernel file is compiled once per instruction set (fast_avx2.c, fast_avx512.c) with that set's width, and gives the
 * same bits on all of them: every lane runs the same IEEE operations, nothing is contracted to fma, and sums use
 * TR_SUM_LANES partial sums whatever the width. Rejected: one 16-lane type everywhere (gcc keeps vectors wider than the
 * machine's in memory); intrinsics (three copies of each kernel). Loads and stores take the element type at run time:
 * a branch that is always predicted costs nothing beside the memory. Loops over arrays of vectors have an unroll
 * pragma, so that the array stays in registers.
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

/* Loads, stores and sums are always inlined: left to gcc, they become calls in a file that grows past its limit, and a
 * step took 2 % longer. The ends of runs are rare and large: they are always called. */
#define TR_NO_INLINE __attribute__((noinline)) static

/* A run of F32, BF16 or F16 elements; p NULL: an absent view. */
struct run {
    char *p;
    bool is_half, is_f16; /* is_half: two bytes an element, BF16 or F16; is_f16: F16 */
};

TR_FORCE_INLINE struct run run_at(const struct tr_view *v, int64_t row, int64_t col)
{
    bool is_half = v->dtype != TR_F32;
    return (struct run){ v->data ? (char *)v->data + (row * v->ld + col) * (is_half ? 2 : 4) : NULL, is_half,
                         v->dtype == TR_F16 };
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
#if TR_LANES == 16 /* gcc would convert two half vectors and join them */
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

/* The machine's conversions where the instruction set has them (every x86 with AVX2); they round as tr_f16_of_f32 does.
 */
static inline vf v_of_f16(vh h)
{
#if TR_LANES == 16
    return (vf)_mm512_cvtph_ps((__m256i)h);
#elif TR_LANES == 8
    return (vf)_mm256_cvtph_ps((__m128i)h);
#else
    vf f;
    for (int l = 0; l < TR_LANES; l++)
        f[l] = tr_f32_of_f16(h[l]);
    return f;
#endif
}

static inline vh v_to_f16(vf f)
{
#if TR_LANES == 16
    return (vh)_mm512_cvtps_ph((__m512)f, _MM_FROUND_TO_NEAREST_INT);
#elif TR_LANES == 8
    return (vh)_mm256_cvtps_ph((__m256)f, _MM_FROUND_TO_NEAREST_INT);
#else
    vh h;
    for (int l = 0; l < TR_LANES; l++)
        h[l] = tr_f16_of_f32(f[l]);
    return h;
#endif
}

TR_NO_INLINE vf v_load_tail(struct run r, int64_t i, int64_t n, float fill)
{
    float lane[TR_LANES];
    vf f;
    for (int l = 0; l < TR_LANES; l++) {
        lane[l] = fill;
        if (i + l < n)
            lane[l] = r.is_f16    ? tr_f32_of_f16(((const uint16_t *)r.p)[i + l])
                      : r.is_half ? tr_f32_of_bf16(((const uint16_t *)r.p)[i + l])
                                  : ((const float *)r.p)[i + l];
    }
    memcpy(&f, lane, sizeof f);
    return f;
}

/* Elements i .. i + TR_LANES - 1 of a run that ends at n; elements at or past the end read as `fill`. */
TR_FORCE_INLINE vf v_load_or(struct run r, int64_t i, int64_t n, float fill)
{
    vf f;
    if (TR_UNLIKELY(n - i < TR_LANES))
        return v_load_tail(r, i, n, fill);
    if (r.is_half) {
        vh h;
        memcpy(&h, r.p + i * 2, sizeof h);
        return r.is_f16 ? v_of_f16(h) : v_of_bf16(h);
    }
    memcpy(&f, r.p + i * 4, sizeof f);
    return f;
}

TR_FORCE_INLINE vf v_load(struct run r, int64_t i, int64_t n)
{
    return v_load_or(r, i, n, 0.0f);
}

TR_NO_INLINE void v_store_tail(struct run r, int64_t i, int64_t n, vf f)
{
    float lane[TR_LANES];
    memcpy(lane, &f, sizeof lane);
    for (int l = 0; l < TR_LANES && i + l < n; l++) {
        if (r.is_half)
            ((uint16_t *)r.p)[i + l] = r.is_f16 ? tr_f16_of_f32(lane[l]) : tr_bf16_of_f32(lane[l]);
        else
            ((float *)r.p)[i + l] = lane[l];
    }
}

TR_FORCE_INLINE void v_store(struct run r, int64_t i, int64_t n, vf f)
{
    if (TR_UNLIKELY(n - i < TR_LANES)) {
        v_store_tail(r, i, n, f);
    } else if (r.is_half) {
        vh h = r.is_f16 ? v_to_f16(f) : v_to_bf16(f);
        memcpy(r.p + i * 2, &h, sizeof h);
    } else {
        memcpy(r.p + i * 4, &f, sizeof f);
    }
}

/* Sum of TR_SUM_LANES partial sums by halves: the same tree for every width. */
TR_FORCE_INLINE float v_sum(vf part[TR_SUM_VECS])
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

/* Lanes a0 b0 a1 b1 ... of the low (high) halves of a and b. */
TR_FORCE_INLINE void v_interleave(vf a, vf b, vf *low, vf *high)
{
#if TR_LANES == 16
    *low = __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    *high = __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
#elif TR_LANES == 8
    *low = __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
    *high = __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
#else
    *low = __builtin_shufflevector(a, b, 0, 4, 1, 5);
    *high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
#endif
}

/* The sums of the lanes of TR_LANES vectors, by halves as in v_sum: lane i is that of x[i]. Two shuffles a vector
 * instead of a way through memory. */
TR_FORCE_INLINE vf v_sum_each(vf x[TR_LANES])
{
#pragma GCC unroll 16
    for (int n = TR_LANES / 2; n > 0; n /= 2)
#pragma GCC unroll 16
        for (int i = 0; i < n; i++) {
            vf low, high;
            v_interleave(x[i], x[i + n], &low, &high);
            x[i] = low + high;
        }
    return x[0];
}

/* The columns [col, end) of a parameter gradient, at most TR_STRIPE, while rows are added to them. */
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

#include "ops/cpu/simd_math.h"

#endif
