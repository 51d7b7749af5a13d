/* dropout.h - which elements dropout keeps, and what noise adds: one function of (key, step, sample, place) that every
 * CPU kernel uses.
 *
 * Philox counter: hi = step number (40 bits) : sample (low 24 bits); lo names the place inside the sample. A counter
 * gives four words, one each for four neighbouring columns (or keys), so a kernel draws once per four elements. The
 * counter is not a hash: two elements never share one in a step of fewer than 2^24 samples, 2^12 heads and 2^26
 * positions.
 * Rejected: a running generator per thread; its mask would depend on layout and thread count.
 */
#ifndef TR_OPS_CPU_DROPOUT_H
#define TR_OPS_CPU_DROPOUT_H

#include "ops/ops.h"

struct tr_dropout {
    uint64_t key, step;
    uint32_t threshold; /* an element is kept when its word is >= this */
    float scale;        /* the factor 1 / (1 - p) on kept elements */
};

/* step may be NULL when dropout_p is 0: everything is kept with scale 1. */
static inline struct tr_dropout tr_dropout_init(const struct tr_attr *a, const float *step)
{
    bool is_on = a->dropout_p > 0;
    return (struct tr_dropout){ .key = a->key,
                                .step = is_on ? tr_step_number(step) : 0,
                                .threshold = (uint32_t)((double)a->dropout_p * 4294967296.0),
                                .scale = 1.0f / (1.0f - a->dropout_p) };
}

/* For noise: the factor on a word, as a number from -2^31 on. */
static inline struct tr_dropout tr_noise_init(const struct tr_attr *a, const float *step)
{
    return (struct tr_dropout){ .key = a->key, .step = tr_step_number(step), .scale = a->scale * 0x1p-31f };
}

/* Words of columns 4 * (column / 4) .. + 3 of one token. */
static inline struct tr_philox tr_dropout_token4(const struct tr_dropout *d, int64_t sample, int64_t position,
                                                 int64_t column)
{
    return tr_philox(d->key, d->step << 24 | ((uint64_t)sample & 0xffffffu),
                     (uint64_t)position << 32 | (uint64_t)column >> 2);
}

/* Words of key positions 4 * (k / 4) .. + 3 for the query at position q of the same sample. */
static inline struct tr_philox tr_dropout_pair4(const struct tr_dropout *d, int64_t sample, int64_t head, int64_t q,
                                                int64_t k)
{
    return tr_philox(d->key, d->step << 24 | ((uint64_t)sample & 0xffffffu),
                     (uint64_t)head << 52 | (uint64_t)q << 26 | (uint64_t)k >> 2);
}

/* The factor on element `place` (column or key position) of the four: 0 or 1 / (1 - p). */
static inline float tr_dropout_keep(const struct tr_dropout *d, const struct tr_philox *four, int64_t place)
{
    return four->v[place & 3] >= d->threshold ? d->scale : 0.0f;
}

#endif
