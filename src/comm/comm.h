/* comm.h - room header of comm: bytes between ranks. An engine is a row of the list in engines.c: self, shm, mpi,
 * phantom; on a GPU nccl lies above one of them and moves what is on the device. A communicator is an ordered group of
 * ranks; every axis of the mesh has one, also an axis of size 1 (self).
 *
 * Collectives are posted and complete later, in the order they were posted on their communicator; all ranks post the
 * same ones in the same order. Each carries (sequence, kind, op, dtype, count, root) and a call site: a mismatch
 * between ranks is reported with both call sites before data moves. Sums run in rank order: all ranks hold the same
 * bits, every time. A send pairs with the receive of the same number between the same two ranks and waits for nothing
 * else, so a ring may post all of its sends and receives and then wait. Nothing waits for ever: every wait has a
 * timeout, and its error names the missing rank and the collective. After a failure the world is done: every call
 * returns that failure.
 */
#ifndef TR_COMM_COMM_H
#define TR_COMM_COMM_H

#include "device/device.h"

enum tr_coll_kind {
    TR_ALL_REDUCE,     /* in, out: count; out = op over ranks of in (in == out allowed) */
    TR_REDUCE_SCATTER, /* in: count, out: this rank's shard of it (tr_shard); out may be its place inside in */
    TR_ALL_GATHER,     /* in: this rank's shard, out: count; in may be its place inside out */
    TR_BROADCAST,      /* in at root, out everywhere: count (in == out allowed; in is not read elsewhere) */
    TR_ALL_TO_ALL, /* in, out: count, a multiple of the size; piece p of in goes to rank p, piece p of out comes from p
                    */
    TR_SEND,       /* in: count to rank `root` */
    TR_RECV,       /* out: count from rank `root` */
    TR_BARRIER,
    TR_COLL_KINDS
};
enum tr_reduce_op { TR_SUM, TR_AVG, TR_MAX, TR_REDUCE_OPS }; /* a NaN wins every max; I64 averages round towards 0 */

struct tr_coll {
    enum tr_coll_kind kind;
    enum tr_dtype dtype; /* sums: floats or I64; 16-bit floats are summed in F32 and rounded once. Copies: any */
    enum tr_reduce_op op;
    const void *in;
    void *out;
    size_t count; /* elements of the whole buffer: see each kind */
    int root;
    bool
        is_elsewhere; /* another engine moves the data: this one compares what ranks posted, and names a missing rank */
    /* "grads block.3": named in errors, and compared between ranks (not for send and receive). Must outlive the
     * collective. */
    const char *site;
};

/* Elements [first, first + n) of `count` that belong to `rank` of `size`: equal shards, and what is left over goes to
 * the first ranks, one element each. */
static inline void tr_shard(size_t count, int size, int rank, size_t *first, size_t *n)
{
    size_t each = count / (size_t)size, rest = count % (size_t)size, r = (size_t)rank;
    *first = r * each + (r < rest ? r : rest);
    *n = each + (r < rest ? 1 : 0);
}

/* How this process was started. */
struct tr_comm_env {
    int rank, size;     /* in the world */
    int n_local;        /* ranks on this host; 0: all of them */
    const char *job;    /* name by which the ranks of one host find each other; unique per job */
    int64_t generation; /* part of that name: ranks of an older generation never meet ranks of a newer one */
    const char *secret; /* so is this, known to the ranks of one generation only; NULL: other users can tell the name */
    struct tr_str *notes; /* gets a line for whoever runs the job, each with a line end; NULL: it is not wanted */
    int64_t timeout_us;   /* longest wait, from the last time anything moved */
    size_t arena_bytes;   /* that this rank will reserve through tr_comm_reserve */
    struct tr_device
        *device; /* NULL: the host. Else reserved memory is on the device, and a collective on it runs
                    there, in the order of the device's stream: a wait blocks that stream, not the caller */
};

struct tr_comm;
typedef uint64_t tr_ticket; /* identifies a posted collective; tickets of one communicator increase */

/* The row of an engine. Callers use the functions below. */
struct tr_comm_ops {
    const char *name;
    const char *(*can_use)(const struct tr_comm_env *env); /* NULL = yes, else the reason why not */
    enum tr_status (*open)(const struct tr_comm_env *env, struct tr_comm **world);
    enum tr_status (*split)(struct tr_comm *c, int color, int key, int n, struct tr_comm **out);
    enum tr_status (*reserve)(struct tr_comm *c, size_t bytes, void **base);
    enum tr_status (*post)(struct tr_comm *c, const struct tr_coll *coll, tr_ticket *out);
    enum tr_status (*run)(struct tr_comm *c, const struct tr_coll *coll); /* post and wait in one */
    enum tr_status (*wait)(struct tr_comm *c, tr_ticket t);
    enum tr_status (*check)(struct tr_comm *c);
    void (*abort)(struct tr_comm *c, const char *cause);
    void (*close)(struct tr_comm *c);
    int64_t (*waited_us)(struct tr_comm *c); /* NULL: time inside run and wait */
};

