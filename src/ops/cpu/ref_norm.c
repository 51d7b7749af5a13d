/* ref_norm.c - the definition of layernorm, rmsnorm (whole rows or groups of columns), rope and regroup. */
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
            tr_ref_put(y, n, j, (tr_ref_get(x, n, j) - mean) * rstd * tr_ref_get(w, 0, j) + tr_ref_opt(b, 0, j));
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
    for (int64_t j = 0; c->out[1].data && j < x->cols; j++) {
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
    int64_t half = table->cols / 2, step = c->attr.is_interleaved ? 2 : 1, apart = c->attr.is_interleaved ? 1 : half;
    for (int64_t n = 0; n < x->rows; n++) {
        int64_t p = tr_ref_int(&c->in[1], n);
        for (int64_t head = 0; head < x->cols; head += c->attr.head_dim) {
            for (int64_t i = 0; i < half; i++) {
                int64_t j = head + step * i;
                double cosp = tr_ref_get(table, p, i), sinp = tr_ref_get(table, p, half + i);
                double a = tr_ref_get(x, n, j), b = tr_ref_get(x, n, j + apart);
                sinp = c->attr.inverse ? -sinp : sinp;
                tr_ref_put(y, n, j, a * cosp - b * sinp);
                tr_ref_put(y, n, j + apart, b * cosp + a * sinp);
            }
            for (int64_t j = head + 2 * half; j < head + c->attr.head_dim; j++)
                tr_ref_put(y, n, j, tr_ref_get(x, n, j));
        }
    }
}

void tr_ref_REGROUP(const struct tr_call *c)
{
    const struct tr_view *x = &c->in[0], *y = &c->out[0];
    int64_t d = c->attr.head_dim, n_q = c->attr.n_heads_q / c->attr.n_heads_kv, groups = x->cols / d / (n_q + 2);
    for (int64_t n = 0; n < x->rows; n++)
        for (int64_t g = 0; g < groups; g++)
            for (int64_t h = 0; h < n_q + 2; h++) {
                int64_t grouped = g * (n_q + 2) + h, apart = h < n_q ? g * n_q + h : h * groups + g;
                for (int64_t j = 0; j < d; j++)
                    if (c->attr.inverse)
                        tr_ref_put(y, n, grouped * d + j, tr_ref_get(x, n, apart * d + j));
                    else
                        tr_ref_put(y, n, apart * d + j, tr_ref_get(x, n, grouped * d + j));
            }
}
