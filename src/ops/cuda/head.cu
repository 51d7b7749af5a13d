/* head.cu - output head with its cross entropy, over blocks of rows.
 *
 * One matrix product gives the logits of a block of rows. A kernel computes the loss from them and overwrites them with
 * their gradient; two more products give dx and dW. A block is as large as its bytes allow (tr_cuda_head_rows): each
 * one reads W twice and dW once, and large products run fastest. With 16-bit inputs the logits and their gradient
 * are held in 16 bits; without gradients in fp32.
 */
#include "ops/cuda/ptx.cuh"
#include <float.h>

enum { THREADS = 1024 };

#define LOG2E 1.44269504088896340736f

struct logits {
    int64_t n_vocab, ld;
    const int32_t *target;
    int64_t ld_target;
    float *loss;
    int64_t ld_loss;
    const float *step; /* NULL: no gradient */
    const void *bias;  /* or NULL */
    enum tr_dtype bias_dtype;
    float scale, softcap;
    float smoothing, smoothing_each, z_loss;
};

__device__ static float bias_at(const logits &l, int64_t j)
{
    if (!l.bias)
        return 0.0f;
    return l.bias_dtype == TR_BF16  ? to_f32(((const bf16 *)l.bias)[j])
           : l.bias_dtype == TR_F16 ? to_f32(((const f16 *)l.bias)[j])
                                    : ((const float *)l.bias)[j];
}

__device__ static float cap(float s, float c)
{
    return c > 0 ? c * tanhf(s / c) : s;
}

/* A running maximum and the sum of exp(x - max). */
struct peak {
    float max, sum;
};

__device__ static peak join(peak a, peak b)
{
    float m = fmaxf(a.max, b.max);
    if (m == -INFINITY)
        return peak{ m, 0.0f };
    return peak{ m, a.sum * __expf(a.max - m) + b.sum * __expf(b.max - m) };
}

__device__ static peak block_peak(peak p)
{
    __shared__ peak part[32];
#pragma unroll
    for (int d = 16; d > 0; d /= 2)
        p = join(p, peak{ __shfl_xor_sync(0xffffffffu, p.max, d), __shfl_xor_sync(0xffffffffu, p.sum, d) });
    if (threadIdx.x % 32 == 0)
        part[threadIdx.x / 32] = p;
    __syncthreads();
    int lane = threadIdx.x % 32;
    p = lane < THREADS / 32 ? part[lane] : peak{ -INFINITY, 0.0f };
#pragma unroll
    for (int d = 16; d > 0; d /= 2)
        p = join(p, peak{ __shfl_xor_sync(0xffffffffu, p.max, d), __shfl_xor_sync(0xffffffffu, p.sum, d) });
    return p;
}

/* V logits from j on, scaled, with bias and cap; those past the end are -inf. PLAIN: no scale, bias or cap, none past
 * the end. */
template <bool PLAIN, typename T, int V>
__device__ static void capped_of(const pack<T, V> &raw, const logits &l, int64_t j, float out[V])
{
#pragma unroll
    for (int v = 0; v < V; v++) {
        out[v] = to_f32(raw.v[v]);
        if (!PLAIN)
            out[v] = j + v < l.n_vocab ? cap(l.scale * out[v] + bias_at(l, j + v), l.softcap) : -INFINITY;
    }
}

template <bool PLAIN, typename T, int V>
__device__ static peak peak_with(const pack<T, V> &raw, const logits &l, int64_t j, peak p)
{
    float t[V];
    capped_of<PLAIN, T, V>(raw, l, j, t);
    float m = p.max;
#pragma unroll
    for (int v = 0; v < V; v++)
        m = fmaxf(m, t[v]);
    float sum = p.sum * __expf(p.max - m), less = m * LOG2E;
#pragma unroll
    for (int v = 0; v < V; v++)
        sum += power_of_2(t[v] * LOG2E - less);
    return peak{ m, m == -INFINITY ? 0.0f : sum };
}

