/* scratch.c - scratch bytes of the CUDA kernels. Compiled into every build. */
#include "ops/cuda/scratch.h"

static bool is_forward(const struct tr_call *c)
{
    return c->op == TR_OP_ATTENTION || c->op == TR_OP_RING_ATTENTION;
}

static int64_t tokens_of(const struct tr_call *c)
{
    return is_forward(c) ? c->in[0].rows : c->in[1].rows;
}

static int64_t row_tokens(const struct tr_call *c)
{
    return c->attr.seq_len > 0 ? c->attr.seq_len : tokens_of(c);
}

/* Gradients of the scores of n tokens and so many heads. */
static size_t scores_bytes(const struct tr_call *c, int64_t n, int64_t heads)
{
    return (size_t)n * (size_t)heads * tr_round_up((size_t)row_tokens(c), 128) * 2 * 9 / 8;
}

bool tr_cuda_cudnn_covers(const struct tr_call *c)
{
    const struct tr_attr *a = &c->attr;
    bool is_half = c->in[0].dtype == TR_BF16 || c->in[0].dtype == TR_F16;
    /* The library's backward computes what lies outside a window too: on an H200 it took 115 ms where ours took 39, for
     * a window of 1024 in rows of 16384. By the share of the work both are equally fast at about a seventh of a row. */
    bool is_narrow = a->window > 0 && 8 * (int64_t)a->window <= row_tokens(c);
    bool has_room = is_forward(c) || a->any_order ||
                    scores_bytes(c, row_tokens(c), a->n_heads_q / a->n_heads_kv) <= TR_CUDA_SCORES_MOST;
    return is_half && !is_narrow && has_room && a->softcap == 0.0f && a->dropout_p == 0.0f && a->head_dim % 8 == 0 &&
           a->head_dim <= 256;
}

static struct tr_cuda_chunk whole(const struct tr_call *c)
{
    return (struct tr_cuda_chunk){ tr_max64(1, tokens_of(c) / tr_max64(1, row_tokens(c))), c->attr.n_heads_kv };
}

/* n in as few parts as `most` allows, all of about one size. */
static int64_t even_part(int64_t n, int64_t most)
{
    int64_t n_parts = (n + most - 1) / most;
    return (n + n_parts - 1) / n_parts;
}

struct tr_cuda_chunk tr_cuda_attention_chunk(const struct tr_call *c)
{
    struct tr_cuda_chunk all = whole(c);
    if (is_forward(c) || c->attr.any_order)
        return all;
    int64_t row = (int64_t)tr_max64(1, (int64_t)scores_bytes(c, row_tokens(c), c->attr.n_heads_q));
    int64_t most_rows = tr_max64(1, TR_CUDA_SCORES_OF_ROWS / row);
    int64_t most_heads = tr_max64(1, TR_CUDA_SCORES_OF_ROW / tr_max64(1, row / all.heads_kv));
    return (struct tr_cuda_chunk){ even_part(all.rows, most_rows), even_part(all.heads_kv, most_heads) };
}

static size_t attention_bytes(const struct tr_call *c, struct tr_cuda_chunk at_once)
{
    const struct tr_attr *a = &c->attr;
    int64_t all = tokens_of(c), n = tr_min64(all, at_once.rows * row_tokens(c));
    int64_t heads = at_once.heads_kv * (a->n_heads_q / a->n_heads_kv);
    size_t delta = is_forward(c) ? 0 : (size_t)(all * a->n_heads_q) * 4; /* do.o of all tokens, for every engine */
    if (!tr_cuda_cudnn_covers(c))
        return delta;
    if (is_forward(c))
        return 32 << 20;
    /* dq in fp32, or the gradients of the scores; dk and dv of every query head */
    size_t wide = (size_t)(n * heads * a->head_dim), dq = a->any_order ? wide * 4 : scores_bytes(c, n, heads);
    return 4096 + delta + dq + 2 * wide * 4 + (64 << 20);
}

static size_t attention(const struct tr_call *c)
{
    return attention_bytes(c, tr_cuda_attention_chunk(c));
}

static size_t product(const struct tr_call *c)
{
    (void)c;
    return TR_CUDA_WORKSPACE;
}

static size_t weight(const struct tr_call *c)
{
    return TR_CUDA_WORKSPACE + tr_cuda_colsum_bytes(c->in[0].cols);
}

static size_t quant(const struct tr_call *c) /* amax */
{
    (void)c;
    return 256;
}

static size_t layernorm_bwd(const struct tr_call *c)
{
    return 2 * tr_cuda_colsum_bytes(c->in[1].cols);
}

