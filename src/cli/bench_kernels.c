/* bench_kernels.c - what CPU kernels take, called as a step calls them: operands where a step's would be, in memory
 * that the device gives a step (huge pages: 4 KiB ones cost up to 10 %). The same functions time a rank that has all
 * cores and a rank that has one.
 */
#include "cli/bench_kernels.h"
#include "base/base.h"
#include <math.h>
#include <stdlib.h>

enum { POOL_FLOATS = 16 << 20, SCRATCH_FLOATS = 4 << 20, SMALL = 256 };

/* A meter's memory is some pools, which calls take in turn, and scratch of every thread. */
static size_t memory_bytes(const struct tr_meter *m)
{
    return ((size_t)m->n_pools * POOL_FLOATS + (size_t)m->n_threads * SCRATCH_FLOATS) * sizeof(float);
}

double tr_meter_now(void)
{
    return (double)tr_clock_us() * 1e-6;
}

struct tr_view tr_meter_view(struct tr_meter *m, int64_t rows, int64_t cols)
{
    struct tr_view v = { .data = m->floats + m->n_used, .dtype = TR_F32, .rows = rows, .cols = cols, .ld = cols };
    m->n_used += ((size_t)(rows * cols) + 15) / 16 * 16;
    TR_BUG_ON(m->n_used > POOL_FLOATS);
    return v;
}

/* Every call finds its operands where a step's would be: the first, which another kernel has just written, in the
 * cache, the others, weights and what is kept for backward, not. So those go on to their next copy in the pool, which
 * is larger than a core's cache. An optimizer's are all of the second kind; a gradient on its way back is of the first.
 */
static void move_views(struct tr_call *c, ptrdiff_t n_floats)
{
    bool has_none = c->op == TR_OP_ADAMW || c->op == TR_OP_SUMSQ;
    for (int i = has_none ? 0 : 1; i < TR_MAX_IN + TR_MAX_OUT; i++) {
        struct tr_view *v = i < TR_MAX_IN ? &c->in[i] : &c->out[i - TR_MAX_IN];
        bool is_first = i == TR_MAX_IN && c->op == TR_OP_LINEAR_DX;
        if (v->dtype == TR_F32 && v->rows * v->cols >= SMALL && !is_first)
            v->data = (float *)v->data + n_floats;
    }
}

void tr_meter_run(struct tr_meter *m, struct tr_call *c, int n)
{
    tr_kernel k = tr_op_cpu_fast(c->op);
    size_t n_copies = POOL_FLOATS / m->n_used, at = 0;
    for (int i = 0; i < n; i++) {
        k(c);
        bool is_last = ++at == n_copies || i == n - 1;
        move_views(c, is_last ? -(ptrdiff_t)((at - 1) * m->n_used) : (ptrdiff_t)m->n_used);
        at = is_last ? 0 : at;
    }
    n_copies = (size_t)n < n_copies ? (size_t)n : n_copies;
    m->n_touched = n_copies * m->n_used > m->n_touched ? n_copies * m->n_used : m->n_touched;
}

static struct tr_view ints(struct tr_meter *m, int64_t rows, bool counts_up)
{
    struct tr_view v = tr_meter_view(m, rows, 1);
    int32_t *p = v.data;
    v.dtype = TR_I32;
    for (int64_t i = 0; i < rows; i++)
        p[i] = counts_up ? (int32_t)i : 0;
    return v;
}

double tr_meter_median(double *x, int n)
{
    qsort(x, (size_t)n, sizeof *x, tr_by_double);
    return x[n / 2];
}

/* Pages that nobody wrote are all the same one, in the cache; and what a kernel left may be so small that arithmetic
 * on it is slow. */
static void fill(struct tr_meter *m)
{
    const size_t n = 97 * 64;
    for (size_t i = 0; i < n; i++)
        m->floats[i] = 0.01f * (float)(i % 97 + 1);
    for (size_t at = n; at < m->n_touched; at += n)
        memcpy(m->floats + at, m->floats, (n < m->n_touched - at ? n : m->n_touched - at) * sizeof *m->floats);
    m->n_used = m->n_touched = 0;
    m->turn = (m->turn + 1) % m->n_pools; /* these pages are in a cache now, if one is that large */
    m->floats = m->base + (size_t)m->turn * POOL_FLOATS;
}

