/* pair.h - the loss of a pair of answers and its derivatives, from the log-probabilities of both. C and CUDA C read it.
 *
 * p is the log-probability of an answer, the sum over its targets; r that of the reference; n the number of targets. A
 * loss that reads means divides both by n. With a = p - r, where there is a reference, and d = a(chosen) - a(rejected),
 * or f'(exp a) in place of a for another divergence than the reverse KL, the formulas are those of the papers; TRL has
 * the same but for two: it ignores label_smoothing with `sigmoid`, where this is cDPO, and its `sft` is a mean over the
 * tokens of the batch, where this is one over answers. With weighs_pairs (WPO) a pair counts as much as the model finds
 * its answers likely: exp of the mean over tokens of log p - log(sum of all p^2) for each of both, a constant in the
 * backward; TRL 1.16 has no bound on it, older versions had 1. An answer with a label has a loss of its own (KTO),
 * which reads one number of the whole batch: how far the model is from the reference.
 */
#ifndef TR_OPS_PAIR_H
#define TR_OPS_PAIR_H

#include "ops/ops.h"
#include <math.h>

#ifdef __CUDACC__
#define TR_PAIR_FN __host__ __device__ static inline
#else
#define TR_PAIR_FN static inline
#endif

enum { TR_CHOSEN, TR_REJECTED };

/* p: of tokens with weights; losses without a reference read `all`, of which each token counts once. */
struct tr_pair_in {
    double p[2], r[2], n[2];
    double all[2];
    double match[2];   /* losses of transport: see tr_pair_of_both */
    double squares[2]; /* sums of the logarithms of the sums of squared probabilities */
};
struct tr_pair_out {
    double loss, dp[2], dall[2]; /* by p and by all, so by the sum also where the loss reads means */
    double reward[2];
};

TR_PAIR_FN double tr_pair_sigma(double x)
{
    return x >= 0 ? 1 / (1 + exp(-x)) : exp(x) / (1 + exp(x));
}

TR_PAIR_FN double tr_pair_log_sigma(double x)
{
    return x >= 0 ? -log1p(exp(-x)) : x - log1p(exp(x));
}

/* -(1 - e) log sigma(x) - e log sigma(-x) and its derivative */
TR_PAIR_FN double tr_pair_logistic(double x, double e, double *dx)
{
    *dx = -(1 - e) * tr_pair_sigma(-x) + e * tr_pair_sigma(x);
    return -(1 - e) * tr_pair_log_sigma(x) - e * tr_pair_log_sigma(-x);
}

/* f'(exp a) of the divergence, and its derivative by a. Exponents end at 80, where float32 nearly does, as in TRL. */
TR_PAIR_FN double tr_pair_score(const struct tr_pair_rule *k, double a, double *da)
{
    double c = (double)k->alpha - 1;
    bool is_forward = k->divergence == TR_DIVERGENCE_FORWARD_KL;
    *da = 1;
    if (k->divergence == TR_DIVERGENCE_JS) {
        *da = tr_pair_sigma(-a);
        return log(2.0) + tr_pair_log_sigma(a);
    }
    if (is_forward)
        c = -1;
    if ((!is_forward && k->divergence != TR_DIVERGENCE_ALPHA) || fabs(c) < 1e-6)
        return a;
    double e = exp(fmin(c * a, 80.0));
    *da = c * a < 80.0 ? e : 0;
    return (e - 1) / c;
}

/* Losses of d alone. *dd: the derivative by d. */
TR_PAIR_FN double tr_pair_of_difference(const struct tr_pair_rule *k, enum tr_pair_loss kind, double d, double *dd)
{
    double tau = (double)k->tau;
    double b = (double)k->beta, e = (double)k->label_smoothing, x = b * d, dx = 0, loss = 0;
    switch (kind) {
    case TR_PAIR_SIMPO:
        loss = tr_pair_logistic(x - (double)k->gamma, e, &dx);
        break;
    case TR_PAIR_ROBUST:
        loss = (-(1 - e) * tr_pair_log_sigma(x) + e * tr_pair_log_sigma(-x)) / (1 - 2 * e);
        dx = (-(1 - e) * tr_pair_sigma(-x) - e * tr_pair_sigma(x)) / (1 - 2 * e);
        break;
    case TR_PAIR_HINGE:
        loss = x < 1 ? 1 - x : 0;
        dx = x < 1 ? -1 : 0;
        break;
    case TR_PAIR_IPO:
        loss = (d - 0.5 / b) * (d - 0.5 / b);
        dx = 2 * (d - 0.5 / b) / b;
        break;
    case TR_PAIR_EXO_PAIR: {
        double w = tr_pair_sigma(x), l = tr_pair_sigma(-x), odds = log1p(-e) - log(e);
        loss = w * (tr_pair_log_sigma(x) - log1p(-e)) + l * (tr_pair_log_sigma(-x) - log(e));
        dx = w * l * (x - odds);
        break;
    }
    case TR_PAIR_DISCOPOP: {
        double m = tr_pair_sigma(x / tau), dm = m * (1 - m) / tau, plain = -tr_pair_log_sigma(x), steep = exp(-x);
        loss = plain * (1 - m) + steep * m;
        dx = -tr_pair_sigma(-x) * (1 - m) - steep * m + (steep - plain) * dm;
        break;
    }
    default: /* SIGMOID, SIGMOID_NORM, CPO */
        loss = tr_pair_logistic(x, e, &dx);
        break;
    }
    *dd = b * dx;
    return loss;
}

