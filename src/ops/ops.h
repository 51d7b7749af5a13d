/* ops.h - contracts of all ops. An op is pure over views: it reads `in`, writes `out`, uses `scratch`, nothing else.
 *
 * Every op has a CPU reference (slow and obvious: the definition) and a fast CPU version; a GPU adds a column. Rules
 * that every kernel keeps: the same bits for any number of threads; a row of the result depends only on the rows it
 * needs, so splitting a batch never changes bits; sums over rows (parameter gradients) run in row order; fast kernels
 * never allocate. Views are row-major matrices with a leading dimension, so a column slice of a wider value is a view
 * and costs nothing. An absent optional input is a view with data == NULL.
 *
 * Notation: N tokens of a micro-batch, D width, V vocabulary, H heads, d head size. `acc` marks parameter gradients:
 * the kernel adds to what is there when call->accumulate is set, else it overwrites (a first touch needs no memset).
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

/* One flat record for all ops; each op's comment below names the fields it reads. */
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

/*  X(enum, name, n_in, n_out, acc_mask): bit i of acc_mask = out[i] is a parameter gradient or running sum (acc) */
#define TR_OP_LIST(X)                                                                                                  \
    /* in: index (N,1) I32, W (V,D); out: y (N,D) = scale * W[index + index_offset]      attr: scale, index_offset */  \
    /* An index outside 0..V-1 gives a row of zeros and no gradient: a shard of the rows is an index_offset. */        \
    X(EMBED, "embed", 2, 1, 0)                                                                                         \
    /* in: index, dy (N,D); out: dW (V,D) acc = scale * dy, in row order */                                            \
    X(EMBED_DW, "embed_dw", 2, 1, 1)                                                                                   \
    /* in: x (N,I), W, [bias (1,O)]; out: y (N,O) = x W^T + b                            attr: weight_is_in_out */     \
    X(LINEAR, "linear", 3, 1, 0)                                                                                       \
    /* in: dy (N,O), W, [addend (N,I)]; out: dx (N,I) = dy W (+ addend) */                                             \
    X(LINEAR_DX, "linear_dx", 3, 1, 0)                                                                                 \
    /* in: dy (N,O), x (N,I); out: dW acc, [db (1,O) acc: absent when data NULL] */                                    \
    X(LINEAR_DW, "linear_dw", 2, 2, 3)                                                                                 \
    /* in: x (N,D), w (1,D), b (1,D); out: y, stats (N,2) F32 = mean, rstd               attr: eps */                  \
    X(LAYERNORM, "layernorm", 3, 2, 0)                                                                                 \
    /* in: dy, x, w, stats, [addend (N,D)]; out: dx (+ addend), dw acc, db acc */                                      \
    X(LAYERNORM_BWD, "layernorm_bwd", 5, 3, 6)                                                                         \
    /* in: x (N,D), w (1,group); out: y, rstd (N, D/group) F32        attr: eps, weight_offset, group */               \
    X(RMSNORM, "rmsnorm", 2, 2, 0)                                                                                     \
    /* in: dy, x, w, rstd, [addend]; out: dx (+ addend), dw acc */                                                     \
    X(RMSNORM_BWD, "rmsnorm_bwd", 5, 2, 2)                                                                             \
    /* in: x (N, H*d), position (N,1) I32, table (P, r) F32; out: y. Row p of table: cos[r/2], sin[r/2] of position p, \
     * r <= d columns rotate as pairs (i, i + r/2) of each head, the rest pass.           attr: head_dim, inverse */   \
    X(ROPE, "rope", 3, 1, 0)                                                                                           \
    /* in: q (N,Hq*d), k (N,Hkv*d), v (N,Hkv*d), begin (N,1) I32, [sample (N,1) I64, position, step: with dropout];    \
     * out: o (N,Hq*d), lse (N,Hq) F32. Row i sees rows max(begin[i], i-window+1) .. i.                                \
     * s = softcap(scale * q.k), o = sum_j dropout(softmax(s))_j v_j, lse = log sum exp s (before dropout).            \
     * Query head h reads key head h / (Hq / Hkv).                                                                     \
     * A block: q (and o, lse) are rows row_q on of the N that begin, sample and position name, k and v rows row_k on; \
     * a row that sees none has o = 0, lse = -inf; accumulate merges o and lse with those of other keys.               \
     * attr: n_heads_q, n_heads_kv, head_dim, scale, window, softcap, dropout_p, key, first, row_q, row_k */           \
    X(ATTENTION, "attention", 7, 2, 0)                                                                                 \
    /* in: do, q, k, v, o, lse, begin, [sample, position, step]; out: dq, dk, dv. Blocks as above; accumulate adds. */ \
    X(ATTENTION_BWD, "attention_bwd", 10, 3, 0)                                                                        \
    /* in: q (N,Hq*d), k (C,Hkv*d), v (C,Hkv*d), position (N,1) I32; out: o. Row i sees rows max(0, p-window+1) .. p   \
     * of k and v with p = position[i]: decoding from a cache.                                     attr as ATTENTION   \
     */                                                                                                                \
    X(ATTENTION_CACHED, "attention_cached", 4, 1, 0)                                                                   \
    /* in: x; out: y = act(x); in: dy, x; out: dx                                                        attr: act */  \
    X(ACT, "act", 1, 1, 0)                                                                                             \
    X(ACT_BWD, "act_bwd", 2, 1, 0)                                                                                     \
    /* in: g, u; out: y = act(g) * u; in: dy, g, u; out: dg, du                                          attr: act */  \
    X(GLU, "glu", 2, 1, 0)                                                                                             \
    X(GLU_BWD, "glu_bwd", 3, 2, 0)                                                                                     \
    /* in: a, b; out: y = a + b (y may be a) */                                                                        \
    X(ADD, "add", 2, 1, 0)                                                                                             \
    /* in: x; out: y = scale * x                                                                       attr: scale */  \
    X(SCALE, "scale", 1, 1, 0)                                                                                         \
    /* in: x, sample (N,1) I64, position (N,1) I32, step; out: y. Its own backward.     attr: dropout_p, key, first.   \
     * (sample, position) names a token: no two tokens of a step share it. The mask is cpu/dropout.h. */               \
    X(DROPOUT, "dropout", 4, 1, 0)                                                                                     \
    /* in: x (N,D), W (V,D), [bias (1,V)], target (N,1) I32 (< 0: no loss); out: loss (N,1) F32 per token, 0 where     \
     * masked. logit = softcap(scale * x.w + bias). Never holds (N,V). attr: softcap, scale */                         \
    X(HEAD_LOSS, "head_loss", 4, 1, 0)                                                                                 \
    /* in: x, W, [bias], target, step; out: loss (N,1), dx (N,D), dW acc, [db acc]; gradients of sum(loss) *           \
     * INV_TOKENS. One pass: logits of a block of rows, loss, their gradient, dx, dW; nothing is computed twice. */    \
    X(HEAD_LOSS_GRAD, "head_loss_grad", 5, 4, 12)                                                                      \
    /* The head of ranks that hold rows [first, first + V) of W each. in: x, W, [bias], target (of the whole           \
     * vocabulary); out: stats (N,2) F32 = log-sum-exp of these rows' logits, logit of the target where it is one of   \
     * them, else 0; (-FLT_MAX, 0) where masked; [logits (N,V) F32: kept for head_grad]. attr: softcap, scale, first   \
     */                                                                                                                \
    X(HEAD_STATS, "head_stats", 4, 2, 0)                                                                               \
    /* in: stats of all ranks (ranks * N, 2), one rank below the other; out: loss (N,1), lse (N,1): 0 where masked */  \
    X(HEAD_COMBINE, "head_combine", 1, 2, 0)                                                                           \
    /* in: x, W, [bias], target, step, lse, [logits, which are overwritten]; out: dx (N,D): these rows' part of it,    \
     * dW acc, [db acc]. attr: softcap, scale, first */                                                                \
    X(HEAD_GRAD, "head_grad", 7, 3, 6)                                                                                 \
    /* in: x (N,1) F32; out: sum (1,1) F64 acc, in row order */                                                        \
    X(SUM, "sum", 1, 1, 1)                                                                                             \
    /* in: g (1,n); out: sum of squares (1,1) F64 acc: fixed chunks of 64 Ki elements, chunks added in order */        \
    X(SUMSQ, "sumsq", 1, 1, 1)                                                                                         \
    /* in: g (1,n), step; out: p (1,n), m, v, [copy (1,n): p to nearest]                attr: decay, key, first.       \
     * g counts times CLIP; decay is decoupled (p *= 1 - lr * decay). The update uses m, v before they are stored. p,  \
     * m, v in BF16 are rounded stochastically: element e = first + column has w = tr_philox(key, step number, e /     \
     * 4).v[e % 4]; the low half of w for p, the high half for m, the high half of 0x9E3779B1 * w for v is added to    \
     * the float's bits, which are then cut. */                                                                        \
    X(ADAMW, "adamw", 2, 4, 0)                                                                                         \
    /* in: g, step; out: p, m, -, [copy]. lion: p -= lr * sign(beta1 m + (1 - beta1) g), m = beta2 m + (1 - beta2) g;  \
     * sgd: m = beta1 m + g, p -= lr * m; no m: p -= lr * g */                                                         \
    X(LION, "lion", 2, 4, 0)                                                                                           \
    X(SGD, "sgd", 2, 4, 0)                                                                                             \
    /* What `fuse` makes of two ops where one kernel does both. linear_add: in: x, W, [bias], addend (N,O); out: y =   \
     * addend + x W^T + b (y may be addend). linear_act: in: x, W, [bias]; out: y = act(pre), pre = x W^T + b.         \
     * linear_dx_act: in: dy, W, pre; out: dx = (dy W) * act'(pre).                    attr: weight_is_in_out, act */  \
    X(LINEAR_ADD, "linear_add", 4, 1, 0)                                                                               \
    X(LINEAR_ACT, "linear_act", 3, 2, 0)                                                                               \
    X(LINEAR_DX_ACT, "linear_dx_act", 3, 1, 0)                                                                         \
    /* Products of 8-bit floats (`fp8`): U8 holds e4m3, whose most is 448, E5M2 e5m2, 57344. quant: in: x (N,D); out:  \
     * q (N,D), qt (D,N): q transposed, scale (1,1) F32, [past (1,2) F32]; q = 8-bit(x * (most / amax)), infinite x:   \
     * NaN; scale = amax / most; 1 and 1 when amax is 0. amax is the largest |x|; with a past, past[0] where that is   \
     * not 0, and past[1] is raised to the largest |x|. matmul8: in: a (N,D), scale, b (O,D), scale, [bias (1,O)],     \
     * [addend (N,O)]; out: y (N,O) acc = scale * scale * a b^T + bias + addend (y may be addend); a or b may be E5M2, \
     * not both.                                                                           attr: is_gradient */        \
    X(QUANT, "quant", 1, 4, 0)                                                                                         \
    X(MATMUL8, "matmul8", 6, 1, 1)                                                                                     \
    /* in: x; out: y = x in y's dtype */                                                                               \
    X(CAST, "cast", 1, 1, 0)                                                                                           \
    /* out: y = 0 */                                                                                                   \
    X(ZERO, "zero", 0, 1, 0)                                                                                           \
    /* Collectives over the ranks of attr.axis; with one rank they copy, which is what the kernels do, and the         \
     * executor talks to peers. in: x; out: y = sum over ranks of x (y may be x). Backward: the gradient as it is. */  \
    X(ALL_REDUCE, "all_reduce", 1, 1, 0)                                                                               \
    /* in: x (N/ranks, D); out: y (N, D), rows in rank order. Backward: reduce_scatter, since ranks use y in parts. */ \
    X(ALL_GATHER, "all_gather", 1, 1, 0)                                                                               \
    /* in: x (N, D); out: y (N/ranks, D), this rank's rows of the sum over ranks. Backward: all_gather. */             \
    X(REDUCE_SCATTER, "reduce_scatter", 1, 1, 0)                                                                       \
    /* in: x (N/ranks, H*d), this rank's tokens of every row; out: y (N, h*d), all tokens of this rank's heads: h =    \
     * max(1, H/ranks) from head rank*H/ranks on. inverse: y to x, summing heads that ranks share. Its own backward.   \
     * attr: n_heads_q = H, head_dim, seq_len = tokens of a row, inverse */                                            \
    X(ALL_TO_ALL, "all_to_all", 1, 1, 0)                                                                               \
    /* As attention and its backward, of this rank's tokens; begin, sample, position are of all. Keys and values       \
     * travel around the ring of ranks; rank r holds pieces r and 2 * ranks - 1 - r of the 2 * ranks pieces of a row.  \
     */                                                                                                                \
    X(RING_ATTENTION, "ring_attention", 7, 2, 0)                                                                       \
    X(RING_ATTENTION_BWD, "ring_attention_bwd", 10, 3, 0)                                                              \
    /* in: x; out: y, an alias of x (tr_value_alias) that ranks use in parts. Backward: all_reduce. */                 \
    X(COPY, "copy", 1, 1, 0)

