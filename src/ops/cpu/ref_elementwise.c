/* ref_elementwise.c - the definition of activations, gated units, add, scale, dropout, cast and the two sums. */
#include "ops/cpu/dropout.h"
#include "ops/cpu/ref.h"
#include <math.h>

static const double SQRT_HALF = 0.70710678118654752440, INV_SQRT_2PI = 0.39894228040143267794,
                    SQRT_2_OVER_PI = 0.79788456080286535588, GELU_CUBIC = 0.044715;

static double sigmoid(double x)
{
    return 1.0 / (1.0 + exp(-x));
}

static double act(int32_t kind, double x)
{
    switch (kind) {
    case TR_ACT_RELU:
        return x < 0 ? 0 : x; /* NaN stays */
    case TR_ACT_GELU:
        return 0.5 * x * (1.0 + erf(x * SQRT_HALF));
    case TR_ACT_GELU_TANH:
        return 0.5 * x * (1.0 + tanh(SQRT_2_OVER_PI * (x + GELU_CUBIC * x * x * x)));
    case TR_ACT_SILU:
        return x * sigmoid(x);
    default:
        return x;
    }
}

double tr_ref_act_slope(int32_t kind, double x)
{
    double t;
    switch (kind) {
    case TR_ACT_RELU:
        return x > 0 ? 1 : 0;
    case TR_ACT_GELU:
        return 0.5 * (1.0 + erf(x * SQRT_HALF)) + x * INV_SQRT_2PI * exp(-0.5 * x * x);
    case TR_ACT_GELU_TANH:
        t = tanh(SQRT_2_OVER_PI * (x + GELU_CUBIC * x * x * x));
        return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * SQRT_2_OVER_PI * (1.0 + 3.0 * GELU_CUBIC * x * x);
    case TR_ACT_SILU:
        return sigmoid(x) * (1.0 + x * (1.0 - sigmoid(x)));
    default:
        return 1;
    }
}

void tr_ref_ACT(const struct tr_call *c)
{
    const struct tr_view *y = &c->out[0];
    for (int64_t n = 0; n < y->rows; n++)
        for (int64_t j = 0; j < y->cols; j++)
            tr_ref_put(y, n, j, act(c->attr.act, tr_ref_get(&c->in[0], n, j)));
}

void tr_ref_ACT_BWD(const struct tr_call *c)
{
    const struct tr_view *dx = &c->out[0];
    for (int64_t n = 0; n < dx->rows; n++)
        for (int64_t j = 0; j < dx->cols; j++)
            tr_ref_put(dx, n, j,
                       tr_ref_get(&c->in[0], n, j) * tr_ref_act_slope(c->attr.act, tr_ref_get(&c->in[1], n, j)));
}

void tr_ref_GLU(const struct tr_call *c)
{
    const struct tr_view *y = &c->out[0];
    for (int64_t n = 0; n < y->rows; n++)
        for (int64_t j = 0; j < y->cols; j++)
            tr_ref_put(y, n, j, act(c->attr.act, tr_ref_get(&c->in[0], n, j)) * tr_ref_get(&c->in[1], n, j));
}

void tr_ref_GLU_BWD(const struct tr_call *c)
{
    const struct tr_view *dg = &c->out[0], *du = &c->out[1];
    for (int64_t n = 0; n < dg->rows; n++) {
        for (int64_t j = 0; j < dg->cols; j++) {
            double dy = tr_ref_get(&c->in[0], n, j), g = tr_ref_get(&c->in[1], n, j), u = tr_ref_get(&c->in[2], n, j);
            tr_ref_put(dg, n, j, dy * u * tr_ref_act_slope(c->attr.act, g));
            tr_ref_put(du, n, j, dy * act(c->attr.act, g));
        }
    }
}

void tr_ref_ADD(const struct tr_call *c)
{
    const struct tr_view *y = &c->out[0];
    for (int64_t n = 0; n < y->rows; n++)
        for (int64_t j = 0; j < y->cols; j++)
            tr_ref_put(y, n, j, tr_ref_get(&c->in[0], n, j) + tr_ref_get(&c->in[1], n, j));
}