/* Losses that are no function of the difference. da: the derivatives by a. False: the loss is one. Those of transport
 * (AOT, arXiv 2406.05882) sort the answers of a batch, and compare the i-th of one side with the i-th of the other. m
 * says with what: for `aot` how much larger the difference of the reference that has the same place is than the pair's
 * own, for `aot_unpaired` the `a` of the answer of the other side that has the same place. */
TR_PAIR_FN bool tr_pair_of_both(const struct tr_pair_rule *k, enum tr_pair_loss kind, const double a[2],
                                const double m[2], double *loss, double da[2])
{
    double b = (double)k->beta, c = b * a[TR_CHOSEN], r = b * a[TR_REJECTED], dc = 0, dr = 0;
    double sc = tr_pair_sigma(c), sr = tr_pair_sigma(r), sd = tr_pair_sigma(c - r);
    switch (kind) {
    case TR_PAIR_NCA_PAIR:
        *loss = -tr_pair_log_sigma(c) - 0.5 * tr_pair_log_sigma(-c) - 0.5 * tr_pair_log_sigma(-r);
        dc = -(1 - sc) + 0.5 * sc, dr = 0.5 * sr;
        break;
    case TR_PAIR_BCO_PAIR:
        *loss = -tr_pair_log_sigma(c) - tr_pair_log_sigma(-r);
        dc = -(1 - sc), dr = sr;
        break;
    case TR_PAIR_SPPO_HARD: {
        double up = a[TR_CHOSEN] - 0.5 / b, down = a[TR_REJECTED] + 0.5 / b;
        *loss = up * up + down * down;
        dc = 2 * up / b, dr = 2 * down / b;
        break;
    }
    case TR_PAIR_APO_ZERO:
        *loss = 1 - sc + sr;
        dc = -sc * (1 - sc), dr = sr * (1 - sr);
        break;
    case TR_PAIR_APO_DOWN:
        *loss = sc + 1 - sd;
        dc = sc * (1 - sc) - sd * (1 - sd), dr = sd * (1 - sd);
        break;
    case TR_PAIR_AOT:
        *loss = tr_pair_logistic(c - r - b * m[TR_CHOSEN], (double)k->label_smoothing, &dc);
        dr = -dc;
        break;
    case TR_PAIR_AOT_UNPAIRED: /* the loss of each place is counted once, by its chosen answer */
        *loss = tr_pair_logistic(c - b * m[TR_CHOSEN], (double)k->label_smoothing, &dc);
        (void)tr_pair_logistic(b * m[TR_REJECTED] - r, (double)k->label_smoothing, &dr);
        dr = -dr;
        break;
    case TR_PAIR_SFT:
        *loss = -a[TR_CHOSEN];
        dc = -1 / b;
        break;
    case TR_PAIR_ORPO: { /* the logarithm of the odds; 1 - exp(a) is never 0 */
        double qc = fmax(-expm1(a[TR_CHOSEN]), 1e-12), qr = fmax(-expm1(a[TR_REJECTED]), 1e-12), dx;
        double odds = a[TR_CHOSEN] - a[TR_REJECTED] - (log(qc) - log(qr));
        *loss = -a[TR_CHOSEN] + b * tr_pair_logistic(odds, 0, &dx);
        dc = -1 / b + dx / qc, dr = -dx / qr;
        break;
    }
    default:
        return false;
    }
    da[TR_CHOSEN] = b * dc;
    da[TR_REJECTED] = b * dr;
    return true;
}

