/* attention.h - what attention and its backward share: the cut of a micro-batch into tiles, and of a tile into strips.
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
 * TR_TILE_STEP. A tile on the diagonal or on the edge of the window has up to four strips, an inner one has one. */
struct strip {
    int64_t row, row_end, lane, lane_end;
};

enum { MAX_STRIPS = TR_TILE / TR_TILE_STEP };

/* The inputs both directions read. */
struct attention {
    const struct tr_tile_ops *ops;
    struct tr_attr attr;
    const struct tr_view *q, *k, *v;
    const struct tr_view *sample, *position;
    struct tr_dropout dropout;
    float scale;
    int64_t window;              /* INT32_MAX when there is none */
    int64_t n_cols, group;       /* head columns padded to a step; query heads per key head */
    int64_t row_q, row_k, end_k; /* q starts with row_q of the micro-batch, k and v hold rows [row_k, end_k) */
    const struct q_tile *tiles;
    const struct q_tile *key_tiles; /* the same, of the rows of k: tiles, unless q and k are blocks */
    int64_t n_key_tiles;
    const int64_t *documents; /* index of each document's first tile; one more for the end */
    int64_t n_tiles, n_documents;
    /* How the work is cut; both ways give the same bits. A task is one key head of one document when the longest
     * document fits n_held, else one head of one tile. */
    bool is_by_document;
    int64_t n_held; /* rows of k and v a worker holds */
};

/* q is the index of q among the inputs, begin that of begin. The scratch is the shared part; workers' follow it. */
size_t tr_attention_scratch(const struct tr_call *c, int q, int begin);
struct attention tr_attention_open(const struct tr_call *c, int q, int begin);

/* Rows of k and v a worker holds: its share. A longer document would keep one worker busy after all others are done. */
int64_t tr_attention_held_rows(const struct tr_call *c, int64_t n_rows, int n_threads);

/* Rows [row, ..) of one key head, together and as floats: copying them from their views, where rows are far apart, for
 * every pair of tiles takes a third of the time of the products. */
struct held {
    float *k, *v; /* (n_held, n_cols) */
    int64_t row;
};
void tr_attention_hold(const struct attention *t, int64_t h_kv, int64_t row, int64_t n, struct held *out);

/* First key row of the tile that holds the first row a query tile sees, or of the block. */
int64_t tr_attention_first(const struct attention *t, const struct q_tile *q);

/* One key tile against one query tile. */
struct pair {
    int64_t key, n_keys; /* first key row; rows up to the diagonal */
    int n_strips;
    struct strip strips[MAX_STRIPS];
};
struct pair tr_attention_pair(const struct attention *t, const struct q_tile *q, int64_t key);
/* Rows [*row, *row_end) of the tile that the lanes from `lane` on see; false = none. */
bool tr_attention_rows(const struct pair *p, int64_t lane, int64_t *row, int64_t *row_end);

/* The three products. x is a tile of rows (keys or queries, head columns), lanes a (columns, queries) matrix, s a
 * (keys, queries) one; the last two have rows TR_TILE floats apart. */
/* s = x . lanes: q.k, do.v */
void tr_attention_dots(const struct attention *t, const struct pair *p, const float *x, const float *lanes, float *s);
/* lanes += x^T s: o, dq */
void tr_attention_to_queries(const struct attention *t, const struct pair *p, const float *x, const float *s,
                             float *lanes);
/* out (keys, columns) += s x, x rows of queries: dk, dv */
void tr_attention_to_keys(const struct attention *t, const struct pair *p, const float *x, const float *s, float *out);

/* Scores: q.k, capped, -inf where a row does not see a key. */
void tr_attention_scores(const struct attention *t, const struct q_tile *q, const struct pair *p, const float *k,
                         const float *q_lanes, float *s);
/* keep (keys, queries): dropout's factors for query head h. */
void tr_attention_keep(const struct attention *t, const struct q_tile *q, const struct pair *p, int64_t h, float *keep);

/* n rows of one head between a view and (n, n_cols) floats; load adds rows of zeros up to the next step. */
void tr_attention_load(const struct attention *t, const struct tr_view *v, int64_t row, int64_t n, int64_t head,
                       float scale, float *dst);
void tr_attention_store(const struct attention *t, const float *src, const struct tr_view *v, int64_t row, int64_t n,
                        int64_t head);
/* The same, adding what is there when `adds`; src has the sum, old (TR_TILE, n_cols) is overwritten. */
void tr_attention_store_sum(const struct attention *t, float *src, const struct tr_view *v, int64_t row, int64_t n,
                            int64_t head, bool adds, float *old);

static inline int64_t tr_step_up(int64_t n)
{
    return (n + TR_TILE_STEP - 1) / TR_TILE_STEP * TR_TILE_STEP;
}

#endif
