/* ref_fp8.c - the definition of 8-bit products. The fast column is the same: they are for GPUs, here for parity. */
#include "ops/cpu/ref.h"
#include <math.h>

void tr_ref_QUANT(const struct tr_call *c)
{
    const struct tr_view *x = &c->in[0], *q = &c->out[0], *qt = &c->out[1];
    float amax = 0;
    for (int64_t n = 0; n < x->rows; n++)
        for (int64_t j = 0; j < x->cols; j++)
            amax = fmaxf(amax, fabsf((float)tr_ref_get(x, n, j)));
    float by = amax > 0 ? 448.0f / amax : 1.0f;
    for (int64_t n = 0; n < x->rows; n++)
        for (int64_t j = 0; j < x->cols; j++) {
            float scaled = (float)tr_ref_get(x, n, j) * by;
            tr_ref_put(q, n, j, (double)scaled);
            tr_ref_put(qt, j, n, (double)scaled);
        }
    tr_ref_put(&c->out[2], 0, 0, amax > 0 ? (double)(amax / 448.0f) : 1.0);
}

void tr_ref_MATMUL8(const struct tr_call *c)
{
    const struct tr_view *a = &c->in[0], *b = &c->in[2], *y = &c->out[0];
    double scale = tr_ref_get(&c->in[1], 0, 0) * tr_ref_get(&c->in[3], 0, 0), table[256];
    for (int i = 0; i < 256; i++)
        table[i] = (double)tr_f32_of_e4m3((uint8_t)i);
    for (int64_t n = 0; n < y->rows; n++)
        for (int64_t o = 0; o < y->cols; o++) {
            const uint8_t *p = (const uint8_t *)a->data + n * a->ld, *q = (const uint8_t *)b->data + o * b->ld;
            double sum = 0;
            for (int64_t k = 0; k < a->cols; k++)
                sum += table[p[k]] * table[q[k]];
            tr_ref_put_acc(c, 0, n, o, scale * sum + tr_ref_opt(&c->in[4], 0, o) + tr_ref_opt(&c->in[5], n, o));
        }
}
