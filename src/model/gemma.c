/* gemma.c - Gemma 1, 2 and the text model of Gemma 3. Gemma 1 is Llama's network with (1 + w) norms, scaled embeddings
 * and another activation. Gemma 2 adds norms around both halves, alternating windows, and caps of attention scores and
 * logits; Gemma 3 has no cap of scores, but qk-norm and a second rope base for its sliding layers. */
#include "model/llama.h"
#include <math.h>

static tr_val block(struct tr_build *b, tr_val x) /* x: (N, D) */
{
    const struct tr_hparams *hp = tr_build_hparams(b);
    int64_t n_q = hp->n_heads_q * hp->head_dim, n_kv = hp->n_heads_kv * hp->head_dim;

    tr_val h = tr_rmsnorm(b, x, "input_layernorm", 1);
    tr_val q = tr_linear(b, h, "self_attn.q_proj", n_q, hp->qkv_bias);
    tr_val k = tr_linear(b, h, "self_attn.k_proj", n_kv, hp->qkv_bias);
    tr_val v = tr_linear(b, h, "self_attn.v_proj", n_kv, hp->qkv_bias);
    if (hp->has_qk_norm) {
        q = tr_headnorm(b, q, "self_attn.q_norm", 1);
        k = tr_headnorm(b, k, "self_attn.k_norm", 1);
    }
    /* One statement each: C does not order the evaluation of two arguments, and it would order the nodes. */
    k = tr_rope(b, k);
    q = tr_rope(b, q);
    tr_val a = tr_attention(b, q, k, v);
    h = tr_linear(b, a, "self_attn.o_proj", hp->hidden, hp->o_bias);
    x = tr_add(b, x, tr_rmsnorm(b, h, "post_attention_layernorm", 1));

    h = tr_rmsnorm(b, x, "pre_feedforward_layernorm", 1);
    tr_val gate = tr_linear(b, h, "mlp.gate_proj", hp->ffn, false), up = tr_linear(b, h, "mlp.up_proj", hp->ffn, false);
    h = tr_linear(b, tr_glu(b, gate, up), "mlp.down_proj", hp->hidden, false);
    return tr_add(b, x, tr_rmsnorm(b, h, "post_feedforward_layernorm", 1));
}

#define GEMMA_KEYS                                                                                                     \
    "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads "              \
    "head_dim hidden_act max_position_embeddings rms_norm_eps rope_theta rope_scaling rope_parameters "                \
    "attention_bias attention_dropout tie_word_embeddings use_bidirectional_attention"
#define GEMMA2_KEYS                                                                                                    \
    GEMMA_KEYS " hidden_activation rope_local_base_freq sliding_window_pattern _sliding_window_pattern "               \
               "query_pre_attn_scalar sliding_window layer_types final_logit_softcapping attn_logit_softcapping"

/* A cap of 0 is none; so is null, whatever the default. */
static enum tr_status read_cap(const cJSON *c, const char *key, double *cap)
{
    if (cJSON_IsNull(cJSON_GetObjectItemCaseSensitive(c, key)))
        *cap = 0;
    return tr_json_real(c, key, false, cap);
}

static enum tr_status configure_shared(const cJSON *c, struct tr_hparams *hp)
{
    hp->is_tied = true;
    hp->norm_offset = 1;
    hp->head_dim = 256;
    TR_PASS(tr_hp_common(c, hp));
    if (hp->ffn == 0)
        return tr_fail(TR_USAGE, "config.json: intermediate_size is missing");
    hp->embed_scale = sqrt((double)hp->hidden);
    hp->scales_table = true;
    TR_PASS(tr_json_bool(c, "attention_bias", false, &hp->qkv_bias));
    hp->o_bias = hp->qkv_bias;
    return tr_hp_must_be(c, "use_bidirectional_attention", false);
}

/* "gelu" in the first files means the tanh form. */
static enum tr_status configure_gemma(const cJSON *c, struct tr_hparams *hp)
{
    TR_PASS(configure_shared(c, hp));
    TR_PASS(tr_hp_act(c, "hidden_act", "gelu_pytorch_tanh", hp));
    hp->act = hp->act == TR_ACT_GELU ? TR_ACT_GELU_TANH : hp->act;
    TR_PASS(tr_hp_rope(c, 10000.0, hp));
    hp->kind[0] = (struct tr_layer_kind){ .rope = TR_C_ROPE };
    return TR_OK;
}

static enum tr_status configure_windows(const cJSON *c, int64_t pattern, struct tr_hparams *hp)
{
    int64_t window = 4096;
    double query_scalar = 256;
    TR_PASS(configure_shared(c, hp));
    TR_PASS(tr_hp_act(c, "hidden_activation", "gelu_pytorch_tanh", hp));
    TR_PASS(tr_json_real(c, "query_pre_attn_scalar", false, &query_scalar));
    if (!(query_scalar > 0))
        return tr_fail(TR_USAGE, "config.json: query_pre_attn_scalar %g must be positive", query_scalar);
    hp->attn_scale = 1.0 / sqrt(query_scalar);
    TR_PASS(read_cap(c, "final_logit_softcapping", &hp->final_softcap));
    TR_PASS(tr_json_int(c, "sliding_window", false, 1, INT32_MAX, &window));
    TR_PASS(tr_json_int(c, "sliding_window_pattern", false, 1, TR_MAX_LAYERS, &pattern));
    for (int64_t i = 0; i < hp->layers; i++)
        hp->kind_of[i] = (i + 1) % pattern != 0;
    TR_PASS(tr_hp_layers(c, window, hp));
    return TR_OK;
}

static enum tr_status configure_gemma2(const cJSON *c, struct tr_hparams *hp)
{
    hp->final_softcap = 30;
    hp->attn_softcap = 50;
    TR_PASS(configure_windows(c, 2, hp));
    TR_PASS(read_cap(c, "attn_logit_softcapping", &hp->attn_softcap));
    return tr_hp_rope(c, 10000.0, hp);
}

/* The text part of a vision model names only what differs from the defaults of transformers. transformers reads
 * attn_logit_softcapping and does not use it. */
static enum tr_status configure_gemma3(const cJSON *c, struct tr_hparams *hp)
{
    hp->vocab = 262208;
    hp->hidden = 2304;
    hp->ffn = 9216;
    hp->layers = 26;
    hp->n_heads_q = 8;
    hp->n_heads_kv = 4;
    hp->max_positions = 131072;
    hp->has_qk_norm = true;
    TR_PASS(configure_windows(c, 6, hp));
    return tr_hp_rope_pair(c, 1e6, 1e4, "rope_local_base_freq", hp);
}

#define ROW(type, class, conf, net, keys)                                                                              \
    {                                                                                                                  \
        .model_type = type, .class_name = class, .base_prefix = "model.", .layer_prefix = "model.layers.%d.",          \
        .configure = conf, .embed = tr_llama_embed, .block = net, .head = tr_llama_head, .rules = tr_llama_rules,      \
        .n_rules = TR_LLAMA_RULES, .config_keys = keys,                                                                \
    }
const struct tr_arch tr_arch_gemma = ROW("gemma", "GemmaForCausalLM", configure_gemma, tr_llama_block, GEMMA_KEYS);
const struct tr_arch tr_arch_gemma2 = ROW("gemma2", "Gemma2ForCausalLM", configure_gemma2, block, GEMMA2_KEYS);
const struct tr_arch tr_arch_gemma3 = ROW("gemma3_text", "Gemma3ForCausalLM", configure_gemma3, block, GEMMA2_KEYS);
