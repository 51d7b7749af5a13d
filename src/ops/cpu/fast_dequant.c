/* fast_dequant.c - packed weights to floats: a product of two floats for each element, rounded once. */
#include "base/quant.h"
#include "ops/cpu/fast.h"
#include "ops/cpu/simd.h"

enum { GRAIN = TR_Q4_BLOCK, CODES = GRAIN / 2, BYTES = CODES + (int)sizeof(float) };

/* The values of the TR_LANES codes at `code`; two codes are a byte, the earlier one in the high half. */
static inline vf lookup(const float table[16], const uint8_t *code)
{
#if TR_LANES == 16
    __m128i both = _mm_loadl_epi64((const __m128i *)(const void *)code), low = _mm_set1_epi8(15);
    __m128i index = _mm_unpacklo_epi8(_mm_and_si128(_mm_srli_epi16(both, 4), low), _mm_and_si128(both, low));
    return (vf)_mm512_permutexvar_ps(_mm512_cvtepu8_epi32(index), _mm512_loadu_ps(table));
#elif TR_LANES == 8
    int32_t word;
    memcpy(&word, code, sizeof word);
    __m128i both = _mm_cvtsi32_si128(word), low = _mm_set1_epi8(15);
    __m128i index = _mm_unpacklo_epi8(_mm_and_si128(_mm_srli_epi16(both, 4), low), _mm_and_si128(both, low));
    __m256i i = _mm256_cvtepu8_epi32(index);
    __m256 first = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table), i),
           second = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table + 8), i);
    return (vf)_mm256_blendv_ps(first, second, _mm256_castsi256_ps(_mm256_slli_epi32(i, 28))); /* bit 3 chooses */
#else
    vf v;
    for (int l = 0; l < TR_LANES; l += 2) {
        v[l] = table[code[l / 2] >> 4];
        v[l + 1] = table[code[l / 2] & 15];
    }
    return v;
#endif
}

/* Elements [at, end) of a column slice, which lie in several runs. */
static void put_slice(const struct tr_view *w, int64_t at, int64_t end, const float *from)
{
    struct tr_view one = *w;
    for (int64_t i = at; i < end; i++) {
        one.data = (char *)w->data + (size_t)(i / w->cols * w->ld + i % w->cols) * tr_dtype_bytes(w->dtype);
        v_store_tail(run_at(&one, 0, 0), 0, 1, v_set(from[i - at]));
    }
}

static void dequant_piece(const struct tr_call *c, int64_t row, int64_t grain, int64_t end)
{
    const struct tr_view *w = &c->out[0];
    const float *table = tr_q4_values(c->attr.packed == TR_PACKED_FP4 ? TR_FP4 : TR_NF4);
    struct run to = run_at(w, 0, 0);
    int64_t n = w->rows * w->cols;
    (void)row;
    for (; grain < end; grain++) {
        const uint8_t *code = (const uint8_t *)c->in[0].data + grain * BYTES;
        float scale, buf[GRAIN];
        struct run slice = { .p = (char *)buf };
        memcpy(&scale, code + CODES, sizeof scale);
        for (int64_t i = 0; i < GRAIN; i += TR_LANES) {
            vf v = lookup(table, code + i / 2) * scale;
            if (w->ld != w->cols)
                v_store(slice, i, GRAIN, v);
            else if (grain * GRAIN + i < n)
                v_store(to, grain * GRAIN + i, n, v);
        }
        if (w->ld != w->cols)
            put_slice(w, grain * GRAIN, tr_min64(n, (grain + 1) * GRAIN), buf);
    }
}

void TR_FAST(dequant)(const struct tr_call *c)
{
    tr_fast_run(c, 1, c->in[0].rows, TR_PIECE / GRAIN, dequant_piece);
}
