/* fingerprint.h - private to train: the gradients of a step, by parameter. */
#ifndef TR_TRAIN_FINGERPRINT_H
#define TR_TRAIN_FINGERPRINT_H

#include "train/train.h"

enum tr_status tr_fingerprint_open(const struct tr_exec *e, struct tr_fingerprint *out);
void tr_fingerprint_release(struct tr_fingerprint *f);
/* After a measure and before the update, on all ranks together. Each gets the same numbers. */
enum tr_status tr_fingerprint_take(struct tr_exec *e, struct tr_fingerprint *out);

#endif
