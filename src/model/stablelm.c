/* stablelm.c - StableLM, StarCoder 2, Cohere (Command R) and Cohere 2 (Command R7B): Llama's attention under layer
 * norms.
 *
 *   x = x + attention(h) + mlp(h)    with h = norm(x): Cohere, and StableLM where it says so
 *
 * StarCoder 2 has an MLP without a gate. Norms of Cohere have no bias; of Cohere 2 only layers with a window rotate.
 */
#include "model/llama.h"

static tr_val block(struct tr_build *b, tr_val x) /* x: (N, D) */
{
    const struct tr_hparams *hp = tr_build_hparams(b);
    tr_val h = tr_layernorm(b, x, "input_layernorm");
    tr_val a = tr_llama_attend(b, h);
    if (!hp->is_parallel_residual) {
        x = tr_add(b, x, a);
        h = tr_layernorm(b, x, "post_attention_layernorm");
    }
    tr_val m = tr_dropout(b, tr_llama_mlp(b, h), hp->dropout_resid);
    return tr_add(b, x, hp->is_parallel_residual ? tr_add(b, a, m) : m);
}

static void head(struct tr_build *b, tr_val x)
{
    const struct tr_hparams *hp = tr_build_hparams(b);
    tr_val h = tr_scale(b, tr_layernorm(b, x, "model.norm"), hp->logit_scale);
    tr_head(b, h, hp->is_tied ? "model.embed_tokens" : "lm_head");
}

/* What these families share. eps_key: the name of the norms' epsilon. */
static enum tr_status configure(const cJSON *c, const char *act, const char *eps_key, struct tr_hparams *hp)
{
    hp->norm_eps = 1e-5;
    TR_PASS(tr_hp_common(c, hp));
    TR_PASS(tr_json_int(c, "intermediate_size", true, 1, 1 << 24, &hp->ffn));
    TR_PASS(tr_hp_act(c, "hidden_act", act, hp));
    return tr_json_real(c, eps_key, false, &hp->norm_eps);
}

static enum tr_status configure_stablelm(const cJSON *c, struct tr_hparams *hp)
{
    TR_PASS(configure(c, "silu", "layer_norm_eps", hp));
    TR_PASS(tr_hp_even_heads(hp));
    TR_PASS(tr_json_bool(c, "use_qkv_bias", false, &hp->qkv_bias));
    TR_PASS(tr_hp_must_be(c, "qk_layernorm", false));
    TR_PASS(tr_json_bool(c, "use_parallel_residual", false, &hp->is_parallel_residual));
    TR_PASS(tr_json_real(c, "hidden_dropout", false, &hp->dropout_resid));
    return tr_hp_rope_part(c, 10000, "partial_rotary_factor", 0.25, hp);
}

static enum tr_status configure_cohere(const cJSON *c, struct tr_hparams *hp)
{
    hp->is_tied = hp->is_parallel_residual = hp->norms_lack_bias = true;
    hp->logit_scale = 0.0625;
    hp->max_positions = 8192;
    TR_PASS(configure(c, "silu", "layer_norm_eps", hp));
    TR_PASS(tr_json_bool(c, "attention_bias", false, &hp->qkv_bias));
    hp->o_bias = hp->qkv_bias;
    TR_PASS(tr_hp_must_be(c, "use_qk_norm", false));
    TR_PASS(tr_json_real(c, "logit_scale", false, &hp->logit_scale));
    TR_PASS(tr_hp_rope(c, 500000, hp));
    hp->rope[TR_C_ROPE].is_interleaved = true;
    return TR_OK;
}

static enum tr_status configure_cohere2(const cJSON *c, struct tr_hparams *hp)
{
    int64_t window = 4096, pattern = 4;
    TR_PASS(configure_cohere(c, hp));
    TR_PASS(tr_hp_rope(c, 10000, hp));
    hp->rope[TR_C_ROPE].is_interleaved = true;
    if (cJSON_IsNull(cJSON_GetObjectItemCaseSensitive(c, "sliding_window")))
        return tr_fail(TR_USAGE, "config.json: sliding_window null is not implemented for cohere2");
    TR_PASS(tr_json_int(c, "sliding_window", false, 1, INT32_MAX, &window));
    TR_PASS(tr_json_int(c, "sliding_window_pattern", false, 1, TR_MAX_LAYERS, &pattern));
    for (int64_t i = 0; i < hp->layers; i++)
        hp->kind_of[i] = (i + 1) % pattern != 0;
    TR_PASS(tr_hp_layers(c, window, hp));
    hp->kind[0].rope = TR_NONE;
    return TR_OK;
}