enum tr_opcode {
#define X(id, name, n_in, n_out, acc) TR_OP_##id,
    TR_OP_LIST(X)
#undef X
        TR_OP_COUNT
};

static inline bool tr_op_is_collective(enum tr_opcode op)
{
    return op >= TR_OP_ALL_REDUCE && op <= TR_OP_COPY;
}

/* out[0] = in[0] times a matrix: rows of in[0], columns of out[0]. */
static inline bool tr_op_is_product(enum tr_opcode op)
{
    return op == TR_OP_LINEAR || op == TR_OP_LINEAR_DX || (op >= TR_OP_LINEAR_ADD && op <= TR_OP_LINEAR_DX_ACT) ||
           op == TR_OP_MATMUL8;
}

struct tr_call {
    enum tr_opcode op;
    struct tr_view in[TR_MAX_IN], out[TR_MAX_OUT];
    struct tr_attr attr;
    bool accumulate[TR_MAX_OUT];
    struct tr_pool *pool;
    void *scratch; /* at least tr_op_scratch() bytes, 64-byte aligned; on cuda tr_op_cuda_scratch(), device memory */
    struct tr_device *dev; /* cuda: where it runs */
    int64_t n_documents; /* attention on cuda: documents in `begin`, when none goes over the end of a row of seq_len; 0
                            = unknown. Chooses a way, never a result */
};

