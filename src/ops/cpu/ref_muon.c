/* ref_muon.c - the definition of `orthogonal`: Newton-Schulz steps with sums in double, rounded to BF16 where
 * torch.optim.Muon rounds. */
#include "ops/cpu/ref.h"
#include "ops/muon.h"
#include <stdlib.h>

static double rounded(double x)
{
    return (double)tr_f32_of_bf16(tr_bf16_of_f32((float)x));
}

/* out (m, n) = own * z + other * x y, rounded; x is (m, k). y is (k, n), or (n, k) where it is turned. z may be NULL.
 */
static void product(const double *x, const double *y, bool is_turned, int64_t m, int64_t n, int64_t k, double own,
                    const double *z, double other, double *out)
{
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            double sum = 0;
            for (int64_t l = 0; l < k; l++)
                sum += x[i * k + l] * (is_turned ? y[j * k + l] : y[l * n + j]);
            out[i * n + j] = rounded(other * sum + (z ? own * z[i * n + j] : 0));
        }
}

void tr_ref_ORTHOGONAL(const struct tr_call *c)
{
    const struct tr_view *d = &c->out[0];
    bool is_turned = d->rows > d->cols;
    int64_t m = is_turned ? d->cols : d->rows, n = is_turned ? d->rows : d->cols;
    double *x = malloc((size_t)(2 * m * (n + m)) * sizeof *x), sum = 0;
    float factor[TR_MUON_ADJUSTS];
    if (!x)
        tr_bug(__FILE__, __LINE__, "out of memory");
    double *next = x + m * n, *a = next + m * n, *b = a + m * m;
    tr_muon_factors(d->rows, d->cols, factor);
    for (int64_t i = 0; i < m * n; i++) {
        x[i] = is_turned ? tr_ref_get(d, i % n, i / n) : tr_ref_get(d, i / n, i % n);
        sum += x[i] * x[i];
    }
    double norm = fmax(rounded(sqrt(sum)), (double)TR_MUON_EPS);
    for (int64_t i = 0; i < m * n; i++)
        x[i] = rounded(x[i] / norm);
    for (int k = 0; k < TR_MUON_STEPS; k++) {
        product(x, x, true, m, m, n, 0, NULL, 1, a);
        product(a, a, false, m, m, m, (double)TR_MUON_B, a, (double)TR_MUON_C, b);
        product(b, x, false, m, n, m, (double)TR_MUON_A, x, 1, next);
        for (int64_t i = 0; i < m * n; i++)
            x[i] = next[i];
    }
    double scale = (double)factor[(int)((const float *)c->in[1].data)[TR_STEP_ADJUST]];
    for (int64_t i = 0; i < m * n; i++)
        tr_ref_put(d, is_turned ? i % n : i / n, is_turned ? i / n : i % n, scale * x[i]);
    free(x);
}
