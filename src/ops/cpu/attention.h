/* attention.h - what attention and its backward share: how a micro-batch is split into tiles, and a tile into strips.
 *
 * Query tiles and key tiles are counted from the first row of their document, so the bits of a document do not depend
 * on where it lies in the micro-batch or what else is there. begin[] must name the first row of each row's document.
 */
#ifndef TR_OPS_CPU_ATTENTION_H
#define TR_OPS_CPU_ATTENTION_H

#include "ops/cpu/dropout.h"
#include "ops/cpu/tile.h"

/* n query rows from `row` of the document that starts at `begin`. */
struct q_tile {
    int64_t begin, row, n;
};

/* Key rows [row, row_end) of a key tile and the query lanes [lane, lane_end) that see any of them; multiples of
 * TR_TILE_STEP. A tile on the diagonal or on the edge of the window has up to four strips; any other tile has one. */
struct strip {
    int64_t row, row_end, lane, lane_end;
};

enum { MAX_STRIPS = TR_TILE / TR_TILE_STEP };

/* Query heads of a unit. The query heads of a key head are cut into units, so that models with few key heads have as
 * many tasks as others. dk and dv are sums of units, whatever the number of threads. */
enum { UNIT_HEADS = 4 };

/* The inputs that both the forward and the backward read. */
struct attention {
    const struct tr_tile_ops *ops;
    struct tr_attr attr;
    const struct tr_view *q, *k, *v;
    const struct tr_view *sample, *position;
    struct tr_dropout dropout;
    float scale;
    int64_t window;        /* INT32_MAX when there is none */
    int64_t n_cols, group; /* head columns padded to a step; query heads per key head */
    int64_t row_q, row_k,
        end_k; /* the first row of q is row row_q of the micro-batch; k and v hold its rows [row_k, end_k) */
    const struct q_tile *tiles;
    const struct q_tile *key_tiles; /* tiles of the rows of k; the same array as tiles unless q and k are blocks */
    int64_t n_key_tiles;
    const int64_t *documents; /* index of each document's first tile, then n_tiles */
    int64_t n_tiles, n_documents;
    int64_t n_units; /* of a key head */
    /* How the work is split into tasks; both ways give the same bits. A task is one unit of one document when the
     * longest document has at most n_held rows, else one head of one tile. */
    bool is_by_document;
    int64_t n_held; /* rows of k and v that a worker holds as floats */
};

/* q and begin are the indices of those two among the inputs of the call. The bytes are those of the part that all
 * workers share; the buffers of the workers follow it in the scratch. */
size_t tr_attention_scratch(const struct tr_call *c, int q, int begin);
struct attention tr_attention_open(const struct tr_call *c, int q, int begin);
/* Are q and k only parts of the rows that begin describes? */
static inline bool tr_attention_is_block(const struct tr_call *c, int q, int begin)
{
    return c->in[q].rows != c->in[begin].rows;
}

/* Rows of k and v that a worker holds: its equal share. A task of a longer document would keep one worker busy after
 * all others are done. */
int64_t tr_attention_held_rows(const struct tr_call *c, int64_t n_rows, int n_threads);

/* Query heads [*h, *h_end) of a unit; units are counted over all key heads. */
static inline void tr_attention_unit(const struct attention *t, int64_t unit, int64_t *h, int64_t *h_end)
{
    int64_t h_kv = unit / t->n_units, first = unit % t->n_units * UNIT_HEADS;
    *h = h_kv * t->group + first;
    *h_end = h_kv * t->group + tr_min64(t->group, first + UNIT_HEADS);
}
static inline int64_t tr_attention_units(const struct tr_attr *a)
{
    return (a->n_heads_q / a->n_heads_kv + UNIT_HEADS - 1) / UNIT_HEADS;
}

/* Rows from `row` on of one key head, contiguous and as floats. In the views these rows are far apart; copying them
 * again for every pair of tiles would take a third of the time of the products. */
struct held {
    float *k, *v; /* (n_held, n_cols) */
    int64_t row;
};
void tr_attention_hold(const struct attention *t, int64_t h_kv, int64_t row, int64_t n, struct held *out);

/* The first row of the key tile that holds the first row that a query tile sees; the first row of the block where that
 * is later. */
int64_t tr_attention_first(const struct attention *t, const struct q_tile *q);

/* One key tile against one query tile. */
struct pair {
    int64_t key, n_keys; /* first key row; key rows up to the diagonal */
    int n_strips;
    struct strip strips[MAX_STRIPS];
};
struct pair tr_attention_pair(const struct attention *t, const struct q_tile *q, int64_t key);
/* The rows [*row, *row_end) of the tile that the step of lanes at `lane` sees; false: none. */
bool tr_attention_rows(const struct pair *p, int64_t lane, int64_t *row, int64_t *row_end);

/* The three products. x is a tile of rows (keys or queries, head columns); lanes is a (columns, queries) matrix and s a
 * (keys, queries) one, both with rows TR_TILE floats apart. */
/* s = x . lanes: q.k, do.v */
void tr_attention_dots(const struct attention *t, const struct pair *p, const float *x, const float *lanes, float *s);
/* lanes += x^T s: o, dq */
void tr_attention_to_queries(const struct attention *t, const struct pair *p, const float *x, const float *s,
                             float *lanes);
/* out (keys, columns) += s x, x rows of queries: dk, dv */
void tr_attention_to_keys(const struct attention *t, const struct pair *p, const float *x, const float *s, float *out);

/* s = the scores: q.k, capped, -inf where a row does not see a key. */
void tr_attention_scores(const struct attention *t, const struct q_tile *q, const struct pair *p, const float *k,
                         const float *q_lanes, float *s);
/* Fills keep (keys, queries) with the factors of dropout for query head h. */
void tr_attention_keep(const struct attention *t, const struct q_tile *q, const struct pair *p, int64_t h, float *keep);

/* Copy n rows of one head from a view to (n, n_cols) floats, or back. load appends rows of zeros up to the next
 * multiple of TR_TILE_STEP. */
void tr_attention_load(const struct attention *t, const struct tr_view *v, int64_t row, int64_t n, int64_t head,
                       float scale, float *dst);
void tr_attention_store(const struct attention *t, const float *src, const struct tr_view *v, int64_t row, int64_t n,
                        int64_t head);
/* The same as store, but adds to the rows of v when `adds`. src then holds the sum; old (TR_TILE, n_cols) is scratch.
 */
void tr_attention_store_sum(const struct attention *t, float *src, const struct tr_view *v, int64_t row, int64_t n,
                            int64_t head, bool adds, float *old);

static inline int64_t tr_step_up(int64_t n)
{
    return (n + TR_TILE_STEP - 1) / TR_TILE_STEP * TR_TILE_STEP;
}

#endif
