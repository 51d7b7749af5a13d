/* mix.c - which tensors a file has, and the type of each.
 *
 * The choice is that of llama.cpp's quantiser without an importance matrix, so that a file is the one that its tools
 * would make of the same weights. Vectors, norms and learned positions are always F32. */
#include "export/weights.h"
#include <stdlib.h>

static const struct tr_gguf_mix_row mixes[] = {
    [TR_GGUF_MIX_F16] = { "F16", 1, TR_GGML_F16 },         [TR_GGUF_MIX_BF16] = { "BF16", 32, TR_GGML_BF16 },
    [TR_GGUF_MIX_Q8_0] = { "Q8_0", 7, TR_GGML_Q8_0 },      [TR_GGUF_MIX_Q4_0] = { "Q4_0", 2, TR_GGML_Q4_0 },
    [TR_GGUF_MIX_Q4_K_M] = { "Q4_K_M", 15, TR_GGML_Q4_K }, [TR_GGUF_MIX_Q6_K] = { "Q6_K", 18, TR_GGML_Q6_K },
};
_Static_assert(TR_COUNT_OF(mixes) == TR_GGUF_MIX_COUNT, "a row for each mix");

const struct tr_gguf_mix_row *tr_gguf_mix_row(enum tr_gguf_mix mix)
{
    return &mixes[mix];
}

static bool is_quantised(enum tr_gguf_mix mix)
{
    return mix != TR_GGUF_MIX_F16 && mix != TR_GGUF_MIX_BF16;
}

/* Layers at both ends, and every third between them, are more sensitive. */
static bool needs_more_bits(int64_t layer, int64_t n)
{
    return layer < n / 8 || layer >= 7 * n / 8 || (layer - n / 8) % 3 == 2;
}

/* Models of 80 layers whose query heads share keys: their small attn_v gets more bits. */
static bool is_70b(const struct tr_gguf_weights *w)
{
    const struct tr_hparams *hp = &w->model->hp;
    return hp->layers == 80 && ((strcmp(w->arch->name, "llama") == 0 && hp->n_heads_q != hp->n_heads_kv) ||
                                strcmp(w->arch->name, "qwen2") == 0);
}

static enum tr_ggml type_in_k_m(const struct tr_gguf_weights *w, const char *name, int64_t layer)
{
    int64_t n = w->model->hp.layers;
    bool is_more = needs_more_bits(layer, n);
    if (strstr(name, "attn_v.weight") || strstr(name, "attn_qkv.weight"))
        return is_more ? TR_GGML_Q6_K : is_70b(w) ? TR_GGML_Q5_K : TR_GGML_Q4_K;
    if (!strstr(name, "ffn_down.weight"))
        return TR_GGML_Q4_K;
    if (strcmp(w->arch->name, "falcon") == 0)
        return layer < n / 16 ? TR_GGML_Q6_K : is_more ? TR_GGML_Q5_K : TR_GGML_Q4_K;
    return is_more ? TR_GGML_Q6_K : TR_GGML_Q4_K;
}

static enum tr_ggml type_of(const struct tr_gguf_weights *w, enum tr_gguf_mix mix, const struct tr_gguf_tensor *t,
                            const struct tr_gguf_slot *s, bool has_output)
{
    enum tr_ggml type = mixes[mix].type;
    if (t->n_dims < 2 || strstr(t->name, "_norm.weight") || strcmp(t->name, "position_embd.weight") == 0)
        return TR_GGML_F32;
    if (!is_quantised(mix))
        return type;
    bool is_head = strcmp(t->name, "output.weight") == 0 || (!has_output && strcmp(t->name, "token_embd.weight") == 0);
    if (is_head && (strcmp(w->arch->name, "falcon") == 0 || t->dims[0] % tr_ggml_type(type)->n != 0))
        type = TR_GGML_Q8_0;
    else if (is_head && type != TR_GGML_Q8_0)
        type = TR_GGML_Q6_K;
    else if (mix == TR_GGUF_MIX_Q4_K_M && s->layer >= 0)
        type = type_in_k_m(w, t->name, s->layer);
    return tr_ggml_for_row(type, t->dims[0]);
}

