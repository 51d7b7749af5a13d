/* fast_decode.c - attention of new rows over a cache of keys and values. Generation runs it once per token and layer.
 *
 * The bytes of the cache bound its speed, so each is read from memory once and in order. A task is a chunk of keys, of
 * all heads. It walks them in blocks that stay in the second cache while all query heads read them, and leaves a
 * running maximum, a sum and an output for each head; then the chunks are merged. Chunks depend on the position only,
 * so bits do not depend on threads. Rejected: a task for each key head (its keys are pieces of rows, which no machine
 * reads ahead).
 */
#include "ops/cpu/fast.h"
#include "ops/cpu/simd.h"
#include <math.h>

enum {
    KEYS = 2 * TR_SUM_LANES,
    CHUNK = TR_DECODE_CHUNK,
    HEADER = TR_DECODE_HEADER,
    MAX_HEAD = 1024,
    PROMPT_ROWS = 8,
    LINE = 64,
    VECS = 4,
    HEADS = TR_LANES == 16 ? 4 : 2
};

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

static float max_of(const float *score)
{
    struct run s = { .p = (char *)score };
    vf top = v_load(s, 0, KEYS);
    float lane[TR_LANES], most;
    for (int64_t k = TR_LANES; k < KEYS; k += TR_LANES) {
        vf x = v_load(s, k, KEYS);
        top = v_select(x > top, x, top);
    }
    memcpy(lane, &top, sizeof lane);
    most = lane[0];
    for (int i = 1; i < TR_LANES; i++)
        most = lane[i] > most ? lane[i] : most;
    return most;
}

/* score becomes exp(score - maximum) of n keys; returns their sum. */
static float softmax_of(float *score, int64_t n, float softcap, float *top)
{
    struct run s = { .p = (char *)score };
    vf total[TR_SUM_VECS] = { 0 };
    for (int64_t k = 0; softcap > 0 && k < n; k += TR_LANES)
        v_store(s, k, KEYS, v_tanh(v_load(s, k, KEYS) / softcap) * softcap);
    for (int64_t k = n; k < KEYS; k++)
        score[k] = -INFINITY;
    *top = fmaxf(*top, max_of(score));
    for (int64_t k = 0; k < KEYS; k += TR_SUM_LANES)
        TR_UNROLL
    for (int i = 0; i < TR_SUM_VECS; i++) {
        vf w = v_exp(v_load(s, k + i * TR_LANES, KEYS) - *top);
        v_store(s, k + i * TR_LANES, KEYS, w);
        total[i] += w;
    }
    return v_sum(total);
}

/* ---- a block of keys for some query heads of one key head ----
 *
 * The element type and the number of query heads are constants where these are inlined: no load asks for its type, and
 * a key that is loaded serves all of them from registers. */

struct key_block {
    const struct tr_view *keys, *values;
    int64_t row, col, n, dim; /* n keys from row and col on */
    enum tr_dtype dtype;
    bool is_whole; /* dim is a multiple of TR_LANES */
    float factor;
    int n_heads;
    const float *q; /* (n_heads, ld_q) */
    int64_t ld_q;
    float (*score)[KEYS]; /* (n_heads, KEYS) */
};

TR_FORCE_INLINE struct run row_of(const struct tr_view *v, const struct key_block *b, int64_t k)
{
    struct run r = run_at(v, b->row + k, b->col);
    return (struct run){ r.p, b->dtype != TR_F32, b->dtype == TR_F16 };
}

TR_FORCE_INLINE struct run query_of(const struct key_block *b, int64_t head)
{
    return (struct run){ .p = (char *)(b->q + head * b->ld_q) };
}

/* Elements [e, e + TR_LANES) of a row; without a way to a partial vector sums stay in registers. */
TR_FORCE_INLINE vf load_of(const struct key_block *b, struct run r, int64_t e)
{
    vf f;
    vh h;
    if (!b->is_whole)
        return v_load(r, e, b->dim);
    if (r.is_half) {
        memcpy(&h, r.p + e * 2, sizeof h);
        return r.is_f16 ? v_of_f16(h) : v_of_bf16(h);
    }
    memcpy(&f, r.p + e * 4, sizeof f);
    return f;
}

