/* attention_tile.c - splits a micro-batch into tiles; the masked scores of a tile; the factors of dropout. */
#include "ops/cpu/attention.h"
#include "ops/cpu/fast.h"
#include <math.h>

const struct tr_tile_ops *tr_tile_ops(void)
{
#if defined(__x86_64__)
    enum tr_isa isa = tr_fast_isa();
    if (isa == TR_ISA_AVX512)
        return &tr_fast_tile_ops_avx512;
    if (isa == TR_ISA_AVX2 && __builtin_cpu_supports("fma"))
        return &tr_fast_tile_ops_avx2;
#endif
    return &tr_fast_tile_ops_base;
}

/* Splits rows [row, row_end) into tiles, none of which spans two documents; returns how many. */
static int64_t cut(const struct tr_view *begin, int64_t row, int64_t row_end, struct q_tile *tiles)
{
    const int32_t *first = begin->data;
    int64_t n_tiles = 0;
    for (int64_t end; row < row_end; row = end) {
        int64_t document = first[row * begin->ld];
        for (end = row + 1; end < row_end && first[end * begin->ld] == document; end++)
            ;
        TR_BUG_ON(document > row);
        for (int64_t at = row; at < end; at += TR_TILE)
            tiles[n_tiles++] = (struct q_tile){ .begin = document, .row = at, .n = tr_min64(TR_TILE, end - at) };
    }
    return n_tiles;
}

/* Fills documents; returns the number of rows of the longest one. */
static int64_t find_documents(struct attention *t, int64_t *documents)
{
    int64_t n_max = 0;
    for (int64_t i = 0; i < t->n_tiles; i++) {
        const struct q_tile *q = &t->tiles[i];
        if (q->row == q->begin)
            documents[t->n_documents++] = i;
        n_max = tr_max64(n_max, q->row + q->n - q->begin);
    }
    documents[t->n_documents] = t->n_tiles;
    return n_max;
}

static size_t tiles_bytes(int64_t n_rows)
{
    return tr_round_up((size_t)n_rows * sizeof(struct q_tile), 64);
}

size_t tr_attention_scratch(const struct tr_call *c, int q, int begin)
{
    int64_t n_rows = c->in[q].rows;
    size_t second = tr_attention_is_block(c, q, begin) ? tiles_bytes(c->in[q + 1].rows)
                                                       : tr_round_up((size_t)(n_rows + 1) * sizeof(int64_t), 64);
    return tiles_bytes(n_rows) + second;
}

int64_t tr_attention_held_rows(const struct tr_call *c, int64_t n_rows, int n_threads)
{
    int64_t n_tasks = c->attr.n_heads_kv * tr_attention_units(&c->attr);
    int64_t share = (n_rows * n_tasks + n_threads - 1) / n_threads;
    return tr_max64(TR_TILE, tr_step_up(tr_min64(n_rows, share)));
}

struct attention tr_attention_open(const struct tr_call *c, int q, int begin)
{
    const struct tr_attr *a = &c->attr;
    struct q_tile *tiles = c->scratch;
    int64_t n_rows = c->in[q].rows;
    void *second = (char *)c->scratch + tiles_bytes(n_rows); /* the documents, or the key tiles of a block */
    struct attention t = { .ops = tr_tile_ops(),
                           .attr = *a,
                           .q = &c->in[q],
                           .k = &c->in[q + 1],
                           .v = &c->in[q + 2],
                           .sample = &c->in[begin + 1],
                           .position = &c->in[begin + 2],
                           .dropout = tr_dropout_init(a, c->in[begin + 3].data),
                           .scale = a->scale == 0.0f ? 1.0f : a->scale,
                           .window = a->window > 0 ? a->window : INT32_MAX,
                           .n_cols = tr_step_up(a->head_dim),
                           .group = a->n_heads_q / a->n_heads_kv,
                           .n_units = tr_attention_units(a),
                           .row_q = a->row_q,
                           .row_k = a->row_k,
                           .end_k = a->row_k + c->in[q + 1].rows,
                           .tiles = tiles,
                           .key_tiles = tiles,
                           .n_held = tr_attention_held_rows(c, n_rows, tr_pool_threads(c->pool)) };
    TR_BUG_ON(a->n_heads_q % a->n_heads_kv != 0);
    t.n_tiles = t.n_key_tiles = cut(&c->in[begin], t.row_q, t.row_q + n_rows, tiles);
    if (tr_attention_is_block(c, q, begin)) {
        t.key_tiles = second;
        t.n_key_tiles = cut(&c->in[begin], t.row_k, t.end_k, second);
    } else {
        t.documents = second;
        t.is_by_document = find_documents(&t, second) <= t.n_held;
    }
    return t;
}

