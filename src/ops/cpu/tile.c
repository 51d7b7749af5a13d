/* tile.c - the kernels of tile.h, compiled once per instruction set like the files of fast.h.
 *
 * The sets with fma give the same bits: lanes are independent and every chain has a fixed order. The vector extension
 * has no fma and no max, so those two are intrinsics.
 */
#include "ops/cpu/fast.h"
#include "ops/cpu/simd.h"
#include "ops/cpu/tile.h"
#include <math.h>

#if TR_LANES > 4
#include <immintrin.h>
#endif

enum { MAX_ROWS = 8, MAX_VECS = TR_LANES == 16 ? 4 : 2 };

TR_FORCE_INLINE vf v_at(const float *p)
{
    vf v;
    memcpy(&v, p, sizeof v);
    return v;
}

TR_FORCE_INLINE void v_put(float *p, vf v)
{
    memcpy(p, &v, sizeof v);
}

TR_FORCE_INLINE vf v_fma(vf a, vf b, vf c)
{
#if TR_LANES == 16
    return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif TR_LANES == 8
    return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return a * b + c;
#endif
}

TR_FORCE_INLINE vf v_max(vf a, vf b) /* b where either is NaN */
{
#if TR_LANES == 16
    return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#elif TR_LANES == 8
    return (vf)_mm256_max_ps((__m256)a, (__m256)b);
#else
    return v_select(a > b, a, b);
#endif
}

/* exp for x <= 88 within 2 ulp, 0 below the smallest normal number. It has half the instructions of v_exp, whose bits
 * must not depend on fma; exp is a tenth of the forward pass. 2^r, |r| <= 1/2, by a minimax fit that is exact at 0
 * (error 1e-7). */
TR_FORCE_INLINE vf v_exp_fma(vf x)
{
#if TR_LANES == 4
    return v_exp(x);
#else
    const vf log2_e = v_set(1.44269504f), magic = v_set(12582912.0f); /* 1.5 * 2^23: rounds to an integer */
    vf shifted = v_fma(x, log2_e, magic), r = v_fma(x, log2_e, magic - shifted);
    vf y = v_fma(v_set(1.32647273e-3f), r, v_set(9.67151299e-3f));
    y = v_fma(y, r, v_set(5.55073358e-2f));
    y = v_fma(y, r, v_set(2.40222424e-1f));
    y = v_fma(y, r, v_set(6.93147004e-1f));
    y = v_fma(y, r, v_set(1.0f));
    return (vf)(~(x < -87.336540f) & (vi)((vu)y + ((vu)shifted << 23)));
#endif
}

/* Holds rows x vecs accumulators in registers: rows and vecs are constants where this is inlined. */
TR_FORCE_INLINE void mm_block(const struct tr_tile_mm *p, int64_t row, int64_t col, int rows, int vecs)
{
    const float *a = p->a + row * p->a_row, *b = p->b + col;
    float *c = p->c + row * p->ldc + col;
    vf acc[MAX_ROWS][MAX_VECS];
    TR_UNROLL
    for (int i = 0; i < rows * vecs; i++)
        acc[i / vecs][i % vecs] = p->add ? v_at(c + i / vecs * p->ldc + i % vecs * TR_LANES) : (vf){ 0 };
    int64_t a_row = p->a_row, a_k = p->a_k, ldb = p->ldb;
    for (int64_t k = p->k; k > 0; k--, a += a_k, b += ldb) {
        vf in[MAX_VECS];
        TR_UNROLL
        for (int v = 0; v < vecs; v++)
            in[v] = v_at(b + v * TR_LANES);
        TR_UNROLL
        for (int i = 0; i < rows * vecs; i++)
            acc[i / vecs][i % vecs] = v_fma(v_set(a[i / vecs * a_row]), in[i % vecs], acc[i / vecs][i % vecs]);
    }
    TR_UNROLL
    for (int i = 0; i < rows * vecs; i++)
        v_put(c + i / vecs * p->ldc + i % vecs * TR_LANES, acc[i / vecs][i % vecs]);
}

/* The loop over columns is outermost, so the strip of B that a block reads stays in the first-level cache for all rows.
 */
static void mm(const struct tr_tile_mm *p)
{
    int64_t col = 0;
#if TR_LANES == 16
    for (; col + 64 <= p->n; col += 64)
        for (int64_t row = 0; row < p->m; row += 4)
            mm_block(p, row, col, 4, 4);
    for (; col + 48 <= p->n; col += 48)
        for (int64_t row = 0; row < p->m; row += 4)
            mm_block(p, row, col, 4, 3);
    for (; col + 32 <= p->n; col += 32)
        for (int64_t row = 0; row < p->m; row += 8)
            mm_block(p, row, col, 8, 2);
    for (; col < p->n; col += 16)
        for (int64_t row = 0; row < p->m; row += 8)
            mm_block(p, row, col, 8, 1);
#else
    for (; col < p->n; col += 2 * TR_LANES)
        for (int64_t row = 0; row < p->m; row += 4)
            mm_block(p, row, col, 4, 2);
#endif
}

