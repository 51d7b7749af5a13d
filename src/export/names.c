/* names.c - parameters by their names here and in a GGUF file, and how their rows are ordered there. */
#include "export/arch.h"
#include <stdlib.h>

/* Names without .weight and .bias; those of a layer without its prefix. `only`: the architectures that a row is for. */
static const struct {
    const char *ours, *theirs, *only;
} rows[] = {
    { "model.embed_tokens", "token_embd", NULL },
    { "transformer.wte", "token_embd", NULL },
    { "gpt_neox.embed_in", "token_embd", NULL },
    { "transformer.word_embeddings", "token_embd", NULL },
    { "transformer.wpe", "position_embd", NULL },
    { "model.norm", "output_norm", NULL },
    { "transformer.ln_f", "output_norm", NULL },
    { "gpt_neox.final_layer_norm", "output_norm", NULL },
    { "lm_head", "output", NULL },
    { "embed_out", "output", NULL },
    { "input_layernorm", "attn_norm", NULL },
    { "ln_1", "attn_norm", NULL },
    { "ln_attn", "attn_norm_2", NULL },
    { "ln_mlp", "attn_norm", NULL },
    { "self_attn.q_proj", "attn_q", NULL },
    { "self_attn.k_proj", "attn_k", NULL },
    { "self_attn.v_proj", "attn_v", NULL },
    { "self_attn.q_norm", "attn_q_norm", NULL },
    { "self_attn.k_norm", "attn_k_norm", NULL },
    { "self_attn.o_proj", "attn_output", NULL },
    { "self_attn.qkv_proj", "attn_qkv", NULL },
    { "attn.c_attn", "attn_qkv", NULL },
    { "attention.query_key_value", "attn_qkv", NULL },
    { "self_attention.query_key_value", "attn_qkv", NULL },
    { "attn.c_proj", "attn_output", NULL },
    { "attention.dense", "attn_output", NULL },
    { "self_attention.dense", "attn_output", NULL },
    { "post_attention_layernorm", "post_attention_norm", "gemma2 gemma3 olmo2" },
    { "post_attention_layernorm", "ffn_norm", NULL },
    { "post_self_attn_layernorm", "post_attention_norm", NULL },
    { "pre_feedforward_layernorm", "ffn_norm", NULL },
    { "post_feedforward_layernorm", "post_ffw_norm", NULL },
    { "post_mlp_layernorm", "post_ffw_norm", NULL },
    { "ln_2", "ffn_norm", NULL },
    { "mlp.gate_proj", "ffn_gate", NULL },
    { "mlp.up_proj", "ffn_up", NULL },
    { "mlp.gate_up_proj", "ffn_up", NULL },
    { "mlp.c_fc", "ffn_up", NULL },
    { "mlp.dense_h_to_4h", "ffn_up", NULL },
    { "mlp.down_proj", "ffn_down", NULL },
    { "mlp.c_proj", "ffn_down", NULL },
    { "mlp.dense_4h_to_h", "ffn_down", NULL },
};

static bool has_word(const char *list, const char *word)
{
    size_t n = strlen(word);
    for (const char *p = strstr(list, word); p; p = strstr(p + 1, word))
        if ((p == list || p[-1] == ' ') && (p[n] == 0 || p[n] == ' '))
            return true;
    return false;
}

static enum tr_gguf_order order_of(const struct tr_gguf_arch *a, const struct tr_model *m, const char *theirs,
                                   bool is_matrix)
{
    bool turns = (a->parts & TR_GGUF_NEIGHBOURS) && !m->hp.rope[TR_C_ROPE].is_interleaved;
    if (turns && (strcmp(theirs, "attn_q") == 0 || strcmp(theirs, "attn_k") == 0))
        return TR_GGUF_ROPE_HALVES;
    if (strcmp(theirs, "attn_qkv") == 0 && (strcmp(a->name, "gptneox") == 0 || strcmp(a->name, "falcon") == 0))
        return TR_GGUF_GROUPS;
    bool is_conv = strcmp(a->name, "gpt2") == 0 && is_matrix &&
                   (strncmp(theirs, "attn_", 5) == 0 || strncmp(theirs, "ffn_", 4) == 0);
    return is_conv ? TR_GGUF_TRANSPOSED : TR_GGUF_AS_IS;
}

