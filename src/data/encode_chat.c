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

/* What map and messages say of the losses of messages: arrays with an element for each. */
struct losses {
    int8_t *has_loss; /* as in tr_conversation; NULL: nothing is said */
    uint32_t *weight; /* in units */
};

/* OpenAI's mark of a message, or LLaMA-Factory's. */
static cJSON *weight_of(const cJSON *message)
{
    cJSON *weight = cJSON_GetObjectItemCaseSensitive(message, "weight");
    return weight ? weight : cJSON_GetObjectItemCaseSensitive(message, "loss_weight");
}

/* With weight 0 a message has no loss, with 1 it has that of its role, with another one that much of it. */
static enum tr_status read_weight(const struct tr_record_rules *r, cJSON *message, int8_t *has_loss, uint32_t *out)
{
    cJSON *weight = weight_of(message);
    *out = TR_WEIGHT_ONE;
    if (!weight)
        return TR_OK;
    if (!cJSON_IsNumber(weight))
        return tr_fail(TR_USAGE, "the \"weight\" of a message is no number");
    TR_PASS(tr_weight_read(r, weight, "the \"weight\" of a message", out));
    if (*out == 0)
        *has_loss = 0;
    cJSON_Delete(cJSON_DetachItemViaPointer(message, weight)); /* it is no part of what the template writes */
    return TR_OK;
}

static bool has_weights(const cJSON *messages)
{
    const cJSON *m;
    cJSON_ArrayForEach(m, messages)
    {
        if (weight_of(m))
            return true;
    }
    return false;
}

static enum tr_status find_losses(const struct tr_record_rules *r, cJSON *messages, struct losses *out)
{
    const struct tr_source_map *map = r->map;
    size_t i = 0, n = (size_t)cJSON_GetArraySize(messages) + 1;
    bool is_mapped = map && (map->train_roles || cJSON_GetObjectItemCaseSensitive(map->message, "train"));
    if (!is_mapped && !has_weights(messages))
        return TR_OK;
    TR_PASS(TR_ALLOC(out->has_loss, n, "a conversation"));
    TR_PASS(TR_ALLOC(out->weight, n, "a conversation"));
    for (cJSON *m = messages->child; m; m = m->next, i++) {
        out->has_loss[i] = -1;
        if (is_mapped)
            TR_PASS(tr_map_loss(map, m, &out->has_loss[i]));
        TR_PASS(read_weight(r, m, &out->has_loss[i], &out->weight[i]));
    }
    return TR_OK;
}

/* The targets of messages with this weight are those that the conversation has when the others have no loss. */
static enum tr_status weigh_messages(const struct tr_record_rules *r, const struct tr_conversation *all,
                                     const struct losses *l, uint32_t weight, size_t first, struct tr_doc *doc)
{
    enum tr_status st = TR_OK;
    struct tr_conversation some = *all;
    struct tr_ids ids = { 0 };
    struct tr_str mask = { 0 };
    int8_t *has_loss = NULL;
    size_t n = (size_t)cJSON_GetArraySize(all->messages);
    TR_TRY(TR_ALLOC(has_loss, n + 1, "a conversation"));
    for (size_t i = 0; i < n; i++)
        has_loss[i] = l->weight[i] == weight ? l->has_loss[i] : 0;
    some.has_loss = has_loss;
    st = tr_chat_encode(r->chat, r->tokenizer, &some, r->mask, &ids, &mask);
    if (st == TR_USAGE) { /* these messages have no target: the template writes them differently in history */
        tr_error_clear();
        st = TR_OK;
    }
    for (size_t i = 0; i < mask.n && st == TR_OK; i++)
        if (mask.p[i])
            tr_doc_put_weight(doc, first + i, weight);
out:
    free(has_loss);
    tr_ids_release(&ids);
    tr_str_release(&mask);
    return st;
}

static enum tr_status weigh(const struct tr_record_rules *r, const struct tr_conversation *what, const struct losses *l,
                            size_t first, struct tr_doc *doc)
{
    enum { MOST = 16 };
    uint32_t seen[MOST + 1] = { TR_WEIGHT_ONE };
    size_t n_seen = 1, n = l->weight ? (size_t)cJSON_GetArraySize(what->messages) : 0;
    TR_PASS(tr_doc_weigh(doc, TR_WEIGHT_ONE));
    for (size_t i = 0, k; i < n; i++) {
        for (k = 0; k < n_seen && seen[k] != l->weight[i]; k++)
            ;
        if (k < n_seen || l->weight[i] == 0)
            continue;
        if (r->mask != TR_MASK_ASSISTANT && r->mask != TR_MASK_LAST)
            return tr_fail(TR_USAGE, "messages with a \"weight\" need --train_on assistant or last");
        if (n_seen > MOST)
            return tr_fail(TR_USAGE, "the messages have more than %d different weights", MOST);
        seen[n_seen++] = l->weight[i];
        TR_PASS(weigh_messages(r, what, l, l->weight[i], first, doc));
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
    struct losses losses = { 0 };
    size_t first = doc->ids.n;
    if (!cJSON_IsArray(messages) || !messages->child)
        TR_TRY(tr_fail(TR_USAGE, "the conversation is not a list of messages, or the list is empty"));
    what.vars = cJSON_GetObjectItemCaseSensitive(record, "chat_template_kwargs");
    if (what.vars && !cJSON_IsObject(what.vars) && !cJSON_IsNull(what.vars))
        TR_TRY(tr_fail(TR_USAGE, "\"chat_template_kwargs\" is not an object of template variables"));
    TR_TRY(tr_chat_record_tools(record, &tools));
    drop_nulls(messages);
    drop_nulls(tools);
    TR_TRY(find_losses(r, messages, &losses));
    what.tools = tools;
    TR_TRY(tr_chat_read_parts(r->chat, &what, messages));
    what.has_loss = losses.has_loss;
    TR_TRY(tr_chat_encode(r->chat, r->tokenizer, &what, r->mask, &doc->ids, &doc->mask));
    TR_TRY(r->reads_weights ? weigh(r, &what, &losses, first, doc) : TR_OK);
out:
    free(losses.has_loss);
    free(losses.weight);
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
