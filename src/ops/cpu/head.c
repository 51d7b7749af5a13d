/* head.c - output head fused with its cross entropy, in one pass over blocks of rows.
 *
 * The logits (rows, V) of a block are in scratch: tr_gemm computes x W^T, softmax and loss run in place, then the same
 * buffer holds the gradient of the logits for dx and dW. A block has as many rows as fit in BLOCK_BYTES, because each
 * block reads W twice and reads and writes dW. Its rows are a power of two, so blocks end where tr_gemm splits K, and
 * dW has the bits of one product over all rows. Rows without a target (prompts, padding) cost nothing: the others are
 * brought together, and their x and their list lie in the rows of logits that are then free, so no byte is planned for
 * it. Rejected: blocks of the vocabulary (logits would be computed twice). A
 * rank with a shard of the vocabulary does the same in two calls: HEAD_STATS, and, with the results of all ranks,
 * HEAD_GRAD. The logits are saved in a value between the two calls, or recomputed where they would take too much
 * memory.
 */
#include "ops/cpu/fast.h"
#include "ops/cpu/gemm.h"
#include "ops/cpu/tile.h"
#include <float.h>
#include <math.h>

enum { BLOCK_BYTES = 128 << 20, MIN_ROWS = 32, MAX_ROWS = 1024 };

struct head {
    const struct tr_call *c;
    const struct tr_tile_ops *ops;
    const struct tr_view *x, *w, *bias, *target;
    const struct tr_view *u;      /* of an adapter; B is the next. Its data is NULL where there is none */
    const struct tr_view *loss;   /* NULL: HEAD_GRAD */
    const struct tr_view *lse;    /* HEAD_GRAD: log-sum-exp over the logits of all ranks */
    const struct tr_view *dx;     /* then dW, db, du and dB */
    const struct tr_view *weight; /* HEAD_GRAD: a factor for each token; NULL: 1 */
    const struct tr_view *kept;   /* all logits, when they are saved between the two calls; else NULL */
    bool want_grad;
    bool is_stats;
    float scale, grad_scale;
    int64_t row, n_rows;    /* the block */
    int64_t n_live;         /* rows whose logits are computed */
    const int32_t *live;    /* them, counted from `row`; NULL: all rows of the block */
    struct tr_view block_x; /* their x, and their u */
    struct tr_view block_u;
    float *z; /* (n_rows, ld_z), of which the first n_live rows are logits */
    int64_t ld_z;
    void *gemm_scratch;
};

static int64_t row_floats(int64_t n_vocab)
{
    return (int64_t)tr_round_up((size_t)n_vocab, 16);
}

static int64_t block_rows(const struct tr_call *c)
{
    int64_t row_bytes = row_floats(c->in[1].rows) * (int64_t)sizeof(float), n = MAX_ROWS;
    while (n > MIN_ROWS && n * row_bytes > BLOCK_BYTES)
        n /= 2;
    return tr_min64(n, c->in[0].rows);
}

/* Scratch begins with one factor per row, for the gradient of the bias; the logits follow. */
static size_t ones_bytes(const struct tr_call *c)
{
    return tr_round_up((size_t)block_rows(c) * sizeof(float), 64);
}

/* Tests rows, not data: a plan calls this too, and its views have shapes but no data. */
static const struct tr_view *kept_of(const struct tr_call *c)
{
    const struct tr_view *v = c->op == TR_OP_HEAD_STATS ? &c->out[1] : &c->in[6];
    return (c->op == TR_OP_HEAD_STATS || c->op == TR_OP_HEAD_GRAD) && v->rows > 0 ? v : NULL;
}

static size_t z_bytes(const struct tr_call *c)
{
    size_t own = kept_of(c) ? 0 : (size_t)(block_rows(c) * row_floats(c->in[1].rows)) * sizeof(float);
    return ones_bytes(c) + tr_round_up(own, 64);
}