/* Seconds of one call: the mean of as many as fill a part of the time. */
static double time_call(struct tr_meter *m, struct tr_call *c)
{
    double each = m->seconds / m->n_passes;
    TR_BUG_ON(tr_op_scratch(c, m->n_threads) > (size_t)m->n_threads * SCRATCH_FLOATS * sizeof *m->floats);
    c->scratch = m->base + (size_t)m->n_pools * POOL_FLOATS;
    c->pool = m->pool;
    if (m->gate)
        pthread_barrier_wait(m->gate);
    double start = tr_meter_now();
    tr_meter_run(m, c, 1);
    if (tr_meter_now() - start < each) { /* the first one is cold */
        start = tr_meter_now();
        tr_meter_run(m, c, 1);
    }
    int n = (int)fmin(1e6, 1 + each / (tr_meter_now() - start + 1e-6));
    start = tr_meter_now();
    tr_meter_run(m, c, n);
    double seconds = (tr_meter_now() - start) / n;
    fill(m);
    return seconds;
}

/* The mean of forward and backward. */
static double product(struct tr_meter *m, int64_t n)
{
    double seconds = 0;
    for (int i = 0; i < 2; i++) {
        struct tr_call c = { .op = i ? TR_OP_LINEAR_DX : TR_OP_LINEAR };
        c.in[0] = tr_meter_view(m, n, n);
        c.in[1] = tr_meter_view(m, n, n);
        c.out[0] = tr_meter_view(m, n, n);
        seconds += time_call(m, &c) / 2;
    }
    return seconds;
}

/* Tokens x width of the kernels between products: as a small model's layer has them. */
enum { T = 512, D = 512, HEADS = 8, HEAD = 64, VOCAB = 4096 };

static double norm(struct tr_meter *m, enum tr_opcode op)
{
    struct tr_call c = { .op = op, .attr = { .eps = 1e-5f, .group = D } };
    bool is_backward = op == TR_OP_LAYERNORM_BWD || op == TR_OP_RMSNORM_BWD;
    bool has_bias = op == TR_OP_LAYERNORM || op == TR_OP_LAYERNORM_BWD;
    struct tr_view stats = tr_meter_view(m, T, has_bias ? 2 : 1);
    int k = 0;
    for (int i = 0; i < (is_backward ? 2 : 1); i++)
        c.in[k++] = tr_meter_view(m, T, D);
    c.in[k++] = tr_meter_view(m, 1, D);
    if (is_backward || has_bias)
        c.in[k++] = is_backward ? stats : tr_meter_view(m, 1, D);
    c.out[0] = tr_meter_view(m, T, D);
    c.out[1] = is_backward ? tr_meter_view(m, 1, D) : stats;
    if (is_backward && has_bias)
        c.out[2] = tr_meter_view(m, 1, D);
    return time_call(m, &c) / (T * D);
}

static double pointwise(struct tr_meter *m, enum tr_opcode op, int64_t rows, int64_t cols)
{
    struct tr_call c = { .op = op,
                         .attr = { .act = op == TR_OP_ACT || op == TR_OP_ACT_BWD ? TR_ACT_GELU_TANH : TR_ACT_SILU } };
    for (int i = 0; i < tr_op_n_in(op); i++)
        c.in[i] = tr_meter_view(m, rows, cols);
    for (int i = 0; i < tr_op_n_out(op); i++)
        c.out[i] = tr_meter_view(m, rows, cols);
    return time_call(m, &c) / (double)(rows * cols);
}

static double rope(struct tr_meter *m)
{
    struct tr_call c = { .op = TR_OP_ROPE, .attr = { .head_dim = HEAD } };
    c.in[0] = tr_meter_view(m, T, D);
    c.in[1] = ints(m, T, true);
    c.in[2] = tr_meter_view(m, T, HEAD);
    c.out[0] = tr_meter_view(m, T, D);
    return time_call(m, &c) / (T * D);
}

/* Rows of so many tokens. */
static struct tr_call attention_call(bool is_backward, int64_t length)
{
    return (struct tr_call){
        .op = is_backward ? TR_OP_ATTENTION_BWD : TR_OP_ATTENTION,
        .in[0].rows = T,
        .attr = { .n_heads_q = HEADS, .n_heads_kv = HEADS, .head_dim = HEAD, .scale = 0.125f, .seq_len = length }
    };
}