#define KEYS                                                                                                           \
    "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads hidden_act "   \
    "max_position_embeddings rope_theta rope_scaling rope_parameters partial_rotary_factor attention_dropout "         \
    "tie_word_embeddings "
#define COHERE_KEYS KEYS "head_dim layer_norm_eps attention_bias logit_scale use_qk_norm"
#define ROW(type, class, conf, keys)                                                                                   \
    {                                                                                                                  \
        .model_type = type, .class_name = class, .base_prefix = "model.", .layer_prefix = "model.layers.%d.",          \
        .configure = conf, .embed = tr_llama_embed, .block = block, .head = head, .rules = tr_llama_rules,             \
        .n_rules = TR_LLAMA_RULES, .config_keys = keys,                                                                \
    }
const struct tr_arch tr_arch_stablelm =
    ROW("stablelm", "StableLmForCausalLM", configure_stablelm,
        KEYS "layer_norm_eps use_qkv_bias qk_layernorm use_parallel_residual hidden_dropout");
const struct tr_arch tr_arch_cohere = ROW("cohere", "CohereForCausalLM", configure_cohere, COHERE_KEYS);
const struct tr_arch tr_arch_cohere2 = ROW("cohere2", "Cohere2ForCausalLM", configure_cohere2,
                                           COHERE_KEYS " sliding_window sliding_window_pattern layer_types");

/* ---- StarCoder 2 ---- */

static tr_val starcoder_embed(struct tr_build *b)
{
    return tr_dropout(b, tr_llama_embed(b), tr_build_hparams(b)->dropout_embed);
}

static tr_val starcoder_block(struct tr_build *b, tr_val x) /* x: (N, D) */
{
    const struct tr_hparams *hp = tr_build_hparams(b);
    tr_val a = tr_llama_attend(b, tr_layernorm(b, x, "input_layernorm"));
    x = tr_add(b, x, tr_dropout(b, a, hp->dropout_resid));
    tr_val h = tr_layernorm(b, x, "post_attention_layernorm");
    h = tr_act(b, tr_linear(b, h, "mlp.c_fc", hp->ffn, hp->mlp_bias));
    return tr_add(b, x, tr_dropout(b, tr_linear(b, h, "mlp.c_proj", hp->hidden, hp->mlp_bias), hp->dropout_resid));
}

static enum tr_status configure_starcoder(const cJSON *c, struct tr_hparams *hp)
{
    hp->is_tied = hp->qkv_bias = true;
    hp->max_positions = 4096;
    if (!cJSON_GetObjectItemCaseSensitive(c, "num_key_value_heads"))
        hp->n_heads_kv = 2;
    TR_PASS(configure(c, "gelu_pytorch_tanh", "norm_epsilon", hp));
    TR_PASS(tr_hp_even_heads(hp));
    TR_PASS(tr_json_bool(c, "use_bias", false, &hp->qkv_bias));
    hp->o_bias = hp->mlp_bias = hp->qkv_bias;
    TR_PASS(tr_json_real(c, "residual_dropout", false, &hp->dropout_resid));
    TR_PASS(tr_json_real(c, "embedding_dropout", false, &hp->dropout_embed));
    TR_PASS(tr_hp_rope(c, 10000, hp));
    return tr_json_int(c, "sliding_window", false, 1, INT32_MAX, &hp->kind[0].window);
}

static const struct tr_param_rule starcoder_rules[] = {
    { "model.embed_tokens", 0, TR_BY_ANY, 1 },
    { "lm_head", 0, TR_BY_ANY, 1 },
    { "self_attn.q_proj", 0, TR_BY_HEAD, 1 },
    { "self_attn.k_proj", 0, TR_BY_HEAD_KV, 1 },
    { "self_attn.v_proj", 0, TR_BY_HEAD_KV, 1 },
    { "self_attn.o_proj", 1, TR_BY_HEAD, 1 },
    { "mlp.c_fc", 0, TR_BY_ANY, 1 },
    { "mlp.c_proj", 1, TR_BY_ANY, 1 },
};

const struct tr_arch tr_arch_starcoder2 = {
    .model_type = "starcoder2",
    .class_name = "Starcoder2ForCausalLM",
    .base_prefix = "model.",
    .layer_prefix = "model.layers.%d.",
    .configure = configure_starcoder,
    .embed = starcoder_embed,
    .block = starcoder_block,
    .head = head,
    .rules = starcoder_rules,
    .n_rules = TR_COUNT_OF(starcoder_rules),
    .config_keys = KEYS "norm_epsilon use_bias residual_dropout embedding_dropout sliding_window",
};
