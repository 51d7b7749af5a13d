/* load_stage.c - finds the type of a stage, and reads the members that several types have. */
#include "token/load.h"

#include <string.h>

enum tr_status tr_tok_load_stage(struct tr_tokenizer *t, const cJSON *x, const char *stage,
                                 const struct tr_tok_stage_type *types, size_t n_types, const char *list_key)
{
    const char *name = NULL;
    char buf[96];
    TR_PASS(tr_json_str(x, "type", true, &name));
    if (strcmp(name, "Sequence") == 0) {
        const cJSON *list = cJSON_GetObjectItemCaseSensitive(x, list_key), *part;
        if (!cJSON_IsArray(list))
            return tr_fail(TR_USAGE, "%s Sequence has no list \"%s\"", stage, list_key);
        cJSON_ArrayForEach(part, list) TR_PASS(tr_tok_load_stage(t, part, stage, types, n_types, list_key));
        return TR_OK;
    }
    for (size_t i = 0; i < n_types; i++)
        if (strcmp(types[i].name, name) == 0) {
            enum tr_status st = types[i].load(t, x);
            return st == TR_OK ? st : tr_fail_at(st, "%s %s: ", stage, name);
        }
    return tr_fail(TR_USAGE, "%s \"%s\" is not supported", stage, tr_escape(name, buf, sizeof buf));
}

static enum tr_status copy_text(const char *from, char **to, size_t *n)
{
    *n = strlen(from);
    *to = strdup(from);
    return *to ? TR_OK : tr_fail(TR_NOMEM, "no memory for a text");
}

enum tr_status tr_tok_load_text(const cJSON *x, const char *key, char **to, size_t *n)
{
    const char *text = NULL;
    enum tr_status st = tr_json_str(x, key, true, &text);
    return st == TR_OK ? copy_text(text, to, n) : st;
}

/* {"String": "..."} or {"Regex": "..."} */
enum tr_status tr_tok_load_pattern(const cJSON *x, struct tr_tok_pattern *out)
{
    const cJSON *pattern = cJSON_GetObjectItemCaseSensitive(x, "pattern");
    const char *text = NULL;
    TR_PASS(tr_json_str(pattern, "String", false, &text));
    if (!text) {
        TR_PASS(tr_json_str(pattern, "Regex", true, &text));
        out->is_regex = true;
        TR_PASS(tr_tok_regex_open(text, &out->re));
    }
    return copy_text(text, &out->text, &out->n);
}

/* A string member that must be one character. */
enum tr_status tr_tok_load_char(const cJSON *x, const char *key, struct tr_tok_pattern *out)
{
    const char *text = NULL;
    TR_PASS(tr_json_str(x, key, true, &text));
    if (*text == 0 || tr_utf8_len(text, strlen(text)) != strlen(text))
        return tr_fail(TR_USAGE, "\"%s\" is not one character", key);
    return copy_text(text, &out->text, &out->n);
}

/* "prepend_scheme", or in old files "add_prefix_space". */
enum tr_status tr_tok_load_scheme(const cJSON *x, enum tr_tok_prepend *out)
{
    const char *scheme = "always";
    bool prefix = true;
    TR_PASS(tr_json_str(x, "prepend_scheme", false, &scheme));
    TR_PASS(tr_json_bool(x, "add_prefix_space", false, &prefix));
    *out = strcmp(scheme, "always") == 0  ? TR_TOK_PREPEND_ALWAYS
           : strcmp(scheme, "first") == 0 ? TR_TOK_PREPEND_FIRST
                                          : TR_TOK_PREPEND_NEVER;
    if (*out == TR_TOK_PREPEND_NEVER && strcmp(scheme, "never") != 0)
        return tr_fail(TR_USAGE, "prepend_scheme must be always, first or never");
    bool says_scheme = cJSON_GetObjectItemCaseSensitive(x, "prepend_scheme") != NULL;
    if (!prefix && *out != TR_TOK_PREPEND_NEVER && says_scheme)
        return tr_fail(TR_USAGE, "add_prefix_space contradicts prepend_scheme");
    if (!prefix)
        *out = TR_TOK_PREPEND_NEVER;
    return TR_OK;
}
