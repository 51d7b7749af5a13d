/* olmo.c - OLMo 2 and 3: a norm behind each half of the block and none before, and norms of q and k over all their
 * heads. OLMo 3 adds windows on three layers of four, whose rope is never scaled.
 *
 *   x = x + norm(O(attention(rope(norm(Q x)), rope(norm(K x)), V x)))
 *   x = x + norm(down(act(gate x) * up x))
 */
#include "model/llama.h"

static tr_val block(struct tr_build *b, tr_val x) /* x: (N, D) */
{
    const struct tr_hparams *hp = tr_build_hparams(b);
    int64_t n_q = hp->n_heads_q * hp->head_dim, n_kv = hp->n_heads_kv * hp->head_dim;

    tr_val q = tr_linear(b, x, "self_attn.q_proj", n_q, hp->qkv_bias);
    tr_val k = tr_linear(b, x, "self_attn.k_proj", n_kv, hp->qkv_bias);
    tr_val v = tr_linear(b, x, "self_attn.v_proj", n_kv, hp->qkv_bias);
    k = tr_rope(b, tr_rmsnorm(b, k, "self_attn.k_norm", 0));
    q = tr_rope(b, tr_rmsnorm(b, q, "self_attn.q_norm", 0));
    tr_val h = tr_linear(b, tr_attention(b, q, k, v), "self_attn.o_proj", hp->hidden, hp->o_bias);
    x = tr_add(b, x, tr_rmsnorm(b, h, "post_attention_layernorm", 0));

    tr_val gate = tr_linear(b, x, "mlp.gate_proj", hp->ffn, false), up = tr_linear(b, x, "mlp.up_proj", hp->ffn, false);
    h = tr_linear(b, tr_glu(b, gate, up), "mlp.down_proj", hp->hidden, false);
    return tr_add(b, x, tr_rmsnorm(b, h, "post_feedforward_layernorm", 0));
}

static const struct tr_param_rule rules[] = {
    { "model.embed_tokens", 0, TR_BY_ANY, 1 },   { "lm_head", 0, TR_BY_ANY, 1 },
    { "self_attn.q_proj", 0, TR_BY_NORM, 1 },    { "self_attn.k_proj", 0, TR_BY_NORM, 1 },
    { "self_attn.v_proj", 0, TR_BY_HEAD_KV, 1 }, { "self_attn.o_proj", 1, TR_BY_HEAD, 1 },
    { "mlp.gate_proj", 0, TR_BY_ANY, 1 },        { "mlp.up_proj", 0, TR_BY_ANY, 1 },
    { "mlp.down_proj", 1, TR_BY_ANY, 1 },
};

static const char keys[] = TR_LLAMA_KEYS;

static enum tr_status configure(const cJSON *c, struct tr_hparams *hp)
{
    hp->norm_eps = 1e-5;
    TR_PASS(tr_llama_configure(c, hp));
    TR_PASS(tr_json_bool(c, "attention_bias", false, &hp->qkv_bias));
    hp->o_bias = hp->qkv_bias;
    hp->kind[0] = (struct tr_layer_kind){ .rope = TR_C_ROPE };
    return TR_OK;
}

/* As transformers: what is written beside rope_parameters (rope_theta, rope_scaling) is for the layers without a
 * window. */
static enum tr_status configure_windows(const cJSON *c, struct tr_hparams *hp)
{
    int64_t window = 4096;
    TR_PASS(configure(c, hp));
    if (cJSON_IsNull(cJSON_GetObjectItemCaseSensitive(c, "sliding_window")))
        window = 0;
    TR_PASS(tr_json_int(c, "sliding_window", false, 1, INT32_MAX, &window));
    for (int64_t i = 0; i < hp->layers; i++)
        hp->kind_of[i] = (i + 1) % 4 != 0;
    TR_PASS(tr_hp_layers(c, window, hp));
    return tr_hp_rope_pair(c, 500000.0, 500000.0, NULL, hp);
}

#define ROW(type, class, conf)                                                                                         \
    {                                                                                                                  \
        .model_type = type, .class_name = class, .base_prefix = "model.", .layer_prefix = "model.layers.%d.",          \
        .configure = conf, .embed = tr_llama_embed, .block = block, .head = tr_llama_head, .rules = rules,             \
        .n_rules = TR_COUNT_OF(rules), .config_keys = keys,                                                            \
    }
const struct tr_arch tr_arch_olmo2 = ROW("olmo2", "Olmo2ForCausalLM", configure);
const struct tr_arch tr_arch_olmo3 = ROW("olmo3", "Olmo3ForCausalLM", configure_windows);
