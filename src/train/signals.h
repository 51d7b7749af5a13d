/* signals.h - private to train: signals that do not end it at once. */
#ifndef TR_TRAIN_SIGNALS_H
#define TR_TRAIN_SIGNALS_H

#include "train/train.h"

/* Until the deadline that a signal brought; INT64_MAX: none came, or it has none. */
int64_t tr_stop_left_us(void);

/* SIGUSR2: the stack of the thread it meets into output/errors/rank-NNNN.stack. */
void tr_stack_on_signal(const char *output, int rank);

#endif
