/* recorded.c - options that the directory of an adapter gives: how the run that trained it held the base.
 *
 * An adapter has learned to correct the base as its run saw it, so whoever reads the adapter holds the base in the same
 * way unless told otherwise. The record (TR_ADAPTER_BASE, member "quant") is one more source of values, below all that
 * a user gives, so that plan, eval, generate, merge and a continued run need no rule of their own.
 */
#include "config/config_impl.h"

static const char nested[] = ":double";

const char *tr_config_quant(const struct tr_config *cfg, char out[TR_CONFIG_QUANT_MAX])
{
    enum tr_packed p = tr_config_packed(cfg);
    bool is_double = tr_packed_is_q4(p) && cfg->bnb_4bit_use_double_quant;
    snprintf(out, TR_CONFIG_QUANT_MAX, "%s%s", p ? tr_packed_name(p) : "", is_double ? nested : "");
    return out;
}

/* The word "nf4:double" in parts; false: it is none. */
static bool parse(const char *word, enum tr_packed *packed, bool *is_double)
{
    const char *colon = strchr(word, ':');
    size_t n = colon ? (size_t)(colon - word) : strlen(word);
    *is_double = colon != NULL;
    *packed = TR_NOT_PACKED;
    for (int p = TR_NOT_PACKED + 1; p < TR_PACKED_COUNT; p++)
        if (strlen(tr_packed_name((enum tr_packed)p)) == n && memcmp(tr_packed_name((enum tr_packed)p), word, n) == 0)
            *packed = (enum tr_packed)p;
    return *packed && (!colon || (strcmp(colon, nested) == 0 && tr_packed_is_q4(*packed)));
}

static void give(struct loader *l, const char *where, const char *key, const char *value)
{
    tr_loader_give(l, &(struct given){ LEVEL_DERIVED, key, value, where, false });
}

/* Any of the two options that name a type is the user's choice of a type; the details of 4 bits may be given alone. */
static void give_packing(struct loader *l, const char *where, enum tr_packed packed, bool is_double)
{
    const struct tr_config *c = &l->c->pub;
    if (tr_config_is_set(c, "load_in_4bit") || tr_config_is_set(c, "base_dtype"))
        return;
    if (!tr_packed_is_q4(packed)) {
        give(l, where, "base_dtype", tr_packed_name(packed));
        return;
    }
    give(l, where, "load_in_4bit", "true");
    give(l, where, "bnb_4bit_quant_type", tr_packed_name(packed));
    give(l, where, "bnb_4bit_use_double_quant", is_double ? "true" : "false");
}

void tr_loader_recorded(struct loader *l)
{
    const struct tr_config *c = &l->c->pub;
    char path[TR_PATH_MAX], shown[KEY_MAX], now[TR_CONFIG_QUANT_MAX];
    const char *word = NULL;
    cJSON *j = NULL;
    enum tr_packed packed;
    bool is_double;
    if (!tr_option_find(c->verb, "base_dtype") || !c->model || tr_path_join(path, c->model, TR_ADAPTER_BASE) != TR_OK ||
        !tr_file_exists(path)) {
        tr_error_clear();
        return;
    }
    if (tr_json_load(path, 1 << 20, &j) != TR_OK || tr_json_str(j, "quant", false, &word) != TR_OK) {
        tr_loader_error(l, "%s", tr_error_text());
    } else if (word && !parse(word, &packed, &is_double)) {
        tr_loader_error(l, "%s: \"%s\" is no way to hold a base; nf4, fp4, either with :double behind it, and fp8 are",
                        path, tr_escape(word, shown, sizeof shown));
    } else if (word) {
        give_packing(l, path, packed, is_double);
        if (strcmp(tr_config_quant(c, now), word) != 0)
            tr_loader_notice(l, "%s was trained on a base in %s; here the base is held in %s, as the options say",
                             c->model, word, now[0] ? now : tr_dtype_name(c->dtype));
    }
    cJSON_Delete(j);
}
