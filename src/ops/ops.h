/* ops.h - contracts of all ops. An op is pure over views: it reads `in`, writes `out`, uses `scratch`, nothing else.
 *
 * Every op has a CPU reference, which is slow and obvious and defines the op, and a fast CPU kernel; a GPU adds a
 * column. Every kernel keeps these rules. The number of threads does not change the bits. A row of the result depends
 * only on the rows it needs, so splitting a batch never changes bits. Sums over rows (parameter gradients) run in row
 * order. Fast kernels never allocate. Views are row-major matrices with a leading dimension, so a column slice of a
 * wider value is a view and costs nothing. An absent optional input is a view with data == NULL. The row of an op
 * (op_row.h, row_*.c) says what the op reads and writes.
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

enum { TR_MAX_IN = 10, TR_MAX_OUT = 6 };

enum tr_act { TR_ACT_NONE, TR_ACT_RELU, TR_ACT_GELU /* erf */, TR_ACT_GELU_TANH, TR_ACT_SILU };

/* One flat record for all ops; the comment on each op's row names the fields it reads. */
struct tr_attr {
    int32_t n_heads_q, n_heads_kv, head_dim; /* attention, rope, regroup, grouped norm */
    int32_t window;                          /* attention: a row sees itself and window-1 rows before it; 0 = all */
    int32_t act;                             /* enum tr_act */
    int32_t index_offset;                    /* embed: added to each index (OPT positions: 2) */
    int32_t group;                           /* norms: columns per group, 0 = the whole row (qk-norm: head_dim) */
    int32_t packed;                          /* dequant: enum tr_packed */
    bool weight_is_in_out;                   /* linear: weight stored (in, out) as in GPT-2's Conv1D, else (out, in);
                                                embed: table stored (columns, rows) */
    bool inverse;                            /* rope: rotate back; regroup: back to groups */
    bool is_interleaved;                     /* rope: pairs are neighbours, (2i, 2i + 1) */
    bool decay;                              /* optimizers: apply weight decay */
    bool is_gradient; /* matmul8: y is a gradient, so partial sums are moved to fp32 more often */
    bool is_decoded;  /* linear: of generation; one row may be summed in an order of its own */
    bool any_order;   /* attention_bwd: the kernel may use a non-deterministic order of sums */
    float eps;
    float scale;         /* 0 = 1 in every op that reads it */
    float softcap;       /* softcap(s) = c * tanh(s / c); 0 = off */
    float weight_offset; /* rmsnorm: y = x * rstd * (offset + w); Gemma: 1 */
    float dropout_p;
    /* head_stats, head_combine, head_grad: the loss is that of a target of which `smoothing` is spread over the
     * vocabulary, smoothing_each for each of it, plus z_loss times the square of the log-sum-exp */
    float smoothing, smoothing_each, z_loss;
    uint64_t key;  /* stream of random numbers (dropout site, stochastic rounding of one tensor) */
    int64_t first; /* where this slice begins in the whole. Optimizers: element; dropout: column; attention: query head;
                      head: row of the vocabulary. Random numbers are counted from here, so they do not depend on the
                      layout */
    int64_t seq_len; /* attention: rows of a full document, 0 = all N: for tr_op_flops; with a cache: of a sequence */
    int64_t row_q, row_k; /* attention: first row of q and of k in the micro-batch, when q and k are blocks of it */
    int64_t at, rows, cols, n_all; /* adafactor: see row_optim.c */
    struct tr_pair_rule pair;      /* pair_loss */
    int32_t axis;                  /* collectives: which group of ranks; only the executor interprets the number */
};

/* The step buffer: one row of F32 that the host writes before each step. Kernels read from it every number that changes
 * from step to step, so the calls themselves stay the same. */
enum tr_step_slot {
    TR_STEP_LR,
    TR_STEP_INV_TOKENS, /* 1 / valid target tokens of the global batch */
    TR_STEP_CLIP,       /* factor on gradients: min(1, max_norm / norm) / LOSS_SCALE */
    TR_STEP_BETA1,
    TR_STEP_BETA2,
    TR_STEP_EPS,
    TR_STEP_DECAY,
    TR_STEP_BIAS1, /* 1 - beta1^t */
    TR_STEP_BIAS2,
    TR_STEP_NUMBER_LO, /* the step number for random counters, as two 24-bit halves, which floats hold exactly */
    TR_STEP_NUMBER_HI,
    TR_STEP_LOSS_SCALE, /* INV_TOKENS contains this factor too: gradients carry it until CLIP removes it */
    TR_STEP_MOMENTUM,   /* muon: decay of its average */
    TR_STEP_ADJUST,     /* muon: enum tr_muon_adjust; adafactor: 1 = rates go by the size of a parameter */
    TR_STEP_KL,         /* labels: the distance from the reference that the loss starts from */
    TR_STEP_COUNT = 16
};

