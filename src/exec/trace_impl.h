/* trace_impl.h - what a profile has taken down: trace.c records it and makes the table, trace_file.c writes the file.
 */
#ifndef TR_EXEC_TRACE_IMPL_H
#define TR_EXEC_TRACE_IMPL_H

#include "exec/exec_impl.h"

/* Communicators that have a line of their own in the timeline, and lines that each has for what overlaps. */
enum { TRACE_LANES = 8, TRACE_LINES = 8 };
enum track { ACTIONS, COMPUTE, WAITS, COMM, COPIES, N_TRACKS };

struct event {
    enum track track;
    const char *name, *site;
    const struct tr_action *action;
    const struct tr_comm *comm; /* of a collective or a wait that has not ended */
    tr_ticket ticket;
    int lane;  /* of a collective: which communicator, in the order they were first seen */
    int group; /* ranks of that communicator */
    int line;  /* of its lane or track */
    enum tr_dtype dtype;
    double flops, bytes, floor_us;
    double called_us, returned_us; /* the host's call that started it */
};

struct traced_step {
    int64_t number;
    double begin_us, end_us;
};

struct tr_trace {
    struct tr_comm_tracer tracer; /* first: communicators get a pointer to it */
    struct tr_exec *e;
    struct tr_marks *marks;
    struct event *event; /* event i lies between marks 2 i and 2 i + 1 */
    int n, cap, n_lost;
    bool is_on;
    const struct tr_action *action; /* the current one */
    int64_t first, n_steps, n_done;
    double step_s, exposed_s, peak_flops;
    bool has_plan;
    double planned_s[TR_OP_COUNT];
    const struct tr_comm *lane[TRACE_LANES];
    int n_lanes;
    struct traced_step *step;        /* n_done of them */
    struct tr_planned_span *planned; /* of one step */
    int n_planned;
    char output[TR_PATH_MAX], dir[TR_PATH_MAX]; /* dir: for messages */
    struct tr_str text, table;
};

static inline double tr_event_us(const struct tr_trace *t, int i)
{
    return tr_mark_us(t->marks, 2 * i);
}

static inline double tr_event_length_us(const struct tr_trace *t, int i)
{
    double us = tr_mark_us(t->marks, 2 * i + 1) - tr_event_us(t, i);
    return us > 0 ? us : 0;
}

/* Writes OUTPUT/profile/rank-NNNN.json. */
enum tr_status tr_trace_write(struct tr_trace *t);

#endif
