/* encode_pair.c - a record with two answers to one prompt, of which the first is better.
 *
 * The document is the chosen answer behind its prompt, then the rejected answer behind the same prompt: prompt, answer,
 * prompt, answer. Answers are the targets, and no first token is one, so the mask alone says where the second half
 * begins: at the first token that is no target behind one that is. A pair therefore packs, moves and is named like any
 * other document. Three kinds of data: texts (TRL's standard format), messages, and the columns of LLaMA-Factory and
 * axolotl, which become messages. Where no prompt is given it is what both answers begin with.
 */
#include "data/encode.h"

#include <string.h>

static enum tr_status no_memory(void)
{
    return tr_fail(TR_NOMEM, "no memory for a preference");
}

cJSON *tr_pair_member(const cJSON *record, const char *const *names)
{
    for (; *names; names++) {
        cJSON *m = cJSON_GetObjectItemCaseSensitive(record, *names);
        if (m && !cJSON_IsNull(m))
            return m;
    }
    return NULL;
}

static const char *text_of(const cJSON *record, const char *key)
{
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(record, key));
    return text && *text ? text : NULL;
}

/* A message of ShareGPT ("from", "value") or of OpenAI ("role", "content"). */
static enum tr_status add_copy(cJSON *messages, const cJSON *message)
{
    static const char *const roles[][2] = { { "human", "user" },
                                            { "gpt", "assistant" },
                                            { "chatgpt", "assistant" },
                                            { "function_call", "assistant" },
                                            { "observation", "tool" } };
    const char *from = text_of(message, "from"), *value = text_of(message, "value");
    if (from && value) {
        for (size_t i = 0; i < TR_COUNT_OF(roles); i++)
            from = strcmp(from, roles[i][0]) == 0 ? roles[i][1] : from;
        return tr_chat_add_message(messages, from, value);
    }
    if (!cJSON_IsObject(message))
        return tr_fail(TR_USAGE, "a message of the record is not an object with a role and its content");
    cJSON *copy = cJSON_Duplicate(message, true);
    if (cJSON_AddItemToArray(messages, copy))
        return TR_OK;
    cJSON_Delete(copy);
    return no_memory();
}

static enum tr_status add_list(cJSON *messages, const cJSON *list, int first, int n)
{
    for (int i = first; i < first + n; i++)
        TR_PASS(add_copy(messages, cJSON_GetArrayItem(list, i)));
    return TR_OK;
}

/* ---- one half ---- */

/* Appends one half, encoded as a record of another shape, and checks that its targets are all of its end. */
static enum tr_status add_half(const struct tr_record_rules *r, cJSON *record,
                               enum tr_status (*encode)(const struct tr_record_rules *, cJSON *, struct tr_doc *),
                               struct tr_doc *doc)
{
    struct tr_record_rules rules = *r;
    size_t first = doc->mask.n;
    rules.mask = TR_MASK_COMPLETION;
    TR_PASS(encode(&rules, record, doc));
    uint8_t *mask = (uint8_t *)doc->mask.p;
    if (doc->mask.n == first)
        return tr_fail(TR_USAGE, "an answer has no tokens");
    mask[first] = 0; /* no token predicts it */
    size_t at = first;
    while (at < doc->mask.n && !mask[at])
        at++;
    if (at == doc->mask.n)
        return tr_fail(TR_USAGE, "an answer has no token to train on");
    for (; at < doc->mask.n; at++)
        mask[at] = 1;
    return TR_OK;
}

enum tr_status tr_pair_add_texts(const struct tr_record_rules *r, const char *prompt, const char *answer,
                                 struct tr_doc *doc)
{
    enum tr_status st = TR_OK;
    cJSON *record = cJSON_CreateObject();
    if (!cJSON_AddStringToObject(record, "prompt", prompt) || !cJSON_AddStringToObject(record, "completion", answer))
        TR_TRY(no_memory());
    TR_TRY(add_half(r, record, tr_encode_completion, doc));
out:
    cJSON_Delete(record);
    return st;
}

