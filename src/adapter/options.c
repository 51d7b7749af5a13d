/* options.c - the adapter that the options of a run ask for. */
#include "adapter/adapter_impl.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* A list, or one expression: a name has no operators. The list was cut at commas, which an expression may have. */
static enum tr_status take_names(const struct tr_words *w, struct tr_words *out, bool *is_regex)
{
    struct tr_str whole = { 0 };
    enum tr_status st = TR_OK;
    for (size_t i = 0; i < w->n; i++) {
        *is_regex = *is_regex || strpbrk(w->item[i], "\\^$*+?()[]{}|");
        tr_str_addf(&whole, "%s%s", i ? "," : "", w->item[i]);
    }
    TR_TRY(tr_str_check(&whole, "a list of names"));
    if (*is_regex)
        TR_TRY(tr_adapter_words((const char *const[]){ whole.p }, 1, out));
    else if (w->n)
        TR_TRY(tr_adapter_words(w->item, w->n, out));
out:
    tr_str_release(&whole);
    return st;
}

/* all-linear (LLaMA-Factory: all), auto = PEFT's default of the family, or names. */
static enum tr_status take_targets(const struct tr_config *cfg, struct tr_adapter *a)
{
    const struct tr_words *w = &cfg->lora_target_modules;
    const char *first = w->n == 1 ? w->item[0] : "";
    a->is_all_linear = w->n == 0 || strcasecmp(first, "all-linear") == 0 || strcmp(first, "all") == 0;
    if (a->is_all_linear || strcmp(first, "auto") == 0)
        return TR_OK;
    return take_names(w, &a->target, &a->is_regex);
}

static enum tr_status take_ints(const struct tr_words *w, const char *option, int64_t **out, size_t *n_out)
{
    if (w->n == 0)
        return TR_OK;
    int64_t *p = *out = calloc(w->n, sizeof *p);
    if (!p)
        return tr_fail(TR_NOMEM, "no memory for %s", option);
    for (size_t i = 0; i < w->n; i++)
        if (tr_parse_int(w->item[i], 0, INT32_MAX, &p[i]) != TR_OK)
            return tr_fail_at(TR_USAGE, "%s: ", option);
    *n_out = w->n;
    return TR_OK;
}

/* q_proj=16, ... */
static enum tr_status take_pattern(const struct tr_words *w, const char *option, struct tr_adapter_pattern **out,
                                   size_t *n_out)
{
    if (w->n == 0)
        return TR_OK;
    struct tr_adapter_pattern *p = *out = calloc(w->n, sizeof *p);
    if (!p)
        return tr_fail(TR_NOMEM, "no memory for %s", option);
    for (size_t i = 0; i < w->n; i++) {
        const char *eq = strrchr(w->item[i], '=');
        char shown[96];
        double value = 0;
        if (!eq || eq == w->item[i] || tr_parse_real(eq + 1, &value) != TR_OK)
            return tr_fail(TR_USAGE, "%s: \"%s\" is not NAME=NUMBER", option,
                           tr_escape(w->item[i], shown, sizeof shown));
        p[i] = (struct tr_adapter_pattern){ strndup(w->item[i], (size_t)(eq - w->item[i])), value };
        if (!p[i].key)
            return tr_fail(TR_NOMEM, "no memory for %s", option);
        *n_out = i + 1;
    }
    return TR_OK;
}

static enum tr_status take_lists(const struct tr_config *cfg, struct tr_adapter *a)
{
    TR_PASS(take_targets(cfg, a));
    TR_PASS(take_names(&cfg->exclude_modules, &a->exclude, &a->exclude_is_regex));
    if (cfg->lora_modules_to_save.n)
        TR_PASS(tr_adapter_words(cfg->lora_modules_to_save.item, cfg->lora_modules_to_save.n, &a->saved));
    if (cfg->layers_pattern.n)
        TR_PASS(tr_adapter_words(cfg->layers_pattern.item, cfg->layers_pattern.n, &a->layers_pattern));
    TR_PASS(take_ints(&cfg->layers_to_transform, "layers_to_transform", &a->layer, &a->n_layers));
    TR_PASS(tr_adapter_take_tokens(&cfg->trainable_token_indices, a));
    TR_PASS(take_pattern(&cfg->rank_pattern, "rank_pattern", &a->rank_pattern, &a->n_rank_patterns));
    return take_pattern(&cfg->alpha_pattern, "alpha_pattern", &a->alpha_pattern, &a->n_alpha_patterns);
}

