/* order.h - the order of a pipeline: which stage works on which micro-batch when, on every rank at once.
 *
 * A stage is a run of segments; stage k lives on rank k % n_ranks. A turn is one stage's forward or backward of one
 * micro-batch. Every rank makes the order of all ranks, from the same few numbers, so nobody needs to ask.
 */
#ifndef TR_PARALLEL_ORDER_H
#define TR_PARALLEL_ORDER_H

#include "parallel/parallel.h"

struct tr_turn {
    enum tr_action_kind kind; /* FORWARD, BACKWARD, or BACKWARD_INPUT and later BACKWARD_WEIGHT */
    int stage, micro;
    int line; /* of the file it came from; 0: none */
};

struct tr_order {
    int n_ranks, n_chunks, n_micro;
    struct tr_turn *turn;
    int *first;           /* turns of rank r: [first[r], first[r + 1]) */
    int *maker;           /* turn that makes the activation, or the gradient, of (stage, micro); -1: none */
    bool splits_backward; /* some backward is in two parts */
};

/* schedule: gpipe, 1f1b, interleaved, zb, or the path of a file (docs/formats/pipeline-schedule.md); NULL: forward
 * only. The order is checked whole: every turn once, on the rank that holds the stage, and none waits for itself. */
enum tr_status tr_order_open(const char *schedule, int n_ranks, int n_chunks, int n_micro, struct tr_order **out);
/* The text of such a file; `path` is for messages. */
enum tr_status tr_order_read(const char *path, const char *text, int n_ranks, int n_chunks, int n_micro,
                             struct tr_order **out);
void tr_order_close(struct tr_order *o);
void tr_order_print(const struct tr_order *o, struct tr_str *out); /* as such a file */
bool tr_order_is_named(const char *schedule);                      /* not a file */

/* For those who make orders: an empty one, its next turn (rank by rank), and the check that ends the making. */
enum tr_status tr_order_new(int n_ranks, int n_chunks, int n_micro, struct tr_order **out);
void tr_order_add(struct tr_order *o, int rank, struct tr_turn t);
enum tr_status tr_order_check(struct tr_order *o);

/* What turns and messages take when an order is played; seconds, or any unit. */
struct tr_order_costs {
    const double (*turn)[4]; /* by stage and kind: forward, backward, its input part, its weight part */
    double message;          /* from a turn's end until the stage that needs it can start */
};
struct tr_order_times {
    double length; /* of the step */
    double bubble; /* share of it in which a rank has nothing to do, mean over the ranks */
};
/* costs NULL: forward takes 1, backward 2 (1 a part), messages nothing. peak: by rank, or NULL: the most (chunk,
 * micro-batch) pairs it holds at once, from forward to the end of backward. end: by turn, or NULL: when it is over. */
enum tr_status tr_order_play_costs(const struct tr_order *o, const struct tr_order_costs *costs,
                                   struct tr_order_times *out, int *peak, double *end);
enum tr_status tr_order_play(const struct tr_order *o, struct tr_order_times *out, int *peak);

/* ---- with its messages (messages.c) ---- */

enum tr_step_kind { TR_STEP_TURN, TR_STEP_RECV, TR_STEP_SEND, TR_STEP_WAIT_RECV, TR_STEP_WAIT_SEND };
struct tr_pipe_step {
    enum tr_step_kind kind;
    int turn; /* in the order; of a message: the turn that makes what it carries */
    int peer; /* rank */
};
struct tr_pipe_steps {
    struct tr_pipe_step *step;
    int n, n_cap;
};
/* What one rank does: its turns, receives posted one turn ahead of need, sends when there is something to send, and
 * waits where the result is needed. At most `window` sends to one peer are on their way at once. */
enum tr_status tr_order_steps(const struct tr_order *o, int rank, int window, struct tr_pipe_steps *out);
void tr_pipe_steps_release(struct tr_pipe_steps *s);
/* The smallest window with which no rank waits for a rank that waits for it. */
enum tr_status tr_order_window(const struct tr_order *o, int *out);

static inline int tr_order_rank(const struct tr_order *o, int stage)
{
    return stage % o->n_ranks;
}
/* Who makes what this turn needs from another stage, and who needs what it makes: a stage, or -1. */
int tr_turn_source(const struct tr_order *o, const struct tr_turn *t);
int tr_turn_target(const struct tr_order *o, const struct tr_turn *t);
int *tr_order_maker(const struct tr_order *o, bool is_backward, int stage, int micro);

#endif
