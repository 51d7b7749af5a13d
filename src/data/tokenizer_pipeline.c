/* tokenizer_pipeline.c - the stages of a tokenizer.json into steps: normalizer, pre_tokenizer, post_processor, decoder.
 *
 * Each type is a row of a table; a Sequence is walked and its parts become neighbouring steps. A type that is not in the
 * table is refused by its name, never skipped: a nearly right tokenizer trains a wrong model.
 */
#include "data/tokenizer_impl.h"

#include <stdlib.h>
#include <string.h>

typedef enum tr_status stage_fn(struct tr_tokenizer *t, const cJSON *x);
struct type {
    const char *name;
    stage_fn *load;
};

static enum tr_status load_stage(struct tr_tokenizer *t, const cJSON *x, const char *stage, const struct type *types,
                                 size_t n_types, const char *list_key)
{
    enum tr_status st = TR_OK;
    const char *name = NULL;
    char buf[96];
    TR_TRY(tr_json_str(x, "type", true, &name));
    if (strcmp(name, "Sequence") == 0) {
        const cJSON *list = cJSON_GetObjectItemCaseSensitive(x, list_key), *part;
        if (!cJSON_IsArray(list))
            return tr_fail(TR_USAGE, "%s Sequence has no list \"%s\"", stage, list_key);
        cJSON_ArrayForEach(part, list) TR_TRY(load_stage(t, part, stage, types, n_types, list_key));
        return TR_OK;
    }
    for (size_t i = 0; i < n_types; i++)
        if (strcmp(types[i].name, name) == 0) {
            st = types[i].load(t, x);
            return st == TR_OK ? st : tr_fail_at(st, "%s %s: ", stage, name);
        }
    st = tr_fail(TR_USAGE, "%s \"%s\" is not supported", stage, tr_escape(name, buf, sizeof buf));
out:
    return st;
}

static enum tr_status copy(const char *from, char **to, size_t *n)
{
    *n = strlen(from);
    *to = strdup(from);
    return *to ? TR_OK : tr_fail(TR_NOMEM, "no memory for a text");
}

/* {"String": "..."} or {"Regex": "..."} */
static enum tr_status load_pattern(const cJSON *x, struct tr_pattern *out)
{
    enum tr_status st = TR_OK;
    const cJSON *pattern = cJSON_GetObjectItemCaseSensitive(x, "pattern");
    const char *text = NULL;
    TR_TRY(tr_json_str(pattern, "String", false, &text));
    if (!text) {
        TR_TRY(tr_json_str(pattern, "Regex", true, &text));
        out->is_regex = true;
        TR_TRY(tr_regex_open(text, &out->re));
    }
    TR_TRY(copy(text, &out->text, &out->n));
out:
    return st;
}

/* A string member that must be one character. */
static enum tr_status load_char(const cJSON *x, const char *key, const char *otherwise, struct tr_pattern *out)
{
    const char *text = otherwise;
    enum tr_status st = tr_json_str(x, key, otherwise == NULL, &text);
    if (st != TR_OK)
        return st;
    if (*text == 0 || tr_utf8_len(text, strlen(text)) != strlen(text))
        return tr_fail(TR_USAGE, "\"%s\" is not one character", key);
    return copy(text, &out->text, &out->n);
}

/* ---- normalizer ---- */

static enum tr_status add_norm(struct tr_tokenizer *t, enum tr_norm_kind kind, struct tr_norm **out)
{
    if (t->n_norms == TR_STEPS_MAX)
        return tr_fail(TR_USAGE, "more than %d steps", TR_STEPS_MAX);
    *out = &t->norms[t->n_norms++];
    (*out)->kind = kind;
    return TR_OK;
}

#define PLAIN_NORM(name, kind)                                                                                         \
    static enum tr_status name(struct tr_tokenizer *t, const cJSON *x)                                                 \
    {                                                                                                                  \
        struct tr_norm *step = NULL;                                                                                        \
        (void)x;                                                                                                       \
        return add_norm(t, kind, &step);                                                                               \
    }
