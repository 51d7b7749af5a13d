/* scaler.h - private to train: the dynamic loss scale of float16, whose smallest numbers would lose small gradients.
 *
 * The loss counts `scale` times, so that gradients of activations keep clear of the bottom of float16; the clip factor
 * takes it out again in float32. A power of two: it costs no bit. As torch's GradScaler: from 65536, halved when a
 * gradient is not finite and that update is left out, doubled after 2000 steps without. Rejected: a scale per layer.
 */
#ifndef TR_TRAIN_SCALER_H
#define TR_TRAIN_SCALER_H

#include "exec/exec.h"

enum { TR_SCALE_FIRST = 1 << 16, TR_SCALE_LEAST = 1, TR_SCALE_MOST = 1 << 24, TR_SCALE_GROWS_AFTER = 2000 };

struct tr_scaler {
    double scale;      /* 0: none */
    int64_t n_good;    /* steps since it changed */
    int64_t n_skipped; /* updates that were left out, ever */
};

/* float16 begins with TR_SCALE_FIRST, other types have none. */
struct tr_scaler tr_scaler_of(enum tr_dtype compute);
/* Is the scale to blame? The loss is finite and the gradients are not, and there is a smaller scale to try. */
bool tr_scaler_overflows(const struct tr_scaler *s, const struct tr_step_result *r);
/* After a step: an overflow halves, many good steps double. */
void tr_scaler_count(struct tr_scaler *s, bool is_overflow);

#endif