static inline uint64_t tr_step_number(const float *step)
{
    return (uint64_t)step[TR_STEP_NUMBER_HI] << 24 | (uint64_t)step[TR_STEP_NUMBER_LO];
}

/* All ops: X(enum, name). The row of an op (op_row.h) describes it; the comments below name the file that has the row.
 * A new op is a line here, its row, its rules (parallel/rules.h), its kernels and a case: docs/guide/add-an-op.md. */
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
    X(DEQUANT, dequant)                                                                                                \
    /* row_norm.c */                                                                                                   \
    X(LAYERNORM, layernorm)                                                                                            \
    X(LAYERNORM_BWD, layernorm_bwd)                                                                                    \
    X(RMSNORM, rmsnorm)                                                                                                \
    X(RMSNORM_BWD, rmsnorm_bwd)                                                                                        \
    /* row_attention.c */                                                                                              \
    X(ROPE, rope)                                                                                                      \
    X(REGROUP, regroup)                                                                                                \
    X(ATTENTION, attention)                                                                                            \
    X(ATTENTION_BWD, attention_bwd)                                                                                    \
    X(CACHE_PUT, cache_put)                                                                                            \
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
    X(NOISE, noise)                                                                                                    \
    X(DROPOUT, dropout)                                                                                                \
    X(CAST, cast)                                                                                                      \
    X(ZERO, zero)                                                                                                      \
    /* row_dora.c */                                                                                                   \
    X(ROW_SQUARES, row_squares)                                                                                        \
    X(COL_SCALE, col_scale)                                                                                            \
    X(COL_SCALE_BWD, col_scale_bwd)                                                                                    \
    /* row_head.c */                                                                                                   \
    X(HEAD_LOSS, head_loss)                                                                                            \
    X(HEAD_LOSS_GRAD, head_loss_grad)                                                                                  \
    X(HEAD_STATS, head_stats)                                                                                          \
    X(HEAD_COMBINE, head_combine)                                                                                      \
    X(HEAD_GRAD, head_grad)                                                                                            \
    X(SUM, sum)                                                                                                        \
    /* row_pair.c */                                                                                                   \
    X(DFT_LOSS, dft_loss)                                                                                              \
    X(WEIGH_LOSS, weigh_loss)                                                                                          \
    X(DOC_SUMS, doc_sums)                                                                                              \
    X(PAIR_LOSS, pair_loss)                                                                                            \
    /* row_optim.c */                                                                                                  \
    X(SUMSQ, sumsq)                                                                                                    \
    X(ADAMW, adamw)                                                                                                    \
    X(ADAMW8, adamw8)                                                                                                  \
    X(LION, lion)                                                                                                      \
    X(LION8, lion8)                                                                                                    \
    X(SGD, sgd)                                                                                                        \
    X(MUON, muon)                                                                                                      \
    X(ORTHOGONAL, orthogonal)                                                                                          \
    X(MUON_APPLY, muon_apply)                                                                                          \
    X(ADAFACTOR_SUMS, adafactor_sums)                                                                                  \
    X(ADAFACTOR_FACTORS, adafactor_factors)                                                                            \
    X(ADAFACTOR_NORM, adafactor_norm)                                                                                  \
    X(ADAFACTOR_APPLY, adafactor_apply)                                                                                \
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

/* What pair_loss says of a pair, in the row of the first token of its chosen answer, or of an answer with a label,
 * which counts as chosen or as rejected; SUM adds the rows. A run without pairs has the loss alone. */
enum tr_metric {
    TR_METRIC_LOSS,
    TR_METRIC_REWARD_CHOSEN, /* beta * (log-probability - that of the reference) */
    TR_METRIC_REWARD_REJECTED,
    TR_METRIC_WIN,                       /* 1: the chosen answer has the larger reward */
    TR_METRIC_DESIRABLE = TR_METRIC_WIN, /* of labels, 1: the answer is desirable */
    TR_METRIC_LOGP_CHOSEN,
    TR_METRIC_LOGP_REJECTED,
    TR_METRICS
};
/* What doc_sums adds up of each document. The sums from TR_DOC_SUMS on are there where a rule reads them. */
enum tr_doc_sum {
    TR_DOC_LOSS,
    TR_DOC_REF,
    TR_DOC_TARGETS,
    TR_DOC_SUMS,
    TR_DOC_WEIGHED = TR_DOC_SUMS, /* of losses times the weights of tokens */
    TR_DOC_SQUARES,               /* of the logarithms of the sums of squared probabilities */
    TR_DOC_MATCH,                 /* of what `match` holds */
    TR_DOC_ALL_SUMS
};
static inline int tr_doc_sums(const struct tr_pair_rule *k)
{
    return k->weighs_tokens || k->weighs_pairs || k->is_matched ? TR_DOC_ALL_SUMS : TR_DOC_SUMS;
}

