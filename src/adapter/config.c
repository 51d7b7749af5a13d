/* config.c - adapter_config.json: reads the file of any PEFT version.
 *
 * What PEFT can do and this trainer cannot is refused by the name of its key, because an adapter that is read without
 * it would compute something else. Keys that are not known are kept and written back.
 */
#include "adapter/adapter_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* ---- memory ---- */

enum tr_status tr_adapter_words(const char *const *item, size_t n, struct tr_words *out)
{
    size_t n_bytes = n * sizeof(char *);
    for (size_t i = 0; i < n; i++)
        n_bytes += strlen(item[i]) + 1;
    const char **p = malloc(n_bytes + 1);
    if (!p)
        return tr_fail(TR_NOMEM, "no memory for a list of %zu names", n);
    char *text = (char *)(p + n);
    for (size_t i = 0; i < n; i++) {
        size_t len = strlen(item[i]) + 1;
        memcpy(text, item[i], len);
        p[i] = text;
        text += len;
    }
    *out = (struct tr_words){ .item = p, .n = n };
    return TR_OK;
}

static void free_words(struct tr_words *w)
{
    free((void *)(uintptr_t)w->item);
}

static void free_patterns(struct tr_adapter_pattern *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        free((void *)(uintptr_t)p[i].key);
    free(p);
}

void tr_adapter_close(struct tr_adapter *a)
{
    if (!a)
        return;
    tr_adapter_forget(a);
    free_words(&a->target);
    free_words(&a->exclude);
    free_words(&a->saved);
    free_words(&a->layers_pattern);
    free_patterns(a->rank_pattern, a->n_rank_patterns);
    free_patterns(a->alpha_pattern, a->n_alpha_patterns);
    free(a->layer);
    tr_adapter_free_tokens(a);
    free(a->base);
    cJSON_Delete(a->config);
    free(a);
}

/* ---- rules ---- */

enum tr_status tr_adapter_parse_init(const char *text, bool is_read, struct tr_adapter *a)
{
    static const struct {
        const char *word;
        enum tr_adapter_init init;
    } rows[] = { { "true", TR_ADAPTER_KAIMING },      { "false", TR_ADAPTER_DEFAULT },
                 { "gaussian", TR_ADAPTER_GAUSSIAN }, { "orthogonal", TR_ADAPTER_ORTHOGONAL },
                 { "pissa", TR_ADAPTER_PISSA },       { "olora", TR_ADAPTER_OLORA },
                 { "kaiming", TR_ADAPTER_KAIMING } };
    static const char niter[] = "pissa_niter_";
    int64_t n = 0;
    char shown[64];
    for (size_t i = 0; i < TR_COUNT_OF(rows); i++)
        if (strcmp(rows[i].word, text) == 0) {
            a->init = rows[i].init;
            return TR_OK;
        }
    if (strncmp(text, niter, sizeof niter - 1) == 0 && tr_parse_int(text + sizeof niter - 1, 1, 1000, &n) == TR_OK) {
        a->init = TR_ADAPTER_PISSA;
        a->pissa_iterations = (int)n;
        return TR_OK;
    }
    if (is_read && strcmp(text, "eva") == 0) /* it changes only what A starts with, and the file has A */
        return TR_OK;
    return tr_fail(TR_USAGE,
                   "init_lora_weights \"%s\" is not implemented; use true, false, gaussian, "
                   "orthogonal, pissa or olora",
                   tr_escape(text, shown, sizeof shown));
}

