/* optim.cu - optimizers, sums and sums of squares, sums of columns. */
#include "ops/cuda/optim.cuh"

enum { THREADS = 256 };

/* ---- optimizers ---- */

/* Updates elements [i, i + V). Types: G gradient, S state (master and moments), C copy. With V > 1, i is a multiple of
 * four. KIND is the opcode. */
template <typename G, typename S, typename C, int V, int KIND>
__device__ static void update_at(const G *g, S *p, S *m, S *v, C *copy, int64_t i, const optim_args &o)
{
    update u = update_of(o);
    float gv[V], pv[V], mv[V], vv[V];
    load<V>(g + i, gv);
    load<V>(p + i, pv);
    if (m)
        load<V>(m + i, mv);
    if (KIND == TR_OP_ADAMW)
        load<V>(v + i, vv);
    bool is_random = sizeof(S) == 2;
    uint64_t number = is_random ? step_number(o.step) : 0;
    float rate = u.lr / u.bias1, grow = 1.0f / u.root_bias2;
    uint4 words = {};
    pack<S, V> sp, sm, sv;
#pragma unroll
    for (int k = 0; k < V; k++) {
        float gk = gv[k] * u.clip, pk = pv[k] * u.keep, mk = m ? mv[k] : 0.0f;
        int64_t e = o.first + i + k;
        if (is_random && (V == 1 || k % 4 == 0))
            words = philox(o.key, number, (uint64_t)e >> 2);
        uint32_t w = word_of(words, V == 1 ? e : k);
        if (KIND == TR_OP_ADAMW) {
            mk = u.beta1 * mk + (1.0f - u.beta1) * gk;
            float vk = u.beta2 * vv[k] + (1.0f - u.beta2) * gk * gk;
            pk -= __fdividef(rate * mk, root(vk) * grow + u.eps);
            put(&sv.v[k], vk, w * 0x9E3779B1u >> 16);
        } else if (KIND == TR_OP_LION) {
            float d = u.beta1 * mk + (1.0f - u.beta1) * gk;
            pk -= u.lr * (float)((d > 0) - (d < 0));
            mk = u.beta2 * mk + (1.0f - u.beta2) * gk;
        } else {
            mk = m ? u.beta1 * mk + gk : gk;
            pk -= u.lr * mk;
        }
        pv[k] = put(&sp.v[k], pk, w);
        put(&sm.v[k], mk, w >> 16);
    }
    *(pack<S, V> *)(p + i) = sp;
    if (m)
        *(pack<S, V> *)(m + i) = sm;
    if (KIND == TR_OP_ADAMW)
        *(pack<S, V> *)(v + i) = sv;
    if (copy)
        store<V>(copy + i, pv);
}

/* Several tensors in one launch: a launch of its own would cost a small tensor more than its update. */
template <typename G, typename S, typename C> struct updates {
    struct {
        const G *g;
        S *p, *m, *v;
        C *copy;
        int64_t n;
        optim_args o;
        unsigned first_block;
    } t[TR_UPDATES_MAX];
    int n;
};

template <typename G, typename S, typename C, int V, int KIND>
__global__ void __launch_bounds__(THREADS) updates_kernel(const __grid_constant__ updates<G, S, C> u)
{
    int k = 0;
    while (k + 1 < u.n && blockIdx.x >= u.t[k + 1].first_block)
        k++;
    const auto &t = u.t[k];
    int64_t i = ((int64_t)(blockIdx.x - t.first_block) * THREADS + threadIdx.x) * V;
    if (i < t.n)
        update_at<G, S, C, V, KIND>(t.g, t.p, t.m, t.v, t.copy, i, t.o);
}

