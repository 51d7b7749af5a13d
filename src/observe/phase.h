/* phase.h - the pages of a run's ranks (base/phase.h) as files, and how they are read. */
#ifndef TR_OBSERVE_PHASE_H
#define TR_OBSERVE_PHASE_H

#include "base/base.h"

/* In the rank: opens the page of the calling thread under output/.trireme. When that fails, the rank runs as before but
 * nobody can watch it. */
enum tr_status tr_phase_open(const char *output, int rank, int world, int64_t generation);
void tr_phase_close(bool is_well); /* is_well: it was done, or stopped as asked. Does nothing when there is no page */

/* In any process: a copy of the page of a rank, alive or dead; false: there is none. */
bool tr_phase_read(const char *output, int rank, struct tr_phase_page *out);

const char *tr_phase_text(int kind, int place, char *buf, size_t n_buf); /* "forward of layer 3" */

/* How long a rank may be without a move in what it does now, while it waits for no peer (TR_HANG_MIN_US ...). */
int64_t tr_phase_bound(const struct tr_phase_page *p);

/* The flight record: state and last actions, [seconds before the last move, step, action, micro-batch] each. */
void tr_phase_json(const struct tr_phase_page *p, struct tr_str *out);

#endif