static enum tr_status check_ranks(const struct tr_adapter *a)
{
    for (size_t i = 0; i < a->n_rank_patterns; i++) {
        double r = a->rank_pattern[i].value;
        char shown[96];
        if (!(r >= 1 && r <= ADAPTER_RANK_MAX) || r != floor(r))
            return tr_fail(TR_USAGE, "rank_pattern %s: %g is not a rank; give a whole number from 1 on",
                           tr_escape(a->rank_pattern[i].key, shown, sizeof shown), r);
        if (a->init == TR_ADAPTER_ORTHOGONAL && (int64_t)r % 2 != 0)
            return tr_fail(TR_USAGE, "rank_pattern %s: init_lora_weights orthogonal needs an even rank, not %g",
                           tr_escape(a->rank_pattern[i].key, shown, sizeof shown), r);
    }
    if (a->init == TR_ADAPTER_ORTHOGONAL && a->r % 2 != 0)
        return tr_fail(TR_USAGE, "init_lora_weights orthogonal needs an even rank, not r %" PRId64, a->r);
    return TR_OK;
}

const char *tr_adapter_start_name(const struct tr_adapter *a)
{
    return a->init == TR_ADAPTER_PISSA ? "pissa" : a->init == TR_ADAPTER_OLORA ? "olora" : NULL;
}

enum tr_status tr_adapter_halve(struct tr_adapter *a, const char *start)
{
    double factor = a->use_rslora ? sqrt(2) : 2;
    bool is_even = a->r % 2 == 0;
    for (size_t i = 0; i < a->n_rank_patterns; i++) {
        is_even = is_even && (int64_t)a->rank_pattern[i].value % 2 == 0;
        a->rank_pattern[i].value /= 2;
    }
    for (size_t i = 0; i < a->n_alpha_patterns; i++)
        a->alpha_pattern[i].value /= factor;
    a->r /= 2;
    a->alpha /= factor;
    TR_PASS(tr_adapter_parse_init(start, true, a));
    if (!is_even || !tr_adapter_changes_base(a))
        return tr_fail(TR_USAGE, "the adapter is not what a start of %s leaves: its ranks are odd", start);
    return TR_OK;
}

/* A start that is taken out of the base goes with a scale that has a root. */
static enum tr_status check_start(const struct tr_adapter *a)
{
    double least = a->alpha;
    for (size_t i = 0; i < a->n_alpha_patterns; i++)
        least = fmin(least, a->alpha_pattern[i].value);
    if (tr_adapter_changes_base(a) && !(least > 0))
        return tr_fail(TR_USAGE, "init_lora_weights %s needs an alpha above 0, not %g", tr_adapter_start_name(a),
                       least);
    return TR_OK;
}

enum tr_status tr_adapter_check(struct tr_adapter *a)
{
    const cJSON *layers = a->config ? cJSON_GetObjectItemCaseSensitive(a->config, "layers_to_transform") : NULL;
    bool has_layers = a->n_layers || (layers && !cJSON_IsNull(layers)); /* PEFT takes an empty list for given */
    if (has_layers && (a->is_regex || a->is_all_linear))
        return tr_fail(TR_USAGE,
                       "layers_to_transform works with a list of target_modules, not with %s; name the layers "
                       "in the expression, or list the modules",
                       a->is_regex ? "an expression" : "all-linear");
    if (a->layers_pattern.n && !has_layers)
        return tr_fail(TR_USAGE, "layers_pattern %s needs layers_to_transform", a->layers_pattern.item[0]);
    if (a->has_b_bias && a->use_dora)
        return tr_fail(TR_USAGE, "lora_bias (a bias of B) and use_dora do not go together; drop one of them");
    if (a->has_b_bias && a->init != TR_ADAPTER_KAIMING && a->init != TR_ADAPTER_DEFAULT)
        return tr_fail(TR_USAGE, "lora_bias (a bias of B) needs init_lora_weights true or false");
    if (!a->config && a->use_dora && a->init == TR_ADAPTER_DEFAULT)
        return tr_fail(TR_USAGE,
                       "use_dora: a new adapter begins with the norms of the base, so it must begin as the base; use "
                       "another init_lora_weights than false");
    TR_PASS(check_ranks(a));
    TR_PASS(check_start(a));
    return tr_adapter_compile(a);
}

/* ---- reading ---- */

