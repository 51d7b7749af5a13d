/* attention_bwd.c - gradients of attention: scores are recomputed tile by tile from q, k and lse.
 *
 * For each pair of tiles: p, dp = do.v, ds = p (dp - do.o); then dv += p do, dk += ds q, dq += ds k. dk and dv add the
 * units of query heads, in a unit the heads, then the query tiles, in order; dq adds the key tiles in order. There are
 * no atomics. The work is split in one of two ways, which give the same bits. By document: a task is one unit of one
 * document and does five products a pair; where a key head has several units, their parts are added at the end. By
 * tile: a task is one key tile (dk, dv), and later one query tile (dq). That takes seven products a pair, but gives
 * enough tasks when threads are many and documents few. Rejected: partial dq per key tile (memory of several dq, and a
 * sum at the end).
 */
#include "ops/cpu/attention.h"
#include "ops/cpu/fast.h"

struct backward {
    struct attention t;
    const struct tr_view *d_o, *o, *lse, *dq, *dk, *dv;
    bool adds;    /* adds to dq, dk and dv instead of overwriting them */
    float *parts; /* dk, then dv, of each unit: (n_rows, n_cols) */
    float *work;  /* per worker */
    int64_t n_work;
};

/* One worker's buffers; lane matrices have rows TR_TILE floats apart. */
struct grad_buffers {
    float *q_rows, *do_rows, *rows;       /* (TR_TILE, n_cols); rows: o, then dq */
    float *q_lanes, *do_lanes, *dq_lanes; /* (n_cols, TR_TILE) */
    float *s, *dp, *keep;                 /* (TR_TILE, TR_TILE) */
    float *lse, *dots;                    /* (TR_TILE) */
    float *dk, *dv;                       /* (n_held, n_cols) */
    float *unit_dk, *unit_dv;             /* (TR_TILE, n_cols): of one unit, where a key head has several */
    struct held keys;
};

static int64_t work_floats(int64_t n_cols, int64_t n_held)
{
    return 8 * TR_TILE * n_cols + 3 * TR_TILE * TR_TILE + 2 * TR_TILE + 4 * n_held * n_cols;
}

static float *take(float **p, int64_t n)
{
    float *at = *p;
    *p += n;
    return at;
}

static struct grad_buffers buffers_at(const struct backward *f, int worker)
{
    float *p = f->work + worker * f->n_work;
    int64_t rows = TR_TILE * f->t.n_cols, square = TR_TILE * TR_TILE;
    struct grad_buffers b = { 0 };
    b.q_rows = take(&p, rows), b.do_rows = take(&p, rows), b.rows = take(&p, rows);
    b.q_lanes = take(&p, rows), b.do_lanes = take(&p, rows), b.dq_lanes = take(&p, rows);
    b.unit_dk = take(&p, rows), b.unit_dv = take(&p, rows);
    b.s = take(&p, square), b.dp = take(&p, square), b.keep = take(&p, square);
    b.lse = take(&p, TR_TILE), b.dots = take(&p, TR_TILE);
    rows = f->t.n_held * f->t.n_cols;
    b.dk = take(&p, rows), b.dv = take(&p, rows), b.keys.k = take(&p, rows), b.keys.v = take(&p, rows);
    return b;
}

/* Computes everything of a query tile that does not depend on the keys. */
static void open_queries(const struct backward *f, const struct q_tile *q, int64_t h, struct grad_buffers *b)
{
    const struct attention *t = &f->t;
    int64_t n_lanes = tr_step_up(q->n);
    int64_t at = q->row - t->row_q;
    tr_attention_load(t, t->q, at, q->n, h, t->scale, b->q_rows);
    tr_attention_load(t, f->d_o, at, q->n, h, 1.0f, b->do_rows);
    tr_attention_load(t, f->o, at, q->n, h, 1.0f, b->rows);
    t->ops->transpose(b->q_rows, t->n_cols, n_lanes, t->n_cols, b->q_lanes, TR_TILE);
    t->ops->transpose(b->do_rows, t->n_cols, n_lanes, t->n_cols, b->do_lanes, TR_TILE);
    t->ops->transpose(b->rows, t->n_cols, n_lanes, t->n_cols, b->dq_lanes, TR_TILE);
    for (int64_t lane = 0; lane < n_lanes; lane += TR_TILE_STEP)
        t->ops->dot(b->do_lanes + lane, b->dq_lanes + lane, t->n_cols, b->dots + lane);
    const float *lse = (const float *)f->lse->data + at * f->lse->ld + h;
    for (int64_t lane = 0; lane < n_lanes; lane++) /* in the lanes past the last row, p = exp(-huge) = 0 */
        b->lse[lane] = lane < q->n ? lse[lane * f->lse->ld] : 1e30f;
    memset(b->dq_lanes, 0, (size_t)(TR_TILE * t->n_cols) * sizeof(float));
}

