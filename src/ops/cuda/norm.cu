/* norm.cu - layernorm and rmsnorm, whole rows or groups of columns.
 *
 * Forward: a warp owns a row (or one group of it), reads it from memory once and keeps it in registers. Backward: a
 * block walks over rows, a few at a time. A thread has the same columns of each row, so it sums dw and db on the way
 * and reads nothing twice; the partial rows of the blocks are then added in order. A group that fits one warp takes a
 * warp, and its dw is a sum of columns. Rejected: one block for each row in the forward (it waits more than it reads);
 * dx and dw in two kernels for long rows (half as many bytes again).
 */
#include "ops/cuda/cuda.cuh"

enum { WARPS = 4, ROW_THREADS = 512 };

struct norm_shape {
    int64_t n_rows; /* groups of all rows */
    int64_t groups; /* per row */
    int64_t cols;   /* of a group */
    float eps, offset;
};

/* Row r of n_rows = group r % groups of row r / groups. */
template <typename T> __device__ static T *group_at(const mat<T> &x, const norm_shape &s, int64_t r)
{
    if (s.groups == 1) /* a 64-bit division costs as much as the row */
        return x.at(r, 0);
    return x.at(r / s.groups, r % s.groups * s.cols);
}

template <typename T> __device__ static T *rstd_at(const mat<T> &x, const norm_shape &s, int64_t r)
{
    return s.groups == 1 ? x.at(r, 0) : x.at(r / s.groups, r % s.groups);
}

/* LN: mean and rstd, else rstd alone. H: packs of V elements that a lane holds; 0: any number, read again in each pass.
 */
template <typename T, int V, int H, bool LN>
__global__ void __launch_bounds__(WARPS * 32)
    norm_kernel(mat<const T> x, const T *w, const T *b, mat<T> y, mat<float> stats, norm_shape s)
{
    int64_t r = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    int lane = threadIdx.x % 32;
    if (r >= s.n_rows)
        return;
    const T *row = group_at(x, s, r);
    T *out = group_at(y, s, r);
    pack<T, V> held[H > 0 ? H : 1]; /* in the stored type: floats would take twice the registers */
    auto each = [&](auto f) {       /* f(column, values) of this lane's */
                              float t[V];
#pragma unroll
                              for (int h = 0; h < H; h++)
                                  if ((h * 32 + lane) * V < s.cols) {
#pragma unroll
                                      for (int v = 0; v < V; v++)
                                          t[v] = to_f32(held[h].v[v]);
                                      f((h * 32 + lane) * V, t);
                                  }
                              for (int64_t j = lane * V; H == 0 && j < s.cols; j += 32 * V) {
                                  load<V>(row + j, t);
                                  f(j, t);
                              }
    };
#pragma unroll
    for (int h = 0; h < H; h++)
        if ((h * 32 + lane) * V < s.cols)
            held[h] = raw<T, V>(row + (h * 32 + lane) * V);
    float sum = 0, sq = 0;
    if (LN)
        each([&](int64_t, const float(&t)[V]) {
#pragma unroll
            for (int v = 0; v < V; v++)
                sum += t[v];
        });
    float mean = LN ? warp_sum(sum) / (float)s.cols : 0.0f;
    each([&](int64_t, const float(&t)[V]) {
#pragma unroll
        for (int v = 0; v < V; v++)
            sq += (t[v] - mean) * (t[v] - mean);
    });
    float rstd = rsqrtf(warp_sum(sq) / (float)s.cols + s.eps);
    if (lane == 0 && LN) {
        *stats.at(r, 0) = mean;
        *stats.at(r, 1) = rstd;
    } else if (lane == 0) {
        *rstd_at(stats, s, r) = rstd;
    }
    each([&](int64_t j, float(&t)[V]) {
        float wv[V], bv[V] = { 0 };
        load<V>(w + j, wv);
        if (LN && b)
            load<V>(b + j, bv);
#pragma unroll
        for (int v = 0; v < V; v++)
            t[v] = (t[v] - mean) * rstd * (s.offset + wv[v]) + (LN ? bv[v] : 0.0f);
        store<V>(out + j, t);
    });
}

static struct norm_shape shape_of(const struct tr_call *c, const struct tr_view &x, bool is_layer)
{
    int64_t cols = !is_layer && c->attr.group ? c->attr.group : x.cols, groups = x.cols / cols;
    return norm_shape{ x.rows * groups, groups, cols, c->attr.eps, is_layer ? 0.0f : c->attr.weight_offset };
}

