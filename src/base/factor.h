/* factor.h - parts of a matrix that an adapter may start from: its largest singular triplets, and the first columns of
 * its QR factors. Sums are double and their order depends on the sizes alone, so any number of threads gives the same
 * bits. */
#ifndef TR_BASE_FACTOR_H
#define TR_BASE_FACTOR_H

#include "base/pool.h"

/* Of W (rows, cols): the r largest singular values s and their vectors u (rows, r), v (cols, r), so that u diag(s) v^T
 * is the best approximation of rank r. Signs are free. A matrix whose smaller side is at most TR_SVD_EXACT is
 * decomposed as a whole; of a larger one a subspace is searched until every triplet is exact to 1e-5 of the largest
 * value, or TR_SVD_CYCLES searches are done. Memory: about 5 (r + 8) vectors of each side. */
enum { TR_SVD_EXACT = 384, TR_SVD_CYCLES = 12 };
enum tr_status tr_svd_top(const float *w, int64_t rows, int64_t cols, int64_t r, struct tr_pool *pool, float *u,
                          double *s, float *v);

/* Of W (rows, cols) = Q R: the first r columns of Q (rows, r) and the first r rows of R (r, cols), r <= rows, cols.
 * Signs are those of Householder reflections, as LAPACK has them. */
enum tr_status tr_qr_top(const float *w, int64_t rows, int64_t cols, int64_t r, struct tr_pool *pool, float *q,
                         float *out_r);

#endif