static void close_queries(const struct backward *f, const struct q_tile *q, int64_t h, struct grad_buffers *b)
{
    const struct attention *t = &f->t;
    float scale[TR_TILE_STEP];
    for (int i = 0; i < TR_TILE_STEP; i++)
        scale[i] = t->scale;
    for (int64_t lane = 0; lane < q->n; lane += TR_TILE_STEP)
        t->ops->fade(b->dq_lanes + lane, t->n_cols, scale);
    t->ops->transpose(b->dq_lanes, TR_TILE, t->n_cols, tr_step_up(q->n), b->rows, t->n_cols);
    tr_attention_store_sum(t, b->rows, f->dq, q->row - t->row_q, q->n, h, f->adds, b->q_rows);
}

/* One pair of tiles; adds to dk and dv (rows of the key tile) where they are not NULL, to dq_lanes if want_dq. */
static void one_pair(const struct backward *f, const struct q_tile *q, int64_t h, int64_t key, struct grad_buffers *b,
                     float *dk, float *dv, bool want_dq)
{
    const struct attention *t = &f->t;
    struct pair p = tr_attention_pair(t, q, key);
    const float *k = b->keys.k + (key - b->keys.row) * t->n_cols, *v = b->keys.v + (k - b->keys.k);
    const float *keep = t->attr.dropout_p > 0 ? b->keep : NULL;
    if (keep)
        tr_attention_keep(t, q, &p, h, b->keep);
    tr_attention_scores(t, q, &p, k, b->q_lanes, b->s);
    tr_attention_dots(t, &p, v, b->do_lanes, b->dp);
    for (int64_t lane = 0, row, row_end; lane < TR_TILE; lane += TR_TILE_STEP) {
        if (!tr_attention_rows(&p, lane, &row, &row_end))
            continue;
        int64_t at = row * TR_TILE + lane;
        t->ops->softmax_bwd(b->s + at, b->dp + at, keep ? keep + at : NULL, row_end - row, b->lse + lane,
                            b->dots + lane, t->attr.softcap);
    }
    if (dv)
        tr_attention_to_keys(t, &p, b->do_rows, b->s, dv);
    if (dk)
        tr_attention_to_keys(t, &p, b->q_rows, b->dp, dk);
    if (want_dq)
        tr_attention_to_queries(t, &p, k, b->dp, b->dq_lanes);
}

static void store_keys(const struct backward *f, int64_t row, int64_t n, int64_t h_kv, const struct grad_buffers *b)
{
    const struct attention *t = &f->t;
    tr_attention_store_sum(t, b->dk, f->dk, row - t->row_k, n, h_kv, f->adds, b->rows);
    tr_attention_store_sum(t, b->dv, f->dv, row - t->row_k, n, h_kv, f->adds, b->rows);
}

static void clear_rows(const struct backward *f, int64_t n, float *dk, float *dv)
{
    memset(dk, 0, (size_t)(tr_step_up(n) * f->t.n_cols) * sizeof(float));
    memset(dv, 0, (size_t)(tr_step_up(n) * f->t.n_cols) * sizeof(float));
}

static void add_rows(const struct backward *f, int64_t n, const float *from, float *to)
{
    for (int64_t i = 0; i < n * f->t.n_cols; i++)
        to[i] += from[i];
}

/* Row `row` of dk (which = 0) or dv (1) of a unit. */
static float *part_of(const struct backward *f, int64_t unit, int which, int64_t row)
{
    return f->parts + ((2 * unit + which) * f->t.q->rows + row) * f->t.n_cols;
}

static void document_task(void *ctx, int64_t task, int worker)
{
    const struct backward *f = ctx;
    const struct attention *t = &f->t;
    int64_t n_units = t->attr.n_heads_kv * t->n_units, document = task / n_units, unit = task % n_units, h, h_end;
    const struct q_tile *first = &t->tiles[t->documents[document]];
    const struct q_tile *last = &t->tiles[t->documents[document + 1] - 1];
    struct grad_buffers b = buffers_at(f, worker);
    int64_t n = last->row + last->n - first->row;
    tr_attention_hold(t, unit / t->n_units, first->row, n, &b.keys);
    clear_rows(f, n, b.dk, b.dv);
    for (tr_attention_unit(t, unit, &h, &h_end); h < h_end; h++) {
        for (const struct q_tile *q = first; q <= last; q++) {
            open_queries(f, q, h, &b);
            for (int64_t key = tr_attention_first(t, q); key < q->row + q->n; key += TR_TILE) {
                int64_t at = (key - q->begin) * t->n_cols;
                one_pair(f, q, h, key, &b, b.dk + at, b.dv + at, true);
            }
            close_queries(f, q, h, &b);
        }
    }
    if (t->n_units == 1) {
        store_keys(f, first->row, n, unit, &b);
        return;
    }
    memcpy(part_of(f, unit, 0, first->row), b.dk, (size_t)(n * t->n_cols) * sizeof(float));
    memcpy(part_of(f, unit, 1, first->row), b.dv, (size_t)(n * t->n_cols) * sizeof(float));
}

