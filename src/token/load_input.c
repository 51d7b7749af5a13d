/* load_input.c - loads the stages before the model, normalizer and pre_tokenizer, into lists of steps.
 *
 * Each type is a row of a table. The parts of a Sequence become consecutive steps. A type that is not in the table is
 * refused with its name, never skipped, because a nearly right tokenizer trains a wrong model.
 */
#include "token/load.h"

#include <stdlib.h>
#include <string.h>

/* ---- normalizer ---- */

static enum tr_status add_norm(struct tr_tokenizer *t, enum tr_tok_norm_kind kind, struct tr_tok_norm **out)
{
    if (t->n_norms == TR_TOK_STEPS_MAX)
        return tr_fail(TR_USAGE, "more than %d steps", TR_TOK_STEPS_MAX);
    *out = &t->norms[t->n_norms++];
    (*out)->kind = kind;
    return TR_OK;
}

#define PLAIN_NORM(name, kind)                                                                                         \
    static enum tr_status name(struct tr_tokenizer *t, const cJSON *x)                                                 \
    {                                                                                                                  \
        struct tr_tok_norm *step = NULL;                                                                               \
        (void)x;                                                                                                       \
        return add_norm(t, kind, &step);                                                                               \
    }
PLAIN_NORM(norm_nfc, TR_TOK_NORM_NFC)
PLAIN_NORM(norm_nfd, TR_TOK_NORM_NFD)
PLAIN_NORM(norm_nfkc, TR_TOK_NORM_NFKC)
PLAIN_NORM(norm_nfkd, TR_TOK_NORM_NFKD)
PLAIN_NORM(norm_lower, TR_TOK_NORM_LOWER)
PLAIN_NORM(norm_marks, TR_TOK_NORM_MARKS)
PLAIN_NORM(norm_nmt, TR_TOK_NORM_NMT)
PLAIN_NORM(norm_bytes, TR_TOK_NORM_BYTES)

static enum tr_status norm_strip(struct tr_tokenizer *t, const cJSON *x)
{
    struct tr_tok_norm *step = NULL;
    TR_PASS(add_norm(t, TR_TOK_NORM_STRIP, &step));
    TR_PASS(tr_json_bool(x, "strip_left", true, &step->left));
    return tr_json_bool(x, "strip_right", true, &step->right);
}

static enum tr_status norm_replace(struct tr_tokenizer *t, const cJSON *x)
{
    struct tr_tok_norm *step = NULL;
    TR_PASS(add_norm(t, TR_TOK_NORM_REPLACE, &step));
    TR_PASS(tr_tok_load_pattern(x, &step->pattern));
    return tr_tok_load_text(x, "content", &step->text, &step->n);
}

static enum tr_status norm_prepend(struct tr_tokenizer *t, const cJSON *x)
{
    struct tr_tok_norm *step = NULL;
    TR_PASS(add_norm(t, TR_TOK_NORM_PREPEND, &step));
    return tr_tok_load_text(x, "prepend", &step->text, &step->n);
}

static enum tr_status norm_bert(struct tr_tokenizer *t, const cJSON *x)
{
    struct tr_tok_norm *step = NULL;
    bool clean = true, chinese = true, lower = true;
    TR_PASS(tr_json_bool(x, "clean_text", true, &clean));
    TR_PASS(tr_json_bool(x, "handle_chinese_chars", true, &chinese));
    TR_PASS(tr_json_bool(x, "lowercase", true, &lower));
    bool accents = lower; /* null: the same as lowercase */
    TR_PASS(tr_json_bool(x, "strip_accents", false, &accents));
    if (clean)
        TR_PASS(add_norm(t, TR_TOK_NORM_CLEAN, &step));
    if (chinese)
        TR_PASS(add_norm(t, TR_TOK_NORM_CHINESE, &step));
    if (accents) {
        TR_PASS(add_norm(t, TR_TOK_NORM_NFD, &step));
        TR_PASS(add_norm(t, TR_TOK_NORM_MN, &step));
    }
    return lower ? add_norm(t, TR_TOK_NORM_LOWER, &step) : TR_OK;
}

