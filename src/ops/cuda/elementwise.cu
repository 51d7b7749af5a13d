/* elementwise.cu - activations, gated units, add, scale, dropout, cast. One kernel, one functor per op.
 *
 * Values that are not slices are treated as one long row, so a launch has no index arithmetic; column slices keep their
 * rows.
 */
#include "ops/cuda/cuda.cuh"
#include "ops/dropout.h"

enum { THREADS = 256 };

/* ---- activations ---- */

__device__ static float sigmoid(float x)
{
    return 1.0f / (1.0f + __expf(-x));
}

/* gelu by tanh is x * sigmoid(2 u): 1 + tanh(u) = 2 sigmoid(2 u). */
__device__ static float gelu_arg(float x)
{
    return 2.0f * 0.79788456080286535588f * (x + 0.044715f * x * x * x);
}

template <int A> __device__ static float act(float x)
{
    switch (A) {
    case TR_ACT_RELU:
        return x < 0.0f ? 0.0f : x; /* NaN stays */
    case TR_ACT_GELU:
        return 0.5f * x * (1.0f + erff(x * 0.70710678118654752440f));
    case TR_ACT_GELU_TANH:
        return x * sigmoid(gelu_arg(x));
    case TR_ACT_SILU:
        return x * sigmoid(x);
    default:
        return x;
    }
}

template <int A> __device__ static float slope(float x)
{
    float s;
    switch (A) {
    case TR_ACT_RELU:
        return x > 0.0f ? 1.0f : 0.0f;
    case TR_ACT_GELU:
        return 0.5f * (1.0f + erff(x * 0.70710678118654752440f)) + x * 0.39894228040143267794f * __expf(-0.5f * x * x);
    case TR_ACT_GELU_TANH:
        s = sigmoid(gelu_arg(x));
        return s + x * s * (1.0f - s) * 2.0f * 0.79788456080286535588f * (1.0f + 3.0f * 0.044715f * x * x);
    case TR_ACT_SILU:
        s = sigmoid(x);
        return s * (1.0f + x * (1.0f - s));
    default:
        return 1.0f;
    }
}

/* ---- the kernel ---- */

template <typename T> struct io {
    mat<const T> in[3];
    mat<T> out[2];
};

template <typename T, int V, int NI, int NO, typename F>
__global__ void __launch_bounds__(THREADS) map_kernel(io<T> x, int64_t rows, int64_t cols, F f)
{
    int64_t col = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * V;
    if (col >= cols)
        return;
    for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
        float in[3][V], out[2][V];
#pragma unroll
        for (int i = 0; i < NI; i++)
            load<V>(x.in[i].at(row, col), in[i]);
#pragma unroll
        for (int v = 0; v < V; v++)
            f(in[0][v], in[1 % NI][v], in[2 % NI][v], out[0][v], out[1][v]);
#pragma unroll
        for (int i = 0; i < NO; i++)
            store<V>(x.out[i].at(row, col), out[i]);
    }
}

/* The rows and columns to run over: one long row when no view is a slice. */
static void flatten(const struct tr_view *const *views, int n, int64_t *rows, int64_t *cols)
{
    for (int i = 0; i < n; i++)
        if (views[i]->ld != views[i]->cols)
            return;
    *cols *= *rows;
    *rows = 1;
}

template <typename T, int V, int NI, int NO, typename F> static void launch(const struct tr_call *c, F f)
{
    const struct tr_view *views[NI + NO];
    io<T> x = {};
    for (int i = 0; i < NI; i++)
        x.in[i] = mat_of<const T>(c->in[i]), views[i] = &c->in[i];
    for (int i = 0; i < NO; i++)
        x.out[i] = mat_of<T>(c->out[i]), views[NI + i] = &c->out[i];
    int64_t rows = c->out[0].rows, cols = c->out[0].cols;
    flatten(views, NI + NO, &rows, &cols);
    dim3 grid((unsigned)ceil_div(cols, THREADS * V), (unsigned)tr_min64(rows, 65535));
    start(c, map_kernel<T, V, NI, NO, F>, grid, THREADS, 0, x, rows, cols, f);
}

template <int NI, int NO, typename F> static void map(const struct tr_call *c, F f)
{
    const struct tr_view *views[NI + NO];
    for (int i = 0; i < NI + NO; i++)
        views[i] = i < NI ? &c->in[i] : &c->out[i - NI];
    with_type(c->out[0], [&](auto t) {
        typedef decltype(t) T;
        if (is_wide(views, NI + NO, 16 / sizeof(T)))
            launch<T, 16 / sizeof(T), NI, NO>(c, f);
        else
            launch<T, 1, NI, NO>(c, f);
    });
}

