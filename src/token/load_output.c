/* load_output.c - loads the stages after the model: post_processor (ids around a text) and decoder (a list of steps).
 */
#include "token/load.h"

#include <string.h>

/* ---- post_processor: the ids around every text ---- */

/* Adds ids outside those that are already there. */
static enum tr_status wrap(struct tr_tokenizer *t, const struct tr_ids *before, const struct tr_ids *after)
{
    TR_PASS(tr_ids_reserve(&t->before, before->n));
    if (before->n) {
        if (t->before.n)
            memmove(t->before.p + before->n, t->before.p, t->before.n * sizeof *t->before.p);
        memcpy(t->before.p, before->p, before->n * sizeof *before->p);
        t->before.n += before->n;
    }
    for (size_t i = 0; i < after->n; i++)
        TR_PASS(tr_ids_add(&t->after, after->p[i]));
    return TR_OK;
}

/* ["[CLS]", 101] */
static enum tr_status load_pair(const cJSON *x, const char *key, struct tr_ids *out)
{
    int32_t id;
    const cJSON *pair = cJSON_GetObjectItemCaseSensitive(x, key);
    if (!cJSON_IsArray(pair) || cJSON_GetArraySize(pair) != 2)
        return tr_fail(TR_USAGE, "\"%s\" is not a pair of text and id", key);
    enum tr_status st = tr_tok_load_id(cJSON_GetArrayItem(pair, 1), key, &id);
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
    const char *name = NULL;
    char buf[96];
    TR_PASS(tr_json_str(piece, "id", true, &name));
    const cJSON *table = cJSON_GetObjectItemCaseSensitive(x, "special_tokens");
    const cJSON *ids = cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(table, name), "ids"), *id;
    if (!cJSON_IsArray(ids))
        return tr_fail(TR_USAGE, "special token \"%s\" has no ids", tr_escape(name, buf, sizeof buf));
    cJSON_ArrayForEach(id, ids)
    {
        int32_t v;
        TR_PASS(tr_tok_load_id(id, name, &v));
        TR_PASS(tr_ids_add(out, v));
    }
    return TR_OK;
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
        TR_TRY(tr_fail(TR_USAGE, "\"single\" holds the text %d times; only one time is supported", n_texts));
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

static const struct tr_tok_stage_type post_processors[] = {
    { "ByteLevel", post_nothing },
    { "TemplateProcessing", post_template },
    { "BertProcessing", post_pair },
    { "RobertaProcessing", post_pair },
};

/* ---- decoder ---- */

static enum tr_status add_decode(struct tr_tokenizer *t, enum tr_tok_decode_kind kind, struct tr_tok_decode **out)
{
    if (t->n_decodes == TR_TOK_STEPS_MAX)
        return tr_fail(TR_USAGE, "more than %d steps", TR_TOK_STEPS_MAX);
    *out = &t->decodes[t->n_decodes++];
    (*out)->kind = kind;
    return TR_OK;
}

#define PLAIN_DECODE(name, kind)                                                                                       \
    static enum tr_status name(struct tr_tokenizer *t, const cJSON *x)                                                 \
    {                                                                                                                  \
        struct tr_tok_decode *step = NULL;                                                                             \
        (void)x;                                                                                                       \
        return add_decode(t, kind, &step);                                                                             \
    }
PLAIN_DECODE(decode_bytes, TR_TOK_DECODE_BYTES)
PLAIN_DECODE(decode_fuse, TR_TOK_DECODE_FUSE)
PLAIN_DECODE(decode_fallback, TR_TOK_DECODE_FALLBACK)

static enum tr_status decode_metaspace(struct tr_tokenizer *t, const cJSON *x)
{
    struct tr_tok_decode *step = NULL;
    enum tr_tok_prepend prepend;
    TR_PASS(add_decode(t, TR_TOK_DECODE_METASPACE, &step));
    TR_PASS(tr_tok_load_char(x, "replacement", &step->pattern));
    TR_PASS(tr_tok_load_scheme(x, &prepend));
    step->keeps_first = prepend == TR_TOK_PREPEND_NEVER;
    return TR_OK;
}

static enum tr_status decode_replace(struct tr_tokenizer *t, const cJSON *x)
{
    struct tr_tok_decode *step = NULL;
    TR_PASS(add_decode(t, TR_TOK_DECODE_REPLACE, &step));
    TR_PASS(tr_tok_load_pattern(x, &step->pattern));
    return tr_tok_load_text(x, "content", &step->text, &step->n);
}

static enum tr_status decode_strip(struct tr_tokenizer *t, const cJSON *x)
{
    struct tr_tok_decode *step = NULL;
    TR_PASS(add_decode(t, TR_TOK_DECODE_STRIP, &step));
    TR_PASS(tr_tok_load_char(x, "content", &step->pattern));
    TR_PASS(tr_json_int(x, "start", true, 0, INT32_MAX, &step->start));
    return tr_json_int(x, "stop", true, 0, INT32_MAX, &step->stop);
}

static enum tr_status decode_wordpiece(struct tr_tokenizer *t, const cJSON *x)
{
    struct tr_tok_decode *step = NULL;
    TR_PASS(add_decode(t, TR_TOK_DECODE_WORDPIECE, &step));
    TR_PASS(tr_tok_load_text(x, "prefix", &step->pattern.text, &step->pattern.n));
    return tr_json_bool(x, "cleanup", true, &step->cleanup);
}

static enum tr_status decode_bpe(struct tr_tokenizer *t, const cJSON *x)
{
    struct tr_tok_decode *step = NULL;
    TR_PASS(add_decode(t, TR_TOK_DECODE_BPE, &step));
    return tr_tok_load_text(x, "suffix", &step->pattern.text, &step->pattern.n);
}

static const struct tr_tok_stage_type decoders[] = {
    { "ByteLevel", decode_bytes },     { "Metaspace", decode_metaspace },   { "Replace", decode_replace },
    { "Fuse", decode_fuse },           { "ByteFallback", decode_fallback }, { "Strip", decode_strip },
    { "WordPiece", decode_wordpiece }, { "BPEDecoder", decode_bpe },
};

enum tr_status tr_tok_load_output(struct tr_tokenizer *t, const cJSON *root)
{
    const cJSON *x = cJSON_GetObjectItemCaseSensitive(root, "post_processor");
    if (x && !cJSON_IsNull(x))
        TR_PASS(tr_tok_load_stage(t, x, "post_processor", post_processors, TR_COUNT_OF(post_processors), "processors"));
    x = cJSON_GetObjectItemCaseSensitive(root, "decoder");
    if (x && !cJSON_IsNull(x))
        TR_PASS(tr_tok_load_stage(t, x, "decoder", decoders, TR_COUNT_OF(decoders), "decoders"));
    t->has_decoder = x && !cJSON_IsNull(x);
    return TR_OK;
}