enum tr_status tr_adapter_from_options(const struct tr_config *cfg, struct tr_adapter **out)
{
    enum tr_status st = TR_OK;
    struct tr_adapter *a = NULL;
    if (cfg->finetuning_type == TR_TUNING_LORA) {
        a = calloc(1, sizeof *a);
        if (!a)
            return tr_fail(TR_NOMEM, "no memory for an adapter");
        a->r = cfg->lora_r;
        a->alpha = cfg->lora_alpha < 0 ? 2 * (double)cfg->lora_r : cfg->lora_alpha;
        a->dropout = cfg->lora_dropout;
        a->use_rslora = cfg->use_rslora;
        a->use_dora = cfg->use_dora;
        a->has_b_bias = cfg->lora_b_bias;
        a->ensures_tying = cfg->ensure_weight_tying;
        a->may_untie = cfg->untie;
        a->is_lenient = cfg->peft_rules;
        a->bias = cfg->lora_bias;
        a->loraplus_ratio = cfg->loraplus_lr_ratio;
        TR_TRY(tr_adapter_parse_init(cfg->init_lora_weights, false, a));
        TR_TRY(take_lists(cfg, a));
        const char *base = cfg->model_base ? cfg->model_base : cfg->model;
        if (base && !(a->base = strdup(base)))
            TR_TRY(tr_fail(TR_NOMEM, "no memory for the name of the base"));
        TR_TRY(tr_adapter_check(a));
    }
out:
    if (st == TR_OK)
        *out = a;
    else
        tr_adapter_close(a);
    return st;
}

/* Options that describe a new adapter. One that continues is what its directory says. */
static const char *const described[] = {
    "lora_r",
    "lora_alpha",
    "lora_target_modules",
    "lora_modules_to_save",
    "use_rslora",
    "use_dora",
    "lora_bias",
    "lora_b_bias",
    "init_lora_weights",
    "rank_pattern",
    "alpha_pattern",
    "exclude_modules",
    "layers_to_transform",
    "layers_pattern",
    "trainable_token_indices",
    "ensure_weight_tying",
    "untie",
};

enum tr_status tr_adapter_open(const struct tr_config *cfg, struct tr_adapter **out)
{
    if (!tr_dir_has(cfg->model, TR_ADAPTER_CONFIG))
        return tr_adapter_from_options(cfg, out);
    if (cfg->finetuning_type != TR_TUNING_LORA && tr_config_is_set(cfg, "finetuning_type"))
        return tr_fail(
            TR_USAGE,
            "finetuning_type %s: %s is an adapter; merge it first, or leave finetuning_type out to continue it",
            tr_config_word("finetuning_type", (int)cfg->finetuning_type), cfg->model);
    for (size_t i = 0; i < TR_COUNT_OF(described); i++)
        if (tr_config_is_set(cfg, described[i]))
            return tr_fail(TR_USAGE, "%s: the adapter in %s is continued as its adapter_config.json says; leave it out",
                           described[i], cfg->model);
    TR_PASS(tr_adapter_read(cfg->model, out));
    if (tr_config_is_set(cfg, "lora_dropout"))
        (*out)->dropout = cfg->lora_dropout;
    if (tr_config_is_set(cfg, "loraplus_lr_ratio"))
        (*out)->loraplus_ratio = cfg->loraplus_lr_ratio;
    return TR_OK;
}
