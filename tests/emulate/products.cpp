/* products.cpp - what the emulated head takes from a library on a GPU, and from kernels that are not emulated: products
 * and sums of columns, in double. */
#include "ops/cuda/cuda.cuh"
extern "C" {
#include "ops/cpu/ref.h"
}

static struct tr_view matrix(const void *p, int64_t ld, enum tr_dtype dtype, int64_t rows, int64_t cols)
{
    struct tr_view v = {};
    v.data = (void *)p, v.dtype = dtype, v.rows = rows, v.cols = cols, v.ld = ld;
    return v;
}

bool tr_cuda_gemm(const struct tr_call *, const struct cuda_gemm *g, void *)
{
    struct tr_view a = matrix(g->a, g->lda, g->a_dtype, g->a_t ? g->k : g->m, g->a_t ? g->m : g->k);
    struct tr_view b = matrix(g->b, g->ldb, g->a_dtype, g->b_t ? g->n : g->k, g->b_t ? g->k : g->n);
    struct tr_view c = matrix(g->c, g->ldc, g->c_dtype, g->m, g->n);
    for (int64_t i = 0; i < g->m; i++)
        for (int64_t j = 0; j < g->n; j++) {
            double sum =
                g->beta != 0 ? (double)g->beta * tr_ref_get(&c, i, j) : 0; /* d is c in every call of the head */
            for (int64_t k = 0; k < g->k; k++)
                sum += tr_ref_get(&a, g->a_t ? k : i, g->a_t ? i : k) * tr_ref_get(&b, g->b_t ? j : k, g->b_t ? k : j);
            tr_ref_put(&c, i, j, sum);
        }
    return true;
}

void tr_cuda_colsum(const struct tr_call *, const struct tr_view &x, const struct tr_view &out, bool accumulate,
                    float scale, void *)
{
    for (int64_t j = 0; out.data && j < x.cols; j++) {
        double sum = 0;
        for (int64_t i = 0; i < x.rows; i++)
            sum += tr_ref_get(&x, i, j);
        tr_ref_put(&out, 0, j, (accumulate ? tr_ref_get(&out, 0, j) : 0) + (double)scale * sum);
    }
}