void tr_attention_hold(const struct attention *t, int64_t h_kv, int64_t row, int64_t n, struct held *out)
{
    tr_attention_load(t, t->k, row - t->row_k, n, h_kv, 1.0f, out->k);
    tr_attention_load(t, t->v, row - t->row_k, n, h_kv, 1.0f, out->v);
    out->row = row;
}

int64_t tr_attention_first(const struct attention *t, const struct q_tile *q)
{
    int64_t seen = tr_max64(q->begin, q->row - t->window + 1);
    return tr_max64(t->row_k, q->begin + (seen - q->begin) / TR_TILE * TR_TILE);
}

struct pair tr_attention_pair(const struct attention *t, const struct q_tile *q, int64_t key)
{
    struct pair p = { .key = key, .n_keys = tr_min64(TR_TILE, tr_min64(q->row + q->n, t->end_k) - key) };
    for (int64_t row = 0; row < p.n_keys; row += TR_TILE_STEP) {
        int64_t last = key + row + TR_TILE_STEP - 1;
        struct strip s = { .row = row,
                           .row_end = row + TR_TILE_STEP,
                           .lane = tr_max64(0, key + row - q->row) / TR_TILE_STEP * TR_TILE_STEP,
                           .lane_end = tr_step_up(tr_min64(q->n, last + t->window - q->row)) };
        struct strip *before = p.n_strips > 0 ? &p.strips[p.n_strips - 1] : NULL;
        if (s.lane >= s.lane_end)
            continue;
        if (before && before->lane == s.lane && before->lane_end == s.lane_end)
            before->row_end = s.row_end;
        else
            p.strips[p.n_strips++] = s;
    }
    return p;
}

bool tr_attention_rows(const struct pair *p, int64_t lane, int64_t *row, int64_t *row_end)
{
    bool any = false;
    for (int i = 0; i < p->n_strips; i++) {
        const struct strip *st = &p->strips[i];
        if (lane < st->lane || lane >= st->lane_end)
            continue;
        *row = any ? *row : st->row;
        *row_end = st->row_end;
        any = true;
    }
    return any;
}

void tr_attention_dots(const struct attention *t, const struct pair *p, const float *x, const float *lanes, float *s)
{
    for (int i = 0; i < p->n_strips; i++) {
        const struct strip *st = &p->strips[i];
        struct tr_tile_mm g = { .m = st->row_end - st->row, .n = st->lane_end - st->lane, .k = t->n_cols };
        g.a = x + st->row * t->n_cols, g.a_row = t->n_cols, g.a_k = 1;
        g.b = lanes + st->lane, g.ldb = TR_TILE;
        g.c = s + st->row * TR_TILE + st->lane, g.ldc = TR_TILE;
        t->ops->mm(&g);
    }
}

void tr_attention_to_queries(const struct attention *t, const struct pair *p, const float *x, const float *s,
                             float *lanes)
{
    for (int i = 0; i < p->n_strips; i++) {
        const struct strip *st = &p->strips[i];
        struct tr_tile_mm g = { .m = t->n_cols, .n = st->lane_end - st->lane, .k = st->row_end - st->row, .add = true };
        g.a = x + st->row * t->n_cols, g.a_row = 1, g.a_k = t->n_cols;
        g.b = s + st->row * TR_TILE + st->lane, g.ldb = TR_TILE;
        g.c = lanes + st->lane, g.ldc = TR_TILE;
        t->ops->mm(&g);
    }
}

void tr_attention_to_keys(const struct attention *t, const struct pair *p, const float *x, const float *s, float *out)
{
    for (int i = 0; i < p->n_strips; i++) {
        const struct strip *st = &p->strips[i];
        struct tr_tile_mm g = { .m = st->row_end - st->row, .n = t->n_cols, .k = st->lane_end - st->lane, .add = true };
        g.a = s + st->row * TR_TILE + st->lane, g.a_row = TR_TILE, g.a_k = 1;
        g.b = x + st->lane * t->n_cols, g.ldb = t->n_cols;
        g.c = out + st->row * t->n_cols, g.ldc = t->n_cols;
        t->ops->mm(&g);
    }
}

