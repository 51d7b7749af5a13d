/* shm_impl.h - the shared segment of one host, and what each process keeps beside it.
 *
 * The segment is a memfd: header | heap (channels) | one arena per rank. It has no name, so nothing is left behind,
 * whichever rank is killed and whenever. Every word in it has one writer (the doorbell and the heap pointer excepted,
 * which are single atomic additions), hence no lock that a dead process could hold.
 *
 * A channel is where the ranks of a group meet: one seat for each, written by that rank only. Every collective is
 * announced (its signature is stamped with its number), compared, and then either done from the data beside the
 * signature (small ones), or in rounds of three phases: stage, middle, last. A rank counts the rounds of each phase
 * that it did, over the life of the channel; peers wait for these counts.
 */
#ifndef TR_COMM_SHM_IMPL_H
#define TR_COMM_SHM_IMPL_H

#include <sys/socket.h>
#include "comm/front.h"

enum {
    SHM_RANKS_MAX = 1024,
    SHM_GROUPS_MAX = 256,           /* open at once, all splits of all ranks together */
    SHM_SMALL_BYTES = 2048,         /* a collective up to here travels with its announcement */
    SHM_HALF_BYTES = 256 << 10,     /* of staging memory, which has two halves: one fills while the other is read */
    SHM_PIECE_BYTES = 256 << 10,    /* of work between two looks at the other channels */
    SHM_PAST_CACHE_BYTES = 8 << 20, /* copies of whole buffers from here on do not go through the caches */
    SHM_SITE_WORDS = TR_SITE_MAX / 8,
};
#define SHM_NOT_SHARED UINT64_MAX /* offset of a buffer outside the arenas */

enum shm_phase { SHM_STAGE, SHM_MIDDLE, SHM_LAST, SHM_PHASES };

/* What a rank announces: one cache line, so that one miss brings both the number and the content. */
struct shm_head {
    _Alignas(64) atomic_uint_fast64_t seq; /* stamped last */
    struct tr_signature signature;
    uint64_t in_at, out_at; /* offset in the segment, or SHM_NOT_SHARED */
};
_Static_assert(sizeof(struct shm_head) == 64, "one cache line");

/* Collective number s uses entry s & 1 of head, site and small. A rank reaches s + 2 only when all ranks have announced
 * s + 1, that is, have finished reading s. */
struct shm_seat {
    struct shm_head head[2];
    _Alignas(64) atomic_uint_fast64_t did[SHM_PHASES]; /* rounds, over the life of the channel */
    _Alignas(64) char site[2][TR_SITE_MAX];
    _Alignas(64) char small[2][SHM_SMALL_BYTES];
    _Alignas(4096) char stage[2][SHM_HALF_BYTES];
    _Alignas(4096) char result[2][SHM_HALF_BYTES];
};

struct shm_group {
    atomic_int n_open; /* members that have not closed it; 0: free for reuse */
    int32_t n;
    uint64_t seats_at; /* n seats */
    uint64_t pairs_at; /* n * n offsets of channels [sender][receiver], 0 = none yet; the sender makes them */
};

/* What world rank r shows to the others. Written by r, except `doorbell`. */
struct shm_slot {
    _Alignas(64) atomic_uint doorbell; /* futex; peers add 1 when n_asleep is not 0 */
    atomic_uint n_asleep;              /* threads of r that sleep, or are about to */
    _Alignas(64) int32_t pid; /* this and the arena: written by rank 0 before any other rank maps the segment */
    uint64_t arena_at, arena_bytes;
    atomic_int is_closed;
    atomic_int waits_for;       /* world rank + 1 while asleep in a wait, else 0 */
    atomic_uint_fast64_t where; /* the collective it waits in: number << 8 | kind + 1; 0 = none */
    atomic_uint_fast64_t where_site[SHM_SITE_WORDS];
    int32_t fault_status; /* valid once header.fault names this rank */
    char fault_text[TR_FRONT_TEXT_MAX];
};