static bool groups_are_wide(const struct norm_shape &s, const struct tr_view *const *views, int n, int width)
{
    return s.cols % width == 0 && is_wide(views, n, width);
}

template <typename T, int V, bool LN> static void norm_wide(const struct tr_call *c, const norm_shape &s)
{
    unsigned grid = (unsigned)ceil_div(s.n_rows, WARPS);
    int64_t packs = ceil_div(s.cols, 32 * V);
    mat<const T> x = mat_of<const T>(c->in[0]);
    const T *w = (const T *)c->in[1].data, *b = (const T *)c->in[2].data;
    mat<T> y = mat_of<T>(c->out[0]);
    mat<float> st = mat_of<float>(c->out[1]);
#define RUN(h) norm_kernel<T, V, h, LN><<<grid, WARPS * 32, 0, stream_of(c)>>>(x, w, b, y, st, s)
    if (packs <= 1)
        RUN(1);
    else if (packs <= 3)
        RUN(3);
    else if (packs <= 4)
        RUN(4);
    else if (packs <= 8)
        RUN(8);
    else if (packs <= 16 && V * 16 <= 128)
        RUN(16);
    else
        RUN(0);
#undef RUN
    check_launch(c);
}

template <bool LN> static void norm(const struct tr_call *c)
{
    const struct tr_view *views[] = { &c->in[0], &c->in[1], &c->in[2], &c->out[0] };
    struct tr_view none = {};
    if (!LN || !c->in[2].data)
        views[2] = &none;
    norm_shape s = shape_of(c, c->in[0], LN);
    with_type(c->in[0], [&](auto t) {
        typedef decltype(t) T;
        if (groups_are_wide(s, views, 4, 16 / sizeof(T)))
            norm_wide<T, 16 / sizeof(T), LN>(c, s);
        else
            norm_wide<T, 1, LN>(c, s);
    });
}

void tr_cuda_LAYERNORM(const struct tr_call *c)
{
    norm<true>(c);
}

void tr_cuda_RMSNORM(const struct tr_call *c)
{
    norm<false>(c);
}

/* ---- backward ---- */

template <typename T> struct norm_bwd {
    mat<const T> dy, x, addend;
    const T *w;
    mat<const float> stats;
    mat<T> dx;
    float *part_w, *part_b; /* (parts, cols) */
};

/* Sums R rows over the block, warps in order. Calls must alternate between two `part` arrays, so that every thread has
 * read one before it is written again. */
template <int R> __device__ static void rows_sum(float x[R], float (*part)[ROW_THREADS / 32])
{
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, n_warps = blockDim.x / 32;
#pragma unroll
    for (int k = 0; k < R; k++) {
        x[k] = warp_sum(x[k]);
        if (lane == 0)
            part[k][warp] = x[k];
        x[k] = 0;
    }
    __syncthreads();
    for (int i = 0; i < n_warps; i++)
#pragma unroll
        for (int k = 0; k < R; k++)
            x[k] += part[k][i];
}

/* Starts an asynchronous copy of a pack from global to shared memory. await_all_but<N> waits for all but the last N
 * groups. */
template <typename T, int V> __device__ static void ask(pack<T, V> *to, const T *from)
{
    if (sizeof *to == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((unsigned)__cvta_generic_to_shared(to)),
                     "l"(from)
                     : "memory");
    else
        *to = raw<T, V>(from);
}
__device__ static void end_group()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int N> __device__ static void await_all_but()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/* dx, dw and db of whole rows, R at a time, while the next R rows are being copied to shared memory. A thread reads
 * only what it copied itself, so only the sums wait for other threads. It reads its elements again after the sums,
 * which leaves registers for more blocks. */
