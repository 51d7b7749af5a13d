/* rows.h - the rows of one part of a data set (shards with one way of packing), and the walk over the pieces of a row.
 *
 * A piece is the part of a document that is in a row. A document is never in two shards, so a piece and the token after
 * it are in one shard. Nothing allocates after open; the caller owns all state of a walk.
 */
#ifndef TR_DATA_ROWS_H
#define TR_DATA_ROWS_H

#include "data/data.h"
#include "data/long.h"
#include "data/pack.h"
#include "data/shard.h"

/* A packed document that is longer than a row and lost something. */
struct tr_long_doc {
    size_t i_shard; /* of the part */
    uint64_t doc;   /* of the shard */
    uint64_t n_tokens, n_lost, n_targets_lost;
    bool is_dropped;
};

struct tr_data_part {
    enum tr_packing packing; /* not AUTO */
    int64_t row_tokens;
    struct tr_shard **shards; /* the array is owned, the shards are not */
    size_t n_shards;
    uint64_t *first_token, *first_doc; /* of shard i; [n_shards]: all */
    struct tr_pack pack;               /* of packing BESTFIT and NONE */
    uint64_t n_rows, n_row_tokens;
    uint64_t n_split, n_cut, n_dropped;             /* long documents */
    uint64_t n_tokens_lost, n_targets_lost, n_idle; /* idle: rows of split documents that had no target */
    struct tr_long_doc lost[TR_DATA_KEPT_SKIPS];    /* the first of those that lost something, n_lost of them */
    size_t n_lost;
    uint64_t first_ref; /* of pairs and labels: its first document among all of the data set */
    uint32_t *partner;  /* of labels: for each document, another one of its shard (partner.h) */
};

/* Keeps the order of the shards. Reads row_tokens, shuffle and how_long of o. */
enum tr_status tr_data_part_open(struct tr_data_part *p, struct tr_shard *const *shards, size_t n, enum tr_packing how,
                                 const struct tr_data_options *o, uint64_t seed);
void tr_data_part_release(struct tr_data_part *p); /* safe on zeroes */

enum { TR_WALK_BOUNDS = 128 };

struct tr_walk {
    const struct tr_data_part *part;
    const struct tr_shard *shard;
    size_t i_shard;
    int fd;
    uint64_t at, end; /* stream: in its tokens; tails: in pack.doc; a chunk: its row */
    bool is_tail;
    bool is_kept;  /* the second piece of a truncated document comes next */
    uint64_t room; /* tokens left in the row; values that are read again must not exceed it */
    uint64_t doc;  /* stream: of this shard */
    uint64_t bounds[TR_WALK_BOUNDS], bounds_first, n_bounds;
};

struct tr_piece {
    uint64_t first; /* token in walk->shard */
    int64_t n;      /* 0: the row has ended */
    bool goes_on;   /* token `next` is the target of its last token */
    uint64_t next;
    uint64_t doc; /* packed: of the part */
    bool is_more; /* it goes on where the piece before it, of the same document, has ended */
};

/* Call tr_walk_end even after a tr_walk_begin that failed. */
enum tr_status tr_walk_begin(struct tr_walk *w, const struct tr_data_part *p, uint64_t row);
enum tr_status tr_walk_next(struct tr_walk *w, struct tr_piece *out);
void tr_walk_end(struct tr_walk *w);

#endif
