/* muon.cu - Muon: its two passes over elements, and Newton-Schulz steps by tr_cuda_gemm. */
#include "ops/cuda/optim.cuh"
extern "C" {
#include "ops/muon.h"
}

enum { THREADS = 256, NORM_BLOCKS = 256 };

/* ---- elements ---- */

struct random_words {
    uint64_t key, number;
    int64_t first;
    __device__ uint32_t at(int64_t i) const
    {
        return word_of(philox(key, number, (uint64_t)(first + i) >> 2), first + i);
    }
};

template <typename G, typename S>
__global__ void __launch_bounds__(THREADS) average_kernel(const G *g, S *m, bf16 *d, int64_t n, optim_args o)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= n)
        return;
    float rest = 1.0f - o.step[TR_STEP_MOMENTUM], gi = to_f32(g[i]) * o.step[TR_STEP_CLIP], mi = to_f32(m[i]);
    random_words words = { o.key, sizeof(S) == 2 ? step_number(o.step) : 0, o.first };
    mi += (gi - mi) * rest;
    put(m + i, mi, sizeof(S) == 2 ? words.at(i) >> 16 : 0);
    d[i] = from_f32<bf16>(mi + (gi - mi) * rest);
}

template <typename S, typename C>
__global__ void __launch_bounds__(THREADS) apply_kernel(S *p, C *copy, const bf16 *d, int64_t n, optim_args o)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= n)
        return;
    update u = update_of(o);
    random_words words = { o.key, sizeof(S) == 2 ? step_number(o.step) : 0, o.first };
    float x = put(p + i, to_f32(p[i]) * u.keep - u.lr * to_f32(d[i]), sizeof(S) == 2 ? words.at(i) : 0);
    if (copy)
        copy[i] = from_f32<C>(x);
}

static optim_args args_of(const struct tr_call *c)
{
    return optim_args{ (const float *)c->in[1].data, c->attr.decay, c->attr.key, c->attr.first };
}

template <typename G, typename S> static void average(const struct tr_call *c)
{
    int64_t n = c->out[2].cols;
    average_kernel<<<(unsigned)ceil_div(n, THREADS), THREADS, 0, stream_of(c)>>>(
        (const G *)c->in[0].data, (S *)c->out[2].data, (bf16 *)c->out[3].data, n, args_of(c));
    check_launch(c);
}

void tr_cuda_MUON(const struct tr_call *c)
{
    if (is_bf16(c->in[0]))
        is_bf16(c->out[2]) ? average<bf16, bf16>(c) : average<bf16, float>(c);
    else
        is_bf16(c->out[2]) ? average<float, bf16>(c) : average<float, float>(c);
}

template <typename S> static void apply(const struct tr_call *c)
{
    int64_t n = c->out[0].cols;
    with_type(c->out[1], [&](auto t) {
        apply_kernel<<<(unsigned)ceil_div(n, THREADS), THREADS, 0, stream_of(c)>>>(
            (S *)c->out[0].data, (decltype(t) *)c->out[1].data, (const bf16 *)c->out[3].data, n, args_of(c));
    });
    check_launch(c);
}

void tr_cuda_MUON_APPLY(const struct tr_call *c)
{
    is_bf16(c->out[0]) ? apply<bf16>(c) : apply<float>(c);
}

/* ---- matrices ---- */

/* Copies d to X, which has no more rows than columns, and adds up the squares of each block of threads. */
__global__ void __launch_bounds__(THREADS)
    begin_kernel(const bf16 *d, int64_t rows, int64_t cols, int64_t ld, bf16 *x, double *part)
{
    __shared__ double sums[THREADS];
    double sum = 0;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < rows * cols; i += (int64_t)gridDim.x * THREADS) {
        int64_t row = i / cols, col = i % cols;
        bf16 v = d[row * ld + col];
        x[rows > cols ? col * rows + row : i] = v;
        sum += (double)to_f32(v) * to_f32(v);
    }
    sums[threadIdx.x] = sum;
    __syncthreads();
    for (int s = THREADS / 2; s > 0; s /= 2) {
        if ((int)threadIdx.x < s)
            sums[threadIdx.x] += sums[threadIdx.x + s];
        __syncthreads();
    }
    if (threadIdx.x == 0)
        part[blockIdx.x] = sums[0];
}

