/* fast_decode.c - attention of new rows over a cache of keys and values. Generation runs it once per token and layer.
 *
 * The bytes of the cache bound its speed, so each is read once. A task is one key head over a chunk of keys. It walks
 * them in blocks that stay in the first cache while all query heads of the group read them, and leaves a running
 * maximum, a sum and an output for each head; then the chunks are merged. Chunks depend on the position only, so bits
 * do not depend on threads. Rejected: a task for each query head (reads the keys of a group several times, and nine
 * heads are uneven work for two threads).
 */
#include "ops/cpu/fast.h"
#include "ops/cpu/simd.h"
#include <math.h>

enum { KEYS = TR_SUM_LANES, CHUNK = TR_DECODE_CHUNK, HEADER = TR_DECODE_HEADER, MAX_HEAD = 1024, PROMPT_ROWS = 8 };

static float dot_of(struct run a, struct run b, int64_t n)
{
    vf sum[TR_SUM_VECS] = { 0 };
    for (int64_t j = 0; j < n; j += TR_SUM_LANES)
#pragma GCC unroll 16
        for (int k = 0; k < TR_SUM_VECS; k++)
            sum[k] += v_load(a, j + k * TR_LANES, n) * v_load(b, j + k * TR_LANES, n);
    return v_sum(sum);
}

/* One row of queries over keys [first, last]. */
struct decode {
    const struct tr_call *c;
    int64_t row, first, last, n_chunks;
};

/* What a chunk leaves of a query head: the maximum, the sum and, from HEADER on, the output. */
static float *part_of(const struct decode *d, int64_t head, int64_t chunk)
{
    return (float *)d->c->scratch + (head * d->n_chunks + chunk) * tr_decode_floats(&d->c->attr);
}

/* score becomes exp(score - maximum) of n keys; returns their sum. */
static float softmax_of(float *score, int64_t n, float softcap, float *top)
{
    struct run s = { .p = (char *)score };
    vf total[TR_SUM_VECS] = { 0 };
    for (int64_t k = 0; softcap > 0 && k < n; k += TR_LANES)
        v_store(s, k, KEYS, v_tanh(v_load(s, k, KEYS) / softcap) * softcap);
    for (int64_t k = 0; k < n; k++)
        *top = score[k] > *top ? score[k] : *top;
    for (int64_t k = n; k < KEYS; k++)
        score[k] = -INFINITY;
    for (int64_t k = 0, i = 0; k < KEYS; k += TR_LANES, i++) {
        vf w = v_exp(v_load(s, k, KEYS) - *top);
        v_store(s, k, KEYS, w);
        total[i] = w;
    }
    return v_sum(total);
}

/* Keys [j, j + n) for query head h. */
static void attend_block(const struct decode *d, int64_t h, int64_t j, int64_t n, float *part)
{
    const struct tr_call *c = d->c;
    const struct tr_attr *a = &c->attr;
    int64_t dim = a->head_dim, kv_col = h / (a->n_heads_q / a->n_heads_kv) * dim;
    float score[KEYS] = { 0 }, top = part[0], factor = v_factor(c);
    struct run q = run_at(&c->in[0], d->row, h * dim), o = { .p = (char *)(part + HEADER) };
    for (int64_t k = 0; k < n; k++)
        score[k] = factor * dot_of(q, run_at(&c->in[1], j + k, kv_col), dim);
    float sum = softmax_of(score, n, a->softcap, &top), keep = expf(part[0] - top);
    part[0] = top;
    part[1] = part[1] * keep + sum;
    for (int64_t e = 0; e < dim; e += TR_LANES) {
        vf acc = v_load(o, e, dim) * keep;
        for (int64_t k = 0; k < n; k++)
            acc += v_load(run_at(&c->in[2], j + k, kv_col), e, dim) * score[k];
        v_store(o, e, dim, acc);
    }
}

static void chunk_task(void *ctx, int64_t task, int worker)
{
    const struct decode *d = ctx;
    const struct tr_attr *a = &d->c->attr;
    int64_t chunk = task % d->n_chunks, group = a->n_heads_q / a->n_heads_kv, h = task / d->n_chunks * group;
    int64_t begin = d->first + chunk * CHUNK, end = tr_min64(begin + CHUNK, d->last + 1);
    (void)worker;
    for (int64_t g = h; g < h + group; g++) {
        float *part = part_of(d, g, chunk);
        memset(part, 0, (size_t)(HEADER + a->head_dim) * sizeof *part);
        part[0] = -INFINITY;
    }
    for (int64_t j = begin; j < end; j += KEYS)
        for (int64_t g = h; g < h + group; g++)
            attend_block(d, g, j, tr_min64(KEYS, end - j), part_of(d, g, chunk));
}

