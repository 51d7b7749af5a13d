/* muon.h - constants of Muon that kernels of all devices share: those of torch.optim.Muon. */
#ifndef TR_OPS_MUON_H
#define TR_OPS_MUON_H

#include "ops/ops.h"
#include <math.h>

enum { TR_MUON_STEPS = 5 };
#define TR_MUON_A   3.4445f
#define TR_MUON_B   (-4.7750f)
#define TR_MUON_C   2.0315f
#define TR_MUON_EPS 1e-7f

/* The factors on the update of a matrix, by enum tr_muon_adjust. */
static inline void tr_muon_factors(int64_t rows, int64_t cols, float out[TR_MUON_ADJUSTS])
{
    double r = (double)rows, c = (double)cols;
    out[TR_MUON_ORIGINAL] = (float)sqrt(fmax(1.0, r / c));
    out[TR_MUON_MATCH_RMS_ADAMW] = (float)(0.2 * sqrt(fmax(r, c)));
    out[TR_MUON_SPECTRAL_UNCLAMPED] = (float)sqrt(r / c);
}

#endif
