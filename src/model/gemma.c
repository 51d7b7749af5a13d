/* gemma.c - Gemma 2 and the text model of Gemma 3: norms around both halves, (1 + w) scales, alternating windows.
 * Gemma 3 adds qk-norm and a second rope base for its sliding layers; Gemma 2 caps attention scores and logits. */
#include "model/llama.h"
#include <math.h>

static tr_val embed(struct tr_build *b)
{
    const struct tr_hparams *hp = tr_build_hparams(b);
    return tr_scale(b, tr_embed(b, TR_B_TOKENS, "model.embed_tokens", hp->vocab, 0), hp->embed_scale);
}

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

static void head(struct tr_build *b, tr_val x)
{
    tr_head(b, tr_rmsnorm(b, x, "model.norm", 1), tr_build_hparams(b)->is_tied ? "model.embed_tokens" : "lm_head");
}

static const char keys[] =
    "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads "
    "head_dim hidden_activation hidden_act max_position_embeddings rms_norm_eps rope_theta rope_scaling "
    "rope_parameters rope_local_base_freq sliding_window_pattern _sliding_window_pattern attention_bias "
    "attention_dropout tie_word_embeddings query_pre_attn_scalar sliding_window layer_types "
    "final_logit_softcapping attn_logit_softcapping use_bidirectional_attention";

static enum tr_status configure_shared(const cJSON *c, int64_t pattern, struct tr_hparams *hp)
{
    enum tr_status st = TR_OK;
    int64_t window = 4096;
    double query_scalar = 256;
    hp->is_tied = true;
    TR_TRY(tr_hp_common(c, hp));
    if (!cJSON_GetObjectItemCaseSensitive(c, "head_dim"))
        TR_TRY(tr_fail(TR_USAGE, "config.json: head_dim is missing"));
    TR_TRY(tr_json_int(c, "intermediate_size", true, 1, 1 << 24, &hp->ffn));
    TR_TRY(tr_hp_act(c, "hidden_activation", "gelu_pytorch_tanh", hp));
    TR_TRY(tr_json_real(c, "query_pre_attn_scalar", false, &query_scalar));
    if (!(query_scalar > 0))
        TR_TRY(tr_fail(TR_USAGE, "config.json: query_pre_attn_scalar %g must be positive", query_scalar));
    hp->attn_scale = 1.0 / sqrt(query_scalar);
    hp->embed_scale = sqrt((double)hp->hidden);
    TR_TRY(tr_json_real(c, "final_logit_softcapping", false, &hp->final_softcap));
    TR_TRY(tr_json_real(c, "attn_logit_softcapping", false, &hp->attn_softcap));
    TR_TRY(tr_json_bool(c, "attention_bias", false, &hp->qkv_bias));
    hp->o_bias = hp->qkv_bias;
    TR_TRY(tr_hp_must_be(c, "use_bidirectional_attention", false));
    TR_TRY(tr_json_int(c, "sliding_window", false, 1, INT32_MAX, &window));
    TR_TRY(tr_json_int(c, "sliding_window_pattern", false, 1, TR_MAX_LAYERS, &pattern));
    for (int64_t i = 0; i < hp->layers; i++)
        hp->kind_of[i] = (i + 1) % pattern != 0;
    TR_TRY(tr_hp_layers(c, window, hp));
out:
    return st;
}

static enum tr_status configure_gemma2(const cJSON *c, struct tr_hparams *hp)
{
    enum tr_status st = TR_OK;
    hp->final_softcap = 30;
    hp->attn_softcap = 50;
    TR_TRY(configure_shared(c, 2, hp));
    TR_TRY(tr_hp_rope(c, 10000.0, hp));
out:
    return st;
}

/* rope_parameters = { full_attention: {...}, sliding_attention: {...} }, or the flat older form. */
static enum tr_status configure_gemma3(const cJSON *c, struct tr_hparams *hp)
{
    enum tr_status st = TR_OK;
    hp->has_qk_norm = true;
    TR_TRY(configure_shared(c, 6, hp));
    const cJSON *nested = cJSON_GetObjectItemCaseSensitive(c, "rope_parameters");
    const cJSON *full = cJSON_GetObjectItemCaseSensitive(nested, "full_attention");
    const cJSON *slide = cJSON_GetObjectItemCaseSensitive(nested, "sliding_attention");
    struct tr_rope *global = &hp->rope[TR_C_ROPE], *local = &hp->rope[TR_C_ROPE_LOCAL];
    if (full || slide) {
        *global = (struct tr_rope){ .type = TR_ROPE_DEFAULT, .theta = 1e6, .original_max = hp->max_positions };
        if (cJSON_IsObject(full))
            TR_TRY(tr_rope_parse(full, c, global));
        global->dim = hp->head_dim;
    } else {
        TR_TRY(tr_hp_rope(c, 1e6, hp));
    }
    *local = (struct tr_rope){
        .type = TR_ROPE_DEFAULT, .theta = 10000, .original_max = hp->max_positions, .dim = hp->head_dim
    };
    TR_TRY(tr_json_real(c, "rope_local_base_freq", false, &local->theta));
    if (cJSON_IsObject(slide))
        TR_TRY(tr_rope_parse(slide, c, local));
    hp->kind[1].rope = TR_C_ROPE_LOCAL;
out:
    return st;
}

#define ROW(type, class, conf)                                                                                         \
    {                                                                                                                  \
        .model_type = type, .class_name = class, .base_prefix = "model.", .layer_prefix = "model.layers.%d.",          \
        .configure = conf, .embed = embed, .block = block, .head = head, .rules = tr_llama_rules,                      \
        .n_rules = TR_LLAMA_RULES, .config_keys = keys,                                                                \
    }
const struct tr_arch tr_arch_gemma2 = ROW("gemma2", "Gemma2ForCausalLM", configure_gemma2);
const struct tr_arch tr_arch_gemma3 = ROW("gemma3_text", "Gemma3ForCausalLM", configure_gemma3);
