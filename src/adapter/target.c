/* target.c - which modules an adapter changes: PEFT's rules, in PEFT's order.
 *
 * exclude_modules wins; then what modules_to_save holds is out; then target_modules: an expression of the whole name,
 * or a list of names and suffixes, where layers_to_transform counts for suffixes only. A test compares all of it with
 * PEFT itself (tests/peft). Beyond PEFT, a name that matches nothing is an error and not silence, because a misspelt
 * target trains the wrong adapter for days.
 */
#include "adapter/adapter_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool in_list(const struct tr_words *list, const char *name)
{
    for (size_t i = 0; i < list->n; i++)
        if (tr_module_ends_with(name, list->item[i]))
            return true;
    return false;
}

static enum tr_status any_match(const struct pattern *p, size_t n, const char *name, bool *out)
{
    enum tr_status st = TR_OK;
    *out = false;
    for (size_t i = 0; st == TR_OK && !*out && i < n; i++)
        st = tr_adapter_pattern_match(&p[i], name, out, NULL);
    return st;
}

/* exclude_modules and modules_to_save */
static enum tr_status is_out(const struct tr_adapter *a, const char *name, bool *out)
{
    if (a->exclude_is_regex)
        TR_PASS(any_match(a->regexes->exclude, a->regexes->n_exclude, name, out));
    else
        *out = in_list(&a->exclude, name);
    if (!*out)
        TR_PASS(any_match(a->regexes->saved, a->regexes->n_saved, name, out));
    return TR_OK;
}

/* The first number behind two parts of a name ("model.layers.3.": 3); -1: there is none. */
static int64_t first_number(const char *name)
{
    int part = 0;
    for (const char *p = name;; part++) {
        size_t n = strcspn(p, "."), n_digits = strspn(p, "0123456789");
        if (p[n] == 0)
            return -1;
        if (part >= 2 && n > 0 && n_digits == n && n <= 9)
            return strtoll(p, NULL, 10);
        p += n + 1;
    }
}

static enum tr_status layer_of(const struct tr_adapter *a, const char *name, int64_t *out)
{
    enum tr_status st = TR_OK;
    bool is_match = false;
    *out = -1;
    if (a->layers_pattern.n == 0)
        *out = first_number(name);
    for (size_t i = 0; st == TR_OK && !is_match && i < a->regexes->n_layer; i++)
        st = tr_adapter_pattern_match(&a->regexes->layer[i], name, &is_match, out);
    return st;
}

/* A list of names: one that is written out is a target on any layer, a suffix only on layers_to_transform. */
static enum tr_status match_list(const struct tr_adapter *a, const struct tr_words *list, const char *name, bool *out)
{
    for (size_t i = 0; i < list->n; i++)
        if (strcmp(list->item[i], name) == 0) {
            *out = true;
            return TR_OK;
        }
    *out = in_list(list, name);
    if (!*out || a->n_layers == 0)
        return TR_OK;
    int64_t layer;
    enum tr_status st = layer_of(a, name, &layer);
    *out = false;
    for (size_t i = 0; i < a->n_layers; i++)
        *out = *out || a->layer[i] == layer;
    return st;
}

/* PEFT's default of the family, as a list. */
static enum tr_status match_family(const struct tr_adapter *a, const struct tr_model *m, const char *name, bool *out)
{
    enum { FAMILY_MAX = 8 };
    const char *words = tr_adapter_family_targets(tr_arch_text(m->arch)->model_type), *item[FAMILY_MAX];
    char text[FAMILY_MAX][32];
    size_t n = 0;
    if (!words)
        return tr_fail(TR_USAGE, "PEFT has no default targets for %s; give lora_target_modules", m->arch->model_type);
    while (*(words += strspn(words, " "))) {
        TR_BUG_ON(n == FAMILY_MAX);
        (void)tr_format(text[n], sizeof text[n], "%.*s", (int)strcspn(words, " "), words);
        item[n] = text[n];
        n++;
        words += strcspn(words, " ");
    }
    return match_list(a, &(struct tr_words){ .item = item, .n = n }, name, out);
}

static enum tr_status is_targeted(const struct tr_adapter *a, const struct tr_model *m, const char *name,
                                  bool is_linear, bool is_head, bool *out)
{
    if (a->is_all_linear) {
        *out = is_linear && !is_head;
        return TR_OK;
    }
    if (a->is_regex)
        return any_match(a->regexes->target, a->regexes->n_target, name, out);
    if (a->target.n == 0)
        return match_family(a, m, name, out);
    return match_list(a, &a->target, name, out);
}

/* modules_to_save takes a module whose name, or the name of one that holds it, ends with a text of the list: PEFT asks
 * for no dot in front here. */
bool tr_adapter_is_saved(const struct tr_adapter *a, const char *name)
{
    char part[TR_NAME_MAX];
    (void)tr_format(part, sizeof part, "%s", name);
    for (;;) {
        size_t n = strlen(part);
        for (size_t i = 0; i < a->saved.n; i++) {
            size_t n_text = strlen(a->saved.item[i]);
            if (n_text <= n && strcmp(part + n - n_text, a->saved.item[i]) == 0)
                return true;
        }
        char *dot = strrchr(part, '.');
        if (!dot)
            return false;
        *dot = 0;
    }
}

/* The value of the first key that matches. */
static enum tr_status pattern_value(const struct tr_adapter_pattern *list, const struct pattern *p, size_t n,
                                    const char *name, double *value)
{
    enum tr_status st = TR_OK;
    bool is_match = false;
    for (size_t i = 0; st == TR_OK && !is_match && i < n; i++) {
        st = tr_adapter_pattern_match(&p[i], name, &is_match, NULL);
        if (is_match)
            *value = list[i].value;
    }
    return st;
}

enum tr_status tr_adapter_decide(const struct tr_adapter *a, const struct tr_model *m, const char *module,
                                 bool is_linear, bool is_embedding, bool is_head, struct tr_adapter_target *out)
{
    struct tr_adapter_target t = { .is_saved = tr_adapter_is_saved(a, module) };
    double r = (double)a->r, alpha = a->alpha;
    bool is_excluded = false;
    TR_PASS(tr_format(t.module, sizeof t.module, "%s", module));
    TR_PASS(is_out(a, module, &is_excluded));
    if (!is_excluded)
        TR_PASS(is_targeted(a, m, module, is_linear, is_head, &t.is_target));
    if (t.is_target && !is_linear && !is_embedding)
        return tr_fail(TR_USAGE,
                       "target_modules takes %s, which is neither a linear nor an embedding; name only these, or take "
                       "it out with exclude_modules",
                       module);
    if (t.is_target && t.is_saved)
        return tr_fail(TR_USAGE, "%s is a target and in modules_to_save; drop one of them", module);
    if (t.is_target) {
        TR_PASS(pattern_value(a->rank_pattern, a->regexes->rank, a->regexes->n_rank, module, &r));
        TR_PASS(pattern_value(a->alpha_pattern, a->regexes->alpha, a->regexes->n_alpha, module, &alpha));
        t.r = (int64_t)r;
        t.scale = a->use_rslora ? alpha / sqrt(r) : alpha / r;
    }
    t.trains_bias = a->bias == TR_LORA_BIAS_ALL || (a->bias == TR_LORA_BIAS_ONLY && t.is_target);
    *out = t;
    return TR_OK;
}
