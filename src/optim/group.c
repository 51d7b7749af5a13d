/* group.c - groups of parameters with a learning rate or a weight decay of their own. */
#include "optim/optim.h"

static enum tr_status read_group(const cJSON *item, struct tr_param_group *out)
{
    const char *pattern = NULL;
    *out = (struct tr_param_group){ .lr_factor = 1 };
    if (!cJSON_IsObject(item))
        return tr_fail(TR_USAGE, "a group is not an object; write {\"pattern\": \"*norm*\", \"lr_factor\": 0.1}");
    for (const cJSON *key = item->child; key; key = key->next)
        if (strcmp(key->string, "pattern") != 0 && strcmp(key->string, "lr_factor") != 0 &&
            strcmp(key->string, "weight_decay") != 0)
            return tr_fail(TR_USAGE, "key %s is unknown; a group has pattern, lr_factor and weight_decay", key->string);
    TR_PASS(tr_json_str(item, "pattern", true, &pattern));
    TR_PASS(tr_format(out->pattern, sizeof out->pattern, "%s", pattern));
    TR_PASS(tr_json_real(item, "lr_factor", false, &out->lr_factor));
    out->has_decay = cJSON_HasObjectItem(item, "weight_decay");
    TR_PASS(tr_json_real(item, "weight_decay", false, &out->weight_decay));
    if (!(out->lr_factor >= 0) || !(out->weight_decay >= 0))
        return tr_fail(TR_USAGE, "group %s: lr_factor %g and weight_decay %g must not be negative", pattern,
                       out->lr_factor, out->weight_decay);
    return TR_OK;
}

enum tr_status tr_groups_load(const char *path, struct tr_param_groups *out)
{
    enum tr_status st = TR_OK;
    cJSON *list = NULL;
    const cJSON *item = NULL;
    *out = (struct tr_param_groups){ 0 };
    if (!path)
        return TR_OK;
    TR_TRY(tr_json_load(path, 1 << 20, &list));
    if (!cJSON_IsArray(list))
        TR_TRY(
            tr_fail(TR_USAGE, "%s: not a list of groups; write [{\"pattern\": \"*norm*\", \"lr_factor\": 0.1}]", path));
    out->group[0].lr_factor = 1;
    out->n = 1;
    cJSON_ArrayForEach(item, list)
    {
        if (out->n == TR_GROUPS_MAX)
            TR_TRY(tr_fail(TR_USAGE, "%s: more than %d groups; join some of them", path, TR_GROUPS_MAX - 1));
        if ((st = read_group(item, &out->group[out->n])) != TR_OK)
            TR_TRY(tr_fail_at(st, "%s: ", path));
        out->n++;
    }
out:
    cJSON_Delete(list);
    return st;
}

enum tr_status tr_groups_add(struct tr_param_groups *g, const char *pattern, int n_dims, double lr_factor)
{
    if (g->n == TR_GROUPS_MAX)
        return tr_fail(TR_USAGE,
                       "optim_groups: no room for the groups of loraplus_lr_ratio; join some of the %d groups",
                       TR_GROUPS_MAX - 1);
    if (g->n == 0)
        g->group[g->n++] = (struct tr_param_group){ .lr_factor = 1 };
    struct tr_param_group *to = &g->group[g->n++];
    *to = (struct tr_param_group){ .n_dims = n_dims, .lr_factor = lr_factor };
    return tr_format(to->pattern, sizeof to->pattern, "%s", pattern);
}

int tr_param_group_of(const struct tr_param_groups *g, const char *name, int n_dims)
{
    for (int i = 1; i < g->n; i++)
        if ((g->group[i].n_dims == 0 || g->group[i].n_dims == n_dims) && tr_pattern_matches(g->group[i].pattern, name))
            return i;
    return 0;
}

void tr_group_values(const struct tr_param_groups *g, int group, const float values[TR_STEP_COUNT],
                     float out[TR_STEP_COUNT])
{
    memcpy(out, values, TR_STEP_COUNT * sizeof *out);
    if (group == 0)
        return;
    out[TR_STEP_LR] = (float)(g->group[group].lr_factor * (double)values[TR_STEP_LR]);
    if (g->group[group].has_decay)
        out[TR_STEP_DECAY] = (float)g->group[group].weight_decay;
}
