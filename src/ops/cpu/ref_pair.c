/* ref_pair.c - sums over documents and losses that weigh tokens: the definition, and fast enough to be the kernel,
 * because all are a few numbers for each token. */
#include "ops/cpu/ref.h"
#include "ops/pair_token.h"

/* Sums run in row order, in double, and are rounded where a run of rows of one document ends. */
void tr_ref_DOC_SUMS(const struct tr_call *c)
{
    const struct tr_view *sums = &c->out[0];
    bool has_all = sums->cols == TR_DOC_ALL_SUMS;
    for (int64_t m = 0; m < sums->rows; m++)
        for (int64_t k = 0; k < sums->cols; k++)
            tr_ref_put(sums, m, k, 0);
    for (int64_t n = 0, end; n < c->in[0].rows; n = end) {
        int64_t begin = tr_ref_int(&c->in[2], n);
        double sum[TR_DOC_ALL_SUMS] = { 0 };
        for (end = n; end < c->in[0].rows && tr_ref_int(&c->in[2], end) == begin; end++) {
            sum[TR_DOC_LOSS] += tr_ref_get(&c->in[0], end, 0);
            sum[TR_DOC_REF] += tr_ref_get(&c->in[3], end, 0);
            sum[TR_DOC_TARGETS] += tr_ref_int(&c->in[1], end) >= 0;
            if (!has_all)
                continue;
            sum[TR_DOC_WEIGHED] += tr_ref_get(&c->in[0], end, 0) * (c->in[4].data ? tr_ref_get(&c->in[4], end, 0) : 1);
            sum[TR_DOC_SQUARES] += tr_ref_opt(&c->in[5], end, 0);
            sum[TR_DOC_MATCH] += tr_ref_opt(&c->in[6], end, 0);
        }
        TR_BUG_ON(begin < 0 || begin >= sums->rows);
        for (int64_t k = 0; k < sums->cols; k++)
            tr_ref_put(sums, begin, k, tr_ref_get(sums, begin, k) + sum[k]);
    }
}

static void read_sums(const struct tr_view *sums, int64_t begin, float out[TR_DOC_ALL_SUMS])
{
    for (int64_t k = 0; k < sums->cols; k++)
        out[k] = (float)tr_ref_get(sums, begin, k);
}

/* All tokens of a document have the same slope, so it is computed where a run of them begins. */
void tr_ref_PAIR_LOSS(const struct tr_call *c)
{
    const struct tr_view *sums = &c->in[0], *step = &c->in[4], *weights = &c->in[5];
    bool is_labelled = tr_pair_has_labels(&c->attr.pair);
    double kl = is_labelled ? tr_ref_get(step, 0, TR_STEP_KL) : 0;
    int64_t last = -1;
    struct tr_pair_slope slope = { 0, 0 };
    for (int64_t n = 0; n < c->out[0].rows; n++) {
        float parts[TR_METRICS] = { 0 }, own[TR_DOC_ALL_SUMS], others[TR_DOC_ALL_SUMS];
        int64_t begin = tr_ref_int(&c->in[1], n), other = tr_ref_int(&c->in[3], n);
        bool is_first = (other > begin || (is_labelled && other >= 0)) && tr_ref_int(&c->in[2], n) == 0;
        if (other < 0) {
            slope = (struct tr_pair_slope){ 0, 0 };
        } else if (begin != last || is_first) {
            TR_BUG_ON(begin >= sums->rows || other >= sums->rows);
            read_sums(sums, begin, own);
            read_sums(sums, other, others);
            slope = is_labelled ? tr_label_token(&c->attr.pair, own, other > begin, kl, is_first ? parts : NULL)
                                : tr_pair_token(&c->attr.pair, own, others, other > begin, is_first ? parts : NULL);
        }
        last = other < 0 ? -1 : begin;
        for (int k = 0; k < TR_METRICS; k++)
            tr_ref_put(&c->out[0], n, k, (double)parts[k]);
        double of_token = weights->data ? tr_ref_get(weights, n, 0) : 1;
        tr_ref_put(&c->out[1], n, 0, (double)tr_pair_token_weight(slope, of_token));
    }
}

void tr_ref_DFT_LOSS(const struct tr_call *c)
{
    for (int64_t n = 0; n < c->out[0].rows; n++) {
        double loss = tr_ref_get(&c->in[0], n, 0), p = exp(-loss);
        tr_ref_put(&c->out[0], n, 0, p * loss);
        tr_ref_put(&c->out[1], n, 0, p);
    }
}

void tr_ref_WEIGH_LOSS(const struct tr_call *c)
{
    for (int64_t n = 0; n < c->out[0].rows; n++)
        tr_ref_put(&c->out[0], n, 0, tr_ref_get(&c->in[0], n, 0) * tr_ref_get(&c->in[1], n, 0));
}
