/* front.h - the half that all engines with peers share: tickets, queues, splits, waits with a deadline, the helper
 * thread.
 *
 * An engine is hooks only: it fills a struct tr_front_hooks, and puts its own fields behind a struct tr_front (one per
 * process and world), a struct tr_front_comm (one per communicator) and a struct tr_front_channel. A communicator has
 * one channel for its collectives and one for each direction of each pair of ranks. A channel works on one operation at
 * a time, in the order of the posts, so all ranks work in the same order. docs/guide/add-an-engine.md adds one.
 */
#ifndef TR_COMM_FRONT_H
#define TR_COMM_FRONT_H

#include "comm/comm_impl.h"
#include <pthread.h>
#include <stdatomic.h>

enum {
    TR_FRONT_OPS_MAX = 128,   /* posted and not complete, per communicator; a post beyond that waits for the oldest */
    TR_FRONT_TEXT_MAX = 1024, /* bytes of the text of a fault */
    TR_FRONT_SLICE_US = 50 * 1000, /* longest time between two looks at the health of the peers */
};

enum tr_front_state {
    TR_FRONT_FREE,
    TR_FRONT_QUEUED,    /* the peers do not know of it yet */
    TR_FRONT_ANNOUNCED, /* the peers can compare it with theirs */
    TR_FRONT_MOVING,    /* all ranks agree: data moves */
};

struct tr_front_op {
    enum tr_front_state state;
    bool is_small; /* its data travels with the announcement */
    tr_ticket ticket;
    struct tr_coll coll; /* a send or a receive is a broadcast from the sender on the channel of the pair */
    uint64_t seq;        /* in its channel; counts from 1 */
    struct tr_front_channel *channel;
    struct tr_front_op *next;
};

struct tr_front_channel {
    struct tr_front_comm *comm;
    int n, me;        /* seats of the channel, and this rank's seat; the sender of a pair has seat 0 */
    int peer;         /* rank of the other end in the communicator; -1: this channel is for collectives of all ranks */
    int pair[2];      /* world ranks of a pair: sender, receiver */
    const int *ranks; /* world rank of each seat */
    uint64_t n_queued;
    struct tr_front_op *first, *last;
    struct tr_front_channel *next_active; /* while it has operations */
};

struct tr_front_comm {
    struct tr_comm base;
    struct tr_front *w;
    int *ranks;     /* world ranks */
    char *channels; /* 1 + 2 * size of them: tr_front_all, tr_front_to, tr_front_from */
    tr_ticket n_posted;
    struct tr_front_op ops[TR_FRONT_OPS_MAX];
    struct tr_front_comm *next;
};

/* The process of a rank. */
struct tr_front_peer {
    char host[64];
    int pid;
    int fd;                      /* pidfd; -1: it is this process, has ended, or is on another host */
    const atomic_int *is_closed; /* not 0: it has closed its communicators */
};

/* One per process and world, shared by its communicators. `lock` guards all of it but the atomics; it is never held
 * asleep. The engine fills the first block before it calls tr_front_open_comm. */
struct tr_front {
    const struct tr_front_hooks *hooks;
    const struct tr_comm_ops *ops; /* the engine's row */
    int rank, size;
    int64_t timeout_us;          /* longest wait, from the last time that something moved */
    size_t small_bytes;          /* a collective of at most this many bytes a rank travels with its announcement */
    size_t n_elements_max;       /* of a collective of all ranks, broadcasts excepted; 0: any number */
    int64_t rest_us;             /* longest rest of a waiting caller between two looks */
    int64_t help_us;             /* longest rest of the helper while operations are under way */
    int64_t idle_us;             /* longest sleep of the helper otherwise; 0: callers kick it when there is work */
    const atomic_int *fault;     /* not 0: the world has failed, and hooks->fault knows why */
    struct tr_front_peer *peers; /* by world rank; tr_front_watch and is_closed are the engine's to call and set */
    char *arena;
    size_t arena_bytes;

