/* load_impl.h - what load.c and diff.c share. */
#ifndef TR_CKPT_LOAD_IMPL_H
#define TR_CKPT_LOAD_IMPL_H

#include "ckpt/ckpt.h"

/* Every trireme/optim-*.safetensors of a checkpoint, in no order. */
typedef enum tr_status tr_optim_file_fn(void *ctx, const char *path);
enum tr_status tr_each_optim_file(const char *dir, tr_optim_file_fn *fn, void *ctx);

#endif
