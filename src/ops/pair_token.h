/* pair_token.h - what pair_loss writes for each token, from the sums of documents. C and CUDA C read it. */
#ifndef TR_OPS_PAIR_TOKEN_H
#define TR_OPS_PAIR_TOKEN_H

#include "ops/pair.h"

/* The sums of a document (enum tr_doc_sum). Losses are negative logarithms. A document without a target, which no pair
 * of a real batch has, counts as one token. */
TR_PAIR_FN void tr_pair_take(const struct tr_pair_rule *k, struct tr_pair_in *in, int side, const float *sums)
{
    in->all[side] = -(double)sums[TR_DOC_LOSS];
    in->p[side] = -(double)sums[k->weighs_tokens ? TR_DOC_WEIGHED : TR_DOC_LOSS];
    in->match[side] = k->is_matched ? (double)sums[TR_DOC_MATCH] : 0;
    in->squares[side] = k->weighs_pairs ? (double)sums[TR_DOC_SQUARES] : 0;
    in->r[side] = -(double)sums[TR_DOC_REF];
    in->n[side] = sums[TR_DOC_TARGETS] > 0 ? (double)sums[TR_DOC_TARGETS] : 1;
}

/* The derivatives of the loss of a pair by the losses of an answer's tokens. */
struct tr_pair_slope {
    double weighed, all; /* by those that have weights, and by all of them alike */
};
TR_PAIR_FN float tr_pair_token_weight(struct tr_pair_slope s, double own)
{
    return (float)(own * s.weighed + s.all);
}

/* What pair_loss writes for one token of an answer with a label: parts may be NULL where it is not the first. */
TR_PAIR_FN struct tr_pair_slope tr_label_token(const struct tr_pair_rule *k, const float *own, bool is_desirable,
                                               double kl, float *parts)
{
    struct tr_pair_in in;
    double dp;
    int side = is_desirable ? TR_CHOSEN : TR_REJECTED;
    struct tr_pair_slope slope;
    tr_pair_take(k, &in, side, own);
    double a = in.p[side] - in.r[side], loss = tr_label_loss(k, a, is_desirable, kl, &dp);
    if (parts) {
        parts[TR_METRIC_LOSS] = (float)loss;
        parts[is_desirable ? TR_METRIC_REWARD_CHOSEN : TR_METRIC_REWARD_REJECTED] = (float)((double)k->beta * a);
        parts[TR_METRIC_DESIRABLE] = is_desirable ? 1 : 0;
        parts[is_desirable ? TR_METRIC_LOGP_CHOSEN : TR_METRIC_LOGP_REJECTED] = (float)in.p[side];
    }
    slope.weighed = -dp;
    slope.all = 0;
    return slope;
}

/* What pair_loss writes for one token: parts may be NULL where the token is not the first of a chosen answer. */
TR_PAIR_FN struct tr_pair_slope tr_pair_token(const struct tr_pair_rule *k, const float *own, const float *other,
                                              bool is_chosen, float *parts)
{
    int side = is_chosen ? TR_CHOSEN : TR_REJECTED;
    struct tr_pair_in in;
    struct tr_pair_slope slope;
    tr_pair_take(k, &in, side, own);
    tr_pair_take(k, &in, is_chosen ? TR_REJECTED : TR_CHOSEN, other);
    struct tr_pair_out out = tr_pair_loss(k, &in);
    if (parts) {
        parts[TR_METRIC_LOSS] = (float)out.loss;
        parts[TR_METRIC_REWARD_CHOSEN] = (float)out.reward[TR_CHOSEN];
        parts[TR_METRIC_REWARD_REJECTED] = (float)out.reward[TR_REJECTED];
        parts[TR_METRIC_WIN] = out.reward[TR_CHOSEN] > out.reward[TR_REJECTED] ? 1 : 0;
        parts[TR_METRIC_LOGP_CHOSEN] = (float)in.p[TR_CHOSEN];
        parts[TR_METRIC_LOGP_REJECTED] = (float)in.p[TR_REJECTED];
    }
    slope.weighed = -out.dp[side]; /* the loss of a token is minus its logarithm */
    slope.all = -out.dall[side];
    return slope;
}

#endif