static void set_shape(const struct tr_gguf_weights *w, struct tr_gguf_tensor *t, const struct tr_gguf_slot *s)
{
    const struct tr_param *p = &w->model->param[s->param];
    bool is_turned = s->order == TR_GGUF_TRANSPOSED;
    t->n_dims = p->n_dims;
    t->dims[0] = is_turned ? p->rows : p->cols;
    t->dims[1] = is_turned ? p->cols : p->rows;
}

static enum tr_status add_param(struct tr_gguf_weights *w, int param, int layer)
{
    const char *name = w->model->param[param].name;
    struct tr_gguf_tensor *t = &w->tensor[w->n];
    struct tr_gguf_slot *s = &w->slot[w->n];
    *s = (struct tr_gguf_slot){ .param = param, .layer = layer };
    char prefix[64] = "";
    if (layer >= 0) {
        const char *f = w->model->arch->layer_prefix, *at = strstr(f, "%d");
        (void)tr_format(prefix, sizeof prefix, "%.*s%d%s", (int)(at - f), f, layer, at + 2);
    }
    size_t n = strlen(prefix);
    if (strncmp(name, prefix, n) != 0 || !tr_gguf_name(w->arch, w->model, name + n, layer, t->name, s))
        return tr_fail(TR_USAGE, "gguf: parameter %s has no place in llama.cpp's %s; export it with --to hf", name,
                       w->arch->name);
    set_shape(w, t, s);
    w->n++;
    return TR_OK;
}

static bool has_tensor(const struct tr_gguf_weights *w, const char *name)
{
    for (size_t i = 0; i < w->n; i++)
        if (strcmp(w->tensor[i].name, name) == 0)
            return true;
    return false;
}

static enum tr_status add_freqs(struct tr_gguf_weights *w)
{
    enum tr_status st = tr_gguf_rope_tensors(w->model, w->freqs, &w->n_freqs);
    for (int i = 0; i < w->n_freqs && st == TR_OK; i++) {
        struct tr_gguf_tensor *t = &w->tensor[w->n];
        *t = (struct tr_gguf_tensor){ .n_dims = 1, .dims = { w->freqs[i].n, 1 } };
        w->slot[w->n++] = (struct tr_gguf_slot){ .param = -1, .layer = -1, .factor = w->freqs[i].value };
        st = tr_format(t->name, sizeof t->name, "%s", w->freqs[i].name);
    }
    return st;
}

enum tr_status tr_gguf_weights_open(struct tr_gguf_weights *w, enum tr_gguf_mix mix)
{
    enum tr_status st = TR_OK;
    const struct tr_model *m = w->model;
    bool *is_done = calloc((size_t)m->n_params + 1, sizeof *is_done);
    w->param = -1;
    w->fd = -1;
    w->tensor = calloc((size_t)m->n_params + 4, sizeof *w->tensor);
    w->slot = calloc((size_t)m->n_params + 4, sizeof *w->slot);
    if (!is_done || !w->tensor || !w->slot)
        TR_TRY(tr_fail(TR_NOMEM, "gguf: no memory for %d tensors", m->n_params));
    for (int g = 0; g < m->n_segments; g++)
        for (int i = 0; i < m->program[m->segment[g].program]->n_params; i++) {
            int param = m->segment[g].param[i];
            if (!is_done[param])
                TR_TRY(add_param(w, param, m->segment[g].layer));
            is_done[param] = true;
        }
    if ((w->arch->parts & TR_GGUF_NEEDS_OUTPUT) && !has_tensor(w, "output.weight")) {
        TR_TRY(add_param(w, tr_model_head(m), -1));
        TR_TRY(tr_format(w->tensor[w->n - 1].name, sizeof w->tensor->name, "output.weight"));
    }
    TR_TRY(add_freqs(w));
    bool has_output = has_tensor(w, "output.weight");
    for (size_t i = 0; i < w->n; i++)
        w->tensor[i].type = type_of(w, mix, &w->tensor[i], &w->slot[i], has_output);
out:
    free(is_done);
    return st;
}

void tr_gguf_weights_close(struct tr_gguf_weights *w)
{
    for (int i = 0; i < 2; i++)
        free(w->freqs[i].value);
    free(w->tensor);
    free(w->slot);
    free(w->value);
    *w = (struct tr_gguf_weights){ .fd = -1 };
}
