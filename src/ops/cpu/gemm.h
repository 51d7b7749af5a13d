/* gemm.h - C = A B (+ C) (+ bias) on the CPU, all operands as views, fp32, bf16 or fp16 in and out.
 *
 * The built-in kernel sums every output element in the same order of K. M, N, the position in a tile and the number of
 * threads do not change that order, so the bits of an element depend only on its row of A, its column of B and K.
 */
#ifndef TR_OPS_CPU_GEMM_H
#define TR_OPS_CPU_GEMM_H

#include "ops/ops.h"

enum {
    TR_GEMM_KC = 384
}; /* length of a block of K; the same on every machine, so that the order of additions is too */

struct tr_gemm {
    int64_t m, n, k;
    const void *a; /* (m, k), or (k, m) when a_t */
    const void *b; /* (k, n), or (n, k) when b_t */
    void *c;       /* (m, n) */
    int64_t lda, ldb, ldc;
    enum tr_dtype a_dtype, b_dtype, c_dtype;
    bool a_t, b_t, c_t; /* c_t: C is (n, m); the built-in product sets it, callers do not */
    bool accumulate;    /* C += A B; with a 16-bit C the sum is formed in fp32 and rounded once */
    const void *bias;   /* (n) added to every row, or NULL; dtype of bias_dtype */
    enum tr_dtype bias_dtype;
};

size_t tr_gemm_scratch(int64_t m, int64_t n, int64_t k, int n_threads);
void tr_gemm(const struct tr_gemm *g, struct tr_pool *pool, void *scratch);
/* The product on one thread, for use inside a task that is already parallel. Needs the scratch of n_threads = 1. */
void tr_gemm_serial(const struct tr_gemm *g, void *scratch);

/* Does this processor convert float16? By cpuid: clang 14's __builtin_cpu_supports does not know the name. */
bool tr_has_f16c(void);

#endif
