/* vision.c - models of text and images: gemma3, mistral3 and qwen2_5_vl.
 *
 * What is trained is the text model inside, which is one of the other files, under the names that it has in the whole
 * model. All other tensors are carried over by ckpt as they are. Rejected: a text model that is taken out and put back,
 * because the directory of such a run would be a model that no other program knows.
 */
#include "model/model_impl.h"

static const struct tr_wrapper gemma3 = { &tr_arch_gemma3, "gemma3_text", "language_model.model.",
                                          "language_model.lm_head", true };
static const struct tr_wrapper mistral3 = { &tr_arch_mistral, "mistral", "language_model.model.",
                                            "language_model.lm_head", false };
/* A token of text has one position in all three axes of the rope, so the network is that of Qwen 2. */
static const struct tr_wrapper qwen2_5 = { &tr_arch_qwen2, "qwen2_5_vl_text", "model.", "lm_head", false };

#define ROW(type, class, inner)                                                                                        \
    {                                                                                                                  \
        .model_type = type, .class_name = class, .base_prefix = "model.language_model.",                               \
        .layer_prefix = "model.language_model.layers.%d.", .wrapper = inner,                                           \
    }
const struct tr_arch tr_arch_gemma3_vision = ROW("gemma3", "Gemma3ForConditionalGeneration", &gemma3);
const struct tr_arch tr_arch_mistral3 = ROW("mistral3", "Mistral3ForConditionalGeneration", &mistral3);
const struct tr_arch tr_arch_qwen2_5_vl = ROW("qwen2_5_vl", "Qwen2_5_VLForConditionalGeneration", &qwen2_5);

/* Whether the head is the embedding: the whole model says it, or its text part, or the family. */
static enum tr_status set_tied(cJSON *text, const cJSON *config, bool is_tied)
{
    TR_PASS(tr_json_bool(text, "tie_word_embeddings", false, &is_tied));
    TR_PASS(tr_json_bool(config, "tie_word_embeddings", false, &is_tied));
    cJSON_DeleteItemFromObjectCaseSensitive(text, "tie_word_embeddings");
    return cJSON_AddBoolToObject(text, "tie_word_embeddings", is_tied) ? TR_OK
                                                                       : tr_fail(TR_NOMEM, "model: out of memory");
}

/* The sections of a rope of three axes mean nothing to text. */
static enum tr_status plain_rope(cJSON *text)
{
    static const char *const places[] = { "rope_scaling", "rope_parameters" }, *const keys[] = { "type", "rope_type" };
    for (size_t i = 0; i < TR_COUNT_OF(places); i++) {
        cJSON *rope = cJSON_GetObjectItemCaseSensitive(text, places[i]);
        for (size_t k = 0; k < TR_COUNT_OF(keys); k++) {
            const char *name = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(rope, keys[k]));
            if (name && strcmp(name, "mrope") == 0 &&
                !cJSON_ReplaceItemInObjectCaseSensitive(rope, keys[k], cJSON_CreateString("default")))
                return tr_fail(TR_NOMEM, "model: out of memory");
        }
    }
    return TR_OK;
}

enum tr_status tr_vision_text(const struct tr_arch *arch, const cJSON *config, cJSON **out)
{
    const struct tr_wrapper *w = arch->wrapper;
    const cJSON *inner = cJSON_GetObjectItemCaseSensitive(config, "text_config");
    const char *type = w->text_type;
    char esc[80];
    if (cJSON_IsObject(inner))
        TR_PASS(tr_json_str(inner, "model_type", false, &type));
    if (strcmp(type, w->text_type) != 0 && strcmp(type, w->text->model_type) != 0)
        return tr_fail(TR_USAGE, "config.json: the text model of %s is \"%s\"; only %s is implemented",
                       arch->model_type, tr_escape(type, esc, sizeof esc), w->text_type);
    cJSON *text = cJSON_Duplicate(cJSON_IsObject(inner) ? inner : config, true);
    if (!text)
        return tr_fail(TR_NOMEM, "model: out of memory");
    if (!cJSON_IsObject(inner)) /* an older file: the keys of the text model stand beside it */
        cJSON_DeleteItemFromObjectCaseSensitive(text, "vision_config");
    enum tr_status st = set_tied(text, config, w->is_tied);
    if (st == TR_OK)
        st = plain_rope(text);
    if (st == TR_OK)
        *out = text;
    else
        cJSON_Delete(text);
    return st;
}