static void load(const struct tr_view *v, int64_t row, int64_t col, int64_t rows, int64_t cols, float scale, float *dst,
                 int64_t ld)
{
    int64_t n_cols = (int64_t)tr_round_up((size_t)cols, TR_TILE_STEP);
    for (int64_t r = 0; r < rows; r++) {
        struct run in = run_at(v, row + r, col);
        for (int64_t e = 0; e < n_cols; e += TR_LANES)
            v_put(dst + r * ld + e, e < cols ? v_load(in, e, cols) * scale : (vf){ 0 });
    }
}

static void store(const float *src, int64_t ld, int64_t rows, int64_t cols, const struct tr_view *v, int64_t row,
                  int64_t col)
{
    for (int64_t r = 0; r < rows; r++) {
        struct run out = run_at(v, row + r, col);
        for (int64_t e = 0; e < cols; e += TR_LANES)
            v_store(out, e, cols, v_at(src + r * ld + e));
    }
}

/* A square of TR_LANES: interleaving rows i and i + half, log2(TR_LANES) times, is the transposition. */
TR_FORCE_INLINE void transpose_square(const float *src, int64_t ld_src, float *dst, int64_t ld_dst)
{
    vf x[TR_LANES], y[TR_LANES];
    TR_UNROLL
    for (int i = 0; i < TR_LANES; i++)
        x[i] = v_at(src + i * ld_src);
    TR_UNROLL
    for (int n = 1; n < TR_LANES; n *= 2) {
        TR_UNROLL
        for (int i = 0; i < TR_LANES / 2; i++)
            v_interleave(x[i], x[i + TR_LANES / 2], &y[2 * i], &y[2 * i + 1]);
        TR_UNROLL
        for (int i = 0; i < TR_LANES; i++)
            x[i] = y[i];
    }
    TR_UNROLL
    for (int i = 0; i < TR_LANES; i++)
        v_put(dst + i * ld_dst, x[i]);
}

static void transpose(const float *src, int64_t ld_src, int64_t rows, int64_t cols, float *dst, int64_t ld_dst)
{
    for (int64_t r = 0; r < rows; r += TR_LANES)
        for (int64_t e = 0; e < cols; e += TR_LANES)
            transpose_square(src + r * ld_src + e, ld_src, dst + e * ld_dst + r, ld_dst);
}

static void softcap(float *s, int64_t n_rows, float cap)
{
    for (int64_t r = 0; r < n_rows; r++)
        for (int64_t l = 0; l < TR_TILE_STEP; l += TR_LANES)
            v_put(s + r * TR_TILE + l, v_tanh(v_at(s + r * TR_TILE + l) * (1.0f / cap)) * cap);
}

static bool softmax(float *s, int64_t n_rows, float *max, float *sum, float *fade)
{
    vi is_faded = { 0 };
    for (int64_t l = 0; l < TR_TILE_STEP; l += TR_LANES) {
        vf top = v_at(max + l), top2 = top, add = { 0 };
        for (int64_t r = 0; r < n_rows;
             r += 4) { /* n_rows is a multiple of 4; a single chain would wait for the latency of each max */
            const float *at = s + r * TR_TILE + l;
            top = v_max(v_max(v_at(at), v_at(at + TR_TILE)), top);
            top2 = v_max(v_max(v_at(at + 2 * TR_TILE), v_at(at + 3 * TR_TILE)), top2);
        }
        top = v_max(top, top2);
        for (int64_t r = 0; r < n_rows; r++) {
            vf p = v_exp_fma(v_at(s + r * TR_TILE + l) - top);
            v_put(s + r * TR_TILE + l, p);
            add += p;
        }
        vf factor = v_exp_fma(v_at(max + l) - top);
        v_put(sum + l, v_at(sum + l) * factor + add);
        v_put(max + l, top);
        v_put(fade + l, factor);
        is_faded |= factor != 1.0f;
    }
    int32_t lane[TR_LANES], any = 0;
    memcpy(lane, &is_faded, sizeof lane);
    for (int i = 0; i < TR_LANES; i++)
        any |= lane[i];
    return any != 0;
}

static void fade(float *x, int64_t n_rows, const float *factor)
{
    for (int64_t l = 0; l < TR_TILE_STEP; l += TR_LANES)
        for (int64_t r = 0; r < n_rows; r++)
            v_put(x + r * TR_TILE + l, v_at(x + r * TR_TILE + l) * v_at(factor + l));
}

static void dot(const float *a, const float *b, int64_t n_rows, float *out)
{
    for (int64_t l = 0; l < TR_TILE_STEP; l += TR_LANES) {
        vf add = { 0 };
        for (int64_t r = 0; r < n_rows; r++)
            add = v_fma(v_at(a + r * TR_TILE + l), v_at(b + r * TR_TILE + l), add);
        v_put(out + l, add);
    }
}