PLAIN_NORM(norm_nfc, TR_NORM_NFC)
PLAIN_NORM(norm_nfd, TR_NORM_NFD)
PLAIN_NORM(norm_nfkc, TR_NORM_NFKC)
PLAIN_NORM(norm_nfkd, TR_NORM_NFKD)
PLAIN_NORM(norm_lower, TR_NORM_LOWER)
PLAIN_NORM(norm_marks, TR_NORM_MARKS)
PLAIN_NORM(norm_nmt, TR_NORM_NMT)
PLAIN_NORM(norm_bytes, TR_NORM_BYTES)

static enum tr_status norm_strip(struct tr_tokenizer *t, const cJSON *x)
{
    struct tr_norm *step = NULL;
    enum tr_status st = TR_OK;
    TR_TRY(add_norm(t, TR_NORM_STRIP, &step));
    TR_TRY(tr_json_bool(x, "strip_left", true, &step->left));
    TR_TRY(tr_json_bool(x, "strip_right", true, &step->right));
out:
    return st;
}

static enum tr_status norm_replace(struct tr_tokenizer *t, const cJSON *x)
{
    struct tr_norm *step = NULL;
    const char *text = NULL;
    enum tr_status st = TR_OK;
    TR_TRY(add_norm(t, TR_NORM_REPLACE, &step));
    TR_TRY(load_pattern(x, &step->pattern));
    TR_TRY(tr_json_str(x, "content", true, &text));
    TR_TRY(copy(text, &step->text, &step->n));
out:
    return st;
}

static enum tr_status norm_prepend(struct tr_tokenizer *t, const cJSON *x)
{
    struct tr_norm *step = NULL;
    const char *text = NULL;
    enum tr_status st = TR_OK;
    TR_TRY(add_norm(t, TR_NORM_PREPEND, &step));
    TR_TRY(tr_json_str(x, "prepend", true, &text));
    TR_TRY(copy(text, &step->text, &step->n));
    t->has_prepend = true;
out:
    return st;
}

static enum tr_status norm_bert(struct tr_tokenizer *t, const cJSON *x)
{
    struct tr_norm *step = NULL;
    enum tr_status st = TR_OK;
    bool clean = true, chinese = true, lower = true;
    TR_TRY(tr_json_bool(x, "clean_text", true, &clean));
    TR_TRY(tr_json_bool(x, "handle_chinese_chars", true, &chinese));
    TR_TRY(tr_json_bool(x, "lowercase", true, &lower));
    bool accents = lower; /* null: as lowercase */
    TR_TRY(tr_json_bool(x, "strip_accents", false, &accents));
    if (clean)
        TR_TRY(add_norm(t, TR_NORM_CLEAN, &step));
    if (chinese)
        TR_TRY(add_norm(t, TR_NORM_CHINESE, &step));
    if (accents) {
        TR_TRY(add_norm(t, TR_NORM_NFD, &step));
        TR_TRY(add_norm(t, TR_NORM_MN, &step));
    }
    if (lower)
        TR_TRY(add_norm(t, TR_NORM_LOWER, &step));
out:
    return st;
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
    struct tr_norm *step = NULL;
    const char *text = NULL;
    enum tr_status st = TR_OK;
    TR_TRY(tr_json_str(x, "precompiled_charsmap", false, &text));
    if (!text || !*text)
        return TR_OK; /* nothing to map */
    TR_TRY(add_norm(t, TR_NORM_CHARSMAP, &step));
    TR_TRY(from_base64(text, &step->text, &step->n));
    TR_TRY(tr_charsmap_check(step->text, step->n));
out:
    return st;
}

static const struct type normalizers[] = {
    { "NFC", norm_nfc },         { "NFD", norm_nfd },           { "NFKC", norm_nfkc },
    { "NFKD", norm_nfkd },       { "Lowercase", norm_lower },   { "Strip", norm_strip },
    { "StripAccents", norm_marks }, { "Replace", norm_replace }, { "Prepend", norm_prepend },
    { "BertNormalizer", norm_bert }, { "Nmt", norm_nmt },       { "Precompiled", norm_charsmap },
    { "ByteLevel", norm_bytes },
};

