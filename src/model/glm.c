/* glm.c - GLM 4: half of each head rotates, as pairs of neighbours; one product makes the gate and what it gates.
 * The first files (glm) have norms before each half of the block, the later ones (glm4) behind it too. */
#include "model/llama.h"

static tr_val behind(struct tr_build *b, tr_val y, const char *norm)
{
    return tr_build_hparams(b)->is_post_norm ? tr_rmsnorm(b, y, norm, 0) : y;
}

static tr_val block(struct tr_build *b, tr_val x) /* x: (N, D) */
{
    const struct tr_hparams *hp = tr_build_hparams(b);
    tr_val a = tr_llama_attend(b, tr_rmsnorm(b, x, "input_layernorm", 0));
    x = tr_add(b, x, behind(b, a, "post_self_attn_layernorm"));

    tr_val h = tr_rmsnorm(b, x, "post_attention_layernorm", 0);
    tr_val u = tr_linear(b, h, "mlp.gate_up_proj", 2 * hp->ffn, false); /* (N, 2F) = gate | up */
    tr_val gate = tr_slice(b, u, 0, hp->ffn), up = tr_slice(b, u, hp->ffn, hp->ffn);
    h = tr_linear(b, tr_glu(b, gate, up), "mlp.down_proj", hp->hidden, false);
    return tr_add(b, x, behind(b, h, "post_mlp_layernorm"));
}

static enum tr_status configure_glm(const cJSON *c, struct tr_hparams *hp)
{
    hp->norm_eps = 1.5625e-7;
    hp->max_positions = 131072;
    hp->head_dim = 128;
    hp->qkv_bias = true;
    if (!cJSON_GetObjectItemCaseSensitive(c, "num_key_value_heads"))
        hp->n_heads_kv = 2;
    TR_PASS(tr_hp_common(c, hp));
    TR_PASS(tr_json_int(c, "intermediate_size", true, 1, 1 << 24, &hp->ffn));
    TR_PASS(tr_hp_act(c, "hidden_act", "silu", hp));
    TR_PASS(tr_json_bool(c, "attention_bias", false, &hp->qkv_bias));
    TR_PASS(tr_hp_rope_part(c, 10000, "partial_rotary_factor", 0.5, hp));
    hp->rope[TR_C_ROPE].is_interleaved = true;
    return TR_OK;
}

static enum tr_status configure_glm4(const cJSON *c, struct tr_hparams *hp)
{
    hp->is_post_norm = true;
    return configure_glm(c, hp);
}

static const struct tr_param_rule rules[] = {
    { "model.embed_tokens", 0, TR_BY_ANY, 1 },   { "lm_head", 0, TR_BY_ANY, 1 },
    { "self_attn.q_proj", 0, TR_BY_HEAD, 1 },    { "self_attn.k_proj", 0, TR_BY_HEAD_KV, 1 },
    { "self_attn.v_proj", 0, TR_BY_HEAD_KV, 1 }, { "self_attn.o_proj", 1, TR_BY_HEAD, 1 },
    { "mlp.gate_up_proj", 0, TR_BY_ANY, 2 },     { "mlp.down_proj", 1, TR_BY_ANY, 1 },
};

#define ROW(type, class, conf)                                                                                         \
    {                                                                                                                  \
        .model_type = type, .class_name = class, .base_prefix = "model.", .layer_prefix = "model.layers.%d.",          \
        .configure = conf, .embed = tr_llama_embed, .block = block, .head = tr_llama_head, .rules = rules,             \
        .n_rules = TR_COUNT_OF(rules),                                                                                 \
        .config_keys = "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads "               \
                       "num_key_value_heads head_dim hidden_act max_position_embeddings rms_norm_eps rope_theta "      \
                       "rope_scaling rope_parameters partial_rotary_factor attention_bias attention_dropout "          \
                       "tie_word_embeddings",                                                                          \
    }
const struct tr_arch tr_arch_glm = ROW("glm", "GlmForCausalLM", configure_glm);
const struct tr_arch tr_arch_glm4 = ROW("glm4", "Glm4ForCausalLM", configure_glm4);
