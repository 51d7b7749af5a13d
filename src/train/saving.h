/* saving.h - checkpoints of a training: when one is taken, what becomes of it, what the world is told. All functions
 * are called by all ranks together. */
#ifndef TR_TRAIN_SAVING_H
#define TR_TRAIN_SAVING_H

#include "train/state.h"

struct tr_saving;
struct tr_saving_options { /* all of it outlives the saving */
    const struct tr_setup *s;
    struct tr_exec *e;
    const struct tr_run_inputs *in;
    struct tr_observe *ob;
    struct tr_run_state *state;
    const char *events_path;
};
enum tr_status tr_saving_open(const struct tr_saving_options *opt, struct tr_saving **out);
void tr_saving_close(struct tr_saving *v);

/* After every step: looks after the save in flight, and when one is due starts it. A save that fails costs a
 * checkpoint, never the training (C1); what is returned ends it: ranks that cannot talk, max_save_failures. */
enum tr_status tr_saving_step(struct tr_saving *v, bool is_due, int64_t step, int64_t tokens);
/* The state is saved, if it is not yet, and everything is on the disk or reported. */
enum tr_status tr_saving_finish(struct tr_saving *v, int64_t step, int64_t tokens);
enum tr_status tr_saving_model(struct tr_saving *v);
int64_t tr_saving_last(const struct tr_saving *v);   /* step that is saved, or on its way to the disk; -1: none */
double tr_saving_seconds(const struct tr_saving *v); /* that the last save took, from its start to its end */
void tr_saving_evaluated(struct tr_saving *v, int64_t step, double loss); /* for the best checkpoint */

#endif
