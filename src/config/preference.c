/* preference.c - what pairs, and answers with labels, are trained with: the options of it as one rule, and what must
 * hold between them. A loss is a sum of terms, each with a weight; rpo_alpha is one more term. */
#include "config/config_impl.h"

static enum tr_pair_loss loss_of_task(enum tr_task task)
{
    static const enum tr_pair_loss losses[] = {
        [TR_TASK_SFT] = TR_PAIR_NONE,    [TR_TASK_DPO] = TR_PAIR_SIGMOID, [TR_TASK_ORPO] = TR_PAIR_ORPO,
        [TR_TASK_SIMPO] = TR_PAIR_SIMPO, [TR_TASK_CPO] = TR_PAIR_CPO,     [TR_TASK_KTO] = TR_PAIR_KTO
    };
    return losses[task];
}

static bool needs_reference(enum tr_pair_loss loss)
{
    static const bool needs[TR_PAIR_COUNT] = {
#define X(id, word, needs_ref, is_mean) [TR_PAIR_##id] = needs_ref,
        TR_PAIR_LOSS_LIST(X)
#undef X
    };
    return needs[loss];
}

/* The loss of the first n bytes; NONE: "auto". */
static enum tr_pair_loss loss_of_word(const char *text, size_t n)
{
    static const char *const words[TR_PAIR_COUNT] = {
#define X(id, word, needs_ref, is_mean) [TR_PAIR_##id] = word,
        TR_PAIR_LOSS_LIST(X)
#undef X
    };
    for (int i = 1; i < TR_PAIR_COUNT; i++)
        if (strlen(words[i]) == n && strncmp(words[i], text, n) == 0)
            return (enum tr_pair_loss)i;
    return TR_PAIR_NONE;
}

/* "sigmoid:0.8,sft": the value was checked when it was read. Returns how many it names; at most TR_PAIR_TERMS - 1 are
 * stored. */
static int read_terms(const struct tr_config *cfg, struct tr_pair_term term[TR_PAIR_TERMS])
{
    int n = 0;
    for (const char *at = cfg->loss_type; at != NULL && *at != '\0'; at += *at == ',') {
        size_t n_word = strcspn(at, ":,"), n_item = strcspn(at, ",");
        double weight = 1;
        enum tr_pair_loss loss = loss_of_word(at, n_word);
        if (n_word < n_item)
            weight = strtod(at + n_word + 1, NULL);
        if (n < TR_PAIR_TERMS - 1)
            term[n] = (struct tr_pair_term){ loss != TR_PAIR_NONE ? loss : loss_of_task(cfg->task), (float)weight };
        n++;
        at += n_item;
    }
    return n;
}

struct tr_pair_rule tr_config_pair(const struct tr_config *cfg)
{
    struct tr_pair_rule k = { .label_smoothing = (float)cfg->label_smoothing,
                              .gamma = (float)cfg->simpo_gamma,
                              .divergence = cfg->f_divergence_type,
                              .alpha = (float)cfg->f_alpha_divergence_coef,
                              .tau = (float)cfg->discopop_tau,
                              .weighs_tokens = cfg->ld_alpha < 1,
                              .weighs_pairs = cfg->use_weighting,
                              .weight = { (float)cfg->desirable_weight, (float)cfg->undesirable_weight } };
    if (cfg->task == TR_TASK_SFT)
        return k;
    int n = read_terms(cfg, k.term);
    k.beta = (float)(cfg->beta >= 0 ? cfg->beta : k.term[0].loss == TR_PAIR_SIMPO ? 2 : 0.1);
    if (cfg->rpo_alpha > 0)
        k.term[n < TR_PAIR_TERMS ? n : TR_PAIR_TERMS - 1] = (struct tr_pair_term){ TR_PAIR_SFT, (float)cfg->rpo_alpha };
    k.is_matched = tr_pair_transport(&k) != TR_PAIR_NONE;
    return k;
}

bool tr_config_needs_reference(const struct tr_config *cfg)
{
    struct tr_pair_rule k = tr_config_pair(cfg);
    for (int i = 0; i < TR_PAIR_TERMS; i++)
        if (needs_reference(k.term[i].loss))
            return true;
    return false;
}

/* Does this loss read label_smoothing? */
static bool is_smoothed(enum tr_pair_loss loss)
{
    return loss == TR_PAIR_SIGMOID || loss == TR_PAIR_SIGMOID_NORM || loss == TR_PAIR_ROBUST ||
           loss == TR_PAIR_EXO_PAIR || loss == TR_PAIR_SIMPO || loss == TR_PAIR_CPO || loss == TR_PAIR_AOT ||
           loss == TR_PAIR_AOT_UNPAIRED;
}