void tr_ref_SCALE(const struct tr_call *c)
{
    const struct tr_view *y = &c->out[0];
    for (int64_t n = 0; n < y->rows; n++)
        for (int64_t j = 0; j < y->cols; j++)
            tr_ref_put(y, n, j, tr_ref_factor(c) * tr_ref_get(&c->in[0], n, j));
}

void tr_ref_DROPOUT(const struct tr_call *c)
{
    const struct tr_view *y = &c->out[0];
    struct tr_dropout d = tr_dropout_init(&c->attr, c->in[3].data);
    for (int64_t n = 0; n < y->rows; n++) {
        uint32_t token = tr_drop_token(tr_ref_int(&c->in[1], n), (int32_t)tr_ref_int(&c->in[2], n));
        for (int64_t j = 0; j < y->cols; j++) {
            struct tr_philox eight = tr_dropout_token8(&d, token, c->attr.first + j);
            double factor = (double)tr_dropout_keep(&d, &eight, tr_drop_at_of_column(c->attr.first + j));
            tr_ref_put(y, n, j, factor * tr_ref_get(&c->in[0], n, j));
        }
    }
}

void tr_ref_NOISE(const struct tr_call *c)
{
    const struct tr_view *y = &c->out[0];
    struct tr_dropout d = tr_noise_init(&c->attr, c->in[3].data);
    for (int64_t n = 0; n < y->rows; n++) {
        int64_t sample = tr_ref_int(&c->in[1], n), position = tr_ref_int(&c->in[2], n);
        for (int64_t j = 0; j < y->cols; j++) {
            struct tr_philox four = tr_noise_token4(&d, sample, position, c->attr.first + j);
            double word = (double)(int32_t)four.v[(c->attr.first + j) & 3];
            tr_ref_put(y, n, j, tr_ref_get(&c->in[0], n, j) + word * (double)d.scale);
        }
    }
}

void tr_ref_CAST(const struct tr_call *c)
{
    const struct tr_view *y = &c->out[0];
    for (int64_t n = 0; n < y->rows; n++)
        for (int64_t j = 0; j < y->cols; j++)
            tr_ref_put(y, n, j, tr_ref_get(&c->in[0], n, j));
}

void tr_ref_ZERO(const struct tr_call *c)
{
    const struct tr_view *y = &c->out[0];
    for (int64_t n = 0; n < y->rows; n++)
        for (int64_t j = 0; j < y->cols; j++)
            tr_ref_put(y, n, j, 0);
}

/* Collectives of one rank: they copy. */
void tr_ref_ALL_REDUCE(const struct tr_call *c)
{
    tr_ref_CAST(c);
}

void tr_ref_ALL_GATHER(const struct tr_call *c)
{
    tr_ref_CAST(c);
}

void tr_ref_REDUCE_SCATTER(const struct tr_call *c)
{
    tr_ref_CAST(c);
}

void tr_ref_ALL_TO_ALL(const struct tr_call *c)
{
    tr_ref_CAST(c);
}

void tr_ref_COPY(const struct tr_call *c)
{
    tr_ref_CAST(c);
}

void tr_ref_SUM(const struct tr_call *c)
{
    for (int64_t j = 0; j < c->in[0].cols; j++) {
        double sum = 0;
        for (int64_t n = 0; n < c->in[0].rows; n++)
            sum += tr_ref_get(&c->in[0], n, j);
        tr_ref_put_acc(c, 0, 0, j, sum);
    }
}

void tr_ref_SUMSQ(const struct tr_call *c)
{
    double sum = 0;
    for (int64_t j = 0; j < c->in[0].cols; j++)
        sum += pow(tr_ref_get(&c->in[0], 0, j), 2);
    tr_ref_put_acc(c, 0, 0, 0, sum);
}
