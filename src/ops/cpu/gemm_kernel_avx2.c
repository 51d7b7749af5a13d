/* gemm_kernel_avx2.c - the AVX2 + FMA column of the matrix product: a 6 x 16 tile in 12 of 16 registers.
 *
 * The same chain of fused multiply-adds as the AVX-512 tile, so both give the same bits. 16-bit operands are widened
 * while packing; columns past the edge are loaded and stored through masks.
 */
#include "ops/cpu/gemm_impl.h"

#if defined(__x86_64__)
#include <assert.h>
#include <immintrin.h>

#define ISA TR_TARGET("avx2,fma,f16c")

enum { MR = 6, NR = 16, LANES = 8 };

ISA TR_FORCE_INLINE __m256i first_lanes(int64_t n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)tr_min64(n, LANES)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

ISA TR_FORCE_INLINE void tile_of(const struct tr_gemm_tile *t, const int n_rows)
{
    __m256 lo[MR], hi[MR];
    TR_UNROLL
    for (int r = 0; r < n_rows; r++) {
        lo[r] = hi[r] = _mm256_setzero_ps();
        /* The tile of C is read only at the end: prefetch it during the arithmetic. */
        _mm_prefetch((const char *)(t->c + r * t->ldc), _MM_HINT_T0);
        _mm_prefetch((const char *)(t->c + r * t->ldc + LANES), _MM_HINT_T0);
    }
    const float *a = t->a, *b = t->b;
    const int64_t a_row = t->a_row, a_step = t->a_step, b_step = t->b_step;
    for (int64_t k = t->k; k > 0; k--, a += a_step, b += b_step) {
        __m256 b_lo = _mm256_loadu_ps(b), b_hi = _mm256_loadu_ps(b + LANES);
        TR_UNROLL
        for (int r = 0; r < n_rows; r++) {
            __m256 x = _mm256_set1_ps(a[r * a_row]);
            lo[r] = _mm256_fmadd_ps(x, b_lo, lo[r]);
            hi[r] = _mm256_fmadd_ps(x, b_hi, hi[r]);
        }
    }
    __m256i in_lo = first_lanes(t->n_cols), in_hi = first_lanes(t->n_cols - LANES);
    if (t->load_c) {
        TR_UNROLL
        for (int r = 0; r < n_rows; r++) {
            lo[r] = _mm256_add_ps(lo[r], _mm256_maskload_ps(t->c + r * t->ldc, in_lo));
            hi[r] = _mm256_add_ps(hi[r], _mm256_maskload_ps(t->c + r * t->ldc + LANES, in_hi));
        }
    }
    if (t->bias) {
        __m256 bias_lo = _mm256_maskload_ps(t->bias, in_lo), bias_hi = _mm256_maskload_ps(t->bias + LANES, in_hi);
        TR_UNROLL
        for (int r = 0; r < n_rows; r++) {
            lo[r] = _mm256_add_ps(lo[r], bias_lo);
            hi[r] = _mm256_add_ps(hi[r], bias_hi);
        }
    }
    TR_UNROLL
    for (int r = 0; r < n_rows; r++) {
        _mm256_maskstore_ps(t->c + r * t->ldc, in_lo, lo[r]);
        _mm256_maskstore_ps(t->c + r * t->ldc + LANES, in_hi, hi[r]);
    }
}

