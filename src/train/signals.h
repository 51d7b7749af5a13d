/* signals.h - private to train: signals that do not end it at once. */
#ifndef TR_TRAIN_SIGNALS_H
#define TR_TRAIN_SIGNALS_H

#include "train/train.h"

/* Until the deadline that a signal brought; INT64_MAX: none came, or it has none. */
int64_t tr_stop_left_us(void);

/* There is nothing to save yet: a signal ends the process as soon as it has had time to say who died. A rank that waits
 * for one that died before it joined is then gone when it is asked to, not after the launcher's patience. */
void tr_stop_at_once(bool is_on);

/* SIGUSR2: the stack of the thread it meets into output/errors/rank-NNNN.stack. */
void tr_stack_on_signal(const char *output, int rank);

#endif