/* Keys of PEFT whose value must be null, false or empty: methods that this trainer does not have. */
static const struct {
    const char *key, *what;
} refused[] = {
    { "use_qalora", "QALoRA" },
    { "layer_replication", "a base with repeated layers" },
    { "target_parameters", "LoRA on parameters that belong to no linear (experts)" },
    { "alora_invocation_tokens", "activated LoRA" },
    { "arrow_config", "Arrow routing" },
    { "kasa_config", "KaSA" },
    { "monteclora_config", "MonteCLoRA" },
    { "use_bdlora", "block-diagonal LoRA" },
    { "velora_config", "VeLoRA" },
    { "megatron_config", "LoRA on Megatron's layers" },
    { "enable_lora", "LoRA on parts of a merged linear" },
};

static bool is_empty(const cJSON *v)
{
    return !v || cJSON_IsNull(v) || cJSON_IsFalse(v) || ((cJSON_IsArray(v) || cJSON_IsObject(v)) && !v->child);
}

static enum tr_status check_kind(const cJSON *c)
{
    const char *type = NULL, *task = NULL;
    char shown[64];
    TR_PASS(tr_json_str(c, "peft_type", true, &type));
    if (strcmp(type, "LORA") != 0)
        return tr_fail(TR_USAGE, "peft_type \"%s\" is not implemented; only LORA",
                       tr_escape(type, shown, sizeof shown));
    TR_PASS(tr_json_str(c, "task_type", false, &task));
    if (task && strcmp(task, "CAUSAL_LM") != 0)
        return tr_fail(TR_USAGE, "task_type \"%s\" is not implemented; only CAUSAL_LM",
                       tr_escape(task, shown, sizeof shown));
    for (size_t i = 0; i < TR_COUNT_OF(refused); i++)
        if (!is_empty(cJSON_GetObjectItemCaseSensitive(c, refused[i].key)))
            return tr_fail(TR_USAGE,
                           "%s: %s is not implemented; merge the adapter with PEFT and train the merged model",
                           refused[i].key, refused[i].what);
    return TR_OK;
}

static enum tr_status list_length(const cJSON *v, const char *key, size_t *out)
{
    size_t n = 0;
    for (const cJSON *item = v->child; item; item = item->next)
        if (++n > ADAPTER_LIST_MAX)
            return tr_fail(TR_USAGE, "\"%s\" has more than %d items", key, ADAPTER_LIST_MAX);
    *out = n;
    return TR_OK;
}

/* null, a string, or a list of strings. is_text (NULL: a string is not allowed): it was a string. */
static enum tr_status read_words(const cJSON *c, const char *key, struct tr_words *out, bool *is_text)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(c, key);
    const char **item = NULL;
    enum tr_status st = TR_OK;
    size_t n = 0;
    if (!v || cJSON_IsNull(v))
        return TR_OK;
    if (is_text && cJSON_IsString(v)) {
        *is_text = true;
        return tr_adapter_words((const char *const[]){ v->valuestring }, 1, out);
    }
    if (!cJSON_IsArray(v))
        return tr_fail(TR_USAGE, "\"%s\" is not %s", key,
                       is_text ? "a string or a list of strings" : "a list of strings");
    TR_TRY(list_length(v, key, &n));
    TR_TRY(TR_ALLOC(item, n + 1, "\"%s\"", key));
    size_t i = 0;
    for (const cJSON *x = v->child; x; x = x->next) {
        if (!cJSON_IsString(x) || !x->valuestring[0])
            TR_TRY(tr_fail(TR_USAGE, "\"%s\": item %zu is not a name", key, i + 1));
        item[i++] = x->valuestring;
    }
    TR_TRY(tr_adapter_words(item, n, out));
out:
    free(item);
    return st;
}

