/* schedule.c - learning-rate schedules and per-step values. The formulas are those of transformers and torch, so that a
 * run that moves here keeps its curve: warm-up is linear from 0, and step 0 of a warm-up of n uses lr * 0 / n. */
#include "optim/optim.h"
#include <math.h>

/* Share of the peak rate after warm-up, at step `at` of `n` steps of decay. */
static double decayed(enum tr_lr_schedule type, double at, double n, double floor)
{
    double left = n > 0 ? fmax(0, (n - at) / n) : 0;
    if (type == TR_LR_COSINE)
        left = 0.5 * (1 + cos(acos(-1.0) * fmin(1, at / fmax(1, n))));
    return floor + (1 - floor) * left;
}

double tr_lr_at(const struct tr_config *cfg, int64_t step, int64_t total)
{
    int64_t warmup = cfg->lr_scheduler_type == TR_LR_CONSTANT ? 0 : tr_config_steps(cfg->warmup_steps, total);
    double factor = 1;
    if (step < warmup)
        return cfg->learning_rate * (double)step / (double)warmup;
    switch (cfg->lr_scheduler_type) {
    case TR_LR_LINEAR:
    case TR_LR_COSINE:
        factor = decayed(cfg->lr_scheduler_type, (double)(step - warmup), (double)tr_max64(1, total - warmup),
                         cfg->min_lr_ratio);
        break;
    case TR_LR_WSD: {
        int64_t n = tr_config_steps(cfg->decay_steps, total), start = total - n;
        if (step >= start)
            factor = decayed(TR_LR_LINEAR, (double)(step - start), (double)n, cfg->min_lr_ratio);
        break;
    }
    default:
        break;
    }
    return cfg->learning_rate * factor;
}

void tr_step_averages(const struct tr_config *cfg, double beta1, int64_t n_updates, float out[TR_STEP_COUNT])
{
    out[TR_STEP_BETA1] = (float)beta1;
    out[TR_STEP_BETA2] = (float)cfg->adam_beta2;
    out[TR_STEP_EPS] = (float)cfg->adam_epsilon;
    out[TR_STEP_BIAS1] = (float)(1 - pow(beta1, (double)n_updates));
    out[TR_STEP_BIAS2] = (float)(1 - pow(cfg->adam_beta2, (double)n_updates));
}

void tr_step_values(const struct tr_config *cfg, int64_t step, int64_t total, int64_t n_targets,
                    float out[TR_STEP_COUNT])
{
    for (int i = 0; i < TR_STEP_COUNT; i++)
        out[i] = 0;
    out[TR_STEP_LR] = (float)tr_lr_at(cfg, step, total);
    out[TR_STEP_INV_TOKENS] =
        n_targets > 0 ? (float)(1.0 / (double)n_targets) : 0; /* a batch without targets changes nothing */
    out[TR_STEP_CLIP] = 1;
    out[TR_STEP_DECAY] = (float)cfg->weight_decay;
    tr_optim_row(cfg->optim)->step_values(cfg, step + 1, out);
    out[TR_STEP_NUMBER_LO] = (float)(step & 0xffffff);
    out[TR_STEP_NUMBER_HI] = (float)(step >> 24 & 0xffffff);
    out[TR_STEP_LOSS_SCALE] = 1;
}

void tr_step_scale(const struct tr_config *cfg, int64_t step, double scale, int64_t n_skipped, float out[TR_STEP_COUNT])
{
    out[TR_STEP_INV_TOKENS] *= (float)scale;
    out[TR_STEP_LOSS_SCALE] = (float)scale;
    tr_optim_row(cfg->optim)->step_values(cfg, step + 1 - n_skipped, out);
}

float tr_clip_factor(double norm, double max_norm)
{
    if (!(max_norm > 0))
        return 1;
    return (float)fmin(1, max_norm / (norm + 1e-6));
}
