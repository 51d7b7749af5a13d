/* fp8.cu - 8-bit floats: quantising with the tensor's own scale, and their products on the tensor cores.
 *
 * One pass finds the largest element (a maximum has the same bits in any order), a second one makes both copies: a tile
 * is stored directly from registers, and transposed through shared memory. Where the amax history has a value, the
 * first pass returns at once, and the second pass records the largest element in the history for the next step.
 */
#include "ops/cuda/cuda.cuh"

/* PITCH: row pitch of a transposed tile, which spreads columns over memory banks. */
enum { TILE_ROWS = 128, TILE_COLS = 64, PITCH = TILE_ROWS + 4 };

template <typename T, int V>
__global__ void __launch_bounds__(512)
    amax_kernel(mat<const T> x, int64_t rows, int64_t cols, unsigned *amax, const float *past)
{
    __shared__ float part[16];
    float most = 0;
    if (past && past[0] > 0)
        return;
    for (int64_t row = blockIdx.y; row < rows; row += gridDim.y)
        for (int64_t j = ((int64_t)blockIdx.x * 512 + threadIdx.x) * V; j < cols; j += (int64_t)gridDim.x * 512 * V) {
            float t[V];
            load<V>(x.at(row, j), t);
#pragma unroll
            for (int v = 0; v < V; v++)
                most = fmaxf(most, fabsf(t[v]));
        }
    most = warp_max(most);
    if (threadIdx.x % 32 == 0)
        part[threadIdx.x / 32] = most;
    __syncthreads();
    most = threadIdx.x < 16 ? part[threadIdx.x] : 0.0f;
    most = warp_max(most);
    if (threadIdx.x == 0)
        atomicMax(amax, __float_as_uint(most)); /* floats >= 0 compare like their bits */
}

/* The largest element of the warps of a block. Only a block that found a larger one than all blocks so far writes it.
 */
__device__ inline void raise(float *most, const float part[8])
{
    float found = part[0];
    for (int i = 1; i < 8; i++)
        found = fmaxf(found, part[i]);
    if (found > *(volatile float *)most)
        atomicMax((unsigned *)most, __float_as_uint(found));
}

/* One tile; V columns a thread. */
template <typename T, int V, __nv_fp8_interpretation_t F, bool HAS_PAST>
__global__ void __launch_bounds__(256) quant_kernel(mat<const T> x, int64_t rows, int64_t cols, const float *amax,
                                                    mat<uint8_t> q, mat<uint8_t> qt, float *scale, float *past)
{
    const float top = F == __NV_E5M2 ? TR_E5M2_MOST : TR_E4M3_MOST;
    __shared__ float part[8];
    float found = 0;
    __shared__ alignas(16) uint8_t tile[TILE_COLS * PITCH];
    int64_t row0 = (int64_t)blockIdx.y * TILE_ROWS, col0 = (int64_t)blockIdx.x * TILE_COLS;
    float most = HAS_PAST && past[0] > 0 ? past[0] : *amax, by = most > 0 ? __fdiv_rn(top, most) : 1.0f;
    if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0)
        *scale = most > 0 ? __fdiv_rn(most, top) : 1.0f;
    for (int i = threadIdx.x; i < TILE_ROWS * (TILE_COLS / V); i += 256) {
        int r = i / (TILE_COLS / V), k = i % (TILE_COLS / V) * V;
        if (row0 + r >= rows || col0 + k >= cols)
            continue;
        float t[V];
        pack<uint8_t, V> out;
        load<V>(x.at(row0 + r, col0 + k), t);
#pragma unroll
        for (int v = 0; v < V; v++) {
            float scaled = HAS_PAST && isinf(t[v]) ? NAN : t[v] * by;
            out.v[v] = __nv_cvt_float_to_fp8(scaled, __NV_SATFINITE, F);
            found = HAS_PAST ? fmaxf(found, fabsf(t[v])) : 0.0f;
            tile[(k + v) * PITCH + r] = out.v[v];
        }
        *(pack<uint8_t, V> *)q.at(row0 + r, col0 + k) = out;
    }
    if (HAS_PAST) {
        found = warp_max(found);
        if (threadIdx.x % 32 == 0)
            part[threadIdx.x / 32] = found;
    }
    __syncthreads();
    if (HAS_PAST && threadIdx.x == 0)
        raise(&past[1], part);
    enum { W = V == 1 ? 1 : 16 }; /* rows that a thread writes */
    for (int i = threadIdx.x; i < TILE_COLS * (TILE_ROWS / W); i += 256) {
        int k = i / (TILE_ROWS / W), r = i % (TILE_ROWS / W) * W;
        if (col0 + k >= cols || row0 + r >= rows)
            continue;
        if (W == 1) {
            *qt.at(col0 + k, row0 + r) = tile[k * PITCH + r];
        } else {
            const uint32_t *from = (const uint32_t *)&tile[k * PITCH + r];
            *(uint4 *)qt.at(col0 + k, row0 + r) = make_uint4(from[0], from[1], from[2], from[3]);
        }
    }
}

