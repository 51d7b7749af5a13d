/* ref_adafactor.c - the definition of Adafactor, one element at a time, in double. */
#include "ops/adafactor.h"
#include "ops/cpu/ref.h"
#include <math.h>

static double *sums_of(const struct tr_call *c)
{
    return c->out[4].data;
}

static double gradient(const struct tr_call *c, int64_t i)
{
    return tr_ref_get(&c->in[0], 0, i) * (double)((const float *)c->in[1].data)[TR_STEP_CLIP];
}

void tr_ref_ADAFACTOR_SUMS(const struct tr_call *c)
{
    const struct tr_attr *a = &c->attr;
    double *s = sums_of(c), *row = s + TR_SUM_ROWS, *col = row + a->rows;
    for (int64_t i = 0; i < c->out[4].cols; i++)
        s[i] = 0;
    for (int64_t i = 0; i < c->in[0].cols; i++) {
        double p = tr_ref_get(&c->out[0], 0, i), g = gradient(c, i), u = g * g + (double)TR_ADAFACTOR_EPS;
        s[TR_SUM_P] += p * p;
        if (a->rows > 0) {
            row[(a->at + i) / a->cols] += u;
            col[(a->at + i) % a->cols] += u;
        }
    }
}

void tr_ref_ADAFACTOR_FACTORS(const struct tr_call *c)
{
    int64_t rows = c->out[2].cols, cols = c->out[3].cols;
    double *row = sums_of(c) + TR_SUM_ROWS, *col = row + rows, mean = 0;
    double beta2 = (double)((const float *)c->in[1].data)[TR_STEP_BETA2];
    for (int64_t i = 0; i < rows; i++) {
        tr_ref_put(&c->out[2], 0, i, beta2 * tr_ref_get(&c->out[2], 0, i) + (1 - beta2) * row[i] / (double)cols);
        mean += tr_ref_get(&c->out[2], 0, i) / (double)rows;
    }
    for (int64_t i = 0; i < rows; i++)
        row[i] = 1 / sqrt(tr_ref_get(&c->out[2], 0, i) / mean);
    for (int64_t i = 0; i < cols; i++) {
        tr_ref_put(&c->out[3], 0, i, beta2 * tr_ref_get(&c->out[3], 0, i) + (1 - beta2) * col[i] / (double)rows);
        col[i] = 1 / sqrt(tr_ref_get(&c->out[3], 0, i));
    }
}

static double direction(const struct tr_call *c, int64_t i)
{
    const struct tr_attr *a = &c->attr;
    const double *row = sums_of(c) + TR_SUM_ROWS, *col = row + a->rows;
    if (a->rows == 0)
        return gradient(c, i) / sqrt(tr_ref_get(&c->out[2], 0, i));
    return gradient(c, i) * row[(a->at + i) / a->cols] * col[(a->at + i) % a->cols];
}

void tr_ref_ADAFACTOR_NORM(const struct tr_call *c)
{
    double beta2 = (double)((const float *)c->in[1].data)[TR_STEP_BETA2], sum = 0;
    for (int64_t i = 0; i < c->in[0].cols; i++) {
        double g = gradient(c, i);
        if (c->attr.rows == 0)
            tr_ref_put(&c->out[2], 0, i,
                       beta2 * tr_ref_get(&c->out[2], 0, i) + (1 - beta2) * (g * g + (double)TR_ADAFACTOR_EPS));
        double d = direction(c, i);
        sum += d * d;
    }
    *(double *)c->out[5].data = sum;
}

void tr_ref_ADAFACTOR_APPLY(const struct tr_call *c)
{
    const float *s = c->in[1].data;
    double n = (double)c->attr.n_all, rms_p = sqrt(sums_of(c)[TR_SUM_P] / n);
    double rms_d = sqrt(*(const double *)c->out[5].data / n);
    double rate = (double)s[TR_STEP_LR] * (s[TR_STEP_ADJUST] > 0 ? fmax(TR_ADAFACTOR_LEAST, rms_p) : 1);
    double keep = 1 - rate * (c->attr.decay ? (double)s[TR_STEP_DECAY] : 0),
           step = rate / fmax(1, rms_d / TR_ADAFACTOR_CLIP);
    for (int64_t i = 0; i < c->in[0].cols; i++)
        tr_ref_put_p(c, i, keep * tr_ref_get(&c->out[0], 0, i) - step * direction(c, i));
}