typedef void (*tr_kernel)(const struct tr_call *c);

struct tr_op_row {
    const char *name;
    int n_in, n_out;
    uint32_t acc_mask;
};
const struct tr_op_row *tr_op_row(enum tr_opcode op);

/* CPU kernels. Both columns cover every op. */
tr_kernel tr_op_cpu_ref(enum tr_opcode op);
tr_kernel tr_op_cpu_fast(enum tr_opcode op);

/* CUDA kernels, for every op: data and scratch are device memory, the work is started on c->dev's stream and failures
 * are noted there. NULL when the build has no CUDA. The libraries (cuBLASLt, cuDNN) are opened per device. */
tr_kernel tr_op_cuda(enum tr_opcode op);
size_t tr_op_cuda_scratch(const struct tr_call *c); /* in every build: a plan needs no GPU */
/* Calls of one optimizer whose views have the same dtypes, as one launch: the bits of one after the other. */
enum { TR_UPDATES_MAX = 32 };
void tr_op_cuda_updates(const struct tr_call *c, int n);
enum tr_status tr_op_cuda_open(struct tr_device *d);
void tr_op_cuda_close(struct tr_device *d);

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
/* Multiply-adds counted as 2; elementwise and recomputed work counts 0: what "model flops" means. Reads no data:
 * attention counts the pairs of full documents of seq_len rows. */
double tr_op_flops(const struct tr_call *c);

/* CPU engine for matrix products, chosen once before step 0. */
enum tr_status tr_gemm_select(enum tr_gemm_choice want, enum tr_gemm_choice *got);
/* Flops per second of a matrix product here, now, with this pool: what "share of peak" is a share of. */
double tr_gemm_peak(struct tr_pool *pool);
const char *tr_gemm_name(enum tr_gemm_choice e);

#endif
