/* selftest.h - private to train: the arithmetic of this process, as one number that all ranks must share. */
#ifndef TR_TRAIN_SELFTEST_H
#define TR_TRAIN_SELFTEST_H

#include "exec/exec.h"

/* TR_USAGE: the rounding mode is wrong, or small numbers are flushed to zero */
enum tr_status tr_self_test(int64_t *hash);

#endif
