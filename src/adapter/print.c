/* print.c - adapter_config.json as PEFT writes it: every key, sorted, indented by two, numbers as Python prints them.
 *
 * A file that was read keeps what it says; keys of this PEFT version that it lacks are added. target_modules is written
 * as PEFT does: all-linear and the default of a family become lists, and 20 or more names the shortest suffixes that no
 * other module has.
 */
#include "adapter/adapter_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- JSON as Python prints it ---- */

static int by_key(const void *a, const void *b)
{
    return strcmp((*(const cJSON *const *)a)->string, (*(const cJSON *const *)b)->string);
}

static void print_number(double x, bool is_float, struct tr_str *out)
{
    char text[40];
    if (x == floor(x) && fabs(x) < 1e15) {
        tr_str_addf(out, is_float ? "%.1f" : "%.0f", x);
        return;
    }
    for (int digits = 1; digits <= 17; digits++) {
        (void)tr_format(text, sizeof text, "%.*g", digits, x);
        if (strtod(text, NULL) == x)
            break;
    }
    tr_str_addf(out, "%s", text);
}

/* Python's json.dumps writes characters beyond ASCII as \uXXXX, in pairs above 16 bits. */
static void print_text(const char *text, struct tr_str *out)
{
    struct tr_str s = { 0 };
    tr_str_json(&s, text);
    for (size_t i = 0; tr_str_ok(&s) && i < s.n;) {
        size_t len = tr_utf8_len(s.p + i, s.n - i);
        if (len < 2) {
            tr_str_add(out, s.p + i++, 1);
            continue;
        }
        uint32_t c = (unsigned char)s.p[i] & (0xffu >> (len + 1));
        for (size_t k = 1; k < len; k++)
            c = c << 6 | ((unsigned char)s.p[i + k] & 0x3fu);
        if (c >= 0x10000)
            tr_str_addf(out, "\\u%04x\\u%04x", 0xd800 + ((c - 0x10000) >> 10), 0xdc00 + ((c - 0x10000) & 0x3ff));
        else
            tr_str_addf(out, "\\u%04x", c);
        i += len;
    }
    if (!tr_str_ok(&s)) /* the failure of a copy is that of the text */
        *out = (struct tr_str){ .n_cap = SIZE_MAX };
    tr_str_release(&s);
}

static enum tr_status print_value(const cJSON *v, int depth, struct tr_str *out);

/* The first key of a pattern that matches counts, so another order would be another adapter. PEFT sorts here too, and
 * reads back what it did not train. */
static bool keeps_order(const cJSON *v)
{
    return v->string && (strcmp(v->string, "rank_pattern") == 0 || strcmp(v->string, "alpha_pattern") == 0);
}

static enum tr_status print_children(const cJSON *v, int depth, struct tr_str *out)
{
    enum tr_status st = TR_OK;
    size_t n = 0, i = 0;
    for (const cJSON *x = v->child; x; x = x->next)
        n++;
    const cJSON **item = calloc(n + 1, sizeof *item);
    if (!item)
        return tr_fail(TR_NOMEM, "no memory for adapter_config.json");
    for (const cJSON *x = v->child; x; x = x->next)
        item[i++] = x;
    if (cJSON_IsObject(v) && !keeps_order(v))
        qsort(item, n, sizeof *item, by_key);
    for (i = 0; i < n; i++) {
        tr_str_addf(out, "%s\n%*s", i ? "," : "", 2 * (depth + 1), "");
        if (cJSON_IsObject(v)) {
            print_text(item[i]->string, out);
            tr_str_addf(out, ": ");
        }
        TR_TRY(print_value(item[i], depth + 1, out));
    }
    tr_str_addf(out, "\n%*s", 2 * depth, "");
out:
    free(item);
    return st;
}