static size_t rmsnorm_bwd(const struct tr_call *c)
{
    return tr_cuda_colsum_bytes(c->in[1].cols);
}

static size_t embed_dw(const struct tr_call *c)
{
    return tr_cuda_embed_bytes(c->in[0].rows, c->attr.weight_is_in_out ? c->out[0].cols : c->out[0].rows);
}

static size_t logits_bytes(const struct tr_call *c, size_t elem)
{
    return (size_t)tr_cuda_head_rows(c, elem) * (size_t)tr_cuda_head_ld(c->in[1].rows) * elem;
}

static size_t head(const struct tr_call *c) /* logits in fp32, so that they are not rounded before the loss */
{
    return logits_bytes(c, sizeof(float)) + TR_CUDA_WORKSPACE;
}

static size_t head_grad(const struct tr_call *c)
{
    const struct tr_view *db = &c->out[c->op == TR_OP_HEAD_LOSS_GRAD ? 3 : 2];
    return logits_bytes(c, tr_dtype_bytes(c->in[0].dtype)) + TR_CUDA_WORKSPACE +
           (db->cols ? tr_cuda_colsum_bytes(c->in[1].rows) : 0);
}

static size_t sumsq(const struct tr_call *c)
{
    return (((size_t)c->in[0].cols + TR_CUDA_CHUNK - 1) / TR_CUDA_CHUNK + 1) * sizeof(double);
}

struct tr_cuda_muon tr_cuda_muon_scratch(int64_t rows, int64_t cols)
{
    size_t m = (size_t)tr_min64(rows, cols), n = (size_t)tr_max64(rows, cols);
    struct tr_cuda_muon s = { .x = 0 };
    s.a = tr_round_up(m * n * 2, 256);
    s.product = s.a + tr_round_up(m * m * 2, 256);
    s.norm = s.product + tr_round_up(m * n * sizeof(float), 256);
    s.workspace = s.norm + 256 * sizeof(double);
    return s;
}

static size_t orthogonal(const struct tr_call *c)
{
    return tr_cuda_muon_scratch(c->out[0].rows, c->out[0].cols).workspace + TR_CUDA_WORKSPACE;
}

static size_t adafactor(const struct tr_call *c) /* a sum for each line */
{
    return (size_t)(c->attr.rows + 1) * sizeof(double);
}

static size_t ring(const struct tr_call *c) /* counted for all rows at once; a block needs less */
{
    return tr_ring_scratch(c).kernel + attention_bytes(c, whole(c));
}

static size_t exchange(const struct tr_call *c) /* the bytes to send and the bytes received */
{
    return 2 * tr_exchange_bytes(c);
}

/* NULL: the op needs no scratch. */
static size_t (*const scratch[TR_OP_COUNT])(const struct tr_call *c) = {
    [TR_OP_LINEAR] = product,
    [TR_OP_LINEAR_DX] = product,
    [TR_OP_LINEAR_DW] = weight,
    [TR_OP_LINEAR_ADD] = product,
    [TR_OP_LINEAR_ACT] = product,
    [TR_OP_LINEAR_DX_ACT] = product,
    [TR_OP_MATMUL8] = product,
    [TR_OP_QUANT] = quant,
    [TR_OP_LAYERNORM_BWD] = layernorm_bwd,
    [TR_OP_RMSNORM_BWD] = rmsnorm_bwd,
    [TR_OP_EMBED_DW] = embed_dw,
    [TR_OP_HEAD_LOSS] = head,
    [TR_OP_HEAD_STATS] = head,
    [TR_OP_HEAD_LOSS_GRAD] = head_grad,
    [TR_OP_HEAD_GRAD] = head_grad,
    [TR_OP_SUMSQ] = sumsq,
    [TR_OP_ORTHOGONAL] = orthogonal,
    [TR_OP_ADAFACTOR_SUMS] = adafactor,
    [TR_OP_ADAFACTOR_NORM] = adafactor,
    [TR_OP_ATTENTION] = attention,
    [TR_OP_ATTENTION_BWD] = attention,
    [TR_OP_RING_ATTENTION] = ring,
    [TR_OP_RING_ATTENTION_BWD] = ring,
    [TR_OP_ALL_TO_ALL] = exchange,
};

size_t tr_cuda_scratch(const struct tr_call *c, int n_threads)
{
    (void)n_threads; /* threads of the host, which these kernels do not use */
    TR_BUG_ON((unsigned)c->op >= TR_OP_COUNT);
    return scratch[c->op] ? scratch[c->op](c) : 0;
}