/* Is it a function of the difference to a reference? Only there a divergence has a place. */
static bool is_of_difference(enum tr_pair_loss loss)
{
    return loss == TR_PAIR_SIGMOID || loss == TR_PAIR_SIGMOID_NORM || loss == TR_PAIR_ROBUST ||
           loss == TR_PAIR_EXO_PAIR || loss == TR_PAIR_HINGE || loss == TR_PAIR_IPO || loss == TR_PAIR_DISCOPOP;
}

static const char *word_of(enum tr_pair_loss loss)
{
    return tr_config_word("loss_type", (int)loss);
}

static bool has_term(const struct tr_pair_rule *k, enum tr_pair_loss loss)
{
    for (int i = 0; i < TR_PAIR_TERMS; i++)
        if (k->term[i].loss == loss)
            return true;
    return false;
}

/* Answers with labels have losses of their own, and pairs have the others. */
static void check_labels(struct loader *l, const struct tr_pair_rule *k)
{
    const struct tr_config *c = &l->c->pub;
    bool is_kto = c->task == TR_TASK_KTO;
    for (int i = 0; i < TR_PAIR_TERMS && k->term[i].loss != TR_PAIR_NONE; i++) {
        const char *loss = word_of(k->term[i].loss);
        bool is_labelled = tr_pair_is_labelled(k->term[i].loss), is_added = k->term[i].loss == TR_PAIR_SFT;
        if (is_kto && !is_labelled && !(is_added && c->rpo_alpha > 0))
            tr_loader_error(l, "loss_type %s is of pairs; task kto takes kto or apo_zero_unpaired", loss);
        else if (!is_kto && is_labelled)
            tr_loader_error(l, "loss_type %s is of answers with labels; use --task kto", loss);
        else if (is_labelled && i > 0)
            tr_loader_error(l, "loss_type %s: answers with labels have one loss; leave out all but one", c->loss_type);
    }
    if (is_kto && k->term[0].weight != 1)
        tr_loader_error(l,
                        "loss_type %s: the loss of task kto has no weight but desirable_weight and "
                        "undesirable_weight; write %s",
                        c->loss_type, word_of(k->term[0].loss));
    if (is_kto && c->rpo_alpha > 0)
        tr_loader_error(l, "rpo_alpha adds the loss of the chosen answer of a pair; leave it out with --task kto");
    if (!is_kto && (tr_loader_is_given(l, "desirable_weight") || tr_loader_is_given(l, "undesirable_weight")))
        tr_loader_notice(l, "desirable_weight and undesirable_weight have no effect without task kto");
    if (is_kto && !(c->desirable_weight > 0) && !(c->undesirable_weight > 0))
        tr_loader_error(l, "desirable_weight and undesirable_weight are both 0, so there is nothing to learn");
}

/* How many losses there are, and whether they are those of the task. */
static void check_terms(struct loader *l, const struct tr_pair_rule *k)
{
    const struct tr_config *c = &l->c->pub;
    struct tr_pair_term term[TR_PAIR_TERMS] = { 0 };
    const char *task = tr_config_word("task", (int)c->task);
    int n = read_terms(c, term);
    if (n >= TR_PAIR_TERMS)
        tr_loader_error(l, "loss_type %s names %d losses; at most %d can be added", c->loss_type, n, TR_PAIR_TERMS - 1);
    if (c->task == TR_TASK_DPO || c->task == TR_TASK_KTO)
        return;
    if (n > 1 || term[0].weight != 1 || k->term[0].loss != loss_of_task(c->task))
        tr_loader_error(l, "loss_type %s is not that of task %s; leave it out, or use --task dpo", c->loss_type, task);
}

