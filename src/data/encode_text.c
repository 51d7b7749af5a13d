/* encode_text.c - records that are text or ids, without a chat template.
 *
 * Prompt and answer are encoded separately, so that the boundary of the mask is a boundary of tokens: at inference the
 * model sees exactly the ids of the prompt. Rejected: encoding them together and finding the boundary afterwards (a
 * token may cross it).
 */
#include "data/encode.h"

#include <math.h>
#include <string.h>

enum tr_status tr_doc_mask(struct tr_doc *doc, bool is_target)
{
    while (doc->mask.n < doc->ids.n && tr_str_ok(&doc->mask))
        tr_str_add(&doc->mask, is_target ? "\1" : "\0", 1);
    return tr_str_check(&doc->mask, "a loss mask");
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
    size_t n_old = ids->n;
    TR_PASS(tr_doc_begin(t, ids));
    size_t at = ids->n;
    TR_PASS(tr_tokenizer_encode(t, text, strlen(text), ids));
    if (at > n_old && at < ids->n && ids->p[at] == ids->p[at - 1] && ids->p[at] == tr_tokenizer_bos(t))
        memmove(ids->p + at, ids->p + at + 1, (--ids->n - at) * sizeof *ids->p);
    return TR_OK;
}

/* A text that brings its own <eos> keeps one. */
static enum tr_status end_once(const struct tr_tokenizer *t, struct tr_ids *ids)
{
    bool has_end = ids->n > 0 && ids->p[ids->n - 1] == tr_tokenizer_eos(t);
    return has_end ? TR_OK : tr_doc_end(t, ids);
}

enum tr_status tr_encode_text(const struct tr_record_rules *r, cJSON *record, struct tr_doc *doc)
{
    const char *text = NULL;
    TR_PASS(tr_json_str(record, r->text_key, true, &text));
    if (!*text)
        return tr_fail(TR_USAGE, "\"%s\" is empty", r->text_key);
    TR_PASS(begin_with(r->tokenizer, text, &doc->ids));
    return end_once(r->tokenizer, &doc->ids);
}

static enum tr_status encode_pair(const struct tr_record_rules *r, const char *prompt, const char *answer,
                                  struct tr_doc *doc)
{
    TR_PASS(begin_with(r->tokenizer, prompt, &doc->ids));
    TR_PASS(tr_doc_mask(doc, r->mask == TR_MASK_ALL));
    TR_PASS(tr_tokenizer_encode(r->tokenizer, answer, strlen(answer), &doc->ids));
    TR_PASS(end_once(r->tokenizer, &doc->ids));
    return tr_doc_mask(doc, true);
}

enum tr_status tr_encode_completion(const struct tr_record_rules *r, cJSON *record, struct tr_doc *doc)
{
    const char *prompt = NULL, *completion = NULL;
    TR_PASS(tr_json_str(record, "prompt", true, &prompt));
    TR_PASS(tr_json_str(record, "completion", true, &completion));
    if (!*completion)
        return tr_fail(TR_USAGE, "\"completion\" is empty, so there is nothing to train on");
    TR_PASS(encode_pair(r, prompt, completion, doc));
    return TR_OK;
}

/* A prompt in the words of the source's map, and the answer. */
static enum tr_status write_formats(const struct tr_source_map *map, const cJSON *record, struct tr_str *prompt,
                                    struct tr_str *answer)
{
    const char *input = "", *system = "", *output = "";
    TR_PASS(tr_json_str(record, "input", false, &input));
    TR_PASS(tr_json_str(record, "system", false, &system));
    TR_PASS(tr_json_str(record, "output", !map->output_format, &output));
    if (*system && map->system_format)
        TR_PASS(tr_map_format(map->system_format, record, prompt));
    TR_PASS(tr_map_format(!*input && map->no_input_format ? map->no_input_format : map->prompt_format, record, prompt));
    TR_PASS(map->output_format ? tr_map_format(map->output_format, record, answer) : TR_OK);
    if (!map->output_format)
        tr_str_addf(answer, "%s", output);
    if (!tr_str_ok(prompt) || !tr_str_ok(answer))
        return tr_fail(TR_NOMEM, "no memory for a prompt");
    if (answer->n == 0)
        return tr_fail(TR_USAGE, "the answer is empty, so there is nothing to train on");
    return TR_OK;
}

enum tr_status tr_encode_alpaca(const struct tr_record_rules *r, cJSON *record, struct tr_doc *doc)
{
    enum tr_status st = TR_OK;
    struct tr_str prompt = { 0 }, own = { 0 };
    const char *answer = NULL;
    if (tr_rules_use_chat(r))
        return tr_encode_alpaca_chat(r, record, doc);
    if (r->map && r->map->prompt_format) {
        TR_TRY(write_formats(r->map, record, &prompt, &own));
        answer = own.p;
    } else {
        TR_TRY(tr_chat_alpaca_text(record, &prompt, &answer));
    }
    TR_TRY(encode_pair(r, prompt.p ? prompt.p : "", answer, doc));
out:
    tr_str_release(&prompt);
    tr_str_release(&own);
    return st;
}

/* ---- segments ---- */

