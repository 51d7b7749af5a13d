/* gemm_kernel_avx512.c - the AVX-512 column of the matrix product: a 14 x 32 tile in 28 registers.
 *
 * 28 chains of fused multiply-adds hide the latency. A step loads two vectors of B and 14 broadcasts of A, which leaves
 * the load ports half idle. Tiles of fewer rows are the same code with fewer registers, so edges waste no work and
 * change no bits. Rejected: broadcasts as memory operands (28 loads a step); 8 x 48, calculated but not measured (its
 * panel of B fills the first-level cache); software prefetch in the packers or the tile (measured: slower, or under 3 %
 * better).
 */
#include "ops/cpu/gemm_impl.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define ISA TR_TARGET("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")

ISA TR_FORCE_INLINE __m512 multiply_add(__m512 x, __m512 b, __m512 sum)
{
    return _mm512_fmadd_ps(x, b, sum);
}

#include "ops/cpu/gemm_tile_avx512.h"

enum { ROWS_AT_ONCE = 8 };

ISA TR_FORCE_INLINE __m512 load_half(const uint16_t *p, enum tr_dtype dtype, __mmask16 lanes)
{
    __m256i h = _mm256_maskz_loadu_epi16(lanes, p);
    return dtype == TR_F16 ? _mm512_cvtph_ps(h) : _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

ISA TR_FORCE_INLINE __m512 load_lanes(const void *src, enum tr_dtype dtype, int64_t at, __mmask16 lanes)
{
    return dtype == TR_F32 ? _mm512_maskz_loadu_ps(lanes, (const float *)src + at)
                           : load_half((const uint16_t *)src + at, dtype, lanes);
}

/* Rows [k, k_end) of one panel of n <= width lines that starts at line `first`. */
ISA TR_FORCE_INLINE void copy_rows(const struct tr_gemm_pack *p, enum tr_dtype dtype, int64_t first, int64_t n,
                                   int64_t k, int64_t k_end)
{
    const __mmask16 in_lo = first_lanes(n), in_hi = first_lanes(n - LANES);
    const __mmask16 out_lo = first_lanes(p->width), out_hi = first_lanes(p->width - LANES);
    float *dst = p->dst + first * p->k + k * p->width;
    for (; k < k_end; k++, dst += p->width) {
        _mm512_mask_storeu_ps(dst, out_lo, load_lanes(p->src, dtype, k * p->ld + first, in_lo));
        if (out_hi)
            _mm512_mask_storeu_ps(dst + LANES, out_hi, load_lanes(p->src, dtype, k * p->ld + first + LANES, in_hi));
    }
}

/* Packs a few rows of all panels, then the next few: reads follow whole rows of src, writes fill whole cache lines. */
ISA static void pack_rows(const struct tr_gemm_pack *p)
{
    static_assert(NR <= 2 * LANES, "copy_rows moves two vectors a row");
    for (int64_t k = 0; k < p->k; k += ROWS_AT_ONCE) {
        int64_t k_end = tr_min64(k + ROWS_AT_ONCE, p->k);
        for (int64_t first = 0; first < p->n; first += p->width) {
            int64_t n = tr_min64(p->width, p->n - first);
            if (p->dtype == TR_F32) /* one copy of the loop for each dtype, without a branch inside */
                copy_rows(p, TR_F32, first, n, k, k_end);
            else if (p->dtype == TR_BF16)
                copy_rows(p, TR_BF16, first, n, k, k_end);
            else
                copy_rows(p, TR_F16, first, n, k, k_end);
        }
    }
}

/* Columns 4q..4q+3 of 16 rows: lane L of z[s] is row 4L+s, placed there while loading; then four 4x4 transposes in
 * place. This takes half the shuffles of a transpose that loads whole rows. */
ISA TR_FORCE_INLINE void transpose_16x4(const float *const row[LANES], int64_t k, float *dst, int64_t step)
{
    __m512 z[4];
    TR_UNROLL
    for (int s = 0; s < 4; s++) {
        z[s] = _mm512_castps128_ps512(_mm_loadu_ps(row[s] + k));
        z[s] = _mm512_mask_broadcast_f32x4(z[s], 0x00f0, _mm_loadu_ps(row[4 + s] + k));
        z[s] = _mm512_mask_broadcast_f32x4(z[s], 0x0f00, _mm_loadu_ps(row[8 + s] + k));
        z[s] = _mm512_mask_broadcast_f32x4(z[s], 0xf000, _mm_loadu_ps(row[12 + s] + k));
    }
    __m512d ab_lo = _mm512_castps_pd(_mm512_unpacklo_ps(z[0], z[1])),
            ab_hi = _mm512_castps_pd(_mm512_unpackhi_ps(z[0], z[1]));
    __m512d cd_lo = _mm512_castps_pd(_mm512_unpacklo_ps(z[2], z[3])),
            cd_hi = _mm512_castps_pd(_mm512_unpackhi_ps(z[2], z[3]));
    _mm512_storeu_pd(dst, _mm512_unpacklo_pd(ab_lo, cd_lo));
    _mm512_storeu_pd(dst + step, _mm512_unpackhi_pd(ab_lo, cd_lo));
    _mm512_storeu_pd(dst + 2 * step, _mm512_unpacklo_pd(ab_hi, cd_hi));
    _mm512_storeu_pd(dst + 3 * step, _mm512_unpackhi_pd(ab_hi, cd_hi));
}

/* 16 lines starting at `first`; lines past the end repeat the last one (their products are never stored). */
ISA static void pack_16_lines(const struct tr_gemm_pack *p, int64_t first, float *dst)
{
    const int64_t step = p->width;
    int64_t k = 0;
    if (p->dtype != TR_F32) {
        float block[LANES][LANES];
        const uint16_t *h[LANES];
        const float *row[LANES];
        for (int i = 0; i < LANES; i++) {
            h[i] = (const uint16_t *)p->src + tr_min64(first + i, p->n - 1) * p->ld;
            row[i] = block[i];
        }
        for (; k < p->k; k += LANES) {
            int64_t n = tr_min64(LANES, p->k - k);
            for (int i = 0; i < LANES; i++)
                _mm512_storeu_ps(block[i], load_half(h[i] + k, p->dtype, first_lanes(n)));
            if (n == LANES) {
                for (int q = 0; q < LANES; q += 4)
                    transpose_16x4(row, q, dst + (k + q) * step, step);
            } else {
                for (int64_t j = 0; j < n; j++)
                    for (int i = 0; i < LANES && i < step; i++)
                        dst[(k + j) * step + i] = block[i][j];
            }
        }
        return;
    }
    const float *row[LANES];
    for (int i = 0; i < LANES; i++)
        row[i] = (const float *)p->src + tr_min64(first + i, p->n - 1) * p->ld;
    for (; k + 4 <= p->k; k += 4)
        transpose_16x4(row, k, dst + k * step, step);
    for (; k < p->k; k++)
        for (int i = 0; i < LANES && i < step; i++)
            dst[k * step + i] = row[i][k];
}

ISA static void pack_lines(const struct tr_gemm_pack *p)
{
    for (int64_t first = 0; first < p->n; first += p->width)
        for (int64_t g = 0; g < p->width; g += LANES)
            pack_16_lines(p, first + g, p->dst + first * p->k + g);
}

/* ---- operands of products of pairs: a word holds elements 2w and 2w + 1 of a line, the last of an odd K is zero ----
 */

/* Words [w, w_end) of one panel of n <= width lines that starts at line `first`; src has k rows. */
ISA TR_FORCE_INLINE void copy_row_pairs(const struct tr_gemm_pack *p, int64_t first, int64_t n, int64_t w,
                                        int64_t w_end)
{
    const __mmask16 in[2] = { first_lanes(n), first_lanes(n - LANES) };
    const __mmask16 out[2] = { first_lanes(p->width), first_lanes(p->width - LANES) };
    float *dst = p->dst + first * ((p->k + 1) / 2) + w * p->width;
    for (; w < w_end; w++, dst += p->width) {
        const uint16_t *even = (const uint16_t *)p->src + 2 * w * p->ld + first;
        bool is_last = 2 * w + 1 == p->k;
        const uint16_t *odd = is_last ? even : even + p->ld;
        for (int half = 0; half < 2 && out[half]; half++) {
            __m512i low = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(in[half], even + half * LANES));
            __m512i high = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(is_last ? 0 : in[half], odd + half * LANES));
            _mm512_mask_storeu_epi32(dst + half * LANES, out[half], _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
        }
    }
}