    size_t reserved_bytes;
    pthread_mutex_t lock;
    pthread_t helper;
    bool has_helper, is_closing;
    bool is_abandoned;    /* a communicator was closed while it had operations under way */
    atomic_uint kick;     /* futex of the helper */
    atomic_int n_callers; /* threads inside a call: the helper keeps away */
    struct tr_front_comm *comms;
    struct tr_front_channel *active;         /* those with operations */
    const struct tr_front_channel *waits_in; /* the channel that a caller of this rank waits in; NULL: none */
    int64_t checked_us;                      /* when the health of the peers was last looked at */
    struct tr_stopped stopped;
};

/* Where the ranks of one color go. */
struct tr_front_group {
    int color, key, n;
    int leader;       /* rank in the parent of the first rank of this color */
    int rank;         /* of this process in the new communicator */
    const int *ranks; /* n world ranks, in their new order */
    int64_t *values;  /* one zero for each rank of the parent, for the hook to use with tr_split_exchange */
};

/* What an engine fills. All hooks but `split` and `close` run with the lock held. Optional ones may be NULL. */
struct tr_front_hooks {
    size_t channel_bytes; /* of its own channel struct, which starts with a tr_front_channel */
    /* Announces the first operation of the channel to the peers and sets TR_FRONT_ANNOUNCED; or leaves it queued, when
     * a peer must do something first. */
    enum tr_status (*announce)(struct tr_front_channel *ch, struct tr_front_op *op);
    /* Moves an announced operation as far as the peers allow, without blocking; tr_front_complete ends it. */
    enum tr_status (*advance)(struct tr_front_channel *ch, struct tr_front_op *op, bool *has_moved);
    enum tr_status (*listen)(struct tr_front *w); /* optional: before each look at the channels */
    /* Optional: after each look of a wait. May look again for a while (tr_front_advance) and learns whether that pays.
     * n_rests: how often the caller has rested since something moved. */
    enum tr_status (*spin)(struct tr_front *w, int n_rests, bool *has_moved);
    /* Optional: gives up the core for at most `us`, without the lock; less when a peer rings. NULL: a nap of `us`. */
    enum tr_status (*rest)(struct tr_front *w, int64_t us);
    /* Nothing moved for waited_us: raises a fault if a peer is gone, or holds up `ch` for too long. ch NULL: is anybody
     * gone? */
    enum tr_status (*look)(struct tr_front *w, const struct tr_front_channel *ch, int64_t waited_us, int64_t now_us);
    void (*publish)(struct tr_front *w);               /* optional: w->waits_in has changed */
    enum tr_status (*fault)(const struct tr_front *w); /* the text of the first fault, as this thread's error */
    void (*raise)(struct tr_front *w, enum tr_status st, const char *text); /* the first fault of all ranks wins */
    /* All ranks of `c` call it. Opens the communicator of s->ranks where color >= 0 and n > 1; else *out stays NULL. */
    enum tr_status (*split)(struct tr_front_comm *c, const struct tr_front_group *s, struct tr_front_comm **out);
    void (*close)(struct tr_front_comm *c, bool is_last); /* frees what is the engine's, the world too if is_last */
};
_Static_assert(sizeof(struct tr_front_hooks) <= 12 * sizeof(void *), "an engine is at most twelve slots");

/* The rest of an engine's row: { "name", can_use, open, TR_FRONT_OPS }. */
#define TR_FRONT_OPS                                                                                                   \
    tr_front_split, tr_front_reserve, tr_front_post, tr_front_run, tr_front_wait, tr_front_check, tr_front_abort,      \
        tr_front_close, NULL