/* axolotl's input_output: nothing is added, neither <bos> nor <eos>; the label says whether a segment has a loss. */
enum tr_status tr_encode_segments(const struct tr_record_rules *r, cJSON *record, struct tr_doc *doc)
{
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(record, "segments");
    int number = 0;
    if (!cJSON_IsArray(list))
        return tr_fail(TR_USAGE, "\"segments\" is %s", list ? "not a list" : "missing");
    for (const cJSON *s = list->child; s; s = s->next, number++) {
        const cJSON *label = cJSON_GetObjectItemCaseSensitive(s, "label");
        const char *text = NULL;
        uint32_t weight = 0;
        if (!cJSON_IsObject(s) || !(cJSON_IsBool(label) || cJSON_IsNumber(label)))
            return tr_fail(TR_USAGE, "segment %d has no \"label\" that is true or false", number);
        TR_PASS(tr_weight_read(r, label, "the \"label\" of a segment", &weight));
        TR_PASS(tr_json_str(s, "text", true, &text));
        TR_PASS(tr_tokenizer_encode(r->tokenizer, text, strlen(text), &doc->ids));
        TR_PASS(tr_doc_mask(doc, weight > 0 || r->mask == TR_MASK_ALL));
        TR_PASS(r->reads_weights ? tr_doc_weigh(doc, weight > 0 ? weight : TR_WEIGHT_ONE) : TR_OK);
    }
    return TR_OK;
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

/* Masks that other tools write beside ids (TRL, Megatron): 1 where a token has a loss, or its weight. All of a record
 * count. */
static const char *const loss_masks[] = { "completion_mask", "assistant_masks", "loss_mask", "loss_weights" };
enum { N_LOSS_MASKS = TR_COUNT_OF(loss_masks) };

static enum tr_status read_loss_masks(const cJSON *record, int n, const cJSON **out)
{
    for (int i = 0; i < N_LOSS_MASKS; i++) {
        TR_PASS(list_member(record, loss_masks[i], false, &out[i]));
        if (out[i] && cJSON_GetArraySize(out[i]) != n)
            return tr_fail(TR_USAGE, "\"%s\" is not as long as the %d \"input_ids\"", loss_masks[i], n);
        out[i] = out[i] ? out[i]->child : NULL;
    }
    return TR_OK;
}

/* Moves each mask on by one token. */
static enum tr_status next_of_masks(const struct tr_record_rules *r, const cJSON **mask, int at, uint32_t *weight)
{
    char what[64];
    *weight = TR_WEIGHT_ONE;
    for (int i = 0; i < N_LOSS_MASKS; i++) {
        uint32_t w = TR_WEIGHT_ONE;
        if (mask[i]) {
            TR_PASS(tr_format(what, sizeof what, "\"%s\" at %d", loss_masks[i], at));
            TR_PASS(tr_weight_read(r, mask[i], what, &w));
            mask[i] = mask[i]->next;
        }
        TR_PASS(tr_weight_times(*weight, w, weight));
    }
    return TR_OK;
}

/* attention_mask is optional and must be all 1, because padding inside a row would be trained on. */
enum tr_status tr_encode_tokens(const struct tr_record_rules *r, cJSON *record, struct tr_doc *doc)
{
    const cJSON *ids, *labels, *attention, *masks[N_LOSS_MASKS];
    uint32_t weight;
    int at = 0;
    TR_PASS(list_member(record, "input_ids", true, &ids));
    TR_PASS(list_member(record, "labels", false, &labels));
    TR_PASS(list_member(record, "attention_mask", false, &attention));
    int n = cJSON_GetArraySize(ids);
    if (n == 0)
        return tr_fail(TR_USAGE, "\"input_ids\" is empty");
    if ((labels && cJSON_GetArraySize(labels) != n) || (attention && cJSON_GetArraySize(attention) != n))
        return tr_fail(TR_USAGE, "\"labels\" or \"attention_mask\" is not as long as the %d \"input_ids\"", n);
    TR_PASS(read_loss_masks(record, n, masks));
    const cJSON *label = labels ? labels->child : NULL, *seen = attention ? attention->child : NULL;
    for (const cJSON *id = ids->child; id; id = id->next, at++) {
        if (!is_id(id))
            return tr_fail(TR_USAGE, "\"input_ids\" at %d is not a token id", at);
        bool is_target = !label || (is_id(label) && label->valuedouble == id->valuedouble);
        if (!is_target && !(cJSON_IsNumber(label) && label->valuedouble == TR_TARGET_NONE))
            return tr_fail(TR_USAGE, "\"labels\" at %d is neither the token's id nor -100", at);
        if (seen && !(cJSON_IsNumber(seen) && seen->valuedouble == 1))
            return tr_fail(TR_USAGE, "\"attention_mask\" at %d is not 1; give records without padding", at);
        TR_PASS(next_of_masks(r, masks, at, &weight));
        TR_PASS(tr_ids_add(&doc->ids, (int32_t)id->valuedouble));
        TR_PASS(tr_doc_mask(doc, is_target && weight > 0));
        TR_PASS(r->reads_weights ? tr_doc_weigh(doc, weight) : TR_OK);
        label = label ? label->next : NULL;
        seen = seen ? seen->next : NULL;
    }
    return TR_OK;
}