ISA void tr_gemm_pack_row_pairs(const struct tr_gemm_pack *p)
{
    int64_t n_words = (p->k + 1) / 2;
    for (int64_t w = 0; w < n_words; w += ROWS_AT_ONCE)
        for (int64_t first = 0; first < p->n; first += p->width)
            copy_row_pairs(p, first, tr_min64(p->width, p->n - first), w, tr_min64(w + ROWS_AT_ONCE, n_words));
}

ISA static void pack_16_line_pairs(const struct tr_gemm_pack *p, int64_t first, float *dst)
{
    const int64_t step = p->width, n_words = (p->k + 1) / 2;
    float block[LANES][LANES];
    const uint16_t *h[LANES];
    const float *row[LANES];
    for (int i = 0; i < LANES; i++) {
        h[i] = (const uint16_t *)p->src + tr_min64(first + i, p->n - 1) * p->ld;
        row[i] = block[i];
    }
    for (int64_t w = 0; w < n_words; w += LANES) {
        int64_t n = tr_min64(LANES, n_words - w), n_left = p->k - 2 * w;
        __mmask32 lanes = n_left >= 2 * LANES ? ~(__mmask32)0 : ((__mmask32)1 << n_left) - 1;
        for (int i = 0; i < LANES; i++)
            _mm512_storeu_si512(block[i], _mm512_maskz_loadu_epi16(lanes, h[i] + 2 * w));
        for (int q = 0; n == LANES && q < LANES; q += 4)
            transpose_16x4(row, q, dst + (w + q) * step, step);
        for (int64_t j = 0; n < LANES && j < n; j++)
            for (int i = 0; i < LANES && i < step; i++)
                dst[(w + j) * step + i] = block[i][j];
    }
}

