/* fast_linear.c - linear and its gradients, all by tr_gemm; embed and its gradient. The gradient of embed needs no
 * atomics: a task owns rows of the table and adds their tokens in order. A single row of generation is no matter for
 * tr_gemm, which packs the weight first: the bytes of the weight bound its speed, and they are read once. */
#include "ops/cpu/fast.h"
#include "ops/cpu/gemm.h"
#include "ops/cpu/simd.h"

/* A product with m, n and k from the views; the caller sets the flags. */
static struct tr_gemm gemm_of(const struct tr_view *a, const struct tr_view *b, const struct tr_view *out, int64_t k)
{
    return (struct tr_gemm){ .m = out->rows,
                             .n = out->cols,
                             .k = k,
                             .a = a->data,
                             .b = b->data,
                             .c = out->data,
                             .lda = a->ld,
                             .ldb = b->ld,
                             .ldc = out->ld,
                             .a_dtype = a->dtype,
                             .b_dtype = b->dtype,
                             .c_dtype = out->dtype };
}

/* Columns [col, end) of y, a row: dot products with rows of W. */
static void dot_piece(const struct tr_call *c, int64_t row, int64_t col, int64_t end)
{
    struct run x = run_at(&c->in[0], row, 0), bias = run_at(&c->in[2], 0, 0), y = run_at(&c->out[0], row, 0);
    int64_t n = c->in[0].cols;
    for (int64_t j = col; j < end; j += TR_LANES) {
        float lane[TR_LANES] = { 0 };
        for (int64_t l = 0; l < tr_min64(TR_LANES, end - j); l++) {
            struct run w = run_at(&c->in[1], j + l, 0);
            vf sum[TR_SUM_VECS] = { 0 };
            for (int64_t i = 0; i < n; i += TR_SUM_LANES)
#pragma GCC unroll 16
                for (int k = 0; k < TR_SUM_VECS; k++)
                    sum[k] += v_load(x, i + k * TR_LANES, n) * v_load(w, i + k * TR_LANES, n);
            lane[l] = v_sum(sum);
        }
        vf dots = v_load((struct run){ .p = (char *)lane }, 0, TR_LANES);
        v_store(y, j, end, bias.p ? dots + v_load(bias, j, end) : dots);
    }
}

/* The same of W stored (in, out): the sum of its rows, each times an element of x. */
static void sum_piece(const struct tr_call *c, int64_t row, int64_t col, int64_t end)
{
    struct run bias = run_at(&c->in[2], 0, 0);
    struct stripe s;
    stripe_load(&s, bias, col, end, bias.p != NULL);
    for (int64_t k = 0; k < c->in[0].cols; k++) {
        struct run w = run_at(&c->in[1], k, 0);
        vf x = v_set(v_load(run_at(&c->in[0], row, k), 0, 1)[0]), *sum = s.sum;
        for (int64_t j = col; j < end; j += TR_LANES)
            *sum++ += x * v_load(w, j, end);
    }
    stripe_store(&s, run_at(&c->out[0], row, 0), col, end);
}

static void linear_row(const struct tr_call *c)
{
    enum { DOTS = 64, SUMS = TR_STRIPE / 2 };
    bool is_in_out = c->attr.weight_is_in_out;
    tr_fast_run(c, 1, c->out[0].cols, is_in_out ? SUMS : DOTS, is_in_out ? sum_piece : dot_piece);
}

void TR_FAST(linear)(const struct tr_call *c)
{
    if (c->attr.is_decoded && c->in[0].rows == 1) {
        linear_row(c);
        return;
    }
    struct tr_gemm g = gemm_of(&c->in[0], &c->in[1], &c->out[0], c->in[0].cols);
    g.b_t = !c->attr.weight_is_in_out;
    g.bias = c->in[2].data;
    g.bias_dtype = c->in[2].dtype;
    tr_gemm(&g, c->pool, c->scratch);
}

static void addend_piece(const struct tr_call *c, int64_t row, int64_t col, int64_t end)
{
    struct run from = run_at(&c->in[2], row, 0), to = run_at(&c->out[0], row, 0);
    for (int64_t j = col; j < end; j += TR_LANES)
        v_store(to, j, end, v_load(from, j, end));
}

void TR_FAST(linear_dx)(const struct tr_call *c)
{
    const struct tr_view *addend = &c->in[2], *dx = &c->out[0];
    struct tr_gemm g = gemm_of(&c->in[0], &c->in[1], dx, c->in[0].cols);
    g.b_t = c->attr.weight_is_in_out;
    g.accumulate = addend->data != NULL;
    if (g.accumulate && addend->data != dx->data)
        tr_fast_run(c, dx->rows, dx->cols, TR_PIECE, addend_piece);
    tr_gemm(&g, c->pool, c->scratch);
}

