/* merge_proof.c - how far weights are from a running model, such as a merged model from the adapter it was made of:
 * both read the same rows, and the logits of every position are compared. */
#include "train/train.h"
#include <math.h>
#include <stdlib.h>

struct tr_live {
    const struct tr_config *cfg;
    const struct tr_merge_rows *rows;
    const struct tr_hparams *hp;
    float *live; /* (rows, tokens, V) */
    int64_t row;
    struct tr_distance d;
};

static float *live_at(const struct tr_live *p, int64_t at)
{
    return p->live + (size_t)((p->row * p->rows->n_tokens + at) * p->hp->vocab);
}

static void keep_logits(void *ctx, int64_t at, int64_t n, const float *logits)
{
    const struct tr_live *p = ctx;
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
    struct tr_live *p = ctx;
    for (int64_t i = 0; i < n; i++) {
        const float *a = live_at(p, at + i), *b = logits + i * p->hp->vocab;
        double sum_a = log_sum(p->hp, a), sum_b = log_sum(p->hp, b);
        for (int64_t v = 0; v < p->hp->vocab; v++) {
            double x = capped(p->hp, a[v]), y = capped(p->hp, b[v]);
            p->d.max_logit_diff = isnan(x - y) ? INFINITY : fmax(p->d.max_logit_diff, fabs(x - y));
            p->d.kl += exp(x - sum_a) * (x - sum_a - (y - sum_b));
        }
    }
}

static enum tr_status read_rows(struct tr_generator *g, struct tr_live *p, tr_logits_fn *fn)
{
    enum tr_status st = TR_OK;
    for (p->row = 0; p->row < p->rows->n && st == TR_OK; p->row++) {
        tr_generator_rewind(g, 0);
        st = tr_generator_each(g, p->rows->id + p->row * p->rows->n_tokens, (size_t)p->rows->n_tokens, fn, p);
    }
    return st;
}

void tr_live_close(struct tr_live *l)
{
    if (!l)
        return;
    free(l->live);
    free(l);
}

enum tr_status tr_live_open(const struct tr_config *cfg, const struct tr_hparams *hp, const struct tr_merge_rows *rows,
                            struct tr_live **out)
{
    enum tr_status st = TR_OK;
    struct tr_generator *g = NULL;
    struct tr_live *l = calloc(1, sizeof *l);
    if (!l)
        return tr_fail(TR_NOMEM, "no memory to compare weights");
    *l = (struct tr_live){ .cfg = cfg, .rows = rows, .hp = hp };
    TR_TRY(TR_ALLOC(l->live, (size_t)(rows->n * rows->n_tokens * hp->vocab),
                    "the logits of %" PRId64 " rows; use fewer --rows", rows->n));
    TR_TRY(tr_generator_open_each(cfg, rows->n_tokens, NULL, &g));
    TR_TRY(read_rows(g, l, keep_logits));
    *out = l;
    l = NULL;
out:
    tr_generator_close(g);
    tr_live_close(l);
    return st;
}

enum tr_status tr_live_distance(struct tr_live *l, const struct tr_store *other, struct tr_distance *out)
{
    enum tr_status st = TR_OK;
    struct tr_generator *g = NULL;
    l->d = (struct tr_distance){ 0 };
    TR_TRY(tr_generator_open_each(l->cfg, l->rows->n_tokens, other, &g));
    TR_TRY(read_rows(g, l, compare_logits));
    *out = (struct tr_distance){ l->d.max_logit_diff, l->d.kl / (double)(l->rows->n * l->rows->n_tokens) };
out:
    tr_generator_close(g);
    return st;
}

enum tr_status tr_merge_prove(struct tr_merge *x, const struct tr_config *cfg, const struct tr_merge_rows *rows,
                              struct tr_merge_proof *out)
{
    struct tr_live *l = NULL;
    enum tr_status st = tr_live_open(cfg, &tr_merge_model(x)->hp, rows, &l);
    for (int onto = 0; onto < TR_ONTO_COUNT && st == TR_OK; onto++) {
        out->has[onto] = tr_merge_can(x, (enum tr_onto)onto);
        if (!out->has[onto])
            continue;
        struct tr_store store = tr_merge_store(x, (enum tr_onto)onto);
        st = tr_live_distance(l, &store, &out->to[onto]);
    }
    tr_live_close(l);
    return st;
}