/* The gradient of V logits, in their place. */
template <bool PLAIN, typename T, int V>
__device__ static void turn(const pack<T, V> &raw, T *z, const logits &l, int64_t j, float lse, float by)
{
    float t[V], less = lse * LOG2E;
    capped_of<PLAIN, T, V>(raw, l, j, t);
#pragma unroll
    for (int v = 0; v < V; v++) {
        float capped = !PLAIN && l.softcap > 0 ? t[v] / l.softcap : 0.0f;
        float slope = !PLAIN && j + v < l.n_vocab ? 1.0f - capped * capped : 1.0f;
        t[v] = power_of_2(t[v] * LOG2E - less) * by * slope;
    }
    store<V>(z + j, t);
}

/* One block for each row; works for any head. z (rows, ld), ld a multiple of 64: wide access is always right, the
 * padding is never used. The row's second pass finds it in the L2 cache. */
template <typename T, int V> __global__ void __launch_bounds__(THREADS) loss_kernel(T *z_all, logits l)
{
    int64_t row = blockIdx.x, target = l.target[row * l.ld_target];
    T *z = z_all + row * l.ld;
    if (target < 0) {
        float t[V];
        for (int v = 0; v < V; v++)
            t[v] = 0;
        for (int64_t j = threadIdx.x * V; l.step && j < l.n_vocab; j += THREADS * V)
            store<V>(z + j, t);
        if (threadIdx.x == 0)
            l.loss[row * l.ld_loss] = 0;
        return;
    }
    peak p = { -INFINITY, 0.0f };
    for (int64_t j = threadIdx.x * V; j < l.n_vocab; j += THREADS * V)
        p = peak_with<false, T, V>(raw<T, V>(z + j), l, j, p);
    p = block_peak(p);
    float lse = p.max + logf(p.sum), at = 0;
    if (threadIdx.x == 0) {
        at = cap(l.scale * to_f32(z[target]) + bias_at(l, target), l.softcap);
        l.loss[row * l.ld_loss] = lse - at;
    }
    if (!l.step)
        return;
    float by = l.step[TR_STEP_INV_TOKENS] * l.scale;
    __syncthreads(); /* thread 0 has read the target's logit */
    for (int64_t j = threadIdx.x * V; j < l.n_vocab; j += THREADS * V)
        turn<false, T, V>(raw<T, V>(z + j), z, l, j, lse, by);
    __syncthreads();
    if (threadIdx.x == 0) { /* the gradient of the target's logit: softmax - 1 */
        float x = l.softcap > 0 ? at / l.softcap : 0.0f;
        z[target] = from_f32<T>((expf(at - lse) - 1.0f) * by * (1.0f - x * x));
    }
}

/* For packs [h, end) of a thread: turns those of this row into their gradient, and adds those of the next row, if there
 * is one, to its peak. HELD: the packs of this row are in shared memory, and those of the next row replace them. One
 * pack at a time is enough: 32 warps hide the latency. */
template <typename T, int V, bool HELD>
__device__ static peak turn_and_read(T *z, const T *next, pack<T, V> *held, int h, int end, const logits &l, float lse,
                                     float by, peak p)
{
    for (; h < end; h++) {
        int64_t at = (int64_t)h * THREADS * V;
        pack<T, V> there = {}, here = HELD ? held[h * THREADS] : raw<T, V>(z + at);
        if (next)
            there = raw<T, V>(next + at);
        turn<true, T, V>(here, z, l, at, lse, by);
        if (next && HELD)
            held[h * THREADS] = there;
        if (next)
            p = peak_with<true, T, V>(there, l, 0, p);
    }
    return p;
}

/* Columns from the vocabulary's end to the end of its last pack become -inf, which adds nothing to a sum of exponents
 * and has the gradient 0, so that a kernel may read whole packs without a check. */
template <typename T> __global__ void pad_kernel(T *z, int64_t ld, int64_t n_vocab, int64_t width, int64_t n_rows)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n_rows * width)
        z[i / width * ld + n_vocab + i % width] = from_f32<T>(-INFINITY);
}

/* The usual case of training: no bias, cap or scale, gradients wanted; the last pack is padded (pad_kernel). There is
 * one block for each multiprocessor. The same loop turns one row into its gradient and reads the next row, so memory
 * reads and writes overlap. The first n_held packs of a thread stay in shared memory between the two passes over a row,
 * the others in the L2 cache. */
