/* shm_impl.h - the shared segment of one host, and what each process keeps beside it.
 *
 * The segment is a memfd: header | heap (channels) | one arena per rank. It has no name, so that nothing is left behind
 * whoever is killed whenever. Every word in it has one writer (the bell and the heap pointer excepted, which are single
 * atomic additions), hence no lock that a dead process could hold.
 *
 * A channel is where the ranks of a group meet: one seat for each, written by that rank only. Every collective is
 * entered (its description is stamped with its number), compared, and then either done from the payload beside the
 * description (small ones), or in rounds of three phases: stage, middle, last. A rank counts the rounds of each phase
 * it did, over the life of the channel; peers wait for these counts. A send is a broadcast on the channel of two ranks.
 */
#ifndef TR_COMM_SHM_IMPL_H
#define TR_COMM_SHM_IMPL_H

#include "comm/comm_impl.h"
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>

enum {
    SHM_RANKS_MAX = 1024,
    N_GROUPS_MAX = 256, /* open at once, all splits of all ranks together */
    N_OPS_MAX = 128,    /* posted and not complete, per communicator; a post beyond waits for the oldest */
    SITE_MAX = TR_SITE_MAX,
    TEXT_MAX = 1024,
    SMALL_BYTES = 2048,         /* a collective up to here travels with its description */
    HALF_BYTES = 256 << 10,     /* of staging; two halves, so that one fills while the other is read */
    PIECE_BYTES = 256 << 10,    /* of work between two looks at who else wants the engine */
    PAST_CACHE_BYTES = 8 << 20, /* copies of whole buffers from here on do not go through the caches */
    SLICE_US = 50 * 1000,       /* longest sleep between two looks at the health of the peers */
    WAIT_SITE_WORDS = SITE_MAX / 8,
};
#define NOT_SHARED UINT64_MAX /* offset of a buffer outside the arenas */

enum phase { STAGE, MIDDLE, LAST, N_PHASES };

/* What a rank is about to do: one cache line, so that one miss brings both the news and the content. */
struct head {
    _Alignas(64) atomic_uint_fast64_t seq; /* stamped last */
    struct tr_card card;
    uint64_t in_at, out_at; /* offset in the segment, or NOT_SHARED */
};
_Static_assert(sizeof(struct head) == 64, "one cache line");

/* Collective number s uses entry s & 1 of head, site and small. A rank reaches s + 2 only when everybody entered s + 1,
 * that is, finished reading s. */
struct seat {
    struct head head[2];
    _Alignas(64) atomic_uint_fast64_t did[N_PHASES]; /* rounds, ever */
    _Alignas(64) char site[2][SITE_MAX];
    _Alignas(64) char small[2][SMALL_BYTES];
    _Alignas(4096) char stage[2][HALF_BYTES];
    _Alignas(4096) char result[2][HALF_BYTES];
};

struct group {
    atomic_int n_open; /* members that did not close it; 0: free for reuse */
    int32_t n;
    uint64_t seats_at; /* n seats */
    uint64_t pairs_at; /* n * n offsets of channels [sender][receiver], 0 = none yet; the sender makes them */
};

/* World rank r's own line(s). Written by r, except `bell`. */
struct slot {
    _Alignas(64) atomic_uint bell; /* futex; peers add 1 when n_asleep is not 0 */
    atomic_uint n_asleep;          /* threads of r that sleep, or are about to */
    _Alignas(64) int32_t pid;      /* this and the arena: written by rank 0 before anybody else maps the segment */
    uint64_t arena_at, arena_bytes;
    atomic_int is_closed;
    atomic_int waits_for;       /* world rank + 1 while asleep in a wait, else 0 */
    atomic_uint_fast64_t where; /* collective it waits in: number << 8 | kind + 1; 0 = none */
    atomic_uint_fast64_t where_site[WAIT_SITE_WORDS];
    int32_t fault_status; /* valid once header.fault names this rank */
    char fault_text[TEXT_MAX];
};

struct header {
    uint64_t magic, total_bytes;
    int64_t generation;
    int32_t size, pid;
    void *base; /* in process `pid`: ranks that are threads of it share the mapping, so that TSan sees them meet */
    atomic_int n_local; /* users of that mapping */
    atomic_int fault;   /* rank + 1 of the first to report; set once */
    atomic_uint_fast64_t heap_next;
    uint64_t heap_end;
    struct group groups[N_GROUPS_MAX]; /* 0: the world */
    struct slot slots[];
};

enum op_state { OP_FREE, OP_QUEUED, OP_ENTERED, OP_RUNNING };