/* Rows j .. j + window - 1 see key row j. */
static void mask(const struct attention *t, const struct q_tile *q, int64_t key, const struct strip *st, float *s)
{
    for (int64_t row = st->row; row < st->row_end; row++) {
        int64_t seen = key + row - q->row;
        for (int64_t lane = st->lane; lane < tr_min64(seen, st->lane_end); lane++)
            s[row * TR_TILE + lane] = -INFINITY;
        for (int64_t lane = tr_max64(seen + t->window, st->lane); lane < st->lane_end; lane++)
            s[row * TR_TILE + lane] = -INFINITY;
    }
}

void tr_attention_scores(const struct attention *t, const struct q_tile *q, const struct pair *p, const float *k,
                         const float *q_lanes, float *s)
{
    bool is_edge = p->key + TR_TILE > q->row + 1 || p->key + t->window < q->row + TR_TILE;
    tr_attention_dots(t, p, k, q_lanes, s);
    for (int i = 0; i < p->n_strips; i++) {
        const struct strip *st = &p->strips[i];
        for (int64_t lane = st->lane; t->attr.softcap != 0 && lane < st->lane_end; lane += TR_TILE_STEP)
            t->ops->softcap(s + st->row * TR_TILE + lane, st->row_end - st->row, t->attr.softcap);
        if (is_edge)
            mask(t, q, p->key, st, s);
        for (int64_t row = tr_max64(p->n_keys, st->row); row < st->row_end; row++) /* rows past the end of the block */
            for (int64_t lane = st->lane; lane < st->lane_end; lane++)
                s[row * TR_TILE + lane] = -INFINITY;
    }
}

static uint32_t token_of(const struct attention *t, int64_t row)
{
    return tr_drop_token(((const int64_t *)t->sample->data)[row * t->sample->ld],
                         ((const int32_t *)t->position->data)[row * t->position->ld]);
}

void tr_attention_keep(const struct attention *t, const struct q_tile *q, const struct pair *p, int64_t h, float *keep)
{
    enum { N_DRAWN = 16 }; /* groups of queries in a tile: eight in each 32 rows */
    struct {
        uint64_t lo;
        struct tr_philox eight;
    } drawn[N_DRAWN];
    uint32_t query[TR_TILE];
    for (int i = 0; i < N_DRAWN; i++)
        drawn[i].lo = UINT64_MAX; /* of no key: its low half is at most 2^31 */
    for (int64_t lane = 0; lane < q->n; lane++)
        query[lane] = token_of(t, q->row + lane);
    memset(keep, 0, TR_TILE * TR_TILE * sizeof *keep);
    for (int64_t row = 0; row < p->n_keys; row++) {
        uint32_t key = token_of(t, p->key + row);
        for (int64_t lane = tr_max64(0, p->key + row - q->row); lane < q->n; lane++) {
            uint64_t lo = tr_drop_lo_of_pair(query[lane], key);
            uint32_t group = tr_drop_group_of_query(query[lane]) % N_DRAWN;
            if (drawn[group].lo != lo) {
                drawn[group].lo = lo;
                drawn[group].eight = tr_dropout_pair8(&t->dropout, t->attr.first + h, query[lane], key);
            }
            keep[row * TR_TILE + lane] =
                tr_dropout_keep(&t->dropout, &drawn[group].eight, tr_drop_at_of_pair(query[lane], key));
        }
    }
}

void tr_attention_load(const struct attention *t, const struct tr_view *v, int64_t row, int64_t n, int64_t head,
                       float scale, float *dst)
{
    t->ops->load(v, row, head * t->attr.head_dim, n, t->attr.head_dim, scale, dst, t->n_cols);
    memset(dst + n * t->n_cols, 0, (size_t)((tr_step_up(n) - n) * t->n_cols) * sizeof *dst);
}

void tr_attention_store(const struct attention *t, const float *src, const struct tr_view *v, int64_t row, int64_t n,
                        int64_t head)
{
    t->ops->store(src, t->n_cols, n, t->attr.head_dim, v, row, head * t->attr.head_dim);
}

void tr_attention_store_sum(const struct attention *t, float *src, const struct tr_view *v, int64_t row, int64_t n,
                            int64_t head, bool adds, float *old)
{
    for (int64_t at = 0; adds && at < n; at += TR_TILE) {
        int64_t rows = tr_min64(TR_TILE, n - at);
        tr_attention_load(t, v, row + at, rows, head, 1.0f, old);
        for (int64_t i = 0; i < rows * t->n_cols; i++)
            src[at * t->n_cols + i] += old[i];
    }
    tr_attention_store(t, src, v, row, n, head);
}
