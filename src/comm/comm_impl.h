/* comm_impl.h - what the engines share: their rows, the reduction, signatures, small collectives. */
#ifndef TR_COMM_COMM_IMPL_H
#define TR_COMM_COMM_IMPL_H

#include "comm/comm.h"

extern const struct tr_comm_ops tr_comm_self, tr_comm_shm, tr_comm_mpi, tr_comm_phantom;
/* engines.c: the rows, in the order in which tr_comm_open tries them; NULL ends the list. */
extern const struct tr_comm_ops *const tr_comm_engines[];

/* The engine of a device with memory of its own, in its module (nccl.cu): a world above the world `host` of a host
 * engine. Closing it closes `host`; on failure `host` stays open. */
struct tr_comm_above {
    enum tr_status (*open)(struct tr_comm *host, const struct tr_comm_env *env, struct tr_comm **world);
};
#define TR_COMM_ABOVE_SYMBOL "tr_comm_of_module"

/* out[j][i] = op over p = 0 .. n_in - 1, in this order, of in[p][i], for i < count and every j < n_out. An output may
 * be one of the inputs. The bits are the same for any instruction set, any n_out and any division of [0, count). */
void tr_reduce(enum tr_dtype dtype, enum tr_reduce_op op, const void *const *in, int n_in, void *const *out, int n_out,
               size_t count);

/* memcpy whose stores bypass the caches. Where a buffer is too large for them, this saves reading what is overwritten.
 */
void tr_copy_past_cache(void *dst, const void *src, size_t bytes);

static inline bool tr_coll_reduces(enum tr_coll_kind kind)
{
    return kind == TR_ALL_REDUCE || kind == TR_REDUCE_SCATTER;
}

static inline bool tr_coll_is_pieced(enum tr_coll_kind kind) /* every rank gets another piece */
{
    return tr_coll_reduces(kind) || kind == TR_ALL_TO_ALL;
}

/* Elements of the whole buffer that `owner` gives or gets; a broadcast has one shard. */
void tr_coll_shard(const struct tr_coll *c, int n, int owner, size_t *first, size_t *n_elems);

/* What a rank reports in a split: where it goes, and how many ranks it expects there. */
struct tr_split_report {
    int64_t color, key, n;
};
/* All-gather of n_each numbers a rank; this rank's are in their place already. */
enum tr_status tr_split_exchange(struct tr_comm *c, int64_t *all, int n_each);
/* The first rank whose count is wrong, and the right count; -1: none. */
int tr_split_find_wrong(const struct tr_split_report *reports, int size, int64_t *n_right);
/* from[i] for each rank i of this rank's color, ordered by (key, i). Returns this rank's place among them; leader: the
 * i of the first. */
int tr_split_pick(const struct tr_split_report *reports, int size, int me, const int *from, int *ranks, int *leader);
/* Takes the next `bytes` of an arena. */
enum tr_status tr_comm_carve(char *arena, size_t arena_bytes, size_t bytes, size_t *used, void **out);

/* The signature of a collective: what ranks compare before data moves, together with its number and its site. */
enum { TR_SITE_MAX = 64 };
struct tr_signature {
    uint64_t count, site_hash;
    uint8_t kind, dtype, op, unused;
    int32_t root;
};
/* is_pair: a send on one side and a receive on the other have one signature. */
struct tr_signature tr_signature_of(const struct tr_coll *c, bool is_pair);
bool tr_signature_agrees(const struct tr_signature *a,
                         const struct tr_signature *b); /* a missing site agrees with any */
/* "rank 1 posted all_reduce #17 (sum 10 of float32, root 0) at "here""; name NULL: the kind's. */
const char *tr_signature_text(const struct tr_signature *sig, const char *name, int rank, uint64_t seq,
                              const char *site, char *buf, size_t n_buf);

/* A rank of this host that a signal has stopped is given up after TR_STOPPED_US, however long the timeout is: a run
 * survives a short stop, and a long one is a hang. Only time in which the observing process itself runs is counted. */
enum { TR_STOPPED_STEP_US = 200 * 1000 };
struct tr_stopped {
    int pid;
    int64_t us, last_us;
};
bool tr_is_stopped(int pid);
bool tr_stopped_too_long(struct tr_stopped *s, int pid, int64_t now_us); /* call it often while waiting for pid */

/* Small collectives: the data of each rank travels with its announcement. Also those that another engine moves, which
 * have no data here. */
bool tr_small_fits(const struct tr_coll *c, int n, size_t bytes);
void tr_small_put(const struct tr_coll *c, int n, int me, void *small);
void tr_small_take(const struct tr_coll *c, int n, int me, const void **small); /* changes the pointers in `small` */

#endif