struct op {
    enum op_state state;
    bool is_small, is_direct;
    tr_ticket ticket;
    struct tr_coll coll; /* send and receive: a broadcast on the pair */
    uint64_t seq;
    uint64_t first_round, n_rounds, done[N_PHASES];
    size_t n_parts, part; /* a direct operation's middle is cut in parts */
    struct channel *channel;
    struct op *next;
};

struct channel {
    struct shm_comm *comm;
    struct seat *seats;            /* NULL: a pair's, whose sender did not come yet */
    atomic_uint_fast64_t *pair_at; /* where it will be */
    int n, me;
    int pair[2];      /* world ranks of a pair: sender, receiver */
    const int *ranks; /* world rank of each seat */
    uint64_t seq, n_rounds;
    struct op *first, *last;
    struct channel *next_active; /* while it has operations */
    /* What it waits for: *word to reach value, which seat `missing` will write. */
    const atomic_uint_fast64_t *word;
    uint64_t value;
    int missing;
};

struct shm_comm {
    struct tr_comm base;
    struct world *w;
    struct group *group;
    int *ranks; /* world ranks */
    struct channel all;
    struct channel *to, *from; /* pairs: to and from each rank of the group */
    tr_ticket n_posted;
    struct op ops[N_OPS_MAX];
};

/* One per process and world, shared by its communicators. `lock` guards all of it but the atomics; it is never held
 * asleep. */
struct world {
    struct header *h;
    int rank, size;
    int64_t timeout_us;
    size_t reserved_bytes;
    bool is_local; /* the mapping is shared with rank 0 of this process */
    bool is_closing;
    int n_comms;
    int n_spins, n_sleepy; /* learnt: looks before leaving the core; waits that do not offer it to others */
    bool has_cores;        /* one for every rank */
    struct pollfd *peers;  /* pidfds; -1: this process */
    char host[64];
    pthread_mutex_t lock;
    pthread_t helper;
    bool has_helper;
    atomic_uint kick;     /* futex of the helper */
    atomic_int n_callers; /* threads inside wait or post: the helper keeps away */
    struct channel *active;
    int64_t checked_us; /* health of the peers */
    struct tr_stopped stopped;
};

static inline void *at_offset(const struct world *w, uint64_t at)
{
    return (char *)w->h + at;
}

static inline struct slot *my_slot(const struct world *w)
{
    return &w->h->slots[w->rank];
}

/* shm_join.c: all ranks meet; *seg is mapped, slots are filled, this rank's arena has its memory. */
enum tr_status tr_shm_join(const struct tr_comm_env *env, struct header **seg, bool *is_local);
void tr_shm_unmap(struct header *h, bool is_local);

/* shm_health.c: bells, faults, and who is to blame. */
void tr_shm_ring(struct world *w, int world_rank);
void tr_shm_sleep(struct world *w, unsigned bell, int64_t us);
enum tr_status tr_shm_open_peers(struct world *w);
enum tr_status tr_shm_fault(const struct world *w); /* TR_OK, or what was raised, as this thread's error */
enum tr_status tr_shm_raise(struct world *w, enum tr_status st, const char *fmt, ...) TR_PRINTF(3, 4);
enum tr_status tr_shm_dead_peer(struct world *w, const struct channel *ch); /* raises if one died; ch may be NULL */
enum tr_status tr_shm_timed_out(struct world *w, const struct channel *ch, int64_t waited_us); /* always raises */
bool tr_shm_is_held_up(struct world *w, const struct channel *ch, int64_t now_us); /* by a stopped rank, too long */
void tr_shm_here(struct world *w, const struct channel *ch); /* publishes what this rank waits in; NULL = nothing */

/* shm_move.c: the data. */
void tr_shm_take_small(struct channel *ch, const struct op *op);
void tr_shm_plan_rounds(struct channel *ch, struct op *op); /* after everybody entered */
void tr_shm_phase(struct channel *ch, struct op *op, enum phase phase, uint64_t round);

/* shm_engine.c: the queue of each channel. With the lock held unless said. */
uint64_t tr_shm_alloc(struct world *w, size_t bytes); /* offset of zeroes on the heap, or 0; without or with the lock */
void tr_shm_enqueue(struct op *op);
void tr_shm_forget(struct world *w, const struct shm_comm *c);  /* operations nobody waits for any more */
enum tr_status tr_shm_finish(const struct op *op, tr_ticket t); /* waits, unless t is over and op another's */
enum tr_status tr_shm_start_helper(struct world *w);
void tr_shm_stop_helper(struct world *w); /* without the lock */
void tr_shm_enter(struct world *w);       /* takes the lock; the helper steps aside */
void tr_shm_leave(struct world *w);

#endif
