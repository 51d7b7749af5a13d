/* fast.h - the fast CPU kernels, private to ops/cpu.
 *
 * The kernels of TR_FAST_LIST are compiled from the same source once per instruction set (TR_FAST(name) appends the
 * suffix of the set) and give the same bits on each. The other kernels choose their instructions themselves.
 */
#ifndef TR_OPS_CPU_FAST_H
#define TR_OPS_CPU_FAST_H

#include "ops/ops.h"

enum tr_isa { TR_ISA_BASE, TR_ISA_AVX2, TR_ISA_AVX512, TR_ISA_COUNT };

#define TR_FAST_LIST(X)                                                                                                \
    X(EMBED, embed)                                                                                                    \
    X(EMBED_DW, embed_dw)                                                                                              \
    X(LINEAR, linear)                                                                                                  \
    X(LINEAR_DX, linear_dx)                                                                                            \
    X(LINEAR_DW, linear_dw)                                                                                            \
    X(LAYERNORM, layernorm)                                                                                            \
    X(LAYERNORM_BWD, layernorm_bwd)                                                                                    \
    X(RMSNORM, rmsnorm)                                                                                                \
    X(RMSNORM_BWD, rmsnorm_bwd)                                                                                        \
    X(CACHE_PUT, cache_put)                                                                                            \
    X(ATTENTION_CACHED, attention_cached)                                                                              \
    X(ROPE, rope)                                                                                                      \
    X(REGROUP, regroup)                                                                                                \
    X(ACT, act)                                                                                                        \
    X(ACT_BWD, act_bwd)                                                                                                \
    X(GLU, glu)                                                                                                        \
    X(GLU_BWD, glu_bwd)                                                                                                \
    X(ADD, add)                                                                                                        \
    X(SCALE, scale)                                                                                                    \
    X(NOISE, noise)                                                                                                    \
    X(DROPOUT, dropout)                                                                                                \
    X(SUM, sum)                                                                                                        \
    X(SUMSQ, sumsq)                                                                                                    \
    X(ADAMW, adamw)                                                                                                    \
    X(ADAMW8, adamw8)                                                                                                  \
    X(LION, lion)                                                                                                      \
    X(LION8, lion8)                                                                                                    \
    X(SGD, sgd)                                                                                                        \
    X(MUON, muon)                                                                                                      \
    X(MUON_APPLY, muon_apply)                                                                                          \
    X(CAST, cast)                                                                                                      \
    X(DEQUANT, dequant)                                                                                                \
    X(ROW_SQUARES, row_squares)                                                                                        \
    X(COL_SCALE, col_scale)                                                                                            \
    X(COL_SCALE_BWD, col_scale_bwd)                                                                                    \
    X(ZERO, zero)

#define X(id, name)                                                                                                    \
    void tr_fast_##name##_base(const struct tr_call *c);                                                               \
    void tr_fast_##name##_avx2(const struct tr_call *c);                                                               \
    void tr_fast_##name##_avx512(const struct tr_call *c);
TR_FAST_LIST(X)
#undef X

#ifndef TR_ISA
#define TR_ISA base
#endif
#define TR_FAST_CAT(name, isa)  tr_fast_##name##_##isa
#define TR_FAST_NAME(name, isa) TR_FAST_CAT(name, isa)
#define TR_FAST(name)           TR_FAST_NAME(name, TR_ISA)

void tr_fast_attention(const struct tr_call *c);
void tr_fast_attention_bwd(const struct tr_call *c);
void tr_fast_orthogonal(const struct tr_call *c);
void tr_fast_adafactor_sums(const struct tr_call *c);
void tr_fast_adafactor_factors(const struct tr_call *c);
void tr_fast_adafactor_norm(const struct tr_call *c);
void tr_fast_adafactor_apply(const struct tr_call *c);
void tr_fast_head_loss(const struct tr_call *c);
void tr_fast_linear_add(const struct tr_call *c);
void tr_fast_linear_act(const struct tr_call *c);
void tr_fast_linear_dx_act(const struct tr_call *c);
void tr_fast_head_loss_grad(const struct tr_call *c);
void tr_fast_head_stats(const struct tr_call *c);
void tr_fast_head_combine(const struct tr_call *c);
void tr_fast_head_grad(const struct tr_call *c);
/* Decoding splits the keys into chunks; what one leaves of a query head is a header and an output. */
enum { TR_DECODE_CHUNK = 256, TR_DECODE_HEADER = 16 };
static inline int64_t tr_decode_floats(const struct tr_attr *a)
{
    return TR_DECODE_HEADER + (int64_t)tr_round_up((size_t)a->head_dim, TR_DECODE_HEADER);
}
/* Attention over a cache of n rows from `row` on, whose positions count up from `position`: tiles of queries. */
void tr_fast_attention_prompt(const struct tr_call *c, int64_t row, int64_t n, int64_t position);
size_t tr_fast_attention_prompt_scratch(const struct tr_call *c, int n_threads);
size_t tr_fast_orthogonal_scratch(const struct tr_call *c, int n_threads);
size_t tr_fast_adafactor_scratch(const struct tr_call *c, int n_threads);
size_t tr_fast_attention_scratch(const struct tr_call *c, int n_threads);
size_t tr_fast_attention_bwd_scratch(const struct tr_call *c, int n_threads);
size_t tr_fast_head_scratch(const struct tr_call *c, int n_threads);

/* The best instruction set of this machine, and the kernel for a set (NULL where the build or the machine lacks it). */
enum tr_isa tr_fast_isa(void);
tr_kernel tr_fast_kernel(enum tr_opcode op, enum tr_isa isa);

/* Splits each row of a (rows, cols) problem into pieces of `width` columns and runs fn on every piece, on the call's
 * pool. The pieces depend on the shape only. TR_PIECE suits elementwise work; width = cols keeps rows whole. */
enum { TR_PIECE = 16384, TR_SUMSQ_CHUNK = 65536 };
typedef void tr_piece_fn(const struct tr_call *c, int64_t row, int64_t col, int64_t end);
void tr_fast_run(const struct tr_call *c, int64_t rows, int64_t cols, int64_t width, tr_piece_fn *fn);

/* Runs fn on stripes of at most TR_STRIPE columns, with row = 0, for sums over rows: fn walks all rows in order. The
 * sum of a column does not depend on where its stripe ends, so the width of stripes may depend on the number of
 * threads. */
enum { TR_STRIPE = 512 };
void tr_fast_run_stripes(const struct tr_call *c, int64_t cols, tr_piece_fn *fn);

#endif
