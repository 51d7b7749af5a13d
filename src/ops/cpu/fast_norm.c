/* fast_norm.c - layernorm, rmsnorm (whole rows or groups of columns), rope and regroup.
 *
 * A row is read two or three times; after the first time it comes from the first-level cache. Weight gradients are a
 * pass of their own over stripes of columns, all rows in order, so a batch in two accumulated parts gives the bits of
 * the whole. That pass runs before dx, because dx may share its memory with dy. Rejected: partial sums per block of
 * rows (one pass less, but the bits would depend on the blocks).
 */
#include "ops/cpu/fast.h"
#include "ops/cpu/simd.h"
#include <math.h>

static float rstd_of(float sum_squares, int64_t n, float eps)
{
    return (float)(1.0 / sqrt((double)sum_squares / (double)n + (double)eps));
}

static float mean_of(struct run x, int64_t n)
{
    vf sum[TR_SUM_VECS] = { 0 };
    for (int64_t j = 0; j < n; j += TR_SUM_LANES)
#pragma GCC unroll 16
        for (int k = 0; k < TR_SUM_VECS; k++)
            sum[k] += v_load(x, j + k * TR_LANES, n);
    return v_sum(sum) / (float)n;
}

/* Sum of (x - mean)^2. */
static float spread_of(struct run x, int64_t n, float mean)
{
    vf sum[TR_SUM_VECS] = { 0 };
    for (int64_t j = 0; j < n; j += TR_SUM_LANES) {
#pragma GCC unroll 16
        for (int k = 0; k < TR_SUM_VECS; k++) {
            vf d = v_load_or(x, j + k * TR_LANES, n, mean) - mean;
            sum[k] += d * d;
        }
    }
    return v_sum(sum);
}

static void layernorm_row(const struct tr_call *c, int64_t row, int64_t col, int64_t n)
{
    struct run x = run_at(&c->in[0], row, col), y = run_at(&c->out[0], row, col);
    struct run w = run_at(&c->in[1], 0, col), b = run_at(&c->in[2], 0, col);
    float *stats = (float *)c->out[1].data + row * c->out[1].ld;
    float mean = mean_of(x, n), rstd = rstd_of(spread_of(x, n, mean), n, c->attr.eps);
    for (int64_t j = 0; j < n; j += TR_LANES) {
        vf h = (v_load(x, j, n) - mean) * rstd * v_load(w, j, n);
        v_store(y, j, n, b.p ? h + v_load(b, j, n) : h);
    }
    stats[0] = mean;
    stats[1] = rstd;
}

void TR_FAST(layernorm)(const struct tr_call *c)
{
    tr_fast_run(c, c->in[0].rows, c->in[0].cols, c->in[0].cols, layernorm_row);
}

static void layernorm_dw_stripe(const struct tr_call *c, int64_t row, int64_t col, int64_t end)
{
    const struct tr_view *dy = &c->in[0], *x = &c->in[1], *stats = &c->in[3];
    struct run dw = run_at(&c->out[1], row, 0), db = run_at(&c->out[2], row, 0);
    struct stripe w, b;
    stripe_load(&w, dw, col, end, c->accumulate[1]);
    stripe_load(&b, db, col, end, c->accumulate[2]);
    for (int64_t n = 0; n < dy->rows; n++) {
        const float *stat = (const float *)stats->data + n * stats->ld;
        struct run d = run_at(dy, n, 0), xs = run_at(x, n, 0);
        float mean = stat[0], rstd = stat[1];
        vf *sum_w = w.sum, *sum_b = b.sum;
        for (int64_t j = col; j < end; j += TR_LANES) {
            vf g = v_load(d, j, end);
            *sum_w++ += g * ((v_load(xs, j, end) - mean) * rstd);
            *sum_b++ += g;
        }
    }
    stripe_store(&w, dw, col, end);
    stripe_store(&b, db, col, end);
}

