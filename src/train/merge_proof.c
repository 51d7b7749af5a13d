/* merge_proof.c - how far a merged model is from the adapter it was made of: both read the same rows, and the logits of
 * every position are compared. The caller's options ask for
 * float32, so that the distance is that of the weights. */
#include "train/train.h"
#include <math.h>
#include <stdlib.h>

struct proof {
    const struct tr_merge_rows *rows;
    const struct tr_hparams *hp;
    float *live; /* (rows, tokens, V) */
    int64_t row;
    double most, kl;
};

static float *live_at(const struct proof *p, int64_t at)
{
    return p->live + (size_t)((p->row * p->rows->n_tokens + at) * p->hp->vocab);
}

static void keep_logits(void *ctx, int64_t at, int64_t n, const float *logits)
{
    const struct proof *p = ctx;
    memcpy(live_at(p, at), logits, (size_t)(n * p->hp->vocab) * sizeof *logits);
}

static double capped(const struct tr_hparams *hp, float x)
{
    return hp->final_softcap > 0 ? hp->final_softcap * tanh((double)x / hp->final_softcap) : (double)x;
}

static double log_sum(const struct tr_hparams *hp, const float *x)
{
    double top = -INFINITY, sum = 0;
    for (int64_t v = 0; v < hp->vocab; v++)
        top = fmax(top, capped(hp, x[v]));
    for (int64_t v = 0; v < hp->vocab; v++)
        sum += exp(capped(hp, x[v]) - top);
    return top + log(sum);
}

/* The largest difference of a logit, and the sum of KL(live || merged) over positions. */
static void compare_logits(void *ctx, int64_t at, int64_t n, const float *logits)
{
    struct proof *p = ctx;
    for (int64_t i = 0; i < n; i++) {
        const float *a = live_at(p, at + i), *b = logits + i * p->hp->vocab;
        double sum_a = log_sum(p->hp, a), sum_b = log_sum(p->hp, b);
        for (int64_t v = 0; v < p->hp->vocab; v++) {
            double x = capped(p->hp, a[v]), y = capped(p->hp, b[v]);
            p->most = fmax(p->most, fabs(x - y));
            p->kl += exp(x - sum_a) * (x - sum_a - (y - sum_b));
        }
    }
}

static enum tr_status read_rows(struct tr_generator *g, struct proof *p, tr_logits_fn *fn)
{
    enum tr_status st = TR_OK;
    for (p->row = 0; p->row < p->rows->n && st == TR_OK; p->row++) {
        tr_generator_rewind(g, 0);
        st = tr_generator_each(g, p->rows->id + p->row * p->rows->n_tokens, (size_t)p->rows->n_tokens, fn, p);
    }
    return st;
}

enum tr_status tr_merge_prove(struct tr_merge *x, const struct tr_config *cfg, const struct tr_merge_rows *rows,
                              struct tr_merge_proof *out)
{
    enum tr_status st = TR_OK;
    struct tr_generator *g = NULL;
    struct proof p = { .rows = rows, .hp = &tr_merge_model(x)->hp };
    size_t n = (size_t)(rows->n * rows->n_tokens * p.hp->vocab);
    p.live = malloc(n * sizeof *p.live);
    if (!p.live)
        TR_TRY(tr_fail(TR_NOMEM, "merge: no memory for the logits of %" PRId64 " rows; use fewer --rows", rows->n));
    TR_TRY(tr_generator_open_each(cfg, rows->n_tokens, NULL, &g));
    TR_TRY(read_rows(g, &p, keep_logits));
    for (int onto = 0; onto < TR_ONTO_COUNT; onto++) {
        tr_generator_close(g);
        g = NULL;
        out->has[onto] = tr_merge_can(x, (enum tr_onto)onto);
        if (!out->has[onto])
            continue;
        struct tr_store store = tr_merge_store(x, (enum tr_onto)onto);
        p.most = p.kl = 0;
        TR_TRY(tr_generator_open_each(cfg, rows->n_tokens, &store, &g));
        TR_TRY(read_rows(g, &p, compare_logits));
        out->max_logit_diff[onto] = p.most;
        out->kl[onto] = p.kl / (double)(rows->n * rows->n_tokens);
    }
out:
    tr_generator_close(g);
    free(p.live);
    return st;
}