/* lora_dropout is a float of PEFT's, which a tree of cJSON does not remember. */
static enum tr_status print_value(const cJSON *v, int depth, struct tr_str *out)
{
    bool is_list = cJSON_IsArray(v);
    if (cJSON_IsNumber(v)) {
        print_number(v->valuedouble, depth == 1 && v->string && strcmp(v->string, "lora_dropout") == 0, out);
    } else if (cJSON_IsString(v)) {
        print_text(v->valuestring, out);
    } else if (cJSON_IsBool(v)) {
        tr_str_addf(out, "%s", cJSON_IsTrue(v) ? "true" : "false");
    } else if (is_list || cJSON_IsObject(v)) {
        tr_str_addf(out, is_list ? "[" : "{");
        if (v->child)
            TR_PASS(print_children(v, depth, out));
        tr_str_addf(out, is_list ? "]" : "}");
    } else {
        tr_str_addf(out, "null");
    }
    return TR_OK;
}

/* ---- the shortest suffixes ---- */

enum { SHORTEN_FROM = 20 }; /* names */

/* Order of PEFT: by the list of suffixes, the shortest first. */
static int by_suffixes(const void *va, const void *vb)
{
    const char *a = *(const char *const *)va, *b = *(const char *const *)vb;
    const char *p = a + strlen(a), *q = b + strlen(b);
    int diff = 0;
    while (!diff && p > a && q > b) {
        do
            p--;
        while (p > a && p[-1] != '.');
        do
            q--;
        while (q > b && q[-1] != '.');
        diff = strcmp(p, q);
    }
    return diff ? diff : (p > a) - (q > b);
}

static bool is_other_suffix(const struct module_list *l, const struct tr_words *target, const char *suffix)
{
    for (size_t i = 0; i < l->n + l->n_other; i++) {
        const char *name = i < l->n ? l->module[i].target.module : l->other[i - l->n];
        if (!tr_module_ends_with(name, suffix))
            continue;
        bool is_target = false;
        for (size_t k = 0; k < target->n && !is_target; k++)
            is_target = tr_module_ends_with(name, target->item[k]);
        if (!is_target)
            return true;
    }
    return false;
}

static bool has_word(const char *const *item, size_t n, const char *text)
{
    return tr_row_find(item, n, sizeof *item, text) != NULL;
}

static bool is_covered(const char *const *item, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(name, item[i]) != 0 && tr_module_ends_with(name, item[i]))
            return true;
    return false;
}

/* Replaces item[0 .. *n] by suffixes that separate them from all other modules, when these are fewer. */
static enum tr_status shorten(const struct module_list *l, const char **item, size_t *n)
{
    const struct tr_words target = { .item = item, .n = *n };
    const char **found = calloc(*n + 1, sizeof *found);
    size_t n_found = 0;
    if (!found)
        return tr_fail(TR_NOMEM, "no memory for %zu names", *n);
    qsort(item, *n, sizeof *item, by_suffixes);
    for (size_t i = 0; i < *n; i++) {
        bool is_done = is_covered(found, n_found, item[i]);
        for (const char *p = item[i] + strlen(item[i]); !is_done && p > item[i];) {
            do
                p--;
            while (p > item[i] && p[-1] != '.');
            if (has_word(found, n_found, p) || is_other_suffix(l, &target, p))
                continue;
            found[n_found++] = p;
            is_done = true;
        }
    }
    if (n_found && n_found < *n) {
        memcpy(item, found, n_found * sizeof *item);
        *n = n_found;
    }
    free(found);
    return TR_OK;
}

/* ---- the keys ---- */

/* Of a model of text and images: PEFT would find the names in its other parts too, so it gets an expression. */
static cJSON *text_targets(const struct tr_model *m, const char *const *item, size_t n)
{
    const char *base = m->arch->base_prefix;
    struct tr_str s = { 0 };
    tr_str_addf(&s, "(");
    for (const char *p = base; *p; p++)
        tr_str_addf(&s, *p == '.' ? "\\." : "%c", *p);
    tr_str_addf(&s, "(.*\\.)?)?(");
    for (size_t i = 0; i < n; i++) {
        const char *p = strncmp(item[i], base, strlen(base)) == 0 ? item[i] + strlen(base) : item[i];
        tr_str_addf(&s, i ? "|" : "");
        for (; *p; p++)
            tr_str_addf(&s, *p == '.' ? "\\." : "%c", *p);
    }
    tr_str_addf(&s, ")");
    cJSON *out = tr_str_ok(&s) ? cJSON_CreateString(s.p) : NULL;
    tr_str_release(&s);
    return out;
}

