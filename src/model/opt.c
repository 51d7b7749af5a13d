/* opt.c - OPT: learned positions offset by 2, norm before (or, as in the 350M model, after) each half of the block. The
 * 350M model also has a narrower table of tokens, between two linears. */
#include "model/model_impl.h"

static tr_val embed(struct tr_build *b)
{
    const struct tr_hparams *hp = tr_build_hparams(b);
    tr_val x = tr_embed(b, TR_B_TOKENS, "model.decoder.embed_tokens", hp->vocab, 0);
    if (hp->token_cols)
        x = tr_linear(b, x, "model.decoder.project_in", hp->hidden, false);
    tr_val p = tr_embed(b, TR_B_POSITIONS, "model.decoder.embed_positions", hp->max_positions + 2, 2);
    return tr_add(b, x, p);
}

static tr_val block(struct tr_build *b, tr_val x) /* x: (N, D) */
{
    const struct tr_hparams *hp = tr_build_hparams(b);
    int64_t d = hp->hidden;

    tr_val h = hp->is_post_norm ? x : tr_layernorm(b, x, "self_attn_layer_norm");
    tr_val q = tr_linear(b, h, "self_attn.q_proj", d, hp->qkv_bias);
    tr_val k = tr_linear(b, h, "self_attn.k_proj", d, hp->qkv_bias);
    tr_val v = tr_linear(b, h, "self_attn.v_proj", d, hp->qkv_bias);
    tr_val o = tr_linear(b, tr_attention(b, q, k, v), "self_attn.out_proj", d, hp->o_bias);
    x = tr_add(b, x, tr_dropout(b, o, hp->dropout_resid));
    if (hp->is_post_norm)
        x = tr_layernorm(b, x, "self_attn_layer_norm");

    h = hp->is_post_norm ? x : tr_layernorm(b, x, "final_layer_norm");
    h = tr_linear(b, tr_act(b, tr_linear(b, h, "fc1", hp->ffn, hp->mlp_bias)), "fc2", d, hp->mlp_bias);
    x = tr_add(b, x, tr_dropout(b, h, hp->dropout_resid));
    return hp->is_post_norm ? tr_layernorm(b, x, "final_layer_norm") : x;
}

static void head(struct tr_build *b, tr_val x)
{
    const struct tr_hparams *hp = tr_build_hparams(b);
    tr_val h = hp->is_post_norm || hp->has_no_final_norm ? x : tr_layernorm(b, x, "model.decoder.final_layer_norm");
    if (hp->token_cols)
        h = tr_linear(b, h, "model.decoder.project_out", hp->token_cols, false);
    tr_head(b, h, hp->is_tied ? "model.decoder.embed_tokens" : "lm_head");
}

static const struct tr_param_rule rules[] = {
    { "model.decoder.embed_tokens", 0, TR_BY_ANY, 1 },
    { "lm_head", 0, TR_BY_ANY, 1 },
    { "self_attn.q_proj", 0, TR_BY_HEAD, 1 },
    { "self_attn.k_proj", 0, TR_BY_HEAD, 1 },
    { "self_attn.v_proj", 0, TR_BY_HEAD, 1 },
    { "self_attn.out_proj", 1, TR_BY_HEAD, 1 },
    { "fc1", 0, TR_BY_ANY, 1 },
    { "fc2", 1, TR_BY_ANY, 1 },
};

static const char keys[] =
    "vocab_size hidden_size num_hidden_layers ffn_dim max_position_embeddings do_layer_norm_before "
    "_remove_final_layer_norm word_embed_proj_dim dropout attention_dropout num_attention_heads "
    "activation_function layerdrop init_std enable_bias layer_norm_elementwise_affine "
    "tie_word_embeddings activation_dropout";

static enum tr_status configure(const cJSON *c, struct tr_hparams *hp)
{
    bool is_before = true;
    double layerdrop = 0;
    hp->is_tied = true;
    TR_PASS(tr_hp_common(c, hp));
    if (hp->hidden % hp->n_heads_q != 0)
        return tr_fail(TR_USAGE, "config.json: num_attention_heads %" PRId64 " does not divide hidden_size %" PRId64,
                       hp->n_heads_q, hp->hidden);
    TR_PASS(tr_json_int(c, "ffn_dim", true, 1, 1 << 24, &hp->ffn));
    TR_PASS(tr_hp_act(c, "activation_function", "relu", hp));
    hp->norm_eps = 1e-5;
    hp->dropout_resid = 0.1;
    TR_PASS(tr_json_real(c, "dropout", false, &hp->dropout_resid));
    TR_PASS(tr_json_real(c, "layerdrop", false, &layerdrop));
    if (layerdrop != 0)
        return tr_fail(TR_USAGE, "config.json: layerdrop %g is not implemented; only 0", layerdrop);
    hp->qkv_bias = hp->o_bias = hp->mlp_bias = true;
    TR_PASS(tr_json_bool(c, "enable_bias", false, &hp->qkv_bias));
    hp->o_bias = hp->mlp_bias = hp->qkv_bias;
    TR_PASS(tr_hp_must_be(c, "layer_norm_elementwise_affine", true));
    TR_PASS(tr_json_bool(c, "do_layer_norm_before", false, &is_before));
    hp->is_post_norm = !is_before;
    TR_PASS(tr_json_bool(c, "_remove_final_layer_norm", false, &hp->has_no_final_norm));
    int64_t proj = hp->hidden;
    TR_PASS(tr_json_int(c, "word_embed_proj_dim", false, 1, 1 << 20, &proj));
    hp->token_cols = proj != hp->hidden ? proj : 0;
    return TR_OK;
}

const struct tr_arch tr_arch_opt = {
    .model_type = "opt",
    .class_name = "OPTForCausalLM",
    .base_prefix = "model.",
    .layer_prefix = "model.decoder.layers.%d.",
    .configure = configure,
    .embed = embed,
    .block = block,
    .head = head,
    .rules = rules,
    .n_rules = TR_COUNT_OF(rules),
    .config_keys = keys,
};
