/* mix.c - see mix.h.
 *
 * The table is a schedule. A source with share w of period P has its j-th sample (from 1) in a window of time: not
 * before floor((j-1) P / w) + 1, where its count would exceed the ceiling, and not after ceil(j P / w), where its count
 * would be below the floor. These are the windows of P-fair scheduling (Baruah, Cohen, Plaxton, Varvel, Algorithmica
 * 1996). On one machine, the rule "earliest deadline among the released" meets all of them.
 */
#include "data/mix.h"

#include <math.h>
#include <stdlib.h>

enum { MAX_PERIOD = 1 << 20, MAX_DECIMALS = 6 };

static uint64_t gcd(uint64_t a, uint64_t b)
{
    while (b) {
        uint64_t r = a % b;
        a = b;
        b = r;
    }
    return a;
}

/* Computes whole shares: the weights times `scale`, in lowest terms. False: these are not whole numbers. */
static bool to_shares(struct tr_mix *m, const double *weights, double scale)
{
    uint64_t common = 0;
    m->period = 0;
    for (size_t i = 0; i < m->n_sources; i++) {
        double x = weights[i] * scale, whole = nearbyint(x);
        if (!(whole >= 1 && whole <= UINT32_MAX) || fabs(x - whole) > 1e-9 * whole)
            return false;
        m->share[i] = (uint32_t)whole;
        common = gcd(m->share[i], common);
    }
    for (size_t i = 0; i < m->n_sources; i++) {
        m->share[i] /= (uint32_t)common;
        m->period += m->share[i];
    }
    return true;
}

static void fill_slots(struct tr_mix *m, uint32_t *n_placed)
{
    for (uint64_t time = 1; time <= m->period; time++) {
        size_t best = SIZE_MAX;
        uint64_t best_end = 0;
        for (size_t i = 0; i < m->n_sources; i++) {
            uint64_t w = m->share[i], j = n_placed[i];
            if (j * m->period / w + 1 > time)
                continue;
            uint64_t end = ((j + 1) * m->period + w - 1) / w;
            if (best == SIZE_MAX || end < best_end) {
                best = i;
                best_end = end;
            }
        }
        TR_BUG_ON(best == SIZE_MAX || best_end < time);
        m->slots[time - 1].source = (uint32_t)best;
        m->slots[time - 1].before = n_placed[best]++;
    }
}

enum tr_status tr_mix_open(struct tr_mix *m, const double *weights, size_t n)
{
    enum tr_status st = TR_OK;
    bool is_whole = false;
    double scale = 1;
    *m = (struct tr_mix){ .n_sources = n, .share = calloc(n, sizeof *m->share) };
    uint32_t *n_placed = calloc(n, sizeof *n_placed);
    if (!m->share || !n_placed)
        TR_TRY(tr_fail(TR_NOMEM, "no memory to mix %zu sources", n));
    for (size_t i = 0; i < n; i++)
        if (!(weights[i] > 0) || !isfinite(weights[i]))
            TR_TRY(tr_fail(TR_USAGE, "data weight %g is not a number above 0", weights[i]));
    for (int d = 0; d <= MAX_DECIMALS && !is_whole; d++) {
        is_whole = to_shares(m, weights, scale);
        scale *= 10;
    }
    if (!is_whole || m->period > MAX_PERIOD)
        TR_TRY(
            tr_fail(TR_USAGE,
                    "data weights are mixed exactly: as whole numbers in lowest terms they may add up to %d at most; "
                    "give them with fewer digits",
                    MAX_PERIOD));
    TR_TRY(TR_ALLOC(m->slots, m->period, "a mixture of period %" PRIu64, m->period));
    fill_slots(m, n_placed);
out:
    free(n_placed);
    if (st != TR_OK)
        tr_mix_release(m);
    return st;
}

void tr_mix_release(struct tr_mix *m)
{
    free(m->share);
    free(m->slots);
    *m = (struct tr_mix){ 0 };
}