static void bias_grad_stripe(const struct tr_call *c, int64_t row, int64_t col, int64_t end)
{
    const struct tr_view *dy = &c->in[0];
    struct run db = run_at(&c->out[1], row, 0);
    struct stripe s;
    stripe_load(&s, db, col, end, c->accumulate[1]);
    for (int64_t n = 0; n < dy->rows; n++) {
        struct run d = run_at(dy, n, 0);
        vf *sum = s.sum;
        for (int64_t j = col; j < end; j += TR_LANES)
            *sum++ += v_load(d, j, end);
    }
    stripe_store(&s, db, col, end);
}

void TR_FAST(linear_dw)(const struct tr_call *c)
{
    const struct tr_view *dy = &c->in[0], *x = &c->in[1];
    bool is_in_out = c->attr.weight_is_in_out;
    if (c->out[0].data) {
        struct tr_gemm g = gemm_of(is_in_out ? x : dy, is_in_out ? dy : x, &c->out[0], x->rows);
        g.a_t = true;
        g.accumulate = c->accumulate[0];
        tr_gemm(&g, c->pool, c->scratch);
    }
    if (c->out[1].data)
        tr_fast_run_stripes(c, dy->cols, bias_grad_stripe);
}

/* Row of the table that token n reads, or -1: outside this shard of the vocabulary. */
static int64_t embed_row(const struct tr_call *c, int64_t n, int64_t n_rows)
{
    const struct tr_view *index = &c->in[0];
    int64_t row = (int64_t)((const int32_t *)index->data)[n * index->ld] + c->attr.index_offset;
    return row >= 0 && row < n_rows ? row : -1;
}

static void embed_piece(const struct tr_call *c, int64_t row, int64_t col, int64_t end)
{
    int64_t from = embed_row(c, row, c->in[1].rows);
    struct run w = run_at(&c->in[1], tr_max64(from, 0), 0), y = run_at(&c->out[0], row, 0);
    float factor = v_factor(c);
    for (int64_t j = col; j < end; j += TR_LANES)
        v_store(y, j, end, from < 0 ? v_set(0.0f) : v_load(w, j, end) * factor);
}

/* The same from a table stored (D, V): of an adapter, so D is small. */
static void embed_turned_piece(const struct tr_call *c, int64_t row, int64_t col, int64_t end)
{
    int64_t from = embed_row(c, row, c->in[1].cols);
    for (int64_t j = col; j < end; j++) {
        vf x = from < 0 ? v_set(0.0f) : v_load(run_at(&c->in[1], j, from), 0, 1) * v_factor(c);
        v_store(run_at(&c->out[0], row, j), 0, 1, x);
    }
}

void TR_FAST(embed)(const struct tr_call *c)
{
    bool is_turned = c->attr.weight_is_in_out;
    tr_fast_run(c, c->out[0].rows, c->out[0].cols, TR_PIECE, is_turned ? embed_turned_piece : embed_piece);
}

/* The tokens of each table row as a list in token order: scratch holds the first token of each row, then the next token
 * of each token, -1 at the end. */
static void list_tokens(const struct tr_call *c, int64_t n_rows)
{
    int32_t *first = c->scratch, *next = first + n_rows;
    memset(first, 0xff, (size_t)n_rows * sizeof *first);
    for (int64_t n = c->in[1].rows - 1; n >= 0; n--) {
        int64_t row = embed_row(c, n, n_rows);
        if (row >= 0) {
            next[n] = first[row];
            first[row] = (int32_t)n;
        }
    }
}

static void embed_dw_piece(const struct tr_call *c, int64_t row, int64_t col, int64_t end)
{
    const int32_t *first = c->scratch, *next = first + c->out[0].rows;
    struct run dw = run_at(&c->out[0], row, 0);
    float factor = v_factor(c);
    if (first[row] < 0 && c->accumulate[0])
        return;
    struct stripe s;
    stripe_load(&s, dw, col, end, c->accumulate[0]);
    for (int64_t n = first[row]; n >= 0; n = next[n]) {
        struct run dy = run_at(&c->in[1], n, 0);
        vf *sum = s.sum;
        for (int64_t j = col; j < end; j += TR_LANES)
            *sum++ += v_load(dy, j, end) * factor;
    }
    stripe_store(&s, dw, col, end);
}

static void embed_dw_turned_piece(const struct tr_call *c, int64_t row, int64_t col, int64_t end)
{
    const int32_t *first = c->scratch, *next = first + c->out[0].cols;
    if (first[row] < 0 && c->accumulate[0])
        return;
    for (int64_t j = col; j < end; j++) {
        struct run dw = run_at(&c->out[0], j, row);
        vf sum = c->accumulate[0] ? v_load(dw, 0, 1) : v_set(0.0f);
        for (int64_t n = first[row]; n >= 0; n = next[n])
            sum += v_load(run_at(&c->in[1], n, j), 0, 1) * v_factor(c);
        v_store(dw, 0, 1, sum);
    }
}

void TR_FAST(embed_dw)(const struct tr_call *c)
{
    bool is_turned = c->attr.weight_is_in_out;
    int64_t n_rows = is_turned ? c->out[0].cols : c->out[0].rows;
    list_tokens(c, n_rows);
    tr_fast_run(c, n_rows, c->in[1].cols, TR_STRIPE, is_turned ? embed_dw_turned_piece : embed_dw_piece);
}
