/* cuda.cuh - what the CUDA kernels share: element access, launches, reductions, and the two libraries.
 *
 * Kernels compute in fp32 whatever the stored type. The trees and chunks of a sum depend on sizes only, and no sum uses
 * atomics, so the same call gives the same bits. Vector width: V elements of 16 bytes when pointers, row pitch and
 * column count allow it, else 1; the arithmetic is the same.
 */
#ifndef TR_OPS_CUDA_CUH
#define TR_OPS_CUDA_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>
extern "C" {
#include "ops/cuda/scratch.h"
#include "ops/ops.h"
}

typedef __nv_bfloat16 bf16;
typedef __half f16;

/* ---- element access ---- */

__device__ inline float to_f32(float x)
{
    return x;
}
__device__ inline float to_f32(bf16 x)
{
    return __bfloat162float(x);
}
__device__ inline float to_f32(f16 x)
{
    return __half2float(x);
}
__device__ inline float to_f32(__nv_fp8_e4m3 x)
{
    return (float)x;
}
__device__ inline float to_f32(__nv_fp8_e5m2 x)
{
    return (float)x;
}
template <typename T> __device__ inline T from_f32(float x);
template <> __device__ inline float from_f32<float>(float x)
{
    return x;
}
template <> __device__ inline bf16 from_f32<bf16>(float x)
{
    return __float2bfloat16_rn(x);
}
template <> __device__ inline f16 from_f32<f16>(float x)
{
    return __float2half_rn(x); /* above 65504: infinity, by which the loss scaler notices an overflow */
}

/* V neighbouring elements as floats, one access. */
template <typename T, int V> struct alignas(sizeof(T) * V) pack {
    T v[V];
};
/* Loads V elements as they are in memory. */
template <typename T, int V> __device__ inline pack<T, V> raw(const T *p)
{
    return *(const pack<T, V> *)p;
}
template <int V, typename T> __device__ inline void load(const T *p, float out[V])
{
    pack<T, V> x = *(const pack<T, V> *)p;
#pragma unroll
    for (int i = 0; i < V; i++)
        out[i] = to_f32(x.v[i]);
}
template <int V, typename T> __device__ inline void store(T *p, const float in[V])
{
    pack<T, V> x;
#pragma unroll
    for (int i = 0; i < V; i++)
        x.v[i] = from_f32<T>(in[i]);
    *(pack<T, V> *)p = x;
}

/* A view as a kernel sees it. */
template <typename T> struct mat {
    T *p;
    int64_t ld;
    __device__ T *at(int64_t row, int64_t col) const
    {
        return p + row * ld + col;
    }
    __device__ explicit operator bool() const
    {
        return p != NULL;
    }
};
template <typename T> static inline mat<T> mat_of(const struct tr_view &v)
{
    return mat<T>{ (T *)v.data, v.ld };
}

/* ---- reductions: the same tree for every launch of a size ---- */

__device__ inline float warp_sum(float x)
{
#pragma unroll
    for (int d = 16; d > 0; d /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, d);
    return x;
}
__device__ inline float warp_max(float x)
{
#pragma unroll
    for (int d = 16; d > 0; d /= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, d));
    return x;
}
/* Sums of two numbers over a block of up to 1024 threads; every thread gets both. */
__device__ inline float2 block_sum2(float a, float b)
{
    __shared__ float2 part[32];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, n_warps = (blockDim.x + 31) / 32;
    a = warp_sum(a), b = warp_sum(b);
    __syncthreads();
    if (lane == 0)
        part[warp] = make_float2(a, b);
    __syncthreads();
    float2 x = lane < n_warps ? part[lane] : make_float2(0, 0);
    return make_float2(warp_sum(x.x), warp_sum(x.y));
}

template <int ROUNDS = 10> /* tr_philox; 7: tr_philox7 */
__device__ inline uint4 philox(uint64_t key, uint64_t hi, uint64_t lo)
{
    uint32_t c0 = (uint32_t)lo, c1 = (uint32_t)(lo >> 32), c2 = (uint32_t)hi, c3 = (uint32_t)(hi >> 32);
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
#pragma unroll
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t x = (uint64_t)0xD2511F53u * c0, y = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(y >> 32) ^ c1 ^ k0, c1 = (uint32_t)y;
        c2 = (uint32_t)(x >> 32) ^ c3 ^ k1, c3 = (uint32_t)x;
        k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
    return make_uint4(c0, c1, c2, c3);
}
__device__ inline uint32_t word_of(uint4 w, int64_t i)
{
    int k = (int)(i & 3);
    return k == 0 ? w.x : k == 1 ? w.y : k == 2 ? w.z : w.w;
}
__device__ inline uint64_t step_number(const float *step)
{
    return (uint64_t)step[TR_STEP_NUMBER_HI] << 24 | (uint64_t)step[TR_STEP_NUMBER_LO];
}

/* ---- host side ---- */

