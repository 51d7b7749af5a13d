/* attention_cudnn.cu - attention on tensor cores: the forward and backward graphs of cuDNN's fused kernels.
 *
 * A micro-batch is a batch of N / seq_len rows of tokens, each one document; the mask is the diagonal and the window.
 * Only the backward reads lse, so it is stored (row, head, token), as the library wants it. A call that is not covered
 * (fp32, softcap, dropout, odd sizes, rows of several documents) returns false, and the next engine runs it
 * (attention.cu). When attr.any_order allows it, the backward sums dq over blocks of keys in the order in which they
 * finish, which saves a pass over the scores. Rejected for rows of several documents: a table of -inf added to the
 * scores, which skips no work; ragged batches (9.14 and 9.19 stop in their backward with an illegal instruction for
 * rows of 1024 tokens).
 *
 * The deterministic backward holds the gradients of the scores. It runs chunk by chunk (tr_cuda_attention_chunk), each
 * a call of its own for some rows, or for some heads of one row; no sum crosses a chunk, so the bits do not depend on
 * it.
 */
#include "ops/cuda/dnn_graph.cuh"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A call of either direction, in the library's terms. */
struct sdpa {
    int64_t b, s, h, h_kv, d, window, n; /* n: tokens in all */
    bool any_order;
    float scale;
    const struct tr_view *q, *k, *v, *o, *lse, *d_o, *dq, *dk, *dv;
};

/* The tensors of the call, in the order of the views of struct sdpa. */
enum name { T_Q, T_K, T_V, T_O, T_DO, T_DQ, T_DK, T_DV, T_COUNT };

static const struct tr_view *view_of(const struct sdpa *a, int t)
{
    const struct tr_view *all[T_COUNT] = { a->q, a->k, a->v, a->o, a->d_o, a->dq, a->dk, a->dv };
    return all[t];
}

/* Is the view absent, or of the dtype of q with rows of whole vectors? */
static bool is_plain(const struct tr_view *v, enum tr_dtype dtype)
{
    return !v || (v->dtype == dtype && v->ld % 8 == 0 && (uintptr_t)v->data % 16 == 0);
}

static bool is_covered(const struct tr_call *c, const struct sdpa *a)
{
    const struct tr_view *all[] = { a->q, a->k, a->v, a->o, a->d_o, a->dq, a->dk, a->dv };
    for (size_t i = 0; i < TR_COUNT_OF(all); i++)
        if (!is_plain(all[i], a->q->dtype))
            return false;
    return library_of(c)->dnn && tr_cuda_cudnn_covers(c) && a->n % a->s == 0 && c->n_documents == a->b &&
           a->lse->ld == a->h;
}

static struct sdpa sdpa_of(const struct tr_call *c)
{
    bool is_bwd = c->op == TR_OP_ATTENTION_BWD;
    const struct tr_view *in = is_bwd ? &c->in[1] : &c->in[0];
    struct sdpa a = {};
    a.q = &in[0], a.k = &in[1], a.v = &in[2];
    a.o = is_bwd ? &c->in[4] : &c->out[0];
    a.lse = is_bwd ? &c->in[5] : &c->out[1];
    if (is_bwd)
        a.d_o = &c->in[0], a.dq = &c->out[0], a.dk = &c->out[1], a.dv = &c->out[2];
    a.n = a.q->rows;
    a.h = c->attr.n_heads_q, a.h_kv = c->attr.n_heads_kv, a.d = c->attr.head_dim;
    a.s = c->attr.seq_len > 0 ? c->attr.seq_len : a.n;
    a.window = c->attr.window > 0 && c->attr.window < a.s ? c->attr.window : 0;
    a.scale = factor_of(c);
    a.any_order = c->attr.any_order;
    a.b = a.n / a.s;
    return a;
}

/* ---- parts of both graphs ---- */

struct sdpa_graph {
    struct dnn_graph g;
    const struct sdpa *a;
};

static const cudnnDataType_t F32 = CUDNN_DATA_FLOAT, I32 = CUDNN_DATA_INT32, BOOL = CUDNN_DATA_BOOLEAN;

/* The type of the tensors of the call, and of the operands of a product. */
static cudnnDataType_t io_of(const struct sdpa_graph *x)
{
    return x->a->q->dtype == TR_F16 ? CUDNN_DATA_HALF : CUDNN_DATA_BFLOAT16;
}

/* Rows of a view as (batch, head, row, column), or with the last two swapped. */
static struct dnn_tensor rows_of(struct sdpa_graph *x, int t, int64_t heads, bool is_turned)
{
    const struct sdpa *a = x->a;
    int64_t ld = view_of(a, t)->ld;
    struct dnn_shape s = is_turned ? shape4(a->b, heads, a->d, a->s, a->s * ld, a->d, 1, ld)
                                   : shape4(a->b, heads, a->s, a->d, a->s * ld, a->d, ld, 1);
    struct dnn_tensor y = dnn_tensor_of(&x->g, s, io_of(x), false);
    dnn_bind(x->g.p, y);
    return y;
}

