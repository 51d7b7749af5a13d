/* ref_view.c - element access of the reference kernels, and small functions that several of them use.
 *
 * F64 views are accepted everywhere: the tests run the reference in double to check derivatives to many digits.
 */
#include "ops/cpu/ref.h"
#include <math.h>

static size_t at(const struct tr_view *v, int64_t row, int64_t col)
{
    TR_BUG_ON(row < 0 || row >= v->rows || col < 0 || col >= v->cols);
    return (size_t)(row * v->ld + col);
}

double tr_ref_get(const struct tr_view *v, int64_t row, int64_t col)
{
    size_t i = at(v, row, col);
    switch (v->dtype) {
    case TR_F32:
        return (double)((const float *)v->data)[i];
    case TR_BF16:
        return (double)tr_f32_of_bf16(((const uint16_t *)v->data)[i]);
    case TR_F16:
        return (double)tr_f32_of_f16(((const uint16_t *)v->data)[i]);
    case TR_F64:
        return ((const double *)v->data)[i];
    case TR_E4M3:
        return (double)tr_f32_of_e4m3(((const uint8_t *)v->data)[i]);
    case TR_E5M2:
        return (double)tr_f32_of_e5m2(((const uint8_t *)v->data)[i]);
    default:
        tr_bug(__FILE__, __LINE__, "view is not of a float type");
    }
}

int64_t tr_ref_int(const struct tr_view *v, int64_t row)
{
    size_t i = at(v, row, 0);
    TR_BUG_ON(v->dtype != TR_I32 && v->dtype != TR_I64);
    return v->dtype == TR_I32 ? ((const int32_t *)v->data)[i] : ((const int64_t *)v->data)[i];
}

void tr_ref_put(const struct tr_view *v, int64_t row, int64_t col, double x)
{
    size_t i = at(v, row, col);
    switch (v->dtype) {
    case TR_F32:
        ((float *)v->data)[i] = (float)x;
        break;
    case TR_BF16:
        ((uint16_t *)v->data)[i] = tr_bf16_of_f32((float)x);
        break;
    case TR_F16:
        ((uint16_t *)v->data)[i] = tr_f16_of_f32((float)x);
        break;
    case TR_F64:
        ((double *)v->data)[i] = x;
        break;
    case TR_E4M3:
        ((uint8_t *)v->data)[i] = tr_e4m3_of_f32((float)x);
        break;
    case TR_E5M2:
        ((uint8_t *)v->data)[i] = tr_e5m2_of_f32((float)x);
        break;
    default:
        tr_bug(__FILE__, __LINE__, "view is not of a float type");
    }
}

void tr_ref_put_acc(const struct tr_call *c, int out, int64_t row, int64_t col, double x)
{
    const struct tr_view *v = &c->out[out];
    if (v->data)
        tr_ref_put(v, row, col, x + (c->accumulate[out] ? tr_ref_get(v, row, col) : 0.0));
}

double tr_ref_softcap(double s, float cap)
{
    return cap > 0 ? (double)cap * tanh(s / (double)cap) : s;
}

double tr_ref_softcap_slope(double capped, float cap)
{
    double t = cap > 0 ? capped / (double)cap : 0.0;
    return 1.0 - t * t;
}
