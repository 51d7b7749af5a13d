/* llama_kin.c - Mistral, Qwen 2 and Qwen 3: Llama's network under other configurations. */
#include "model/llama.h"

/* The default of transformers is 4096 when the key is absent; null means no window. */
static enum tr_status read_window(const cJSON *c, int64_t *out)
{
    *out = cJSON_GetObjectItemCaseSensitive(c, "sliding_window") ? 0 : 4096;
    return tr_json_int(c, "sliding_window", false, 1, INT32_MAX, out);
}

static enum tr_status configure_mistral(const cJSON *c, struct tr_hparams *hp)
{
    enum tr_status st = TR_OK;
    int64_t window = 0;
    TR_TRY(tr_llama_configure(c, hp));
    TR_TRY(read_window(c, &window));
    TR_TRY(tr_hp_layers(c, window, hp));
    hp->kind[0].window = window; /* either all layers have the window, or none */
out:
    return st;
}

/* use_sliding_window: the layers from max_window_layers on have a window, unless layer_types names the kind of each
 * layer. */
static enum tr_status configure_qwen(const cJSON *c, struct tr_hparams *hp)
{
    enum tr_status st = TR_OK;
    int64_t window = 0, first = 28;
    bool has_window = false;
    TR_TRY(tr_llama_configure(c, hp));
    TR_TRY(tr_json_bool(c, "use_sliding_window", false, &has_window));
    TR_TRY(read_window(c, &window));
    TR_TRY(tr_json_int(c, "max_window_layers", false, 0, TR_MAX_LAYERS, &first));
    for (int64_t i = first; has_window && i < hp->layers; i++)
        hp->kind_of[i] = 1;
    TR_TRY(tr_hp_layers(c, has_window ? window : 0, hp));
out:
    return st;
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
    if (st == TR_OK && !cJSON_GetObjectItemCaseSensitive(c, "head_dim")) {
        hp->head_dim = 128;
        st = tr_fail(TR_USAGE, "config.json: qwen3 needs head_dim (transformers' default is 128)");
    }
    if (st == TR_OK)
        st = tr_json_bool(c, "attention_bias", false, &hp->qkv_bias);
    hp->o_bias = hp->qkv_bias;
    return st;
}

const struct tr_arch tr_arch_mistral = TR_LLAMA_ROW("mistral", "MistralForCausalLM", configure_mistral);
const struct tr_arch tr_arch_qwen2 = TR_LLAMA_ROW("qwen2", "Qwen2ForCausalLM", configure_qwen2);
const struct tr_arch tr_arch_qwen3 = TR_LLAMA_ROW("qwen3", "Qwen3ForCausalLM", configure_qwen3);