/* With h = (x - mean) * rstd and g = dy * w: dx = rstd * (g - mean(g) - h * mean(g h)). */
static void layernorm_dx_row(const struct tr_call *c, int64_t row, int64_t col, int64_t n)
{
    const float *stat = (const float *)c->in[3].data + row * c->in[3].ld;
    struct run dy = run_at(&c->in[0], row, col), x = run_at(&c->in[1], row, col), w = run_at(&c->in[2], 0, col);
    struct run addend = run_at(&c->in[4], row, col), dx = run_at(&c->out[0], row, col);
    float mean = stat[0], rstd = stat[1];
    vf sum_g[TR_SUM_VECS] = { 0 }, sum_gh[TR_SUM_VECS] = { 0 };
    for (int64_t j = 0; j < n; j += TR_SUM_LANES) {
#pragma GCC unroll 16
        for (int k = 0; k < TR_SUM_VECS; k++) {
            int64_t i = j + k * TR_LANES;
            vf g = v_load(dy, i, n) * v_load(w, i, n);
            sum_g[k] += g;
            sum_gh[k] += g * ((v_load(x, i, n) - mean) * rstd);
        }
    }
    float mean_g = v_sum(sum_g) / (float)n, mean_gh = v_sum(sum_gh) / (float)n;
    for (int64_t j = 0; j < n; j += TR_LANES) {
        vf g = v_load(dy, j, n) * v_load(w, j, n), h = (v_load(x, j, n) - mean) * rstd;
        vf d = (g - mean_g - h * mean_gh) * rstd;
        v_store(dx, j, n, addend.p ? d + v_load(addend, j, n) : d);
    }
}

void TR_FAST(layernorm_bwd)(const struct tr_call *c)
{
    const struct tr_view *x = &c->in[1];
    if (c->out[1].data)
        tr_fast_run_stripes(c, x->cols, layernorm_dw_stripe);
    tr_fast_run(c, x->rows, x->cols, x->cols, layernorm_dx_row);
}

static int64_t group_of(const struct tr_call *c, const struct tr_view *x)
{
    return c->attr.group ? c->attr.group : x->cols;
}

static void rmsnorm_row(const struct tr_call *c, int64_t row, int64_t col, int64_t end)
{
    int64_t n = group_of(c, &c->in[0]);
    struct run w = run_at(&c->in[1], 0, 0);
    float *rstds = (float *)c->out[1].data + row * c->out[1].ld;
    for (; col < end; col += n) {
        struct run x = run_at(&c->in[0], row, col), y = run_at(&c->out[0], row, col);
        float rstd = rstd_of(spread_of(x, n, 0.0f), n, c->attr.eps);
        for (int64_t j = 0; j < n; j += TR_LANES)
            v_store(y, j, n, v_load(x, j, n) * rstd * (v_load(w, j, n) + c->attr.weight_offset));
        *rstds++ = rstd;
    }
}

void TR_FAST(rmsnorm)(const struct tr_call *c)
{
    tr_fast_run(c, c->in[0].rows, c->in[0].cols, c->in[0].cols, rmsnorm_row);
}

static void rmsnorm_dw_stripe(const struct tr_call *c, int64_t row, int64_t col, int64_t end)
{
    const struct tr_view *dy = &c->in[0], *x = &c->in[1], *rstds = &c->in[3];
    int64_t group = group_of(c, x);
    struct run dw = run_at(&c->out[1], row, 0);
    struct stripe w;
    stripe_load(&w, dw, col, end, c->accumulate[1]);
    for (int64_t n = 0; n < dy->rows; n++) {
        const float *rstd = (const float *)rstds->data + n * rstds->ld;
        for (int64_t first = 0; first < x->cols; first += group, rstd++) {
            struct run d = run_at(dy, n, first), xs = run_at(x, n, first);
            vf *sum = w.sum;
            for (int64_t j = col; j < end; j += TR_LANES)
                *sum++ += v_load(d, j, end) * (v_load(xs, j, end) * *rstd);
        }
    }
    stripe_store(&w, dw, col, end);
}

/* With h = x * rstd and g = dy * (offset + w), per group: dx = rstd * (g - h * mean(g h)). */
static void rmsnorm_dx_group(const struct tr_call *c, int64_t row, int64_t col, int64_t n, float rstd)
{
    struct run dy = run_at(&c->in[0], row, col), x = run_at(&c->in[1], row, col), w = run_at(&c->in[2], 0, 0);
    struct run addend = run_at(&c->in[4], row, col), dx = run_at(&c->out[0], row, col);
    float offset = c->attr.weight_offset;
    vf sum[TR_SUM_VECS] = { 0 };
    for (int64_t j = 0; j < n; j += TR_SUM_LANES) {
#pragma GCC unroll 16
        for (int k = 0; k < TR_SUM_VECS; k++) {
            int64_t i = j + k * TR_LANES;
            sum[k] += v_load(dy, i, n) * (v_load(w, i, n) + offset) * (v_load(x, i, n) * rstd);
        }
    }
    float mean = v_sum(sum) / (float)n;
    for (int64_t j = 0; j < n; j += TR_LANES) {
        vf g = v_load(dy, j, n) * (v_load(w, j, n) + offset), h = v_load(x, j, n) * rstd;
        vf d = (g - h * mean) * rstd;
        v_store(dx, j, n, addend.p ? d + v_load(addend, j, n) : d);
    }
}

