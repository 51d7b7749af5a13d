/* comm.h - room header of comm: bytes between ranks. An engine is a row of the table: self, shm, phantom; MPI and NCCL add
 * rows. A communicator is an ordered group of ranks; every axis of the mesh has one, of size 1 too (self).
 *
 * Collectives are posted and complete later, in the order they were posted on their communicator; all ranks post the same
 * ones in the same order. Each carries (sequence, kind, count, dtype) and a call site: a mismatch between ranks is
 * reported with both call sites before data moves. Sums run in rank order, so all ranks hold the same bits, every time.
 * Nothing waits for ever: every wait has a bound, and what is reported names the rank that is missing and the collective.
 */
#ifndef TR_COMM_COMM_H
#define TR_COMM_COMM_H

#include "device/device.h"

enum tr_coll_kind {
    TR_ALL_REDUCE,     /* in, out: count; out = op over ranks of in (in == out allowed) */
    TR_REDUCE_SCATTER, /* in: count, out: this rank's shard of it (tr_shard) */
    TR_ALL_GATHER,     /* in: this rank's shard, out: count; in may be its place inside out */
    TR_BROADCAST,      /* in at root, out everywhere: count */
    TR_ALL_TO_ALL,     /* in, out: count; piece p of in (tr_shard) goes to rank p, piece p of out comes from rank p */
    TR_SEND,           /* in: count to rank `root` */
    TR_RECV,           /* out: count from rank `root` */
    TR_BARRIER,
    TR_COLL_KINDS
};
enum tr_reduce_op { TR_SUM, TR_AVG, TR_MAX };

struct tr_coll {
    enum tr_coll_kind kind;
    enum tr_dtype dtype; /* F32, BF16, F64 or I64; BF16 is summed in F32 and rounded once */
    enum tr_reduce_op op;
    const void *in;
    void *out;
    size_t count; /* elements, of the whole: see each kind */
    int root;
    const char *site; /* "grads block.3": appears in reports; must outlive the collective */
};

/* Elements [first, first + n) of `count` that belong to `rank` of `size`: as even as it goes, the first ranks one more. */
static inline void tr_shard(size_t count, int size, int rank, size_t *first, size_t *n)
{
    size_t each = count / (size_t)size, rest = count % (size_t)size, r = (size_t)rank;
    *first = r * each + (r < rest ? r : rest);
    *n = each + (r < rest ? 1 : 0);
}

/* How this process was started. */
struct tr_comm_env {
    int rank, size;             /* in the world */
    const char *job;            /* names the shared segment; unique per job and generation */
    int64_t generation;         /* in every header: messages of an older one are ignored */
    int64_t timeout_us;         /* bound of every wait */
    size_t arena_bytes;         /* of shared memory this rank will reserve through tr_comm_reserve */
};

struct tr_comm;
typedef uint64_t tr_ticket; /* of a posted collective; tickets of one communicator grow */

struct tr_comm_ops {
    const char *name;
    const char *(*can_use)(const struct tr_comm_env *env); /* NULL = yes, else why not */
    enum tr_status (*open)(const struct tr_comm_env *env, struct tr_comm **world);
    enum tr_status (*split)(struct tr_comm *c, int color, int key, struct tr_comm **out); /* as MPI_Comm_split */
    enum tr_status (*reserve)(struct tr_comm *world, size_t bytes, void **base); /* memory that collectives use without a copy */
    enum tr_status (*post)(struct tr_comm *c, const struct tr_coll *coll, tr_ticket *out);
    enum tr_status (*wait)(struct tr_comm *c, tr_ticket t);
    enum tr_status (*check)(struct tr_comm *c); /* errors that arrived meanwhile; names the peer */
    void (*abort)(struct tr_comm *c, const char *cause); /* every rank's waits return TR_PEER with this cause */
    void (*close)(struct tr_comm *c);
};

struct tr_comm {
    const struct tr_comm_ops *ops;
    int rank, size;
};

/* By name, or NULL: the first row that can be used. */
enum tr_status tr_comm_open(const char *engine, const struct tr_comm_env *env, struct tr_comm **world);
void tr_comm_close(struct tr_comm *c); /* NULL is fine */

/* post + wait */
enum tr_status tr_comm_run(struct tr_comm *c, const struct tr_coll *coll);
const char *tr_coll_name(enum tr_coll_kind kind);

#endif
