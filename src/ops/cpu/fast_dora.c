/* fast_dora.c - the ops of DoRA. The adapted weight is made a few columns of one row at a time and never stored. */
#include "ops/cpu/fast.h"
#include "ops/cpu/simd.h"

enum { PASS = TR_SUM_VECS * TR_LANES }; /* columns that are in registers at a time: the same for every width */

static float element(const struct tr_view *v, int64_t row, int64_t col)
{
    return v_load(run_at(v, row, col), 0, 1)[0];
}

/* Columns [i, i + TR_LANES) of row o of W. */
static vf weight_lanes(const struct tr_call *c, int64_t o, int64_t i, int64_t n_in)
{
    const struct tr_view *w = &c->in[0];
    vf x = v_set(0.0f);
    if (!c->attr.weight_is_in_out)
        return v_load(run_at(w, o, 0), i, n_in);
    for (int l = 0; l < TR_LANES && i + l < n_in; l++)
        x[l] = element(w, i + l, o);
    return x;
}

/* Columns [i, i + PASS) of row o of B A. */
static void product_lanes(const struct tr_view *b, const struct tr_view *a, int64_t o, int64_t i, vf *out)
{
    int64_t n_in = a->cols;
    for (int q = 0; q < TR_SUM_VECS; q++)
        out[q] = v_set(0.0f);
    for (int64_t k = 0; k < a->rows; k++) {
        vf bk = v_set(element(b, o, k));
        struct run ak = run_at(a, k, 0);
        for (int q = 0; q < TR_SUM_VECS; q++)
            if (i + q * TR_LANES < n_in)
                out[q] += bk * v_load(ak, i + q * TR_LANES, n_in);
    }
}

static void row_squares_piece(const struct tr_call *c, int64_t o, int64_t col, int64_t end)
{
    bool has_start = c->in[3].data;
    int64_t n_in = c->in[1].cols;
    float factor = v_factor(c);
    vf sum[TR_SUM_VECS];
    (void)col;
    (void)end;
    for (int q = 0; q < TR_SUM_VECS; q++)
        sum[q] = v_set(0.0f);
    for (int64_t i = 0; i < n_in; i += PASS) {
        vf delta[TR_SUM_VECS], start[TR_SUM_VECS];
        product_lanes(&c->in[2], &c->in[1], o, i, delta);
        if (has_start) { /* a sum of its own: where nothing has been learnt, the difference is zero */
            product_lanes(&c->in[4], &c->in[3], o, i, start);
            for (int q = 0; q < TR_SUM_VECS; q++)
                delta[q] -= start[q];
        }
        for (int q = 0; q < TR_SUM_VECS; q++) {
            if (i + q * TR_LANES >= n_in)
                break;
            vf x = weight_lanes(c, o, i + q * TR_LANES, n_in) + delta[q] * factor;
            sum[q] += x * x;
        }
    }
    ((float *)c->out[0].data)[o] = v_sum(sum);
}

void TR_FAST(row_squares)(const struct tr_call *c)
{
    tr_fast_run(c, c->out[0].cols, 1, 1, row_squares_piece);
}

static void col_scale_piece(const struct tr_call *c, int64_t row, int64_t col, int64_t end)
{
    struct run x = run_at(&c->in[0], row, 0), m = run_at(&c->in[1], 0, 0), squares = run_at(&c->in[2], 0, 0);
    struct run y = run_at(&c->out[0], row, 0);
    for (int64_t j = col; j < end; j += TR_LANES) {
        vf r = v_load(x, j, end) * (v_load(m, j, end) / v_sqrt(v_load_or(squares, j, end, 1.0f)));
        if (c->in[3].data)
            r += v_load(run_at(&c->in[3], 0, 0), j, end);
        v_store(y, j, end, r);
    }
}

void TR_FAST(col_scale)(const struct tr_call *c)
{
    tr_fast_run(c, c->out[0].rows, c->out[0].cols, TR_PIECE, col_scale_piece);
}

static void col_scale_dx_piece(const struct tr_call *c, int64_t row, int64_t col, int64_t end)
{
    struct run dy = run_at(&c->in[0], row, 0), m = run_at(&c->in[2], 0, 0), squares = run_at(&c->in[3], 0, 0);
    struct run dx = run_at(&c->out[0], row, 0);
    for (int64_t j = col; j < end; j += TR_LANES)
        v_store(dx, j, end, v_load(dy, j, end) * (v_load(m, j, end) / v_sqrt(v_load_or(squares, j, end, 1.0f))));
}

static void col_scale_dm_stripe(const struct tr_call *c, int64_t row, int64_t col, int64_t end)
{
    struct run squares = run_at(&c->in[3], 0, 0), dm = run_at(&c->out[1], row, 0);
    struct stripe s;
    stripe_load(&s, dm, col, end, c->accumulate[1]);
    for (int64_t n = 0; n < c->in[0].rows; n++) {
        struct run dy = run_at(&c->in[0], n, 0), x = run_at(&c->in[1], n, 0);
        vf *sum = s.sum;
        for (int64_t j = col; j < end; j += TR_LANES)
            *sum++ += v_load(dy, j, end) * v_load(x, j, end) / v_sqrt(v_load_or(squares, j, end, 1.0f));
    }
    stripe_store(&s, dm, col, end);
}

static void col_scale_db_stripe(const struct tr_call *c, int64_t row, int64_t col, int64_t end)
{
    struct run db = run_at(&c->out[2], row, 0);
    struct stripe s;
    stripe_load(&s, db, col, end, c->accumulate[2]);
    for (int64_t n = 0; n < c->in[0].rows; n++) {
        struct run dy = run_at(&c->in[0], n, 0);
        vf *sum = s.sum;
        for (int64_t j = col; j < end; j += TR_LANES)
            *sum++ += v_load(dy, j, end);
    }
    stripe_store(&s, db, col, end);
}

void TR_FAST(col_scale_bwd)(const struct tr_call *c)
{
    const struct tr_view *dy = &c->in[0];
    if (c->out[1].data)
        tr_fast_run_stripes(c, dy->cols, col_scale_dm_stripe);
    if (c->out[2].data)
        tr_fast_run_stripes(c, dy->cols, col_scale_db_stripe);
    tr_fast_run(c, dy->rows, dy->cols, TR_PIECE, col_scale_dx_piece); /* last: dx may be where dy is */
}
