/* encode_chat.c - records that are conversations: lists of messages, which the chat template renders.
 *
 * A member that is null counts as absent, as in TRL: columns of tables hold null wherever another record of the same
 * column has a member that this one lacks.
 */
#include "data/encode.h"

#include <stdlib.h>

static void drop_nulls(cJSON *item)
{
    for (cJSON *c = item ? item->child : NULL, *next; c; c = next) {
        next = c->next;
        if (cJSON_IsNull(c) && cJSON_IsObject(item))
            cJSON_Delete(cJSON_DetachItemViaPointer(item, c));
        else
            drop_nulls(c);
    }
}

/* OpenAI's mark of a message: with weight 0 it has no loss, with 1 it has that of its role. */
static enum tr_status read_weight(cJSON *message, int8_t *out)
{
    cJSON *weight = cJSON_GetObjectItemCaseSensitive(message, "weight");
    if (!weight)
        return TR_OK;
    if (!cJSON_IsNumber(weight) || (weight->valuedouble != 0 && weight->valuedouble != 1))
        return tr_fail(TR_USAGE, "the \"weight\" of a message is neither 0 nor 1");
    if (weight->valuedouble == 0)
        *out = 0;
    cJSON_Delete(cJSON_DetachItemViaPointer(message, weight)); /* it is no part of what the template writes */
    return TR_OK;
}

static bool has_weights(const cJSON *messages)
{
    const cJSON *m;
    cJSON_ArrayForEach(m, messages)
    {
        if (cJSON_GetObjectItemCaseSensitive(m, "weight"))
            return true;
    }
    return false;
}

/* Which messages have a loss, as the map of the source or the messages say: *out has a byte for each. NULL: neither
 * says. */
static enum tr_status find_losses(const struct tr_source_map *map, cJSON *messages, int8_t **out)
{
    size_t i = 0;
    bool is_mapped = map && (map->train_roles || cJSON_GetObjectItemCaseSensitive(map->message, "train"));
    *out = NULL;
    if (!is_mapped && !has_weights(messages))
        return TR_OK;
    int8_t *losses = NULL;
    TR_PASS(TR_ALLOC(losses, (size_t)cJSON_GetArraySize(messages) + 1, "a conversation"));
    *out = losses;
    for (cJSON *m = messages->child; m; m = m->next, i++) {
        losses[i] = -1;
        if (is_mapped)
            TR_PASS(tr_map_loss(map, m, &losses[i]));
        TR_PASS(read_weight(m, &losses[i]));
    }
    return TR_OK;
}

/* The first n_prompt messages are the prompt, if the record says so. */
static enum tr_status encode(const struct tr_record_rules *r, const cJSON *record, cJSON *messages, size_t n_prompt,
                             struct tr_doc *doc)
{
    enum tr_status st = TR_OK;
    struct tr_conversation what = { .messages = messages, .n_prompt = n_prompt };
    cJSON *tools = NULL;
    int8_t *losses = NULL;
    if (!cJSON_IsArray(messages) || !messages->child)
        TR_TRY(tr_fail(TR_USAGE, "the conversation is not a list of messages, or the list is empty"));
    what.vars = cJSON_GetObjectItemCaseSensitive(record, "chat_template_kwargs");
    if (what.vars && !cJSON_IsObject(what.vars) && !cJSON_IsNull(what.vars))
        TR_TRY(tr_fail(TR_USAGE, "\"chat_template_kwargs\" is not an object of template variables"));
    TR_TRY(tr_chat_record_tools(record, &tools));
    drop_nulls(messages);
    drop_nulls(tools);
    TR_TRY(find_losses(r->map, messages, &losses));
    what.tools = tools;
    what.has_loss = losses;
    TR_TRY(tr_chat_encode(r->chat, r->tokenizer, &what, r->mask, &doc->ids, &doc->mask));
out:
    free(losses);
    cJSON_Delete(tools);
    return st;
}

enum tr_status tr_encode_messages(const struct tr_record_rules *r, cJSON *record, struct tr_doc *doc)
{
    cJSON *messages = cJSON_GetObjectItemCaseSensitive(record, "messages");
    return messages ? encode(r, record, messages, 0, doc) : tr_fail(TR_USAGE, "\"messages\" is missing");
}

static enum tr_status encode_made(const struct tr_record_rules *r, const cJSON *record,
                                  enum tr_status (*make)(const cJSON *record, cJSON *messages), struct tr_doc *doc)
{
    enum tr_status st = TR_OK;
    cJSON *messages = cJSON_CreateArray();
    if (!messages)
        TR_TRY(tr_fail(TR_NOMEM, "no memory for a conversation"));
    TR_TRY(make(record, messages));
    TR_TRY(encode(r, record, messages, 0, doc));
out:
    cJSON_Delete(messages);
    return st;
}

enum tr_status tr_encode_sharegpt(const struct tr_record_rules *r, cJSON *record, struct tr_doc *doc)
{
    return encode_made(r, record, tr_chat_sharegpt_messages, doc);
}

enum tr_status tr_encode_alpaca_chat(const struct tr_record_rules *r, cJSON *record, struct tr_doc *doc)
{
    return encode_made(r, record, tr_chat_alpaca_messages, doc);
}

/* TRL's conversational prompt and completion: one conversation, of which the messages of the completion have a loss. */
enum tr_status tr_encode_chat_completion(const struct tr_record_rules *r, cJSON *record, struct tr_doc *doc)
{
    cJSON *prompt = cJSON_GetObjectItemCaseSensitive(record, "prompt");
    cJSON *completion = cJSON_GetObjectItemCaseSensitive(record, "completion");
    if (!cJSON_IsArray(prompt) || !cJSON_IsArray(completion) || !prompt->child || !completion->child)
        return tr_fail(TR_USAGE,
                       "\"prompt\" and \"completion\" are not both lists of messages with at least one message");
    int n_prompt = cJSON_GetArraySize(prompt);
    while (completion->child)
        if (!cJSON_AddItemToArray(prompt, cJSON_DetachItemViaPointer(completion, completion->child)))
            return tr_fail(TR_NOMEM, "no memory for a conversation");
    return encode(r, record, prompt, (size_t)n_prompt, doc);
}