static enum tr_status from_base64(const char *text, char **out, size_t *n_out)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t n = strlen(text), k = 0;
    while (n > 0 && text[n - 1] == '=')
        n--;
    char *p = malloc(n / 4 * 3 + 3);
    if (!p)
        return tr_fail(TR_NOMEM, "no memory for %zu bytes", n);
    uint32_t bits = 0;
    for (size_t i = 0; i < n; i++) {
        const char *d = strchr(digits, text[i]);
        if (!d) {
            free(p);
            return tr_fail(TR_USAGE, "precompiled_charsmap is not base64");
        }
        bits = bits << 6 | (uint32_t)(d - digits);
        if (i % 4)
            p[k++] = (char)(uint8_t)(bits >> (6 - 2 * (i % 4)));
    }
    *out = p;
    *n_out = k;
    return TR_OK;
}

static enum tr_status norm_charsmap(struct tr_tokenizer *t, const cJSON *x)
{
    struct tr_tok_norm *step = NULL;
    const char *text = NULL;
    TR_PASS(tr_json_str(x, "precompiled_charsmap", false, &text));
    if (!text || !*text)
        return TR_OK; /* nothing to map */
    TR_PASS(add_norm(t, TR_TOK_NORM_CHARSMAP, &step));
    TR_PASS(from_base64(text, &step->text, &step->n));
    return tr_tok_charsmap_check(step->text, step->n);
}

static const struct tr_tok_stage_type normalizers[] = {
    { "NFC", norm_nfc },
    { "NFD", norm_nfd },
    { "NFKC", norm_nfkc },
    { "NFKD", norm_nfkd },
    { "Lowercase", norm_lower },
    { "Strip", norm_strip },
    { "StripAccents", norm_marks },
    { "Replace", norm_replace },
    { "Prepend", norm_prepend },
    { "BertNormalizer", norm_bert },
    { "Nmt", norm_nmt },
    { "Precompiled", norm_charsmap },
    { "ByteLevel", norm_bytes },
};

/* ---- pre_tokenizer ---- */

static enum tr_status add_split(struct tr_tokenizer *t, enum tr_tok_split_kind kind, struct tr_tok_split **out)
{
    if (t->n_splits == TR_TOK_STEPS_MAX)
        return tr_fail(TR_USAGE, "more than %d steps", TR_TOK_STEPS_MAX);
    *out = &t->splits[t->n_splits++];
    (*out)->kind = kind;
    (*out)->behavior = TR_TOK_ISOLATED;
    return TR_OK;
}

static enum tr_status load_behavior(const cJSON *x, bool required, enum tr_tok_behavior *out)
{
    static const struct {
        const char *name;
        enum tr_tok_behavior behavior;
    } rows[] = { { "Removed", TR_TOK_REMOVED },
                 { "Isolated", TR_TOK_ISOLATED },
                 { "MergedWithPrevious", TR_TOK_MERGED_PREVIOUS },
                 { "MergedWithNext", TR_TOK_MERGED_NEXT },
                 { "Contiguous", TR_TOK_CONTIGUOUS } };
    const char *name = "Isolated";
    char buf[96];
    TR_PASS(tr_json_str(x, "behavior", required, &name));
    for (size_t i = 0; i < TR_COUNT_OF(rows); i++)
        if (strcmp(rows[i].name, name) == 0) {
            *out = rows[i].behavior;
            return TR_OK;
        }
    return tr_fail(TR_USAGE, "behavior \"%s\" is not supported", tr_escape(name, buf, sizeof buf));
}