bool tr_gguf_name(const struct tr_gguf_arch *a, const struct tr_model *m, const char *param, int layer, char out[64],
                  struct tr_gguf_slot *slot)
{
    const char *dot = strrchr(param, '.');
    size_t n = dot ? (size_t)(dot - param) : 0;
    for (size_t i = 0; i < TR_COUNT_OF(rows); i++) {
        if (strlen(rows[i].ours) != n || memcmp(rows[i].ours, param, n) != 0 ||
            (rows[i].only && !has_word(rows[i].only, a->name)))
            continue;
        bool is_matrix = m->param[slot->param].n_dims == 2, is_norm = strstr(rows[i].theirs, "norm") != NULL;
        slot->order = order_of(a, m, rows[i].theirs, is_matrix);
        slot->offset = is_norm && strcmp(dot, ".weight") == 0 ? m->hp.norm_offset : 0;
        return (layer < 0 ? tr_format(out, 64, "%s%s", rows[i].theirs, dot)
                          : tr_format(out, 64, "blk.%d.%s%s", layer, rows[i].theirs, dot)) == TR_OK;
    }
    return false;
}

int64_t tr_gguf_row(const struct tr_model *m, enum tr_gguf_order order, int64_t r)
{
    const struct tr_hparams *hp = &m->hp;
    int64_t d = hp->head_dim, head = r / d, in = r % d, per = hp->n_heads_q / hp->n_heads_kv;
    switch (order) {
    case TR_GGUF_ROPE_HALVES:
        return head * d + in % 2 * (d / 2) + in / 2;
    case TR_GGUF_GROUPS:
        if (head < hp->n_heads_q)
            head = head / per * (per + 2) + head % per;
        else if (head < hp->n_heads_q + hp->n_heads_kv)
            head = (head - hp->n_heads_q) * (per + 2) + per;
        else
            head = (head - hp->n_heads_q - hp->n_heads_kv) * (per + 2) + per + 1;
        return head * d + in;
    default:
        return r;
    }
}

/* ---- rope ---- */

/* llama.cpp divides the frequencies of unscaled rope by these. */
static enum tr_status freq_factors(const struct tr_rope *r, int64_t max_positions, float **out)
{
    struct tr_rope plain = *r;
    float base[TR_ROPE_FREQS], freq[TR_ROPE_FREQS], *f = malloc((size_t)(r->dim / 2) * sizeof *f);
    if (!f)
        return tr_fail(TR_NOMEM, "gguf: out of memory");
    plain.type = TR_ROPE_DEFAULT;
    (void)tr_rope_frequencies(&plain, max_positions, base);
    (void)tr_rope_frequencies(r, max_positions, freq);
    for (int64_t i = 0; i < r->dim / 2; i++)
        f[i] = base[i] / freq[i];
    *out = f;
    return TR_OK;
}

static enum tr_status list_factors(const cJSON *list, int64_t n, float **out)
{
    float *f = NULL;
    TR_PASS(TR_ALLOC(f, (size_t)n, "a GGUF file"));
    const cJSON *item = list->child; /* the model has checked its length */
    for (int64_t i = 0; i < n; i++, item = item->next)
        f[i] = (float)item->valuedouble;
    *out = f;
    return TR_OK;
}

enum tr_status tr_gguf_rope_tensors(const struct tr_model *m, struct tr_gguf_freqs out[2], int *n)
{
    const struct tr_rope *r = &m->hp.rope[TR_C_ROPE];
    *n = 0;
    if (r->type == TR_ROPE_LLAMA3 || (r->type == TR_ROPE_YARN && !tr_gguf_is_plain_yarn(r))) {
        out[0] = (struct tr_gguf_freqs){ "rope_freqs.weight", NULL, r->dim / 2 };
        TR_PASS(freq_factors(r, m->hp.max_positions, &out[0].value));
        *n = 1;
    } else if (r->type == TR_ROPE_LONGROPE) {
        out[0] = (struct tr_gguf_freqs){ "rope_factors_long.weight", NULL, r->dim / 2 };
        out[1] = (struct tr_gguf_freqs){ "rope_factors_short.weight", NULL, r->dim / 2 };
        /* llama.cpp goes by the room of its context, which may be more than was asked for: a model whose texts never
         * need the long factors has the short ones twice. */
        bool is_long = m->hp.max_positions > r->original_max;
        TR_PASS(list_factors(is_long ? r->long_factor : r->short_factor, r->dim / 2, &out[0].value));
        *n = 1;
        TR_PASS(list_factors(r->short_factor, r->dim / 2, &out[1].value));
        *n = 2;
    }
    return TR_OK;
}
