/* trace.h - what happened when, in a few steps of a run: kernels, actions, collectives and copies, as a timeline for
 * chrome://tracing or ui.perfetto.dev, and as a table. */
#ifndef TR_EXEC_TRACE_H
#define TR_EXEC_TRACE_H

#include "exec/exec.h"

struct tr_trace;

/* Steps first .. first + n - 1 (counted from 1) are traced; dir: where DIR/profile/rank-NNNN.json goes. Everything is
 * taken here; a step that holds more than its schedule says loses the rest, which the table tells. planned_s: what a
 * step should be in each kernel, by opcode; NULL where nobody said. */
enum tr_status tr_trace_open(struct tr_exec *e, int64_t first, int64_t n, const char *dir, double peak_flops,
                             struct tr_trace **out);
/* What a step should be in each kernel, by opcode: a column of the table. */
void tr_trace_plan(struct tr_trace *t, const double planned_s[TR_OP_COUNT]);
void tr_trace_close(struct tr_trace *t); /* NULL is fine */
/* Around step `step`. After the last one, or the run's last, the file is written and *table is what this rank did; NULL
 * before. */
enum tr_status tr_trace_before(struct tr_trace *t, int64_t step);
enum tr_status tr_trace_after(struct tr_trace *t, int64_t step, double step_s, double exposed_s, bool is_last,
                              const char **table);

/* For the executor; t may be NULL. A number to end it by. n calls of one op: one launch. */
int tr_trace_op(struct tr_trace *t, const struct tr_call *c, int n);
int tr_trace_action(struct tr_trace *t, const struct tr_action *a);
int tr_trace_copy(struct tr_trace *t, const char *name, size_t bytes);
void tr_trace_end(struct tr_trace *t, int i);

#endif
