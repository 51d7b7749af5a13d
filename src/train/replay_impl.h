/* replay_impl.h - private to train: what replay and explain share. */
#ifndef TR_TRAIN_REPLAY_IMPL_H
#define TR_TRAIN_REPLAY_IMPL_H

#include "train/train_impl.h"

/* Opens a trainer at the newest checkpoint in front of cfg->step, or at the start of the run. stop: the last step that
 * will be made. Close the trainer also when this fails. */
enum tr_status tr_replay_open(const struct tr_config *cfg, int64_t stop, struct tr_trainer *t);
/* Makes the step after `step` steps. look sees its gradients before the update, which the last step has not. */
typedef enum tr_status tr_replay_look(void *ctx, struct tr_trainer *t, const struct tr_step_batch *b);
enum tr_status tr_replay_step(struct tr_trainer *t, int64_t step, tr_replay_look *look, void *ctx,
                              struct tr_replay_numbers *out);

#endif