/* The same where an expression cannot say it: with layers_to_transform, which PEFT takes with a list only, and counts
 * for suffixes only, and with an expression of the user's, which may match in other parts. The whole names. */
static enum tr_status whole_targets(const struct tr_adapter *a, const struct tr_model *m, cJSON **out)
{
    struct tr_adapter_choice c;
    cJSON *list = cJSON_CreateArray();
    enum tr_status st = tr_adapter_choose(a, m, &c);
    if (st != TR_OK) {
        cJSON_Delete(list);
        return st;
    }
    for (size_t i = 0; list && i < c.n; i++) {
        cJSON *name = c.module[i].target.is_target ? cJSON_CreateString(c.module[i].target.module) : NULL;
        if (c.module[i].target.is_target && !(name && cJSON_AddItemToArray(list, name))) {
            cJSON_Delete(name);
            cJSON_Delete(list);
            list = NULL;
        }
    }
    free(c.module);
    *out = list;
    return TR_OK;
}

/* What target_modules becomes: NULL with TR_OK is out of memory of cJSON. */
static enum tr_status target_json(const struct tr_adapter *a, const struct tr_model *m, cJSON **out)
{
    enum tr_status st = TR_OK;
    struct module_list l = { 0 };
    const char **item = NULL;
    char *words = NULL;
    size_t n = 0;
    if (m->arch->wrapper && (a->n_layers > 0 || a->is_regex))
        return whole_targets(a, m, out);
    if (a->is_regex) {
        *out = cJSON_CreateString(a->target.item[0]);
        return TR_OK;
    }
    TR_TRY(tr_adapter_list(m, &l));
    TR_TRY(TR_ALLOC(item, l.n + a->target.n + 16, "the target modules"));
    for (size_t i = 0; a->is_all_linear && i < l.n; i++)
        if (l.module[i].kind == TR_MODULE_LINEAR || l.module[i].kind == TR_MODULE_CONV1D)
            item[n++] = l.module[i].target.module;
    for (size_t i = 0; !a->is_all_linear && i < a->target.n; i++)
        if (!has_word(item, n, a->target.item[i]))
            item[n++] = a->target.item[i];
    const char *family = n == 0 ? tr_adapter_family_targets(tr_arch_text(m->arch)->model_type) : NULL;
    if (family && !(words = strdup(family)))
        TR_TRY(tr_fail(TR_NOMEM, "no memory for the target modules"));
    char *rest = NULL;
    for (char *w = words ? strtok_r(words, " ", &rest) : NULL; w; w = strtok_r(NULL, " ", &rest))
        item[n++] = w;
    if (n >= SHORTEN_FROM)
        TR_TRY(shorten(&l, item, &n));
    qsort(item, n, sizeof *item, tr_by_text);
    *out = m->arch->wrapper ? text_targets(m, item, n) : cJSON_CreateStringArray(item, (int)n);
out:
    free(words);
    free(item);
    tr_adapter_list_release(&l);
    return st;
}

/* PEFT says true when the last linear that it adapts stores its matrix (in, out). */
static enum tr_status last_is_conv1d(const struct tr_adapter *a, const struct tr_model *m, bool *out)
{
    struct tr_adapter_choice c;
    TR_PASS(tr_adapter_choose(a, m, &c));
    *out = false;
    for (size_t i = 0; i < c.n; i++)
        if (c.module[i].target.is_target && c.module[i].kind != TR_MODULE_EMBEDDING)
            *out = c.module[i].kind == TR_MODULE_CONV1D;
    free(c.module);
    return TR_OK;
}