/* A tensor with one number for each row and head: lse, do.o, or an intermediate result. */
static struct dnn_tensor stats_of(struct sdpa_graph *x, bool is_virtual)
{
    const struct sdpa *a = x->a;
    struct dnn_tensor y = dnn_tensor_of(&x->g, packed4(a->b, a->h, a->s, 1), F32, is_virtual);
    if (!is_virtual)
        dnn_bind(x->g.p, y);
    return y;
}

static struct dnn_tensor scores(struct sdpa_graph *x, cudnnDataType_t type)
{
    return dnn_tensor_of(&x->g, packed4(x->a->b, x->a->h, x->a->s, x->a->s), type, true);
}

static struct dnn_tensor op2(struct sdpa_graph *x, cudnnPointwiseMode_t mode, const struct dnn_tensor &a,
                             const struct dnn_tensor &b)
{
    return dnn_pointwise(&x->g, mode, F32, a, &b, NULL, F32, -1);
}

static struct dnn_tensor select(struct sdpa_graph *x, const struct dnn_tensor &s, const struct dnn_tensor &mask)
{
    struct dnn_tensor none = dnn_scalar(&x->g, -INFINITY);
    return dnn_pointwise(&x->g, CUDNN_POINTWISE_BINARY_SELECT, F32, s, &none, &mask, F32, -1);
}

static struct dnn_tensor compare(struct sdpa_graph *x, cudnnPointwiseMode_t mode, const struct dnn_tensor &a,
                                 const struct dnn_tensor &b)
{
    return dnn_pointwise(&x->g, mode, BOOL, a, &b, NULL, BOOL, -1);
}

static struct dnn_tensor index_of(struct sdpa_graph *x, const struct dnn_tensor &s, int axis, cudnnDataType_t math,
                                  cudnnDataType_t type)
{
    return dnn_pointwise(&x->g, CUDNN_POINTWISE_GEN_INDEX, math, s, NULL, NULL, type, axis);
}

/* Masks the scores: the diagonal, the window. */
static struct dnn_tensor masked(struct sdpa_graph *x, struct dnn_tensor s)
{
    struct dnn_tensor row = index_of(x, s, 2, F32, I32), col = index_of(x, s, 3, F32, I32);
    s = select(x, s, compare(x, CUDNN_POINTWISE_CMP_GE, row, col));
    if (x->a->window) {
        struct dnn_tensor width = dnn_scalar(&x->g, (float)x->a->window), r = index_of(x, s, 2, F32, F32);
        struct dnn_tensor c =
            dnn_pointwise(&x->g, CUDNN_POINTWISE_ADD, F32, index_of(x, s, 3, F32, F32), &width, NULL, F32, 3);
        s = select(x, s, compare(x, CUDNN_POINTWISE_CMP_GT, c, r));
    }
    return s;
}

/* ---- the graphs; the order of dnn_bind is the order of pointers below ---- */

static void build_forward(struct sdpa_graph *x)
{
    struct dnn_graph *g = &x->g;
    const struct sdpa *a = x->a;
    struct dnn_tensor q = rows_of(x, T_Q, a->h, false), k = rows_of(x, T_K, a->h_kv, true),
                      v = rows_of(x, T_V, a->h_kv, false), o = rows_of(x, T_O, a->h, false), lse = stats_of(x, false);
    struct dnn_tensor s = scores(x, F32), max = stats_of(x, true), sum = stats_of(x, true);
    dnn_matmul_to(g, q, k, s);
    s = masked(x, op2(x, CUDNN_POINTWISE_MUL, s, dnn_scalar(g, a->scale)));
    dnn_reduce_to(g, CUDNN_REDUCE_TENSOR_MAX, s, max);
    struct dnn_tensor e =
        dnn_pointwise(g, CUDNN_POINTWISE_EXP, F32, op2(x, CUDNN_POINTWISE_SUB, s, max), NULL, NULL, F32, -1);
    dnn_reduce_to(g, CUDNN_REDUCE_TENSOR_ADD, e, sum);
    struct dnn_tensor log = dnn_pointwise(g, CUDNN_POINTWISE_LOG, F32, sum, NULL, NULL, F32, -1);
    dnn_pointwise_to(g, CUDNN_POINTWISE_ADD, max, &log, lse);
    struct dnn_tensor p = scores(x, io_of(x));
    dnn_pointwise_to(g, CUDNN_POINTWISE_DIV, e, &sum, p);
    dnn_matmul_to(g, p, v, o);
}

