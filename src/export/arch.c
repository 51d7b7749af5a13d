/* arch.c - the table of architectures: which of llama.cpp's networks computes what a model of ours computes, and the
 * keys that tell it the numbers.
 *
 * A file that a runtime loads and then computes something else with is worse than none. So everything a model has must
 * have a place in the network of llama.cpp, and what has none is refused by name. Two things are exact only within a
 * bound and are said instead: a sliding window that the network does not know is exact for texts no longer than the
 * window, which becomes the context length of the file; and gelu is always its tanh form there.
 */
#include "export/arch.h"
#include <math.h>
#include <stdlib.h>

#define LLAMA_PARTS                                                                                                    \
    (TR_GGUF_NEIGHBOURS | TR_GGUF_HEAD_DIM | TR_GGUF_QKV_BIAS | TR_GGUF_O_BIAS | TR_GGUF_MLP_BIAS | TR_GGUF_FREQS |    \
     TR_GGUF_LONGROPE)
#define ALL_BIASES  (TR_GGUF_QKV_BIAS | TR_GGUF_O_BIAS | TR_GGUF_MLP_BIAS | TR_GGUF_ALL_BIAS)
#define GEMMA_PARTS (TR_GGUF_HEAD_DIM | TR_GGUF_GELU | TR_GGUF_EMBED_ROOT)

static const struct tr_gguf_arch archs[] = {
    { "llama", "llama", LLAMA_PARTS, 0 },
    { "mistral", "llama", LLAMA_PARTS, 0 },
    { "granite", "granite", LLAMA_PARTS | TR_GGUF_SCALES, 0 },
    { "smollm3", "smollm3", TR_GGUF_NEIGHBOURS | TR_GGUF_HEAD_DIM | TR_GGUF_QKV_BIAS, 0 },
    { "qwen2", "qwen2", TR_GGUF_QKV_BIAS, 0 },
    { "qwen3", "qwen3", TR_GGUF_HEAD_DIM | TR_GGUF_QKV_BIAS, 0 },
    { "gemma", "gemma", GEMMA_PARTS | TR_GGUF_NO_OUTPUT, 0 },
    { "gemma2", "gemma2", GEMMA_PARTS | TR_GGUF_NO_OUTPUT | TR_GGUF_WINDOWS | TR_GGUF_SOFTCAPS, 46 },
    { "gemma3_text", "gemma3", GEMMA_PARTS | TR_GGUF_WINDOWS | TR_GGUF_FINAL_SOFTCAP, 62 },
    { "phi3", "phi3", TR_GGUF_PARTIAL_ROPE | TR_GGUF_LONGROPE, 0 },
    { "olmo2", "olmo2", TR_GGUF_QKV_BIAS | TR_GGUF_NEEDS_OUTPUT, 0 },
    { "olmo3", "olmo2", TR_GGUF_QKV_BIAS | TR_GGUF_NEEDS_OUTPUT | TR_GGUF_WINDOWS, 0 },
    { "gpt2", "gpt2", ALL_BIASES | TR_GGUF_LAYERNORM | TR_GGUF_GELU, 0 },
    { "gpt_neox", "gptneox",
      ALL_BIASES | TR_GGUF_LAYERNORM | TR_GGUF_GELU | TR_GGUF_PARTIAL_ROPE | TR_GGUF_NEEDS_OUTPUT, 0 },
    { "falcon", "falcon", TR_GGUF_LAYERNORM | TR_GGUF_GELU, 0 },
    { "stablelm", "stablelm", TR_GGUF_QKV_BIAS | TR_GGUF_LAYERNORM | TR_GGUF_PARTIAL_ROPE | TR_GGUF_NEEDS_OUTPUT, 0 },
    { "starcoder2", "starcoder2", ALL_BIASES | TR_GGUF_LAYERNORM | TR_GGUF_GELU, 0 },
    { "cohere", "command-r",
      TR_GGUF_NEIGHBOURS | TR_GGUF_QKV_BIAS | TR_GGUF_LAYERNORM | TR_GGUF_LOGIT_SCALE | TR_GGUF_NO_OUTPUT, 0 },
    { "cohere2", "cohere2",
      TR_GGUF_NEIGHBOURS | TR_GGUF_QKV_BIAS | TR_GGUF_LAYERNORM | TR_GGUF_LOGIT_SCALE | TR_GGUF_NO_OUTPUT |
          TR_GGUF_WINDOWS,
      0 },
    { "glm", "chatglm", TR_GGUF_NEIGHBOURS | TR_GGUF_QKV_BIAS | TR_GGUF_PARTIAL_ROPE, 0 },
    { "glm4", "glm4", TR_GGUF_NEIGHBOURS | TR_GGUF_HEAD_DIM | TR_GGUF_QKV_BIAS | TR_GGUF_PARTIAL_ROPE, 0 },
};