/* ---- pre_tokenizer ---- */

static enum tr_status add_split(struct tr_tokenizer *t, enum tr_split_kind kind, struct tr_split **out)
{
    if (t->n_splits == TR_STEPS_MAX)
        return tr_fail(TR_USAGE, "more than %d steps", TR_STEPS_MAX);
    *out = &t->splits[t->n_splits++];
    (*out)->kind = kind;
    (*out)->behavior = TR_ISOLATED;
    return TR_OK;
}

static enum tr_status load_behavior(const cJSON *x, bool required, enum tr_behavior *out)
{
    static const struct {
        const char *name;
        enum tr_behavior behavior;
    } rows[] = { { "Removed", TR_REMOVED },
                 { "Isolated", TR_ISOLATED },
                 { "MergedWithPrevious", TR_MERGED_PREVIOUS },
                 { "MergedWithNext", TR_MERGED_NEXT },
                 { "Contiguous", TR_CONTIGUOUS } };
    const char *name = "Isolated";
    char buf[96];
    enum tr_status st = tr_json_str(x, "behavior", required, &name);
    if (st != TR_OK)
        return st;
    for (size_t i = 0; i < TR_COUNT_OF(rows); i++)
        if (strcmp(rows[i].name, name) == 0) {
            *out = rows[i].behavior;
            return TR_OK;
        }
    return tr_fail(TR_USAGE, "behavior \"%s\" is not supported", tr_escape(name, buf, sizeof buf));
}

static enum tr_status split_bytes(struct tr_tokenizer *t, const cJSON *x)
{
    static const char gpt2[] =
        "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
    struct tr_split *step = NULL;
    enum tr_status st = TR_OK;
    bool prefix = true, use_regex = true;
    TR_TRY(tr_json_bool(x, "add_prefix_space", true, &prefix));
    TR_TRY(tr_json_bool(x, "use_regex", false, &use_regex));
    if (prefix)
        TR_TRY(add_split(t, TR_SPLIT_PREFIX, &step));
    if (use_regex) {
        TR_TRY(add_split(t, TR_SPLIT_PATTERN, &step));
        step->pattern.is_regex = true;
        TR_TRY(tr_regex_open(gpt2, &step->pattern.re));
    }
    TR_TRY(add_split(t, TR_SPLIT_BYTES, &step));
out:
    return st;
}

static enum tr_status split_pattern(struct tr_tokenizer *t, const cJSON *x)
{
    struct tr_split *step = NULL;
    enum tr_status st = TR_OK;
    TR_TRY(add_split(t, TR_SPLIT_PATTERN, &step));
    TR_TRY(load_pattern(x, &step->pattern));
    TR_TRY(load_behavior(x, true, &step->behavior));
    TR_TRY(tr_json_bool(x, "invert", true, &step->invert));
out:
    return st;
}

static enum tr_status split_digits(struct tr_tokenizer *t, const cJSON *x)
{
    struct tr_split *step = NULL;
    enum tr_status st = TR_OK;
    bool single = false;
    TR_TRY(tr_json_bool(x, "individual_digits", true, &single));
    TR_TRY(add_split(t, TR_SPLIT_CLASS, &step));
    step->flag = TR_CP_NUMERIC;
    step->behavior = single ? TR_ISOLATED : TR_CONTIGUOUS;
out:
    return st;
}

static enum tr_status split_punct(struct tr_tokenizer *t, const cJSON *x)
{
    struct tr_split *step = NULL;
    enum tr_status st = TR_OK;
    TR_TRY(add_split(t, TR_SPLIT_CLASS, &step));
    step->flag = TR_CP_PUNCT;
    TR_TRY(load_behavior(x, false, &step->behavior));
out:
    return st;
}

static enum tr_status split_spaces(struct tr_tokenizer *t, const cJSON *x)
{
    struct tr_split *step = NULL;
    (void)x;
    enum tr_status st = add_split(t, TR_SPLIT_CLASS, &step);
    if (st == TR_OK)
        step->behavior = TR_REMOVED;
    return st;
}

