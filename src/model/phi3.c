/* phi3.c - Phi 3, 3.5 and 4 (mini, medium, 14B): Llama's network with q | k | v in one matrix and gate | up in another,
 * a rope that may cover a part of each head, and LongRoPE. */
#include "model/llama.h"

static tr_val block(struct tr_build *b, tr_val x) /* x: (N, D) */
{
    const struct tr_hparams *hp = tr_build_hparams(b);
    int64_t n_q = hp->n_heads_q * hp->head_dim, n_kv = hp->n_heads_kv * hp->head_dim;

    tr_val h = tr_linear(b, tr_rmsnorm(b, x, "input_layernorm", 0), "self_attn.qkv_proj", n_q + 2 * n_kv, false);
    tr_val v = tr_slice(b, h, n_q + n_kv, n_kv);
    tr_val k = tr_rope(b, tr_slice(b, h, n_q, n_kv));
    tr_val q = tr_rope(b, tr_slice(b, h, 0, n_q));
    h = tr_linear(b, tr_attention(b, q, k, v), "self_attn.o_proj", hp->hidden, false);
    x = tr_add(b, x, tr_dropout(b, h, hp->dropout_resid));

    h = tr_linear(b, tr_rmsnorm(b, x, "post_attention_layernorm", 0), "mlp.gate_up_proj", 2 * hp->ffn, false);
    tr_val up = tr_slice(b, h, hp->ffn, hp->ffn), gate = tr_slice(b, h, 0, hp->ffn);
    h = tr_linear(b, tr_glu(b, gate, up), "mlp.down_proj", hp->hidden, false);
    return tr_add(b, x, tr_dropout(b, h, hp->dropout_resid));
}

static const struct tr_param_rule rules[] = {
    { "model.embed_tokens", 0, TR_BY_ANY, 1 }, { "lm_head", 0, TR_BY_ANY, 1 },
    { "self_attn.qkv_proj", 0, TR_BY_QKV, 3 }, { "self_attn.o_proj", 1, TR_BY_HEAD, 1 },
    { "mlp.gate_up_proj", 0, TR_BY_ANY, 2 },   { "mlp.down_proj", 1, TR_BY_ANY, 1 },
};

/* embd_pdrop and auto_map (code of the first files) have no effect in transformers. */
static const char keys[] =
    "embd_pdrop auto_map "
    "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim "
    "hidden_act max_position_embeddings original_max_position_embeddings rms_norm_eps rope_theta rope_scaling "
    "rope_parameters partial_rotary_factor resid_pdrop attention_dropout sliding_window tie_word_embeddings";

/* As transformers: "su" and "yarn" are old names of longrope, and the length of the first training is 4096 unless
 * config.json itself says otherwise. */
static enum tr_status configure(const cJSON *c, struct tr_hparams *hp)
{
    struct tr_rope *r = &hp->rope[TR_C_ROPE];
    hp->norm_eps = 1e-5;
    hp->max_positions = 4096;
    TR_PASS(tr_hp_common(c, hp));
    if (hp->ffn == 0)
        return tr_fail(TR_USAGE, "config.json: intermediate_size is missing");
    TR_PASS(tr_hp_act(c, "hidden_act", "silu", hp));
    TR_PASS(tr_json_real(c, "resid_pdrop", false, &hp->dropout_resid));
    TR_PASS(tr_json_int(c, "sliding_window", false, 1, INT32_MAX, &hp->kind[0].window));
    hp->kind[0].rope = TR_C_ROPE;
    TR_PASS(tr_hp_rope_part(c, 10000.0, "partial_rotary_factor", 1.0, hp));
    r->type = r->type == TR_ROPE_YARN ? TR_ROPE_LONGROPE : r->type;
    r->original_max = 4096;
    TR_PASS(tr_json_int(c, "original_max_position_embeddings", false, 1, INT32_MAX, &r->original_max));
    if (r->type != TR_ROPE_DEFAULT && r->type != TR_ROPE_LONGROPE)
        return tr_fail(TR_USAGE, "config.json: phi3 has no rope type but default and longrope");
    return TR_OK;
}

const struct tr_arch tr_arch_phi3 = {
    .model_type = "phi3",
    .class_name = "Phi3ForCausalLM",
    .base_prefix = "model.",
    .layer_prefix = "model.layers.%d.",
    .configure = configure,
    .embed = tr_llama_embed,
    .block = block,
    .head = tr_llama_head,
    .rules = rules,
    .n_rules = TR_COUNT_OF(rules),
    .config_keys = keys,
};
