/* fast.c - the fast CPU column: which kernel runs an op, how much scratch it needs, how work is split. */
#include "ops/cpu/fast.h"
#include "ops/cpu/gemm.h"
#include "ops/cpu/ref.h"
#include <assert.h>

#if defined(__x86_64__)
#define ALL_SETS(name)                                                                                                 \
    {                                                                                                                  \
        tr_fast_##name##_base, tr_fast_##name##_avx2, tr_fast_##name##_avx512                                          \
    }
#else
#define ALL_SETS(name)                                                                                                 \
    {                                                                                                                  \
        tr_fast_##name##_base, NULL, NULL                                                                              \
    }
#endif

static const tr_kernel kernels[][TR_ISA_COUNT] = {
#define X(id, name) [TR_OP_##id] = ALL_SETS(name),
    TR_FAST_LIST(X)
#undef X
#define X(id, name) [TR_OP_##id] = { tr_fast_##name, tr_fast_##name, tr_fast_##name },
        X(ATTENTION, attention) X(ATTENTION_BWD, attention_bwd) X(RING_ATTENTION, attention)
            X(RING_ATTENTION_BWD, attention_bwd) X(HEAD_LOSS, head_loss) X(HEAD_LOSS_GRAD, head_loss_grad)
                X(HEAD_STATS, head_stats) X(HEAD_COMBINE, head_combine) X(HEAD_GRAD, head_grad)
                    X(LINEAR_ADD, linear_add) X(LINEAR_ACT, linear_act) X(LINEAR_DX_ACT, linear_dx_act)
                        X(ORTHOGONAL, orthogonal) X(ADAFACTOR_SUMS, adafactor_sums)
                            X(ADAFACTOR_FACTORS, adafactor_factors) X(ADAFACTOR_NORM, adafactor_norm)
                                X(ADAFACTOR_APPLY, adafactor_apply)
#undef X
#define X(id) [TR_OP_##id] = { tr_ref_##id, tr_ref_##id, tr_ref_##id },
                                    X(QUANT) X(MATMUL8) X(DOC_SUMS) X(PAIR_LOSS) X(DFT_LOSS) X(WEIGH_LOSS)
#undef X
                                        [TR_OP_ALL_REDUCE] = ALL_SETS(cast),
    [TR_OP_ALL_GATHER] = ALL_SETS(cast),
    [TR_OP_REDUCE_SCATTER] = ALL_SETS(cast),
    [TR_OP_ALL_TO_ALL] = ALL_SETS(cast),
    [TR_OP_COPY] = ALL_SETS(cast),
};
static_assert(TR_COUNT_OF(kernels) == TR_OP_COUNT, "one row per op");

static bool has_isa(enum tr_isa isa)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (isa == TR_ISA_AVX512)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    if (isa == TR_ISA_AVX2)
        return __builtin_cpu_supports("avx2") && tr_has_f16c();
#endif
    return isa == TR_ISA_BASE;
}

enum tr_isa tr_fast_isa(void)
{
    enum tr_isa isa = TR_ISA_AVX512;
    while (!has_isa(isa))
        isa--;
    return isa;
}

tr_kernel tr_fast_kernel(enum tr_opcode op, enum tr_isa isa)
{
    TR_BUG_ON((unsigned)op >= TR_OP_COUNT || (unsigned)isa >= TR_ISA_COUNT);
    return has_isa(isa) ? kernels[op][isa] : NULL;
}

tr_kernel tr_op_cpu_fast(enum tr_opcode op)
{
    return tr_fast_kernel(op, tr_fast_isa());
}

struct tr_ring_scratch tr_ring_scratch(const struct tr_call *c)
{
    bool is_backward = c->op == TR_OP_RING_ATTENTION_BWD;
    const struct tr_view *q = &c->in[is_backward], *k = q + 1, *v = q + 2;
    size_t n_kv = (size_t)(k->rows * (k->cols + v->cols)), at = 0;
    size_t block = tr_round_up(n_kv * tr_dtype_bytes(k->dtype), 64), grad = tr_round_up(n_kv * sizeof(float), 64);
    struct tr_ring_scratch s = { 0 };
    for (int i = 0; i < 2; i++, at += block)
        s.block[i] = at;
    s.sum = at;
    at += tr_round_up((size_t)(q->rows * q->cols) * sizeof(float), 64);
    for (int i = 0; is_backward && i < 2; i++, at += grad)
        s.grad[i] = at;
    s.own = at;
    s.kernel = at + (is_backward ? grad : 0);
    return s;
}

/* ---- scratch: one column, by op ---- */

static size_t product_scratch(const struct tr_call *c, int n_threads)
{
    return tr_gemm_scratch(c->in[0].rows, c->out[0].cols, c->in[0].cols, n_threads);
}

static size_t weight_scratch(const struct tr_call *c, int n_threads)
{
    const struct tr_view *dy = &c->in[0], *x = &c->in[1];
    return c->attr.weight_is_in_out ? tr_gemm_scratch(x->cols, dy->cols, dy->rows, n_threads)
                                    : tr_gemm_scratch(dy->cols, x->cols, dy->rows, n_threads);
}

