/* eval_sets.c - the named sets of eval_data, as transformers' eval_dataset may be a dict: each has a loss of its own.
 */
#include "config/config_impl.h"

#include <string.h>

/* What is behind the name of the set, in the names of this program and of TRL. */
static const struct {
    const char *name;
    enum tr_best_of of;
} metrics[] = {
    { "loss", TR_BEST_LOSS },
    { "acc", TR_BEST_ACC },
    { "acc_norm", TR_BEST_ACC_NORM },
    { "acc_bytes", TR_BEST_ACC_BYTES },
    { "rewards/accuracies", TR_BEST_REWARD_ACCURACY },
    { "rewards_accuracy", TR_BEST_REWARD_ACCURACY },
    { "rewards/margins", TR_BEST_MARGIN },
    { "rewards_margin", TR_BEST_MARGIN },
};

/* Does the metric mean the set, which may be NULL? transformers puts "eval_" in front where it is missing. */
static bool is_metric(const char *metric, const char *set, enum tr_best_of *of)
{
    size_t n = set ? strlen(set) : 0;
    metric += strncmp(metric, "eval_", 5) == 0 ? 5 : 0;
    if (set && (strncmp(metric, set, n) != 0 || metric[n++] != '_'))
        return false;
    for (size_t i = 0; i < TR_COUNT_OF(metrics); i++)
        if (strcmp(metric + n, metrics[i].name) == 0) {
            *of = metrics[i].of;
            return true;
        }
    return false;
}

/* Does the run measure it? */
static bool is_measured(const struct tr_config *cfg, enum tr_best_of of)
{
    return of == TR_BEST_LOSS || (of <= TR_BEST_ACC_BYTES         ? cfg->eval_choices != NULL
                                  : of == TR_BEST_REWARD_ACCURACY ? cfg->task != TR_TASK_SFT && cfg->task != TR_TASK_KTO
                                                                  : cfg->task != TR_TASK_SFT);
}

static enum tr_status list_sets(const struct tr_config *cfg, const char *name[TR_EVAL_SETS_MAX], size_t *n)
{
    const struct tr_data_list *l = &cfg->eval_data;
    for (size_t i = 0; i < l->n; i++) {
        size_t k = 0;
        if ((l->item[i].name == NULL) != (l->item[0].name == NULL))
            return tr_fail(TR_USAGE, "eval_data: %s has a name and %s has none; write NAME=PATH for all or for none",
                           l->item[l->item[0].name ? 0 : i].path, l->item[l->item[0].name ? i : 0].path);
        while (k < *n && name[k] && strcmp(name[k], l->item[i].name) != 0)
            k++;
        if (k == TR_EVAL_SETS_MAX)
            return tr_fail(TR_USAGE, "eval_data: %s is the name of more than %d sets; join some of them",
                           l->item[i].name, TR_EVAL_SETS_MAX);
        name[k] = l->item[i].name;
        *n = k == *n ? k + 1 : *n;
    }
    return TR_OK;
}

enum tr_status tr_config_eval_sets(const struct tr_config *cfg, const char *name[TR_EVAL_SETS_MAX], size_t *n,
                                   struct tr_best_rule *best)
{
    const char *metric = cfg->metric_for_best_model ? cfg->metric_for_best_model : "eval_loss";
    char shown[80];
    name[0] = NULL;
    *n = 0;
    *best = (struct tr_best_rule){ 0 };
    TR_PASS(list_sets(cfg, name, n));
    *n = *n ? *n : 1; /* eval_split */
    bool is_known = is_metric(metric, NULL, &best->of);
    for (size_t i = 0; i < *n && name[i] && !is_known; i++)
        if ((is_known = is_metric(metric, name[i], &best->of)))
            best->i_set = i;
    if (is_known && is_measured(cfg, best->of))
        return TR_OK;
    return tr_fail(TR_USAGE,
                   is_known
                       ? "metric_for_best_model %s: this run does not measure it; acc, acc_norm and acc_bytes need "
                         "--eval_choices, rewards/margins a --task of preferences, rewards/accuracies one of pairs"
                       : "metric_for_best_model %s: there is no such metric; write eval_loss, or eval_NAME_loss of "
                         "a set of --eval_data NAME=PATH; eval_acc, eval_acc_norm, eval_acc_bytes; "
                         "eval_rewards/accuracies, eval_rewards/margins",
                   tr_escape(metric, shown, sizeof shown));
}

enum tr_best_of tr_config_best_of(const struct tr_config *cfg)
{
    const char *name[TR_EVAL_SETS_MAX];
    size_t n;
    struct tr_best_rule best;
    TR_BUG_ON(tr_config_eval_sets(cfg, name, &n, &best) != TR_OK);
    return best.of;
}
