/* scaler.c - how the loss scale of float16 changes. All ranks judge the same loss and norm, so all change it alike. */
#include "train/scaler.h"
#include <math.h>

struct tr_scaler tr_scaler_of(enum tr_dtype compute)
{
    return (struct tr_scaler){ .scale = compute == TR_F16 ? TR_SCALE_FIRST : 0 };
}

bool tr_scaler_overflows(const struct tr_scaler *s, const struct tr_step_result *r)
{
    return s->scale > TR_SCALE_LEAST && isfinite(r->loss_sum) && !isfinite(r->grad_norm);
}

void tr_scaler_count(struct tr_scaler *s, bool is_overflow)
{
    if (s->scale == 0)
        return;
    s->n_skipped += is_overflow;
    s->n_good = is_overflow ? 0 : s->n_good + 1;
    if (is_overflow)
        s->scale = fmax(s->scale / 2, TR_SCALE_LEAST);
    if (s->n_good == TR_SCALE_GROWS_AFTER) {
        s->scale = fmin(s->scale * 2, TR_SCALE_MOST);
        s->n_good = 0;
    }
}