static enum tr_status split_bert(struct tr_tokenizer *t, const cJSON *x)
{
    struct tr_split *step = NULL;
    enum tr_status st = TR_OK;
    TR_TRY(split_spaces(t, x));
    TR_TRY(add_split(t, TR_SPLIT_CLASS, &step));
    step->flag = TR_CP_PUNCT;
out:
    return st;
}

static enum tr_status split_words(struct tr_tokenizer *t, const cJSON *x)
{
    struct tr_split *step = NULL;
    (void)x;
    return add_split(t, TR_SPLIT_WORDS, &step);
}

static enum tr_status split_delimiter(struct tr_tokenizer *t, const cJSON *x)
{
    struct tr_split *step = NULL;
    enum tr_status st = TR_OK;
    TR_TRY(add_split(t, TR_SPLIT_PATTERN, &step));
    step->behavior = TR_REMOVED;
    TR_TRY(load_char(x, "delimiter", NULL, &step->pattern));
out:
    return st;
}

/* "prepend_scheme", or in old files "add_prefix_space". */
static enum tr_status load_scheme(const cJSON *x, enum tr_prepend *out)
{
    enum tr_status st = TR_OK;
    const char *scheme = "always";
    bool prefix = true;
    TR_TRY(tr_json_str(x, "prepend_scheme", false, &scheme));
    TR_TRY(tr_json_bool(x, "add_prefix_space", false, &prefix));
    *out = strcmp(scheme, "always") == 0  ? TR_PREPEND_ALWAYS
           : strcmp(scheme, "first") == 0 ? TR_PREPEND_FIRST
                                          : TR_PREPEND_NEVER;
    if (*out == TR_PREPEND_NEVER && strcmp(scheme, "never") != 0)
        return tr_fail(TR_USAGE, "prepend_scheme is not always, first or never");
    bool says_scheme = cJSON_GetObjectItemCaseSensitive(x, "prepend_scheme") != NULL;
    if (!prefix && *out != TR_PREPEND_NEVER && says_scheme)
        return tr_fail(TR_USAGE, "add_prefix_space does not match prepend_scheme");
    if (!prefix)
        *out = TR_PREPEND_NEVER;
out:
    return st;
}

static enum tr_status split_metaspace(struct tr_tokenizer *t, const cJSON *x)
{
    struct tr_split *step = NULL;
    enum tr_status st = TR_OK;
    TR_TRY(add_split(t, TR_SPLIT_METASPACE, &step));
    TR_TRY(load_char(x, "replacement", NULL, &step->pattern));
    TR_TRY(load_scheme(x, &step->prepend));
    step->has_split = true;
    TR_TRY(tr_json_bool(x, "split", false, &step->has_split));
out:
    return st;
}

static const struct type pre_tokenizers[] = {
    { "ByteLevel", split_bytes },         { "Split", split_pattern },     { "Digits", split_digits },
    { "Punctuation", split_punct },       { "Whitespace", split_words },  { "WhitespaceSplit", split_spaces },
    { "BertPreTokenizer", split_bert },   { "Metaspace", split_metaspace }, { "CharDelimiterSplit", split_delimiter },
};

/* ---- post_processor: what goes around every text ---- */

/* Puts ids around what is there. */
static enum tr_status wrap(struct tr_tokenizer *t, const struct tr_ids *before, const struct tr_ids *after)
{
    enum tr_status st = TR_OK;
    TR_TRY(tr_ids_reserve(&t->before, before->n));
    if (before->n) {
        if (t->before.n)
            memmove(t->before.p + before->n, t->before.p, t->before.n * sizeof *t->before.p);
        memcpy(t->before.p, before->p, before->n * sizeof *before->p);
        t->before.n += before->n;
    }
    for (size_t i = 0; i < after->n; i++)
        TR_TRY(tr_ids_add(&t->after, after->p[i]));
out:
    return st;
}