/* What a loss reads: the reference too, and the mean of a token instead of the sum of an answer. */
TR_PAIR_FN void tr_pair_reads(enum tr_pair_loss kind, bool *needs_ref, bool *is_mean)
{
    *needs_ref = *is_mean = false;
    switch (kind) {
#define X(id, word, ref, mean)                                                                                         \
    case TR_PAIR_##id:                                                                                                 \
        *needs_ref = ref, *is_mean = mean;                                                                             \
        break;
        TR_PAIR_LOSS_LIST(X)
#undef X
    default:
        break;
    }
}

/* Adds a loss and its derivatives to `out`. */
TR_PAIR_FN void tr_pair_add(const struct tr_pair_rule *k, const struct tr_pair_term *term, const struct tr_pair_in *in,
                            struct tr_pair_out *out)
{
    bool needs_ref, is_mean;
    double a[2], da[2], df[2], score[2], dd, loss;
    tr_pair_reads(term->loss, &needs_ref, &is_mean);
    for (int i = 0; i < 2; i++) {
        double sum = needs_ref ? in->p[i] - in->r[i] : in->all[i];
        a[i] = is_mean ? sum / in->n[i] : sum;
    }
    if (!tr_pair_of_both(k, term->loss, a, in->match, &loss, da)) {
        for (int i = 0; i < 2; i++) { /* a mean is one of scores: the divergence is of whole answers */
            double n = is_mean ? in->n[i] : 1;
            score[i] = tr_pair_score(k, a[i] * n, &df[i]) / n;
        }
        loss = tr_pair_of_difference(k, term->loss, score[TR_CHOSEN] - score[TR_REJECTED], &dd);
        da[TR_CHOSEN] = dd * df[TR_CHOSEN];
        da[TR_REJECTED] = -dd * df[TR_REJECTED];
    }
    out->loss += (double)term->weight * loss;
    for (int i = 0; i < 2; i++)
        (needs_ref ? out->dp : out->dall)[i] += (double)term->weight * (is_mean ? da[i] / in->n[i] : da[i]);
}

/* How much a pair counts. */
TR_PAIR_FN double tr_pair_weight(const struct tr_pair_rule *k, const struct tr_pair_in *in)
{
    double mean = 0;
    for (int i = 0; i < 2; i++)
        mean += (in->all[i] - in->squares[i]) / in->n[i];
    return k->weighs_pairs ? exp(mean) : 1;
}

/* Rewards are of sums where a loss reads the reference, as TRL's are; else of what the first loss reads. */
TR_PAIR_FN struct tr_pair_out tr_pair_loss(const struct tr_pair_rule *k, const struct tr_pair_in *in)
{
    bool has_ref = false, is_mean = false;
    struct tr_pair_out out;
    out.loss = out.dp[TR_CHOSEN] = out.dp[TR_REJECTED] = out.dall[TR_CHOSEN] = out.dall[TR_REJECTED] = 0;
    for (int t = 0; t < TR_PAIR_TERMS && k->term[t].loss != TR_PAIR_NONE; t++) {
        bool needs_ref, is_mean_too;
        tr_pair_reads(k->term[t].loss, &needs_ref, &is_mean_too);
        has_ref = has_ref || needs_ref;
        is_mean = t == 0 ? is_mean_too : is_mean;
        tr_pair_add(k, &k->term[t], in, &out);
    }
    double weight = tr_pair_weight(k, in);
    out.loss *= weight;
    for (int i = 0; i < 2; i++) {
        out.dp[i] *= weight;
        out.dall[i] *= weight;
        out.reward[i] = (double)k->beta * (has_ref   ? in->p[i] - in->r[i]
                                           : is_mean ? in->all[i] / in->n[i]
                                                     : in->all[i]);
    }
    return out;
}

/* The loss of an answer with a label, and its derivative by p. kl: of the batch; apo_zero_unpaired reads none. */
TR_PAIR_FN double tr_label_loss(const struct tr_pair_rule *k, double a, bool is_desirable, double kl, double *dp)
{
    double sign = is_desirable ? 1 : -1, weight = (double)k->weight[is_desirable ? TR_CHOSEN : TR_REJECTED];
    double x = sign * (double)k->beta * (a - (k->term[0].loss == TR_PAIR_KTO ? kl : 0));
    *dp = -weight * sign * (double)k->beta * tr_pair_sigma(x) * tr_pair_sigma(-x);
    return weight * tr_pair_sigma(-x); /* 1 - sigma(x) */
}

#endif
