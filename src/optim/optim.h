/* optim.h - room header of optim: learning-rate schedules, and what an optimizer needs per step. Kernels are ops. */
#ifndef TR_OPTIM_OPTIM_H
#define TR_OPTIM_OPTIM_H

#include "config/config.h"
#include "ops/ops.h"

struct tr_optim {
    const char *name;
    enum tr_opcode op;
    int n_moments;
};
const struct tr_optim *tr_optim_row(enum tr_optim_kind kind);

/* Learning rate of optimizer step `step` (0 = the first) of `total`, as transformers computes it. */
double tr_lr_at(const struct tr_config *cfg, int64_t step, int64_t total);

/* The step buffer of `step`: everything the kernels read that changes per step. Clip is 1 until the norm is known. */
void tr_step_values(const struct tr_config *cfg, int64_t step, int64_t total, int64_t n_targets,
                    float out[TR_STEP_COUNT]);

/* The same with a loss that counts `scale` times, after n_skipped steps without an update: moments have seen fewer. */
void tr_step_scale(const struct tr_config *cfg, int64_t step, double scale, int64_t n_skipped,
                   float out[TR_STEP_COUNT]);

/* Factor on all gradients so that their norm is at most max_norm (0 = off); torch's clip_grad_norm_. */
float tr_clip_factor(double norm, double max_norm);

#endif
