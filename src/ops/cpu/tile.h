/* tile.h - fp32 kernels on the tiles of attention and the rows of the head, one set of pointers per instruction set.
 *
 * A tile holds up to TR_TILE query rows as vector lanes and up to TR_TILE key rows; both and the head columns are
 * padded to TR_TILE_STEP, so no product has a remainder loop. Scores are kept transposed, (key, query): then q.k and
 * p.v broadcast elements of k and v as they lie in memory, the softmax runs down the lanes without a horizontal step,
 * and only q and the output are transposed, once per tile. Rejected: tr_gemm_serial (packs both operands for 64-wide
 * products).
 */
#ifndef TR_OPS_CPU_TILE_H
#define TR_OPS_CPU_TILE_H

#include "ops/ops.h"

enum { TR_TILE = 64, TR_TILE_STEP = 16 };

/* C (m, n) = A B, or += when add. Element (r, k) of A is a[r * a_row + k * a_k], B is (k, n). m and n are multiples of
 * TR_TILE_STEP. Each element is one chain of fused multiply-adds in k order. */
struct tr_tile_mm {
    int64_t m, n, k;
    const float *a;
    int64_t a_row, a_k;
    const float *b;
    int64_t ldb;
    float *c;
    int64_t ldc;
    bool add;
};

struct tr_logit_row;

/* Below, `lanes` are TR_TILE_STEP query lanes; a matrix of lanes has rows TR_TILE floats apart. */
struct tr_tile_ops {
    void (*mm)(const struct tr_tile_mm *p);
    /* dst (rows, cols), ld floats apart, = scale * the view from (row, col) on; columns are padded with
     * zeros to a step. */
    void (*load)(const struct tr_view *v, int64_t row, int64_t col, int64_t rows, int64_t cols, float scale, float *dst,
                 int64_t ld);
    void (*store)(const float *src, int64_t ld, int64_t rows, int64_t cols, const struct tr_view *v, int64_t row,
                  int64_t col);
    /* dst (cols, rows) = src (rows, cols) transposed; sizes are multiples of TR_TILE_STEP. */
    void (*transpose)(const float *src, int64_t ld_src, int64_t rows, int64_t cols, float *dst, int64_t ld_dst);
    /* s = cap * tanh(s / cap) on n_rows rows of lanes. */
    void (*softcap)(float *s, int64_t n_rows, float cap);
    /* One step of the online softmax. It updates max and sum of each lane, and s becomes exp(s - max). fade is the
     * factor by which the outputs so far must be multiplied; sum already includes it. Returns whether any fade is not
     * 1. */
    bool (*softmax)(float *s, int64_t n_rows, float *max, float *sum, float *fade);
    /* x *= factor on n_rows rows of lanes. */
    void (*fade)(float *x, int64_t n_rows, const float *factor);
    /* dot = sum over n_rows rows of a * b, lane by lane. */
    void (*dot)(const float *a, const float *b, int64_t n_rows, float *dot);
    /* s becomes p = exp(s - lse) * keep, dp becomes p * (keep * dp - dot) * slope of the cap. keep NULL: all ones. */
    void (*softmax_bwd)(float *s, float *dp, const float *keep, int64_t n_rows, const float *lse, const float *dot,
                        float cap);
    float (*cross_entropy)(const struct tr_logit_row *r);
    /* The same in two calls. `logits`: z becomes the capped logits; returns their maximum. `logit_grad` turns them into
     * their gradient, given the log-sum-exp over the logits of all ranks. */
    float (*logits)(const struct tr_logit_row *r);
    void (*logit_grad)(const struct tr_logit_row *r, float lse);
};

/* One row of logits: z = x.w on entry; softmax cross entropy against `target`. */
struct tr_logit_row {
    float *z;
    int64_t n, target;          /* target < 0: the target is not among these logits */
    const struct tr_view *bias; /* data NULL: none */
    float scale, softcap;
    bool want_grad;
    float grad_scale;                        /* z becomes grad_scale * d loss / d (scale * x.w + bias) */
    float smoothing, smoothing_each, z_loss; /* logit_grad: as in tr_attr */
};

extern const struct tr_tile_ops tr_fast_tile_ops_base, tr_fast_tile_ops_avx2, tr_fast_tile_ops_avx512;
/* The kernels of the fastest instruction set of this CPU. */
const struct tr_tile_ops *tr_tile_ops(void);

#endif
