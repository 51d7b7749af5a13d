/* pick.c - the next token from its logits: greedy, or from the counter-based generator, so that a text depends on the
 * seed and its own tokens alone. */
#include "train/decode_impl.h"
#include <math.h>
#include <stdlib.h>

static int by_score(const void *a, const void *b)
{
    const float *x = a, *y = b;
    if (x[0] != y[0])
        return x[0] < y[0] ? 1 : -1;
    return x[1] > y[1] ? 1 : -1; /* equal scores: the lower id comes first, whatever order the sort leaves */
}

/* Sorts by sifting: qsort of the C library takes memory for large arrays, and nothing is allocated between steps. */
static void sift(float (*p)[2], int64_t i, int64_t n)
{
    for (int64_t child; (child = 2 * i + 1) < n; i = child) {
        child += child + 1 < n && by_score(p[child], p[child + 1]) < 0;
        if (by_score(p[i], p[child]) >= 0)
            return;
        float x[2] = { p[i][0], p[i][1] };
        memcpy(p[i], p[child], sizeof x);
        memcpy(p[child], x, sizeof x);
    }
}

static void sort_scores(float (*p)[2], int64_t n)
{
    for (int64_t i = n / 2; i-- > 0;)
        sift(p, i, n);
    for (int64_t end = n; end-- > 1;) {
        float x[2] = { p[0][0], p[0][1] };
        memcpy(p[0], p[end], sizeof x);
        memcpy(p[end], x, sizeof x);
        sift(p, 0, end);
    }
}

/* As in transformers, the score of a token that was seen before is divided by the penalty if positive, else multiplied.
 */
static void penalise(struct tr_decoder *d, const int32_t *seen, size_t n_seen)
{
    float p = (float)d->cfg->repetition_penalty;
    for (size_t i = 0; p != 1.0f && i < n_seen; i++) {
        if (seen[i] >= d->n_ids)
            continue;
        float *s = &d->pair[seen[i]][0];
        if (d->pair[seen[i]][1] >= 0) {
            *s = *s > 0 ? *s / p : *s * p;
            d->pair[seen[i]][1] = -1; /* marks it, so that the penalty applies once */
        }
    }
    for (int64_t i = 0; i < d->n_ids; i++)
        d->pair[i][1] = (float)i; /* exact: vocabularies are below 2^24 */
}

int32_t tr_decoder_pick(struct tr_decoder *d, const float *logits, const int32_t *seen, size_t n_seen,
                        uint64_t n_picked)
{
    const struct tr_config *cfg = d->cfg;
    int64_t n = d->n_ids, best = 0, n_kept = 0;
    double sum = 0, kept = 0, at = 0, cap = d->softcap;
    for (int64_t i = 0; i < n; i++) {
        d->pair[i][0] = cap > 0 ? (float)(cap * tanh((double)logits[i] / cap)) : logits[i];
        d->pair[i][1] = (float)i;
    }
    penalise(d, seen, n_seen);
    for (int64_t i = 0; i < n; i++)
        best = d->pair[i][0] > d->pair[best][0] ? i : best;
    if (cfg->temperature <= 0)
        return (int32_t)best;
    float u = tr_u01(tr_philox(d->key, 0, n_picked).v[0]), top = d->pair[best][0];
    sort_scores(d->pair, n);
    if (cfg->top_k > 0 && cfg->top_k < n)
        n = cfg->top_k;
    for (int64_t i = 0; i < n; i++) {
        d->pair[i][0] = (float)exp((double)(d->pair[i][0] - top) / cfg->temperature);
        sum += (double)d->pair[i][0];
    }
    while (n_kept < n && (n_kept == 0 || kept < cfg->top_p * sum))
        kept += (double)d->pair[n_kept++][0];
    for (int64_t i = 0; i < n_kept; i++) {
        at += (double)d->pair[i][0];
        if (at >= (double)u * kept)
            return (int32_t)d->pair[i][1];
    }
    return (int32_t)d->pair[n_kept - 1][1];
}
