/* ref_norm.c - the definition of layernorm, rmsnorm (whole rows or groups of columns) and rope. */
#include "ops/cpu/ref.h"
#include <math.h>

void tr_ref_LAYERNORM(const struct tr_call *c)
{
    const struct tr_view *x = &c->in[0], *w = &c->in[1], *b = &c->in[2], *y = &c->out[0], *stats = &c->out[1];
    for (int64_t n = 0; n < x->rows; n++) {
        double mean = 0, var = 0;
        for (int64_t j = 0; j < x->cols; j++)
            mean += tr_ref_get(x, n, j) / (double)x->cols;
        for (int64_t j = 0; j < x->cols; j++)
            var += pow(tr_ref_get(x, n, j) - mean, 2) / (double)x->cols;
        double rstd = 1.0 / sqrt(var + (double)c->attr.eps);
        for (int64_t j = 0; j < x->cols; j++)
            tr_ref_put(y, n, j, (tr_ref_get(x, n, j) - mean) * rstd * tr_ref_get(w, 0, j) + tr_ref_get(b, 0, j));
        tr_ref_put(stats, n, 0, mean);
        tr_ref_put(stats, n, 1, rstd);
    }
}

/* With h = (x - mean) * rstd and g = dy * w: dx = rstd * (g - mean(g) - h * mean(g h)), dw = sum dy h, db = sum dy. */
void tr_ref_LAYERNORM_BWD(const struct tr_call *c)
{
    const struct tr_view *dy = &c->in[0], *x = &c->in[1], *w = &c->in[2], *stats = &c->in[3], *addend = &c->in[4];
    for (int64_t n = 0; n < x->rows; n++) {
        double mean = tr_ref_get(stats, n, 0), rstd = tr_ref_get(stats, n, 1), mean_g = 0, mean_gh = 0;
        for (int64_t j = 0; j < x->cols; j++) {
            double g = tr_ref_get(dy, n, j) * tr_ref_get(w, 0, j);
            mean_g += g / (double)x->cols;
            mean_gh += g * (tr_ref_get(x, n, j) - mean) * rstd / (double)x->cols;
        }
        for (int64_t j = 0; j < x->cols; j++) {
            double g = tr_ref_get(dy, n, j) * tr_ref_get(w, 0, j), h = (tr_ref_get(x, n, j) - mean) * rstd;
            tr_ref_put(&c->out[0], n, j, rstd * (g - mean_g - h * mean_gh) + tr_ref_opt(addend, n, j));
        }
    }
    for (int64_t j = 0; j < x->cols; j++) {
        double dw = 0, db = 0;
        for (int64_t n = 0; n < x->rows; n++) {
            double h = (tr_ref_get(x, n, j) - tr_ref_get(stats, n, 0)) * tr_ref_get(stats, n, 1);
            dw += tr_ref_get(dy, n, j) * h;
            db += tr_ref_get(dy, n, j);
        }
        tr_ref_put_acc(c, 1, 0, j, dw);
        tr_ref_put_acc(c, 2, 0, j, db);
    }
}

static int64_t group_of(const struct tr_call *c, int64_t n_cols)
{
    return c->attr.group ? c->attr.group : n_cols;
}

void tr_ref_RMSNORM(const struct tr_call *c)
{
    const struct tr_view *x = &c->in[0], *w = &c->in[1];
    int64_t group = group_of(c, x->cols);
    for (int64_t n = 0; n < x->rows; n++) {
        for (int64_t g = 0; g < x->cols / group; g++) {
            double mean_sq = 0;
            for (int64_t j = 0; j < group; j++)
                mean_sq += pow(tr_ref_get(x, n, g * group + j), 2) / (double)group;
            double rstd = 1.0 / sqrt(mean_sq + (double)c->attr.eps);
            for (int64_t j = 0; j < group; j++) {
                double factor = (double)c->attr.weight_offset + tr_ref_get(w, 0, j);
                tr_ref_put(&c->out[0], n, g * group + j, tr_ref_get(x, n, g * group + j) * rstd * factor);
            }
            tr_ref_put(&c->out[1], n, g, rstd);
        }
    }
}

/* With h = x * rstd and f = offset + w, per group: dx = rstd * (dy f - h * mean(dy f h)), dw = sum dy h. */
void tr_ref_RMSNORM_BWD(const struct tr_call *c)
{
    const struct tr_view *dy = &c->in[0], *x = &c->in[1], *w = &c->in[2], *rstds = &c->in[3], *addend = &c->in[4];
    int64_t group = group_of(c, x->cols), n_groups = x->cols / group;
    double offset = (double)c->attr.weight_offset;
    for (int64_t j = 0; j < group; j++) {
        double dw = 0;
        for (int64_t n = 0; n < x->rows; n++)
            for (int64_t g = 0, col = j; g < n_groups; g++, col += group)
                dw += tr_ref_get(dy, n, col) * tr_ref_get(x, n, col) * tr_ref_get(rstds, n, g);
        tr_ref_put_acc(c, 1, 0, j, dw);
    }
    for (int64_t n = 0; n < x->rows; n++) {
        for (int64_t g = 0; g < n_groups; g++) {
            double rstd = tr_ref_get(rstds, n, g), mean = 0;
            for (int64_t j = 0, col = g * group; j < group; j++, col++)
                mean += tr_ref_get(dy, n, col) * (offset + tr_ref_get(w, 0, j)) * tr_ref_get(x, n, col) * rstd /
                        (double)group;
            for (int64_t j = 0, col = g * group; j < group; j++, col++) {
                double gj = tr_ref_get(dy, n, col) * (offset + tr_ref_get(w, 0, j));
                double dx = rstd * (gj - tr_ref_get(x, n, col) * rstd * mean);
                tr_ref_put(&c->out[0], n, col, dx + tr_ref_opt(addend, n, col));
            }
        }
    }
}

void tr_ref_ROPE(const struct tr_call *c)
{
    const struct tr_view *x = &c->in[0], *table = &c->in[2], *y = &c->out[0];
    int64_t half = table->cols / 2;
    for (int64_t n = 0; n < x->rows; n++) {
        int64_t p = tr_ref_int(&c->in[1], n);
        for (int64_t col = 0; col < x->cols; col++) {
            int64_t i = col % c->attr.head_dim;
            if (i >= 2 * half) {
                tr_ref_put(y, n, col, tr_ref_get(x, n, col));
            } else if (i < half) {
                double cosp = tr_ref_get(table, p, i), sinp = tr_ref_get(table, p, half + i);
                double a = tr_ref_get(x, n, col), b = tr_ref_get(x, n, col + half);
                sinp = c->attr.inverse ? -sinp : sinp;
                tr_ref_put(y, n, col, a * cosp - b * sinp);
                tr_ref_put(y, n, col + half, b * cosp + a * sinp);
            }
        }
    }
}
