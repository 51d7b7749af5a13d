/* ref_dora.c - the definition of the ops of DoRA. */
#include "ops/cpu/ref.h"
#include <math.h>

void tr_ref_ROW_SQUARES(const struct tr_call *c)
{
    const struct tr_view *w = &c->in[0], *a = &c->in[1], *b = &c->in[2], *a0 = &c->in[3], *b0 = &c->in[4],
                         *squares = &c->out[0];
    for (int64_t o = 0; o < squares->cols; o++) {
        double sum = 0;
        for (int64_t i = 0; i < a->cols; i++) {
            double delta = 0;
            for (int64_t k = 0; k < a->rows; k++)
                delta += tr_ref_get(b, o, k) * tr_ref_get(a, k, i);
            for (int64_t k = 0; a0->data && k < a0->rows; k++)
                delta -= tr_ref_get(b0, o, k) * tr_ref_get(a0, k, i);
            double x = c->attr.weight_is_in_out ? tr_ref_get(w, i, o) : tr_ref_get(w, o, i);
            x += tr_ref_factor(c) * delta;
            sum += x * x;
        }
        tr_ref_put(squares, 0, o, sum);
    }
}

void tr_ref_COL_SCALE(const struct tr_call *c)
{
    const struct tr_view *x = &c->in[0], *y = &c->out[0];
    for (int64_t n = 0; n < y->rows; n++)
        for (int64_t j = 0; j < y->cols; j++) {
            double scale = tr_ref_get(&c->in[1], 0, j) / sqrt(tr_ref_get(&c->in[2], 0, j));
            tr_ref_put(y, n, j, tr_ref_get(x, n, j) * scale + tr_ref_opt(&c->in[3], 0, j));
        }
}

void tr_ref_COL_SCALE_BWD(const struct tr_call *c)
{
    const struct tr_view *dy = &c->in[0], *x = &c->in[1];
    for (int64_t j = 0; j < dy->cols; j++) {
        double norm = sqrt(tr_ref_get(&c->in[3], 0, j)), m = tr_ref_get(&c->in[2], 0, j), dm = 0, db = 0;
        for (int64_t n = 0; n < dy->rows; n++) {
            double d = tr_ref_get(dy, n, j);
            dm += d * tr_ref_get(x, n, j) / norm;
            db += d;
            tr_ref_put(&c->out[0], n, j, d * m / norm);
        }
        tr_ref_put_acc(c, 1, 0, j, dm);
        tr_ref_put_acc(c, 2, 0, j, db);
    }
}
