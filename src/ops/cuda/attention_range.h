/* attention_range.h - which keys a query sees, and which queries see a key, for tiles of both: plain arithmetic, so
 * that a test on the CPU can compare it with a list of all pairs. C and CUDA C.
 *
 * Rows of q and k are counted from the first row of their block. Both ends of what a row sees never move back from one
 * row to the next, because documents follow one another: the ends of a tile are those of its first and last row.
 */
#ifndef TR_OPS_CUDA_ATTENTION_RANGE_H
#define TR_OPS_CUDA_ATTENTION_RANGE_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __CUDACC__
#define TR_ON_BOTH __host__ __device__ static inline
#else
#define TR_ON_BOTH static inline
#endif

/* q and k are rows from row_q and row_k on of the micro-batch; window 0: none. */
struct tr_seen_rule {
    int32_t n_q, n_k, row_q, row_k, window;
};

/* Rows [first, end) of k; none when first >= end. */
struct tr_seen {
    int32_t first, end;
};

TR_ON_BOTH int32_t tr_seen_max(int32_t a, int32_t b)
{
    return a > b ? a : b;
}

TR_ON_BOTH int32_t tr_seen_min(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

/* Where the keys of row i of q end, whatever its document. */
TR_ON_BOTH int32_t tr_seen_end(const struct tr_seen_rule *r, int32_t i)
{
    return tr_seen_min(r->row_q + i - r->row_k + 1, r->n_k);
}

/* The keys of row i of q, whose document begins at row `begin` of the micro-batch. */
TR_ON_BOTH struct tr_seen tr_seen_by(const struct tr_seen_rule *r, int32_t i, int32_t begin)
{
    int32_t row = r->row_q + i, first = tr_seen_max(begin, r->row_k);
    struct tr_seen s;
    if (r->window > 0)
        first = tr_seen_max(first, row - r->window + 1);
    s.first = first - r->row_k;
    s.end = tr_seen_end(r, i);
    return s;
}

/* The first row of q that may see row j of k. */
TR_ON_BOTH int32_t tr_seen_from(const struct tr_seen_rule *r, int32_t j)
{
    return tr_seen_max(0, r->row_k + j - r->row_q);
}

/* Tile t of a side with n rows, `width` rows a tile. Rows of tokens (row_tokens, a divisor of n) have tiles of their
 * own, so that the bits of a row of tokens do not depend on its place in the batch. */
struct tr_tile {
    int32_t first, end;
};

TR_ON_BOTH int32_t tr_tiles_of_row(int32_t row_tokens, int32_t width)
{
    return (row_tokens + width - 1) / width;
}

TR_ON_BOTH struct tr_tile tr_tile_at(int32_t row, int32_t t, int32_t row_tokens, int32_t width)
{
    struct tr_tile x;
    x.first = row * row_tokens + t * width;
    x.end = tr_seen_min(x.first + width, (row + 1) * row_tokens);
    return x;
}

#endif
