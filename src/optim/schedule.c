/* schedule.c - learning-rate schedules and per-step values. The formulas are those of transformers, torch and
 * DeepSpeed, so that a run that moves here keeps its curve: step 0 of a warm-up of n uses lr * 0 / n. */
#include "optim/optim.h"
#include <assert.h>
#include <math.h>

#define PI 3.14159265358979323846

/* A place after the warm-up: `at` of `n` steps. */
struct lr_place {
    const struct tr_config *cfg;
    double at, n, warmup;
    int64_t step, total;
};

static double waves(const struct tr_config *cfg, double usual)
{
    return cfg->lr_num_cycles < 0 ? usual : cfg->lr_num_cycles;
}

static double half_wave(const struct tr_config *cfg, double progress)
{
    return fmax(0, 0.5 * (1 + cos(PI * waves(cfg, 0.5) * 2 * progress)));
}

static double linear(const struct lr_place *p)
{
    return p->n > 0 ? fmax(0, (p->n - p->at) / p->n) : 0;
}

static double cosine(const struct lr_place *p)
{
    return half_wave(p->cfg, fmin(1, p->at / fmax(1, p->n)));
}

static double restarts(const struct lr_place *p)
{
    double progress = p->at / fmax(1, p->n);
    return progress >= 1 ? 0 : 0.5 * (1 + cos(PI * fmod(waves(p->cfg, 1) * progress, 1)));
}

static double ahead(const struct lr_place *p)
{
    return half_wave(p->cfg, fmin(1, (p->at + 1) / fmax(1, p->n)));
}

static double polynomial(const struct lr_place *p)
{
    double peak = p->cfg->learning_rate, end = p->cfg->lr_end;
    return peak > 0 ? ((peak - end) * pow(fmax(0, 1 - p->at / fmax(1, p->n)), p->cfg->lr_power) + end) / peak : 0;
}

static double inverse_sqrt(const struct lr_place *p)
{
    double scale = p->cfg->lr_timescale > 0 ? p->cfg->lr_timescale : p->warmup > 0 ? p->warmup : 10000;
    return 1 / sqrt((p->at + scale) / scale);
}

static double stable(const struct lr_place *p)
{
    (void)p;
    return 1;
}

/* The last decay_steps of the run. */
static double decay_at_the_end(const struct lr_place *p, enum tr_lr_curve usual)
{
    int64_t n = tr_config_steps(p->cfg->decay_steps, p->total), start = p->total - n;
    enum tr_lr_curve shape = p->cfg->decay_type == TR_CURVE_AUTO ? usual : p->cfg->decay_type;
    struct lr_place end = { .cfg = p->cfg, .at = (double)(p->step - start), .n = (double)n };
    if (p->step < start)
        return 1;
    return shape == TR_CURVE_LINEAR ? linear(&end)
           : shape == TR_CURVE_SQRT ? 1 - sqrt(fmin(1, end.at / fmax(1, end.n)))
                                    : cosine(&end);
}

static double wsd(const struct lr_place *p)
{
    return decay_at_the_end(p, TR_CURVE_LINEAR);
}

static double stable_decay(const struct lr_place *p)
{
    return decay_at_the_end(p, TR_CURVE_COSINE);
}

/* What the formulas of schedules have in common. */
static const struct {
    double (*share)(const struct lr_place *p); /* of the peak rate, after the warm-up */
    bool has_warmup, has_floor;                /* floor: share 0 is min_lr_ratio */
    bool warms_from_floor;
    int ahead; /* steps that the warm-up is ahead */
} schedules[] = {
    [TR_LR_LINEAR] = { linear, true, true },
    [TR_LR_COSINE] = { cosine, true, true },
    [TR_LR_CONSTANT] = { stable },
    [TR_LR_CONSTANT_WITH_WARMUP] = { stable, true },
    [TR_LR_WSD] = { wsd, true, true },
    [TR_LR_STABLE_DECAY] = { stable_decay, true, true, true },
    [TR_LR_RESTARTS] = { restarts, true, true },
    [TR_LR_POLYNOMIAL] = { polynomial, true },
    [TR_LR_INVERSE_SQRT] = { inverse_sqrt, true },
    [TR_LR_COSINE_AHEAD] = { ahead, true, true, false, 1 },
};
static_assert(TR_COUNT_OF(schedules) == TR_LR_SCHEDULES, "a row for each schedule");

/* Share of the peak rate at step `at` of a warm-up of n. The logarithm is DeepSpeed's. */
static double warm(enum tr_lr_curve shape, double at, double n)
{
    switch (shape) {
    case TR_CURVE_COSINE:
        return 0.5 * (1 - cos(PI * at / n));
    case TR_CURVE_SQRT:
        return 1 - sqrt(1 - at / n);
    case TR_CURVE_LOG:
        return log(at + 1) / log(n);
    default:
        return at / n;
    }
}

double tr_lr_at(const struct tr_config *cfg, int64_t step, int64_t total)
{
    enum tr_lr_schedule type = cfg->lr_scheduler_type;
    int64_t warmup = schedules[type].has_warmup ? tr_config_steps(cfg->warmup_steps, total) : 0;
    if (schedules[type].has_warmup && cfg->warmup_type == TR_CURVE_LOG)
        warmup = tr_max64(2, warmup); /* a logarithm of 1 is 0 */
    struct lr_place p = {
        cfg, (double)(step - warmup), (double)tr_max64(1, total - warmup), (double)warmup, step, total
    };
    double floor = schedules[type].has_floor ? cfg->min_lr_ratio : 0, share = 0;
    if (step >= warmup) {
        share = schedules[type].share(&p);
    } else {
        share = warm(cfg->warmup_type, (double)(step + schedules[type].ahead), (double)warmup);
        floor = schedules[type].warms_from_floor ? floor : 0;
    }
    return cfg->learning_rate * (floor + (1 - floor) * share);
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