template <typename T, int V, bool LN, int R, int MAX_THREADS, int BLOCKS>
__global__ void __launch_bounds__(MAX_THREADS, BLOCKS) norm_bwd_kernel(norm_bwd<T> p, norm_shape s)
{
    enum { DY = 0, X = R, ADD = 2 * R };
    extern __shared__ uint4 ring[];
    __shared__ float part[2][2 * R][ROW_THREADS / 32];
    pack<T, V> *mine = (pack<T, V> *)ring + threadIdx.x, w = {};
    int64_t col = threadIdx.x * V, step = (int64_t)gridDim.x * R;
    int n = blockDim.x, turn = 0;
    bool is_inside = col < s.cols;
    float dw[V], db[V], mean[R], rstd[R];
    auto slot = [&](int which, int half) { return mine + (half * 3 * R + which) * n; };
    auto fetch = [&](int64_t r, int half) {
#pragma unroll
        for (int k = 0; k < R; k++)
            if (is_inside && r + k < s.n_rows) {
                ask<T, V>(slot(DY + k, half), group_at(p.dy, s, r + k) + col);
                ask<T, V>(slot(X + k, half), group_at(p.x, s, r + k) + col);
                if (p.addend)
                    ask<T, V>(slot(ADD + k, half), group_at(p.addend, s, r + k) + col);
            }
        end_group();
    };
    auto read_stats = [&](int64_t r) {
#pragma unroll
        for (int k = 0; k < R; k++) {
            bool is_row = r + k < s.n_rows;
            mean[k] = LN && is_row ? *p.stats.at(r + k, 0) : 0.0f;
            rstd[k] = !is_row ? 0.0f : LN ? *p.stats.at(r + k, 1) : *rstd_at(p.stats, s, r + k);
        }
    };
    if (is_inside)
        w = raw<T, V>(p.w + col);
#pragma unroll
    for (int v = 0; v < V; v++)
        dw[v] = db[v] = 0;
    fetch((int64_t)blockIdx.x * R, 0);
    read_stats((int64_t)blockIdx.x * R);
    for (int64_t r = (int64_t)blockIdx.x * R; r < s.n_rows; r += step, turn ^= 1) {
        float m[2 * R], mean_now[R], rstd_now[R];
        fetch(r + step, turn ^ 1);
#pragma unroll
        for (int k = 0; k < R; k++)
            mean_now[k] = mean[k], rstd_now[k] = rstd[k];
        read_stats(r + step);
        await_all_but<1>();
#pragma unroll
        for (int k = 0; k < R; k++) {
            pack<T, V> dy = {}, x = {};
            float m1 = 0, m2 = 0;
            if (is_inside && r + k < s.n_rows)
                dy = *slot(DY + k, turn), x = *slot(X + k, turn);
#pragma unroll
            for (int v = 0; v < V; v++) {
                float d = to_f32(dy.v[v]), hat = (to_f32(x.v[v]) - mean_now[k]) * rstd_now[k];
                float g = d * (s.offset + to_f32(w.v[v]));
                dw[v] += d * hat;
                db[v] += d;
                m1 += g;
                m2 += g * hat;
            }
            m[k] = m2, m[R + k] = m1;
        }
        rows_sum<LN ? 2 * R : R>(m, part[turn]);
#pragma unroll
        for (int k = 0; k < R; k++) {
            float m2 = m[k] / (float)s.cols, m1 = LN ? m[R + k] / (float)s.cols : 0.0f, out[V];
            if (!is_inside || r + k >= s.n_rows)
                continue;
            pack<T, V> dy = *slot(DY + k, turn), x = *slot(X + k, turn), add = {};
            if (p.addend)
                add = *slot(ADD + k, turn);
#pragma unroll
            for (int v = 0; v < V; v++) {
                float hat = (to_f32(x.v[v]) - mean_now[k]) * rstd_now[k];
                float g = to_f32(dy.v[v]) * (s.offset + to_f32(w.v[v]));
                out[v] = to_f32(add.v[v]) + rstd_now[k] * (g - m1 - hat * m2);
            }
            store<V>(group_at(p.dx, s, r + k) + col, out);
        }
    }
    for (int v = 0; v < V && is_inside; v++) {
        p.part_w[(int64_t)blockIdx.x * s.cols + col + v] = dw[v];
        if (LN)
            p.part_b[(int64_t)blockIdx.x * s.cols + col + v] = db[v];
    }
}

