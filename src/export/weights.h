/* weights.h - the tensors of a GGUF file: which there are, of which type, written from a model's directory and read
 * back as the weights of a model. */
#ifndef TR_EXPORT_WEIGHTS_H
#define TR_EXPORT_WEIGHTS_H

#include "ckpt/ckpt.h"
#include "export/arch.h"

/* The mixes of types that llama.cpp names. */
enum tr_gguf_mix {
    TR_GGUF_MIX_F16,
    TR_GGUF_MIX_BF16,
    TR_GGUF_MIX_Q8_0,
    TR_GGUF_MIX_Q4_0,
    TR_GGUF_MIX_Q4_K_M,
    TR_GGUF_MIX_Q6_K,
    TR_GGUF_MIX_COUNT
};
struct tr_gguf_mix_row {
    const char *name;   /* "Q4_K_M" */
    uint32_t file_type; /* general.file_type */
    enum tr_ggml type;  /* of most matrices */
};
const struct tr_gguf_mix_row *tr_gguf_mix_row(enum tr_gguf_mix mix);

struct tr_gguf_weights {
    const struct tr_model *model;
    const struct tr_gguf_arch *arch;
    struct tr_pool *pool;
    struct tr_gguf_tensor *tensor;
    struct tr_gguf_slot *slot; /* by tensor */
    size_t n;
    struct tr_gguf_freqs freqs[2];
    int n_freqs;
    /* after the file is written: */
    int fd;
    uint64_t data_at; /* where the data begins in the file */
    int param;        /* whose elements `value` has; -1: none */
    float *value;
};
/* model, arch and pool are set by the caller, all else is 0. */
enum tr_status tr_gguf_weights_open(struct tr_gguf_weights *w, enum tr_gguf_mix mix);
void tr_gguf_weights_close(struct tr_gguf_weights *w);
/* The data of all tensors at the end of fd, read from the directory. Refuses elements that are not finite. */
enum tr_status tr_gguf_weights_write(struct tr_gguf_weights *w, const char *dir, int fd, const char *what);
/* The weights of the file, decoded. It only reads, one caller at a time; fd stays open. */
struct tr_store tr_gguf_weights_store(struct tr_gguf_weights *w);

#endif
