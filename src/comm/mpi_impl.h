/* mpi_impl.h - private to the mpi engine: the world of a process, its communicators, and their operations.
 *
 * As in shm, a communicator has one channel for its collectives and one for each direction of each pair; a channel
 * works on one operation at a time, so that all ranks call MPI in the same order. An operation begins with an exchange
 * of notes (card, site, and the data itself when it is small); only when all notes agree does data move, in rounds.
 */
#ifndef TR_COMM_MPI_IMPL_H
#define TR_COMM_MPI_IMPL_H

#include "comm/comm_impl.h"
#include "comm/mpi_api.h"
#include <pthread.h>
#include <stdatomic.h>

enum {
    MPI_OPS_MAX = 128,           /* posted and not complete, per communicator; a post beyond waits for the oldest */
    MPI_TEXT_MAX = 1024,         /* of a fault */
    MPI_SMALL_BYTES = 160,       /* a collective up to here travels in its notes */
    MPI_SCRATCH_BYTES = 4 << 20, /* of a communicator: what the others give to this rank's part of a sum */
    MPI_BLOCK_BYTES = 256 << 20, /* of a broadcast or a send in one call: MPI counts in int */
    MPI_SLICE_US = 50 * 1000,    /* between two looks at the health of the peers */
    MPI_ANSWER_US = 1000 * 1000, /* in which a rank that lives answers, whatever it computes */
    MPI_TAG_NOTE = 1,
    MPI_TAG_DATA = 2,
};

struct note {
    uint64_t seq;
    struct tr_card card;
    char site[TR_SITE_MAX];
    char small[MPI_SMALL_BYTES];
};
_Static_assert(sizeof(struct note) == 256, "four cache lines, no padding");

enum mpi_state { MPI_FREE, MPI_QUEUED, MPI_NOTED, MPI_MOVING, MPI_SHARING };

struct mpi_op {
    enum mpi_state state;
    bool is_small;
    tr_ticket ticket;
    struct tr_coll coll; /* of a pair: a broadcast from the sender */
    uint64_t seq;
    size_t round, n_rounds;
    struct mpi_channel *channel;
    struct mpi_op *next;
};

struct mpi_channel {
    struct mpi_comm *comm;
    int n, me;         /* of the channel: a pair's sender is 0 */
    int peer;          /* of a pair, in the communicator; -1: all of them */
    uint64_t seq;      /* of the last operation that was begun */
    uint64_t n_queued; /* operations, ever */
    tr_mpi_request request;
    struct note mine;
    struct note *theirs; /* n of all, or the sender's */
    struct mpi_op *first, *last;
    struct mpi_channel *next_active;
};

struct mpi_comm {
    struct tr_comm base;
    struct mpi_world *w;
    tr_mpi_comm handle;
    uint64_t id; /* the same on all its ranks */
    int n_splits;
    int *ranks;         /* in the world */
    int *counts;        /* 4 x size, for the call in flight */
    char *scratch;      /* size pieces */
    const void **gifts; /* size: what each rank gives to the sum in hand */
    struct mpi_channel all, *to, *from;
    tr_ticket n_posted;
    struct mpi_op ops[MPI_OPS_MAX];
    struct mpi_comm *next;
};

/* Control messages: outside the order of collectives, heard by every rank at any time. */
enum control_kind { CONTROL_FAULT, CONTROL_CLOSED, CONTROL_WHERE, CONTROL_HERE };
struct control {
    int32_t kind, rank, status, is_pair; /* is_pair: 0 all, 1 what you send me, 2 what you take from me */
    uint64_t comm, seq;
    char text[MPI_TEXT_MAX];
};
struct letter { /* one control message on its way to every rank, or to one */
    struct control m;
    tr_mpi_request *request; /* size; 0: delivered, or none */
};

struct mpi_peer {
    char host[64], boot[64];
    int32_t pid;
    int fd; /* pidfd of a rank on this host; -1 */
    bool is_closed;
    bool has_answered;
    struct control answer;
    struct letter reply; /* to its question */
};

struct mpi_world {
    const struct tr_mpi_api *api;
    int rank, size;
    int64_t timeout_us;
    char *arena;
    size_t arena_bytes, reserved_bytes;
    struct mpi_peer *peers;
    struct mpi_comm *comms;
    struct mpi_channel *active;
    pthread_mutex_t lock; /* of everything, MPI included */
    pthread_t helper;
    bool has_started, has_helper, is_closing;
    bool is_stuck; /* a thread of ours is inside MPI and does not come back: MPI is out of bounds */
    bool is_used;  /* closed in the middle of an operation: MPI reads from its buffers and writes to them to the end */
    atomic_int n_callers;
    int n_spins; /* learnt */
    atomic_bool has_fault;
    enum tr_status fault_status;
    char fault_text[MPI_TEXT_MAX];
    tr_mpi_comm control;
    tr_mpi_request hearing;
    struct control heard;
    struct letter fault, closed, question;
    const struct mpi_channel *waits_in; /* what this rank's caller waits for; NULL: nothing */
    struct tr_stopped stopped;
    int64_t checked_us, asked_us; /* asked_us: of the question that is open; 0: none */
};

/* mpi.c */
enum tr_status tr_mpi_blocking(struct mpi_world *w, const char *what, int (*call)(void *ctx), void *ctx);

/* mpi_engine.c; with the lock held. */
void tr_mpi_enter(struct mpi_world *w); /* takes the lock; the helper steps aside */
void tr_mpi_leave(struct mpi_world *w);
enum tr_status tr_mpi_enqueue(struct mpi_op *op);
enum tr_status tr_mpi_advance(struct mpi_world *w, bool *has_moved);
enum tr_status tr_mpi_finish(const struct mpi_op *op, tr_ticket t);
enum tr_status tr_mpi_start_helper(struct mpi_world *w);
void tr_mpi_stop_helper(struct mpi_world *w); /* without the lock */

/* mpi_health.c; with the lock held. */
enum tr_status tr_mpi_fault(const struct mpi_world *w); /* TR_OK, or what was raised, as this thread's error */
enum tr_status tr_mpi_raise(struct mpi_world *w, enum tr_status st, const char *fmt, ...) TR_PRINTF(3, 4);
void tr_mpi_tell_fault(struct mpi_world *w);                                   /* to all, once */
enum tr_status tr_mpi_failed(struct mpi_world *w, const char *what, int code); /* raises what MPI says */
enum tr_status tr_mpi_listen(struct mpi_world *w); /* hears one control message, if one is there */
enum tr_status tr_mpi_look_around(struct mpi_world *w, const struct mpi_channel *ch, int64_t waited_us);
enum tr_status tr_mpi_meet_peers(struct mpi_world *w, struct tr_comm *world); /* who is where */
bool tr_mpi_all_closed(struct mpi_world *w); /* tells all, once, and hears whether all told */

#endif