/* Rows that the cache of one sequence has: of a call that puts rows into a cache of n_rows, or reads it. */
static inline int64_t tr_cache_rows(const struct tr_attr *a, int64_t n_tokens, int64_t n_rows)
{
    return a->seq_len > 0 ? n_rows / (n_tokens / a->seq_len) : n_rows;
}
/* The row of the cache where the sequence of token i begins. */
static inline int64_t tr_cache_first(const struct tr_attr *a, int64_t i, int64_t n_cache_rows)
{
    return a->seq_len > 0 ? i / a->seq_len * n_cache_rows : 0;
}

/* The input of a head op that is u, what A of the head's adapter has made; B is the next. */
static inline int tr_head_u(enum tr_opcode op)
{
    return op == TR_OP_HEAD_STATS ? 4 : op == TR_OP_HEAD_GRAD ? 7 : 5;
}

enum { TR_HEAD_WEIGHT = 9 }; /* the input of head_grad that is a factor for each token */

struct tr_call {
    enum tr_opcode op;
    struct tr_view in[TR_MAX_IN], out[TR_MAX_OUT];
    struct tr_attr attr;
    bool accumulate[TR_MAX_OUT];
    struct tr_pool *pool; /* the pool of the stream; two streams never share a pool; NULL: one thread */
    void *scratch; /* device memory of the stream, 64-byte aligned, at least as many bytes as the column's scratch()
                      says */
    struct tr_device *dev; /* the device that runs it; NULL: the caller calls a CPU kernel directly */
    enum tr_stream stream; /* on cuda always TR_STREAM_COMPUTE: the workspace and the handles of cuBLASLt and cuDNN
                              belong to that stream */
    int64_t n_documents; /* attention on cuda: documents in `begin` when each lies inside one row of seq_len tokens; 0 =
                            unknown. It chooses the kernel and never changes what is computed */
};

/* Runs a kernel on the call's stream of a device. The caller may change the call as soon as this returns. */
static inline void tr_op_launch(struct tr_device *d, tr_kernel kernel, const struct tr_call *c)
{
    d->row->stream->launch(d, c->stream, kernel, c, sizeof *c);
}

/* CPU kernels; both functions cover every op. Executors and plans use the column of their device instead (column.h). */
tr_kernel tr_op_cpu_ref(enum tr_opcode op);
tr_kernel tr_op_cpu_fast(enum tr_opcode op);

/* Scratch bytes of the fast CPU kernel for these shapes and n_threads threads. Data pointers are not read. */
size_t tr_op_scratch(const struct tr_call *c, int n_threads);
/* The scratch of ring attention: two blocks of keys and values (one in use, one arriving); the sums of this rank's rows
 * in F32 (o, or dq); in the backward also two blocks of gradients of keys and values and this rank's part of one; then
 * the scratch of the attention kernel. */
struct tr_ring_scratch {
    size_t block[2], sum, grad[2], own, kernel; /* offsets */
};
struct tr_ring_scratch tr_ring_scratch(const struct tr_call *c);
/* Bytes that all_to_all sends, all ranks' pieces together, rounded up to a multiple of 64. */
static inline size_t tr_exchange_bytes(const struct tr_call *c)
{
    const struct tr_view *tall = &(c->attr.inverse ? c->in : c->out)[0];
    return tr_round_up((size_t)(tall->rows * tall->cols) * tr_dtype_bytes(tall->dtype), 64);
}
/* Chooses the CPU engine for matrix products, once, before step 0. */
enum tr_status tr_gemm_select(enum tr_gemm_choice want, enum tr_gemm_choice *got);
/* May the built-in product use the processor's instruction for pairs of bfloat16? Other processors do not have its last
 * bits. Allowed until a caller says otherwise, once, before step 0. takes: it does on this processor. */
void tr_gemm_allow_pairs(bool is_allowed);
bool tr_gemm_takes_pairs(void);
/* Measures the flops per second of a large matrix product of this dtype with this pool. "Share of peak" is relative to
 * this. */
double tr_gemm_peak(struct tr_pool *pool, enum tr_dtype dtype);
const char *tr_gemm_name(enum tr_gemm_choice e);

#include "ops/op_row.h"
#include "ops/column.h"

#endif
