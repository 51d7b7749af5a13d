/* gemm_impl.h - what the files of the matrix product share: one row per instruction set, and the fixed split of K.
 *
 * Packed form of an operand block: panels of `width` columns (of B) or rows (of A), each stored k-major:
 * [panel][k][width].
 */
#ifndef TR_OPS_CPU_GEMM_IMPL_H
#define TR_OPS_CPU_GEMM_IMPL_H

#include "ops/cpu/gemm.h"

enum {
    TR_GEMM_MAX_MR = 14,
    TR_GEMM_MAX_NR = 32,
    TR_GEMM_SLACK = 16, /* floats that a packer may write past its last panel */
};

/* One tile of C: c (+)= a b (+ bias) for n_rows <= mr rows and n_cols <= nr columns. Each element is one chain of fused
 * multiply-adds (of pairs: of dot products) over k from zero, then + c when load_c, then + bias; n_rows and n_cols
 * never change that chain. */
struct tr_gemm_tile {
    int64_t k;                 /* words of the packed form */
    const float *a, *b, *bias; /* element (r, k) of A is a[r * a_row + k * a_step], row k of B is b + k * b_step */
    float *c;
    int64_t a_row, a_step, b_step, ldc;
    int n_rows, n_cols;
    bool load_c; /* bias (n_cols) may be NULL */
};

/* Packs n lines (rows of A, columns of B) of k elements into panels of `width` lines. */
struct tr_gemm_pack {
    const void *src;
    int64_t ld;
    enum tr_dtype dtype; /* F32, BF16, F16 */
    int64_t n, k;
    int width;
    float *dst;
};

struct tr_gemm_isa {
    const char *name;
    int mr, nr;
    int n_of_word; /* elements of K in a word of 32 bits of the packed form: 1, or 2 of bfloat16 */
    void (*tile)(const struct tr_gemm_tile *t);
    void (*pack_rows)(const struct tr_gemm_pack *p);  /* src is (k, n): a line is a column of src */
    void (*pack_lines)(const struct tr_gemm_pack *p); /* src is (n, k): a line is a row of src, so it transposes */
    void (*widen)(const uint16_t *src, enum tr_dtype dtype, float *dst, int64_t n);
    void (*narrow)(const float *src, uint16_t *dst, enum tr_dtype dtype, int64_t n); /* round to nearest even */
};

extern const struct tr_gemm_isa tr_gemm_portable;
#if defined(__x86_64__)
extern const struct tr_gemm_isa tr_gemm_avx2, tr_gemm_avx512, tr_gemm_bf16;
/* Of gemm_kernel_avx512.c, for both of its columns. */
void tr_gemm_pack_row_pairs(const struct tr_gemm_pack *p);
void tr_gemm_pack_line_pairs(const struct tr_gemm_pack *p);
void tr_gemm_widen_avx512(const uint16_t *src, enum tr_dtype dtype, float *dst, int64_t n);
void tr_gemm_narrow_avx512(const float *src, uint16_t *dst, enum tr_dtype dtype, int64_t n);
#endif

/* The instruction sets that this CPU has for any operands, fastest first; returns how many. */
int tr_gemm_isas(const struct tr_gemm_isa *out[3]);
/* The one for two bfloat16 operands, or NULL. */
const struct tr_gemm_isa *tr_gemm_isa_of_pairs(void);
/* The built-in product. pool may be NULL; scratch as tr_gemm_scratch(). */
void tr_gemm_builtin(const struct tr_gemm_isa *isa, const struct tr_gemm *g, struct tr_pool *pool, void *scratch);

/* The product by the chosen library; false: it does not take this call (16-bit operands, or no library is chosen). */
bool tr_gemm_external(const struct tr_gemm *g, int n_threads);

#endif