/* Runs those of n calls whose views can (V > 1) or cannot (V = 1) be read in whole vectors. */
template <typename G, typename S, typename C, int V, int KIND> static void run_updates(const struct tr_call *c, int n)
{
    enum { WIDE = sizeof(S) == 2 ? 8 : 4 };
    updates<G, S, C> u = {};
    int64_t n_blocks = 0;
    static_assert(sizeof u <= 4096, "kernels take 4 KiB of arguments");
    for (int i = 0; i < n; i++) {
        const struct tr_view *views[] = { &c[i].in[0], &c[i].out[0], &c[i].out[1], &c[i].out[2], &c[i].out[3] };
        if ((is_wide(views, 5, WIDE) && c[i].attr.first % 4 == 0) != (V == WIDE))
            continue;
        auto &t = u.t[u.n++];
        t.g = (const G *)c[i].in[0].data, t.p = (S *)c[i].out[0].data, t.copy = (C *)c[i].out[1].data;
        t.m = (S *)c[i].out[2].data, t.v = (S *)c[i].out[3].data, t.n = c[i].out[0].cols;
        t.o = optim_args{ (const float *)c[i].in[1].data, c[i].attr.decay, c[i].attr.key, c[i].attr.first };
        t.first_block = (unsigned)n_blocks;
        n_blocks += ceil_div(t.n, THREADS * V);
    }
    TR_BUG_ON(n_blocks > INT32_MAX);
    if (n_blocks > 0)
        updates_kernel<G, S, C, V, KIND><<<(unsigned)n_blocks, THREADS, 0, stream_of(c)>>>(u);
    check_launch(c);
}

template <typename G, typename S, typename C, int KIND> static void optimize_all(const struct tr_call *c, int n)
{
    run_updates<G, S, C, sizeof(S) == 2 ? 8 : 4, KIND>(c, n);
    run_updates<G, S, C, 1, KIND>(c, n);
}

template <typename G, typename S, int KIND> static void optimize_to(const struct tr_call *c, int n)
{
    with_type(c->out[1], [&](auto t) { optimize_all<G, S, decltype(t), KIND>(c, n); });
}

template <int KIND> static void optimize_any(const struct tr_call *c, int n)
{
    if (is_bf16(c->in[0]))
        is_bf16(c->out[0]) ? optimize_to<bf16, bf16, KIND>(c, n) : optimize_to<bf16, float, KIND>(c, n);
    else
        is_bf16(c->out[0]) ? optimize_to<float, bf16, KIND>(c, n) : optimize_to<float, float, KIND>(c, n);
}

void tr_cuda_updates(const struct tr_call *c, int n)
{
    TR_BUG_ON(n > TR_UPDATES_MAX);
    if (n > 0 && (c->op == TR_OP_MUON || c->op == TR_OP_MUON_APPLY)) /* matrices are large: one launch each */
        for (int i = 0; i < n; i++)
            c->op == TR_OP_MUON ? tr_cuda_MUON(&c[i]) : tr_cuda_MUON_APPLY(&c[i]);
    else if (n > 0)
        c->op == TR_OP_ADAMW                            ? optimize_any<TR_OP_ADAMW>(c, n)
        : c->op == TR_OP_ADAMW8 || c->op == TR_OP_LION8 ? tr_cuda_updates8(c, n)
        : c->op == TR_OP_LION                           ? optimize_any<TR_OP_LION>(c, n)
                                                        : optimize_any<TR_OP_SGD>(c, n);
}

void tr_cuda_ADAMW(const struct tr_call *c)
{
    optimize_any<TR_OP_ADAMW>(c, 1);
}

void tr_cuda_LION(const struct tr_call *c)
{
    optimize_any<TR_OP_LION>(c, 1);
}

void tr_cuda_SGD(const struct tr_call *c)
{
    optimize_any<TR_OP_SGD>(c, 1);
}

/* ---- sums ---- */

__device__ static double block_sum(double x)
{
    __shared__ double part[1024];
    part[threadIdx.x] = x;
    __syncthreads();
    for (int d = (int)blockDim.x / 2; d > 0; d /= 2) {
        if ((int)threadIdx.x < d)
            part[threadIdx.x] += part[threadIdx.x + d];
        __syncthreads();
    }
    return part[0];
}