TR_FORCE_INLINE void store_of(const struct key_block *b, struct run r, int64_t e, vf f)
{
    if (b->is_whole)
        memcpy(r.p + e * 4, &f, sizeof f);
    else
        v_store(r, e, b->dim, f);
}

/* The products of key k with each query in TR_LANES partial sums: sum[head][at]. */
TR_FORCE_INLINE void dot_each(const struct key_block *b, int64_t k, int64_t at, vf sum[][TR_LANES])
{
    struct run key = row_of(b->keys, b, k);
    vf part[HEADS][TR_SUM_VECS] = { 0 };
    for (int64_t e = 0; e < b->dim; e += TR_SUM_LANES)
        TR_UNROLL
    for (int v = 0; v < TR_SUM_VECS; v++)
        if (e + v * TR_LANES < b->dim) {
            vf x = load_of(b, key, e + v * TR_LANES);
            TR_UNROLL
            for (int g = 0; g < b->n_heads; g++)
                part[g][v] += load_of(b, query_of(b, g), e + v * TR_LANES) * x;
        }
    TR_UNROLL
    for (int g = 0; g < b->n_heads; g++) {
        TR_UNROLL
        for (int h = TR_SUM_VECS / 2; h > 0; h /= 2)
            TR_UNROLL
        for (int i = 0; i < h; i++)
            part[g][i] += part[g][i + h];
        sum[g][at] = part[g][0];
    }
}

TR_FORCE_INLINE void scores_of(const struct key_block *b)
{
    for (int64_t k = 0; k < b->n; k += TR_LANES) {
        vf sum[HEADS][TR_LANES];
        for (int64_t i = 0; i < TR_LANES; i++) /* past the end the last key again */
            dot_each(b, tr_min64(k + i, b->n - 1), i, sum);
        TR_UNROLL
        for (int g = 0; g < b->n_heads; g++)
            v_store((struct run){ .p = (char *)b->score[g] }, k, KEYS, b->factor * v_sum_each(sum[g]));
    }
}

/* out[head] = out * keep + the values, each times its weight. VECS vectors of a value at once hide the latency of sums.
 */
TR_FORCE_INLINE void add_values(const struct key_block *b, const float keep[], struct run out[])
{
    for (int64_t e = 0; e < b->dim; e += VECS * TR_LANES) {
        vf acc[HEADS][VECS];
        TR_UNROLL
        for (int i = 0; i < b->n_heads * VECS; i++)
            acc[i / VECS][i % VECS] = e + i % VECS * TR_LANES < b->dim
                                          ? load_of(b, out[i / VECS], e + i % VECS * TR_LANES) * keep[i / VECS]
                                          : v_set(0.0f);
        for (int64_t k = 0; k < b->n; k++) {
            struct run value = row_of(b->values, b, k);
            TR_UNROLL
            for (int i = 0; i < VECS; i++)
                if (e + i * TR_LANES < b->dim) {
                    vf x = load_of(b, value, e + i * TR_LANES);
                    TR_UNROLL
                    for (int g = 0; g < b->n_heads; g++)
                        acc[g][i] += x * b->score[g][k];
                }
        }
        TR_UNROLL
        for (int i = 0; i < b->n_heads * VECS; i++)
            if (e + i % VECS * TR_LANES < b->dim)
                store_of(b, out[i / VECS], e + i % VECS * TR_LANES, acc[i / VECS][i % VECS]);
    }
}

