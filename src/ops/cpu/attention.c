/* attention.c - causal attention over packed documents: tiles of 64 queries x 64 keys, online softmax.
 *
 * A task is one query head of one query tile. It owns its rows of the output, and the tiles depend on the documents
 * only, so bits do not depend on threads. No score leaves its tile. Rejected: a whole row of scores per task (falls out
 * of the cache beyond 2048 keys).
 */
#include "ops/cpu/attention.h"
#include "ops/cpu/fast.h"
#include <math.h>

static const float LOWEST = -1e30f; /* finite, so that the difference of two maxima of no score is 0 and not NaN */

struct forward {
    struct attention t;
    const struct tr_view *o, *lse;
    bool merges; /* merges its result with the o and lse of other keys */
    float *work; /* per worker */
    int64_t n_work;
};

/* One worker's buffers. Lane matrices have rows TR_TILE floats apart. */
struct buffers {
    float *q_lanes, *o_lanes; /* (n_cols, TR_TILE) */
    float *s, *keep;          /* (TR_TILE, TR_TILE) */
    float *tile;              /* (TR_TILE, n_cols): q, then o */
    float *max, *sum, *fade;  /* (TR_TILE) */
    struct held keys;
};

static int64_t work_floats(int64_t n_cols, int64_t n_held)
{
    return 3 * TR_TILE * n_cols + 2 * TR_TILE * TR_TILE + 3 * TR_TILE + 2 * n_held * n_cols;
}

static struct buffers buffers_at(const struct forward *f, int worker)
{
    int64_t n_cols = f->t.n_cols;
    struct buffers b = { .q_lanes = f->work + worker * f->n_work };
    b.o_lanes = b.q_lanes + TR_TILE * n_cols;
    b.tile = b.o_lanes + TR_TILE * n_cols;
    b.s = b.tile + TR_TILE * n_cols;
    b.keep = b.s + TR_TILE * TR_TILE;
    b.max = b.keep + TR_TILE * TR_TILE;
    b.sum = b.max + TR_TILE;
    b.fade = b.sum + TR_TILE;
    b.keys.k = b.fade + TR_TILE;
    b.keys.v = b.keys.k + f->t.n_held * n_cols;
    return b;
}

/* s becomes probabilities relative to the running maximum; the earlier sums are rescaled to that maximum. */
static void softmax_step(const struct attention *t, const struct pair *p, struct buffers *b)
{
    for (int64_t lane = 0, row, row_end; lane < TR_TILE; lane += TR_TILE_STEP) {
        if (!tr_attention_rows(p, lane, &row, &row_end))
            continue;
        if (t->ops->softmax(b->s + row * TR_TILE + lane, row_end - row, b->max + lane, b->sum + lane, b->fade + lane))
            t->ops->fade(b->o_lanes + lane, t->n_cols, b->fade + lane);
    }
}

static void drop(const struct pair *p, struct buffers *b)
{
    for (int i = 0; i < p->n_strips; i++)
        for (int64_t row = p->strips[i].row; row < p->strips[i].row_end; row++)
            for (int64_t lane = p->strips[i].lane; lane < p->strips[i].lane_end; lane++)
                b->s[row * TR_TILE + lane] *= b->keep[row * TR_TILE + lane];
}

static void key_tile(const struct attention *t, const struct q_tile *q, int64_t h, int64_t key, struct buffers *b)
{
    struct pair p = tr_attention_pair(t, q, key);
    if (!t->is_by_document)
        tr_attention_hold(t, h / t->group, key, p.n_keys, &b->keys);
    int64_t at = (key - b->keys.row) * t->n_cols;
    tr_attention_scores(t, q, &p, b->keys.k + at, b->q_lanes, b->s);
    softmax_step(t, &p, b);
    if (t->attr.dropout_p > 0) {
        tr_attention_keep(t, q, &p, h, b->keep);
        drop(&p, b);
    }
    tr_attention_to_queries(t, &p, b->keys.v + at, b->s, b->o_lanes);
}

/* Merges two parts of one softmax by their log-sum-exps. *lse becomes that of both, *old the weight of the stored part;
 * returns the weight of the new part. */
static float merge(float *lse, float came, float *old)
{
    float top = fmaxf(*lse, came);
    if (came == -INFINITY || *lse == -INFINITY) { /* one part saw no key */
        *old = came == -INFINITY ? 1.0f : 0.0f;
        *lse = top;
        return 1.0f - *old;
    }
    float both = top + logf(expf(*lse - top) + expf(came - top));
    *old = expf(*lse - both);
    *lse = both;
    return expf(came - both);
}

static void add_old(const struct forward *f, const struct q_tile *q, int64_t h, struct buffers *b)
{
    float *old = b->q_lanes; /* no longer needed here */
    tr_attention_load(&f->t, f->o, q->row - f->t.row_q, q->n, h, 1.0f, old);
    for (int64_t lane = 0; lane < q->n; lane++)
        for (int64_t i = lane * f->t.n_cols; i < (lane + 1) * f->t.n_cols; i++)
            b->tile[i] += b->max[lane] * old[i];
}

static void finish(const struct forward *f, const struct q_tile *q, int64_t h, struct buffers *b)
{
    const struct attention *t = &f->t;
    int64_t n_lanes = tr_step_up(q->n);
    float *lse = f->lse->data ? (float *)f->lse->data + (q->row - t->row_q) * f->lse->ld + h : NULL;
    for (int64_t lane = 0; lane < n_lanes; lane++) {
        float came = b->sum[lane] > 0 ? b->max[lane] + logf(b->sum[lane]) : -INFINITY, weight = 1.0f;
        if (lane < q->n && f->merges)
            weight = merge(&lse[lane * f->lse->ld], came, &b->max[lane]);
        else if (lane < q->n && lse)
            lse[lane * f->lse->ld] = came;
        b->fade[lane] = b->sum[lane] > 0 ? weight / b->sum[lane] : 0;
    }
    for (int64_t lane = 0; lane < n_lanes; lane += TR_TILE_STEP)
        t->ops->fade(b->o_lanes + lane, t->n_cols, b->fade + lane);
    t->ops->transpose(b->o_lanes, TR_TILE, t->n_cols, n_lanes, b->tile, t->n_cols);
    if (f->merges)
        add_old(f, q, h, b);
    tr_attention_store(t, b->tile, f->o, q->row - t->row_q, q->n, h);
}