template <typename T, int V>
__global__ void __launch_bounds__(THREADS) plain_loss_kernel(T *z_all, logits l, int64_t n_rows, int n_held)
{
    extern __shared__ __align__(16) char memory[];
    pack<T, V> *held = (pack<T, V> *)memory + threadIdx.x;
    int n = (int)(((l.n_vocab + V - 1) / V + THREADS - 1 - threadIdx.x) / THREADS),
        m = min(n, n_held); /* packs of this thread */
    float inv_tokens = l.step[TR_STEP_INV_TOKENS];
    peak p = { -INFINITY, 0.0f };
    T *z = z_all + blockIdx.x * l.ld + threadIdx.x * V;
    for (int h = 0; h < n; h++) {
        pack<T, V> first = raw<T, V>(z + h * THREADS * V);
        p = peak_with<true, T, V>(first, l, 0, p);
        if (h < m)
            held[h * THREADS] = first;
    }
    for (int64_t row = blockIdx.x; row < n_rows; row += gridDim.x, z += gridDim.x * l.ld) {
        int64_t target = l.target[row * l.ld_target];
        const T *next = row + gridDim.x < n_rows ? z + gridDim.x * l.ld : NULL;
        bool is_mine = target >= 0 && target / V % THREADS == threadIdx.x;
        float at = is_mine ? to_f32(z[target - threadIdx.x * V]) : 0.0f, by = target < 0 ? 0.0f : inv_tokens;
        p = block_peak(p);
        float lse = p.max + logf(p.sum);
        p = peak{ -INFINITY, 0.0f };
        p = turn_and_read<T, V, true>(z, next, held, 0, m, l, lse, by, p);
        p = turn_and_read<T, V, false>(z, next, held, m, n, l, lse, by, p);
        if (is_mine)
            z[target - threadIdx.x * V] = from_f32<T>((expf(at - lse) - 1.0f) * by);
        if (is_mine || (target < 0 && threadIdx.x == 0))
            l.loss[row * l.ld_loss] = is_mine ? lse - at : 0.0f;
        __syncthreads(); /* all threads have read the sums of this row before those of the next are written */
    }
}

struct head_run {
    const struct tr_call *c;
    enum tr_dtype dtype; /* of the logits */
    void *z, *workspace, *colsum;
    int64_t ld, block;
    bool want_grad;
};

static void *row_at(const struct tr_view &v, int64_t row)
{
    return (char *)v.data + (size_t)(row * v.ld) * tr_dtype_bytes(v.dtype);
}

/* The logits of n rows as a view. */
static struct tr_view z_of(const struct head_run *h, int64_t n)
{
    struct tr_view z = {};
    z.data = h->z, z.dtype = h->dtype, z.rows = n, z.cols = h->c->in[1].rows, z.ld = h->ld;
    return z;
}

static struct logits logits_of(const struct head_run *h, int64_t row)
{
    const struct tr_call *c = h->c;
    return logits{ c->in[1].rows,
                   h->ld,
                   (const int32_t *)row_at(c->in[3], row),
                   c->in[3].ld,
                   (float *)row_at(c->out[0], row),
                   c->out[0].ld,
                   h->want_grad ? (const float *)c->in[4].data : NULL,
                   c->in[2].data,
                   c->in[2].dtype,
                   factor_of(c),
                   c->attr.softcap,
                   c->attr.smoothing,
                   c->attr.smoothing_each,
                   c->attr.z_loss };
}