static void rmsnorm_dx_row(const struct tr_call *c, int64_t row, int64_t col, int64_t end)
{
    int64_t n = group_of(c, &c->in[1]);
    const float *rstd = (const float *)c->in[3].data + row * c->in[3].ld;
    for (; col < end; col += n)
        rmsnorm_dx_group(c, row, col, n, *rstd++);
}

void TR_FAST(rmsnorm_bwd)(const struct tr_call *c)
{
    const struct tr_view *x = &c->in[1];
    if (c->out[1].data)
        tr_fast_run_stripes(c, group_of(c, x), rmsnorm_dw_stripe);
    tr_fast_run(c, x->rows, x->cols, x->cols, rmsnorm_dx_row);
}

/* Pairs half a head apart. */
static void turn_halves(struct run x, struct run y, int64_t half, struct run cosines, struct run sines, float sign)
{
    int64_t width = x.is_half ? 2 : 4;
    struct run x2 = x, y2 = y;
    x2.p += half * width;
    y2.p += half * width;
    for (int64_t j = 0; j < half; j += TR_LANES) {
        vf a = v_load(x, j, half), b = v_load(x2, j, half);
        vf cosp = v_load(cosines, j, half), sinp = v_load(sines, j, half) * sign;
        v_store(y, j, half, a * cosp - b * sinp);
        v_store(y2, j, half, b * cosp + a * sinp);
    }
}

/* Pairs of neighbours. */
static void turn_neighbours(struct run x, struct run y, int64_t half, struct run cosines, struct run sines, float sign)
{
    for (int64_t j = 0; j < half; j += TR_LANES) {
        vf cosp = v_load(cosines, j, half), sinp = v_load(sines, j, half) * sign;
        vf in[2] = { v_load(x, 2 * j, 2 * half), v_load(x, 2 * j + TR_LANES, 2 * half) };
        float t[2 * TR_LANES];
        memcpy(t, in, sizeof t);
        for (int l = 0; l < TR_LANES; l++) {
            float a = t[2 * l], b = t[2 * l + 1];
            t[2 * l] = a * cosp[l] - b * sinp[l];
            t[2 * l + 1] = b * cosp[l] + a * sinp[l];
        }
        memcpy(in, t, sizeof t);
        v_store(y, 2 * j, 2 * half, in[0]);
        v_store(y, 2 * j + TR_LANES, 2 * half, in[1]);
    }
}

static void rope_row(const struct tr_call *c, int64_t row, int64_t col, int64_t end)
{
    const struct tr_view *position = &c->in[1], *table = &c->in[2];
    int64_t half = table->cols / 2, p = ((const int32_t *)position->data)[row * position->ld];
    struct run cosines = run_at(table, p, 0), sines = run_at(table, p, half);
    float sign = c->attr.inverse ? -1.0f : 1.0f;
    for (; col < end; col += c->attr.head_dim) {
        struct run x = run_at(&c->in[0], row, col), y = run_at(&c->out[0], row, col);
        (c->attr.is_interleaved ? turn_neighbours : turn_halves)(x, y, half, cosines, sines, sign);
        for (int64_t j = 2 * half; j < c->attr.head_dim; j += TR_LANES)
            v_store(y, j, c->attr.head_dim, v_load(x, j, c->attr.head_dim));
    }
}

void TR_FAST(rope)(const struct tr_call *c)
{
    tr_fast_run(c, c->in[0].rows, c->in[0].cols, c->in[0].cols, rope_row);
}

static void regroup_row(const struct tr_call *c, int64_t row, int64_t col, int64_t end)
{
    int64_t d = c->attr.head_dim, n_q = c->attr.n_heads_q / c->attr.n_heads_kv, groups = (end - col) / d / (n_q + 2);
    for (int64_t g = 0; g < groups; g++)
        for (int64_t h = 0; h < n_q + 2; h++) {
            int64_t grouped = g * (n_q + 2) + h, apart = h < n_q ? g * n_q + h : h * groups + g;
            struct run x = run_at(&c->in[0], row, (c->attr.inverse ? apart : grouped) * d);
            struct run y = run_at(&c->out[0], row, (c->attr.inverse ? grouped : apart) * d);
            for (int64_t j = 0; j < d; j += TR_LANES)
                v_store(y, j, d, v_load(x, j, d));
        }
}

void TR_FAST(regroup)(const struct tr_call *c)
{
    tr_fast_run(c, c->in[0].rows, c->in[0].cols, c->in[0].cols, regroup_row);
}
