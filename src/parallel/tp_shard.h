/* tp_shard.h - part of the room header: which part of a parameter a tensor-parallel rank holds. */
#ifndef TR_PARALLEL_TP_SHARD_H
#define TR_PARALLEL_TP_SHARD_H

#include "model/model.h"

/* One dim of a shard. The whole dim has n_parts parts of `part` elements; this rank holds [first, first + n) of each
 * part, side by side. The first part is `lead` times as wide, and so is what the rank holds of it. */
struct tr_tp_dim {
    int64_t part, n_parts, first, n, lead;
};
struct tr_tp_shard {
    struct tr_tp_dim row, col;
    int64_t rows, cols, n; /* size of the local matrix */
    int64_t n_held;        /* what every rank reserves for it: the largest n */
    bool is_split;
};
struct tr_tp_shard tr_tp_shard_of(int n_dims, int64_t rows, int64_t cols, struct tr_split split, int size, int rank);

/* Runs of a dim that this rank holds: local indices [local, local + n) are indices [at, at + n) of the whole dim.
 * Returns how many there are. */
struct tr_tp_piece {
    int64_t local, at, n;
};
enum { TR_MAX_PIECES = 4 };
int tr_tp_pieces(const struct tr_tp_dim *d, struct tr_tp_piece out[TR_MAX_PIECES]);

/* The same shard in elements of a state that has one element for `block` elements of the flattened whole tensor. */
struct tr_tp_shard tr_tp_blocks(const struct tr_tp_shard *c, int32_t block);
/* True when no rank's shard begins inside a block. */
bool tr_tp_keeps_blocks(const struct tr_param *p, int size, int32_t block);

/* A range of the whole matrix: `rows` runs of `cols` elements, the first at element `first`. */
struct tr_range {
    int64_t first, rows, cols;
};
enum { TR_MAX_RANGES = 9 };
/* Local elements [first, first + n) as ranges, in an order that saving and loading share. A single run is a range of
 * one row. */
int tr_tp_ranges(const struct tr_tp_shard *c, int64_t first, int64_t n, struct tr_range out[TR_MAX_RANGES]);
/* Finds the longest run of local elements that begins at or after element *at of the whole matrix and before `end`.
 * Moves *at to its first element, sets *local to the local index of that element, and returns the length (0: none). */
int64_t tr_tp_run(const struct tr_tp_shard *c, int64_t *at, int64_t end, int64_t *local);

#endif