/* Keys that an adapter made from options has, as JSON, and that a file that lacks them gets. */
static const struct {
    const char *key, *value;
} defaults[] = {
    { "alora_invocation_tokens", "null" },
    { "arrow_config", "null" },
    { "auto_mapping", "null" },
    { "base_model_name_or_path", "null" },
    { "bias", "\"none\"" },
    { "corda_config", "null" },
    { "ensure_weight_tying", "false" },
    { "eva_config", "null" },
    { "exclude_modules", "null" },
    { "init_lora_weights", "true" },
    { "kasa_config", "null" },
    { "layer_replication", "null" },
    { "layers_pattern", "null" },
    { "layers_to_transform", "null" },
    { "loftq_config", "{}" },
    { "lora_alpha", "8" },
    { "lora_bias", "false" },
    { "lora_ga_config", "null" },
    { "megatron_config", "null" },
    { "megatron_core", "\"megatron.core\"" },
    { "modules_to_save", "null" },
    { "monteclora_config", "null" },
    { "peft_type", "\"LORA\"" },
    { "qalora_group_size", "16" },
    { "r", "8" },
    { "rank_pattern", "{}" },
    { "alpha_pattern", "{}" },
    { "revision", "null" },
    { "target_parameters", "null" },
    { "task_type", "\"CAUSAL_LM\"" },
    { "trainable_token_indices", "null" },
    { "use_bdlora", "null" },
    { "use_dora", "false" },
    { "use_qalora", "false" },
    { "use_rslora", "false" },
    { "velora_config", "null" },
};

/* Takes v over; NULL: out of memory. */
static enum tr_status set(cJSON *obj, const char *key, cJSON *v)
{
    cJSON_DeleteItemFromObjectCaseSensitive(obj, key);
    if (v && cJSON_AddItemToObject(obj, key, v))
        return TR_OK;
    cJSON_Delete(v);
    return tr_fail(TR_NOMEM, "no memory for adapter_config.json");
}

static cJSON *words_json(const struct tr_words *w, bool is_text)
{
    if (w->n == 0)
        return cJSON_CreateNull();
    return is_text ? cJSON_CreateString(w->item[0]) : cJSON_CreateStringArray(w->item, (int)w->n);
}

static cJSON *ints_json(const int64_t *v, size_t n)
{
    cJSON *list = n ? cJSON_CreateArray() : cJSON_CreateNull();
    for (size_t i = 0; list && i < n; i++)
        if (!cJSON_AddItemToArray(list, cJSON_CreateNumber((double)v[i]))) {
            cJSON_Delete(list);
            list = NULL;
        }
    return list;
}

static cJSON *pattern_json(const struct tr_adapter_pattern *p, size_t n, double factor)
{
    cJSON *obj = cJSON_CreateObject();
    for (size_t i = 0; obj && i < n; i++)
        if (!cJSON_AddNumberToObject(obj, p[i].key, p[i].value * factor)) {
            cJSON_Delete(obj);
            obj = NULL;
        }
    return obj;
}

static cJSON *init_json(const struct tr_adapter *a)
{
    static const char *const words[] = { [TR_ADAPTER_GAUSSIAN] = "gaussian",
                                         [TR_ADAPTER_ORTHOGONAL] = "orthogonal",
                                         [TR_ADAPTER_PISSA] = "pissa",
                                         [TR_ADAPTER_OLORA] = "olora" };
    char text[40];
    if (a->init == TR_ADAPTER_KAIMING || a->init == TR_ADAPTER_DEFAULT)
        return cJSON_CreateBool(a->init == TR_ADAPTER_KAIMING);
    if (a->pissa_iterations == 0)
        return cJSON_CreateString(words[a->init]);
    (void)tr_format(text, sizeof text, "pissa_niter_%d", a->pissa_iterations);
    return cJSON_CreateString(text);
}

