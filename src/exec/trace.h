/* trace.h - what happened when, in a few steps of a run: kernels, actions, collectives and copies, as a timeline for
 * chrome://tracing or ui.perfetto.dev, and as a table. */
#ifndef TR_EXEC_TRACE_H
#define TR_EXEC_TRACE_H

#include "exec/exec.h"

struct tr_trace;

/* Traces steps first .. first + n - 1 (counted from 1) and writes dir/profile/rank-NNNN.json. All memory is reserved
 * here. A step with more events than its schedule predicts loses the rest; the table reports how many were lost. */
enum tr_status tr_trace_open(struct tr_exec *e, int64_t first, int64_t n, const char *dir, double peak_flops,
                             struct tr_trace **out);
/* What the plan says of one step, for a timeline that shows both. */
struct tr_planned_span {
    int stage, micro; /* micro: -1 = none */
    bool is_traffic;
    const char *name; /* lives as long as the program */
    double begin_s, s;
};
/* planned_s: the planned time of each kernel in a step, by opcode. The table shows it as a column. span: n of them,
 * from malloc, which the trace frees. */
void tr_trace_plan(struct tr_trace *t, const double planned_s[TR_OP_COUNT], struct tr_planned_span *span, int n);
void tr_trace_close(struct tr_trace *t); /* t may be NULL */
/* Called before and after step `step`. After the last traced step, or the last step of the run, the file is written and
 * *table is the table of this rank. Before that *table is NULL. */
enum tr_status tr_trace_before(struct tr_trace *t, int64_t step);
enum tr_status tr_trace_after(struct tr_trace *t, int64_t step, double step_s, double exposed_s, bool is_last,
                              const char **table);

/* For the executor; t may be NULL. Each call returns the event that tr_trace_end takes. n calls of one op are one
 * launch. */
int tr_trace_op(struct tr_trace *t, const struct tr_call *c, int n);
int tr_trace_action(struct tr_trace *t, const struct tr_action *a);
int tr_trace_copy(struct tr_trace *t, const char *name, size_t bytes);
void tr_trace_end(struct tr_trace *t, int i);

#endif