static void query_tile(const struct forward *f, const struct q_tile *q, int64_t h, struct buffers *b)
{
    const struct attention *t = &f->t;
    int64_t n_lanes = tr_step_up(q->n);
    tr_attention_load(t, t->q, q->row - t->row_q, q->n, h, t->scale, b->tile);
    t->ops->transpose(b->tile, t->n_cols, n_lanes, t->n_cols, b->q_lanes, TR_TILE);
    memset(b->o_lanes, 0, (size_t)(TR_TILE * t->n_cols) * sizeof(float));
    for (int64_t lane = 0; lane < n_lanes; lane++) {
        b->max[lane] = LOWEST;
        b->sum[lane] = 0;
    }
    for (int64_t key = tr_attention_first(t, q); key < tr_min64(q->row + q->n, t->end_k); key += TR_TILE)
        key_tile(t, q, h, key, b);
    finish(f, q, h, b);
}

static void document_task(void *ctx, int64_t task, int worker)
{
    const struct forward *f = ctx;
    const struct attention *t = &f->t;
    int64_t n_units = t->attr.n_heads_kv * t->n_units, document = task / n_units, unit = task % n_units, h, h_end;
    const struct q_tile *first = &t->tiles[t->documents[document]];
    const struct q_tile *last = &t->tiles[t->documents[document + 1] - 1];
    struct buffers b = buffers_at(f, worker);
    tr_attention_hold(t, unit / t->n_units, first->row, last->row + last->n - first->row, &b.keys);
    for (tr_attention_unit(t, unit, &h, &h_end); h < h_end; h++)
        for (const struct q_tile *q = first; q <= last; q++)
            query_tile(f, q, h, &b);
}

static void tile_task(void *ctx, int64_t task, int worker)
{
    const struct forward *f = ctx;
    const struct attention *t = &f->t;
    struct buffers b = buffers_at(f, worker);
    /* The loop over heads is outermost, so the keys of one head stay in the cache from tile to tile. Tiles run
     * backwards because the last tile of a document takes longest: long tasks first, short ones fill the gaps at the
     * end. */
    query_tile(f, &t->tiles[t->n_tiles - 1 - task % t->n_tiles], task / t->n_tiles, &b);
}

size_t tr_fast_attention_scratch(const struct tr_call *c, int n_threads)
{
    int64_t n_rows = c->in[0].rows, n_held = tr_attention_held_rows(c, n_rows, n_threads);
    int64_t n_work = work_floats(tr_step_up(c->attr.head_dim), n_held);
    return tr_attention_scratch(c, 0, 3) + (size_t)n_threads * (size_t)n_work * sizeof(float);
}

void tr_fast_attention(const struct tr_call *c)
{
    struct forward f = {
        .t = tr_attention_open(c, 0, 3), .o = &c->out[0], .lse = &c->out[1], .merges = c->accumulate[0]
    };
    const struct attention *t = &f.t;
    f.work = (float *)((char *)c->scratch + tr_attention_scratch(c, 0, 3));
    f.n_work = work_floats(t->n_cols, t->n_held);
    if (t->is_by_document)
        tr_pool_run(c->pool, t->n_documents * t->attr.n_heads_kv * t->n_units, document_task, &f);
    else
        tr_pool_run(c->pool, t->n_tiles * t->attr.n_heads_q, tile_task, &f);
}

static struct tr_view rows_from(const struct tr_view *v, int64_t row, int64_t n)
{
    struct tr_view part = *v;
    part.rows = n;
    if (v->data) /* a plan has shapes only */
        part.data = (char *)v->data + (size_t)(row * v->ld) * tr_dtype_bytes(v->dtype);
    return part;
}

/* A prompt over the cache is a block of queries over a block of keys, all of one document: `begin` is 0 for every row.
 */
static struct tr_call block_of(const struct tr_call *c, int64_t row, int64_t n, int64_t position)
{
    static const int32_t zero;
    struct tr_call b = { .op = TR_OP_ATTENTION, .attr = c->attr, .pool = c->pool, .scratch = c->scratch };
    for (int i = 0; i < 3; i++)
        b.in[i] = c->in[i];
    b.in[0] = rows_from(&c->in[0], row, n);
    b.out[0] = rows_from(&c->out[0], row, n);
    b.in[1].rows = b.in[2].rows = position + n;
    b.in[3] = (struct tr_view){ .data = (void *)(uintptr_t)&zero, .dtype = TR_I32, .rows = INT64_MAX, .cols = 1 };
    b.attr.row_q = position;
    b.attr.row_k = 0;
    b.attr.dropout_p = 0;
    return b;
}

size_t tr_fast_attention_prompt_scratch(const struct tr_call *c, int n_threads)
{
    struct tr_call b = block_of(c, 0, c->in[0].rows, tr_max64(0, c->in[1].rows - c->in[0].rows));
    return tr_fast_attention_scratch(&b, n_threads);
}

void tr_fast_attention_prompt(const struct tr_call *c, int64_t row, int64_t n, int64_t position)
{
    struct tr_call b = block_of(c, row, n, position);
    tr_fast_attention(&b);
}