/* part[0] becomes the norm. */
__global__ void norm_kernel(double *part)
{
    double sum = 0;
    for (int i = 0; i < NORM_BLOCKS; i++)
        sum += part[i];
    part[0] = fmaxf(to_f32(from_f32<bf16>((float)sqrt(sum))), TR_MUON_EPS);
}

__global__ void __launch_bounds__(THREADS) divide_kernel(bf16 *x, int64_t n, const double *norm)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < n)
        x[i] = from_f32<bf16>(__fdiv_rn(to_f32(x[i]), (float)*norm));
}

/* to = own * to + other * x, rounded once. */
__global__ void __launch_bounds__(THREADS) combine_kernel(bf16 *to, float own, const float *x, float other, int64_t n)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < n)
        to[i] = from_f32<bf16>(own * to_f32(to[i]) + other * x[i]);
}

struct factors {
    float of[TR_MUON_ADJUSTS];
};

__global__ void __launch_bounds__(THREADS)
    finish_kernel(bf16 *d, int64_t rows, int64_t cols, int64_t ld, const bf16 *x, const float *step, factors f)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, row = i / cols, col = i % cols;
    if (i < rows * cols)
        d[row * ld + col] =
            from_f32<bf16>(f.of[(int)step[TR_STEP_ADJUST]] * to_f32(x[rows > cols ? col * rows + row : i]));
}

/* C = A B, or A B^T. */
static void multiply(const struct tr_call *c, const bf16 *a, const bf16 *b, bool b_t, int64_t m, int64_t n, int64_t k,
                     void *to, enum tr_dtype dtype, void *workspace)
{
    struct cuda_gemm g = {};
    g.m = m, g.n = n, g.k = k;
    g.a = a, g.b = b, g.c = to, g.d = to;
    g.lda = k, g.ldb = b_t ? k : n, g.ldc = g.ldd = n;
    g.a_dtype = TR_BF16, g.c_dtype = dtype, g.b_t = b_t;
    (void)tr_cuda_gemm(c, &g, workspace);
}

void tr_cuda_ORTHOGONAL(const struct tr_call *c)
{
    const struct tr_view &d = c->out[0];
    int64_t m = tr_min64(d.rows, d.cols), n = tr_max64(d.rows, d.cols);
    struct tr_cuda_muon s = tr_cuda_muon_scratch(d.rows, d.cols);
    char *base = (char *)c->scratch;
    bf16 *x = (bf16 *)(base + s.x), *a = (bf16 *)(base + s.a);
    float *product = (float *)(base + s.product);
    double *part = (double *)(base + s.norm);
    factors f;
    unsigned all = (unsigned)ceil_div(m * n, THREADS), square = (unsigned)ceil_div(m * m, THREADS);
    cudaStream_t stream = stream_of(c);
    if (m == 0)
        return;
    tr_muon_factors(d.rows, d.cols, f.of);
    begin_kernel<<<NORM_BLOCKS, THREADS, 0, stream>>>((const bf16 *)d.data, d.rows, d.cols, d.ld, x, part);
    norm_kernel<<<1, 1, 0, stream>>>(part);
    divide_kernel<<<all, THREADS, 0, stream>>>(x, m * n, part);
    for (int k = 0; k < TR_MUON_STEPS; k++) {
        multiply(c, x, x, true, m, m, n, a, TR_BF16, base + s.workspace);
        multiply(c, a, a, false, m, m, m, product, TR_F32, base + s.workspace);
        combine_kernel<<<square, THREADS, 0, stream>>>(a, TR_MUON_B, product, TR_MUON_C, m * m);
        multiply(c, a, x, false, m, n, m, product, TR_F32, base + s.workspace);
        combine_kernel<<<all, THREADS, 0, stream>>>(x, TR_MUON_A, product, 1.0f, m * n);
    }
    finish_kernel<<<all, THREADS, 0, stream>>>((bf16 *)d.data, d.rows, d.cols, d.ld, x, (const float *)c->in[1].data,
                                               f);
    check_launch(c);
}