#define ROWS(X) X(1) X(2) X(3) X(4) X(5) X(6)
#define X(n)                                                                                                           \
    ISA static void tile_##n(const struct tr_gemm_tile *t)                                                             \
    {                                                                                                                  \
        tile_of(t, n);                                                                                                 \
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

ISA TR_FORCE_INLINE __m256 load_half(const uint16_t *p, enum tr_dtype dtype)
{
    __m128i h = _mm_loadu_si128((const __m128i *)(const void *)p);
    if (dtype == TR_F16)
        return _mm256_cvtph_ps(h);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

/* Loads the first n <= 8 of 8 lanes; the others are zero, and their memory is not read. */
ISA TR_FORCE_INLINE __m256 load_some(const void *src, enum tr_dtype dtype, int64_t at, int64_t n)
{
    const float *f = (const float *)src + at;
    const uint16_t *h = (const uint16_t *)src + at;
    if (dtype == TR_F32)
        return n >= LANES ? _mm256_loadu_ps(f) : _mm256_maskload_ps(f, first_lanes(n));
    if (n >= LANES)
        return load_half(h, dtype);
    uint16_t edge[LANES] = { 0 };
    for (int64_t i = 0; i < n; i++)
        edge[i] = h[i];
    return load_half(edge, dtype);
}

/* The loop over k is outside, that over panels inside, so src is read along its rows, whole pages at a time. */
ISA static void pack_rows(const struct tr_gemm_pack *p)
{
    for (int64_t k = 0; k < p->k; k++) {
        for (int64_t first = 0; first < p->n; first += p->width) {
            float *dst = p->dst + first * p->k + k * p->width;
            int64_t n = tr_min64(p->n - first, p->width);
            for (int64_t g = 0; g < p->width; g += LANES) {
                __m256 v = load_some(p->src, p->dtype, k * p->ld + first + g, n - g);
                if (k + 1 < p->k)
                    _mm256_storeu_ps(dst + g, v); /* may spill into row k + 1, which is written next */
                else
                    _mm256_maskstore_ps(dst + g, first_lanes(p->width - g), v);
            }
        }
    }
}

/* Columns k..k+3 of 8 rows: halves of z[s] are rows s and 4+s, joined while loading; then two 4x4 transposes. */
ISA TR_FORCE_INLINE void transpose_8x4(const float *const row[LANES], int64_t k, float *dst, int64_t step)
{
    __m256 z[4];
    TR_UNROLL
    for (int s = 0; s < 4; s++)
        z[s] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(row[s] + k)), _mm_loadu_ps(row[4 + s] + k), 1);
    __m256 ab_lo = _mm256_unpacklo_ps(z[0], z[1]), ab_hi = _mm256_unpackhi_ps(z[0], z[1]);
    __m256 cd_lo = _mm256_unpacklo_ps(z[2], z[3]), cd_hi = _mm256_unpackhi_ps(z[2], z[3]);
    _mm256_storeu_ps(dst, _mm256_shuffle_ps(ab_lo, cd_lo, 0x44));
    _mm256_storeu_ps(dst + step, _mm256_shuffle_ps(ab_lo, cd_lo, 0xee));
    _mm256_storeu_ps(dst + 2 * step, _mm256_shuffle_ps(ab_hi, cd_hi, 0x44));
    _mm256_storeu_ps(dst + 3 * step, _mm256_shuffle_ps(ab_hi, cd_hi, 0xee));
}

/* 8 lines starting at `first`; lines past the end repeat the last one (their products are never stored). */
ISA static void pack_8_lines(const struct tr_gemm_pack *p, int64_t first, float *dst)
{
    const int64_t step = p->width;
    const bool is_half = p->dtype != TR_F32;
    float block[LANES][LANES];
    const float *row[LANES];
    int64_t line[LANES];
    for (int i = 0; i < LANES; i++) {
        line[i] = tr_min64(first + i, p->n - 1) * p->ld;
        row[i] = is_half ? block[i] : (const float *)p->src + line[i];
    }
    int64_t k = 0;
    for (; k + LANES <= p->k; k += LANES) {
        if (is_half)
            for (int i = 0; i < LANES; i++)
                _mm256_storeu_ps(block[i], load_half((const uint16_t *)p->src + line[i] + k, p->dtype));
        int64_t at = is_half ? 0 : k;
        transpose_8x4(row, at, dst + k * step, step);
        transpose_8x4(row, at + 4, dst + (k + 4) * step, step);
    }
    for (; k < p->k; k++)
        for (int i = 0; i < LANES && i < step; i++)
            tr_convert((const char *)p->src + (line[i] + k) * (is_half ? 2 : 4), p->dtype, &dst[k * step + i], TR_F32,
                       1);
}

ISA static void pack_lines(const struct tr_gemm_pack *p)
{
    for (int64_t first = 0; first < p->n; first += p->width)
        for (int64_t g = 0; g < p->width; g += LANES)
            pack_8_lines(p, first + g, p->dst + first * p->k + g);
}

ISA static void widen(const uint16_t *src, enum tr_dtype dtype, float *dst, int64_t n)
{
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        _mm256_storeu_ps(dst + i, load_half(src + i, dtype));
    tr_convert(src + i, dtype, dst + i, TR_F32, (size_t)(n - i));
}

ISA TR_FORCE_INLINE __m128i bf16_of(__m256 v)
{
    __m256i u = _mm256_castps_si256(v), top = _mm256_srli_epi32(u, 16);
    __m256i half = _mm256_add_epi32(_mm256_and_si256(top, _mm256_set1_epi32(1)), _mm256_set1_epi32(0x7fff));
    __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(u, half), 16);
    __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    rounded = _mm256_blendv_epi8(rounded, _mm256_or_si256(top, _mm256_set1_epi32(0x40)), is_nan);
    return _mm_packus_epi32(_mm256_castsi256_si128(rounded), _mm256_extracti128_si256(rounded, 1));
}

ISA static void narrow(const float *src, uint16_t *dst, enum tr_dtype dtype, int64_t n)
{
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        __m256 v = _mm256_loadu_ps(src + i);
        __m128i h = dtype == TR_F16 ? _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT) : bf16_of(v);
        _mm_storeu_si128((__m128i *)(void *)(dst + i), h);
    }
    tr_convert(src + i, TR_F32, dst + i, dtype, (size_t)(n - i));
}

const struct tr_gemm_isa tr_gemm_avx2 = { "avx2", MR, NR, 1, tile, pack_rows, pack_lines, widen, narrow };
#endif