/* x^T as the left factor of dk or dv: 16 bits, rows and columns swapped. */
static struct dnn_tensor turned(struct sdpa_graph *x, const struct dnn_tensor &s)
{
    const struct sdpa *a = x->a;
    struct dnn_tensor y =
        dnn_tensor_of(&x->g, shape4(a->b, a->h, a->s, a->s, a->h * a->s * a->s, a->s * a->s, 1, a->s), io_of(x), true);
    dnn_reshape_to(&x->g, s, y);
    return y;
}

/* dk or dv = left * right; with fewer key heads, of every query head first, then summed over each group. */
static void to_keys(struct sdpa_graph *x, const struct dnn_tensor &left, const struct dnn_tensor &right, int t)
{
    const struct sdpa *a = x->a;
    struct dnn_tensor out = rows_of(x, t, a->h_kv, false);
    if (a->h == a->h_kv) {
        dnn_matmul_to(&x->g, left, right, out);
        return;
    }
    struct dnn_tensor all = dnn_tensor_of(&x->g, packed4(a->b, a->h, a->s, a->d), io_of(x), true);
    dnn_matmul_to(&x->g, left, right, all);
    dnn_reduce_to(&x->g, CUDNN_REDUCE_TENSOR_ADD, all, out);
}

static void build_backward(struct sdpa_graph *x)
{
    struct dnn_graph *g = &x->g;
    const struct sdpa *a = x->a;
    struct dnn_tensor q = rows_of(x, T_Q, a->h, false), k = rows_of(x, T_K, a->h_kv, true),
                      v = rows_of(x, T_V, a->h_kv, true), o = rows_of(x, T_O, a->h, false),
                      d_o = rows_of(x, T_DO, a->h, false), lse = stats_of(x, false), delta = stats_of(x, false),
                      one = dnn_scalar(g, 1.0f), scale = dnn_scalar(g, a->scale);
    /* delta = sum over columns of do * o */
    struct dnn_tensor product = dnn_tensor_of(g, packed4(a->b, a->h, a->s, a->d), F32, true), sum = stats_of(x, true);
    dnn_pointwise_to(g, CUDNN_POINTWISE_MUL, d_o, &o, product);
    dnn_reduce_to(g, CUDNN_REDUCE_TENSOR_ADD, product, sum);
    dnn_pointwise_to(g, CUDNN_POINTWISE_MUL, sum, &one, delta);
    /* p = exp(scale * q.k - lse); dv = p^T do */
    struct dnn_tensor s = scores(x, F32), dp = scores(x, F32);
    dnn_matmul_to(g, q, k, s);
    s = masked(x, op2(x, CUDNN_POINTWISE_SUB, op2(x, CUDNN_POINTWISE_MUL, s, scale), lse));
    struct dnn_tensor p = dnn_pointwise(g, CUDNN_POINTWISE_EXP, F32, s, NULL, NULL, F32, -1);
    to_keys(x, turned(x, p), d_o, T_DV);
    /* ds = scale * p * (do.v - delta); dk = ds^T q; dq = ds k */
    dnn_matmul_to(g, d_o, v, dp);
    struct dnn_tensor ds = op2(x, CUDNN_POINTWISE_MUL, op2(x, CUDNN_POINTWISE_SUB, dp, delta), p);
    ds = op2(x, CUDNN_POINTWISE_MUL, ds, scale);
    to_keys(x, turned(x, ds), q, T_DK);
    int64_t ld = a->k->ld;
    struct dnn_tensor keys =
        dnn_tensor_of(g, shape4(a->b, a->h_kv, a->s, a->d, a->s * ld, a->d, ld, 1), io_of(x), true);
    dnn_reshape_to(g, k, keys);
    if (!a->any_order) { /* one product over all keys: deterministic, and slower */
        dnn_matmul_to(g, ds, keys, rows_of(x, T_DQ, a->h, false));
        return;
    }
    struct dnn_tensor dq_sum = dnn_tensor_of(g, packed4(a->b, a->h, a->s, a->d), F32, false);
    dnn_bind(g->p, dq_sum);
    struct dnn_tensor dq = rows_of(x, T_DQ, a->h, false);
    dnn_matmul_to(g, ds, keys, dq_sum);
    dnn_pointwise_to(g, CUDNN_POINTWISE_IDENTITY, dq_sum, NULL, dq);
}

/* ---- plans and calls ---- */

