/* load_impl.h - what the files that read checkpoints share. */
#ifndef TR_CKPT_LOAD_IMPL_H
#define TR_CKPT_LOAD_IMPL_H

#include "ckpt/ckpt.h"

/* Every trireme/optim-*.safetensors of a checkpoint, in no order. */
typedef enum tr_status tr_optim_file_fn(void *ctx, const char *path);
enum tr_status tr_each_optim_file(const char *dir, tr_optim_file_fn *fn, void *ctx);

/* Tensor `at` of a directory into the weights of a parameter. Its shape has been checked; its values are finite. */
enum tr_status tr_load_tensor(const struct tr_store *s, const struct tr_hf *hf, size_t at, int param, float *buf);

#endif
