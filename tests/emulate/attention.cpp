/* attention.cpp - the emulated kernels, for tests in C. */
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
#define X(id)                                                                                                          \
    case TR_OP_##id:                                                                                                   \
        return tr_cuda_##id;
        X(ATTENTION)
        X(ATTENTION_BWD)
        X(DROPOUT) X(NOISE) X(ACT) X(ACT_BWD) X(GLU) X(GLU_BWD) X(ADD) X(SCALE) X(CAST) X(ZERO) X(EMBED) X(EMBED_DW)
            X(ROPE) X(REGROUP) X(HEAD_LOSS) X(HEAD_LOSS_GRAD) X(HEAD_STATS) X(HEAD_COMBINE) X(HEAD_GRAD) X(DOC_SUMS)
                X(PAIR_LOSS) X(DFT_LOSS) X(WEIGH_LOSS) X(ROW_SQUARES) X(COL_SCALE) X(COL_SCALE_BWD) X(ADAFACTOR_SUMS)
                    X(ADAFACTOR_FACTORS) X(ADAFACTOR_NORM) X(ADAFACTOR_APPLY)
#undef X
                        default : return NULL;
    }
}
