/* encode_label.c - a record with one answer to a prompt, and whether that answer is a good one (KTO).
 *
 * The document is prompt and answer, as half a pair is. Its label is the mask of its first token, which no token
 * predicts, so that the mask has a place for it and needs no other. The kinds of data are those of encode_pair.c: texts
 * (TRL's standard format), messages, and the columns of LLaMA-Factory and axolotl; a conversation without another
 * answer ends in it.
 */
#include "data/encode.h"

static enum tr_status no_memory(void)
{
    return tr_fail(TR_NOMEM, "no memory for an answer with a label");
}

static enum tr_status read_label(const cJSON *record, bool *out)
{
    static const char *const names[] = { "label", "kto_tag", NULL };
    const cJSON *label = tr_pair_member(record, names);
    if (!label && cJSON_GetObjectItemCaseSensitive(record, "rejected"))
        return tr_fail(TR_USAGE,
                       "the record is a pair of answers, from which task dpo learns; task kto needs one answer "
                       "and \"label\"");
    if (!label)
        return tr_fail(TR_USAGE, "\"label\" is missing: true for a desirable answer, false for another");
    bool is_number = cJSON_IsNumber(label) && (label->valueint == 0 || label->valueint == 1) &&
                     label->valuedouble == (double)label->valueint;
    if (!cJSON_IsBool(label) && !is_number)
        return tr_fail(TR_USAGE, "\"%s\" is neither true nor false", label->string);
    *out = is_number ? label->valueint == 1 : cJSON_IsTrue(label);
    return TR_OK;
}

/* A conversation whose last message is the answer. */
static enum tr_status encode_conversation(const struct tr_record_rules *r, const cJSON *record, const cJSON *list,
                                          struct tr_doc *doc)
{
    enum tr_status st = TR_OK;
    int n = cJSON_GetArraySize(list);
    cJSON *prompt = cJSON_CreateArray();
    const char *system = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(record, "system"));
    if (!prompt)
        return no_memory();
    if (n < 2)
        TR_TRY(tr_fail(TR_USAGE, "the conversation has %d messages; it needs a prompt and the answer that is its last",
                       n));
    if (system && *system)
        TR_TRY(tr_chat_add_message(prompt, "system", system));
    for (int i = 0; i < n - 1; i++)
        if (!cJSON_AddItemToArray(prompt, cJSON_Duplicate(cJSON_GetArrayItem(list, i), true)))
            TR_TRY(no_memory());
    TR_TRY(tr_pair_add_answer(r, record, prompt, list, n - 1, doc));
out:
    cJSON_Delete(prompt);
    return st;
}

static enum tr_status encode_columns(const struct tr_record_rules *r, const cJSON *record, const cJSON *answer,
                                     struct tr_doc *doc)
{
    enum tr_status st = TR_OK;
    cJSON *prompt = cJSON_CreateArray();
    if (!prompt)
        return no_memory();
    TR_TRY(tr_pair_read_prompt(record, prompt));
    TR_TRY(tr_pair_add_answer(r, record, prompt, answer, 0, doc));
out:
    cJSON_Delete(prompt);
    return st;
}

static enum tr_status encode_answer(const struct tr_record_rules *r, const cJSON *record, struct tr_doc *doc)
{
    static const char *const answers[] = { "completion", "output", NULL };
    static const char *const lists[] = { "conversations", "messages", NULL };
    static const char *const columns[] = { "instruction", "question", "input", NULL };
    static const char *const prompts[] = { "prompt", NULL };
    const cJSON *answer = tr_pair_member(record, answers), *list = tr_pair_member(record, lists);
    const cJSON *prompt = tr_pair_member(record, prompts);
    if (!answer && cJSON_IsArray(list))
        return encode_conversation(r, record, list, doc);
    if (!answer)
        return tr_fail(TR_USAGE, "\"completion\" is missing");
    if (cJSON_IsString(answer) && !*answer->valuestring)
        return tr_fail(TR_USAGE, "\"%s\" is empty", answer->string);
    if (cJSON_IsArray(answer) && !cJSON_IsArray(prompt))
        return encode_conversation(r, record, answer, doc);
    if (cJSON_IsString(answer) && cJSON_IsString(prompt) && !list && !tr_pair_member(record, columns))
        return tr_pair_add_texts(r, prompt->valuestring, answer->valuestring, doc);
    return encode_columns(r, record, answer, doc);
}

enum tr_status tr_encode_labelled(const struct tr_record_rules *r, cJSON *record, struct tr_doc *doc)
{
    bool is_desirable = false;
    size_t first = doc->mask.n;
    TR_PASS(read_label(record, &is_desirable));
    TR_PASS(encode_answer(r, record, doc));
    ((uint8_t *)doc->mask.p)[first] = is_desirable;
    return TR_OK;
}
