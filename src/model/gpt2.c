/* gpt2.c - GPT-2: learned positions, pre-norm blocks, Conv1D weights stored (in, out), one q/k/v projection. */
#include "model/model_impl.h"
#include <math.h>

static tr_val embed(struct tr_build *b)
{
    const struct tr_hparams *hp = tr_build_hparams(b);
    tr_val x = tr_embed(b, TR_B_TOKENS, "transformer.wte", hp->vocab, 0);
    tr_val p = tr_embed(b, TR_B_POSITIONS, "transformer.wpe", hp->max_positions, 0);
    return tr_dropout(b, tr_add(b, x, p), hp->dropout_embed);
}

static tr_val block(struct tr_build *b, tr_val x) /* x: (N, D) */
{
    const struct tr_hparams *hp = tr_build_hparams(b);
    int64_t d = hp->hidden;
    double proj_std = hp->init_std / sqrt(2.0 * (double)hp->layers);

    tr_val h = tr_conv1d(b, tr_layernorm(b, x, "ln_1"), "attn.c_attn", 3 * d, 0); /* (N, 3D) = q | k | v */
    tr_val v = tr_slice(b, h, 2 * d, d), k = tr_slice(b, h, d, d), q = tr_slice(b, h, 0, d);
    tr_val a = tr_attention(b, q, k, v);
    x = tr_add(b, x, tr_dropout(b, tr_conv1d(b, a, "attn.c_proj", d, proj_std), hp->dropout_resid));

    h = tr_act(b, tr_conv1d(b, tr_layernorm(b, x, "ln_2"), "mlp.c_fc", hp->ffn, 0));
    return tr_add(b, x, tr_dropout(b, tr_conv1d(b, h, "mlp.c_proj", d, proj_std), hp->dropout_resid));
}

static void head(struct tr_build *b, tr_val x)
{
    tr_head(b, tr_layernorm(b, x, "transformer.ln_f"), tr_build_hparams(b)->is_tied ? "transformer.wte" : "lm_head");
}

static const struct tr_param_rule rules[] = {
    { "transformer.wte", 0, TR_BY_ANY, 1 }, { "lm_head", 0, TR_BY_ANY, 1 },
    { "attn.c_attn", 1, TR_BY_HEAD, 3 }, /* q | k | v */
    { "attn.c_proj", 0, TR_BY_HEAD, 1 },    { "mlp.c_fc", 1, TR_BY_ANY, 1 },
    { "mlp.c_proj", 0, TR_BY_ANY, 1 },
};

static const char keys[] =
    "vocab_size n_positions n_ctx n_embd n_layer n_head n_inner activation_function resid_pdrop "
    "embd_pdrop attn_pdrop layer_norm_epsilon summary_type summary_use_proj summary_activation "
    "summary_proj_to_labels summary_first_dropout scale_attn_weights scale_attn_by_inverse_layer_idx "
    "reorder_and_upcast_attn tie_word_embeddings";

static enum tr_status configure(const cJSON *c, struct tr_hparams *hp)
{
    TR_PASS(tr_json_int(c, "vocab_size", true, 1, 1 << 24, &hp->vocab));
    hp->max_positions = 1024;
    TR_PASS(tr_json_int(c, "n_positions", false, 1, INT32_MAX, &hp->max_positions));
    TR_PASS(tr_json_int(c, "n_embd", true, 1, 1 << 20, &hp->hidden));
    TR_PASS(tr_json_int(c, "n_layer", true, 1, TR_MAX_LAYERS, &hp->layers));
    TR_PASS(tr_json_int(c, "n_head", true, 1, 1 << 16, &hp->n_heads_q));
    if (hp->hidden % hp->n_heads_q != 0)
        return tr_fail(TR_USAGE, "config.json: n_head %" PRId64 " does not divide n_embd %" PRId64, hp->n_heads_q,
                       hp->hidden);
    hp->n_heads_kv = hp->n_heads_q;
    hp->head_dim = hp->hidden / hp->n_heads_q;
    hp->ffn = 4 * hp->hidden;
    TR_PASS(tr_json_int(c, "n_inner", false, 1, 1 << 24, &hp->ffn));
    TR_PASS(tr_hp_act(c, "activation_function", "gelu_new", hp));
    hp->norm_eps = 1e-5;
    TR_PASS(tr_json_real(c, "layer_norm_epsilon", false, &hp->norm_eps));
    hp->dropout_embed = hp->dropout_attn = hp->dropout_resid = 0.1;
    TR_PASS(tr_json_real(c, "embd_pdrop", false, &hp->dropout_embed));
    TR_PASS(tr_json_real(c, "attn_pdrop", false, &hp->dropout_attn));
    TR_PASS(tr_json_real(c, "resid_pdrop", false, &hp->dropout_resid));
    hp->is_tied = true;
    TR_PASS(tr_json_bool(c, "tie_word_embeddings", false, &hp->is_tied));
    bool is_scaled = true;
    TR_PASS(tr_json_bool(c, "scale_attn_weights", false, &is_scaled));
    hp->attn_scale = is_scaled ? 1.0 / sqrt((double)hp->head_dim) : 1.0;
    TR_PASS(tr_hp_must_be(c, "scale_attn_by_inverse_layer_idx", false));
    return tr_hp_must_be(c, "add_cross_attention", false);
}

const struct tr_arch tr_arch_gpt2 = {
    .model_type = "gpt2",
    .class_name = "GPT2LMHeadModel",
    .base_prefix = "transformer.",
    .layer_prefix = "transformer.h.%d.",
    .configure = configure,
    .embed = embed,
    .block = block,
    .head = head,
    .rules = rules,
    .n_rules = TR_COUNT_OF(rules),
    .config_keys = keys,
};
