/* neox.c - GPT-NeoX (Pythia) and Falcon: one product makes queries, keys and values, in a group of heads for each key
 * head; layer norms, an MLP without a gate, attention and MLP side by side.
 *
 *   x = x + O(attention(norm(x))) + mlp(norm'(x))      where they are side by side
 *
 * norm' is a norm of its own (NeoX, Falcon 40B) or the same one (Falcon 7B, 11B).
 */
#include "model/model_impl.h"

static tr_val attend(struct tr_build *b, tr_val h, const char *qkv, const char *dense)
{
    const struct tr_hparams *hp = tr_build_hparams(b);
    int64_t cols = (hp->n_heads_q + 2 * hp->n_heads_kv) * hp->head_dim;
    tr_val q, k, v;
    tr_split_heads(b, tr_linear(b, h, qkv, cols, hp->qkv_bias), &q, &k, &v);
    /* One statement each: C does not order the evaluation of two arguments, and it would order the nodes. */
    k = tr_rope(b, k);
    q = tr_rope(b, q);
    return tr_linear(b, tr_attention(b, q, k, v), dense, hp->hidden, hp->o_bias);
}

static tr_val mlp(struct tr_build *b, tr_val h)
{
    const struct tr_hparams *hp = tr_build_hparams(b);
    h = tr_act(b, tr_linear(b, h, "mlp.dense_h_to_4h", hp->ffn, hp->mlp_bias));
    return tr_linear(b, h, "mlp.dense_4h_to_h", hp->hidden, hp->mlp_bias);
}

/* ---- GPT-NeoX ---- */

static tr_val neox_embed(struct tr_build *b)
{
    const struct tr_hparams *hp = tr_build_hparams(b);
    return tr_dropout(b, tr_embed(b, TR_B_TOKENS, "gpt_neox.embed_in", hp->vocab, 0), hp->dropout_embed);
}

static tr_val neox_block(struct tr_build *b, tr_val x) /* x: (N, D) */
{
    const struct tr_hparams *hp = tr_build_hparams(b);
    tr_val a = attend(b, tr_layernorm(b, x, "input_layernorm"), "attention.query_key_value", "attention.dense");
    a = tr_dropout(b, a, hp->dropout_resid);
    if (!hp->is_parallel_residual)
        x = tr_add(b, x, a);
    tr_val m = tr_dropout(b, mlp(b, tr_layernorm(b, x, "post_attention_layernorm")), hp->dropout_resid);
    return tr_add(b, x, hp->is_parallel_residual ? tr_add(b, m, a) : m);
}

static void neox_head(struct tr_build *b, tr_val x)
{
    tr_head(b, tr_layernorm(b, x, "gpt_neox.final_layer_norm"),
            tr_build_hparams(b)->is_tied ? "gpt_neox.embed_in" : "embed_out");
}

static enum tr_status configure_neox(const cJSON *c, struct tr_hparams *hp)
{
    double theta = 10000;
    hp->norm_eps = 1e-5;
    hp->qkv_bias = hp->mlp_bias = hp->is_parallel_residual = true;
    TR_PASS(tr_hp_common(c, hp));
    TR_PASS(tr_hp_even_heads(hp));
    TR_PASS(tr_json_int(c, "intermediate_size", true, 1, 1 << 24, &hp->ffn));
    TR_PASS(tr_hp_act(c, "hidden_act", "gelu", hp));
    TR_PASS(tr_json_real(c, "layer_norm_eps", false, &hp->norm_eps));
    TR_PASS(tr_json_real(c, "hidden_dropout", false, &hp->dropout_resid));
    hp->dropout_embed = hp->dropout_resid;
    TR_PASS(tr_json_bool(c, "attention_bias", false, &hp->qkv_bias));
    hp->o_bias = hp->qkv_bias;
    TR_PASS(tr_json_bool(c, "use_parallel_residual", false, &hp->is_parallel_residual));
    TR_PASS(tr_json_real(c, "rotary_emb_base", false, &theta));
    return tr_hp_rope_part(c, theta, "rotary_pct", 0.25, hp);
}

static const struct tr_param_rule neox_rules[] = {
    { "gpt_neox.embed_in", 0, TR_BY_ANY, 1 },
    { "embed_out", 0, TR_BY_ANY, 1 },
    { "attention.query_key_value", 0, TR_BY_HEAD_KV, 1 },
    { "attention.dense", 1, TR_BY_HEAD, 1 },
    { "mlp.dense_h_to_4h", 0, TR_BY_ANY, 1 },
    { "mlp.dense_4h_to_h", 1, TR_BY_ANY, 1 },
};

const struct tr_arch tr_arch_gpt_neox = {
    .model_type = "gpt_neox",
    .class_name = "GPTNeoXForCausalLM",
    .base_prefix = "gpt_neox.",
    .layer_prefix = "gpt_neox.layers.%d.",
    .configure = configure_neox,
    .embed = neox_embed,
    .block = neox_block,
    .head = neox_head,
    .rules = neox_rules,
    .n_rules = TR_COUNT_OF(neox_rules),
    .config_keys =
        "vocab_size hidden_size num_hidden_layers num_attention_heads intermediate_size hidden_act rotary_pct "
        "rotary_emb_base rope_scaling rope_parameters attention_dropout "
        "hidden_dropout max_position_embeddings layer_norm_eps use_parallel_residual attention_bias "
        "tie_word_embeddings classifier_dropout",
};

/* ---- Falcon ---- */

static tr_val falcon_embed(struct tr_build *b)
{
    return tr_embed(b, TR_B_TOKENS, "transformer.word_embeddings", tr_build_hparams(b)->vocab, 0);
}

