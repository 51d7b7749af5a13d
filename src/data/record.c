/* record.c - see record.h. Every decision depends only on the bytes of the line and the rules, so all runs agree.
 *
 * Prompt and answer are encoded separately, so that the boundary of the mask is a boundary of tokens: at inference the
 * model sees exactly the ids of the prompt. Rejected: encoding them together and finding the boundary afterwards (a
 * token may cross it).
 */
#include "data/record.h"

#include <math.h>
#include <string.h>

#define X(name, text) text,
static const char *const shape_names[] = { TR_SHAPE_LIST(X) };
static const char *const packing_names[] = { TR_PACK_LIST(X) };
#undef X
_Static_assert(TR_COUNT_OF(shape_names) == TR_SHAPE_COUNT && TR_COUNT_OF(packing_names) == TR_PACK_COUNT, "one each");

const char *tr_shape_name(enum tr_shape shape)
{
    return shape_names[shape];
}

const char *tr_packing_name(enum tr_packing packing)
{
    return packing_names[packing];
}

void tr_doc_release(struct tr_doc *doc)
{
    tr_ids_release(&doc->ids);
    tr_str_release(&doc->mask);
    tr_str_release(&doc->line);
}

/* ---- shapes ---- */

/* The first match wins, because records often hold a rendered "text" beside the members from which it was made. */
static const struct {
    enum tr_shape shape;
    const char *keys[2];
} shapes[] = {
    { TR_SHAPE_MESSAGES, { "messages", NULL } },      { TR_SHAPE_SHAREGPT, { "conversations", NULL } },
    { TR_SHAPE_TOKENS, { "input_ids", NULL } },       { TR_SHAPE_COMPLETION, { "prompt", "completion" } },
    { TR_SHAPE_ALPACA, { "instruction", "output" } }, { TR_SHAPE_TEXT, { "text", NULL } },
};

static bool has_member(const cJSON *record, const char *key)
{
    return !key || cJSON_GetObjectItemCaseSensitive(record, key) != NULL;
}

static enum tr_status refuse_shape(const cJSON *record)
{
    char keys[160] = "", shown[48];
    size_t n = 0;
    for (const cJSON *m = record->child; m && n < sizeof keys - sizeof shown - 8; m = m->next)
        n += (size_t)snprintf(keys + n, sizeof keys - n, "%s%s", n ? ", " : "",
                              tr_escape(m->string, shown, sizeof shown));
    if (has_member(record, "chosen") && has_member(record, "rejected"))
        return tr_fail(TR_USAGE, "a record with \"chosen\" and \"rejected\" is a preference pair; give records to "
                                 "imitate: prompt and completion, or messages");
    return tr_fail(TR_USAGE,
                   "the members (%s) are not those of a known record: text, prompt + completion, instruction + output, "
                   "messages, conversations, or input_ids; name the member that holds the text with text_key",
                   keys);
}

/* Cleans the line and parses it into *out. A line of white space alone is refused. */
static enum tr_status parse_line(const char *line, size_t n, bool keeps_numbers, struct tr_str *clean, cJSON **out)
{
    size_t n_used;
    tr_str_clear(clean);
    tr_utf8_clean(line, n, true, clean, &n_used);
    if (!tr_str_ok(clean))
        return tr_fail(TR_NOMEM, "no memory for a line of %zu bytes", n);
    if (clean->n == 0 || strspn(clean->p, " \t\r") == clean->n)
        return tr_fail(TR_USAGE, "the line is empty");
    enum tr_status st = keeps_numbers ? tr_chat_parse(clean->p, clean->n, "record", out)
                                      : tr_json_parse(clean->p, clean->n, "record", out);
    if (st == TR_OK && !cJSON_IsObject(*out)) {
        cJSON_Delete(*out);
        *out = NULL;
        st = tr_fail(TR_USAGE, "the record is not a JSON object");
    }
    return st;
}

enum tr_status tr_record_detect(const char *line, size_t n, bool *is_object, enum tr_shape *out)
{
    enum tr_status st = TR_OK;
    struct tr_str clean = { 0 };
    cJSON *record = NULL;
    *is_object = false;
    TR_TRY(parse_line(line, n, false, &clean, &record));
    *is_object = true;
    for (size_t i = 0; i < TR_COUNT_OF(shapes); i++)
        if (has_member(record, shapes[i].keys[0]) && has_member(record, shapes[i].keys[1])) {
            *out = shapes[i].shape;
            goto out;
        }
    st = refuse_shape(record);
out:
    cJSON_Delete(record);
    tr_str_release(&clean);
    return st;
}

/* ---- text, prompt and completion ---- */

static enum tr_status add_mask(struct tr_doc *doc, bool is_target)
{
    while (doc->mask.n < doc->ids.n && tr_str_ok(&doc->mask))
        tr_str_add(&doc->mask, is_target ? "\1" : "\0", 1);
    return tr_str_ok(&doc->mask) ? TR_OK : tr_fail(TR_NOMEM, "no memory for a loss mask");
}

