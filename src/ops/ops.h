/* ops.h - contracts of all ops. An op is pure over views: it reads `in`, writes `out`, uses `scratch`, nothing else.
 *
 * Every op has a CPU reference (slow and obvious: the definition) and a fast CPU version; a GPU adds a column. Rules
 * that every kernel keeps: the same bits for any number of threads; a row of the result depends only on the rows it
 * needs, so splitting a batch never changes bits; sums over rows (parameter gradients) run in row order; fast kernels
 * never allocate. Views are row-major matrices with a leading dimension, so a column slice of a wider value is a view
 * and costs nothing. An absent optional input is a view with data == NULL. What one op reads and writes stands in its
 * row (op_row.h, row_*.c).
 */
#ifndef TR_OPS_OPS_H
#define TR_OPS_OPS_H

#include "config/config.h"
#include "device/device.h"

struct tr_view {
    void *data;
    enum tr_dtype dtype;
    int64_t rows, cols, ld; /* ld in elements, >= cols */
};

enum { TR_MAX_IN = 10, TR_MAX_OUT = 4 };

enum tr_act { TR_ACT_NONE, TR_ACT_RELU, TR_ACT_GELU /* erf */, TR_ACT_GELU_TANH, TR_ACT_SILU };

/* One flat record for all ops; the comment on each op's row names the fields it reads. */
struct tr_attr {
    int32_t n_heads_q, n_heads_kv, head_dim; /* attention, rope, grouped norm */
    int32_t window;                          /* attention: a row sees itself and window-1 rows before it; 0 = all */
    int32_t act;                             /* enum tr_act */
    int32_t index_offset;                    /* embed: added to each index (OPT positions: 2) */
    int32_t group;                           /* norms: columns per group, 0 = the whole row (qk-norm: head_dim) */
    bool weight_is_in_out;                   /* linear: weight stored (in, out) as in GPT-2's Conv1D, else (out, in) */
    bool inverse;                            /* rope: rotate back */
    bool decay;                              /* optimizers: apply weight decay */
    bool is_gradient;                        /* matmul8: y is a gradient: sums go to fp32 more often */
    bool any_order;                          /* attention_bwd: sums may be in another order every time */
    float eps;
    float scale;         /* 0 = 1 in every op that reads it */
    float softcap;       /* softcap(s) = c * tanh(s / c); 0 = off */
    float weight_offset; /* rmsnorm: y = x * rstd * (offset + w); Gemma: 1 */
    float dropout_p;
    uint64_t key;    /* stream of random numbers (dropout site, stochastic rounding of one tensor) */
    int64_t first;   /* place of this slice in the whole: optimizers: first element; dropout: first column; attention:
                        first query head; head: first row of the vocabulary. Random numbers count from here, so they do
                        not depend on the layout */
    int64_t seq_len; /* attention: rows of a full document, 0 = all N; only tr_op_flops reads it */
    int64_t row_q, row_k; /* attention: rows of the micro-batch that q and k begin with, when they are blocks of it */
    int32_t axis;         /* collectives: which group of ranks; a number that only the executor understands */
};

/* The step buffer: one row of F32, written by the host before each step; what changes per step is read from here. */
enum tr_step_slot {
    TR_STEP_LR,
    TR_STEP_INV_TOKENS, /* 1 / valid target tokens of the global batch */
    TR_STEP_CLIP,       /* factor on gradients: min(1, max_norm / norm), over LOSS_SCALE */
    TR_STEP_BETA1,
    TR_STEP_BETA2,
    TR_STEP_EPS,
    TR_STEP_DECAY,
    TR_STEP_BIAS1, /* 1 - beta1^t */
    TR_STEP_BIAS2,
    TR_STEP_NUMBER_LO, /* step number, two 24-bit halves as exact floats: random counters */
    TR_STEP_NUMBER_HI,
    TR_STEP_LOSS_SCALE, /* INV_TOKENS holds it too: gradients are so many times too large until CLIP takes it out */
    TR_STEP_COUNT = 16
};

static inline uint64_t tr_step_number(const float *step)
{
    return (uint64_t)step[TR_STEP_NUMBER_HI] << 24 | (uint64_t)step[TR_STEP_NUMBER_LO];
}

/* All ops: X(enum, name). The row of each (op_row.h) says what it is and stands in the file of its family. A new op is
 * a line here, its row, its rules (parallel/rules.h), its kernels and a case: docs/guide/add-an-op.md. */