__global__ void __launch_bounds__(1024) sum_kernel(mat<const float> x, int64_t n, double *out, bool accumulate)
{
    double sum = 0;
    int64_t col = blockIdx.x;
    for (int64_t i = threadIdx.x; i < n; i += 1024)
        sum += *x.at(i, col);
    sum = block_sum(sum);
    if (threadIdx.x == 0)
        out[col] = sum + (accumulate ? out[col] : 0.0);
}

void tr_cuda_SUM(const struct tr_call *c)
{
    sum_kernel<<<(unsigned)c->in[0].cols, 1024, 0, stream_of(c)>>>(mat_of<const float>(c->in[0]), c->in[0].rows,
                                                                   (double *)c->out[0].data, c->accumulate[0]);
    check_launch(c);
}

template <typename G, int V> __global__ void __launch_bounds__(512) sumsq_kernel(const G *g, int64_t n, double *part)
{
    int64_t first = (int64_t)blockIdx.x * TR_CUDA_CHUNK, end = min(first + TR_CUDA_CHUNK, n);
    double sum = 0;
    for (int64_t i = first + threadIdx.x * V; i < end; i += 512 * V) {
        float t[V], sq = 0;
        load<V>(g + i, t);
#pragma unroll
        for (int v = 0; v < V; v++)
            sq += t[v] * t[v];
        sum += sq;
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0)
        part[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(256) sumsq_end(const double *part, int64_t n, double *out, bool accumulate)
{
    double sum = 0;
    for (int64_t i = threadIdx.x; i < n; i += 256)
        sum += part[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0)
        *out = sum + (accumulate ? *out : 0.0);
}

template <typename G> static void sumsq(const struct tr_call *c)
{
    const struct tr_view *view = &c->in[0];
    int64_t n = view->cols, n_parts = ceil_div(n, TR_CUDA_CHUNK);
    double *part = (double *)c->scratch;
    if (is_wide(&view, 1, 4))
        sumsq_kernel<G, 4><<<(unsigned)n_parts, 512, 0, stream_of(c)>>>((const G *)view->data, n, part);
    else
        sumsq_kernel<G, 1><<<(unsigned)n_parts, 512, 0, stream_of(c)>>>((const G *)view->data, n, part);
    sumsq_end<<<1, 256, 0, stream_of(c)>>>(part, n_parts, (double *)c->out[0].data, c->accumulate[0]);
    check_launch(c);
}

void tr_cuda_SUMSQ(const struct tr_call *c)
{
    with_type(c->in[0], [&](auto t) { sumsq<decltype(t)>(c); });
}

/* ---- sums of columns ---- */

/* A block sums V * 32 columns over its share of the rows: 8 warps take every eighth row, then are added in order. */
template <typename T, int V>
__global__ void __launch_bounds__(256) colsum_kernel(mat<const T> x, int64_t rows, int64_t cols, float *part)
{
    __shared__ float shared[8][32 * V];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int64_t col = ((int64_t)blockIdx.x * 32 + lane) * V, each = (rows + gridDim.y - 1) / gridDim.y,
            first = blockIdx.y * each, end = min(first + each, rows);
    float sum[V];
#pragma unroll
    for (int v = 0; v < V; v++)
        sum[v] = 0;
    int64_t r = first + warp;
    for (; col < cols && r + 24 < end; r += 32) { /* four rows are loaded at once */
        pack<T, V> t[4];
#pragma unroll
        for (int k = 0; k < 4; k++)
            t[k] = *(const pack<T, V> *)x.at(r + 8 * k, col);
#pragma unroll
        for (int k = 0; k < 4; k++)
#pragma unroll
            for (int v = 0; v < V; v++)
                sum[v] += to_f32(t[k].v[v]);
    }
    for (; col < cols && r < end; r += 8) {
        float t[V];
        load<V>(x.at(r, col), t);
#pragma unroll
        for (int v = 0; v < V; v++)
            sum[v] += t[v];
    }
#pragma unroll
    for (int v = 0; v < V; v++)
        shared[warp][lane * V + v] = sum[v];
    __syncthreads();
    for (int j = threadIdx.x; j < 32 * V; j += 256) {
        int64_t at = (int64_t)blockIdx.x * 32 * V + j;
        float all = 0;
        for (int k = 0; k < 8; k++)
            all += shared[k][j];
        if (at < cols)
            part[blockIdx.y * cols + at] = all;
    }
}

template <typename G> struct sums {
    G *out[2];
    bool accumulate[2];
};

/* 32 threads sum a column: each adds every 32nd row in order, then a tree adds the threads. blockIdx.y: which output.
 */
template <typename G>
__global__ void __launch_bounds__(1024) add_parts(const float *part, int n_parts, int64_t cols, sums<G> s, float scale)
{
    __shared__ float shared[32][33];
    int64_t j = (int64_t)blockIdx.x * 32 + threadIdx.x;
    G *out = s.out[blockIdx.y];
    float sum = 0;
    part += (int64_t)blockIdx.y * TR_CUDA_PARTS * cols;
#pragma unroll 8
    for (int k = threadIdx.y; j < cols && k < n_parts; k += 32)
        sum += part[k * cols + j];
    shared[threadIdx.x][threadIdx.y] = sum;
    __syncthreads();
    sum = warp_sum(shared[threadIdx.y][threadIdx.x]);
    j = (int64_t)blockIdx.x * 32 + threadIdx.y;
    if (threadIdx.x == 0 && j < cols && out)
        out[j] = from_f32<G>(sum * scale + (s.accumulate[blockIdx.y] ? to_f32(out[j]) : 0.0f));
}

void tr_cuda_add_parts(const struct tr_call *c, const float *part, int n_parts, int64_t cols, const struct tr_view *out,
                       const bool *accumulate, int n_out, float scale)
{
    struct tr_view none = {};
    const struct tr_view &first = out[0], &second = n_out == 2 ? out[1] : none;
    bool adds[2] = { accumulate[0], n_out == 2 && accumulate[1] };
    dim3 grid((unsigned)ceil_div(cols, 32), (unsigned)n_out), block(32, 32);
    auto run = [&](auto t) {
        typedef decltype(t) G;
        sums<G> s = { { (G *)first.data, (G *)second.data }, { adds[0], adds[1] } };
        add_parts<<<grid, block, 0, stream_of(c)>>>(part, n_parts, cols, s, scale);
        check_launch(c);
    };
    if (first.data || second.data)
        is_bf16(first.data ? first : second) ? run(bf16()) : run(0.0f);
}

void tr_cuda_colsum(const struct tr_call *c, const struct tr_view &x, const struct tr_view &out, bool accumulate,
                    float scale, void *scratch)
{
    const struct tr_view *view = &x;
    int width = is_half(x) ? 8 : 4;
    bool wide = is_wide(&view, 1, width);
    int64_t tiles = ceil_div(x.cols, 32 * (wide ? width : 1));
    int n_parts =
        (int)tr_max64(1, tr_min64(TR_CUDA_PARTS, tr_min64(ceil_div(x.rows, 64), ceil_div(8 * c->dev->n_units, tiles))));
    dim3 grid((unsigned)tiles, (unsigned)n_parts);
    float *part = (float *)scratch;
    with_type(x, [&](auto t) {
        typedef decltype(t) T;
        if (wide)
            colsum_kernel<T, 16 / sizeof(T)><<<grid, 256, 0, stream_of(c)>>>(mat_of<const T>(x), x.rows, x.cols, part);
        else
            colsum_kernel<T, 1><<<grid, 256, 0, stream_of(c)>>>(mat_of<const T>(x), x.rows, x.cols, part);
    });
    check_launch(c);
    tr_cuda_add_parts(c, part, n_parts, x.cols, &out, &accumulate, 1, scale);
}
