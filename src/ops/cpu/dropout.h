/* dropout.h - masks of dropout (ops/dropout.h) and noise, as the CPU kernels draw them.
 *
 * Noise has 32 bits an element. Philox counter: hi = step number (40 bits) : sample (low 24 bits); lo = position :
 * column / 4. A counter gives four words, one each for four neighbouring columns.
 */
#ifndef TR_OPS_CPU_DROPOUT_H
#define TR_OPS_CPU_DROPOUT_H

#include "base/philox7.h"
#include "ops/dropout.h"
#include "ops/ops.h"

struct tr_dropout {
    uint64_t key, step;
    uint32_t threshold; /* an element is kept when its number is >= this */
    float scale;        /* the factor on kept elements */
};

/* step may be NULL when dropout_p is 0: everything is kept with scale 1. */
static inline struct tr_dropout tr_dropout_init(const struct tr_attr *a, const float *step)
{
    return (struct tr_dropout){ .key = a->key,
                                .step = a->dropout_p > 0 ? tr_step_number(step) : 0,
                                .threshold = tr_drop_threshold(a->dropout_p),
                                .scale = tr_drop_scale(a->dropout_p) };
}

/* For noise: the factor on a word, as a number from -2^31 on. */
static inline struct tr_dropout tr_noise_init(const struct tr_attr *a, const float *step)
{
    return (struct tr_dropout){ .key = a->key, .step = tr_step_number(step), .scale = a->scale * 0x1p-31f };
}

/* Words of columns 4 * (column / 4) .. + 3 of one token. */
static inline struct tr_philox tr_noise_token4(const struct tr_dropout *d, int64_t sample, int64_t position,
                                               int64_t column)
{
    return tr_philox(d->key, d->step << 24 | ((uint64_t)sample & 0xffffffu),
                     (uint64_t)position << 32 | (uint64_t)column >> 2);
}

/* The eight numbers of columns 8 * (column / 8) .. + 7 of one token. */
static inline struct tr_philox tr_dropout_token8(const struct tr_dropout *d, uint32_t token, int64_t column)
{
    return tr_philox7(d->key, d->step, tr_drop_lo_of_column(token, column));
}

/* The eight numbers of a counter of scores: tr_drop_at_of_pair says which is whose. */
static inline struct tr_philox tr_dropout_pair8(const struct tr_dropout *d, int64_t head, uint32_t query, uint32_t key)
{
    return tr_philox7(d->key, tr_drop_hi_of_head(d->step, head), tr_drop_lo_of_pair(query, key));
}

/* The factor on number `at` of the eight: 0, or that of kept elements. */
static inline float tr_dropout_keep(const struct tr_dropout *d, const struct tr_philox *eight, int at)
{
    return tr_drop_number(eight->v[at / 2], at) >= d->threshold ? d->scale : 0.0f;
}

#endif
