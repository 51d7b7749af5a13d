/* dora.cu - the ops of DoRA: norms of the rows of W + s B A, and a scale for each column.
 *
 * A block makes the norms of a few rows, so that one load of A serves all of them; the adapted weight itself is never
 * stored. Sums have a fixed order: the same call gives the same bits.
 */
#include "ops/cuda/cuda.cuh"

enum { THREADS = 256, ROWS = 8, TILE = 32 };

/* Column i of ROWS rows of B A. */
template <typename T>
__device__ static void product(mat<const T> b, mat<const T> a, int64_t first, int64_t n_out, int64_t i, int64_t rank,
                               float *out)
{
    for (int64_t k = 0; k < rank; k++) {
        float x = to_f32(*a.at(k, i));
#pragma unroll
        for (int q = 0; q < ROWS; q++)
            if (first + q < n_out)
                out[q] += to_f32(*b.at(first + q, k)) * x;
    }
}

/* rank0: that of A0 and B0; 0: there are none. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    squares_kernel(mat<const T> w, mat<const T> a, mat<const T> b, mat<const T> a0, mat<const T> b0, float *out,
                   int64_t n_out, int64_t n_in, int64_t rank, int64_t rank0, float scale, bool is_in_out)
{
    int64_t first = (int64_t)blockIdx.x * ROWS;
    float sum[ROWS] = {};
    for (int64_t i = threadIdx.x; i < n_in; i += THREADS) {
        float delta[ROWS] = {}, start[ROWS] = {};
        product(b, a, first, n_out, i, rank, delta);
        product(b0, a0, first, n_out, i, rank0, start); /* where nothing has been learnt, the difference is zero */
#pragma unroll
        for (int q = 0; q < ROWS; q++)
            if (first + q < n_out) {
                float x = to_f32(is_in_out ? *w.at(i, first + q) : *w.at(first + q, i)) + scale * (delta[q] - start[q]);
                sum[q] += x * x;
            }
    }
#pragma unroll
    for (int q = 0; q < ROWS; q += 2) {
        float2 both = block_sum2(sum[q], sum[q + 1]);
        if (threadIdx.x == 0 && first + q < n_out)
            out[first + q] = both.x;
        if (threadIdx.x == 0 && first + q + 1 < n_out)
            out[first + q + 1] = both.y;
        __syncthreads();
    }
}

void tr_cuda_ROW_SQUARES(const struct tr_call *c)
{
    int64_t n_out = c->out[0].cols;
    with_type(c->in[0], [&](auto t) {
        typedef decltype(t) T;
        start(c, squares_kernel<T>, (unsigned)ceil_div(n_out, ROWS), THREADS, 0, mat_of<const T>(c->in[0]),
              mat_of<const T>(c->in[1]), mat_of<const T>(c->in[2]), mat_of<const T>(c->in[3]),
              mat_of<const T>(c->in[4]), (float *)c->out[0].data, n_out, c->in[1].cols, c->in[1].rows,
              c->in[3].data ? c->in[3].rows : 0, factor_of(c), c->attr.weight_is_in_out);
    });
}

/* ---- scale ---- */

template <typename T>
__global__ void __launch_bounds__(THREADS)
    scale_kernel(mat<const T> x, const T *m, const float *squares, const T *bias, mat<T> y, int64_t rows, int64_t cols)
{
    int64_t j = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (j >= cols)
        return;
    float scale = to_f32(m[j]) / sqrtf(squares[j]), add = bias ? to_f32(bias[j]) : 0.0f;
    for (int64_t n = blockIdx.y; n < rows; n += gridDim.y)
        *y.at(n, j) = from_f32<T>(to_f32(*x.at(n, j)) * scale + add);
}

template <typename T>
static void scale(const struct tr_call *c, const struct tr_view &x, const struct tr_view &m,
                  const struct tr_view &squares, const void *bias)
{
    const struct tr_view &y = c->out[0];
    dim3 grid((unsigned)ceil_div(y.cols, THREADS), (unsigned)tr_min64(y.rows, 65535));
    start(c, scale_kernel<T>, grid, THREADS, 0, mat_of<const T>(x), (const T *)m.data, (const float *)squares.data,
          (const T *)bias, mat_of<T>(y), y.rows, y.cols);
}

void tr_cuda_COL_SCALE(const struct tr_call *c)
{
    with_type(c->out[0], [&](auto t) {
        typedef decltype(t) T;
        scale<T>(c, c->in[0], c->in[1], c->in[2], c->in[3].data);
    });
}

/* A block sums TILE columns over all rows: thread y takes every TILE-th row, then the parts are added in order. */
template <typename T, typename G>
__global__ void __launch_bounds__(TILE *TILE)
    scale_sums_kernel(mat<const T> dy, mat<const T> x, const float *squares, G *dm, G *db, int64_t rows, int64_t cols,
                      bool adds_dm, bool adds_db)
{
    __shared__ float part[2][TILE][TILE + 1];
    int64_t j = (int64_t)blockIdx.x * TILE + threadIdx.x;
    float m = 0, b = 0;
    for (int64_t n = threadIdx.y; j < cols && n < rows; n += TILE) {
        float d = to_f32(*dy.at(n, j));
        m += d * to_f32(*x.at(n, j));
        b += d;
    }
    part[0][threadIdx.y][threadIdx.x] = m;
    part[1][threadIdx.y][threadIdx.x] = b;
    __syncthreads();
    if (threadIdx.y != 0 || j >= cols)
        return;
    for (int k = 1; k < TILE; k++) {
        m += part[0][k][threadIdx.x];
        b += part[1][k][threadIdx.x];
    }
    if (dm)
        dm[j] = from_f32<G>((adds_dm ? to_f32(dm[j]) : 0.0f) + m / sqrtf(squares[j]));
    if (db)
        db[j] = from_f32<G>((adds_db ? to_f32(db[j]) : 0.0f) + b);
}

template <typename T, typename G> static void scale_sums(const struct tr_call *c)
{
    const struct tr_view &dy = c->in[0];
    start(c, scale_sums_kernel<T, G>, (unsigned)ceil_div(dy.cols, TILE), dim3(TILE, TILE), 0, mat_of<const T>(dy),
          mat_of<const T>(c->in[1]), (const float *)c->in[3].data, (G *)c->out[1].data, (G *)c->out[2].data, dy.rows,
          dy.cols, c->accumulate[1], c->accumulate[2]);
}

void tr_cuda_COL_SCALE_BWD(const struct tr_call *c)
{
    const struct tr_view &sums = c->out[1].data ? c->out[1] : c->out[2];
    with_type(c->in[0], [&](auto t) {
        typedef decltype(t) T;
        if (sums.data)
            is_bf16(sums) ? scale_sums<T, bf16>(c) : scale_sums<T, float>(c);
        scale<T>(c, c->in[0], c->in[2], c->in[3], NULL);
    });
}
