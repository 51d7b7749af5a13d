/* selftest.h - private to train: the arithmetic of this process, as one number that all ranks must share. */
#ifndef TR_TRAIN_SELFTEST_H
#define TR_TRAIN_SELFTEST_H

#include "exec/exec.h"

enum tr_status tr_self_test(int64_t *hash); /* TR_USAGE: rounding or small numbers are not as they must be */

#endif