static double attention(struct tr_meter *m, bool is_backward, int64_t length)
{
    struct tr_call c = attention_call(is_backward, length);
    int n = is_backward ? 5 : 3; /* do, q, k, v, o; or q, k, v */
    for (int i = 0; i < n; i++)
        c.in[i] = tr_meter_view(m, T, D);
    if (is_backward)
        c.in[n++] = tr_meter_view(m, T, HEADS);
    c.in[n] = ints(m, T, true);
    for (int32_t i = 0, *begin = c.in[n].data; i < T; i++)
        begin[i] = i / (int32_t)length * (int32_t)length;
    for (int i = 0; i < (is_backward ? 3 : 1); i++)
        c.out[i] = tr_meter_view(m, T, D);
    if (!is_backward)
        c.out[1] = tr_meter_view(m, T, HEADS);
    return time_call(m, &c);
}

static double update(struct tr_meter *m)
{
    struct tr_call c = { .op = TR_OP_ADAMW };
    int64_t n = 1 << 20;
    c.in[0] = tr_meter_view(m, 1, n);
    c.in[1] = tr_meter_view(m, 1, TR_STEP_COUNT);
    float *step = c.in[1].data;
    for (int i = 0; i < TR_STEP_COUNT; i++)
        step[i] = 0.5f;
    for (int i = 0; i < 4; i++)
        if (i != 1) /* no copy in another dtype */
            c.out[i] = tr_meter_view(m, 1, n);
    return time_call(m, &c) / (double)n;
}

static double sum_squares(struct tr_meter *m)
{
    struct tr_call c = { .op = TR_OP_SUMSQ };
    int64_t n = 1 << 20;
    c.in[0] = tr_meter_view(m, 1, n);
    c.out[0] = tr_meter_view(m, 1, 2);
    c.out[0].dtype = TR_F64;
    c.out[0].cols = 1;
    return time_call(m, &c) / (double)n;
}

/* The head: whole, or one of the two parts of ranks that split the vocabulary. */
static double head(struct tr_meter *m, enum tr_opcode op)
{
    struct tr_call c = { .op = op };
    c.in[0] = tr_meter_view(m, T, D);
    c.in[1] = tr_meter_view(m, VOCAB, D);
    c.in[3] = ints(m, T, true);
    if (op != TR_OP_HEAD_STATS)
        c.in[4] = tr_meter_view(m, 1, TR_STEP_COUNT);
    int k = 0;
    if (op == TR_OP_HEAD_GRAD) {
        c.in[5] = tr_meter_view(m, T, 1);
        c.in[6] = tr_meter_view(m, T, VOCAB);
    } else {
        c.out[k++] = tr_meter_view(m, T, op == TR_OP_HEAD_STATS ? 2 : 1);
    }
    c.out[k++] = op == TR_OP_HEAD_STATS ? tr_meter_view(m, T, VOCAB) : tr_meter_view(m, T, D);
    if (op != TR_OP_HEAD_STATS)
        c.out[k] = tr_meter_view(m, VOCAB, D);
    return time_call(m, &c);
}

void tr_meter_speed(struct tr_meter *m, struct tr_speed *s)
{
    static const int64_t sizes[] = { 16, 32, 64, 128, 256, 512, 1024 };
    for (size_t i = 0; i < TR_COUNT_OF(sizes); i++) {
        double n = (double)sizes[i];
        s->gemm.at[i] = 2 * n * n * n;
        s->gemm.rate[i] = s->gemm.at[i] / product(m, sizes[i]);
    }
    s->gemm.n = (int)TR_COUNT_OF(sizes);
    s->op_s[TR_COST_NORM] = norm(m, TR_OP_LAYERNORM);
    s->op_s[TR_COST_NORM_BWD] = norm(m, TR_OP_LAYERNORM_BWD);
    s->op_s[TR_COST_RMSNORM] = norm(m, TR_OP_RMSNORM);
    s->op_s[TR_COST_RMSNORM_BWD] = norm(m, TR_OP_RMSNORM_BWD);
    s->op_s[TR_COST_ACT] = pointwise(m, TR_OP_ACT, T, 3 * D);
    s->op_s[TR_COST_ACT_BWD] = pointwise(m, TR_OP_ACT_BWD, T, 3 * D);
    s->op_s[TR_COST_GLU] = pointwise(m, TR_OP_GLU, T, 3 * D);
    s->op_s[TR_COST_GLU_BWD] = pointwise(m, TR_OP_GLU_BWD, T, 3 * D);
    s->op_s[TR_COST_ROPE] = rope(m);
    s->op_s[TR_COST_ADD] = pointwise(m, TR_OP_ADD, T, D);
    s->op_s[TR_COST_SUMSQ] = sum_squares(m);
    s->op_s[TR_COST_LOSS] = head(m, TR_OP_HEAD_LOSS_GRAD);
    s->op_s[TR_COST_STATS] = head(m, TR_OP_HEAD_STATS);
    s->op_s[TR_COST_STATS_BWD] = head(m, TR_OP_HEAD_GRAD);
    s->op_s[TR_COST_UPDATE] = update(m);
    s->op_s[TR_COST_ATTENTION] = attention(m, false, T);
    s->op_s[TR_COST_ATTENTION_ROW] = attention(m, false, T / 8);
    s->op_s[TR_COST_ATTENTION_BWD] = attention(m, true, T);
    s->op_s[TR_COST_ATTENTION_ROW_BWD] = attention(m, true, T / 8);
}