static size_t cached_scratch(const struct tr_call *c, int n_threads)
{
    int64_t n_rows = tr_cache_rows(&c->attr, c->in[0].rows, c->in[1].rows);
    int64_t n_parts = (n_rows / TR_DECODE_CHUNK + 1) * c->attr.n_heads_q;
    size_t decode = (size_t)(n_parts * tr_decode_floats(&c->attr)) * sizeof(float);
    size_t prompt = tr_fast_attention_prompt_scratch(c, n_threads);
    return prompt > decode ? prompt : decode;
}

static size_t ring_scratch(const struct tr_call *c, int n_threads) /* counted for all rows; a block needs less */
{
    return tr_ring_scratch(c).kernel + tr_fast_attention_scratch(c, n_threads);
}

static size_t ring_bwd_scratch(const struct tr_call *c, int n_threads)
{
    return tr_ring_scratch(c).kernel + tr_fast_attention_bwd_scratch(c, n_threads);
}

static size_t exchange_scratch(const struct tr_call *c, int n_threads) /* the bytes to send and the bytes received */
{
    (void)n_threads;
    return 2 * tr_exchange_bytes(c);
}

static size_t embed_dw_scratch(const struct tr_call *c, int n_threads) /* the lists of tokens */
{
    (void)n_threads;
    int64_t n_rows = c->attr.weight_is_in_out ? c->out[0].cols : c->out[0].rows;
    return (size_t)(n_rows + c->in[1].rows) * sizeof(int32_t);
}

static size_t sumsq_scratch(const struct tr_call *c, int n_threads) /* one partial sum per chunk */
{
    (void)n_threads;
    return (size_t)((c->in[0].cols + TR_SUMSQ_CHUNK - 1) / TR_SUMSQ_CHUNK) * sizeof(double);
}

/* NULL: the op needs no scratch. The 8-bit products run the reference, which allocates. */
static size_t (*const scratch[TR_OP_COUNT])(const struct tr_call *c, int n_threads) = {
    [TR_OP_LINEAR] = product_scratch,
    [TR_OP_LINEAR_DX] = product_scratch,
    [TR_OP_LINEAR_DW] = weight_scratch,
    [TR_OP_LINEAR_ADD] = product_scratch,
    [TR_OP_LINEAR_ACT] = product_scratch,
    [TR_OP_LINEAR_DX_ACT] = product_scratch,
    [TR_OP_ATTENTION] = tr_fast_attention_scratch,
    [TR_OP_ATTENTION_BWD] = tr_fast_attention_bwd_scratch,
    [TR_OP_ATTENTION_CACHED] = cached_scratch,
    [TR_OP_RING_ATTENTION] = ring_scratch,
    [TR_OP_RING_ATTENTION_BWD] = ring_bwd_scratch,
    [TR_OP_HEAD_LOSS] = tr_fast_head_scratch,
    [TR_OP_HEAD_LOSS_GRAD] = tr_fast_head_scratch,
    [TR_OP_HEAD_STATS] = tr_fast_head_scratch,
    [TR_OP_HEAD_GRAD] = tr_fast_head_scratch,
    [TR_OP_ALL_TO_ALL] = exchange_scratch,
    [TR_OP_EMBED_DW] = embed_dw_scratch,
    [TR_OP_SUMSQ] = sumsq_scratch,
    [TR_OP_ORTHOGONAL] = tr_fast_orthogonal_scratch,
    [TR_OP_ADAFACTOR_SUMS] = tr_fast_adafactor_scratch,
    [TR_OP_ADAFACTOR_NORM] = tr_fast_adafactor_scratch,
};

size_t tr_op_scratch(const struct tr_call *c, int n_threads)
{
    TR_BUG_ON((unsigned)c->op >= TR_OP_COUNT);
    return scratch[c->op] ? scratch[c->op](c, n_threads) : 0;
}

struct cut {
    const struct tr_call *c;
    tr_piece_fn *fn;
    int64_t rows, cols, width, rows_a_task, pieces_a_row;
};

static void run_task(void *ctx, int64_t task, int worker)
{
    const struct cut *cut = ctx;
    int64_t row = task / cut->pieces_a_row * cut->rows_a_task, col = task % cut->pieces_a_row * cut->width;
    int64_t last = tr_min64(row + cut->rows_a_task, cut->rows), end = tr_min64(col + cut->width, cut->cols);
    (void)worker;
    for (; row < last; row++)
        cut->fn(cut->c, row, col, end);
}

void tr_fast_run(const struct tr_call *c, int64_t rows, int64_t cols, int64_t width, tr_piece_fn *fn)
{
    struct cut cut = { c, fn, rows, cols, .width = tr_min64(width, cols) };
    if (rows == 0 || cols == 0)
        return;
    cut.rows_a_task = tr_max64(1, TR_PIECE / cut.width);
    cut.pieces_a_row = (cols + cut.width - 1) / cut.width;
    tr_pool_run(c->pool, (rows + cut.rows_a_task - 1) / cut.rows_a_task * cut.pieces_a_row, run_task, &cut);
}

void tr_fast_run_stripes(const struct tr_call *c, int64_t cols, tr_piece_fn *fn)
{
    enum {
        STEP = 64
    }; /* with narrower stripes threads would share cache lines and use little of each page they touch */
    size_t share = (size_t)(cols / tr_pool_threads(c->pool) + 1);
    tr_fast_run(c, 1, cols, tr_min64((int64_t)tr_round_up(share, STEP), TR_STRIPE), fn);
}