size_t tr_fast_head_scratch(const struct tr_call *c, int n_threads)
{
    int64_t n = block_rows(c), d = c->in[0].cols, n_vocab = c->in[1].rows;
    int64_t r = c->in[tr_head_u(c->op)].cols;
    size_t parts[] = {
        tr_gemm_scratch(n, n_vocab, d, n_threads),        r ? tr_gemm_scratch(n, n_vocab, r, n_threads) : 0,
        tr_gemm_scratch(n, d, n_vocab, n_threads),        tr_gemm_scratch(n_vocab, d, n, n_threads),
        tr_gemm_scratch(1, n_vocab, n, n_threads),        r ? tr_gemm_scratch(n, r, n_vocab, n_threads) : 0,
        r ? tr_gemm_scratch(n_vocab, r, n, n_threads) : 0
    };
    size_t most = 0;
    bool has_grad = c->op == TR_OP_HEAD_LOSS_GRAD || c->op == TR_OP_HEAD_GRAD;
    for (size_t i = 0; i < (has_grad ? TR_COUNT_OF(parts) : 2); i++)
        most = parts[i] > most ? parts[i] : most;
    return z_bytes(c) + most;
}

static int32_t target_of(const struct head *h, int64_t row)
{
    return ((const int32_t *)h->target->data)[row * h->target->ld];
}

static float *row_of(const struct tr_view *v, int64_t row)
{
    return (float *)v->data + row * v->ld;
}

static char *line_at(const struct tr_view *v, int64_t row)
{
    return (char *)v->data + (size_t)(row * v->ld) * tr_dtype_bytes(v->dtype);
}

/* What the loss takes from the log-sum-exp: the logit of the target, or with smoothing a mean with all logits. Without
 * a gradient, z still holds the logits. */
static float wanted_logit(const struct tr_logit_row *r, int64_t target)
{
    double sum = 0;
    for (int64_t j = 0; r->smoothing > 0 && j < r->n; j++)
        sum += (double)r->z[j];
    float spread = (float)((double)r->smoothing_each * sum);
    return target < 0 ? spread : (1.0f - r->smoothing) * r->z[target] + spread;
}

/* The log-sum-exp of twice the logits, which z holds: doubling and halving are exact. */
static float log_squares(const struct head *h, const struct tr_logit_row *r)
{
    static const struct tr_view no_bias = { 0 };
    struct tr_logit_row twice = { .z = r->z, .n = r->n, .target = -1, .bias = &no_bias, .scale = 2 };
    float all = h->ops->cross_entropy(&twice);
    twice.scale = 0.5f;
    if (h->kept)
        (void)h->ops->logits(&twice);
    return all;
}

static void row_task(void *ctx, int64_t task, int worker)
{
    const struct head *h = ctx;
    int64_t row = h->row + (h->live ? h->live[task] : task), target = target_of(h, row);
    int64_t local = target - h->c->attr.first;
    bool is_here = target >= 0 && local >= 0 && local < h->w->rows;
    struct tr_logit_row r = { .z = h->z + task * h->ld_z,
                              .n = h->w->rows,
                              .target = is_here && !h->is_stats ? local : -1,
                              .bias = h->bias,
                              .scale = h->scale,
                              .softcap = h->c->attr.softcap,
                              .want_grad = h->want_grad,
                              .smoothing = h->c->attr.smoothing,
                              .smoothing_each = h->c->attr.smoothing_each,
                              .z_loss = h->c->attr.z_loss,
                              .grad_scale = h->weight ? h->grad_scale * *row_of(h->weight, row) : h->grad_scale };
    (void)worker;
    TR_BUG_ON(!h->is_stats && !h->lse && target >= r.n);
    float loss = 0;
    if (target >= 0 && h->lse && !h->kept)
        (void)h->ops->logits(&r);
    if (target >= 0 && h->lse)
        h->ops->logit_grad(&r, *row_of(h->lse, row));
    else if (target >= 0)
        loss = h->ops->cross_entropy(&r);
    else if (h->want_grad)
        memset(r.z, 0, (size_t)r.n * sizeof(float));
    if (h->loss)
        *row_of(h->loss, row) = h->is_stats && target < 0 ? -FLT_MAX : loss;
    if (h->is_stats)
        row_of(h->loss, row)[1] = target < 0 ? 0 : wanted_logit(&r, is_here ? local : -1);
    if (h->is_stats && h->loss->cols > 2)
        row_of(h->loss, row)[2] = target < 0 ? -FLT_MAX : log_squares(h, &r);
}