enum tr_status tr_front_split(struct tr_comm *c, int color, int key, int n, struct tr_comm **out);
enum tr_status tr_front_reserve(struct tr_comm *c, size_t bytes, void **base);
enum tr_status tr_front_post(struct tr_comm *c, const struct tr_coll *coll, tr_ticket *out);
enum tr_status tr_front_run(struct tr_comm *c, const struct tr_coll *coll);
enum tr_status tr_front_wait(struct tr_comm *c, tr_ticket t);
enum tr_status tr_front_check(struct tr_comm *c);
void tr_front_abort(struct tr_comm *c, const char *cause);
void tr_front_close(struct tr_comm *c);

/* ---- for engines ---- */

/* Fills in what every engine fills from env; tr_front_release frees it, also after a failure. */
enum tr_status tr_front_init(struct tr_front *w, const struct tr_front_hooks *hooks, const struct tr_comm_ops *ops,
                             const struct tr_comm_env *env);
void tr_front_release(struct tr_front *w);
/* A communicator of `bytes` (the engine's struct, which starts with a tr_front_comm), zeroed behind that. ranks NULL:
 * the world's. With the lock held, unless it is the first. */
enum tr_status tr_front_open_comm(struct tr_front *w, size_t bytes, const int *ranks, int rank, int size,
                                  struct tr_front_comm **out);
void tr_front_free_comm(struct tr_front_comm *c); /* in hooks->close */
struct tr_front_channel *tr_front_all(const struct tr_front_comm *c);
struct tr_front_channel *tr_front_to(const struct tr_front_comm *c, int peer);
struct tr_front_channel *tr_front_from(const struct tr_front_comm *c, int peer);

void tr_front_enter(struct tr_front *w); /* takes the lock; the helper steps aside */
void tr_front_leave(struct tr_front *w);
enum tr_status tr_front_start_helper(struct tr_front *w);
void tr_front_stop_helper(struct tr_front *w); /* without the lock */

enum tr_status tr_front_advance(struct tr_front *w, bool *has_moved);
enum tr_status tr_front_look_again(struct tr_front *w, int n_times, bool *has_moved); /* until something has moved */
void tr_front_complete(struct tr_front_channel *ch, struct tr_front_op *op);
enum tr_status tr_front_fault(const struct tr_front *w); /* TR_OK, or what was raised, as this thread's error */
enum tr_status tr_front_raise(struct tr_front *w, enum tr_status st, const char *fmt, ...) TR_PRINTF(3, 4);
enum tr_status tr_front_failpoint(struct tr_front *w, const char *name); /* raises what tests plant there */

/* What a seat of the channel has announced as its operation ch->first->seq. */
struct tr_front_announced {
    int seat;
    const struct tr_signature *signature;
    const char *site; /* TR_SITE_MAX bytes */
};
/* Raises "ranks disagree" with both call sites. */
enum tr_status tr_front_raise_differ(struct tr_front_channel *ch, struct tr_front_announced mine,
                                     struct tr_front_announced theirs);
static inline enum tr_status tr_front_compare(struct tr_front_channel *ch, struct tr_front_announced mine,
                                              struct tr_front_announced theirs)
{
    return tr_signature_agrees(mine.signature, theirs.signature) ? TR_OK : tr_front_raise_differ(ch, mine, theirs);
}
enum tr_coll_kind tr_front_kind(const struct tr_front_channel *ch); /* of its first operation, as it was posted */
/* "all_reduce #17 grads block.3 (entering)", or "no collective"; ch may be NULL. */
const char *tr_front_place(const struct tr_front_channel *ch, char *buf, size_t n_buf);

/* Watches the process of a rank on this host; raises a fault if it is gone already. */
enum tr_status tr_front_watch(struct tr_front *w, int rank, int pid);
/* Raises a fault if a watched process has ended before it closed its communicators. */
enum tr_status tr_front_look_for_dead(struct tr_front *w, const struct tr_front_channel *ch);
/* Raises that `rank` has closed its communicators while this rank waits for it in `ch`. */
enum tr_status tr_front_raise_closed(struct tr_front *w, int rank, const struct tr_front_channel *ch);

#endif
