/* save_config.c - config.json as a checkpoint has it: the file that came in, with the dtype of the weights. What was
 * quantised there has been decoded: weights are written plain, so the config must not say otherwise. */
#include "ckpt/save_impl.h"

/* The next number of a JSON text, strings skipped; NULL at the end. */
static const char *next_number(const char *p, size_t *n)
{
    for (bool in_string = false; *p; p++) {
        if (in_string && *p == '\\' && p[1])
            p++;
        else if (*p == '"')
            in_string = !in_string;
        else if (!in_string && (*p == '-' || (*p >= '0' && *p <= '9'))) {
            *n = strspn(p, "+-.0123456789eE");
            return p;
        }
    }
    return NULL;
}

/* Numbers keep their spelling: a parser that wants 30.0 does not take 30. A tree walked in order meets the numbers in
 * the order of the text. */
static bool keep_spelling(cJSON *item, const char **at)
{
    for (; item; item = item->next) {
        size_t n = 0;
        if (cJSON_IsNumber(item)) {
            const char *number = next_number(*at, &n);
            char *raw = number ? malloc(n + 1) : NULL;
            if (!raw)
                return false;
            memcpy(raw, number, n);
            raw[n] = 0;
            item->type = cJSON_Raw;
            item->valuestring = raw; /* freed by cJSON_Delete */
            *at = number + n;
        } else if (item->child && !keep_spelling(item->child, at)) {
            return false;
        }
    }
    return true;
}

static bool set_string(cJSON *c, const char *key, const char *value)
{
    if (cJSON_GetObjectItemCaseSensitive(c, key))
        return cJSON_ReplaceItemInObjectCaseSensitive(c, key, cJSON_CreateString(value));
    return cJSON_AddStringToObject(c, key, value) != NULL;
}

enum tr_status tr_saved_config(const struct tr_model *m, enum tr_dtype dtype, const cJSON *quant, char **out)
{
    cJSON *c = cJSON_Duplicate(m->config, true);
    const char *at = m->config_text;
    bool ok = c != NULL && (!at || keep_spelling(c->child, &at));
    if (ok && m->vocab_was) /* its old spelling was kept */
        ok = cJSON_ReplaceItemInObjectCaseSensitive(c, "vocab_size", cJSON_CreateNumber((double)m->hp.vocab));
    if (ok) {
        cJSON_DeleteItemFromObjectCaseSensitive(c, "quantization_config");
        cJSON_DeleteItemFromObjectCaseSensitive(c, "compression_config");
        ok = set_string(c, cJSON_GetObjectItemCaseSensitive(c, "torch_dtype") ? "torch_dtype" : "dtype",
                        tr_dtype_name(dtype));
    }
    if (ok && !cJSON_GetObjectItemCaseSensitive(c, "architectures")) {
        cJSON *arch = cJSON_AddArrayToObject(c, "architectures");
        ok = arch && cJSON_AddItemToArray(arch, cJSON_CreateString(m->arch->class_name));
    }
    if (ok && quant) {
        cJSON *copy = cJSON_Duplicate(quant, true);
        ok = copy && cJSON_AddItemToObject(c, "quantization_config", copy);
    }
    *out = ok ? cJSON_Print(c) : NULL;
    cJSON_Delete(c);
    return *out ? TR_OK : tr_fail(TR_NOMEM, "config.json: out of memory");
}