/* The keys of an adapter that was made from options. */
static enum tr_status set_from_options(const struct tr_adapter *a, cJSON *obj)
{
    static const char *const biases[] = {
        [TR_LORA_BIAS_NONE] = "none", [TR_LORA_BIAS_ALL] = "all", [TR_LORA_BIAS_ONLY] = "lora_only"
    };
    TR_PASS(set(obj, "r", cJSON_CreateNumber((double)a->r)));
    TR_PASS(set(obj, "lora_alpha", cJSON_CreateNumber(a->alpha)));
    TR_PASS(set(obj, "use_rslora", cJSON_CreateBool(a->use_rslora)));
    TR_PASS(set(obj, "use_dora", cJSON_CreateBool(a->use_dora)));
    TR_PASS(set(obj, "lora_bias", cJSON_CreateBool(a->has_b_bias)));
    TR_PASS(set(obj, "ensure_weight_tying", cJSON_CreateBool(a->ensures_tying)));
    TR_PASS(set(obj, "bias", cJSON_CreateString(biases[a->bias])));
    TR_PASS(set(obj, "init_lora_weights", init_json(a)));
    TR_PASS(set(obj, "exclude_modules", words_json(&a->exclude, a->exclude_is_regex)));
    TR_PASS(set(obj, "modules_to_save", words_json(&a->saved, false)));
    TR_PASS(set(obj, "layers_pattern", words_json(&a->layers_pattern, false)));
    TR_PASS(set(obj, "layers_to_transform", ints_json(a->layer, a->n_layers)));
    TR_PASS(set(obj, "trainable_token_indices", tr_adapter_tokens_json(a)));
    TR_PASS(set(obj, "rank_pattern", pattern_json(a->rank_pattern, a->n_rank_patterns, 1)));
    TR_PASS(set(obj, "alpha_pattern", pattern_json(a->alpha_pattern, a->n_alpha_patterns, 1)));
    return set(obj, "base_model_name_or_path", a->base ? cJSON_CreateString(a->base) : cJSON_CreateNull());
}

/* Twice the rank and the same scale: alpha / r, or alpha / sqrt(r). */
static enum tr_status set_converted(const struct tr_adapter *a, cJSON *obj)
{
    double factor = a->use_rslora ? sqrt(2) : 2;
    TR_PASS(set(obj, "r", cJSON_CreateNumber((double)(2 * a->r))));
    TR_PASS(set(obj, "lora_alpha", cJSON_CreateNumber(a->alpha * factor)));
    TR_PASS(set(obj, "rank_pattern", pattern_json(a->rank_pattern, a->n_rank_patterns, 2)));
    TR_PASS(set(obj, "alpha_pattern", pattern_json(a->alpha_pattern, a->n_alpha_patterns, factor)));
    return set(obj, "init_lora_weights", cJSON_CreateTrue());
}

enum tr_status tr_adapter_print(const struct tr_adapter *a, const struct tr_model *m, struct tr_str *out)
{
    enum tr_status st = TR_OK;
    bool is_conv1d = false;
    cJSON *targets = NULL, *obj = a->config ? cJSON_Duplicate(a->config, true) : cJSON_CreateObject();
    if (!obj)
        return tr_fail(TR_NOMEM, "no memory for adapter_config.json");
    cJSON_DeleteItemFromObjectCaseSensitive(obj, "runtime_config"); /* PEFT never writes it */
    for (size_t i = 0; i < TR_COUNT_OF(defaults); i++)
        if (!cJSON_GetObjectItemCaseSensitive(obj, defaults[i].key))
            TR_TRY(set(obj, defaults[i].key, cJSON_Parse(defaults[i].value)));
    if (!a->config)
        TR_TRY(set_from_options(a, obj));
    if (tr_adapter_changes_base(a))
        TR_TRY(set_converted(a, obj));
    TR_TRY(last_is_conv1d(a, m, &is_conv1d));
    TR_TRY(set(obj, "fan_in_fan_out", cJSON_CreateBool(is_conv1d)));
    TR_TRY(target_json(a, m, &targets));
    TR_TRY(set(obj, "target_modules", targets));
    TR_TRY(set(obj, "lora_dropout", cJSON_CreateNumber(a->dropout)));
    TR_TRY(set(obj, "inference_mode", cJSON_CreateTrue()));
    TR_TRY(set(obj, "peft_version", cJSON_CreateString(TR_PEFT_VERSION)));
    TR_TRY(print_value(obj, 0, out));
    if (!tr_str_ok(out))
        st = tr_fail(TR_NOMEM, "no memory for adapter_config.json");
out:
    cJSON_Delete(obj);
    return st;
}
