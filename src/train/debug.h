/* debug.h - private to train: checks of a training over several ranks. */
#ifndef TR_TRAIN_DEBUG_H
#define TR_TRAIN_DEBUG_H

#include "exec/exec.h"
#include "observe/observe.h"

struct tr_debug;
enum tr_status tr_debug_open(struct tr_exec *e, struct tr_debug **out);
void tr_debug_close(struct tr_debug *d); /* d may be NULL */

/* All ranks call it between steps. TR_PEER names the first tensor whose bits differ between replicas, and the rank. */
enum tr_status tr_debug_replicas(struct tr_debug *d, int64_t step);
/* Appends a line to dir/grad_norms.jsonl and events to the log: the norm of every parameter's gradient over all ranks
 * in the last step. A line that cannot be written is reported, the first of several, and the run goes on. */
void tr_debug_norms(struct tr_debug *d, const char *dir, struct tr_observe *ob, int64_t step);

/* Removes the lines of steps after `step`, and a line that a crash has torn, so that a resumed run writes them once. No
 * file: nothing. */
enum tr_status tr_debug_norms_cut(const char *dir, int64_t step);

#endif