/* dx of short groups, one warp for each. */
template <typename T, int V, bool LN>
__global__ void __launch_bounds__(WARPS * 32) norm_dx_kernel(norm_bwd<T> p, norm_shape s)
{
    int64_t r = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32, j = threadIdx.x % 32 * V;
    if (r >= s.n_rows)
        return;
    bool is_inside = j < s.cols;
    pack<T, V> dy = {}, x = {}, w = {}, add = {};
    if (is_inside) {
        dy = raw<T, V>(group_at(p.dy, s, r) + j);
        x = raw<T, V>(group_at(p.x, s, r) + j);
        w = raw<T, V>(p.w + j);
        if (p.addend)
            add = raw<T, V>(group_at(p.addend, s, r) + j);
    }
    float mean = LN ? *p.stats.at(r, 0) : 0.0f, rstd = LN ? *p.stats.at(r, 1) : *rstd_at(p.stats, s, r);
    float m1 = 0, m2 = 0, out[V];
#pragma unroll
    for (int v = 0; v < V; v++) {
        float g = to_f32(dy.v[v]) * (s.offset + to_f32(w.v[v]));
        m1 += g;
        m2 += g * (to_f32(x.v[v]) - mean) * rstd;
    }
    m1 = LN ? warp_sum(m1) / (float)s.cols : 0.0f;
    m2 = warp_sum(m2) / (float)s.cols;
#pragma unroll
    for (int v = 0; v < V; v++) {
        float g = to_f32(dy.v[v]) * (s.offset + to_f32(w.v[v]));
        out[v] = to_f32(add.v[v]) + rstd * (g - m1 - (to_f32(x.v[v]) - mean) * rstd * m2);
    }
    if (is_inside)
        store<V>(group_at(p.dx, s, r) + j, out);
}

/* dw and db of 32 * V columns over a share of the rows: 8 warps take every eighth row, then are added in order. */
template <typename T, int V, bool LN> __global__ void __launch_bounds__(256) norm_dw_kernel(norm_bwd<T> p, norm_shape s)
{
    __shared__ float shared[8][32 * V];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int64_t col = ((int64_t)blockIdx.x * 32 + lane) * V, each = (s.n_rows + gridDim.y - 1) / gridDim.y,
            r = blockIdx.y * each + warp, end = min(blockIdx.y * each + each, s.n_rows);
    float dw[V], db[V];
#pragma unroll
    for (int v = 0; v < V; v++)
        dw[v] = db[v] = 0;
#pragma unroll 4
    for (; col < s.cols && r < end; r += 8) {
        pack<T, V> dy = raw<T, V>(group_at(p.dy, s, r) + col), x = raw<T, V>(group_at(p.x, s, r) + col);
        float mean = LN ? *p.stats.at(r, 0) : 0.0f, rstd = LN ? *p.stats.at(r, 1) : *rstd_at(p.stats, s, r);
#pragma unroll
        for (int v = 0; v < V; v++) {
            float d = to_f32(dy.v[v]);
            dw[v] += d * (to_f32(x.v[v]) - mean) * rstd;
            db[v] += d;
        }
    }
    for (int pass = 0; pass < (LN ? 2 : 1); pass++) {
        __syncthreads();
#pragma unroll
        for (int v = 0; v < V; v++)
            shared[warp][lane * V + v] = pass ? db[v] : dw[v];
        __syncthreads();
        float *out = (pass ? p.part_b : p.part_w) + (int64_t)blockIdx.y * s.cols;
        for (int j = threadIdx.x; j < 32 * V; j += 256) {
            int64_t at = (int64_t)blockIdx.x * 32 * V + j;
            float sum = 0;
            for (int k = 0; k < 8; k++)
                sum += shared[k][j];
            if (at < s.cols)
                out[at] = sum;
        }
    }
}

/* The same with one block for each row and the columns spread over all threads, for rows too long for a warp's
 * registers. */
template <typename T, bool LN> __global__ void __launch_bounds__(256) norm_bwd_long(norm_bwd<T> p, norm_shape s)
{
    for (int64_t j = threadIdx.x; j < s.cols; j += 256) {
        p.part_w[(int64_t)blockIdx.x * s.cols + j] = 0;
        if (LN)
            p.part_b[(int64_t)blockIdx.x * s.cols + j] = 0;
    }
    for (int64_t r = blockIdx.x; r < s.n_rows; r += gridDim.x) {
        const T *dy = group_at(p.dy, s, r), *x = group_at(p.x, s, r);
        float mean = LN ? *p.stats.at(r, 0) : 0.0f;
        float rstd = LN ? *p.stats.at(r, 1) : *p.stats.at(r / s.groups, r % s.groups), m1 = 0, m2 = 0;
        for (int64_t j = threadIdx.x; j < s.cols; j += 256) {
            float g = to_f32(dy[j]), hat = (to_f32(x[j]) - mean) * rstd;
            p.part_w[(int64_t)blockIdx.x * s.cols + j] += g * hat;
            if (LN)
                p.part_b[(int64_t)blockIdx.x * s.cols + j] += g;
            g *= s.offset + to_f32(p.w[j]);
            m1 += g, m2 += g * hat;
        }
        float2 m = block_sum2(m1, m2);
        m1 = LN ? m.x / (float)s.cols : 0.0f, m2 = m.y / (float)s.cols;
        for (int64_t j = threadIdx.x; j < s.cols; j += 256) {
            float g = to_f32(dy[j]) * (s.offset + to_f32(p.w[j])), hat = (to_f32(x[j]) - mean) * rstd;
            float a = p.addend ? to_f32(group_at(p.addend, s, r)[j]) : 0.0f;
            group_at(p.dx, s, r)[j] = from_f32<T>(a + rstd * (g - m1 - hat * m2));
        }
    }
}