enum tr_status tr_doc_begin(const struct tr_tokenizer *t, struct tr_ids *ids)
{
    enum tr_status st = TR_OK;
    const struct tr_ids *before = tr_tokenizer_before(t);
    for (size_t i = 0; i < before->n && st == TR_OK; i++)
        st = tr_ids_add(ids, before->p[i]);
    return st;
}

enum tr_status tr_doc_end(const struct tr_tokenizer *t, struct tr_ids *ids)
{
    int32_t eos = tr_tokenizer_eos(t);
    return eos < 0 ? TR_OK : tr_ids_add(ids, eos);
}

/* The ids before the text, then those of the text. A text that brings the BOS which the tokenizer puts in front keeps
 * one of the two. */
static enum tr_status begin_with(const struct tr_tokenizer *t, const char *text, struct tr_ids *ids)
{
    enum tr_status st = TR_OK;
    size_t n_old = ids->n;
    TR_TRY(tr_doc_begin(t, ids));
    size_t at = ids->n;
    TR_TRY(tr_tokenizer_encode(t, text, strlen(text), ids));
    if (at > n_old && at < ids->n && ids->p[at] == ids->p[at - 1] && ids->p[at] == tr_tokenizer_bos(t))
        memmove(ids->p + at, ids->p + at + 1, (--ids->n - at) * sizeof *ids->p);
out:
    return st;
}

static enum tr_status encode_text(const struct tr_record_rules *r, const cJSON *record, struct tr_doc *doc)
{
    enum tr_status st = TR_OK;
    const char *text = NULL;
    TR_TRY(tr_json_str(record, r->text_key, true, &text));
    if (!*text)
        TR_TRY(tr_fail(TR_USAGE, "\"%s\" is empty", r->text_key));
    TR_TRY(begin_with(r->tokenizer, text, &doc->ids));
    TR_TRY(tr_doc_end(r->tokenizer, &doc->ids));
out:
    return st;
}

static enum tr_status encode_pair(const struct tr_record_rules *r, const char *prompt, const char *answer,
                                  struct tr_doc *doc)
{
    enum tr_status st = TR_OK;
    TR_TRY(begin_with(r->tokenizer, prompt, &doc->ids));
    TR_TRY(add_mask(doc, r->mask == TR_MASK_ALL));
    TR_TRY(tr_tokenizer_encode(r->tokenizer, answer, strlen(answer), &doc->ids));
    TR_TRY(tr_doc_end(r->tokenizer, &doc->ids));
    TR_TRY(add_mask(doc, true));
out:
    return st;
}

static enum tr_status encode_completion(const struct tr_record_rules *r, const cJSON *record, struct tr_doc *doc)
{
    enum tr_status st = TR_OK;
    const char *prompt = NULL, *completion = NULL;
    TR_TRY(tr_json_str(record, "prompt", true, &prompt));
    TR_TRY(tr_json_str(record, "completion", true, &completion));
    if (!*completion)
        TR_TRY(tr_fail(TR_USAGE, "\"completion\" is empty, so there is nothing to train on"));
    TR_TRY(encode_pair(r, prompt, completion, doc));
out:
    return st;
}

/* ---- conversations ---- */

static enum tr_status encode_messages(const struct tr_record_rules *r, const cJSON *record, const cJSON *messages,
                                      struct tr_doc *doc)
{
    enum tr_status st = TR_OK;
    cJSON *tools = NULL;
    if (!cJSON_IsArray(messages) || !messages->child)
        TR_TRY(tr_fail(TR_USAGE, "the conversation is not a list of messages, or the list is empty"));
    TR_TRY(tr_chat_record_tools(record, &tools));
    TR_TRY(tr_chat_encode(r->chat, r->tokenizer, messages, tools, r->mask, &doc->ids, &doc->mask));
out:
    cJSON_Delete(tools);
    return st;
}

static enum tr_status encode_made(const struct tr_record_rules *r, const cJSON *record,
                                  enum tr_status (*make)(const cJSON *record, cJSON *messages), struct tr_doc *doc)
{
    enum tr_status st = TR_OK;
    cJSON *messages = cJSON_CreateArray();
    if (!messages)
        TR_TRY(tr_fail(TR_NOMEM, "no memory for a conversation"));
    TR_TRY(make(record, messages));
    TR_TRY(encode_messages(r, record, messages, doc));
out:
    cJSON_Delete(messages);
    return st;
}

static enum tr_status encode_alpaca(const struct tr_record_rules *r, const cJSON *record, struct tr_doc *doc)
{
    enum tr_status st = TR_OK;
    struct tr_str prompt = { 0 };
    const char *answer = NULL;
    if (r->chat)
        return encode_made(r, record, tr_chat_alpaca_messages, doc);
    TR_TRY(tr_chat_alpaca_text(record, &prompt, &answer));
    TR_TRY(encode_pair(r, prompt.p, answer, doc));
out:
    tr_str_release(&prompt);
    return st;
}