/* Adds the chunks of a query head in order, relative to the largest maximum. */
static void merge_head(const struct decode *d, int64_t h)
{
    const struct tr_call *c = d->c;
    int64_t dim = c->attr.head_dim;
    struct run out = run_at(&c->out[0], d->row, h * dim), o = { .p = (char *)(part_of(d, h, 0) + HEADER) };
    float top = -INFINITY, sum = 0;
    for (int64_t i = 0; i < d->n_chunks; i++)
        top = fmaxf(top, part_of(d, h, i)[0]);
    for (int64_t i = 0; i < d->n_chunks; i++) {
        float *part = part_of(d, h, i), weight = expf(part[0] - top);
        struct run from = { .p = (char *)(part + HEADER) };
        sum += weight * part[1];
        for (int64_t e = 0; e < dim; e += TR_LANES)
            v_store(o, e, dim, (i ? v_load(o, e, dim) : v_set(0.0f)) + v_load(from, e, dim) * weight);
    }
    for (int64_t e = 0; e < dim; e += TR_LANES)
        v_store(out, e, dim, v_load(o, e, dim) / sum);
}

static int64_t position_of(const struct tr_call *c, int64_t row)
{
    return ((const int32_t *)c->in[3].data)[row * c->in[3].ld];
}

static void decode_row(const struct tr_call *c, int64_t row)
{
    const struct tr_attr *a = &c->attr;
    struct decode d = { .c = c, .row = row, .last = position_of(c, row) };
    d.first = a->window > 0 ? tr_max64(0, d.last - a->window + 1) : 0;
    d.n_chunks = (d.last - d.first) / CHUNK + 1;
    tr_pool_run(c->pool, d.n_chunks * a->n_heads_kv, chunk_task, &d);
    for (int64_t h = 0; h < a->n_heads_q; h++)
        merge_head(&d, h);
}

/* Rows [row, last) of one sequence, whose cache is c's. Rows whose positions count up are a prompt and share the keys
 * that they read; a few rows are decoded one by one. */
static void decode_sequence(const struct tr_call *c, int64_t row, int64_t last)
{
    for (int64_t end; row < last; row = end) {
        for (end = row + 1; end < last && position_of(c, end) == position_of(c, end - 1) + 1; end++)
            ;
        bool is_prompt = end - row >= PROMPT_ROWS;
        if (is_prompt)
            tr_fast_attention_prompt(c, row, end - row, position_of(c, row));
        for (int64_t i = row; !is_prompt && i < end; i++)
            decode_row(c, i);
    }
}

static struct tr_view rows_of(const struct tr_view *v, int64_t first, int64_t n)
{
    struct tr_view rows = *v;
    rows.data = (char *)v->data + (size_t)(first * v->ld) * tr_dtype_bytes(v->dtype);
    rows.rows = n;
    return rows;
}

void TR_FAST(attention_cached)(const struct tr_call *c)
{
    int64_t n = c->in[0].rows, step = c->attr.seq_len > 0 ? c->attr.seq_len : n;
    int64_t n_rows = tr_cache_rows(&c->attr, n, c->in[1].rows);
    TR_BUG_ON(c->attr.head_dim > MAX_HEAD);
    for (int64_t row = 0; row < n; row += step) {
        struct tr_call one = *c;
        for (int k = 1; k < 3; k++)
            one.in[k] = rows_of(&c->in[k], tr_cache_first(&c->attr, row, n_rows), n_rows);
        decode_sequence(&one, row, tr_min64(row + step, n));
    }
}

void TR_FAST(cache_put)(const struct tr_call *c)
{
    const struct tr_view *x = &c->in[0], *cache = &c->out[0];
    int64_t n_rows = tr_cache_rows(&c->attr, x->rows, cache->rows);
    for (int64_t i = 0; i < x->rows; i++) {
        int64_t row = ((const int32_t *)c->in[1].data)[i * c->in[1].ld];
        struct run to = run_at(cache, tr_cache_first(&c->attr, i, n_rows) + row, 0);
        for (int64_t j = 0; row >= 0 && j < x->cols; j += TR_LANES)
            v_store(to, j, x->cols, v_load(run_at(x, i, 0), j, x->cols));
    }
}