static bool has(const struct tr_gguf_arch *a, unsigned parts)
{
    return (a->parts & parts) != 0;
}

static bool is_near(double x, double y)
{
    return fabs(x - y) <= 1e-6 * fabs(y);
}

/* The scale of attention that the network of llama.cpp has where no key says it. */
static double attention_scale(const struct tr_gguf_arch *a, const struct tr_hparams *hp)
{
    bool is_big = a->big_layers != 0 && hp->layers == a->big_layers;
    return 1 / sqrt((double)(is_big ? hp->hidden / hp->n_heads_q : hp->head_dim));
}

/* Layers without rotation: Cohere 2 has none where attention is full, SmolLM3 in every fourth layer. */
static bool has_rope_pattern(const struct tr_gguf_arch *a, const struct tr_hparams *hp)
{
    for (int64_t i = 0; i < hp->layers; i++) {
        const struct tr_layer_kind *k = &hp->kind[hp->kind_of[i]];
        bool rotates = k->rope != TR_NONE && hp->rope[k->rope].type != TR_ROPE_NONE, wanted = true;
        if (strcmp(a->name, "cohere2") == 0)
            wanted = k->window > 0;
        else if (strcmp(a->name, "smollm3") == 0)
            wanted = (i + 1) % 4 != 0;
        else if (strcmp(a->name, "gpt2") == 0)
            wanted = false;
        if (rotates != wanted)
            return false;
    }
    return true;
}

bool tr_gguf_is_plain_yarn(const struct tr_rope *r)
{
    double fast = r->beta_fast > 0 ? r->beta_fast : 32, slow = r->beta_slow > 0 ? r->beta_slow : 1;
    return r->type == TR_ROPE_YARN && r->truncate && fast == 32 && slow == 1;
}

static bool has_rope_type(const struct tr_gguf_arch *a, const struct tr_rope *r)
{
    switch (r->type) {
    case TR_ROPE_LLAMA3:
        return has(a, TR_GGUF_FREQS);
    case TR_ROPE_LONGROPE:
        return has(a, TR_GGUF_LONGROPE);
    case TR_ROPE_YARN:
        return has(a, TR_GGUF_FREQS) || tr_gguf_is_plain_yarn(r);
    default:
        return true;
    }
}

/* The largest window of a layer; 0: attention is full everywhere. */
static int64_t window_of(const struct tr_hparams *hp)
{
    int64_t window = 0;
    for (int64_t i = 0; i < hp->layers; i++)
        window = tr_max64(window, hp->kind[hp->kind_of[i]].window);
    return window;
}