/* ---- ids ---- */

static bool is_id(const cJSON *x)
{
    return cJSON_IsNumber(x) && x->valuedouble >= 0 && x->valuedouble <= INT32_MAX &&
           x->valuedouble == floor(x->valuedouble);
}

static enum tr_status list_member(const cJSON *record, const char *key, bool is_required, const cJSON **out)
{
    *out = cJSON_GetObjectItemCaseSensitive(record, key);
    if (cJSON_IsNull(*out))
        *out = NULL;
    if (*out ? !cJSON_IsArray(*out) : is_required)
        return tr_fail(TR_USAGE, "\"%s\" is %s", key, *out ? "not a list" : "missing");
    return TR_OK;
}

/* attention_mask is optional and must be all 1, because padding inside a row would be trained on. */
static enum tr_status encode_tokens(const struct tr_record_rules *r, const cJSON *record, struct tr_doc *doc)
{
    enum tr_status st = TR_OK;
    const cJSON *ids, *labels, *attention;
    int at = 0;
    (void)r;
    TR_TRY(list_member(record, "input_ids", true, &ids));
    TR_TRY(list_member(record, "labels", false, &labels));
    TR_TRY(list_member(record, "attention_mask", false, &attention));
    int n = cJSON_GetArraySize(ids);
    if (n == 0)
        TR_TRY(tr_fail(TR_USAGE, "\"input_ids\" is empty"));
    if ((labels && cJSON_GetArraySize(labels) != n) || (attention && cJSON_GetArraySize(attention) != n))
        TR_TRY(tr_fail(TR_USAGE, "\"labels\" or \"attention_mask\" is not as long as the %d \"input_ids\"", n));
    const cJSON *label = labels ? labels->child : NULL, *seen = attention ? attention->child : NULL;
    for (const cJSON *id = ids->child; id; id = id->next, at++) {
        if (!is_id(id))
            TR_TRY(tr_fail(TR_USAGE, "\"input_ids\" at %d is not a token id", at));
        bool is_target = !label || (is_id(label) && label->valuedouble == id->valuedouble);
        if (!is_target && !(cJSON_IsNumber(label) && label->valuedouble == TR_TARGET_NONE))
            TR_TRY(tr_fail(TR_USAGE, "\"labels\" at %d is neither the token's id nor -100", at));
        if (seen && !(cJSON_IsNumber(seen) && seen->valuedouble == 1))
            TR_TRY(tr_fail(TR_USAGE, "\"attention_mask\" at %d is not 1; give records without padding", at));
        TR_TRY(tr_ids_add(&doc->ids, (int32_t)id->valuedouble));
        TR_TRY(add_mask(doc, is_target));
        label = label ? label->next : NULL;
        seen = seen ? seen->next : NULL;
    }
out:
    return st;
}

/* ---- any ---- */

static enum tr_status encode_shape(const struct tr_record_rules *r, const cJSON *record, struct tr_doc *doc)
{
    switch (r->shape) {
    case TR_SHAPE_TEXT:
        return encode_text(r, record, doc);
    case TR_SHAPE_COMPLETION:
        return encode_completion(r, record, doc);
    case TR_SHAPE_ALPACA:
        return encode_alpaca(r, record, doc);
    case TR_SHAPE_MESSAGES:
        if (!has_member(record, "messages"))
            return tr_fail(TR_USAGE, "\"messages\" is missing");
        return encode_messages(r, record, cJSON_GetObjectItemCaseSensitive(record, "messages"), doc);
    case TR_SHAPE_SHAREGPT:
        return encode_made(r, record, tr_chat_sharegpt_messages, doc);
    case TR_SHAPE_TOKENS:
        return encode_tokens(r, record, doc);
    case TR_SHAPE_AUTO:
    case TR_SHAPE_COUNT:
        break;
    }
    TR_BUG_ON(true);
    return TR_USAGE;
}

enum tr_status tr_record_encode(const struct tr_record_rules *r, const char *line, size_t n, struct tr_doc *doc)
{
    enum tr_status st = TR_OK;
    cJSON *record = NULL;
    size_t n_ids = doc->ids.n, n_mask = doc->mask.n;
    TR_TRY(parse_line(line, n, r->shape == TR_SHAPE_MESSAGES, &doc->line, &record));
    TR_TRY(encode_shape(r, record, doc));
    if (doc->ids.n == n_ids)
        TR_TRY(tr_fail(TR_USAGE, "the record has no tokens"));
    /* The first token cannot be a target, because no token before it could predict it. */
    if (r->shape != TR_SHAPE_TEXT && !memchr(doc->mask.p + n_mask + 1, 1, doc->mask.n - n_mask - 1))
        TR_TRY(tr_fail(TR_USAGE, "no token of the record has a loss"));
out:
    cJSON_Delete(record);
    if (st != TR_OK) {
        doc->ids.n = n_ids;
        if (tr_str_ok(&doc->mask))
            doc->mask.n = n_mask;
    }
    return st;
}