/* What a call of the head adds to its products, a logit. */
static void head_beside(struct tr_speed *s, enum tr_op_cost cost, int n_products)
{
    double flops = 2.0 * T * D * VOCAB, products = n_products * flops / tr_curve_at(&s->gemm, flops);
    s->op_s[cost] = fmax((s->op_s[cost] - products) / ((double)T * VOCAB), 1e-12);
}

/* Long rows say what a flop takes, short ones what a row adds. */
static void attention_parts(struct tr_speed *s, bool is_backward)
{
    struct tr_call calls[2] = { attention_call(is_backward, T / 8), attention_call(is_backward, T) };
    double *flop_s = &s->op_s[is_backward ? TR_COST_ATTENTION_BWD : TR_COST_ATTENTION];
    double *row_s = &s->op_s[is_backward ? TR_COST_ATTENTION_ROW_BWD : TR_COST_ATTENTION_ROW];
    double n[2], t[2] = { *row_s, *flop_s };
    for (int i = 0; i < 2; i++)
        n[i] = tr_op_flops(&calls[i]) * (is_backward ? 1.25 : 1);
    *row_s = fmax(0, t[0] - fmax(0, t[1] - t[0]) / (n[1] - n[0]) * n[0]) / (T * D);
    *flop_s = fmax((t[1] - *row_s * (T * D)) / n[1], 1e-15);
}

void tr_meter_finish(struct tr_speed *s)
{
    head_beside(s, TR_COST_LOSS, 3);
    head_beside(s, TR_COST_STATS, 1);
    head_beside(s, TR_COST_STATS_BWD, 2);
    attention_parts(s, false);
    attention_parts(s, true);
}

enum tr_status tr_meter_open(const struct tr_config *cfg, int n_threads, int n_pools, struct tr_meter *m)
{
    enum tr_status st = TR_OK;
    void *base = NULL;
    *m = (struct tr_meter){ .seconds = cfg->seconds, .n_pools = n_pools };
    m->n_passes = (int)fmax(1, fmin(TR_METER_PASSES, cfg->seconds / TR_METER_SHORTEST_S));
    TR_TRY(tr_device_open("cpu", &m->device));
    TR_TRY(tr_pool_open(n_threads, &m->pool));
    m->n_threads = tr_pool_threads(m->pool);
    TR_TRY(tr_device_reserve(&m->device, TR_SPACE_DEVICE, memory_bytes(m), "bench", &base));
    m->base = m->floats = base;
    for (int i = 0; i < n_pools; i++) {
        m->n_touched = POOL_FLOATS;
        fill(m);
    }
out:
    if (st != TR_OK)
        tr_meter_close(m);
    return st;
}

void tr_meter_close(struct tr_meter *m)
{
    if (m->base)
        tr_device_release(&m->device, TR_SPACE_DEVICE, m->base, memory_bytes(m));
    tr_device_close(&m->device);
    tr_pool_close(m->pool);
    *m = (struct tr_meter){ 0 };
}

double tr_meter_memory_rate(struct tr_meter *m)
{
    return 12 / pointwise(m, TR_OP_ADD, 4096, 1024);
}