/* Everything behind the prompt's messages is the answer: a list of messages, a single one, or the assistant's text. */
enum tr_status tr_pair_add_answer(const struct tr_record_rules *r, const cJSON *source, const cJSON *prompt,
                                  const cJSON *answer, int n_skip, struct tr_doc *doc)
{
    enum tr_status st = TR_OK;
    cJSON *record = cJSON_CreateObject(), *asked = cJSON_AddArrayToObject(record, "prompt");
    cJSON *list = cJSON_AddArrayToObject(record, "completion");
    cJSON *tools = cJSON_GetObjectItemCaseSensitive(source, "tools");
    if (!asked || !list)
        TR_TRY(no_memory());
    if (!r->chat)
        TR_TRY(tr_fail(TR_USAGE,
                       "conversations need a chat template, but the model has none; name one: --chat_template "
                       "chatml, llama3, ... or a .jinja file"));
    TR_TRY(add_list(asked, prompt, 0, cJSON_GetArraySize(prompt)));
    if (cJSON_IsString(answer))
        TR_TRY(tr_chat_add_message(list, "assistant", answer->valuestring));
    else if (cJSON_IsArray(answer))
        TR_TRY(add_list(list, answer, n_skip, cJSON_GetArraySize(answer) - n_skip));
    else
        TR_TRY(add_copy(list, answer));
    if (tools && !cJSON_AddItemToObject(record, "tools", cJSON_Duplicate(tools, true)))
        TR_TRY(no_memory());
    TR_TRY(add_half(r, record, tr_encode_chat_completion, doc));
out:
    cJSON_Delete(record);
    return st;
}

/* ---- the prompt ---- */

/* What two texts begin with. Like TRL, a space in front of the difference belongs to the answers. */
static size_t shared_text(const char *a, const char *b)
{
    size_t n = 0;
    while (a[n] && a[n] == b[n])
        n++;
    while (n > 0 && ((unsigned char)a[n] & 0xc0) == 0x80)
        n--;
    return n > 0 && a[n - 1] == ' ' ? n - 1 : n;
}

static int shared_messages(const cJSON *a, const cJSON *b)
{
    int n = 0;
    const cJSON *x = a->child, *y = b->child;
    for (; x && y && cJSON_Compare(x, y, true); x = x->next, y = y->next)
        n++;
    return n;
}

/* The messages of a prompt that is in columns: a conversation, or a question with a system text and history. */
enum tr_status tr_pair_read_prompt(const cJSON *record, cJSON *out)
{
    static const char *const lists[] = { "prompt", "conversations", "messages", NULL };
    static const char *const texts[] = { "instruction", "question", "input", "prompt", NULL };
    enum tr_status st = TR_OK;
    struct tr_str user = { 0 };
    const cJSON *list = tr_pair_member(record, lists), *text = tr_pair_member(record, texts);
    const cJSON *history = cJSON_GetObjectItemCaseSensitive(record, "history");
    const char *system = text_of(record, "system"), *input = text_of(record, "input");
    if (system)
        TR_TRY(tr_chat_add_message(out, "system", system));
    if (cJSON_IsArray(list))
        return add_list(out, list, 0, cJSON_GetArraySize(list));
    for (const cJSON *t = cJSON_IsArray(history) ? history->child : NULL; t; t = t->next) {
        const char *asked = cJSON_GetStringValue(t->child);
        const char *said = t->child ? cJSON_GetStringValue(t->child->next) : NULL;
        if (!asked || !said)
            TR_TRY(tr_fail(TR_USAGE, "\"history\" is not a list of [instruction, response]"));
        TR_TRY(tr_chat_add_message(out, "user", asked));
        TR_TRY(tr_chat_add_message(out, "assistant", said));
    }
    if (!cJSON_IsString(text))
        TR_TRY(tr_fail(TR_USAGE, "the record has no prompt: give \"prompt\", or pairs of answers that begin with the "
                                 "same words or messages"));
    bool has_input = text_of(record, "instruction") && input;
    tr_str_addf(&user, "%s%s%s", text->valuestring, has_input ? "\n" : "", has_input ? input : "");
    if (!tr_str_ok(&user))
        TR_TRY(no_memory());
    TR_TRY(tr_chat_add_message(out, "user", user.p));
out:
    tr_str_release(&user);
    return st;
}

