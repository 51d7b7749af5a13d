/* ref_linear.c - the definition of embed and linear. */
#include "ops/cpu/ref.h"

/* Row of W that token n reads, or -1: outside this shard of the vocabulary. */
static int64_t embed_row(const struct tr_call *c, int64_t n, int64_t n_rows)
{
    int64_t row = tr_ref_int(&c->in[0], n) + c->attr.index_offset;
    return row >= 0 && row < n_rows ? row : -1;
}

void tr_ref_EMBED(const struct tr_call *c)
{
    const struct tr_view *w = &c->in[1], *y = &c->out[0];
    bool is_turned = c->attr.weight_is_in_out;
    for (int64_t n = 0; n < y->rows; n++) {
        int64_t row = embed_row(c, n, is_turned ? w->cols : w->rows);
        for (int64_t j = 0; j < y->cols; j++) {
            double x = row < 0 ? 0.0 : is_turned ? tr_ref_get(w, j, row) : tr_ref_get(w, row, j);
            tr_ref_put(y, n, j, tr_ref_factor(c) * x);
        }
    }
}

void tr_ref_EMBED_DW(const struct tr_call *c)
{
    const struct tr_view *dy = &c->in[1], *dw = &c->out[0];
    bool is_turned = c->attr.weight_is_in_out;
    int64_t n_rows = is_turned ? dw->cols : dw->rows;
    for (int64_t row = 0; row < n_rows; row++) {
        for (int64_t j = 0; j < dy->cols; j++) {
            double sum = 0;
            for (int64_t n = 0; n < dy->rows; n++)
                if (embed_row(c, n, n_rows) == row)
                    sum += tr_ref_get(dy, n, j);
            tr_ref_put_acc(c, 0, is_turned ? j : row, is_turned ? row : j, tr_ref_factor(c) * sum);
        }
    }
}

/* Weight of input i in output o, in either storage order. */
static double weight(const struct tr_call *c, const struct tr_view *w, int64_t o, int64_t i)
{
    return c->attr.weight_is_in_out ? tr_ref_get(w, i, o) : tr_ref_get(w, o, i);
}

void tr_ref_LINEAR(const struct tr_call *c)
{
    const struct tr_view *x = &c->in[0], *w = &c->in[1], *bias = &c->in[2], *y = &c->out[0];
    for (int64_t n = 0; n < y->rows; n++) {
        for (int64_t o = 0; o < y->cols; o++) {
            double sum = tr_ref_opt(bias, 0, o);
            for (int64_t i = 0; i < x->cols; i++)
                sum += tr_ref_get(x, n, i) * weight(c, w, o, i);
            tr_ref_put(y, n, o, sum);
        }
    }
}

void tr_ref_LINEAR_DX(const struct tr_call *c)
{
    const struct tr_view *dy = &c->in[0], *w = &c->in[1], *addend = &c->in[2], *dx = &c->out[0];
    for (int64_t n = 0; n < dx->rows; n++) {
        for (int64_t i = 0; i < dx->cols; i++) {
            double sum = tr_ref_opt(addend, n, i);
            for (int64_t o = 0; o < dy->cols; o++)
                sum += tr_ref_get(dy, n, o) * weight(c, w, o, i);
            tr_ref_put(dx, n, i, sum);
        }
    }
}

void tr_ref_LINEAR_ADD(const struct tr_call *c)
{
    const struct tr_view *x = &c->in[0], *w = &c->in[1], *bias = &c->in[2], *addend = &c->in[3], *y = &c->out[0];
    for (int64_t n = 0; n < y->rows; n++) {
        for (int64_t o = 0; o < y->cols; o++) {
            double sum = tr_ref_opt(bias, 0, o) + tr_ref_get(addend, n, o);
            for (int64_t i = 0; i < x->cols; i++)
                sum += tr_ref_get(x, n, i) * weight(c, w, o, i);
            tr_ref_put(y, n, o, sum);
        }
    }
}

/* The activation reads the rounded, stored value, because the backward reads that value too and must match this
 * forward. */
void tr_ref_LINEAR_ACT(const struct tr_call *c)
{
    struct tr_call linear = *c, act = *c;
    linear.out[0] = c->out[1];
    tr_ref_LINEAR(&linear);
    act.in[0] = c->out[1];
    tr_ref_ACT(&act);
}

void tr_ref_LINEAR_DX_ACT(const struct tr_call *c)
{
    const struct tr_view *dy = &c->in[0], *w = &c->in[1], *pre = &c->in[2], *dx = &c->out[0];
    for (int64_t n = 0; n < dx->rows; n++) {
        for (int64_t i = 0; i < dx->cols; i++) {
            double sum = 0;
            for (int64_t o = 0; o < dy->cols; o++)
                sum += tr_ref_get(dy, n, o) * weight(c, w, o, i);
            tr_ref_put(dx, n, i, sum * tr_ref_act_slope(c->attr.act, tr_ref_get(pre, n, i)));
        }
    }
}

void tr_ref_LINEAR_DW(const struct tr_call *c)
{
    const struct tr_view *dy = &c->in[0], *x = &c->in[1];
    bool in_out = c->attr.weight_is_in_out;
    for (int64_t o = 0; o < dy->cols; o++) {
        for (int64_t i = 0; i < x->cols; i++) {
            double sum = 0;
            for (int64_t n = 0; n < x->rows; n++)
                sum += tr_ref_get(dy, n, o) * tr_ref_get(x, n, i);
            tr_ref_put_acc(c, 0, in_out ? i : o, in_out ? o : i, sum);
        }
        double sum = 0;
        for (int64_t n = 0; n < x->rows; n++)
            sum += tr_ref_get(dy, n, o);
        tr_ref_put_acc(c, 1, 0, o, sum);
    }
}

void tr_ref_DEQUANT(const struct tr_call *c)
{
    const struct tr_view *w = &c->out[0];
    for (int64_t o = 0; o < w->rows; o++)
        for (int64_t i = 0; i < w->cols; i++) {
            float x;
            tr_packed_decode((enum tr_packed)c->attr.packed, c->in[0].data, o * w->cols + i, 1, &x, TR_F32);
            tr_ref_put(w, o, i, (double)x);
        }
}