template <typename T, int V, __nv_fp8_interpretation_t F> static void quant_as(const struct tr_call *c)
{
    const struct tr_view &x = c->in[0];
    mat<const T> from = mat_of<const T>(x);
    unsigned *amax = (unsigned *)c->scratch;
    float *past = (float *)c->out[3].data;
    int64_t wide = tr_max64(1, x.cols / (512 * V)), tall = tr_max64(1, tr_min64(x.rows, 8 * c->dev->n_units / wide));
    (void)cudaMemsetAsync(amax, 0, sizeof *amax, stream_of(c));
    amax_kernel<T, V><<<dim3((unsigned)wide, (unsigned)tall), 512, 0, stream_of(c)>>>(from, x.rows, x.cols, amax, past);
    dim3 grid((unsigned)ceil_div(x.cols, TILE_COLS), (unsigned)ceil_div(x.rows, TILE_ROWS));
    auto kernel = past ? quant_kernel<T, V, F, true> : quant_kernel<T, V, F, false>;
    kernel<<<grid, 256, 0, stream_of(c)>>>(from, x.rows, x.cols, (const float *)amax, mat_of<uint8_t>(c->out[0]),
                                           mat_of<uint8_t>(c->out[1]), (float *)c->out[2].data, past);
    check_launch(c);
}

template <typename T, int V> static void quant(const struct tr_call *c)
{
    if (c->out[0].dtype == TR_E5M2)
        quant_as<T, V, __NV_E5M2>(c);
    else
        quant_as<T, V, __NV_E4M3>(c);
}

void tr_cuda_QUANT(const struct tr_call *c)
{
    const struct tr_view &x = c->in[0], &qt = c->out[1];
    const struct tr_view *views[] = { &x, &c->out[0] };
    bool wide = is_wide(views, 2, 8) && x.rows % 16 == 0 && qt.ld % 16 == 0 && (uintptr_t)qt.data % 16 == 0;
    with_type(x, [&](auto t) { wide ? quant<decltype(t), 8>(c) : quant<decltype(t), 1>(c); });
}

void tr_cuda_MATMUL8(const struct tr_call *c)
{
    const struct tr_view &a = c->in[0], &b = c->in[2], &addend = c->in[5], &y = c->out[0];
    struct cuda_gemm g = {};
    g.m = y.rows, g.n = y.cols, g.k = a.cols;
    g.a = a.data, g.lda = a.ld, g.a_dtype = TR_E4M3, g.scale_a = (const float *)c->in[1].data;
    g.b = b.data, g.ldb = b.ld, g.b_t = true, g.scale_b = (const float *)c->in[3].data;
    g.a_is_e5m2 = a.dtype == TR_E5M2, g.b_is_e5m2 = b.dtype == TR_E5M2;
    g.c = y.data, g.ldc = g.ldd = y.ld, g.c_dtype = y.dtype;
    g.bias = c->in[4].data;
    g.is_exact = c->attr.is_gradient;
    if (c->accumulate[0] && addend.data) { /* a product can add only one matrix */
        struct tr_call add = *c;
        add.in[0] = y, add.in[1] = addend;
        tr_cuda_ADD(&add);
    }
    if (c->accumulate[0])
        g.beta = 1.0f;
    else if (addend.data)
        g.d = addend.data, g.ldd = addend.ld, g.beta = 1.0f;
    (void)tr_cuda_gemm(c, &g, c->scratch);
}
