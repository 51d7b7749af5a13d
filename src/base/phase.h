/* phase.h - where this thread's rank is: one page that it writes and any process may read, while it runs and after it
 * died.
 *
 * The page is a small file mapped by the rank (observe opens it), so that a hang can be examined without a
 * daemon or a lock. One writer: the thread that opened it. Readers copy the file and look at `seq`, odd while a
 * change is under way. Costs a clock and a few stores an action. Rejected: a thread that beats on its own (it beats on
 * while the rank hangs), and the collectives' segment (gone with its last user).
 */
#ifndef TR_BASE_PHASE_H
#define TR_BASE_PHASE_H

#include "base/compiler.h"

#define TR_PHASE_LIST(X)                                                                                               \
    X(START, "start") /* weights, data proof */                                                                        \
    X(DATA, "data")   /* the next batch */                                                                             \
    X(FORWARD, "forward")                                                                                              \
    X(BACKWARD, "backward")                                                                                            \
    X(REDUCE, "reduce")                                                                                                \
    X(GATHER, "gather")                                                                                                \
    X(MESSAGE, "message") /* between stages */                                                                         \
    X(CLIP, "clip")                                                                                                    \
    X(UPDATE, "update")                                                                                                \
    X(EVAL, "eval")                                                                                                    \
    X(CHECK, "check")                                                                                                  \
    X(SAVE, "save")                                                                                                    \
    X(BETWEEN, "between steps")                                                                                        \
    X(END, "end")

enum tr_phase_kind {
#define X(name, text) TR_PHASE_##name,
    TR_PHASE_LIST(X)
#undef X
        TR_PHASE_KINDS
};
const char *tr_phase_name(int kind); /* "?" for an unknown kind */

/* Where in the model: a layer from 0, or one of these. */
enum { TR_PLACE_NONE = -1, TR_PLACE_EMBED = -2, TR_PLACE_HEAD = -3, TR_PLACE_SHARED = -4 };

enum {
    TR_PHASE_MAGIC = 0x54525048, /* "TRPH" */
    TR_PHASE_VERSION = 2,
    TR_PHASE_BUCKETS = 128, /* of a duration: quarters of an octave from 1 us */
    TR_PHASE_RING = 256,    /* last actions */
    TR_PHASE_SITE = 48,
};

struct tr_phase_mark { /* one action of the flight record */
    int64_t at_us, step;
    int16_t kind, place;
    int32_t micro;
};

struct tr_phase_page {
    uint32_t magic, version; /* magic is written last */
    int32_t rank, world, pid, is_ended;
    int64_t generation;
    double opened; /* wall clock, for people */
    char host[64];

    uint64_t seq;     /* odd while something below changes */
    uint64_t n_moves; /* actions begun and waits ended: a rank that moves makes this grow */
    int32_t kind, place, micro;
    int32_t is_waiting;          /* in a collective, for other ranks */
    int64_t step;                /* that is running, from 1 */
    int64_t since_us;            /* monotonic: of the last move */
    int64_t begin_us, waited_us; /* of this action */
    uint64_t n_collectives;      /* entered so far */
    char site[TR_PHASE_SITE];    /* of the last one */
    int64_t step_begin_us, step_waited_us;
    double busy_us; /* of a step, without waits: a running mean */
    int64_t n_slow; /* actions far over their p99, and the last of them */
    int64_t slow_us, slow_p99_us, slow_step;
    int32_t slow_kind, slow_place;
    uint64_t n_marks;
    struct tr_phase_mark ring[TR_PHASE_RING];
    uint32_t n_done[TR_PHASE_KINDS];                 /* sum of the row below */
    uint32_t done[TR_PHASE_KINDS][TR_PHASE_BUCKETS]; /* durations, without waits; halved now and then */
};

/* The page of this thread; NULL: there is none, and the calls below do nothing. */
void tr_phase_use(struct tr_phase_page *page);
struct tr_phase_page *tr_phase_mine(void);

void tr_phase_step(int64_t step); /* from 1 */
void tr_phase_enter(enum tr_phase_kind kind, int place, int micro);
/* Around everything that waits for other ranks. */
void tr_phase_wait(const char *site);
void tr_phase_waited(void);

/* 99 of 100 actions of this kind took no longer (us); 0: too few to say. */
int64_t tr_phase_p99(const struct tr_phase_page *p, int kind);

#endif
