/* pipe.h - the schedule of a pipeline: which stage works on which micro-batch, and when, on every rank.
 *
 * A stage is a run of segments; stage k lives on rank k % n_ranks. A slot is the forward or the backward of one stage
 * for one micro-batch. Every rank computes the schedule of all ranks from the same few numbers, so no rank needs to
 * query another.
 */
#ifndef TR_PARALLEL_PIPE_H
#define TR_PARALLEL_PIPE_H

#include "parallel/parallel.h"

struct tr_pipe_slot {
    enum tr_action_kind kind; /* FORWARD, BACKWARD, or BACKWARD_INPUT and later BACKWARD_WEIGHT */
    int stage, micro;
    int line;    /* of the file it came from; 0: none */
    int need[2]; /* slots that must be over before: of another stage, and of its own; -1: none. Filled by the check */
};

struct tr_pipe {
    int n_ranks, n_chunks, n_micro;
    struct tr_pipe_slot *slot;
    int *first;           /* slots of rank r: [first[r], first[r + 1]) */
    int *maker;           /* slot that makes the activation, or the gradient, of (stage, micro); -1: none */
    bool splits_backward; /* some backward is in two parts */
    double bubble;        /* when forward takes 1 and backward 2; of the play that ends the check */
};

/* schedule: gpipe, 1f1b, interleaved, zb, or the path of a file (docs/formats/pipeline-schedule.md); NULL: forward
 * only. The whole schedule is checked: every slot is there once, on the rank that holds the stage, and no slot waits
 * for itself. */
enum tr_status tr_pipe_open(const char *schedule, int n_ranks, int n_chunks, int n_micro, struct tr_pipe **out);
/* Reads the text of such a file; `path` is for messages. */
enum tr_status tr_pipe_read(const char *path, const char *text, int n_ranks, int n_chunks, int n_micro,
                            struct tr_pipe **out);
void tr_pipe_close(struct tr_pipe *o);
void tr_pipe_print(const struct tr_pipe *o, struct tr_str *out); /* in the format of such a file */
bool tr_pipe_is_named(const char *schedule);                     /* not a file */
/* Are the backwards of a stage, and both parts of split ones, in the order of their micro-batches? */
bool tr_pipe_is_in_order(const struct tr_pipe *o);

/* For callers that build a schedule: an empty one, its next slot (rank by rank), and the check that ends the
 * construction. */
enum tr_status tr_pipe_new(int n_ranks, int n_chunks, int n_micro, struct tr_pipe **out);
void tr_pipe_add(struct tr_pipe *o, int rank, struct tr_pipe_slot t);
enum tr_status tr_pipe_check(struct tr_pipe *o);

/* The time of slots and messages in a simulation; seconds, or any other unit. */
struct tr_pipe_costs {
    const double (*slot)[4]; /* by stage and kind: forward, backward, its input part, its weight part */
    double message;          /* time from the end of a slot until the stage that needs its result can start */
};
struct tr_pipe_times {
    double length; /* of the step */
    double bubble; /* share of the step in which a rank is idle, mean over the ranks */
};
/* Simulates a schedule. costs NULL: a forward takes 1, a backward 2 (1 per part), a message 0. peak: by rank, the most
 * (chunk, micro-batch) pairs that it holds at once, from forward to the end of backward; may be NULL. end: by slot,
 * when it ends; may be NULL. */
enum tr_status tr_pipe_play_costs(const struct tr_pipe *o, const struct tr_pipe_costs *costs, struct tr_pipe_times *out,
                                  int *peak, double *end);
enum tr_status tr_pipe_play(const struct tr_pipe *o, struct tr_pipe_times *out, int *peak);

/* ---- with its messages (messages.c) ---- */

enum tr_step_kind { TR_STEP_SLOT, TR_STEP_RECV, TR_STEP_SEND, TR_STEP_WAIT_RECV, TR_STEP_WAIT_SEND };
struct tr_pipe_step {
    enum tr_step_kind kind;
    int slot; /* slot of the schedule; for a message: the slot whose result it carries */
    int peer; /* rank */
};
struct tr_pipe_steps {
    struct tr_pipe_step *step;
    int n;
    size_t n_cap;
};
/* The steps of one rank: its slots, receives posted one slot ahead of need, sends posted when the result exists, and
 * waits where the result is needed. At most `window` sends to one peer are under way at once. */
enum tr_status tr_pipe_steps(const struct tr_pipe *o, int rank, int window, struct tr_pipe_steps *out);
void tr_pipe_steps_release(struct tr_pipe_steps *s);
/* The smallest window with which the ranks do not deadlock. */
enum tr_status tr_pipe_window(const struct tr_pipe *o, int *out);

static inline int tr_pipe_rank(const struct tr_pipe *o, int stage)
{
    return stage % o->n_ranks;
}
/* The stage that makes what this slot needs from another stage, and the stage that needs what this slot makes; -1:
 * none. */
int tr_pipe_slot_source(const struct tr_pipe *o, const struct tr_pipe_slot *t);
int tr_pipe_slot_target(const struct tr_pipe *o, const struct tr_pipe_slot *t);
int *tr_pipe_maker(const struct tr_pipe *o, bool is_backward, int stage, int micro);

#endif