/* ---- functors: f(in0, in1, in2, out0, out1) ---- */

template <int A> struct act_f {
    __device__ void operator()(float x, float, float, float &y, float &) const
    {
        y = act<A>(x);
    }
};
template <int A> struct act_bwd_f {
    __device__ void operator()(float dy, float x, float, float &dx, float &) const
    {
        dx = dy * slope<A>(x);
    }
};
template <int A> struct glu_f {
    __device__ void operator()(float g, float u, float, float &y, float &) const
    {
        y = act<A>(g) * u;
    }
};
template <int A> struct glu_bwd_f {
    __device__ void operator()(float dy, float g, float u, float &dg, float &du) const
    {
        dg = dy * u * slope<A>(g);
        du = dy * act<A>(g);
    }
};
struct add_f {
    __device__ void operator()(float a, float b, float, float &y, float &) const
    {
        y = a + b;
    }
};
struct scale_f {
    float by;
    __device__ void operator()(float x, float, float, float &y, float &) const
    {
        y = by * x;
    }
};

template <template <int> class F, int NI, int NO> static void map_act(const struct tr_call *c)
{
    switch (c->attr.act) {
    case TR_ACT_RELU:
        return map<NI, NO>(c, F<TR_ACT_RELU>());
    case TR_ACT_GELU:
        return map<NI, NO>(c, F<TR_ACT_GELU>());
    case TR_ACT_GELU_TANH:
        return map<NI, NO>(c, F<TR_ACT_GELU_TANH>());
    case TR_ACT_SILU:
        return map<NI, NO>(c, F<TR_ACT_SILU>());
    default:
        return map<NI, NO>(c, F<TR_ACT_NONE>());
    }
}

void tr_cuda_ACT(const struct tr_call *c)
{
    map_act<act_f, 1, 1>(c);
}

void tr_cuda_ACT_BWD(const struct tr_call *c)
{
    map_act<act_bwd_f, 2, 1>(c);
}

void tr_cuda_GLU(const struct tr_call *c)
{
    map_act<glu_f, 2, 1>(c);
}

void tr_cuda_GLU_BWD(const struct tr_call *c)
{
    map_act<glu_bwd_f, 3, 2>(c);
}

void tr_cuda_ADD(const struct tr_call *c)
{
    map<2, 1>(c, add_f());
}

void tr_cuda_SCALE(const struct tr_call *c)
{
    map<1, 1>(c, scale_f{ factor_of(c) });
}

/* ---- cast (one element for each thread, because it is rare) and dropout ---- */

template <typename T, typename U> __global__ void cast_kernel(mat<const T> x, mat<U> y, int64_t rows, int64_t cols)
{
    int64_t col = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    for (int64_t row = blockIdx.y; col < cols && row < rows; row += gridDim.y)
        *y.at(row, col) = from_f32<U>(to_f32(*x.at(row, col)));
}

template <typename T, typename U> static void cast(const struct tr_call *c)
{
    const struct tr_view *views[] = { &c->in[0], &c->out[0] };
    int64_t rows = c->out[0].rows, cols = c->out[0].cols;
    flatten(views, 2, &rows, &cols);
    dim3 grid((unsigned)ceil_div(cols, THREADS), (unsigned)tr_min64(rows, 65535));
    start(c, cast_kernel<T, U>, grid, THREADS, 0, mat_of<const T>(c->in[0]), mat_of<U>(c->out[0]), rows, cols);
}

void tr_cuda_CAST(const struct tr_call *c)
{
    with_type(c->in[0], [&](auto t) { with_type(c->out[0], [&](auto u) { cast<decltype(t), decltype(u)>(c); }); });
}

/* Collectives of one rank copy; with more ranks the executor runs them. */
void tr_cuda_ALL_REDUCE(const struct tr_call *c)
{
    if (c->in[0].data != c->out[0].data)
        tr_cuda_CAST(c);
}

void tr_cuda_ALL_GATHER(const struct tr_call *c)
{
    tr_cuda_ALL_REDUCE(c);
}

void tr_cuda_REDUCE_SCATTER(const struct tr_call *c)
{
    tr_cuda_ALL_REDUCE(c);
}

void tr_cuda_ALL_TO_ALL(const struct tr_call *c)
{
    tr_cuda_CAST(c);
}