ISA void tr_gemm_pack_line_pairs(const struct tr_gemm_pack *p)
{
    for (int64_t first = 0; first < p->n; first += p->width)
        for (int64_t g = 0; g < p->width; g += LANES)
            pack_16_line_pairs(p, first + g, p->dst + first * ((p->k + 1) / 2) + g);
}

ISA void tr_gemm_widen_avx512(const uint16_t *src, enum tr_dtype dtype, float *dst, int64_t n)
{
    for (int64_t i = 0; i < n; i += LANES)
        _mm512_mask_storeu_ps(dst + i, first_lanes(n - i), load_half(src + i, dtype, first_lanes(n - i)));
}

ISA void tr_gemm_narrow_avx512(const float *src, uint16_t *dst, enum tr_dtype dtype, int64_t n)
{
    for (int64_t i = 0; i < n; i += LANES) {
        __mmask16 lanes = first_lanes(n - i);
        __m512 v = _mm512_maskz_loadu_ps(lanes, src + i);
        if (dtype == TR_F16) {
            _mm256_mask_storeu_epi16(dst + i, lanes, _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
            continue;
        }
        __m512i u = _mm512_castps_si512(v), top = _mm512_srli_epi32(u, 16);
        __m512i half = _mm512_add_epi32(_mm512_and_si512(top, _mm512_set1_epi32(1)), _mm512_set1_epi32(0x7fff));
        __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(u, half), 16);
        __mmask16 is_nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
        rounded = _mm512_mask_or_epi32(rounded, is_nan, top, _mm512_set1_epi32(0x40));
        _mm512_mask_cvtepi32_storeu_epi16(dst + i, lanes, rounded);
    }
}

const struct tr_gemm_isa tr_gemm_avx512 = {
    "avx512", MR, NR, 1, tile, pack_rows, pack_lines, tr_gemm_widen_avx512, tr_gemm_narrow_avx512
};
#endif
