/* cut.h - part of the room header: which part of a parameter a tensor-parallel rank holds. */
#ifndef TR_PARALLEL_CUT_H
#define TR_PARALLEL_CUT_H

#include "model/model.h"

/* One dim: of each of n_parts parts of `part` elements, [first, first + n) are here, side by side. */
struct tr_cut_dim {
    int64_t part, n_parts, first, n;
};
struct tr_cut {
    struct tr_cut_dim row, col;
    int64_t rows, cols, n; /* of what is here: the local matrix */
    int64_t n_held;        /* what every rank reserves for it: the largest n */
    bool is_split;
};
struct tr_cut tr_cut_of(int n_dims, int64_t rows, int64_t cols, struct tr_split split, int size, int rank);

/* A box of the whole matrix: `rows` runs of `cols` elements, the first at element `first`. */
struct tr_box {
    int64_t first, rows, cols;
};
enum { TR_MAX_BOXES = 9 };
/* Local elements [first, first + n) as boxes, in an order that both sides of a checkpoint know; a run is one row. */
int tr_cut_boxes(const struct tr_cut *c, int64_t first, int64_t n, struct tr_box out[TR_MAX_BOXES]);
/* The longest run of local elements that begins at or after element *at of the whole matrix and before `end`: moves *at
 * there, gives its place here, and its length (0: none). */
int64_t tr_cut_run(const struct tr_cut *c, int64_t *at, int64_t end, int64_t *local);

#endif