static inline cudaStream_t stream_of(const struct tr_call *c)
{
    return (cudaStream_t)tr_device_stream(c->dev, c->stream);
}
/* Called after a launch: it reports a bad launch configuration at once; other failures show at the next sync. */
static inline void check_launch(const struct tr_call *c)
{
    cudaError_t e = cudaGetLastError();
    if (e != cudaSuccess)
        tr_device_note(c->dev, TR_IO, "device cuda: op %s: %s", tr_op_row(c->op)->name, cudaGetErrorString(e));
}
/* Starts a kernel on the stream of the call. */
#ifdef __CUDACC__
template <typename... P, typename... A>
static inline void start(const struct tr_call *c, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes,
                         const A &...args)
{
    kernel<<<grid, block, shared_bytes, stream_of(c)>>>(args...);
    check_launch(c);
}
#endif
/* The most shared memory that a block of threads may ask for. */
static inline uint32_t shared_of_gpu()
{
    int device = 0, bytes = 0;
    (void)cudaGetDevice(&device);
    (void)cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    return (uint32_t)bytes;
}
static inline int generation_of_gpu() /* the whole part of its compute capability */
{
    int device = 0, major = 0;
    (void)cudaGetDevice(&device);
    (void)cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    return major;
}
static inline float factor_of(const struct tr_call *c) /* attr.scale: 0 = 1 */
{
    return c->attr.scale == 0.0f ? 1.0f : c->attr.scale;
}
static inline bool is_bf16(const struct tr_view &v)
{
    return v.dtype == TR_BF16;
}
static inline bool is_half(const struct tr_view &v) /* two bytes an element */
{
    return v.dtype == TR_BF16 || v.dtype == TR_F16;
}
/* Runs f with a value of the view's element type: with_type(v, [&](auto t) { op<decltype(t)>(c); }). */
template <typename F> static inline void with_type(const struct tr_view &v, F f)
{
    if (v.dtype == TR_BF16)
        f(bf16());
    else if (v.dtype == TR_F16)
        f(f16());
    else
        f(0.0f);
}
static inline int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}
/* May all these views be read `width` elements at a time? Absent ones may. */
static inline bool is_wide(const struct tr_view *const *views, int n, int width)
{
    for (int i = 0; i < n; i++) {
        const struct tr_view *v = views[i];
        size_t bytes = tr_dtype_bytes(v->dtype) * (size_t)width;
        if (v->data && (v->cols % width != 0 || (v->rows > 1 && v->ld % width != 0) || (uintptr_t)v->data % bytes != 0))
            return false;
    }
    return true;
}

/* ---- cuBLASLt (gemm.cu): C (m, n) = A B (+ bias) (+ beta D), row-major ---- */

struct cuda_gemm {
    int64_t m, n, k;
    const void *a, *b, *d; /* beta * d is added; d may be c */
    void *c;
    int64_t lda, ldb, ldc, ldd;
    enum tr_dtype a_dtype, c_dtype; /* b has the type of a, d and bias that of c. E4M3 stands for any 8-bit float: */
    bool a_is_e5m2, b_is_e5m2;
    bool a_t, b_t;
    float beta;
    const void *bias;               /* (n), added to every row */
    const float *scale_a, *scale_b; /* scales of 8-bit operands */
    bool is_exact;                  /* 8-bit: partial sums are moved to fp32 more often */
    void *gelu_aux;                 /* forward: c = gelu(x), aux = x; with is_dgelu: c = (A B) * gelu'(aux) */
    int64_t ld_aux;
    bool is_dgelu;
};
/* Returns false when it cannot fuse gelu (unaligned shape or address); then nothing was done. Without gelu it returns
 * true. */
bool tr_cuda_gemm(const struct tr_call *c, const struct cuda_gemm *g, void *workspace);
/* out (1, cols) (+)= column sums of x; scratch: tr_cuda_colsum_bytes(cols). */
void tr_cuda_colsum(const struct tr_call *c, const struct tr_view &x, const struct tr_view &out, bool accumulate,
                    float scale, void *scratch);

/* out (1, cols) (+)= scale * the sum of n_parts rows of fp32, in a fixed order; An absent output is skipped. The parts
 * of a second output begin TR_CUDA_PARTS rows later. */
void tr_cuda_add_parts(const struct tr_call *c, const float *part, int n_parts, int64_t cols, const struct tr_view *out,
                       const bool *accumulate, int n_out, float scale);

/* ---- engines of attention (attention.cu): false when the engine does not cover the call; then nothing was done ----
 */

bool tr_cudnn_attention(const struct tr_call *c);
bool tr_cudnn_attention_bwd(const struct tr_call *c);
bool tr_tile_attention_covers(const struct tr_call *c);
bool tr_tile_attention(const struct tr_call *c);
bool tr_tile_attention_bwd(const struct tr_call *c);
/* Attention of whole rows, as training calls it, stores lse as (row, head, token), and (token, head) elsewhere. */
static inline bool tr_cuda_lse_is_by_head(const struct tr_call *c, const struct tr_view *lse)
{
    return c->n_documents > 0 && c->attr.seq_len > 0 && lse->rows % c->attr.seq_len == 0 &&
           lse->ld == c->attr.n_heads_q;
}

#define X(id, name) void tr_cuda_##id(const struct tr_call *c);
TR_OP_LIST(X)
#undef X

/* The handles and plans of a device (library.cu). They belong to the compute stream, so no other stream may run an op
 * that uses them. */
struct tr_cuda_library;
static inline struct tr_cuda_library *library_of(const struct tr_call *c)
{
    TR_BUG_ON(c->stream != TR_STREAM_COMPUTE);
    return (struct tr_cuda_library *)c->dev->library;
}

#endif