/* A product with the block: one factor is the rows of v from `row` on, the other is z. */
static struct tr_gemm gemm_of(const struct head *h, const struct tr_view *v, int64_t row)
{
    return (struct tr_gemm){
        .b = line_at(v, row), .ldb = v->ld, .b_dtype = v->dtype, .a = h->z, .lda = h->ld_z, .a_dtype = TR_F32
    };
}

/* Runs a product into the rows of v from `row` on; an absent output costs nothing. */
static void run_into(const struct head *h, struct tr_gemm *g, const struct tr_view *v, int64_t row)
{
    if (!v->data)
        return;
    g->c = line_at(v, row);
    g->ldc = v->ld;
    g->c_dtype = v->dtype;
    tr_gemm(g, h->c->pool, h->gemm_scratch);
}

/* z (+)= x W^T */
static void add_product(const struct head *h, const struct tr_view *x, const struct tr_view *w, bool accumulate)
{
    struct tr_gemm g = gemm_of(h, w, 0);
    g.m = h->n_live, g.n = w->rows, g.k = x->cols, g.b_t = true;
    g.a = x->data, g.lda = x->ld, g.a_dtype = x->dtype;
    g.c = h->z, g.ldc = h->ld_z, g.c_dtype = TR_F32;
    g.accumulate = accumulate;
    tr_gemm(&g, h->c->pool, h->gemm_scratch);
}

static void block_logits(struct head *h)
{
    if (!h->lse || !h->kept) {
        add_product(h, &h->block_x, h->w, false);
        if (h->u->data)
            add_product(h, &h->block_u, h->u + 1, true);
    }
    tr_pool_run(h->c->pool, h->n_live, row_task, h);
}

/* dx (or du) of the rows that were brought together back to their places. A place is never in front of where its row
 * lies, so the last goes first. */
static void spread_dx(const struct head *h, const struct tr_view *dx)
{
    size_t bytes = (size_t)dx->cols * tr_dtype_bytes(dx->dtype);
    int64_t next = h->n_rows;
    for (int64_t i = h->n_live - 1; h->live && dx->data && i >= -1; i--) {
        int64_t to = i < 0 ? -1 : h->live[i];
        for (int64_t r = to + 1; r < next; r++) /* rows behind it without a target; what lay there has moved */
            memset(line_at(dx, h->row + r), 0, bytes);
        if (i >= 0 && to != i)
            memcpy(line_at(dx, h->row + to), line_at(dx, h->row + i), bytes);
        next = to;
    }
}

/* dx = z W; dW (+)= z^T x */
static void pair_grads(const struct head *h, const struct tr_view *x, const struct tr_view *w, const struct tr_view *dx,
                       const struct tr_view *dw, bool is_first)
{
    struct tr_gemm g = gemm_of(h, w, 0);
    g.m = h->n_live, g.n = x->cols, g.k = w->rows;
    run_into(h, &g, dx, h->row);
    spread_dx(h, dx);

    g = gemm_of(h, x, 0);
    g.m = w->rows, g.n = x->cols, g.k = h->n_live, g.a_t = true;
    g.accumulate = h->c->accumulate[dw - h->c->out] || !is_first;
    run_into(h, &g, dw, 0);
}

/* And db (+)= 1^T z, where z carries `scale`, which db must not. */
static void block_grads(const struct head *h, bool is_first)
{
    const struct tr_call *c = h->c;
    const struct tr_view *db = h->dx + 2;
    struct tr_gemm g;
    pair_grads(h, &h->block_x, h->w, h->dx, h->dx + 1, is_first);
    if (h->u->data)
        pair_grads(h, &h->block_u, h->u + 1, h->dx + 3, h->dx + 4, is_first);

    float *ones = c->scratch;
    for (int64_t i = 0; i < h->n_live; i++)
        ones[i] = 1.0f / h->scale;
    g = (struct tr_gemm){ .m = 1, .n = h->w->rows, .k = h->n_live, .a = ones, .lda = h->n_live, .a_dtype = TR_F32 };
    g.b = h->z, g.ldb = h->ld_z, g.b_dtype = TR_F32;
    g.accumulate = c->accumulate[db - c->out] || !is_first;
    run_into(h, &g, db, 0);
}