template <typename T> static void run_loss(const struct head_run *h, int64_t row, int64_t n)
{
    const struct tr_call *c = h->c;
    logits l = logits_of(h, row);
    enum { V = 16 / sizeof(T) };
    bool is_plain = !l.bias && l.softcap == 0.0f && l.scale == 1.0f && l.step;
    int64_t pad = ceil_div(l.n_vocab, V) * V - l.n_vocab;
    int shared = 0, n_held = 0;
    if (is_plain && pad > 0)
        start(c, pad_kernel<T>, (unsigned)ceil_div(n * pad, 256), 256, 0, (T *)h->z, l.ld, l.n_vocab, pad, n);
    if (is_plain) {
        n_held = ((int)shared_of_gpu() - 1024) / (THREADS * 16);
        n_held = (int)tr_min64(n_held, ceil_div(l.n_vocab, THREADS * V));
        shared = n_held * THREADS * 16;
        (void)cudaFuncSetAttribute(plain_loss_kernel<T, V>, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
        start(c, plain_loss_kernel<T, V>, (unsigned)tr_min64(c->dev->n_units, n), THREADS, (size_t)shared, (T *)h->z, l,
              n, n_held);
    } else {
        start(c, loss_kernel<T, V>, (unsigned)n, THREADS, 0, (T *)h->z, l);
    }
}

/* z = x W^T + beta z */
static void add_product(const struct head_run *h, int64_t row, int64_t n, const struct tr_view &x,
                        const struct tr_view &w, float beta)
{
    struct cuda_gemm g = {};
    g.m = n, g.n = w.rows, g.k = x.cols;
    g.a = row_at(x, row), g.lda = x.ld, g.a_dtype = x.dtype;
    g.b = w.data, g.ldb = w.ld, g.b_t = true;
    g.c = h->z, g.ldc = g.ldd = h->ld, g.c_dtype = h->dtype;
    g.beta = beta;
    (void)tr_cuda_gemm(h->c, &g, h->workspace);
}

static void block_product(const struct head_run *h, int64_t row, int64_t n)
{
    const struct tr_view *in = h->c->in, &u = in[tr_head_u(h->c->op)];
    add_product(h, row, n, in[0], in[1], 0.0f);
    if (u.data)
        add_product(h, row, n, u, (&u)[1], 1.0f);
}

/* dx = z W; dW (+)= z^T x. dx, dw: outputs. */
static void pair_grads(const struct head_run *h, int64_t row, int64_t n, const struct tr_view &x,
                       const struct tr_view &w, int out_dx, int out_dw)
{
    const struct tr_call *c = h->c;
    const struct tr_view &dx = c->out[out_dx], &dw = c->out[out_dw];
    struct cuda_gemm g = {};
    if (dx.data) {
        g.m = n, g.n = x.cols, g.k = w.rows;
        g.a = h->z, g.lda = h->ld, g.a_dtype = h->dtype;
        g.b = w.data, g.ldb = w.ld;
        g.c = row_at(dx, row), g.ldc = g.ldd = dx.ld, g.c_dtype = dx.dtype;
        (void)tr_cuda_gemm(c, &g, h->workspace);
    }
    if (dw.data) {
        g = cuda_gemm{};
        g.m = w.rows, g.n = x.cols, g.k = n;
        g.a = h->z, g.lda = h->ld, g.a_dtype = h->dtype, g.a_t = true;
        g.b = row_at(x, row), g.ldb = x.ld;
        g.c = dw.data, g.ldc = g.ldd = dw.ld, g.c_dtype = dw.dtype;
        g.beta = c->accumulate[out_dw] || row > 0 ? 1.0f : 0.0f;
        (void)tr_cuda_gemm(c, &g, h->workspace);
    }
}

/* out: the index of dx among the outputs; dW, db, du and dB follow. */
static void block_grads(const struct head_run *h, int64_t row, int64_t n, int out)
{
    const struct tr_call *c = h->c;
    const struct tr_view &db = c->out[out + 2], &u = c->in[tr_head_u(c->op)];
    pair_grads(h, row, n, c->in[0], c->in[1], out, out + 1);
    if (u.data)
        pair_grads(h, row, n, u, (&u)[1], out + 3, out + 4);
    if (db.data) { /* z carries `scale`, which db must not */
        tr_cuda_colsum(c, z_of(h, n), db, c->accumulate[out + 2] || row > 0, 1.0f / factor_of(c), h->colsum);
    }
}

static struct head_run head_of(const struct tr_call *c, enum tr_dtype dtype)
{
    struct head_run h = {};
    h.c = c;
    h.dtype = dtype;
    h.ld = tr_cuda_head_ld(c->in[1].rows);
    h.block = tr_cuda_head_rows(c, tr_dtype_bytes(h.dtype));
    h.z = c->scratch;
    h.workspace = (char *)c->scratch + (size_t)(h.block * h.ld) * tr_dtype_bytes(h.dtype);
    h.colsum = (char *)h.workspace + TR_CUDA_WORKSPACE;
    return h;
}

static void run_head(const struct tr_call *c, bool want_grad)
{
    struct head_run h = head_of(c, want_grad ? c->in[0].dtype : TR_F32);
    h.want_grad = want_grad;
    for (int64_t row = 0; row < c->in[0].rows; row += h.block) {
        int64_t n = tr_min64(h.block, c->in[0].rows - row);
        block_product(&h, row, n);
        with_type(z_of(&h, n), [&](auto t) { run_loss<decltype(t)>(&h, row, n); });
        if (want_grad)
            block_grads(&h, row, n, 1);
    }
}

/* ---- the same when each rank holds rows [first, first + V) of W ---- */

/* The sum over the block, in every thread. */
__device__ static float block_sum(float x)
{
    __shared__ float part[32];
    for (int d = 16; d > 0; d /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, d);
    if (threadIdx.x % 32 == 0)
        part[threadIdx.x / 32] = x;
    __syncthreads();
    x = part[threadIdx.x % 32]; /* THREADS / 32 is 32 */
    for (int d = 16; d > 0; d /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, d);
    return x;
}

/* Computes the stats of a row for the other ranks, and its capped logits for the gradient. One block for each row. */
__global__ void __launch_bounds__(THREADS)
    stats_kernel(const float *logit, logits l, int64_t first, mat<float> stats, bool has_squares, mat<float> kept)
{
    int64_t row = blockIdx.x, target = l.target[row * l.ld_target], at = target - first;
    const float *z = logit + row * l.ld;
    if (target < 0) {
        if (threadIdx.x == 0)
            *stats.at(row, 0) = -FLT_MAX, *stats.at(row, 1) = 0.0f;
        if (threadIdx.x == 0 && has_squares)
            *stats.at(row, 2) = -FLT_MAX;
        return;
    }
    peak p = { -INFINITY, 0.0f };
    for (int64_t j = threadIdx.x * 4; j < l.n_vocab; j += THREADS * 4)
        p = peak_with<false, float, 4>(raw<float, 4>(z + j), l, j, p);
    p = block_peak(p);
    float spread = 0;
    if (l.smoothing > 0) { /* the same for all threads */
        for (int64_t j = threadIdx.x; j < l.n_vocab; j += THREADS)
            spread += cap(l.scale * z[j] + bias_at(l, j), l.softcap);
        spread = block_sum(spread) * l.smoothing_each;
    }
    float squares = 0; /* of exp(logit - max) */
    if (has_squares) {
        __syncthreads();
        for (int64_t j = threadIdx.x; j < l.n_vocab; j += THREADS)
            squares += expf(2.0f * (cap(l.scale * z[j] + bias_at(l, j), l.softcap) - p.max));
        squares = block_sum(squares);
    }
    if (threadIdx.x == 0 && has_squares)
        *stats.at(row, 2) = 2.0f * p.max + logf(squares);
    if (threadIdx.x == 0) {
        float own = at >= 0 && at < l.n_vocab ? cap(l.scale * z[at] + bias_at(l, at), l.softcap) : 0.0f;
        *stats.at(row, 0) = p.max + logf(p.sum);
        *stats.at(row, 1) = (1.0f - l.smoothing) * own + spread;
    }
    for (int64_t j = threadIdx.x; kept && j < l.n_vocab; j += THREADS)
        *kept.at(row, j) = cap(l.scale * z[j] + bias_at(l, j), l.softcap);
}

__global__ void combine_kernel(mat<const float> stats, int64_t n_ranks, int64_t n, float z_loss, mat<float> loss,
                               mat<float> lse, mat<float> squares)
{
    int64_t row = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    float top = -FLT_MAX, sum = 0, at = 0;
    if (row >= n)
        return;
    for (int64_t r = 0; r < n_ranks; r++)
        top = fmaxf(top, *stats.at(r * n + row, 0));
    for (int64_t r = 0; r < n_ranks && top > -FLT_MAX; r++) {
        sum += expf(*stats.at(r * n + row, 0) - top);
        at += *stats.at(r * n + row, 1);
    }
    float all = sum > 0 ? top + logf(sum) : 0.0f; /* 0: the row has no target */
    *loss.at(row, 0) = sum > 0 ? all - at + z_loss * all * all : 0.0f;
    *lse.at(row, 0) = all;
    if (!squares)
        return;
    float top2 = -FLT_MAX, sum2 = 0;
    for (int64_t r = 0; r < n_ranks; r++)
        top2 = fmaxf(top2, *stats.at(r * n + row, 2));
    for (int64_t r = 0; r < n_ranks; r++)
        sum2 += expf(*stats.at(r * n + row, 2) - top2);
    *squares.at(row, 0) = sum > 0 ? top2 + logf(sum2) - 2.0f * all : 0.0f;
}

/* Turns logits into their gradient: in z, or from the saved logits. */
template <typename T>
__global__ void __launch_bounds__(THREADS) dlogits_kernel(T *out, logits l, int64_t first, mat<const float> lse,
                                                          mat<const float> kept, mat<const float> weight)
{
    int64_t row = blockIdx.x, target = l.target[row * l.ld_target];
    T *z = out + row * l.ld;
    float sum = *lse.at(row, 0), by = l.step[TR_STEP_INV_TOKENS] * l.scale * (weight ? *weight.at(row, 0) : 1.0f);
    float more = 1.0f + 2.0f * l.z_loss * sum;
    for (int64_t j = threadIdx.x; j < l.n_vocab; j += THREADS) {
        float x = kept ? *kept.at(row, j) : cap(l.scale * to_f32(z[j]) + bias_at(l, j), l.softcap);
        float capped = l.softcap > 0 ? x / l.softcap : 0.0f;
        float p = expf(x - sum) * more - l.smoothing_each - (j + first == target ? 1.0f - l.smoothing : 0.0f);
        z[j] = from_f32<T>(target < 0 ? 0.0f : p * by * (1.0f - capped * capped));
    }
}

static struct tr_view rows_of(const struct tr_view &v, int64_t row, int64_t n)
{
    struct tr_view part = v;
    part.data = v.data ? row_at(v, row) : NULL;
    part.rows = n;
    return part;
}

static void block_stats(const struct head_run *h, int64_t row, int64_t n)
{
    const struct tr_call *c = h->c;
    block_product(h, row, n);
    start(c, stats_kernel, (unsigned)n, THREADS, 0, (const float *)h->z, logits_of(h, row), c->attr.first,
          mat_of<float>(rows_of(c->out[0], row, n)), c->out[0].cols > 2, mat_of<float>(rows_of(c->out[1], row, n)));
}

template <typename T> static void block_dlogits(const struct head_run *h, int64_t row, int64_t n)
{
    const struct tr_call *c = h->c;
    start(c, dlogits_kernel<T>, (unsigned)n, THREADS, 0, (T *)h->z, logits_of(h, row), c->attr.first,
          mat_of<const float>(rows_of(c->in[5], row, n)), mat_of<const float>(rows_of(c->in[6], row, n)),
          mat_of<const float>(rows_of(c->in[TR_HEAD_WEIGHT], row, n)));
}

void tr_cuda_HEAD_STATS(const struct tr_call *c)
{
    struct head_run h = head_of(c, TR_F32);
    for (int64_t row = 0; row < c->in[0].rows; row += h.block)
        block_stats(&h, row, tr_min64(h.block, c->in[0].rows - row));
}

void tr_cuda_HEAD_COMBINE(const struct tr_call *c)
{
    int64_t n = c->out[0].rows;
    start(c, combine_kernel, (unsigned)ceil_div(n, 256), 256, 0, mat_of<const float>(c->in[0]),
          c->in[0].rows / tr_max64(n, 1), n, c->attr.z_loss, mat_of<float>(c->out[0]), mat_of<float>(c->out[1]),
          mat_of<float>(c->out[2]));
}

void tr_cuda_HEAD_GRAD(const struct tr_call *c)
{
    struct head_run h = head_of(c, c->in[0].dtype);
    h.want_grad = true;
    for (int64_t row = 0; row < c->in[0].rows; row += h.block) {
        int64_t n = tr_min64(h.block, c->in[0].rows - row);
        if (!c->in[6].data)
            block_product(&h, row, n);
        with_type(z_of(&h, n), [&](auto t) { block_dlogits<decltype(t)>(&h, row, n); });
        block_grads(&h, row, n, 0);
    }
}

void tr_cuda_HEAD_LOSS(const struct tr_call *c)
{
    run_head(c, false);
}

void tr_cuda_HEAD_LOSS_GRAD(const struct tr_call *c)
{
    run_head(c, true);
}