static enum tr_status split_bytes(struct tr_tokenizer *t, const cJSON *x)
{
    static const char gpt2[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
    struct tr_tok_split *step = NULL;
    bool prefix = true, use_regex = true;
    TR_PASS(tr_json_bool(x, "add_prefix_space", true, &prefix));
    TR_PASS(tr_json_bool(x, "use_regex", false, &use_regex));
    if (prefix)
        TR_PASS(add_split(t, TR_TOK_SPLIT_PREFIX, &step));
    if (use_regex) {
        TR_PASS(add_split(t, TR_TOK_SPLIT_PATTERN, &step));
        step->pattern.is_regex = true;
        TR_PASS(tr_tok_regex_open(gpt2, &step->pattern.re));
    }
    return add_split(t, TR_TOK_SPLIT_BYTES, &step);
}

static enum tr_status split_pattern(struct tr_tokenizer *t, const cJSON *x)
{
    struct tr_tok_split *step = NULL;
    TR_PASS(add_split(t, TR_TOK_SPLIT_PATTERN, &step));
    TR_PASS(tr_tok_load_pattern(x, &step->pattern));
    TR_PASS(load_behavior(x, true, &step->behavior));
    return tr_json_bool(x, "invert", true, &step->invert);
}

static enum tr_status split_digits(struct tr_tokenizer *t, const cJSON *x)
{
    struct tr_tok_split *step = NULL;
    bool single = false;
    TR_PASS(tr_json_bool(x, "individual_digits", true, &single));
    TR_PASS(add_split(t, TR_TOK_SPLIT_CLASS, &step));
    step->flag = TR_TOK_CP_NUMERIC;
    step->behavior = single ? TR_TOK_ISOLATED : TR_TOK_CONTIGUOUS;
    return TR_OK;
}

static enum tr_status split_punct(struct tr_tokenizer *t, const cJSON *x)
{
    struct tr_tok_split *step = NULL;
    TR_PASS(add_split(t, TR_TOK_SPLIT_CLASS, &step));
    step->flag = TR_TOK_CP_PUNCT;
    return load_behavior(x, false, &step->behavior);
}

static enum tr_status split_spaces(struct tr_tokenizer *t, const cJSON *x)
{
    struct tr_tok_split *step = NULL;
    (void)x;
    TR_PASS(add_split(t, TR_TOK_SPLIT_CLASS, &step));
    step->behavior = TR_TOK_REMOVED;
    return TR_OK;
}

static enum tr_status split_bert(struct tr_tokenizer *t, const cJSON *x)
{
    struct tr_tok_split *step = NULL;
    TR_PASS(split_spaces(t, x));
    TR_PASS(add_split(t, TR_TOK_SPLIT_CLASS, &step));
    step->flag = TR_TOK_CP_PUNCT;
    return TR_OK;
}

static enum tr_status split_words(struct tr_tokenizer *t, const cJSON *x)
{
    struct tr_tok_split *step = NULL;
    (void)x;
    return add_split(t, TR_TOK_SPLIT_WORDS, &step);
}

static enum tr_status split_delimiter(struct tr_tokenizer *t, const cJSON *x)
{
    struct tr_tok_split *step = NULL;
    TR_PASS(add_split(t, TR_TOK_SPLIT_PATTERN, &step));
    step->behavior = TR_TOK_REMOVED;
    return tr_tok_load_char(x, "delimiter", &step->pattern);
}

static enum tr_status split_metaspace(struct tr_tokenizer *t, const cJSON *x)
{
    struct tr_tok_split *step = NULL;
    TR_PASS(add_split(t, TR_TOK_SPLIT_METASPACE, &step));
    TR_PASS(tr_tok_load_char(x, "replacement", &step->pattern));
    TR_PASS(tr_tok_load_scheme(x, &step->prepend));
    step->has_split = true;
    return tr_json_bool(x, "split", false, &step->has_split);
}

static const struct tr_tok_stage_type pre_tokenizers[] = {
    { "ByteLevel", split_bytes },       { "Split", split_pattern },       { "Digits", split_digits },
    { "Punctuation", split_punct },     { "Whitespace", split_words },    { "WhitespaceSplit", split_spaces },
    { "BertPreTokenizer", split_bert }, { "Metaspace", split_metaspace }, { "CharDelimiterSplit", split_delimiter },
};

enum tr_status tr_tok_load_input(struct tr_tokenizer *t, const cJSON *root)
{
    const cJSON *x = cJSON_GetObjectItemCaseSensitive(root, "normalizer");
    if (x && !cJSON_IsNull(x))
        TR_PASS(tr_tok_load_stage(t, x, "normalizer", normalizers, TR_COUNT_OF(normalizers), "normalizers"));
    x = cJSON_GetObjectItemCaseSensitive(root, "pre_tokenizer");
    if (x && !cJSON_IsNull(x))
        TR_PASS(tr_tok_load_stage(t, x, "pre_tokenizer", pre_tokenizers, TR_COUNT_OF(pre_tokenizers), "pretokenizers"));
    return TR_OK;
}
