/* eval_sets.c - the named sets of eval_data, as transformers' eval_dataset may be a dict: each has a loss of its own.
 */
#include "config/config_impl.h"

#include <string.h>

/* Does the metric mean the set? transformers puts "eval_" in front where it is missing. */
static bool is_metric(const char *metric, const char *set)
{
    size_t n = strlen(set);
    metric += strncmp(metric, "eval_", 5) == 0 ? 5 : 0;
    return strncmp(metric, set, n) == 0 && strcmp(metric + n, "_loss") == 0;
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
                                   size_t *i_best)
{
    const char *metric = cfg->metric_for_best_model ? cfg->metric_for_best_model : "eval_loss";
    char shown[80];
    name[0] = NULL;
    *n = *i_best = 0;
    TR_PASS(list_sets(cfg, name, n));
    *n = *n ? *n : 1; /* eval_split */
    if (strcmp(metric, "eval_loss") == 0 || strcmp(metric, "loss") == 0)
        return TR_OK;
    while (*i_best < *n && name[*i_best] && !is_metric(metric, name[*i_best]))
        ++*i_best;
    if (*i_best < *n && name[*i_best])
        return TR_OK;
    return tr_fail(TR_USAGE,
                   "metric_for_best_model %s: there is no such loss; write eval_loss, or eval_NAME_loss of a set of "
                   "--eval_data NAME=PATH",
                   tr_escape(metric, shown, sizeof shown));
}
