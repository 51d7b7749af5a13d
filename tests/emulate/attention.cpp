/* attention.cpp - kernels of attention and of dropout, for tests in C. */
#include "ops/cuda/cuda.cuh"

extern "C" bool emulated_attention(const struct tr_call *c, int shared_of_gpu)
{
    emulated_shared_of_gpu = shared_of_gpu;
    return c->op == TR_OP_ATTENTION_BWD ? tr_tile_attention_bwd(c) : tr_tile_attention(c);
}

/* The library's kernels are not here: the next engine of the table takes the call. */
bool tr_cudnn_attention(const struct tr_call *)
{
    return false;
}

bool tr_cudnn_attention_bwd(const struct tr_call *)
{
    return false;
}

/* NULL: not emulated. */
extern "C" tr_kernel emulated_kernel(enum tr_opcode op)
{
    switch (op) {
    case TR_OP_ATTENTION:
        return tr_cuda_ATTENTION;
    case TR_OP_ATTENTION_BWD:
        return tr_cuda_ATTENTION_BWD;
    case TR_OP_DROPOUT:
        return tr_cuda_DROPOUT;
    case TR_OP_NOISE:
        return tr_cuda_NOISE;
    default:
        return NULL;
    }
}
