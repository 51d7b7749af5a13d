/* encode_chat.c - records that are conversations: lists of messages, which the chat template renders.
 *
 * A member that is null counts as absent, as in TRL: columns of tables hold null wherever another record of the same
 * column has a member that this one lacks.
 */
#include "data/encode.h"

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

/* The first n_prompt messages are the prompt, if the record says so. */
static enum tr_status encode(const struct tr_record_rules *r, const cJSON *record, cJSON *messages, size_t n_prompt,
                             struct tr_doc *doc)
{
    enum tr_status st = TR_OK;
    cJSON *tools = NULL;
    const cJSON *vars = cJSON_GetObjectItemCaseSensitive(record, "chat_template_kwargs");
    if (!cJSON_IsArray(messages) || !messages->child)
        TR_TRY(tr_fail(TR_USAGE, "the conversation is not a list of messages, or the list is empty"));
    if (vars && !cJSON_IsObject(vars) && !cJSON_IsNull(vars))
        TR_TRY(tr_fail(TR_USAGE, "\"chat_template_kwargs\" is not an object of template variables"));
    TR_TRY(tr_chat_record_tools(record, &tools));
    drop_nulls(messages);
    drop_nulls(tools);
    TR_TRY(tr_chat_encode(
        r->chat, r->tokenizer,
        &(struct tr_conversation){ .messages = messages, .tools = tools, .vars = vars, .n_prompt = n_prompt }, r->mask,
        &doc->ids, &doc->mask));
out:
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
