/* scratch.h - how the CUDA kernels divide their scratch: pure functions of shapes, so that a plan needs no GPU. */
#ifndef TR_OPS_CUDA_SCRATCH_H
#define TR_OPS_CUDA_SCRATCH_H

#include "ops/ops.h"

/* The scratch of the CUDA column (column.c): in the program, because plans need it. Its kernels are in the module
 * (library.cu). They cover every op; data and scratch are device memory; a kernel starts its work on the call's stream
 * and notes failures at the call's device. */
size_t tr_cuda_scratch(const struct tr_call *c, int n_threads);

enum {
    TR_CUDA_WORKSPACE = 64 << 20, /* bytes for a matrix product; more never made one faster on Hopper */
    TR_CUDA_PARTS = 1056,         /* blocks of a sum over rows; each writes one partial row */
    TR_CUDA_CHUNK = 65536,        /* elements of a partial sum of squares */
    TR_CUDA_HEAD_DIM_MAX = 1024,  /* the largest head size of attention */
    TR_CUDA_SORT = 1024,          /* tokens that embed_dw sorts in one block */
};

/* May cuDNN run attention of this shape where every row of tokens is one document? It depends on type, shape and
 * attr only, so that the scratch of a call depends on nothing else. */
bool tr_cuda_cudnn_covers(const struct tr_call *c);

/* Bytes of gradients of scores that the deterministic backward of attention holds at once, where it takes several rows
 * of tokens, and where it takes one. A row is divided later than a batch, because fewer heads fill a GPU less. */
#define TR_CUDA_SCORES_OF_ROWS (INT64_C(1) << 30)
#define TR_CUDA_SCORES_OF_ROW  (INT64_C(2) << 30)
/* What one head of keys may hold of them at most. Longer rows take a kernel that holds none. */
#define TR_CUDA_SCORES_MOST (INT64_C(40) << 30)

/* What attention computes at once: rows of tokens, and heads of keys with their queries' heads. The deterministic
 * backward takes several rows, or one, or of one row several heads, within the bytes above and at least one head of
 * keys. Every other call takes all. */
struct tr_cuda_chunk {
    int64_t rows, heads_kv;
};
struct tr_cuda_chunk tr_cuda_attention_chunk(const struct tr_call *c);

/* Rows of logits held at once: the largest power of two that fits in 5 GiB, because each block of rows reads and writes
 * dW again. Where the head is frozen there is no dW, and blocks of 512 MiB are as fast. */
static inline int64_t tr_cuda_head_rows(const struct tr_call *c, size_t elem)
{
    const struct tr_view *dw = c->op == TR_OP_HEAD_LOSS_GRAD ? &c->out[2]
                               : c->op == TR_OP_HEAD_GRAD    ? &c->out[1]
                                                             : NULL;
    size_t most = dw && dw->cols == 0 ? (size_t)512 << 20 : (size_t)5 << 30;
    int64_t n = 65536;
    while (n > 128 && (size_t)n * (size_t)c->in[1].rows * elem > most)
        n /= 2;
    return tr_min64(n, c->in[0].rows);
}
static inline int64_t tr_cuda_head_ld(int64_t n_vocab)
{
    return (int64_t)tr_round_up((size_t)n_vocab, 64);
}
static inline size_t tr_cuda_colsum_bytes(int64_t cols)
{
    return tr_round_up((size_t)TR_CUDA_PARTS * (size_t)cols * sizeof(float), 256);
}
/* Scratch of embed_dw: the arrays count, start, order and rank of embed.cu. */
static inline size_t tr_cuda_embed_bytes(int64_t n_tokens, int64_t n_rows)
{
    size_t n_chunks = ((size_t)n_tokens + TR_CUDA_SORT - 1) / TR_CUDA_SORT;
    return tr_round_up((n_chunks + 1) * (size_t)n_rows * 4 + (size_t)n_tokens * 8 + 4096, 256);
}

/* Where `orthogonal` keeps what it needs; the workspace of products is the last. */
struct tr_cuda_muon {
    size_t x, a, product, norm, workspace;
};
struct tr_cuda_muon tr_cuda_muon_scratch(int64_t rows, int64_t cols);

#endif
