/* pair_loss.h - the losses of preference training, one row each. What they compute is in ops/pair.h. */
#ifndef TR_CONFIG_PAIR_LOSS_H
#define TR_CONFIG_PAIR_LOSS_H

#include <stdbool.h>

/* X(enum, word, needs a reference, reads the mean of a token instead of the sum of the answer). From KTO on the losses
 * are of single answers with a label, not of pairs. */
#define TR_PAIR_LOSS_LIST(X)                                                                                           \
    X(SIGMOID, "sigmoid", true, false)                                                                                 \
    X(ROBUST, "robust", true, false)                                                                                   \
    X(HINGE, "hinge", true, false)                                                                                     \
    X(IPO, "ipo", true, true)                                                                                          \
    X(SIGMOID_NORM, "sigmoid_norm", true, true)                                                                        \
    X(EXO_PAIR, "exo_pair", true, false)                                                                               \
    X(NCA_PAIR, "nca_pair", true, false)                                                                               \
    X(BCO_PAIR, "bco_pair", true, false)                                                                               \
    X(SPPO_HARD, "sppo_hard", true, false)                                                                             \
    X(APO_ZERO, "apo_zero", true, false)                                                                               \
    X(APO_DOWN, "apo_down", true, false)                                                                               \
    X(DISCOPOP, "discopop", true, false)                                                                               \
    X(AOT, "aot", true, false)                                                                                         \
    X(AOT_UNPAIRED, "aot_unpaired", true, false)                                                                       \
    X(SFT, "sft", false, true)                                                                                         \
    X(ORPO, "orpo", false, true)                                                                                       \
    X(SIMPO, "simpo", false, true)                                                                                     \
    X(CPO, "cpo", false, false)                                                                                        \
    X(KTO, "kto", true, false)                                                                                         \
    X(APO_ZERO_UNPAIRED, "apo_zero_unpaired", true, false)

enum tr_pair_loss {
    TR_PAIR_NONE, /* as an option: that of the task */
#define X(id, word, needs_ref, is_mean) TR_PAIR_##id,
    TR_PAIR_LOSS_LIST(X)
#undef X
        TR_PAIR_COUNT
};

/* How the distance from the reference is measured (f-DPO): a loss of the difference reads f'(ratio) of each answer in
 * place of the logarithm of its ratio. X(enum, word) */
#define TR_DIVERGENCE_LIST(X)                                                                                          \
    X(REVERSE_KL, "reverse_kl")                                                                                        \
    X(FORWARD_KL, "forward_kl")                                                                                        \
    X(JS, "js_divergence")                                                                                             \
    X(ALPHA, "alpha_divergence")

enum tr_divergence {
#define X(id, word) TR_DIVERGENCE_##id,
    TR_DIVERGENCE_LIST(X)
#undef X
        TR_DIVERGENCE_COUNT
};

/* Is it the loss of one answer that is desirable or not? */
static inline bool tr_pair_is_labelled(enum tr_pair_loss loss)
{
    return loss >= TR_PAIR_KTO;
}

/* A loss and its weight in the sum. */
struct tr_pair_term {
    enum tr_pair_loss loss;
    float weight;
};
enum { TR_PAIR_TERMS = 5 }; /* four that are named, and rpo_alpha */

/* What a run trains pairs, or answers with labels, with. */
struct tr_pair_rule {
    struct tr_pair_term term[TR_PAIR_TERMS]; /* NONE ends the list; the first is NONE: it trains no pairs */
    float beta, label_smoothing, gamma;
    enum tr_divergence divergence;
    float alpha;        /* of alpha_divergence */
    float tau;          /* of discopop */
    float weight[2];    /* of labels: of a desirable answer, and of an undesirable one */
    bool weighs_tokens; /* losses with a reference read log-probabilities whose tokens have weights (LD-DPO) */
    bool is_matched;    /* it has a loss of transport */
    bool weighs_pairs;  /* the loss of a pair is weighed by how likely the model finds its answers (WPO) */
};

static inline bool tr_pair_is_on(const struct tr_pair_rule *k)
{
    return k->term[0].loss != TR_PAIR_NONE;
}

/* The loss of transport of a rule: it compares each answer with one of another pair of the batch. NONE: it has none. */
static inline enum tr_pair_loss tr_pair_transport(const struct tr_pair_rule *k)
{
    for (int i = 0; i < TR_PAIR_TERMS && k->term[i].loss != TR_PAIR_NONE; i++)
        if (k->term[i].loss == TR_PAIR_AOT || k->term[i].loss == TR_PAIR_AOT_UNPAIRED)
            return k->term[i].loss;
    return TR_PAIR_NONE;
}

/* Answers with labels have one loss. */
static inline bool tr_pair_has_labels(const struct tr_pair_rule *k)
{
    return tr_pair_is_labelled(k->term[0].loss);
}

#endif
