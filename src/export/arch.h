/* arch.h - what llama.cpp calls an architecture: its name, what of it a GGUF file can say, its tensors. */
#ifndef TR_EXPORT_ARCH_H
#define TR_EXPORT_ARCH_H

#include "export/gguf.h"
#include "model/model.h"

/* What the network of an architecture of llama.cpp has a place for. */
enum tr_gguf_part {
    TR_GGUF_NEIGHBOURS = 1 << 0,   /* rotates neighbouring columns of a head, not columns that are half a head apart */
    TR_GGUF_HEAD_DIM = 1 << 1,     /* heads of any size; else hidden_size / heads */
    TR_GGUF_PARTIAL_ROPE = 1 << 2, /* only some columns of a head rotate */
    TR_GGUF_WINDOWS = 1 << 3,      /* layers with a sliding window */
    TR_GGUF_QKV_BIAS = 1 << 4,
    TR_GGUF_O_BIAS = 1 << 5,
    TR_GGUF_MLP_BIAS = 1 << 6,
    TR_GGUF_ALL_BIAS = 1 << 7,     /* it cannot do without any of them */
    TR_GGUF_NO_OUTPUT = 1 << 8,    /* the head is always the embedding */
    TR_GGUF_NEEDS_OUTPUT = 1 << 9, /* the head always has a tensor of its own */
    TR_GGUF_FREQS = 1 << 10,       /* a factor for each frequency: Llama 3, and yarn with bounds of its own */
    TR_GGUF_LONGROPE = 1 << 11,    /* two lists of them */
    TR_GGUF_SCALES = 1 << 12,      /* keys for the scale of attention, embeddings, residuals and logits */
    TR_GGUF_LOGIT_SCALE = 1 << 13, /* of logits only */
    TR_GGUF_SOFTCAPS = 1 << 14,
    TR_GGUF_FINAL_SOFTCAP = 1 << 15,
    TR_GGUF_LAYERNORM = 1 << 16, /* else RMS norm */
    TR_GGUF_GELU = 1 << 17,      /* else silu */
    TR_GGUF_EMBED_ROOT = 1 << 18 /* embeddings are multiplied by the root of hidden_size */
};

struct tr_gguf_arch {
    const char *model_type, *name;
    unsigned parts;
    int64_t big_layers; /* with so many layers the scale of attention is 1 / sqrt(hidden_size / heads); 0: never */
};
/* TR_USAGE: llama.cpp has no such network; the message says what is missing. */
enum tr_status tr_gguf_arch_find(const struct tr_model *m, const struct tr_gguf_arch **out);
/* Yarn whose bounds are those that llama.cpp always has. */
bool tr_gguf_is_plain_yarn(const struct tr_rope *r);
/* The keys of the architecture. notes: what is exact only within a bound. */
void tr_gguf_arch_keys(const struct tr_gguf_arch *a, const struct tr_model *m, struct tr_gguf *g, struct tr_str *notes);

/* How the rows of a parameter are ordered in a file. */
enum tr_gguf_order {
    TR_GGUF_AS_IS,
    TR_GGUF_TRANSPOSED,  /* stored (in, out) here: GPT-2 */
    TR_GGUF_ROPE_HALVES, /* the two halves of a head become neighbours */
    TR_GGUF_GROUPS       /* query, key and value heads of each group become all queries, all keys, all values */
};
struct tr_gguf_slot {
    int param, layer;    /* of the model; -1: factors of rope; of no layer */
    const float *factor; /* param -1 */
    enum tr_gguf_order order;
    double offset; /* is added to every element */
};
/* The name in the file; false: no row has it. layer -1: of the whole model. */
bool tr_gguf_name(const struct tr_gguf_arch *a, const struct tr_model *m, const char *param, int layer, char out[64],
                  struct tr_gguf_slot *slot);
/* Row r of the file is this row here. */
int64_t tr_gguf_row(const struct tr_model *m, enum tr_gguf_order order, int64_t r);
/* Factors on frequencies that the file has as tensors: "rope_freqs.weight", ... At most two; freed by the caller. */
struct tr_gguf_freqs {
    const char *name;
    float *value;
    int64_t n;
};
enum tr_status tr_gguf_rope_tensors(const struct tr_model *m, struct tr_gguf_freqs out[2], int *n);

#endif
