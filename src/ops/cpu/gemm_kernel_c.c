/* gemm_kernel_c.c - the portable column of the matrix product: plain loops over the packed form.
 *
 * Where the CPU has fused multiply-add in its base instruction set (arm64) the bits equal those of the x86 kernels;
 * elsewhere a product is rounded before it is added (fmaf in software would be a hundred times slower).
 */
#include "ops/cpu/gemm_impl.h"
#include <math.h>

enum { MR = 4, NR = 8 };

static inline float multiply_add(float a, float b, float c)
{
#if defined(__FP_FAST_FMAF)
    return fmaf(a, b, c);
#else
    return a * b + c;
#endif
}

static void tile(const struct tr_gemm_tile *t)
{
    float acc[MR][NR] = { { 0 } };
    int64_t row[MR];
    for (int r = 0; r < MR; r++)
        row[r] = tr_min64(r, t->n_rows - 1) * t->a_row; /* always MR rows, so that the compiler can unroll the loops */
    for (int64_t k = 0; k < t->k; k++) {
        const float *a = t->a + k * t->a_step, *b = t->b + k * t->b_step;
        TR_UNROLL
        for (int r = 0; r < MR; r++) {
            float x = a[row[r]];
            for (int j = 0; j < NR; j++)
                acc[r][j] = multiply_add(x, b[j], acc[r][j]);
        }
    }
    for (int r = 0; r < t->n_rows; r++) {
        float *c = t->c + r * t->ldc;
        for (int j = 0; j < t->n_cols; j++) {
            float v = acc[r][j];
            if (t->load_c)
                v += c[j];
            if (t->bias)
                v += t->bias[j];
            c[j] = v;
        }
    }
}

static void pack(const struct tr_gemm_pack *p, int64_t line_step, int64_t k_step)
{
    const float *f = p->src;
    const uint16_t *h = p->src;
    float *dst = p->dst;
    for (int64_t first = 0; first < p->n; first += p->width) {
        for (int64_t k = 0; k < p->k; k++) {
            for (int64_t i = first; i < first + p->width; i++) {
                int64_t at = tr_min64(i, p->n - 1) * line_step + k * k_step; /* padding is never stored in C */
                *dst++ = p->dtype == TR_F32 ? f[at] : p->dtype == TR_F16 ? tr_f32_of_f16(h[at]) : tr_f32_of_bf16(h[at]);
            }
        }
    }
}

static void pack_rows(const struct tr_gemm_pack *p)
{
    pack(p, 1, p->ld);
}

static void pack_lines(const struct tr_gemm_pack *p)
{
    pack(p, p->ld, 1);
}

static void widen(const uint16_t *src, enum tr_dtype dtype, float *dst, int64_t n)
{
    tr_convert(src, dtype, dst, TR_F32, (size_t)n);
}

static void narrow(const float *src, uint16_t *dst, enum tr_dtype dtype, int64_t n)
{
    tr_convert(src, TR_F32, dst, dtype, (size_t)n);
}

const struct tr_gemm_isa tr_gemm_portable = { "portable", MR, NR, 1, tile, pack_rows, pack_lines, widen, narrow };
