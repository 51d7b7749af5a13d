/* signals.h - private to train: signals that do not end it at once. */
#ifndef TR_TRAIN_SIGNALS_H
#define TR_TRAIN_SIGNALS_H

#include "train/train.h"

/* SIGUSR2: the stack of the thread it meets into output/errors/rank-NNNN.stack. */
void tr_stack_on_signal(const char *output, int rank);

#endif
