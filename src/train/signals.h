/* signals.h - private to train: signals that do not end the process at once. */
#ifndef TR_TRAIN_SIGNALS_H
#define TR_TRAIN_SIGNALS_H

#include "train/train.h"

/* Time left until the deadline that a signal set; INT64_MAX: no signal came, or it set no deadline. */
int64_t tr_stop_left_us(void);

/* While it is on, there is nothing to save: a signal ends the process as soon as it has had time to report which peer
 * died. So a rank that waits for a peer which died before it joined ends when it is told to, not after the launcher's
 * timeout. */
void tr_stop_at_once(bool is_on);

/* Everything is saved: the deadline, which would end the process with "not saved", is off. */
void tr_stop_is_settled(void);

/* SIGUSR2 writes the stack of the thread that receives it to output/errors/rank-NNNN.stack. */
void tr_stack_on_signal(const char *output, int rank);

#endif
