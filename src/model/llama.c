/* llama.c - Llama 1, 2, 3, 3.1 and 3.2. The families of llama_kin.c and Gemma 1 share the network.
 *
 *   x = x + r O(attention(rope(Q h), rope(K h), V h))   with h = norm(x)
 *   x = x + r down(act(gate h) * up h)                   with h = norm(x)
 *
 * r is 1 for all but Granite.
 */
#include "model/llama.h"

tr_val tr_llama_embed(struct tr_build *b)
{
    const struct tr_hparams *hp = tr_build_hparams(b);
    return tr_scale(b, tr_embed(b, TR_B_TOKENS, "model.embed_tokens", hp->vocab, 0), hp->embed_scale);
}

tr_val tr_llama_attend(struct tr_build *b, tr_val h)
{
    const struct tr_hparams *hp = tr_build_hparams(b);
    int64_t n_q = hp->n_heads_q * hp->head_dim, n_kv = hp->n_heads_kv * hp->head_dim;

    tr_val q = tr_linear(b, h, "self_attn.q_proj", n_q, hp->qkv_bias);
    tr_val k = tr_linear(b, h, "self_attn.k_proj", n_kv, hp->qkv_bias);
    tr_val v = tr_linear(b, h, "self_attn.v_proj", n_kv, hp->qkv_bias);
    if (hp->has_qk_norm) {
        q = tr_headnorm(b, q, "self_attn.q_norm", hp->norm_offset);
        k = tr_headnorm(b, k, "self_attn.k_norm", hp->norm_offset);
    }
    /* One statement each: C does not order the evaluation of two arguments, and it would order the nodes. */
    k = tr_rope(b, k);
    q = tr_rope(b, q);
    return tr_linear(b, tr_attention(b, q, k, v), "self_attn.o_proj", hp->hidden, hp->o_bias);
}

tr_val tr_llama_mlp(struct tr_build *b, tr_val h)
{
    const struct tr_hparams *hp = tr_build_hparams(b);
    tr_val gate = tr_linear(b, h, "mlp.gate_proj", hp->ffn, hp->mlp_bias);
    tr_val up = tr_linear(b, h, "mlp.up_proj", hp->ffn, hp->mlp_bias);
    return tr_linear(b, tr_glu(b, gate, up), "mlp.down_proj", hp->hidden, hp->mlp_bias);
}

tr_val tr_llama_block(struct tr_build *b, tr_val x) /* x: (N, D) tokens of this micro-batch */
{
    const struct tr_hparams *hp = tr_build_hparams(b);
    tr_val o = tr_llama_attend(b, tr_rmsnorm(b, x, "input_layernorm", hp->norm_offset));
    x = tr_add(b, x, tr_scale(b, o, hp->residual_scale));
    tr_val down = tr_llama_mlp(b, tr_rmsnorm(b, x, "post_attention_layernorm", hp->norm_offset));
    return tr_add(b, x, tr_scale(b, down, hp->residual_scale));
}

void tr_llama_head(struct tr_build *b, tr_val x)
{
    const struct tr_hparams *hp = tr_build_hparams(b);
    tr_val h = tr_scale(b, tr_rmsnorm(b, x, "model.norm", hp->norm_offset), hp->logit_scale);
    tr_head(b, h, hp->is_tied ? "model.embed_tokens" : "lm_head");
}

const struct tr_param_rule tr_llama_rules[TR_LLAMA_RULES] = {
    { "model.embed_tokens", 0, TR_BY_ANY, 1 },   { "lm_head", 0, TR_BY_ANY, 1 },
    { "self_attn.q_proj", 0, TR_BY_HEAD, 1 },    { "self_attn.k_proj", 0, TR_BY_HEAD_KV, 1 },
    { "self_attn.v_proj", 0, TR_BY_HEAD_KV, 1 }, { "self_attn.o_proj", 1, TR_BY_HEAD, 1 },
    { "mlp.gate_proj", 0, TR_BY_ANY, 1 },        { "mlp.up_proj", 0, TR_BY_ANY, 1 },
    { "mlp.down_proj", 1, TR_BY_ANY, 1 },
};

enum tr_status tr_llama_configure(const cJSON *c, struct tr_hparams *hp)
{
    TR_PASS(tr_hp_common(c, hp));
    TR_PASS(tr_hp_act(c, "hidden_act", "silu", hp));
    TR_PASS(tr_hp_rope(c, 10000.0, hp));
    if (hp->ffn == 0)
        return tr_fail(TR_USAGE, "config.json: intermediate_size is missing");
    return TR_OK;
}

enum tr_status tr_llama_biases(const cJSON *c, struct tr_hparams *hp)
{
    enum tr_status st = tr_json_bool(c, "attention_bias", false, &hp->qkv_bias);
    hp->o_bias = hp->qkv_bias;
    return st == TR_OK ? tr_json_bool(c, "mlp_bias", false, &hp->mlp_bias) : st;
}

static enum tr_status configure(const cJSON *c, struct tr_hparams *hp)
{
    int64_t pretraining_tp = 1;
    TR_PASS(tr_llama_configure(c, hp));
    TR_PASS(tr_llama_biases(c, hp));
    /* pretraining_tp only changed the order of sums in the original code */
    TR_PASS(tr_json_int(c, "pretraining_tp", false, 1, 1024, &pretraining_tp));
    return tr_hp_layers(c, 0, hp);
}

const struct tr_arch tr_arch_llama = TR_LLAMA_ROW("llama", "LlamaForCausalLM", configure, "");
