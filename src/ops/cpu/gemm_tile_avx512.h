/* gemm_tile_avx512.h - the 14 x 32 tile of the matrix product in 28 registers, for two files that differ in the
 * instruction: fused multiply-adds of floats, and dot products of pairs of bfloat16.
 *
 * The file that includes this defines ISA (its target) and multiply_add(x, b, sum). A word is 32 bits: a float, or two
 * bfloat16 that are neighbours along K.
 */
#ifndef TR_OPS_CPU_GEMM_TILE_AVX512_H
#define TR_OPS_CPU_GEMM_TILE_AVX512_H

#include <assert.h>
#include <immintrin.h>

enum { MR = 14, HALF = 7, NR = 32, LANES = 16, STEPS = 4 };

static inline __mmask16 first_lanes(int64_t n)
{
    return (__mmask16)(n >= LANES ? 0xffffu : n <= 0 ? 0u : (1u << n) - 1u);
}

/* One step of k for both vectors of every row, with packed operands. */
ISA TR_FORCE_INLINE void step_of(__m512 *lo, __m512 *hi, const float *a, const float *b, const int n_rows)
{
    __m512 b_lo = _mm512_loadu_ps(b), b_hi = _mm512_loadu_ps(b + LANES);
    TR_UNROLL
    for (int r = 0; r < n_rows; r++) {
        __m512 x = _mm512_set1_ps(a[r]);
        lo[r] = multiply_add(x, b_lo, lo[r]);
        hi[r] = multiply_add(x, b_hi, hi[r]);
    }
}

/* At most 16 columns: one vector for each row. */
ISA TR_FORCE_INLINE void narrow_tile_of(const struct tr_gemm_tile *t, const int n_rows)
{
    __m512 sum[MR];
    const __mmask16 in = first_lanes(t->n_cols);
    const float *a = t->a, *b = t->b, *a_low = a + HALF * t->a_row;
    const int64_t a_row = t->a_row, a_step = t->a_step, b_step = t->b_step;
    TR_UNROLL
    for (int r = 0; r < n_rows; r++)
        sum[r] = _mm512_setzero_ps();
    for (int64_t k = t->k; k > 0; k--, a += a_step, a_low += a_step, b += b_step) {
        __m512 b_k = _mm512_loadu_ps(b);
        TR_UNROLL
        for (int r = 0; r < n_rows; r++)
            sum[r] = multiply_add(_mm512_set1_ps(r < HALF ? a[r * a_row] : a_low[(r - HALF) * a_row]), b_k, sum[r]);
    }
    __m512 bias = t->bias ? _mm512_maskz_loadu_ps(in, t->bias) : _mm512_setzero_ps();
    TR_UNROLL
    for (int r = 0; r < n_rows; r++) {
        float *c = t->c + r * t->ldc;
        sum[r] = t->load_c ? _mm512_add_ps(sum[r], _mm512_maskz_loadu_ps(in, c)) : sum[r];
        sum[r] = t->bias ? _mm512_add_ps(sum[r], bias) : sum[r];
        _mm512_mask_storeu_ps(c, in, sum[r]);
    }
}

ISA TR_FORCE_INLINE void tile_of(const struct tr_gemm_tile *t, const int n_rows, const bool is_packed)
{
    __m512 lo[MR], hi[MR];
    TR_UNROLL
    for (int r = 0; r < n_rows; r++) {
        lo[r] = hi[r] = _mm512_setzero_ps();
        /* The tile of C is read only at the end: prefetch it during the arithmetic. */
        _mm_prefetch((const char *)(t->c + r * t->ldc), _MM_HINT_T0);
        _mm_prefetch((const char *)(t->c + r * t->ldc + LANES), _MM_HINT_T0);
    }
    const float *a = t->a, *b = t->b;
    int64_t k = t->k;
    if (is_packed) { /* strides are constants: no address arithmetic between the multiplications */
        for (; k >= STEPS; k -= STEPS, a += STEPS * n_rows, b += STEPS * NR)
            TR_UNROLL
        for (int s = 0; s < STEPS; s++)
            step_of(lo, hi, a + s * n_rows, b + s * NR, n_rows);
        for (; k > 0; k--, a += n_rows, b += NR)
            step_of(lo, hi, a, b, n_rows);
    } else {
        const int64_t a_row = t->a_row, a_step = t->a_step, b_step = t->b_step;
        const float *a_low = a + HALF * a_row; /* two bases: 14 row offsets do not fit in registers */
        for (; k > 0; k--, a += a_step, a_low += a_step, b += b_step) {
            __m512 b_lo = _mm512_loadu_ps(b), b_hi = _mm512_loadu_ps(b + LANES);
            TR_UNROLL
            for (int r = 0; r < n_rows; r++) {
                __m512 x = _mm512_set1_ps(r < HALF ? a[r * a_row] : a_low[(r - HALF) * a_row]);
                lo[r] = multiply_add(x, b_lo, lo[r]);
                hi[r] = multiply_add(x, b_hi, hi[r]);
            }
        }
    }
    __mmask16 in_lo = first_lanes(t->n_cols), in_hi = first_lanes(t->n_cols - LANES);
    if (t->load_c) {
        TR_UNROLL
        for (int r = 0; r < n_rows; r++) {
            lo[r] = _mm512_add_ps(lo[r], _mm512_maskz_loadu_ps(in_lo, t->c + r * t->ldc));
            hi[r] = _mm512_add_ps(hi[r], _mm512_maskz_loadu_ps(in_hi, t->c + r * t->ldc + LANES));
        }
    }
    if (t->bias) {
        __m512 bias_lo = _mm512_maskz_loadu_ps(in_lo, t->bias), bias_hi = _mm512_maskz_loadu_ps(in_hi, t->bias + LANES);
        TR_UNROLL
        for (int r = 0; r < n_rows; r++) {
            lo[r] = _mm512_add_ps(lo[r], bias_lo);
            hi[r] = _mm512_add_ps(hi[r], bias_hi);
        }
    }
    TR_UNROLL
    for (int r = 0; r < n_rows; r++) {
        _mm512_mask_storeu_ps(t->c + r * t->ldc, in_lo, lo[r]);
        _mm512_mask_storeu_ps(t->c + r * t->ldc + LANES, in_hi, hi[r]);
    }
}

#define ROWS(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14)
#define X(n)                                                                                                           \
    ISA static void tile_##n(const struct tr_gemm_tile *t)                                                             \
    {                                                                                                                  \
        if (t->n_cols <= LANES)                                                                                        \
            narrow_tile_of(t, n);                                                                                      \
        else if (t->a_row == 1 && t->a_step == n && t->b_step == NR)                                                   \
            tile_of(t, n, true);                                                                                       \
        else                                                                                                           \
            tile_of(t, n, false);                                                                                      \
    }
ROWS(X)
#undef X

static void tile(const struct tr_gemm_tile *t)
{
#define X(n) tile_##n,
    static void (*const of_rows[])(const struct tr_gemm_tile *) = { ROWS(X) };
#undef X
    static_assert(TR_COUNT_OF(of_rows) == MR, "one tile function for every number of rows");
    of_rows[t->n_rows - 1](t);
}

#endif