/* ["[CLS]", 101] */
static enum tr_status load_pair(const cJSON *x, const char *key, struct tr_ids *out)
{
    int32_t id;
    const cJSON *pair = cJSON_GetObjectItemCaseSensitive(x, key);
    if (!cJSON_IsArray(pair) || cJSON_GetArraySize(pair) != 2)
        return tr_fail(TR_USAGE, "\"%s\" is not a pair of text and id", key);
    enum tr_status st = tr_load_id(cJSON_GetArrayItem(pair, 1), key, &id);
    return st == TR_OK ? tr_ids_add(out, id) : st;
}

static enum tr_status post_pair(struct tr_tokenizer *t, const cJSON *x)
{
    enum tr_status st = TR_OK;
    struct tr_ids before = { 0 }, after = { 0 };
    TR_TRY(load_pair(x, "cls", &before));
    TR_TRY(load_pair(x, "sep", &after));
    TR_TRY(wrap(t, &before, &after));
out:
    tr_ids_release(&before);
    tr_ids_release(&after);
    return st;
}

static enum tr_status load_special(const cJSON *x, const cJSON *piece, struct tr_ids *out)
{
    enum tr_status st = TR_OK;
    const char *name = NULL;
    char buf[96];
    TR_TRY(tr_json_str(piece, "id", true, &name));
    const cJSON *table = cJSON_GetObjectItemCaseSensitive(x, "special_tokens");
    const cJSON *ids = cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(table, name), "ids"), *id;
    if (!cJSON_IsArray(ids))
        return tr_fail(TR_USAGE, "special token \"%s\" has no ids", tr_escape(name, buf, sizeof buf));
    cJSON_ArrayForEach(id, ids)
    {
        int32_t v;
        TR_TRY(tr_load_id(id, name, &v));
        TR_TRY(tr_ids_add(out, v));
    }
out:
    return st;
}

static enum tr_status post_template(struct tr_tokenizer *t, const cJSON *x)
{
    enum tr_status st = TR_OK;
    struct tr_ids before = { 0 }, after = { 0 };
    const cJSON *single = cJSON_GetObjectItemCaseSensitive(x, "single"), *piece;
    int n_texts = 0;
    if (!cJSON_IsArray(single))
        TR_TRY(tr_fail(TR_USAGE, "\"single\" is not a list"));
    cJSON_ArrayForEach(piece, single)
    {
        const cJSON *token = cJSON_GetObjectItemCaseSensitive(piece, "SpecialToken");
        if (token)
            TR_TRY(load_special(x, token, n_texts ? &after : &before));
        else
            n_texts++;
    }
    if (n_texts != 1)
        TR_TRY(tr_fail(TR_USAGE, "\"single\" holds the text %d times; once is supported", n_texts));
    TR_TRY(wrap(t, &before, &after));
out:
    tr_ids_release(&before);
    tr_ids_release(&after);
    return st;
}

static enum tr_status post_nothing(struct tr_tokenizer *t, const cJSON *x)
{
    (void)t;
    (void)x;
    return TR_OK;
}

static const struct type post_processors[] = {
    { "ByteLevel", post_nothing },
    { "TemplateProcessing", post_template },
    { "BertProcessing", post_pair },
    { "RobertaProcessing", post_pair },
};

/* ---- decoder ---- */

static enum tr_status add_decode(struct tr_tokenizer *t, enum tr_decode_kind kind, struct tr_decode **out)
{
    if (t->n_decodes == TR_STEPS_MAX)
        return tr_fail(TR_USAGE, "more than %d steps", TR_STEPS_MAX);
    *out = &t->decodes[t->n_decodes++];
    (*out)->kind = kind;
    return TR_OK;
}

#define PLAIN_DECODE(name, kind)                                                                                       \
    static enum tr_status name(struct tr_tokenizer *t, const cJSON *x)                                                 \
    {                                                                                                                  \
        struct tr_decode *step = NULL;                                                                                      \
        (void)x;                                                                                                       \
        return add_decode(t, kind, &step);                                                                             \
    }
PLAIN_DECODE(decode_bytes, TR_DECODE_BYTES)
PLAIN_DECODE(decode_fuse, TR_DECODE_FUSE)
PLAIN_DECODE(decode_fallback, TR_DECODE_FALLBACK)

