/* mix.h - which source a sample comes from, when sources are mixed by weight.
 *
 * Weights have at most six decimals and become whole numbers without a common factor. Their sum is the period. Sample g
 * is slot g % period of a table that holds source i exactly share[i] times. Its order is such that for every n, the
 * first n samples hold the floor or the ceiling of n * weight samples of source i. There are no random draws and no
 * state: any rank can compute any sample, and the shares are exact. Rejected: random draws (shares are right only in
 * the long run) and per-rank counters (the order would depend on the world).
 */
#ifndef TR_DATA_MIX_H
#define TR_DATA_MIX_H

#include "base/base.h"

struct tr_mix {
    size_t n_sources;
    uint64_t period;
    uint32_t *share; /* of source i in one period */
    struct {
        uint32_t source, before; /* samples of this source earlier in the period */
    } * slots;
};

/* There are n weights, all > 0. n = 1 is a data set without a mixture. */
enum tr_status tr_mix_open(struct tr_mix *m, const double *weights, size_t n);
void tr_mix_release(struct tr_mix *m);

/* Sample g of the mixture is sample *k of source *i. */
static inline void tr_mix_at(const struct tr_mix *m, uint64_t g, size_t *i, uint64_t *k)
{
    *i = m->slots[g % m->period].source;
    *k = g / m->period * m->share[*i] + m->slots[g % m->period].before;
}

#endif