enum tr_status tr_adapter_read_ints(const cJSON *v, const char *key, int64_t **out, size_t *n_out)
{
    size_t n = 1, i = 0;
    if (!v || cJSON_IsNull(v))
        return TR_OK;
    if (!cJSON_IsArray(v) && !cJSON_IsNumber(v))
        return tr_fail(TR_USAGE, "\"%s\" is not a list of whole numbers", key);
    enum tr_status st = cJSON_IsArray(v) ? list_length(v, key, &n) : TR_OK;
    if (st != TR_OK || n == 0)
        return st;
    int64_t *p = NULL;
    TR_PASS(TR_ALLOC(p, n, "\"%s\"", key));
    for (const cJSON *x = cJSON_IsArray(v) ? v->child : v; i < n; x = x->next) {
        double d = cJSON_IsNumber(x) ? x->valuedouble : -1;
        if (!(d >= 0 && d <= INT32_MAX) || d != floor(d)) {
            free(p);
            return tr_fail(TR_USAGE, "\"%s\": item %zu is not a whole number from 0 on", key, i + 1);
        }
        p[i++] = (int64_t)d;
    }
    *out = p;
    *n_out = n;
    return TR_OK;
}

/* {"q_proj": 16, ...} in the order of the file. */
static enum tr_status read_pattern(const cJSON *c, const char *key, struct tr_adapter_pattern **out, size_t *n_out)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(c, key);
    size_t n = 0;
    if (!v || cJSON_IsNull(v))
        return TR_OK;
    if (!cJSON_IsObject(v))
        return tr_fail(TR_USAGE, "\"%s\" is not an object of names and numbers", key);
    enum tr_status st = list_length(v, key, &n);
    if (st != TR_OK || n == 0)
        return st;
    struct tr_adapter_pattern *p = *out = calloc(n, sizeof *p);
    if (!p)
        return tr_fail(TR_NOMEM, "no memory for \"%s\"", key);
    for (const cJSON *x = v->child; x; x = x->next) {
        char shown[96];
        if (!cJSON_IsNumber(x) || !isfinite(x->valuedouble))
            return tr_fail(TR_USAGE, "\"%s\": %s is not a number", key, tr_escape(x->string, shown, sizeof shown));
        p[*n_out] = (struct tr_adapter_pattern){ strdup(x->string), x->valuedouble };
        if (!p[(*n_out)++].key)
            return tr_fail(TR_NOMEM, "no memory for \"%s\"", key);
    }
    return TR_OK;
}

static enum tr_status read_bias(const cJSON *c, struct tr_adapter *a)
{
    static const char *const words[] = {
        [TR_LORA_BIAS_NONE] = "none", [TR_LORA_BIAS_ALL] = "all", [TR_LORA_BIAS_ONLY] = "lora_only"
    };
    const char *bias = words[0];
    char shown[64];
    enum tr_status st = tr_json_str(c, "bias", false, &bias);
    for (size_t i = 0; st == TR_OK && i < TR_COUNT_OF(words); i++)
        if (strcmp(words[i], bias) == 0) {
            a->bias = (enum tr_lora_bias)i;
            return TR_OK;
        }
    return st != TR_OK
               ? st
               : tr_fail(TR_USAGE, "bias \"%s\" is none of none, all, lora_only", tr_escape(bias, shown, sizeof shown));
}

static enum tr_status read_init(const cJSON *c, struct tr_adapter *a)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(c, "init_lora_weights");
    if (!v || cJSON_IsNull(v))
        return TR_OK;
    if (!cJSON_IsBool(v) && !cJSON_IsString(v))
        return tr_fail(TR_USAGE, "\"init_lora_weights\" is neither true, false nor a name");
    return tr_adapter_parse_init(cJSON_IsBool(v) ? (cJSON_IsTrue(v) ? "true" : "false") : v->valuestring, true, a);
}

