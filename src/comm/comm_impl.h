/* comm_impl.h - what the engines share: their rows and the reduction. */
#ifndef TR_COMM_COMM_IMPL_H
#define TR_COMM_COMM_IMPL_H

#include "comm/comm.h"

extern const struct tr_comm_ops tr_comm_self, tr_comm_shm, tr_comm_mpi, tr_comm_phantom;

/* nccl.cu: a world over an engine of the host, which it closes with itself; on failure that stays the caller's. */
enum tr_status tr_comm_nccl_open(struct tr_comm *host, const struct tr_comm_env *env, struct tr_comm **world);

/* out[j][i] = op over p = 0 .. n_in - 1, in this order, of in[p][i], for i < count and every j < n_out. An output may
 * be one of the inputs. Same bits for any instruction set, any n_out and any cut of [0, count). */
void tr_reduce(enum tr_dtype dtype, enum tr_reduce_op op, const void *const *in, int n_in, void *const *out, int n_out,
               size_t count);

/* memcpy whose stores go past the caches: of buffers too large to stay there, it spares reading what it overwrites. */
void tr_copy_past_cache(void *dst, const void *src, size_t bytes);

static inline bool tr_coll_reduces(enum tr_coll_kind kind)
{
    return kind == TR_ALL_REDUCE || kind == TR_REDUCE_SCATTER;
}

static inline bool tr_coll_is_pieced(enum tr_coll_kind kind) /* something else for everybody */
{
    return tr_coll_reduces(kind) || kind == TR_ALL_TO_ALL;
}

/* Elements of the whole that `owner` gives or gets; a broadcast has one shard. */
void tr_coll_shard(const struct tr_coll *c, int n, int owner, size_t *first, size_t *n_elems);

/* A split: every rank says where it wants to go and how many it expects there. */
struct tr_said {
    int64_t color, key, n;
};
/* All ranks' n_each numbers to all; this rank's are in their place. */
enum tr_status tr_comm_tell(struct tr_comm *c, int64_t *all, int n_each);
/* The first rank whose count is wrong, and the right one; -1: none. */
int tr_split_wrong(const struct tr_said *said, int size, int64_t *n_found);
/* from[i] of this rank's color by (key, i); its own place among them, and the i of the first. */
int tr_split_pick(const struct tr_said *said, int size, int me, const int *from, int *ranks, int *leader);
/* The next `bytes` of an arena. */
enum tr_status tr_comm_carve(char *arena, size_t arena_bytes, size_t bytes, size_t *used, void **out);

/* What ranks tell each other of a collective before data moves; with its number and site. */
enum { TR_SITE_MAX = 64 };
struct tr_card {
    uint64_t count, site_hash;
    uint8_t kind, dtype, op, unused;
    int32_t root;
};
struct tr_card tr_card_of(const struct tr_coll *c, bool is_pair); /* a pair: send on one side, receive on the other */
bool tr_card_agrees(const struct tr_card *a, const struct tr_card *b); /* sites are compared where both gave one */
/* "rank 1 posted all_reduce #17 (sum 10 of float32, root 0) at "here""; name NULL: the kind's. */
const char *tr_card_text(const struct tr_card *card, const char *name, int rank, uint64_t seq, const char *site,
                         char *buf, size_t n_buf);

/* A rank of this host that a signal stopped is given up after TR_STOPPED_US, however long waits may be: a short stop is
 * survived, a long one is a hang. Time counts while the one who looks runs itself. */
enum { TR_STOPPED_US = 4300 * 1000, TR_STOPPED_STEP_US = 200 * 1000 };
struct tr_stopped {
    int pid;
    int64_t us, last_us;
};
bool tr_is_stopped(int pid);
bool tr_stopped_too_long(struct tr_stopped *s, int pid, int64_t now_us); /* call it often while waiting for pid */

/* Collectives whose data of each rank fits in `bytes` beside the card, or is not this engine's to move. */
bool tr_small_fits(const struct tr_coll *c, int n, size_t bytes);
void tr_small_put(const struct tr_coll *c, int n, int me, void *small);
void tr_small_take(const struct tr_coll *c, int n, int me, const void **small); /* changes the pointers */

#endif
