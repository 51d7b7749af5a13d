/* llama_kin.c - Mistral, Ministral, Qwen 2, Qwen 3, Granite and SmolLM 3: Llama's network under other configurations.
 */
#include "model/llama.h"

/* The default of transformers is 4096 when the key is absent; null means no window. */
static enum tr_status read_window(const cJSON *c, int64_t *out)
{
    *out = cJSON_GetObjectItemCaseSensitive(c, "sliding_window") ? 0 : 4096;
    return tr_json_int(c, "sliding_window", false, 1, INT32_MAX, out);
}

/* Mistral and Ministral: all layers have the window, or none, unless layer_types names the kind of each layer.
 * transformers takes a Mistral with layer_types for a Ministral. */
static enum tr_status configure_mistral(const cJSON *c, struct tr_hparams *hp)
{
    int64_t window = 0;
    const cJSON *types = cJSON_GetObjectItemCaseSensitive(c, "layer_types");
    TR_PASS(tr_llama_configure(c, hp));
    TR_PASS(read_window(c, &window));
    TR_PASS(tr_hp_layers(c, window, hp));
    if (!types || cJSON_IsNull(types))
        hp->kind[0].window = window;
    return TR_OK;
}

/* use_sliding_window: the layers from max_window_layers on have a window, unless layer_types names the kind of each
 * layer. */
static enum tr_status configure_qwen(const cJSON *c, struct tr_hparams *hp)
{
    int64_t window = 0, first = 28;
    bool has_window = false;
    TR_PASS(tr_llama_configure(c, hp));
    TR_PASS(tr_json_bool(c, "use_sliding_window", false, &has_window));
    TR_PASS(read_window(c, &window));
    TR_PASS(tr_json_int(c, "max_window_layers", false, 0, TR_MAX_LAYERS, &first));
    for (int64_t i = first; has_window && i < hp->layers; i++)
        hp->kind_of[i] = 1;
    TR_PASS(tr_hp_layers(c, has_window ? window : 0, hp));
    return TR_OK;
}

static enum tr_status configure_qwen2(const cJSON *c, struct tr_hparams *hp)
{
    hp->qkv_bias = true;
    return configure_qwen(c, hp);
}

static enum tr_status configure_qwen3(const cJSON *c, struct tr_hparams *hp)
{
    hp->has_qk_norm = true;
    enum tr_status st = configure_qwen(c, hp);
    if (st == TR_OK && !cJSON_GetObjectItemCaseSensitive(c, "head_dim"))
        hp->head_dim = 128; /* transformers' default, whatever hidden_size is */
    if (st == TR_OK)
        st = tr_json_bool(c, "attention_bias", false, &hp->qkv_bias);
    hp->o_bias = hp->qkv_bias;
    return st;
}

static enum tr_status configure_granite(const cJSON *c, struct tr_hparams *hp)
{
    double divisor = 1;
    TR_PASS(tr_llama_configure(c, hp));
    TR_PASS(tr_llama_biases(c, hp));
    hp->attn_scale = 1;
    TR_PASS(tr_json_real(c, "attention_multiplier", false, &hp->attn_scale));
    TR_PASS(tr_json_real(c, "embedding_multiplier", false, &hp->embed_scale));
    TR_PASS(tr_json_real(c, "residual_multiplier", false, &hp->residual_scale));
    TR_PASS(tr_json_real(c, "logits_scaling", false, &divisor));
    if (!(divisor > 0))
        return tr_fail(TR_USAGE, "config.json: logits_scaling %g must be positive", divisor);
    hp->logit_scale = 1 / divisor;
    return tr_hp_layers(c, 0, hp);
}

/* no_rope_layers has a number for each layer; 0: its heads do not rotate. It may be longer than the model. */
static enum tr_status read_nope(const cJSON *c, bool is_nope[TR_MAX_LAYERS], int64_t layers)
{
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(c, "no_rope_layers");
    int64_t interval = 4;
    TR_PASS(tr_json_int(c, "no_rope_layer_interval", false, 1, INT32_MAX, &interval));
    for (int64_t i = 0; i < layers; i++)
        is_nope[i] = (i + 1) % interval == 0;
    if (!list || cJSON_IsNull(list))
        return TR_OK;
    const cJSON *item = cJSON_IsArray(list) ? list->child : NULL;
    for (int64_t i = 0; i < layers; i++, item = item->next) {
        if (!item || !(cJSON_IsNumber(item) || cJSON_IsBool(item)))
            return tr_fail(TR_USAGE,
                           "config.json: no_rope_layers must be a list of num_hidden_layers = %" PRId64
                           " numbers, 0 or 1",
                           layers);
        is_nope[i] = cJSON_IsFalse(item) || (cJSON_IsNumber(item) && item->valuedouble == 0);
    }
    return TR_OK;
}

/* Layers without rope are the kinds behind those with it. With use_sliding_window they have the window, unless
 * layer_types names the kind of each layer. */
static enum tr_status configure_smollm3(const cJSON *c, struct tr_hparams *hp)
{
    int64_t window = 0;
    bool has_window = false, is_nope[TR_MAX_LAYERS] = { false };
    hp->is_tied = true;
    if (!cJSON_GetObjectItemCaseSensitive(c, "num_key_value_heads"))
        hp->n_heads_kv = 4;
    TR_PASS(tr_llama_configure(c, hp));
    TR_PASS(tr_llama_biases(c, hp));
    TR_PASS(tr_hp_rope(c, 2000000.0, hp));
    TR_PASS(read_nope(c, is_nope, hp->layers));
    TR_PASS(tr_json_bool(c, "use_sliding_window", false, &has_window));
    TR_PASS(tr_json_int(c, "sliding_window", false, 1, INT32_MAX, &window));
    for (int64_t i = 0; i < hp->layers; i++)
        hp->kind_of[i] = is_nope[i] && has_window && window > 0;
    TR_PASS(tr_hp_layers(c, window, hp));
    for (int k = 0; k < 2; k++)
        hp->kind[2 + k] = (struct tr_layer_kind){ hp->kind[k].window, TR_NONE };
    for (int64_t i = 0; i < hp->layers; i++)
        hp->kind_of[i] = (uint8_t)(hp->kind_of[i] + (is_nope[i] ? 2 : 0));
    return TR_OK;
}

const struct tr_arch tr_arch_mistral = TR_LLAMA_ROW("mistral", "MistralForCausalLM", configure_mistral, "");
const struct tr_arch tr_arch_ministral = TR_LLAMA_ROW("ministral", "MinistralForCausalLM", configure_mistral, "");
const struct tr_arch tr_arch_qwen2 = TR_LLAMA_ROW("qwen2", "Qwen2ForCausalLM", configure_qwen2, "");
const struct tr_arch tr_arch_qwen3 = TR_LLAMA_ROW("qwen3", "Qwen3ForCausalLM", configure_qwen3, "");
const struct tr_arch tr_arch_granite =
    TR_LLAMA_ROW("granite", "GraniteForCausalLM", configure_granite,
                 " embedding_multiplier attention_multiplier residual_multiplier logits_scaling");
const struct tr_arch tr_arch_smollm3 =
    TR_LLAMA_ROW("smollm3", "SmolLM3ForCausalLM", configure_smollm3, " no_rope_layers no_rope_layer_interval");