/* Adds the units of one key head of one tile. */
static void units_task(void *ctx, int64_t task, int worker)
{
    const struct backward *f = ctx;
    const struct attention *t = &f->t;
    const struct q_tile *rows = &t->tiles[task % t->n_tiles];
    int64_t h_kv = task / t->n_tiles;
    struct grad_buffers b = buffers_at(f, worker);
    clear_rows(f, rows->n, b.dk, b.dv);
    for (int64_t unit = h_kv * t->n_units; unit < (h_kv + 1) * t->n_units; unit++) {
        add_rows(f, rows->n, part_of(f, unit, 0, rows->row), b.dk);
        add_rows(f, rows->n, part_of(f, unit, 1, rows->row), b.dv);
    }
    store_keys(f, rows->row, rows->n, h_kv, &b);
}

static void key_task(void *ctx, int64_t task, int worker)
{
    const struct backward *f = ctx;
    const struct attention *t = &f->t;
    /* Tiles run forwards: the first key tile of a document takes longest. */
    const struct q_tile *keys = &t->key_tiles[task % t->n_key_tiles], *end = t->tiles + t->n_tiles, *first = t->tiles;
    int64_t h_kv = task / t->n_key_tiles, h, h_end;
    while (first < end && (first->begin < keys->begin || first->row + first->n <= keys->row))
        first++;
    struct grad_buffers b = buffers_at(f, worker);
    tr_attention_hold(t, h_kv, keys->row, keys->n, &b.keys);
    clear_rows(f, keys->n, b.dk, b.dv);
    for (int64_t unit = h_kv * t->n_units; unit < (h_kv + 1) * t->n_units; unit++) {
        clear_rows(f, keys->n, b.unit_dk, b.unit_dv);
        for (tr_attention_unit(t, unit, &h, &h_end); h < h_end; h++) {
            for (const struct q_tile *q = first; q < end && q->begin == keys->begin; q++) {
                if (q->row - t->window + 1 >= keys->row + keys->n)
                    break;
                open_queries(f, q, h, &b);
                one_pair(f, q, h, keys->row, &b, b.unit_dk, b.unit_dv, false);
            }
        }
        add_rows(f, keys->n, b.unit_dk, b.dk);
        add_rows(f, keys->n, b.unit_dv, b.dv);
    }
    store_keys(f, keys->row, keys->n, h_kv, &b);
}

static void query_task(void *ctx, int64_t task, int worker)
{
    const struct backward *f = ctx;
    const struct attention *t = &f->t;
    const struct q_tile *q = &t->tiles[t->n_tiles - 1 - task % t->n_tiles];
    int64_t h = task / t->n_tiles;
    struct grad_buffers b = buffers_at(f, worker);
    open_queries(f, q, h, &b);
    int64_t end = tr_min64(q->row + q->n, t->end_k);
    for (int64_t key = tr_attention_first(t, q); key < end; key += TR_TILE) {
        tr_attention_hold(t, h / t->group, key, tr_min64(TR_TILE, end - key), &b.keys);
        one_pair(f, q, h, key, &b, NULL, NULL, true);
    }
    close_queries(f, q, h, &b);
}

/* Bytes of the parts of units. A block never goes by document and has none. */
static size_t parts_bytes(const struct tr_call *c)
{
    int64_t n_units = tr_attention_units(&c->attr), n_cols = tr_step_up(c->attr.head_dim);
    if (n_units == 1 || tr_attention_is_block(c, 1, 6))
        return 0;
    return tr_round_up((size_t)(2 * c->attr.n_heads_kv * n_units * c->in[1].rows * n_cols) * sizeof(float), 64);
}

size_t tr_fast_attention_bwd_scratch(const struct tr_call *c, int n_threads)
{
    int64_t n_rows = c->in[1].rows, n_held = tr_attention_held_rows(c, n_rows, n_threads);
    int64_t n_work = work_floats(tr_step_up(c->attr.head_dim), n_held);
    return tr_attention_scratch(c, 1, 6) + parts_bytes(c) + (size_t)n_threads * (size_t)n_work * sizeof(float);
}

void tr_fast_attention_bwd(const struct tr_call *c)
{
    struct backward f = { .t = tr_attention_open(c, 1, 6),
                          .d_o = &c->in[0],
                          .o = &c->in[4],
                          .lse = &c->in[5],
                          .dq = &c->out[0],
                          .dk = &c->out[1],
                          .dv = &c->out[2],
                          .adds = c->accumulate[0],
                          .parts = (float *)((char *)c->scratch + tr_attention_scratch(c, 1, 6)) };
    const struct attention *t = &f.t;
    f.work = (float *)((char *)f.parts + parts_bytes(c));
    f.n_work = work_floats(t->n_cols, t->n_held);
    if (t->is_by_document) {
        tr_pool_run(c->pool, t->n_documents * t->attr.n_heads_kv * t->n_units, document_task, &f);
        if (t->n_units > 1)
            tr_pool_run(c->pool, t->n_tiles * t->attr.n_heads_kv, units_task, &f);
    } else {
        tr_pool_run(c->pool, t->n_key_tiles * t->attr.n_heads_kv, key_task, &f);
        tr_pool_run(c->pool, t->n_tiles * t->attr.n_heads_q, query_task, &f);
    }
}