/* For profiles: called when a collective starts and ends, and when a wait for one does. stream NULL: it happens now;
 * else when that stream of the device comes to it. x is NULL except at a start; the ticket is UINT64_MAX in
 * tr_comm_run. */
enum tr_comm_mark { TR_MARK_START, TR_MARK_END, TR_MARK_WAIT, TR_MARK_WAITED };
struct tr_comm_tracer {
    void (*mark)(struct tr_comm_tracer *self, const struct tr_comm *c, tr_ticket t, const struct tr_coll *x,
                 enum tr_comm_mark mark, void *stream);
};

struct tr_comm {
    const struct tr_comm_ops *ops;
    int rank, size;
    struct tr_comm_tracer *tracer; /* NULL: no profile is written */
    int64_t waited_us;             /* in run and wait, since the last tr_comm_waited_us */
    /* Host engines move bytes on the calling thread, so the compute stream of this device is waited for first. NULL: an
     * engine of the device's own, whose streams keep that order. */
    struct tr_device *device;
};

/* engine: a name, or NULL for the first row that can be used (never phantom). */
enum tr_status tr_comm_open(const char *engine, const struct tr_comm_env *env, struct tr_comm **world);
/* c may be NULL. A split communicator may outlive the one it came from; closing the last one ends the world. */
void tr_comm_close(struct tr_comm *c);

/* As MPI_Comm_split: a communicator of the ranks of one color, ordered by (key, rank). A rank with color < 0 takes part
 * and gets NULL. n is how many ranks of that color the caller expects: a wrong number is TR_USAGE on all ranks.
 * phantom, which has no peers, makes rank `key` of n. */
enum tr_status tr_comm_split(struct tr_comm *c, int color, int key, int n, struct tr_comm **out);

/* Memory for buffers that collectives use without a copy. It lives until the world ends. A reservation takes
 * tr_round_up(bytes, TR_COMM_ALIGN) of env.arena_bytes. */
enum { TR_COMM_ALIGN = 4096 };
enum tr_status tr_comm_reserve(struct tr_comm *c, size_t bytes, void **base);

/* Returns at once; the buffers belong to the collective until tr_comm_wait returns. Waits may come in any order. */
enum tr_status tr_comm_post(struct tr_comm *c, const struct tr_coll *coll, tr_ticket *out);
enum tr_status tr_comm_wait(struct tr_comm *c, tr_ticket t);
enum tr_status tr_comm_run(struct tr_comm *c, const struct tr_coll *coll); /* post and wait, the fastest form */

/* tr_comm_run of a reduction in host memory that detects every single flipped bit (fault D5) and names the rank of this
 * communicator; other kinds run as in tr_comm_run. memory: tr_comm_checked_bytes(c->size), aligned as malloc's. */
size_t tr_comm_checked_bytes(int size);
enum tr_status tr_comm_run_checked(struct tr_comm *c, const struct tr_coll *coll, void *memory);

/* TR_OK, or what has failed meanwhile. Does not wait. */
enum tr_status tr_comm_check(struct tr_comm *c);
/* How long this communicator has delayed arithmetic since the last call. On a device: call it after a sync. */
int64_t tr_comm_waited_us(struct tr_comm *c);
/* Ends the waits of all ranks, in every communicator of this world, with TR_PEER and this cause. From any thread. */
void tr_comm_abort(struct tr_comm *c, const char *cause);

const char *tr_coll_name(enum tr_coll_kind kind); /* "all_reduce" */

/* The modules of the engine mpi, one for each MPI library that it can use. */
enum { TR_COMM_MODULES = 2 };
extern struct tr_module tr_comm_modules[TR_COMM_MODULES];

/* What was posted on a phantom communicator, per kind; bytes are those of `count`. NULL for other engines. */
struct tr_comm_counts {
    uint64_t n_calls[TR_COLL_KINDS], bytes[TR_COLL_KINDS];
    size_t reserved_bytes;
};
const struct tr_comm_counts *tr_comm_counts(const struct tr_comm *c);

#endif