/* What a model has and llama.cpp's network has no place for; NULL: nothing. */
static const char *missing(const struct tr_gguf_arch *a, const struct tr_hparams *hp)
{
    const struct tr_rope *rope = &hp->rope[TR_C_ROPE], *local = &hp->rope[TR_C_ROPE_LOCAL];
    double root = sqrt((double)hp->hidden);
    bool is_gelu = hp->act == TR_ACT_GELU || hp->act == TR_ACT_GELU_TANH;
    bool lacks_bias = !hp->qkv_bias || !hp->o_bias || !hp->mlp_bias;
    const struct {
        bool is_missing;
        const char *what;
    } rows[] = {
        { !has(a, TR_GGUF_HEAD_DIM) && hp->head_dim * hp->n_heads_q != hp->hidden, "a head_dim of its own" },
        { !has(a, TR_GGUF_QKV_BIAS) && hp->qkv_bias, "biases of query, key and value" },
        { !has(a, TR_GGUF_O_BIAS) && hp->o_bias, "a bias of the attention's output" },
        { !has(a, TR_GGUF_MLP_BIAS) && hp->mlp_bias, "biases in the MLP" },
        { has(a, TR_GGUF_ALL_BIAS) && strcmp(a->name, "gpt2") != 0 && lacks_bias, "linears without bias" },
        { has(a, TR_GGUF_NO_OUTPUT) && !hp->is_tied, "a head that is not the embedding" },
        { has(a, TR_GGUF_GELU) ? !is_gelu : hp->act != TR_ACT_SILU, "this activation function" },
        { !has(a, TR_GGUF_SOFTCAPS) && hp->attn_softcap > 0, "attn_logit_softcapping" },
        { !has(a, TR_GGUF_SOFTCAPS | TR_GGUF_FINAL_SOFTCAP) && hp->final_softcap > 0, "final_logit_softcapping" },
        { !has(a, TR_GGUF_SCALES) && !is_near(hp->attn_scale, attention_scale(a, hp)), "this scale of attention" },
        { !has(a, TR_GGUF_SCALES) && !is_near(hp->embed_scale, has(a, TR_GGUF_EMBED_ROOT) ? root : 1),
          "this scale of embeddings" },
        { !has(a, TR_GGUF_SCALES) && hp->residual_scale != 1, "a scale of residuals" },
        { !has(a, TR_GGUF_SCALES | TR_GGUF_LOGIT_SCALE) && hp->logit_scale != 1, "a scale of logits" },
        { rope->type != TR_ROPE_NONE && !has(a, TR_GGUF_PARTIAL_ROPE) && rope->dim != hp->head_dim,
          "heads that rotate in part" },
        { rope->is_interleaved && !has(a, TR_GGUF_NEIGHBOURS), "a rotation of neighbouring columns" },
        { !has_rope_type(a, rope), "this scaling of rope" },
        { local->type != TR_ROPE_NONE && local->type != TR_ROPE_DEFAULT, "scaled rope in layers with a window" },
        { strcmp(a->name, "olmo2") == 0 && local->type != TR_ROPE_NONE && local->theta != rope->theta,
          "another rope_theta in layers with a window" },
        { !has_rope_pattern(a, hp), "this choice of layers without rotation" },
        { strcmp(a->name, "cohere2") == 0 && window_of(hp) == 0, "full attention in every layer" },
        { strcmp(a->name, "falcon") == 0 && !hp->is_parallel_residual, "attention and MLP one after the other" },
    };
    for (size_t i = 0; i < TR_COUNT_OF(rows); i++)
        if (rows[i].is_missing)
            return rows[i].what;
    return NULL;
}

enum tr_status tr_gguf_arch_find(const struct tr_model *m, const struct tr_gguf_arch **out)
{
    const char *type = m->arch->model_type;
    for (size_t i = 0; i < TR_COUNT_OF(archs); i++) {
        if (strcmp(archs[i].model_type, type) != 0)
            continue;
        const char *what = missing(&archs[i], &m->hp);
        if (what)
            return tr_fail(TR_USAGE,
                           "gguf: llama.cpp computes no %s with %s, which this model has; export it with --to hf", type,
                           what);
        *out = &archs[i];
        return TR_OK;
    }
    return tr_fail(TR_USAGE, "gguf: llama.cpp has no architecture for %s; export it with --to hf", type);
}

/* ---- keys ---- */

struct keys {
    struct tr_gguf *g;
    const char *arch;
    char key[96];
};

static const char *key(struct keys *k, const char *name)
{
    (void)tr_format(k->key, sizeof k->key, "%s.%s", k->arch, name);
    return k->key;
}

static void u32(struct keys *k, const char *name, int64_t x)
{
    tr_gguf_u32(k->g, key(k, name), (uint32_t)x);
}

static void f32(struct keys *k, const char *name, double x)
{
    tr_gguf_f32(k->g, key(k, name), x);
}

/* llama.cpp multiplies rotated columns by 0.1 ln(factor) + 1 itself; attn_factor is what is left of the model's own. */
static void rope_keys(struct keys *k, const struct tr_model *m)
{
    const struct tr_rope *r = &m->hp.rope[TR_C_ROPE], *local = &m->hp.rope[TR_C_ROPE_LOCAL];
    float freq[TR_ROPE_FREQS];
    if (r->type == TR_ROPE_NONE)
        return;
    double own = tr_rope_frequencies(r, m->hp.max_positions, freq);
    u32(k, "rope.dimension_count", r->dim);
    f32(k, "rope.freq_base", r->theta);
    if (local->type != TR_ROPE_NONE)
        f32(k, "rope.freq_base_swa", local->theta);
    if (r->type == TR_ROPE_LINEAR) {
        tr_gguf_str(k->g, key(k, "rope.scaling.type"), "linear");
        f32(k, "rope.scaling.factor", r->factor);
    } else if (tr_gguf_is_plain_yarn(r)) {
        double factor = r->factor > 0 ? r->factor : (double)m->hp.max_positions / (double)r->original_max;
        tr_gguf_str(k->g, key(k, "rope.scaling.type"), "yarn");
        f32(k, "rope.scaling.factor", factor);
        u32(k, "rope.scaling.original_context_length", r->original_max);
        f32(k, "rope.scaling.attn_factor", own / (factor <= 1 ? 1 : 0.1 * log(factor) + 1));
    } else if (r->type == TR_ROPE_YARN) { /* as factors on frequencies */
        f32(k, "rope.scaling.attn_factor", own);
    } else if (r->type == TR_ROPE_LONGROPE) {
        tr_gguf_str(k->g, key(k, "rope.scaling.type"), "longrope");
        u32(k, "rope.scaling.original_context_length", r->original_max);
        f32(k, "rope.scaling.attn_factor", own);
    }
}