/* Launches as many blocks as run at once, each with its share of the rows. Returns their number. */
template <typename T, int V, bool LN, int R, int MAX_THREADS, int BLOCKS>
static int run_rows(const struct tr_call *c, const norm_bwd<T> &p, const norm_shape &s, int64_t threads)
{
    auto kernel = norm_bwd_kernel<T, V, LN, R, MAX_THREADS, BLOCKS>;
    int per_unit = 1, shared = (int)(2 * 3 * R * threads * (int64_t)sizeof(pack<T, V>));
    (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
    (void)cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_unit, kernel, (int)threads, (size_t)shared);
    int n = (int)tr_min64(tr_min64(TR_CUDA_PARTS, c->dev->n_units * tr_max64(1, per_unit)), ceil_div(s.n_rows, R));
    kernel<<<(unsigned)n, (unsigned)threads, (size_t)shared, stream_of(c)>>>(p, s);
    return n;
}

template <typename T, int V, bool LN> static void norm_bwd_of(const struct tr_call *c, const norm_shape &s)
{
    enum { ROWS = LN ? 4 : 2, BLOCKS = LN ? 1 : 2 }; /* measured on an H200 */
    norm_bwd<T> p = { mat_of<const T>(c->in[0]),     mat_of<const T>(c->in[1]),
                      mat_of<const T>(c->in[4]),     (const T *)c->in[2].data,
                      mat_of<const float>(c->in[3]), mat_of<T>(c->out[0]),
                      (float *)c->scratch,           (float *)c->scratch + (int64_t)TR_CUDA_PARTS * s.cols };
    int64_t threads = (int64_t)tr_round_up((size_t)ceil_div(s.cols, V), 32); /* for whole rows */
    int n_parts;
    if (threads == 32) {
        n_parts = (int)tr_min64(tr_min64(TR_CUDA_PARTS, 8 * c->dev->n_units), ceil_div(s.n_rows, 8));
        norm_dw_kernel<T, V, LN><<<dim3(1, (unsigned)n_parts), 256, 0, stream_of(c)>>>(p, s);
        norm_dx_kernel<T, V, LN><<<(unsigned)ceil_div(s.n_rows, WARPS), WARPS * 32, 0, stream_of(c)>>>(p, s);
    } else if (threads <= ROW_THREADS / 2) {
        n_parts = run_rows<T, V, LN, ROWS, ROW_THREADS / 2, 3>(c, p, s, threads);
    } else if (threads <= ROW_THREADS) {
        n_parts = run_rows<T, V, LN, 2, ROW_THREADS, BLOCKS>(c, p, s, threads);
    } else { /* too long for a block's registers */
        n_parts = (int)tr_min64(TR_CUDA_PARTS, s.n_rows);
        norm_bwd_long<T, LN><<<(unsigned)n_parts, 256, 0, stream_of(c)>>>(p, s);
    }
    check_launch(c);
    tr_cuda_add_parts(c, p.part_w, n_parts, s.cols, &c->out[1], &c->accumulate[1], LN ? 2 : 1, 1.0f);
}

template <bool LN> static void norm_backward(const struct tr_call *c)
{
    const struct tr_view *views[] = { &c->in[0], &c->in[1], &c->in[2], &c->in[4], &c->out[0] };
    norm_shape s = shape_of(c, c->in[1], LN);
    with_type(c->in[0], [&](auto t) {
        typedef decltype(t) T;
        if (groups_are_wide(s, views, 5, 16 / sizeof(T)))
            norm_bwd_of<T, 16 / sizeof(T), LN>(c, s);
        else
            norm_bwd_of<T, 1, LN>(c, s);
    });
}

void tr_cuda_LAYERNORM_BWD(const struct tr_call *c)
{
    norm_backward<true>(c);
}

void tr_cuda_RMSNORM_BWD(const struct tr_call *c)
{
    norm_backward<false>(c);
}
