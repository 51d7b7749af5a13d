/* scratch.c - scratch bytes of the CUDA kernels. Compiled into every build. */
#include "ops/cuda/scratch.h"

static size_t attention_bytes(const struct tr_call *c)
{
    const struct tr_attr *a = &c->attr;
    bool is_forward = c->op == TR_OP_ATTENTION || c->op == TR_OP_RING_ATTENTION;
    size_t n = (size_t)(is_forward ? c->in[0].rows : c->in[1].rows), heads = (size_t)a->n_heads_q;
    size_t s = tr_round_up((size_t)(a->seq_len > 0 ? a->seq_len : (int64_t)n), 128);
    size_t table = s <= TR_CUDA_MASK_LENGTH ? n * s * 2 + 4096 : 4096; /* which tokens are of one document */
    if (is_forward)
        return table + (32 << 20);
    /* sums of do.o; dq in fp32, or the gradients of the scores; dk and dv of every query head */
    size_t wide = n * heads * (size_t)a->head_dim, dq = a->any_order ? wide * 4 : n * heads * s * 2 * 9 / 8;
    return table + n * heads * 4 + dq + 2 * wide * 4 + (64 << 20);
}

size_t tr_op_cuda_scratch(const struct tr_call *c)
{
    size_t n_vocab = (size_t)c->in[1].rows, elem = tr_dtype_bytes(c->in[0].dtype);
    if (tr_op_is_product(c->op))
        return TR_CUDA_WORKSPACE;
    switch (c->op) {
    case TR_OP_QUANT: /* the largest element */
        return 256;
    case TR_OP_LINEAR_DW:
        return TR_CUDA_WORKSPACE + tr_cuda_colsum_bytes(c->in[0].cols);
    case TR_OP_LAYERNORM_BWD:
        return 2 * tr_cuda_colsum_bytes(c->in[1].cols);
    case TR_OP_RMSNORM_BWD:
        return tr_cuda_colsum_bytes(c->in[1].cols);
    case TR_OP_EMBED_DW:
        return tr_cuda_embed_bytes(c->in[0].rows, c->out[0].rows);
    case TR_OP_HEAD_LOSS: /* logits in fp32: nothing is rounded inside */
    case TR_OP_HEAD_STATS:
        elem = 4;
        return (size_t)tr_cuda_head_rows(c->in[0].rows, (int64_t)n_vocab, elem) *
                   (size_t)tr_cuda_head_ld((int64_t)n_vocab) * elem +
               TR_CUDA_WORKSPACE;
    case TR_OP_HEAD_LOSS_GRAD:
    case TR_OP_HEAD_GRAD:
        return (size_t)tr_cuda_head_rows(c->in[0].rows, (int64_t)n_vocab, elem) *
                   (size_t)tr_cuda_head_ld((int64_t)n_vocab) * elem +
               TR_CUDA_WORKSPACE + tr_cuda_colsum_bytes((int64_t)n_vocab);
    case TR_OP_SUMSQ:
        return (((size_t)c->in[0].cols + TR_CUDA_CHUNK - 1) / TR_CUDA_CHUNK + 1) * sizeof(double);
    case TR_OP_ATTENTION:
    case TR_OP_ATTENTION_BWD:
        return attention_bytes(c);
    case TR_OP_RING_ATTENTION:
    case TR_OP_RING_ATTENTION_BWD: /* blocks need less than all rows */
        return tr_ring_scratch(c).kernel + attention_bytes(c);
    case TR_OP_ALL_TO_ALL: /* what is sent and what came */
        return 2 * tr_exchange_bytes(c);
    default:
        return 0;
    }
}

#ifndef TR_HAS_CUDA
tr_kernel tr_op_cuda(enum tr_opcode op)
{
    (void)op;
    return NULL;
}

void tr_op_cuda_updates(const struct tr_call *c, int n)
{
    (void)c;
    (void)n;
}

enum tr_status tr_op_cuda_open(struct tr_device *d)
{
    (void)d;
    return tr_fail(TR_USAGE, "device cuda is not in this build; build with cmake --preset cuda");
}

void tr_op_cuda_close(struct tr_device *d)
{
    (void)d;
}
#endif