/* ---- a record ---- */

static enum tr_status encode_texts(const struct tr_record_rules *r, const cJSON *prompt, const cJSON *const answer[2],
                                   struct tr_doc *doc)
{
    enum tr_status st = TR_OK;
    const char *text[2] = { answer[0]->valuestring, answer[1]->valuestring };
    size_t n = prompt ? 0 : shared_text(text[0], text[1]);
    char *shared = prompt ? NULL : strndup(text[0], n);
    if (!prompt && !shared)
        return no_memory();
    for (int i = 0; i < 2; i++)
        TR_TRY(tr_pair_add_texts(r, prompt ? prompt->valuestring : shared, text[i] + n, doc));
out:
    free(shared);
    return st;
}

/* Answers that are whole conversations hold the prompt themselves. */
static enum tr_status encode_lists(const struct tr_record_rules *r, const cJSON *record, const cJSON *const answer[2],
                                   struct tr_doc *doc)
{
    const cJSON *given = cJSON_GetObjectItemCaseSensitive(record, "prompt");
    enum tr_status st = TR_OK;
    cJSON *prompt = cJSON_CreateArray();
    int n = cJSON_IsArray(given) ? 0 : shared_messages(answer[0], answer[1]);
    if (!prompt)
        return no_memory();
    if (cJSON_IsArray(given))
        TR_TRY(add_list(prompt, given, 0, cJSON_GetArraySize(given)));
    else
        TR_TRY(add_list(prompt, answer[0], 0, n));
    for (int i = 0; i < 2; i++) {
        if (cJSON_GetArraySize(answer[i]) <= n)
            TR_TRY(tr_fail(TR_USAGE,
                           "an answer of the pair has no message of its own behind the %d messages that "
                           "both begin with",
                           n));
        TR_TRY(tr_pair_add_answer(r, record, prompt, answer[i], n, doc));
    }
out:
    cJSON_Delete(prompt);
    return st;
}

static enum tr_status encode_columns(const struct tr_record_rules *r, const cJSON *record, const cJSON *const answer[2],
                                     struct tr_doc *doc)
{
    enum tr_status st = TR_OK;
    cJSON *prompt = cJSON_CreateArray();
    if (!prompt)
        return no_memory();
    TR_TRY(tr_pair_read_prompt(record, prompt));
    for (int i = 0; i < 2; i++)
        TR_TRY(tr_pair_add_answer(r, record, prompt, answer[i], 0, doc));
out:
    cJSON_Delete(prompt);
    return st;
}

enum tr_status tr_encode_pair(const struct tr_record_rules *r, cJSON *record, struct tr_doc *doc)
{
    static const char *const names[2][4] = { { "chosen", "chosen_response", "chosen_messages", NULL },
                                             { "rejected", "rejected_response", "rejected_messages", NULL } };
    static const char *const prompts[] = { "prompt", NULL };
    static const char *const columns[] = { "instruction", "question", "conversations", "messages", "input", NULL };
    const cJSON *answer[2], *prompt = tr_pair_member(record, prompts);
    for (int i = 0; i < 2; i++) {
        answer[i] = tr_pair_member(record, names[i]);
        if (!answer[i])
            return tr_fail(TR_USAGE, "\"%s\" is missing", names[i][0]);
        if (cJSON_IsString(answer[i]) && !*answer[i]->valuestring)
            return tr_fail(TR_USAGE, "\"%s\" is empty", names[i][0]);
    }
    if (answer[0]->type != answer[1]->type ||
        !(cJSON_IsString(answer[0]) || cJSON_IsArray(answer[0]) || cJSON_IsObject(answer[0])))
        return tr_fail(TR_USAGE, "\"chosen\" and \"rejected\" must both be texts, both messages, or both lists of "
                                 "messages");
    if (cJSON_IsArray(answer[0]))
        return encode_lists(r, record, answer, doc);
    bool is_plain =
        cJSON_IsString(answer[0]) && (!prompt || cJSON_IsString(prompt)) && !tr_pair_member(record, columns);
    return is_plain ? encode_texts(r, prompt, answer, doc) : encode_columns(r, record, answer, doc);
}
