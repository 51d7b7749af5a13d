/* scaler.h - private to train: the dynamic loss scale of float16, which would round small gradients to zero.
 *
 * The loss is multiplied by `scale`, so that gradients of activations stay above the smallest numbers of float16. The
 * clip factor divides by it again, in float32. The scale is a power of two, so it costs no bit. As in torch's
 * GradScaler it starts at 65536, is halved when a gradient is not finite (that update is skipped), and is doubled after
 * 2000 good steps. Rejected: a scale per layer.
 */
#ifndef TR_TRAIN_SCALER_H
#define TR_TRAIN_SCALER_H

#include "exec/exec.h"

enum { TR_SCALE_FIRST = 1 << 16, TR_SCALE_LEAST = 1, TR_SCALE_MOST = 1 << 24, TR_SCALE_GROWS_AFTER = 2000 };

struct tr_scaler {
    double scale;      /* 0: none */
    int64_t n_good;    /* good steps since the scale changed */
    int64_t n_skipped; /* updates that were skipped in the whole run */
};

/* float16 starts with TR_SCALE_FIRST; other dtypes have no scale. */
struct tr_scaler tr_scaler_of(enum tr_dtype compute);
/* Is the scale the cause? True when the loss is finite, the gradients are not, and there is a smaller scale to try. */
bool tr_scaler_overflows(const struct tr_scaler *s, const struct tr_step_result *r);
/* Called after a step: an overflow halves the scale, many good steps double it. */
void tr_scaler_count(struct tr_scaler *s, bool is_overflow);

#endif