struct shm_header {
    uint64_t magic, total_bytes;
    int64_t generation;
    int32_t size, pid;
    void *base; /* in process `pid`: ranks that are threads of it share the mapping, so that TSan sees both ends */
    atomic_int n_local; /* users of that mapping */
    atomic_int fault;   /* rank + 1 of the first to raise one; set once */
    atomic_uint_fast64_t heap_next;
    uint64_t heap_end;
    struct shm_group groups[SHM_GROUPS_MAX]; /* 0: the world */
    struct shm_slot slots[];
};

struct shm_channel {
    struct tr_front_channel base;
    struct shm_seat *seats;        /* NULL: those of a pair, whose sender has not made them yet */
    atomic_uint_fast64_t *pair_at; /* of a pair: where the sender stores the offset of the seats */
    uint64_t n_rounds;             /* over the life of the channel */
    struct {                       /* the operation that moves */
        bool is_direct;            /* peers read and write its buffers in place */
        uint64_t first_round, n_rounds, done[SHM_PHASES];
        size_t n_parts, part; /* the middle phase of a direct operation is cut in parts */
    } current;
    /* What it waits for: *word to reach value, which seat `missing` will write. */
    const atomic_uint_fast64_t *word;
    uint64_t value;
    int missing;
};

struct shm_comm {
    struct tr_front_comm base;
    struct shm_group *group;
};

struct shm_world {
    struct tr_front front;
    struct shm_header *h;
    bool is_local;         /* the mapping is shared with rank 0 of this process */
    bool has_cores;        /* one for every rank */
    int n_spins, n_sleepy; /* learnt: looks before leaving the core; waits that do not offer it to others */
};

static inline void *at_offset(const struct shm_world *w, uint64_t at)
{
    return (char *)w->h + at;
}

static inline struct shm_slot *my_slot(const struct shm_world *w)
{
    return &w->h->slots[w->front.rank];
}

static inline struct shm_world *world_of(const struct shm_channel *ch)
{
    return (struct shm_world *)ch->base.comm->w;
}

/* shm_join.c: all ranks meet; *seg is mapped, slots are filled, this rank's arena has its memory. */
enum tr_status tr_shm_join(const struct tr_comm_env *env, struct shm_header **seg, bool *is_local);
/* Name k of the places where the ranks of this generation look for rank 0. One who does not know env->secret cannot
 * tell it, not from the names of earlier generations either. */
struct sockaddr_un;
socklen_t tr_shm_place(const struct tr_comm_env *env, int k, struct sockaddr_un *a);
void tr_shm_unmap(struct shm_header *h, bool is_local);

/* shm_health.c: doorbells, faults, and which rank is to blame. */
void tr_shm_ring(struct shm_world *w, int world_rank);
void tr_shm_sleep(struct shm_world *w, unsigned doorbell, int64_t us);
enum tr_status tr_shm_open_peers(struct shm_world *w);
enum tr_status tr_shm_fault(const struct tr_front *w);
void tr_shm_raise(struct tr_front *w, enum tr_status st, const char *text);
enum tr_status tr_shm_look(struct tr_front *w, const struct tr_front_channel *ch, int64_t waited_us, int64_t now_us);
void tr_shm_publish(struct tr_front *w);

/* shm_move.c: the data. */
void tr_shm_take_small(struct shm_channel *ch, const struct tr_front_op *op);
void tr_shm_plan_rounds(struct shm_channel *ch, const struct tr_front_op *op); /* after all ranks have announced it */
void tr_shm_phase(struct shm_channel *ch, const struct tr_front_op *op, enum shm_phase phase, uint64_t round);

/* shm_engine.c: what a channel does with its operations, and how a rank waits. */
uint64_t tr_shm_alloc(struct shm_world *w, size_t bytes); /* offset of zeroes on the heap, or 0; from any thread */
enum tr_status tr_shm_announce(struct tr_front_channel *ch, struct tr_front_op *op);
enum tr_status tr_shm_advance(struct tr_front_channel *ch, struct tr_front_op *op, bool *has_moved);
enum tr_status tr_shm_spin(struct tr_front *w, int n_rests, bool *has_moved);
enum tr_status tr_shm_rest(struct tr_front *w, int64_t us);

#endif