static tr_val falcon_block(struct tr_build *b, tr_val x) /* x: (N, D) */
{
    const struct tr_hparams *hp = tr_build_hparams(b);
    tr_val h = tr_layernorm(b, x, hp->has_mlp_norm ? "ln_attn" : "input_layernorm");
    tr_val a = attend(b, h, "self_attention.query_key_value", "self_attention.dense");
    if (!hp->is_parallel_residual) {
        x = tr_add(b, x, a);
        h = tr_layernorm(b, x, "post_attention_layernorm");
    } else if (hp->has_mlp_norm) {
        h = tr_layernorm(b, x, "ln_mlp");
    }
    tr_val m = mlp(b, h);
    return tr_add(b, x, tr_dropout(b, hp->is_parallel_residual ? tr_add(b, m, a) : m, hp->dropout_resid));
}

static void falcon_head(struct tr_build *b, tr_val x)
{
    tr_head(b, tr_layernorm(b, x, "transformer.ln_f"),
            tr_build_hparams(b)->is_tied ? "transformer.word_embeddings" : "lm_head");
}

/* The old decoder has one key head (multi_query) or one for each query head; the new one says how many. The old one
 * has one norm in front of both halves, the new one has two unless it says otherwise. */
static enum tr_status configure_heads(const cJSON *c, bool is_new, struct tr_hparams *hp)
{
    bool is_multi_query = true;
    int64_t n_norms = is_new ? 2 : 1, n_kv = hp->n_heads_q;
    TR_PASS(tr_json_bool(c, "multi_query", false, &is_multi_query));
    TR_PASS(tr_json_int(c, "num_kv_heads", false, 1, hp->n_heads_q, &n_kv));
    if (is_new ? hp->n_heads_q % n_kv != 0 : !is_multi_query && n_kv != hp->n_heads_q)
        return tr_fail(TR_USAGE, "config.json: num_kv_heads %" PRId64 " does not go with num_attention_heads %" PRId64,
                       n_kv, hp->n_heads_q);
    hp->n_heads_kv = !is_new && is_multi_query ? 1 : n_kv;
    TR_PASS(tr_json_int(c, "num_ln_in_parallel_attn", false, 1, 2, &n_norms));
    hp->has_mlp_norm = n_norms == 2;
    if ((!is_new && hp->has_mlp_norm) || (is_new && !hp->is_parallel_residual))
        return tr_fail(TR_USAGE,
                       "config.json: new_decoder_architecture %s with parallel_attn %s and num_ln_in_parallel_attn "
                       "%" PRId64 " is not implemented; transformers cannot run it either",
                       is_new ? "true" : "false", hp->is_parallel_residual ? "true" : "false", n_norms);
    return TR_OK;
}

static enum tr_status configure_falcon(const cJSON *c, struct tr_hparams *hp)
{
    bool is_new = false;
    hp->norm_eps = 1e-5;
    hp->is_tied = hp->is_parallel_residual = true;
    TR_PASS(tr_hp_must_be(c, "alibi", false));
    TR_PASS(tr_hp_common(c, hp));
    TR_PASS(tr_hp_even_heads(hp));
    TR_PASS(tr_json_bool(c, "parallel_attn", false, &hp->is_parallel_residual));
    TR_PASS(tr_json_bool(c, "new_decoder_architecture", false, &is_new));
    TR_PASS(configure_heads(c, is_new, hp));
    hp->ffn = 4 * hp->hidden;
    TR_PASS(tr_json_int(c, "ffn_hidden_size", false, 1, 1 << 24, &hp->ffn));
    TR_PASS(tr_hp_act(c, "activation", "gelu", hp));
    TR_PASS(tr_json_real(c, "layer_norm_epsilon", false, &hp->norm_eps));
    TR_PASS(tr_json_real(c, "hidden_dropout", false, &hp->dropout_resid));
    if (hp->dropout_attn != 0 && !hp->is_parallel_residual)
        return tr_fail(TR_USAGE, "config.json: attention_dropout %g is not implemented where parallel_attn is false",
                       hp->dropout_attn);
    hp->dropout_attn = 0; /* transformers has none where positions rotate */
    TR_PASS(tr_json_bool(c, "bias", false, &hp->qkv_bias));
    hp->o_bias = hp->mlp_bias = hp->qkv_bias;
    return tr_hp_rope(c, 10000, hp);
}

static const struct tr_param_rule falcon_rules[] = {
    { "transformer.word_embeddings", 0, TR_BY_ANY, 1 },
    { "lm_head", 0, TR_BY_ANY, 1 },
    { "self_attention.query_key_value", 0, TR_BY_HEAD_KV, 1 },
    { "self_attention.dense", 1, TR_BY_HEAD, 1 },
    { "mlp.dense_h_to_4h", 0, TR_BY_ANY, 1 },
    { "mlp.dense_4h_to_h", 1, TR_BY_ANY, 1 },
};

const struct tr_arch tr_arch_falcon = {
    .model_type = "falcon",
    .class_name = "FalconForCausalLM",
    .base_prefix = "transformer.",
    .layer_prefix = "transformer.h.%d.",
    .configure = configure_falcon,
    .embed = falcon_embed,
    .block = falcon_block,
    .head = falcon_head,
    .rules = falcon_rules,
    .n_rules = TR_COUNT_OF(falcon_rules),
    .config_keys = "vocab_size hidden_size num_hidden_layers num_attention_heads num_kv_heads num_ln_in_parallel_attn "
                   "layer_norm_epsilon hidden_dropout attention_dropout alibi new_decoder_architecture multi_query "
                   "parallel_attn bias max_position_embeddings rope_theta rope_scaling rope_parameters "
                   "partial_rotary_factor ffn_hidden_size activation tie_word_embeddings auto_map",
};
