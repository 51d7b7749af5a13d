/* ref_fp8.c - the definition of 8-bit products. The fast column uses these kernels too: 8-bit products are for GPUs,
 * and the CPU has them only for comparison. */
#include "ops/cpu/ref.h"
#include <math.h>

void tr_ref_QUANT(const struct tr_call *c)
{
    const struct tr_view *x = &c->in[0], *q = &c->out[0], *qt = &c->out[1], *past = &c->out[3];
    float amax = 0, top = q->dtype == TR_E5M2 ? TR_E5M2_MOST : TR_E4M3_MOST;
    for (int64_t n = 0; n < x->rows; n++)
        for (int64_t j = 0; j < x->cols; j++)
            amax = fmaxf(amax, fabsf((float)tr_ref_get(x, n, j)));
    float before = past->data ? (float)tr_ref_get(past, 0, 0) : 0.0f, most = before > 0 ? before : amax;
    float by = most > 0 ? top / most : 1.0f;
    for (int64_t n = 0; n < x->rows; n++)
        for (int64_t j = 0; j < x->cols; j++) {
            float one = (float)tr_ref_get(x, n, j), scaled = isinf(one) ? NAN : one * by;
            tr_ref_put(q, n, j, (double)scaled);
            tr_ref_put(qt, j, n, (double)scaled);
        }
    tr_ref_put(&c->out[2], 0, 0, most > 0 ? (double)(most / top) : 1.0);
    if (past->data)
        tr_ref_put(past, 0, 1, fmax(tr_ref_get(past, 0, 1), (double)amax));
}

static void fill_table(const struct tr_view *v, double table[256])
{
    for (int i = 0; i < 256; i++)
        table[i] = (double)(v->dtype == TR_E5M2 ? tr_f32_of_e5m2((uint8_t)i) : tr_f32_of_e4m3((uint8_t)i));
}

void tr_ref_MATMUL8(const struct tr_call *c)
{
    const struct tr_view *a = &c->in[0], *b = &c->in[2], *y = &c->out[0];
    double scale = tr_ref_get(&c->in[1], 0, 0) * tr_ref_get(&c->in[3], 0, 0), table_a[256], table_b[256];
    fill_table(a, table_a);
    fill_table(b, table_b);
    for (int64_t n = 0; n < y->rows; n++)
        for (int64_t o = 0; o < y->cols; o++) {
            const uint8_t *p = (const uint8_t *)a->data + n * a->ld, *q = (const uint8_t *)b->data + o * b->ld;
            double sum = 0;
            for (int64_t k = 0; k < a->cols; k++)
                sum += table_a[p[k]] * table_b[q[k]];
            tr_ref_put_acc(c, 0, n, o, scale * sum + tr_ref_opt(&c->in[4], 0, o) + tr_ref_opt(&c->in[5], n, o));
        }
}