#define TR_OP_LIST(X)                                                                                                  \
    /* row_linear.c */                                                                                                 \
    X(EMBED, embed)                                                                                                    \
    X(EMBED_DW, embed_dw)                                                                                              \
    X(LINEAR, linear)                                                                                                  \
    X(LINEAR_DX, linear_dx)                                                                                            \
    X(LINEAR_DW, linear_dw)                                                                                            \
    X(LINEAR_ADD, linear_add)                                                                                          \
    X(LINEAR_ACT, linear_act)                                                                                          \
    X(LINEAR_DX_ACT, linear_dx_act)                                                                                    \
    /* row_norm.c */                                                                                                   \
    X(LAYERNORM, layernorm)                                                                                            \
    X(LAYERNORM_BWD, layernorm_bwd)                                                                                    \
    X(RMSNORM, rmsnorm)                                                                                                \
    X(RMSNORM_BWD, rmsnorm_bwd)                                                                                        \
    /* row_attention.c */                                                                                              \
    X(ROPE, rope)                                                                                                      \
    X(ATTENTION, attention)                                                                                            \
    X(ATTENTION_BWD, attention_bwd)                                                                                    \
    X(ATTENTION_CACHED, attention_cached)                                                                              \
    X(RING_ATTENTION, ring_attention)                                                                                  \
    X(RING_ATTENTION_BWD, ring_attention_bwd)                                                                          \
    /* row_elementwise.c */                                                                                            \
    X(ACT, act)                                                                                                        \
    X(ACT_BWD, act_bwd)                                                                                                \
    X(GLU, glu)                                                                                                        \
    X(GLU_BWD, glu_bwd)                                                                                                \
    X(ADD, add)                                                                                                        \
    X(SCALE, scale)                                                                                                    \
    X(DROPOUT, dropout)                                                                                                \
    X(CAST, cast)                                                                                                      \
    X(ZERO, zero)                                                                                                      \
    /* row_head.c */                                                                                                   \
    X(HEAD_LOSS, head_loss)                                                                                            \
    X(HEAD_LOSS_GRAD, head_loss_grad)                                                                                  \
    X(HEAD_STATS, head_stats)                                                                                          \
    X(HEAD_COMBINE, head_combine)                                                                                      \
    X(HEAD_GRAD, head_grad)                                                                                            \
    X(SUM, sum)                                                                                                        \
    /* row_optim.c */                                                                                                  \
    X(SUMSQ, sumsq)                                                                                                    \
    X(ADAMW, adamw)                                                                                                    \
    X(LION, lion)                                                                                                      \
    X(SGD, sgd)                                                                                                        \
    /* row_fp8.c */                                                                                                    \
    X(QUANT, quant)                                                                                                    \
    X(MATMUL8, matmul8)                                                                                                \
    /* row_collective.c */                                                                                             \
    X(ALL_REDUCE, all_reduce)                                                                                          \
    X(ALL_GATHER, all_gather)                                                                                          \
    X(REDUCE_SCATTER, reduce_scatter)                                                                                  \
    X(ALL_TO_ALL, all_to_all)                                                                                          \
    X(COPY, copy)

enum tr_opcode {
#define X(id, name) TR_OP_##id,
    TR_OP_LIST(X)
#undef X
        TR_OP_COUNT
};

struct tr_call {
    enum tr_opcode op;
    struct tr_view in[TR_MAX_IN], out[TR_MAX_OUT];
    struct tr_attr attr;
    bool accumulate[TR_MAX_OUT];
    struct tr_pool *pool; /* of its stream: two streams never share one; NULL: one thread */
    void *scratch; /* of its stream: at least the column's scratch bytes, 64-byte aligned, where the device computes */
    struct tr_device *dev; /* where it runs; NULL: a CPU kernel that is called as it is */
    enum tr_stream stream; /* on cuda TR_STREAM_COMPUTE: workspace, cuBLASLt and cuDNN handles are that stream's */
    int64_t n_documents; /* attention on cuda: documents in `begin`, when none goes over the end of a row of seq_len; 0
                            = unknown. Chooses a way, never a result */
};

/* Runs a kernel through a device, on the call's stream; the call may change as soon as this returns. */
static inline void tr_op_launch(struct tr_device *d, tr_kernel kernel, const struct tr_call *c)
{
    d->row->stream->launch(d, c->stream, kernel, c, sizeof *c);
}

/* CPU kernels. Both cover every op. Executors and plans take the column of their device instead (column.h). */
tr_kernel tr_op_cpu_ref(enum tr_opcode op);
tr_kernel tr_op_cpu_fast(enum tr_opcode op);

/* Scratch bytes of the fast CPU kernel for these shapes (data pointers are not read) and so many threads. */
size_t tr_op_scratch(const struct tr_call *c, int n_threads);
/* What ring attention keeps in its scratch beside that of its kernel: two blocks of keys and values, one on its way; in
 * F32 what this rank's rows add up to (o, or dq), and in the backward two blocks of gradients of keys and values. */
struct tr_ring_scratch {
    size_t block[2], sum, grad[2], kernel; /* offsets */
};
struct tr_ring_scratch tr_ring_scratch(const struct tr_call *c);
/* Bytes that all_to_all sends, a piece for each rank; a multiple of 64. */
static inline size_t tr_exchange_bytes(const struct tr_call *c)
{
    const struct tr_view *tall = &(c->attr.inverse ? c->in : c->out)[0];
    return tr_round_up((size_t)(tall->rows * tall->cols) * tr_dtype_bytes(tall->dtype), 64);
}
/* CPU engine for matrix products, chosen once before step 0. */
enum tr_status tr_gemm_select(enum tr_gemm_choice want, enum tr_gemm_choice *got);
/* Flops per second of a matrix product here, now, with this pool: what "share of peak" is a share of. */
double tr_gemm_peak(struct tr_pool *pool);
const char *tr_gemm_name(enum tr_gemm_choice e);

#include "ops/op_row.h"
#include "ops/column.h"

#endif