static enum tr_status read_scalars(const cJSON *c, struct tr_adapter *a)
{
    const char *base = NULL;
    a->r = 8; /* PEFT's defaults */
    a->alpha = 8;
    a->loraplus_ratio = 1;
    TR_PASS(tr_json_int(c, "r", false, 1, ADAPTER_RANK_MAX, &a->r));
    TR_PASS(tr_json_real(c, "lora_alpha", false, &a->alpha));
    TR_PASS(tr_json_real(c, "lora_dropout", false, &a->dropout));
    if (!(a->dropout >= 0 && a->dropout < 1))
        return tr_fail(TR_USAGE, "\"lora_dropout\" is %g, outside 0 to 1 (the end excluded)", a->dropout);
    TR_PASS(tr_json_bool(c, "use_rslora", false, &a->use_rslora));
    TR_PASS(tr_json_bool(c, "use_dora", false, &a->use_dora));
    TR_PASS(tr_json_bool(c, "lora_bias", false, &a->has_b_bias));
    TR_PASS(tr_json_bool(c, "ensure_weight_tying", false, &a->ensures_tying));
    a->may_untie = true; /* as PEFT does */
    TR_PASS(read_bias(c, a));
    TR_PASS(read_init(c, a));
    TR_PASS(tr_json_str(c, "base_model_name_or_path", false, &base));
    if (base && base[0] && !(a->base = strdup(base)))
        return tr_fail(TR_NOMEM, "no memory for the name of the base");
    return TR_OK;
}

static enum tr_status read_lists(const cJSON *c, struct tr_adapter *a)
{
    bool is_text = false;
    TR_PASS(read_words(c, "target_modules", &a->target, &a->is_regex));
    if (a->is_regex && strcasecmp(a->target.item[0], "all-linear") == 0) {
        a->is_all_linear = true;
        a->is_regex = false;
    }
    if (a->target.item && a->target.n == 0)
        return tr_fail(TR_USAGE, "\"target_modules\" is an empty list; name modules, or write null for PEFT's default");
    TR_PASS(read_words(c, "exclude_modules", &a->exclude, &a->exclude_is_regex));
    TR_PASS(read_words(c, "modules_to_save", &a->saved, NULL));
    TR_PASS(read_words(c, "layers_pattern", &a->layers_pattern, &is_text));
    TR_PASS(tr_adapter_read_ints(cJSON_GetObjectItemCaseSensitive(c, "layers_to_transform"), "layers_to_transform",
                                 &a->layer, &a->n_layers));
    TR_PASS(read_pattern(c, "rank_pattern", &a->rank_pattern, &a->n_rank_patterns));
    TR_PASS(read_pattern(c, "alpha_pattern", &a->alpha_pattern, &a->n_alpha_patterns));
    return tr_adapter_read_tokens(c, a);
}

enum tr_status tr_adapter_parse(const char *text, size_t n, const char *what, struct tr_adapter **out)
{
    enum tr_status st = TR_OK;
    struct tr_adapter *a = calloc(1, sizeof *a);
    if (!a)
        return tr_fail(TR_NOMEM, "no memory for an adapter");
    st = tr_json_parse(text, n, what, &a->config);
    if (st != TR_OK) {
        free(a);
        return st;
    }
    if (!cJSON_IsObject(a->config))
        TR_TRY(tr_fail(TR_USAGE, "not a JSON object"));
    TR_TRY(check_kind(a->config));
    TR_TRY(read_scalars(a->config, a));
    TR_TRY(read_lists(a->config, a));
    TR_TRY(tr_adapter_check(a));
out:
    if (st == TR_OK) {
        *out = a;
    } else {
        (void)tr_fail_at(st, "%s: ", what);
        tr_adapter_close(a);
    }
    return st;
}

enum tr_status tr_adapter_read(const char *dir, struct tr_adapter **out)
{
    char path[TR_PATH_MAX], *text = NULL;
    size_t n = 0;
    enum tr_status st = TR_OK;
    TR_TRY(tr_path_join(path, dir, TR_ADAPTER_CONFIG));
    TR_TRY(tr_file_read(path, ADAPTER_FILE_MAX, &text, &n));
    st = tr_adapter_parse(text, n, path, out);
out:
    free(text);
    return st;
}