static enum tr_status decode_metaspace(struct tr_tokenizer *t, const cJSON *x)
{
    struct tr_decode *step = NULL;
    enum tr_prepend prepend;
    enum tr_status st = TR_OK;
    TR_TRY(add_decode(t, TR_DECODE_METASPACE, &step));
    TR_TRY(load_char(x, "replacement", NULL, &step->pattern));
    TR_TRY(load_scheme(x, &prepend));
    step->keeps_first = prepend == TR_PREPEND_NEVER;
out:
    return st;
}

static enum tr_status decode_replace(struct tr_tokenizer *t, const cJSON *x)
{
    struct tr_decode *step = NULL;
    const char *text = NULL;
    enum tr_status st = TR_OK;
    TR_TRY(add_decode(t, TR_DECODE_REPLACE, &step));
    TR_TRY(load_pattern(x, &step->pattern));
    TR_TRY(tr_json_str(x, "content", true, &text));
    TR_TRY(copy(text, &step->text, &step->n));
out:
    return st;
}

static enum tr_status decode_strip(struct tr_tokenizer *t, const cJSON *x)
{
    struct tr_decode *step = NULL;
    enum tr_status st = TR_OK;
    TR_TRY(add_decode(t, TR_DECODE_STRIP, &step));
    TR_TRY(load_char(x, "content", NULL, &step->pattern));
    TR_TRY(tr_json_int(x, "start", true, 0, INT32_MAX, &step->start));
    TR_TRY(tr_json_int(x, "stop", true, 0, INT32_MAX, &step->stop));
out:
    return st;
}

static enum tr_status decode_wordpiece(struct tr_tokenizer *t, const cJSON *x)
{
    struct tr_decode *step = NULL;
    const char *text = NULL;
    enum tr_status st = TR_OK;
    TR_TRY(add_decode(t, TR_DECODE_WORDPIECE, &step));
    TR_TRY(tr_json_str(x, "prefix", true, &text));
    TR_TRY(copy(text, &step->pattern.text, &step->pattern.n));
    TR_TRY(tr_json_bool(x, "cleanup", true, &step->cleanup));
out:
    return st;
}

static enum tr_status decode_bpe(struct tr_tokenizer *t, const cJSON *x)
{
    struct tr_decode *step = NULL;
    const char *text = NULL;
    enum tr_status st = TR_OK;
    TR_TRY(add_decode(t, TR_DECODE_BPE, &step));
    TR_TRY(tr_json_str(x, "suffix", true, &text));
    TR_TRY(copy(text, &step->pattern.text, &step->pattern.n));
out:
    return st;
}

static const struct type decoders[] = {
    { "ByteLevel", decode_bytes }, { "Metaspace", decode_metaspace },   { "Replace", decode_replace },
    { "Fuse", decode_fuse },       { "ByteFallback", decode_fallback }, { "Strip", decode_strip },
    { "WordPiece", decode_wordpiece }, { "BPEDecoder", decode_bpe },
};

enum tr_status tr_load_pipeline(struct tr_tokenizer *t, const cJSON *root)
{
    static const struct {
        const char *key, *list;
        const struct type *types;
        size_t n_types;
    } stages[] = {
        { "normalizer", "normalizers", normalizers, TR_COUNT_OF(normalizers) },
        { "pre_tokenizer", "pretokenizers", pre_tokenizers, TR_COUNT_OF(pre_tokenizers) },
        { "post_processor", "processors", post_processors, TR_COUNT_OF(post_processors) },
        { "decoder", "decoders", decoders, TR_COUNT_OF(decoders) },
    };
    enum tr_status st = TR_OK;
    for (size_t i = 0; i < TR_COUNT_OF(stages); i++) {
        const cJSON *x = cJSON_GetObjectItemCaseSensitive(root, stages[i].key);
        if (x && !cJSON_IsNull(x))
            TR_TRY(load_stage(t, x, stages[i].key, stages[i].types, stages[i].n_types, stages[i].list));
    }
    const cJSON *decoder = cJSON_GetObjectItemCaseSensitive(root, "decoder");
    t->has_decoder = decoder && !cJSON_IsNull(decoder);
out:
    return st;
}
