/* mpi_impl.h - private to the mpi engine: the world of a process, its communicators, and their operations.
 *
 * All ranks call MPI in the same order, because a channel works on one operation at a time. An operation begins with an
 * exchange of announcements (signature, site, and the data itself when it is small); only when all of them agree does
 * data move, in rounds.
 */
#ifndef TR_COMM_MPI_IMPL_H
#define TR_COMM_MPI_IMPL_H

#include "comm/front.h"
#include "comm/mpi_api.h"

enum {
    MPI_SMALL_BYTES = 160,       /* a collective up to here travels with its announcement */
    MPI_SCRATCH_BYTES = 4 << 20, /* of a communicator: the peers' input to this rank's part of a sum */
    MPI_BLOCK_BYTES = 256 << 20, /* of a broadcast or a send in one call: MPI counts in int */
    MPI_RESULT_US = 1000 * 1000, /* in which a live rank replies to a query, whatever it computes */
    MPI_TAG_ANNOUNCEMENT = 1,
    MPI_TAG_DATA = 2,
};

struct mpi_announcement {
    uint64_t seq;
    struct tr_signature signature;
    char site[TR_SITE_MAX];
    char small[MPI_SMALL_BYTES];
};
_Static_assert(sizeof(struct mpi_announcement) == 256, "four cache lines, no padding");

struct mpi_channel {
    struct tr_front_channel base;
    uint64_t seq; /* of the last operation that was announced */
    tr_mpi_request request;
    struct mpi_announcement mine;
    struct mpi_announcement *theirs; /* n of all, or the sender's */
    size_t round, n_rounds;          /* of the operation that moves */
    bool is_sharing;                 /* second half of a round of an all-reduce: sums go to all ranks */
};

struct mpi_comm {
    struct tr_front_comm base;
    tr_mpi_comm handle;
    uint64_t id; /* the same on all its ranks */
    int n_splits;
    struct mpi_announcement *announcements;
    int *counts;         /* 4 x size, for the call in flight */
    char *scratch;       /* size pieces */
    const void **inputs; /* size: each rank's input to the current sum */
};

/* Control messages: outside the order of collectives; every rank receives them at any time. */
enum mpi_control_kind { CONTROL_FAULT, CONTROL_CLOSED, CONTROL_QUERY, CONTROL_RESULT };
struct mpi_control {
    int32_t kind, rank, status, is_pair; /* is_pair: 0 all, 1 what you send me, 2 what you receive from me */
    uint64_t comm, seq;
    char text[TR_FRONT_TEXT_MAX];
};
struct mpi_outgoing { /* one control message on its way to every rank, or to one */
    struct mpi_control m;
    tr_mpi_request *request; /* size; 0: delivered, or none */
};

struct mpi_peer {
    atomic_int is_closed;
    bool has_result;
    struct mpi_control result; /* of our query */
    struct mpi_outgoing reply; /* to its query */
};

/* The lock of the front guards everything here, MPI included. */
struct mpi_world {
    struct tr_front front;
    const struct tr_mpi_api *api;
    struct mpi_peer *peers;
    bool has_started;
    bool is_stuck; /* a thread of this process is inside MPI and does not return: MPI must not be called any more */
    int n_spins;   /* learnt */
    atomic_int has_fault;
    enum tr_status fault_status;
    char fault_text[TR_FRONT_TEXT_MAX];
    tr_mpi_comm control;
    tr_mpi_request receiving;
    struct mpi_control received;
    struct mpi_outgoing fault, closed, query;
    int64_t queried_us; /* when the open query was sent; 0: none is open */
};

static inline struct mpi_comm *comm_of(const struct mpi_channel *ch)
{
    return (struct mpi_comm *)ch->base.comm;
}

static inline struct mpi_world *world_of(const struct mpi_channel *ch)
{
    return (struct mpi_world *)ch->base.comm->w;
}

/* mpi.c */
enum tr_status tr_mpi_blocking(struct mpi_world *w, const char *what, int (*call)(void *ctx), void *ctx);

/* mpi_engine.c */
enum tr_status tr_mpi_announce(struct tr_front_channel *ch, struct tr_front_op *op);
enum tr_status tr_mpi_advance(struct tr_front_channel *ch, struct tr_front_op *op, bool *has_moved);
enum tr_status tr_mpi_spin(struct tr_front *w, int n_rests, bool *has_moved);

/* mpi_health.c; with the lock held. */
enum tr_status tr_mpi_fault(const struct tr_front *w);
void tr_mpi_raise(struct tr_front *w, enum tr_status st, const char *text);
void tr_mpi_report_fault(struct mpi_world *w);                                 /* to all ranks, once */
enum tr_status tr_mpi_failed(struct mpi_world *w, const char *what, int code); /* raises MPI's error */
enum tr_status tr_mpi_listen(struct tr_front *w); /* receives one control message, if one is there */
enum tr_status tr_mpi_look(struct tr_front *w, const struct tr_front_channel *ch, int64_t waited_us, int64_t now_us);
enum tr_status tr_mpi_meet_peers(struct mpi_world *w, struct tr_comm *world); /* exchanges hosts and pids */
bool tr_mpi_all_closed(struct mpi_world *w); /* reports that this rank has closed, once; have all reported it? */

#endif