static void key_of(const struct sdpa *a, bool is_bwd, uint64_t key[20])
{
    uint32_t scale;
    memcpy(&scale, &a->scale, sizeof scale);
    const int64_t head[] = {
        is_bwd | (a->q->dtype == TR_F16) << 1, a->b, a->s, a->h, a->h_kv, a->d, a->window, a->any_order, scale
    };
    memset(key, 0, 20 * sizeof *key);
    for (size_t i = 0; i < TR_COUNT_OF(head); i++)
        key[i] = (uint64_t)head[i];
    for (int t = 0; t < T_COUNT; t++)
        key[TR_COUNT_OF(head) + (size_t)t] = view_of(a, t) ? (uint64_t)view_of(a, t)->ld : 0;
}

static struct dnn_plan *plan_of(const struct tr_call *c, const struct sdpa *a, bool is_bwd, size_t workspace)
{
    struct tr_cuda_library *l = library_of(c);
    uint64_t key[20];
    key_of(a, is_bwd, key);
    for (int i = 0; i < l->n_attentions; i++)
        if (memcmp(l->attention[i]->key, key, sizeof key) == 0)
            return l->attention[i];
    struct dnn_plan *p = l->n_attentions < MAX_ATTENTIONS ? (struct dnn_plan *)calloc(1, sizeof *p) : NULL;
    if (!p)
        return NULL;
    memcpy(p->key, key, sizeof key);
    p->is_ok = true;
    struct sdpa_graph x = {};
    x.g.l = l, x.g.p = p, x.a = a;
    is_bwd ? build_backward(&x) : build_forward(&x);
    dnn_finish(&x.g, workspace);
    l->attention[l->n_attentions++] = p;
    return p;
}

/* Where the chunk that begins at this token and head begins in a view; lse is (row, head, token). */
static void *part_of(const struct tr_view *v, int64_t token, int64_t col)
{
    return (char *)v->data + (size_t)(token * v->ld + col) * tr_dtype_bytes(v->dtype);
}

/* Runs the rows of `all` from `row` on and the heads of keys from `head` on, as many as `at_once` says. Divides the
 * scratch as scratch.c counted it: do.o, dq in fp32, and the workspace of the library. */
static bool run_chunk(const struct tr_call *c, const struct sdpa *all, bool is_bwd, struct tr_cuda_chunk at_once,
                      int64_t row, int64_t head)
{
    struct sdpa a = *all;
    int64_t group = all->h / all->h_kv, token = row * a.s;
    a.b = tr_min64(at_once.rows, all->b - row);
    a.n = a.b * a.s;
    a.h_kv = tr_min64(at_once.heads_kv, all->h_kv - head);
    a.h = a.h_kv * group;
    size_t heads = (size_t)(a.n * a.h);
    char *end = (char *)c->scratch + tr_cuda_scratch(c, 1), *delta = (char *)tr_round_up((size_t)c->scratch, 256);
    char *dq_sum = delta + (is_bwd ? tr_round_up(heads * 4, 256) : 0);
    char *workspace = dq_sum + (is_bwd && a.any_order ? tr_round_up(heads * (size_t)a.d * 4, 256) : 0);
    if (workspace > end)
        return false;
    struct dnn_plan *p = plan_of(c, &a, is_bwd, (size_t)(end - workspace));
    if (!p || !p->is_ok)
        return false;
    int64_t col = head * group * a.d, col_kv = head * a.d;
    void *ptr[MAX_BOUND];
    int n = 0;
    ptr[n++] = part_of(a.q, token, col), ptr[n++] = part_of(a.k, token, col_kv);
    ptr[n++] = part_of(a.v, token, col_kv), ptr[n++] = part_of(a.o, token, col);
    if (is_bwd)
        ptr[n++] = part_of(a.d_o, token, col);
    ptr[n++] = (float *)a.lse->data + (row * all->h + head * group) * a.s;
    if (is_bwd) {
        ptr[n++] = delta, ptr[n++] = part_of(a.dv, token, col_kv), ptr[n++] = part_of(a.dk, token, col_kv);
        if (a.any_order)
            ptr[n++] = dq_sum;
        ptr[n++] = part_of(a.dq, token, col);
    }
    return dnn_run(c, p, ptr, n, workspace);
}

static bool run(const struct tr_call *c, bool is_bwd)
{
    struct sdpa a = sdpa_of(c);
    if (!is_covered(c, &a))
        return false;
    struct tr_cuda_chunk at_once = tr_cuda_attention_chunk(c);
    for (int64_t row = 0; row < a.b; row += at_once.rows)
        for (int64_t head = 0; head < a.h_kv; head += at_once.heads_kv)
            if (!run_chunk(c, &a, is_bwd, at_once, row, head))
                return false;
    return true;
}

bool tr_cudnn_attention(const struct tr_call *c)
{
    return run(c, false);
}

bool tr_cudnn_attention_bwd(const struct tr_call *c)
{
    return run(c, true);
}