/* Keys [j, j + n) for query heads [h, h + n_heads) of one group. */
TR_FORCE_INLINE void attend(const struct decode *d, int64_t h, int n_heads, int64_t chunk, int64_t j, int64_t n,
                            enum tr_dtype dtype, bool is_whole)
{
    const struct tr_call *c = d->c;
    const struct tr_attr *a = &c->attr;
    float query[HEADS * MAX_HEAD], score[HEADS][KEYS], keep[HEADS];
    struct run out[HEADS];
    struct key_block b = {
        .keys = &c->in[1], .values = &c->in[2], .row = j, .n = n, .dim = a->head_dim, .dtype = dtype
    };
    b.is_whole = is_whole;
    b.col = h / (a->n_heads_q / a->n_heads_kv) * b.dim;
    b.factor = v_factor(c);
    b.n_heads = n_heads;
    b.ld_q = (int64_t)tr_round_up((size_t)b.dim, TR_LANES);
    b.q = query;
    b.score = score;
    for (int g = 0; g < n_heads; g++)
        for (int64_t e = 0; e < b.dim; e += TR_LANES)
            v_store(query_of(&b, g), e, b.ld_q, v_load(run_at(&c->in[0], d->row, (h + g) * b.dim), e, b.dim));
    scores_of(&b);
    for (int g = 0; g < n_heads; g++) {
        float *part = part_of(d, h + g, chunk), top = part[0], sum = softmax_of(score[g], n, a->softcap, &top);
        keep[g] = expf(part[0] - top);
        part[0] = top;
        part[1] = part[1] * keep[g] + sum;
        out[g] = (struct run){ .p = (char *)(part + HEADER) };
    }
    add_values(&b, keep, out);
}

/* Returns how many query heads it has done, of those from h on that share their key head. */
TR_FORCE_INLINE int attend_as(const struct decode *d, int64_t h, int64_t chunk, int64_t j, int64_t n,
                              enum tr_dtype dtype)
{
    int64_t group = d->c->attr.n_heads_q / d->c->attr.n_heads_kv, left = group - h % group;
    if (d->c->attr.head_dim % TR_LANES != 0) {
        attend(d, h, 1, chunk, j, n, dtype, false);
        return 1;
    }
    if (left >= HEADS)
        attend(d, h, HEADS, chunk, j, n, dtype, true);
    else if (left >= 2)
        attend(d, h, 2, chunk, j, n, dtype, true);
    else
        attend(d, h, 1, chunk, j, n, dtype, true);
    return left >= HEADS ? HEADS : left >= 2 ? 2 : 1;
}

static int attend_heads(const struct decode *d, int64_t h, int64_t chunk, int64_t j, int64_t n)
{
    switch (d->c->in[1].dtype) {
    case TR_F32:
        return attend_as(d, h, chunk, j, n, TR_F32);
    case TR_BF16:
        return attend_as(d, h, chunk, j, n, TR_BF16);
    default:
        return attend_as(d, h, chunk, j, n, TR_F16);
    }
}

/* Brings rows [row, row + n) of the cache into the second-level cache in the order in which they lie in memory.
 * Machines read ahead of such loads, not of those of one head, which are pieces of rows: three times the speed.
 * Prefetch instructions are dropped while too many reads are under way. */
static void bring(const struct tr_view *v, int64_t row, int64_t n)
{
    size_t bytes = tr_dtype_bytes(v->dtype), n_bytes = (size_t)v->cols * bytes;
    const char *p = (const char *)v->data + (size_t)(row * v->ld) * bytes;
    for (int64_t k = 0; k < n; k++, p += (size_t)v->ld * bytes)
        for (size_t at = 0; at < n_bytes; at += LINE)
            (void)*(const volatile char *)(p + at);
}

/* Query heads take turns block by block: rows of the cache hold all key heads, and are read from memory once, in the
 * order in which they lie there. */
static void chunk_task(void *ctx, int64_t chunk, int worker)
{
    const struct decode *d = ctx;
    const struct tr_attr *a = &d->c->attr;
    int64_t begin = d->first + chunk * CHUNK, end = tr_min64(begin + CHUNK, d->last + 1);
    (void)worker;
    for (int64_t h = 0; h < a->n_heads_q; h++) {
        float *part = part_of(d, h, chunk);
        memset(part, 0, (size_t)(HEADER + a->head_dim) * sizeof *part);
        part[0] = -INFINITY;
    }
    for (int64_t j = begin; j < end; j += KEYS) {
        int64_t n = tr_min64(KEYS, end - j);
        bring(&d->c->in[1], j, n);
        bring(&d->c->in[2], j, n);
        for (int64_t h = 0; h < a->n_heads_q;)
            h += attend_heads(d, h, chunk, j, n);
    }
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
    tr_pool_run(c->pool, d.n_chunks, chunk_task, &d);
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