static void clear(const struct tr_view *v, int64_t row, int64_t n)
{
    for (int64_t r = row; v->data && r < row + n; r++)
        memset(line_at(v, r), 0, (size_t)v->cols * tr_dtype_bytes(v->dtype));
}

static int64_t count_targets(const struct head *h)
{
    int64_t n = 0;
    for (int64_t r = 0; r < h->n_rows; r++)
        n += target_of(h, h->row + r) >= 0;
    return n;
}

/* The loss of a row without a target. */
static void write_no_loss(const struct head *h, int64_t row)
{
    if (h->loss)
        clear(h->loss, row, 1);
    if (h->is_stats)
        *row_of(h->loss, row) = -FLT_MAX;
    if (h->is_stats && h->loss->cols > 2)
        row_of(h->loss, row)[2] = -FLT_MAX;
}

/* Which rows of the block are computed: those with a target, where their x and their list fit in the rows of logits
 * that they leave free; else all. Logits that are kept for the next call lie in the rows of their tokens. */
static void bring_rows(struct head *h, int64_t n_targets)
{
    size_t line = (size_t)h->x->cols * tr_dtype_bytes(h->x->dtype);
    size_t line_u = h->u->data ? (size_t)h->u->cols * tr_dtype_bytes(h->u->dtype) : 0;
    size_t room = (size_t)((h->n_rows - n_targets) * h->ld_z) * sizeof(float);
    size_t list = tr_round_up((size_t)n_targets * sizeof(int32_t), sizeof(double));
    size_t all_x = tr_round_up((size_t)n_targets * line, sizeof(double));
    h->live = NULL;
    h->n_live = h->n_rows;
    h->block_x = *h->x;
    h->block_x.data = line_at(h->x, h->row);
    h->block_u = *h->u;
    if (line_u)
        h->block_u.data = line_at(h->u, h->row);
    if (n_targets == h->n_rows || h->kept || list + all_x + (size_t)n_targets * line_u > room)
        return;
    int32_t *live = (int32_t *)(void *)(h->z + n_targets * h->ld_z);
    char *x = (char *)live + list, *u = x + all_x;
    h->n_live = 0;
    for (int64_t r = 0; r < h->n_rows; r++) {
        if (target_of(h, h->row + r) < 0) {
            write_no_loss(h, h->row + r);
            continue;
        }
        memcpy(x + (size_t)h->n_live * line, line_at(h->x, h->row + r), line);
        if (line_u)
            memcpy(u + (size_t)h->n_live * line_u, line_at(h->u, h->row + r), line_u);
        live[h->n_live++] = (int32_t)r;
    }
    h->live = live;
    h->block_x.data = x;
    h->block_x.ld = h->x->cols;
    h->block_u.data = line_u ? u : NULL;
    h->block_u.ld = h->u->cols;
}

/* Blocks without a target (the prompt of a long sample) cost nothing. */
static void skip_block(const struct head *h)
{
    for (int64_t i = 0; i < h->n_rows; i++)
        write_no_loss(h, h->row + i);
    if (h->want_grad) {
        clear(h->dx, h->row, h->n_rows);
        clear(h->dx + 3, h->row, h->n_rows);
    }
}

