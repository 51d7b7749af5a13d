/* llama.c - Llama 1-3, Mistral, Qwen 2 and Qwen 3: one block, four rows.
 *
 *   x = x + O(attention(rope(Q h), rope(K h), V h))   with h = norm(x)
 *   x = x + down(act(gate h) * up h)                   with h = norm(x)
 */
#include "model/model_impl.h"

static tr_val embed(struct tr_build *b)
{
    return tr_embed(b, TR_B_TOKENS, "model.embed_tokens", tr_build_hparams(b)->vocab, 0);
}

static tr_val block(struct tr_build *b, tr_val x) /* x: (N, D) tokens of this micro-batch */
{
    const struct tr_hparams *hp = tr_build_hparams(b);
    int64_t n_q = hp->n_heads_q * hp->head_dim, n_kv = hp->n_heads_kv * hp->head_dim;

    tr_val h = tr_rmsnorm(b, x, "input_layernorm", 0);
    tr_val q = tr_linear(b, h, "self_attn.q_proj", n_q, hp->qkv_bias);
    tr_val k = tr_linear(b, h, "self_attn.k_proj", n_kv, hp->qkv_bias);
    tr_val v = tr_linear(b, h, "self_attn.v_proj", n_kv, hp->qkv_bias);
    if (hp->has_qk_norm) {
        q = tr_headnorm(b, q, "self_attn.q_norm", 0);
        k = tr_headnorm(b, k, "self_attn.k_norm", 0);
    }
    tr_val a = tr_attention(b, tr_rope(b, q), tr_rope(b, k), v);
    x = tr_add(b, x, tr_linear(b, a, "self_attn.o_proj", hp->hidden, hp->o_bias));

    h = tr_rmsnorm(b, x, "post_attention_layernorm", 0);
    tr_val gate = tr_linear(b, h, "mlp.gate_proj", hp->ffn, hp->mlp_bias);
    tr_val up = tr_linear(b, h, "mlp.up_proj", hp->ffn, hp->mlp_bias);
    return tr_add(b, x, tr_linear(b, tr_glu(b, gate, up), "mlp.down_proj", hp->hidden, hp->mlp_bias));
}

static void head(struct tr_build *b, tr_val x)
{
    tr_head(b, tr_rmsnorm(b, x, "model.norm", 0), tr_build_hparams(b)->is_tied ? "model.embed_tokens" : "lm_head");
}

static const struct tr_param_rule rules[] = {
    { "model.embed_tokens", 0 }, { "lm_head", 0 },
    { "self_attn.q_proj", 0 },   { "self_attn.k_proj", 0 },  { "self_attn.v_proj", 0 }, { "self_attn.o_proj", 1 },
    { "mlp.gate_proj", 0 },      { "mlp.up_proj", 0 },       { "mlp.down_proj", 1 },
};

static const char *const keys[] = {
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
    "head_dim", "hidden_act", "max_position_embeddings", "rms_norm_eps", "rope_theta", "rope_scaling", "rope_parameters",
    "partial_rotary_factor", "original_max_position_embeddings", "attention_bias", "attention_dropout", "mlp_bias",
    "tie_word_embeddings", "pretraining_tp", "sliding_window", "use_sliding_window", "max_window_layers", "layer_types",
    NULL,
};

static enum tr_status configure_shared(const cJSON *c, struct tr_hparams *hp)
{
    enum tr_status st = TR_OK;
    TR_TRY(tr_hp_common(c, hp));
    TR_TRY(tr_hp_act(c, "hidden_act", "silu", hp));
    TR_TRY(tr_hp_rope(c, 10000.0, hp));
    if (hp->ffn == 0)
        st = tr_fail(TR_USAGE, "config.json: intermediate_size is missing");
out:
    return st;
}

static enum tr_status configure_llama(const cJSON *c, struct tr_hparams *hp)
{
    enum tr_status st = TR_OK;
    int64_t pretraining_tp = 1;
    TR_TRY(configure_shared(c, hp));
    TR_TRY(tr_json_bool(c, "attention_bias", false, &hp->qkv_bias));
    hp->o_bias = hp->qkv_bias;
    TR_TRY(tr_json_bool(c, "mlp_bias", false, &hp->mlp_bias));
    /* pretraining_tp only chose the order of sums in the original code */
    TR_TRY(tr_json_int(c, "pretraining_tp", false, 1, 1024, &pretraining_tp));
    TR_TRY(tr_hp_layers(c, 0, hp));
out:
    return st;
}

/* transformers' default is 4096 when the key is absent; null says no window. */
static enum tr_status read_window(const cJSON *c, int64_t *out)
{
    *out = cJSON_GetObjectItemCaseSensitive(c, "sliding_window") ? 0 : 4096;
    return tr_json_int(c, "sliding_window", false, 1, INT32_MAX, out);
}

static enum tr_status configure_mistral(const cJSON *c, struct tr_hparams *hp)
{
    enum tr_status st = TR_OK;
    int64_t window = 0;
    TR_TRY(configure_shared(c, hp));
    TR_TRY(read_window(c, &window));
    TR_TRY(tr_hp_layers(c, window, hp));
    hp->kind[0].window = window; /* every layer slides, or none */
out:
    return st;
}

/* use_sliding_window: layers from max_window_layers on slide, unless layer_types says it itself. */
static enum tr_status configure_qwen(const cJSON *c, struct tr_hparams *hp)
{
    enum tr_status st = TR_OK;
    int64_t window = 0, first = 28;
    bool has_window = false;
    TR_TRY(configure_shared(c, hp));
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

#define ROW(type, class, conf)                                                                                         \
    {                                                                                                                  \
        .model_type = type, .class_name = class, .base_prefix = "model.", .layer_prefix = "model.layers.%d.",          \
        .configure = conf, .embed = embed, .block = block, .head = head, .rules = rules,                               \
        .n_rules = TR_COUNT_OF(rules), .config_keys = keys,                                                            \
    }
const struct tr_arch tr_arch_llama = ROW("llama", "LlamaForCausalLM", configure_llama);
const struct tr_arch tr_arch_mistral = ROW("mistral", "MistralForCausalLM", configure_mistral);
const struct tr_arch tr_arch_qwen2 = ROW("qwen2", "Qwen2ForCausalLM", configure_qwen2);
const struct tr_arch tr_arch_qwen3 = ROW("qwen3", "Qwen3ForCausalLM", configure_qwen3);