TR_FORCE_INLINE void softmax_bwd_rows(float *s, float *dp, const float *keep, int64_t n_rows, vf lse, vf dots,
                                      float cap)
{
    for (int64_t at = 0; at < n_rows * TR_TILE; at += TR_TILE) {
        vf score = v_at(s + at), p = v_exp_fma(score - lse), d = v_at(dp + at), dropped = p;
        if (keep) {
            d *= v_at(keep + at);
            dropped *= v_at(keep + at);
        }
        d = p * (d - dots);
        if (cap != 0) { /* a masked score is -inf: its slope must be 0, not -inf */
            vf t = score * (1.0f / cap);
            d *= v_max(1.0f - t * t, (vf){ 0 });
        }
        v_put(s + at, dropped);
        v_put(dp + at, d);
    }
}

static void softmax_bwd(float *s, float *dp, const float *keep, int64_t n_rows, const float *lse, const float *dots,
                        float cap)
{
    for (int64_t l = 0; l < TR_TILE_STEP; l += TR_LANES) {
        vf at_lse = v_at(lse + l), at_dot = v_at(dots + l);
        if (keep || cap != 0)
            softmax_bwd_rows(s + l, dp + l, keep ? keep + l : NULL, n_rows, at_lse, at_dot, cap);
        else
            softmax_bwd_rows(s + l, dp + l, NULL, n_rows, at_lse, at_dot, 0);
    }
}

/* z becomes the capped logits; returns their maximum. */
static float logits(const struct tr_logit_row *row)
{
    struct run z = { .p = (char *)row->z }, bias = run_at(row->bias, 0, 0);
    float inv_cap = row->softcap != 0 ? 1.0f / row->softcap : 0, lane[TR_LANES];
    vf top = v_set(-INFINITY);
    for (int64_t j = 0; j < row->n; j += TR_LANES) {
        vf l = v_load_or(z, j, row->n, -INFINITY) * row->scale;
        if (bias.p)
            l += v_load(bias, j, row->n);
        if (row->softcap != 0)
            l = v_tanh(l * inv_cap) * row->softcap;
        top = v_max(l, top);
        v_store(z, j, row->n, l);
    }
    memcpy(lane, &top, sizeof lane);
    for (int i = 1; i < TR_LANES; i++)
        lane[0] = lane[i] > lane[0] ? lane[i] : lane[0];
    return lane[0];
}

/* z becomes exp(z - max), times the slope of the cap; returns the sum of the exponentials. */
static float exponentials(const struct tr_logit_row *row, float max)
{
    struct run z = { .p = (char *)row->z };
    float inv_cap = row->softcap != 0 ? 1.0f / row->softcap : 0;
    vf sum[TR_SUM_VECS] = { { 0 } };
    for (int64_t j = 0; j < row->n; j += TR_SUM_LANES) {
        for (int i = 0; i < TR_SUM_VECS && j + i * TR_LANES < row->n; i++) {
            vf l = v_load_or(z, j + i * TR_LANES, row->n, -INFINITY), p = v_exp_fma(l - max), t = l * inv_cap;
            sum[i] += p;
            if (row->want_grad)
                v_store(z, j + i * TR_LANES, row->n, row->softcap != 0 ? p * (1.0f - t * t) : p);
        }
    }
    return v_sum(sum);
}

static float cross_entropy(const struct tr_logit_row *row)
{
    struct run z = { .p = (char *)row->z };
    float max = logits(row), at_target = row->target < 0 ? 0 : row->z[row->target], sum = exponentials(row, max);
    float t = row->softcap != 0 ? at_target / row->softcap : 0, factor = row->grad_scale / sum;
    if (row->want_grad) {
        for (int64_t j = 0; j < row->n; j += TR_LANES)
            v_store(z, j, row->n, v_load(z, j, row->n) * factor);
        if (row->target >= 0)
            row->z[row->target] -= row->grad_scale * (1.0f - t * t);
    }
    return logf(sum) + (max - at_target);
}

static void logit_grad(const struct tr_logit_row *row, float lse)
{
    struct run z = { .p = (char *)row->z };
    float inv_cap = row->softcap != 0 ? 1.0f / row->softcap : 0;
    float at_target = row->target < 0 ? 0 : row->z[row->target] * inv_cap;
    float factor = row->grad_scale * (1.0f + 2.0f * row->z_loss * lse), less = row->grad_scale * row->smoothing_each;
    for (int64_t j = 0; j < row->n; j += TR_LANES) {
        vf l = v_load_or(z, j, row->n, -INFINITY), p = v_exp_fma(l - lse) * factor - less, t = l * inv_cap;
        v_store(z, j, row->n, row->softcap != 0 ? p * (1.0f - t * t) : p);
    }
    if (row->target >= 0)
        row->z[row->target] -= row->grad_scale * (1.0f - row->smoothing) * (1.0f - at_target * at_target);
}

const struct tr_tile_ops TR_FAST(tile_ops) = { .mm = mm,
                                               .load = load,
                                               .store = store,
                                               .transpose = transpose,
                                               .softcap = softcap,
                                               .softmax = softmax,
                                               .fade = fade,
                                               .dot = dot,
                                               .softmax_bwd = softmax_bwd,
                                               .cross_entropy = cross_entropy,
                                               .logits = logits,
                                               .logit_grad = logit_grad };
