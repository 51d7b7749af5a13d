/* muon.c - `orthogonal`: Newton-Schulz steps by tr_gemm. The bits do not depend on the number of threads, because those
 * of tr_gemm do not, and the norm is summed in order.
 */
#include "ops/cpu/fast.h"
#include "ops/cpu/gemm.h"
#include "ops/muon.h"

/* Where everything is in the scratch: X and A in BF16, a product in F32, then what tr_gemm needs. */
struct muon_scratch {
    int64_t m, n; /* of X: no more rows than columns */
    size_t a, product, gemm, bytes;
};

static size_t most(size_t a, size_t b)
{
    return a > b ? a : b;
}

static struct muon_scratch scratch_of(const struct tr_view *d, int n_threads)
{
    struct muon_scratch s = { .m = tr_min64(d->rows, d->cols), .n = tr_max64(d->rows, d->cols) };
    s.a = tr_round_up((size_t)(s.m * s.n) * sizeof(uint16_t), 64);
    s.product = s.a + tr_round_up((size_t)(s.m * s.m) * sizeof(uint16_t), 64);
    s.gemm = s.product + tr_round_up((size_t)(s.m * s.n) * sizeof(float), 64);
    s.bytes = s.gemm + most(tr_gemm_scratch(s.m, s.m, s.n, n_threads),
                            most(tr_gemm_scratch(s.m, s.m, s.m, n_threads), tr_gemm_scratch(s.m, s.n, s.m, n_threads)));
    return s;
}

size_t tr_fast_orthogonal_scratch(const struct tr_call *c, int n_threads)
{
    return scratch_of(&c->out[0], n_threads).bytes;
}

/* to = own * to + other * x, rounded once. */
static void combine(uint16_t *to, float own, const float *x, float other, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        to[i] = tr_bf16_of_f32(own * tr_f32_of_bf16(to[i]) + other * x[i]);
}

/* X = d / |d|. */
static void begin(const struct tr_view *d, const struct muon_scratch *s, uint16_t *x)
{
    const uint16_t *from = d->data;
    double sum = 0;
    for (int64_t row = 0; row < d->rows; row++)
        for (int64_t col = 0; col < d->cols; col++) {
            uint16_t bits = from[row * d->ld + col];
            float v = tr_f32_of_bf16(bits);
            x[d->rows > d->cols ? col * s->n + row : row * s->n + col] = bits;
            sum += (double)v * (double)v;
        }
    float norm = fmaxf(tr_f32_of_bf16(tr_bf16_of_f32((float)sqrt(sum))), TR_MUON_EPS);
    for (int64_t i = 0; i < s->m * s->n; i++)
        x[i] = tr_bf16_of_f32(tr_f32_of_bf16(x[i]) / norm);
}

static void finish(const struct tr_view *d, const struct muon_scratch *s, const uint16_t *x, float scale)
{
    uint16_t *to = d->data;
    for (int64_t row = 0; row < d->rows; row++)
        for (int64_t col = 0; col < d->cols; col++) {
            uint16_t bits = x[d->rows > d->cols ? col * s->n + row : row * s->n + col];
            to[row * d->ld + col] = tr_bf16_of_f32(scale * tr_f32_of_bf16(bits));
        }
}

void tr_fast_orthogonal(const struct tr_call *c)
{
    const struct tr_view *d = &c->out[0];
    struct muon_scratch s = scratch_of(d, tr_pool_threads(c->pool));
    char *base = c->scratch;
    uint16_t *x = c->scratch, *a = (uint16_t *)(void *)(base + s.a);
    float *product = (float *)(void *)(base + s.product), factor[TR_MUON_ADJUSTS];
    struct tr_gemm gram = { .m = s.m, .n = s.m, .k = s.n, .a = x, .b = x, .c = a, .b_t = true };
    gram.lda = gram.ldb = s.n, gram.ldc = s.m;
    gram.a_dtype = gram.b_dtype = gram.c_dtype = TR_BF16;
    struct tr_gemm square = gram;
    square.k = square.lda = square.ldb = s.m, square.b_t = false;
    square.a = square.b = a, square.c = product, square.c_dtype = TR_F32;
    struct tr_gemm step = square;
    step.n = step.ldb = step.ldc = s.n, step.b = x;
    tr_muon_factors(d->rows, d->cols, factor);
    begin(d, &s, x);
    for (int k = 0; k < TR_MUON_STEPS; k++) {
        tr_gemm(&gram, c->pool, base + s.gemm);
        tr_gemm(&square, c->pool, base + s.gemm);
        combine(a, TR_MUON_B, product, TR_MUON_C, s.m * s.m);
        tr_gemm(&step, c->pool, base + s.gemm);
        combine(x, TR_MUON_A, product, 1, s.m * s.n);
    }
    finish(d, &s, x, factor[(int)((const float *)c->in[1].data)[TR_STEP_ADJUST]]);
}