/* llama.cpp's gemma2 has windows of 4096 in every other layer unless a file says better, and cannot be without: a model
 * whose layers all see everything has windows as long as its context. */
static void window_keys(const struct tr_gguf_arch *a, struct keys *k, const struct tr_hparams *hp, int64_t window)
{
    bool is_everywhere = window == 0 && strcmp(a->name, "gemma2") == 0;
    if (window == 0 && !is_everywhere)
        return;
    u32(k, "attention.sliding_window", is_everywhere ? hp->max_positions : window);
    tr_gguf_list(k->g, key(k, "attention.sliding_window_pattern"), TR_GGUF_BOOL, (uint64_t)hp->layers);
    for (int64_t i = 0; i < hp->layers; i++) {
        uint8_t is_sliding = is_everywhere || hp->kind[hp->kind_of[i]].window > 0;
        tr_gguf_add(k->g, &is_sliding, sizeof is_sliding);
    }
}

static void scale_keys(const struct tr_gguf_arch *a, struct keys *k, const struct tr_hparams *hp)
{
    if (has(a, TR_GGUF_SCALES)) { /* logits are divided */
        f32(k, "attention.scale", hp->attn_scale);
        f32(k, "embedding_scale", hp->embed_scale);
        f32(k, "residual_scale", hp->residual_scale);
        f32(k, "logit_scale", 1 / hp->logit_scale);
    }
    if (has(a, TR_GGUF_LOGIT_SCALE))
        f32(k, "logit_scale", hp->logit_scale);
    if (has(a, TR_GGUF_SOFTCAPS))
        f32(k, "attn_logit_softcapping", hp->attn_softcap);
    if (has(a, TR_GGUF_SOFTCAPS) || (has(a, TR_GGUF_FINAL_SOFTCAP) && hp->final_softcap > 0))
        f32(k, "final_logit_softcapping", hp->final_softcap);
}

void tr_gguf_arch_keys(const struct tr_gguf_arch *a, const struct tr_model *m, struct tr_gguf *g, struct tr_str *notes)
{
    const struct tr_hparams *hp = &m->hp;
    struct keys k = { .g = g, .arch = a->name };
    int64_t window = window_of(hp), context = hp->max_positions;
    bool is_cut = window > 0 && !has(a, TR_GGUF_WINDOWS) && window < context;
    if (is_cut)
        context = window;
    if (is_cut)
        tr_str_addf(notes,
                    "llama.cpp's %s has no sliding window: the context length of the file is the window, %" PRId64
                    " tokens, up to which both compute the same\n",
                    a->name, window);
    if (hp->act == TR_ACT_GELU)
        tr_str_addf(notes, "llama.cpp computes gelu in its tanh form; this model has the exact one\n");
    if (hp->rope[TR_C_ROPE].type == TR_ROPE_LONGROPE && context > hp->rope[TR_C_ROPE].original_max)
        tr_str_addf(notes,
                    "longrope: llama.cpp takes the long factors when its context has room for more than %" PRId64
                    " tokens, transformers when the text is longer; for shorter texts run it with -c %" PRId64 "\n",
                    hp->rope[TR_C_ROPE].original_max, hp->rope[TR_C_ROPE].original_max);
    u32(&k, "vocab_size", hp->vocab);
    u32(&k, "context_length", context);
    u32(&k, "embedding_length", hp->hidden);
    u32(&k, "block_count", hp->layers);
    u32(&k, "feed_forward_length", hp->ffn);
    u32(&k, "attention.head_count", hp->n_heads_q);
    u32(&k, "attention.head_count_kv", hp->n_heads_kv);
    u32(&k, "attention.key_length", hp->head_dim);
    u32(&k, "attention.value_length", hp->head_dim);
    f32(&k, has(a, TR_GGUF_LAYERNORM) ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon",
        hp->norm_eps);
    if (strcmp(a->name, "gptneox") == 0)
        tr_gguf_bool(g, key(&k, "use_parallel_residual"), hp->is_parallel_residual);
    rope_keys(&k, m);
    if (has(a, TR_GGUF_WINDOWS))
        window_keys(a, &k, hp, window);
    scale_keys(a, &k, hp);
}