static void run_blocks(struct head *h)
{
    const struct tr_call *c = h->c;
    int64_t n_block = block_rows(c);
    bool is_first = true;
    for (h->row = 0; h->row < h->x->rows; h->row += n_block) {
        h->n_rows = tr_min64(n_block, h->x->rows - h->row);
        h->z = h->kept ? row_of(h->kept, h->row) : h->z;
        int64_t n_targets = count_targets(h);
        if (n_targets == 0) {
            skip_block(h);
            continue;
        }
        bring_rows(h, n_targets);
        block_logits(h);
        if (h->want_grad)
            block_grads(h, is_first);
        is_first = false;
    }
    for (int k = 1; h->want_grad && is_first && k < 5; k++)
        if (k != 3 && !c->accumulate[h->dx + k - c->out]) /* du has a row for each token */
            clear(h->dx + k, 0, h->dx[k].rows);
}

static struct head head_of(const struct tr_call *c)
{
    return (struct head){ .c = c,
                          .ops = tr_tile_ops(),
                          .x = &c->in[0],
                          .w = &c->in[1],
                          .bias = &c->in[2],
                          .target = &c->in[3],
                          .u = &c->in[tr_head_u(c->op)],
                          .loss = &c->out[0],
                          .scale = c->attr.scale == 0.0f ? 1.0f : c->attr.scale,
                          .kept = kept_of(c),
                          .z = (float *)(void *)((char *)c->scratch + ones_bytes(c)),
                          .ld_z = kept_of(c) ? kept_of(c)->ld : row_floats(c->in[1].rows),
                          .gemm_scratch = (char *)c->scratch + z_bytes(c) };
}

void tr_fast_head_loss(const struct tr_call *c)
{
    struct head h = head_of(c);
    TR_BUG_ON(c->out[1].data != NULL);
    run_blocks(&h);
}

void tr_fast_head_loss_grad(const struct tr_call *c)
{
    struct head h = head_of(c);
    h.want_grad = true;
    h.dx = &c->out[1];
    h.grad_scale = ((const float *)c->in[4].data)[TR_STEP_INV_TOKENS] * h.scale;
    run_blocks(&h);
}

void tr_fast_head_stats(const struct tr_call *c)
{
    struct head h = head_of(c);
    h.is_stats = true;
    run_blocks(&h);
}

void tr_fast_head_grad(const struct tr_call *c)
{
    struct head h = head_of(c);
    h.want_grad = true;
    h.loss = NULL;
    h.lse = &c->in[5];
    h.weight = c->in[TR_HEAD_WEIGHT].data ? &c->in[TR_HEAD_WEIGHT] : NULL;
    h.dx = &c->out[0];
    h.grad_scale = ((const float *)c->in[4].data)[TR_STEP_INV_TOKENS] * h.scale;
    run_blocks(&h);
}

/* The log-sum-exp of twice the logits of all ranks. */
static float log_squares_of(const struct tr_view *stats, int64_t n, int64_t n_ranks, int64_t row)
{
    float max = -FLT_MAX, sum = 0;
    for (int64_t r = 0; r < n_ranks; r++)
        max = fmaxf(max, row_of(stats, r * n + row)[2]);
    for (int64_t r = 0; r < n_ranks; r++)
        sum += expf(row_of(stats, r * n + row)[2] - max);
    return max + logf(sum);
}

void tr_fast_head_combine(const struct tr_call *c)
{
    const struct tr_view *stats = &c->in[0];
    int64_t n = c->out[0].rows, n_ranks = stats->rows / n;
    for (int64_t row = 0; row < n; row++) {
        float max = -FLT_MAX, sum = 0, at_target = 0;
        for (int64_t r = 0; r < n_ranks; r++)
            max = fmaxf(max, *row_of(stats, r * n + row));
        for (int64_t r = 0; r < n_ranks; r++) {
            sum += expf(*row_of(stats, r * n + row) - max);
            at_target += row_of(stats, r * n + row)[1];
        }
        bool is_masked = max == -FLT_MAX;
        float lse = max + logf(sum);
        *row_of(&c->out[1], row) = is_masked ? 0 : lse;
        *row_of(&c->out[0], row) = is_masked ? 0 : logf(sum) + (max - at_target) + c->attr.z_loss * lse * lse;
        if (c->out[2].data)
            *row_of(&c->out[2], row) = is_masked ? 0 : log_squares_of(stats, n, n_ranks, row) - 2 * lse;
    }
}