/* Numbers that only some losses read. */
static void check_numbers(struct loader *l, const struct tr_pair_rule *k)
{
    const struct tr_config *c = &l->c->pub;
    const char *loss = word_of(k->term[0].loss);
    bool is_any_smoothed = false;
    for (int i = 0; i < TR_PAIR_TERMS && k->term[i].loss != TR_PAIR_NONE; i++) {
        is_any_smoothed |= is_smoothed(k->term[i].loss);
        bool has_no_score = k->term[i].loss == TR_PAIR_SFT && i > 0; /* it is added to those that have one */
        if (c->f_divergence_type != TR_DIVERGENCE_REVERSE_KL && !is_of_difference(k->term[i].loss) && !has_no_score)
            tr_loader_error(l, "loss_type %s has no f_divergence_type but reverse_kl; leave it out",
                            word_of(k->term[i].loss));
    }
    if (c->use_weighting && k->is_matched)
        tr_loader_error(l, "use_weighting weighs a pair, and loss_type %s takes pairs apart; leave out one of them",
                        word_of(tr_pair_transport(k)));
    if (has_term(k, TR_PAIR_AOT) && has_term(k, TR_PAIR_AOT_UNPAIRED))
        tr_loader_error(l, "loss_type %s sorts the answers in two ways; leave out aot or aot_unpaired", c->loss_type);
    if (has_term(k, TR_PAIR_EXO_PAIR) && !(c->label_smoothing > 0))
        tr_loader_error(l, "loss_type exo_pair needs a label_smoothing above 0, like 1e-3");
    if (has_term(k, TR_PAIR_ROBUST) && !(c->label_smoothing > 0))
        tr_loader_notice(l, "loss_type robust without label_smoothing is sigmoid");
    if (c->label_smoothing > 0 && !is_any_smoothed)
        tr_loader_error(l, "loss_type %s has no label_smoothing; leave it out", loss);
    if (tr_loader_is_given(l, "discopop_tau") && !has_term(k, TR_PAIR_DISCOPOP))
        tr_loader_notice(l, "discopop_tau has no effect with loss_type %s", loss);
    if (tr_loader_is_given(l, "f_alpha_divergence_coef") && c->f_divergence_type != TR_DIVERGENCE_ALPHA)
        tr_loader_notice(l, "f_alpha_divergence_coef has no effect without f_divergence_type alpha_divergence");
    if (c->ld_alpha < 1 && (c->task == TR_TASK_KTO || !tr_config_needs_reference(c)))
        tr_loader_error(l,
                        "ld_alpha weighs tokens of a pair that is compared with a reference; leave it out with %s %s",
                        c->task == TR_TASK_KTO ? "--task" : "loss_type", c->task == TR_TASK_KTO ? "kto" : loss);
    if (c->use_weighting && c->task == TR_TASK_KTO)
        tr_loader_error(l, "use_weighting weighs pairs of answers; leave it out with --task kto");
    if (c->ref_model && !tr_config_needs_reference(c))
        tr_loader_notice(l, "ref_model has no effect with loss_type %s", loss);
    if (tr_loader_is_given(l, "simpo_gamma") && !has_term(k, TR_PAIR_SIMPO))
        tr_loader_notice(l, "simpo_gamma has no effect with loss_type %s", loss);
}

void tr_loader_preference(struct loader *l)
{
    static const char *const only[] = { "loss_type",         "beta",
                                        "label_smoothing",   "simpo_gamma",
                                        "rpo_alpha",         "ref_model",
                                        "ld_alpha",          "use_weighting",
                                        "f_divergence_type", "f_alpha_divergence_coef",
                                        "discopop_tau",      "desirable_weight",
                                        "undesirable_weight" };
    struct tr_config *c = &l->c->pub;
    struct tr_pair_rule k = tr_config_pair(c);
    const char *word = tr_config_word("task", (int)c->task);
    for (size_t i = 0; c->task == TR_TASK_SFT && i < TR_COUNT_OF(only); i++)
        if (tr_loader_is_given(l, only[i]) && !tr_loader_is_default(l, only[i]))
            tr_loader_error(l, "%s is of preference training; add --task dpo, orpo, simpo, cpo or kto, or leave it out",
                            only[i]);
    if (c->use_dft_loss && (c->label_smoothing_factor > 0 || c->z_loss > 0))
        tr_loader_error(l, "use_dft_loss weighs the plain loss of a token; leave out %s",
                        c->z_loss > 0 ? "z_loss" : "label_smoothing_factor");
    if (c->use_dft_loss && c->loss_weights)
        tr_loader_error(l, "use_dft_loss and loss_weights both weigh the loss of a token; leave out one of them");
    if (c->task == TR_TASK_SFT)
        return;
    if (c->loss_weights)
        tr_loader_error(l, "loss_weights is of the loss of tokens; leave it out with --task %s", word);
    if (c->use_dft_loss)
        tr_loader_error(l, "use_dft_loss is of the loss of tokens; leave it out with --task %s", word);
    if (c->label_smoothing_factor > 0 || c->z_loss > 0)
        tr_loader_error(l, "%s is of the loss of tokens; leave it out with --task %s%s",
                        c->z_loss > 0 ? "z_loss" : "label_smoothing_factor", word,
                        c->z_loss > 0 ? "" : "; for pairs there is label_smoothing");
    check_labels(l, &k);
    check_terms(l, &k);
    check_numbers(l, &k);
}