void tr_cuda_COPY(const struct tr_call *c)
{
    tr_cuda_ALL_REDUCE(c);
}

void tr_cuda_ZERO(const struct tr_call *c)
{
    const struct tr_view &y = c->out[0];
    size_t elem = tr_dtype_bytes(y.dtype);
    cudaError_t e =
        cudaMemset2DAsync(y.data, (size_t)y.ld * elem, 0, (size_t)y.cols * elem, (size_t)y.rows, stream_of(c));
    if (e != cudaSuccess)
        tr_device_note(c->dev, TR_IO, "device cuda: op zero: %s", cudaGetErrorString(e));
}

/* Eight neighbouring columns share a counter (ops/dropout.h), four that of noise (cpu/dropout.h); a thread with V
 * columns, which begin at a multiple of V, draws each counter once. */
template <typename T, int V, bool IS_NOISE>
__global__ void __launch_bounds__(THREADS)
    dropout_kernel(mat<const T> x, mat<const int64_t> sample, mat<const int32_t> position, const float *step, mat<T> y,
                   int64_t rows, int64_t cols, struct tr_attr a)
{
    int64_t col = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * V;
    int64_t first_row = (int64_t)blockIdx.y * blockDim.y + threadIdx.y, row_step = (int64_t)gridDim.y * blockDim.y;
    uint32_t threshold = tr_drop_threshold(a.dropout_p);
    float scale = tr_drop_scale(a.dropout_p);
    uint64_t number = IS_NOISE || a.dropout_p > 0 ? step_number(step) : 0;
    for (int64_t row = first_row; col < cols && row < rows; row += row_step) {
        int64_t first = a.first + col;
        float v[V];
        uint4 w = {};
        load<V>(x.at(row, col), v);
        if (IS_NOISE) {
            uint64_t hi = number << 24 | ((uint64_t)*sample.at(row, 0) & 0xffffffu);
            uint64_t lo = (uint64_t)*position.at(row, 0) << 32;
#pragma unroll
            for (int i = 0; i < V; i++) {
                if (i % 4 == 0)
                    w = philox(a.key, hi, lo | (uint64_t)(first + i) >> 2);
                v[i] += (float)(int32_t)word_of(w, V == 1 ? first : i) * (a.scale * 0x1p-31f);
            }
        } else {
            uint32_t token = tr_drop_token(*sample.at(row, 0), *position.at(row, 0));
            w = philox<7>(a.key, number, tr_drop_lo_of_column(token, first));
#pragma unroll
            for (int i = 0; i < V; i++) {
                int at = V == 8 ? i : tr_drop_at_of_column(first + i);
                v[i] *= tr_drop_number(word_of(w, at / 2), at) >= threshold ? scale : 0.0f;
            }
        }
        store<V>(y.at(row, col), v);
    }
}

template <typename T, int V, bool IS_NOISE> static void dropout_by(const struct tr_call *c)
{
    int64_t rows = c->out[0].rows, cols = c->out[0].cols;
    unsigned across = 32; /* threads along a row; the others of a block take further rows */
    while (across < THREADS && across * V < cols)
        across *= 2;
    dim3 block(across, THREADS / across);
    dim3 grid((unsigned)ceil_div(cols, across * V), (unsigned)tr_min64(ceil_div(rows, block.y), 65535));
    start(c, dropout_kernel<T, V, IS_NOISE>, grid, block, 0, mat_of<const T>(c->in[0]), mat_of<const int64_t>(c->in[1]),
          mat_of<const int32_t>(c->in[2]), (const float *)c->in[3].data, mat_of<T>(c->out[0]), rows, cols, c->attr);
}

template <typename T, bool IS_NOISE> static void dropout(const struct tr_call *c)
{
    const struct tr_view *views[] = { &c->in[0], &c->out[0] };
    if (c->attr.first % (16 / (int)sizeof(T)) == 0 && is_wide(views, 2, 16 / sizeof(T)))
        dropout_by<T, 16 / sizeof(T), IS_NOISE>(c);
    else
        dropout_by<T, 1, IS_NOISE>(c);
}

void tr_cuda_DROPOUT(const struct tr_call *c)
{
    with_type(c->out[0], [&](auto t) { dropout<decltype(t), false>(c); });
}

void tr_cuda_NOISE(const struct tr_call *c)
{
    with_type(c->out[0], [&](auto t) { dropout<decltype(t), true>(c); });
}
