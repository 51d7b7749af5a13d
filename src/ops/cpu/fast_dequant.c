/* fast_dequant.c - packed weights to floats: a product of two floats for each element, rounded once. */
#include "base/quant.h"
#include "ops/cpu/fast.h"
#include "ops/cpu/simd.h"

typedef uint8_t vb __attribute__((vector_size(TR_LANES)));

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

/* The values of TR_LANES e4m3 codes: exponent and mantissa are those of a float that is 2^120 times too small. */
static inline vf values_f8(const uint8_t *code)
{
    vb b;
    memcpy(&b, code, sizeof b);
    vu u = __builtin_convertvector(b, vu);
    vf x = (vf)((u & 0x80) << 24 | (u & 0x7f) << 20) * 0x1p120f;
    return (vf)((vu)x | ((vu)((u & 0x7f) == 0x7f) & 0x7fc00000u));
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
    enum tr_packed packed = (enum tr_packed)c->attr.packed;
    bool is_q4 = tr_packed_is_q4(packed);
    const float *table = tr_q4_values(packed == TR_PACKED_FP4 ? TR_FP4 : TR_NF4);
    int64_t size = tr_packed_format(packed)->grain, bytes = c->in[0].cols, n = w->rows * w->cols;
    struct run to = run_at(w, 0, 0);
    (void)row;
    for (; grain < end; grain++) {
        const uint8_t *code = (const uint8_t *)c->in[0].data + grain * bytes;
        float scale, buf[TR_PACKED_GRAIN_MAX];
        struct run slice = { .p = (char *)buf };
        memcpy(&scale, code + bytes - (int64_t)sizeof scale, sizeof scale);
        for (int64_t i = 0; i < size; i += TR_LANES) {
            vf v = (is_q4 ? lookup(table, code + i / 2) : values_f8(code + i)) * scale;
            if (w->ld != w->cols)
                v_store(slice, i, size, v);
            else if (grain * size + i < n)
                v_store(to, grain * size + i, n, v);
        }
        if (w->ld != w->cols)
            put_slice(w, grain * size, tr_min64(n, (grain + 1) * size), buf);
    }
}

void TR_FAST(dequant)(const struct tr_call *c)
{
    tr_fast_run(c, 1, c->in[0].rows, TR_PIECE / TR_PACKED_GRAIN_MAX, dequant_piece);
}
