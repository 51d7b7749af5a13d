/* cuda_runtime.h - CUDA kernels on a CPU, for tests: what src/ops/cuda uses of CUDA, so that a C++ compiler takes the
 * very files that nvcc takes (tests/emulate comes before the toolkit on the include path).
 *
 * Every CUDA thread is a stack of its own. Threads of a block take turns and change where they meet: at barriers and at
 * what a warp does together. What is copied without waiting arrives when it is waited for; shared memory begins as NaN;
 * accesses outside what a launch asked for, threads that wait at different places, and lanes that do different things
 * together end the program.
 */
#ifndef TR_TESTS_EMULATE_CUDA_RUNTIME_H
#define TR_TESTS_EMULATE_CUDA_RUNTIME_H

#include <functional>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* ---- words of the language ---- */

#define __global__
#define __device__
#define __host__
#define __shared__   thread_local /* one for all CUDA threads, which are one thread of the host; static in a function */
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z)
    {
    }
};
#define VECTOR2(type, name)                                                                                            \
    struct alignas(2 * sizeof(type)) name {                                                                            \
        type x, y;                                                                                                     \
    };                                                                                                                 \
    static inline name make_##name(type x, type y)                                                                     \
    {                                                                                                                  \
        return name{ x, y };                                                                                           \
    }
VECTOR2(float, float2)
VECTOR2(int, int2)
VECTOR2(unsigned, uint2)
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w)
{
    return uint4{ x, y, z, w };
}

/* ---- threads ---- */

struct emulated {
    dim3 thread, block, block_size, grid; /* of the thread whose turn it is */
};
extern struct emulated emulated;
#define threadIdx (emulated.thread)
#define blockIdx  (emulated.block)
#define blockDim  (emulated.block_size)
#define gridDim   (emulated.grid)

enum { EMULATED_SHARED = 227 << 10 };
extern __shared__ char memory[]; /* what a launch asked for, by the names that kernels give it */
extern __shared__ float shared[];

void emulate_launch(dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()> &thread);
/* Waits for n threads at one of 16 barriers; returns how many of them came with `counts`. */
int emulate_barrier(int barrier, int n, bool counts);
/* The lanes of a warp meet; the last one to come does `together` with what all of them brought. */
void emulate_warp(void *mine, void (*together)(void *const lanes[32]));
/* n bytes of shared memory from `at` on. */
char *emulate_shared(uint32_t at, uint32_t n);
void emulate_copy(uint32_t to, const void *from, uint32_t n, bool is_in);
void emulate_copies_end(void);

static inline void __syncthreads()
{
    emulate_barrier(0, (int)(blockDim.x * blockDim.y * blockDim.z), false);
}
static inline int __syncthreads_count(int is_true)
{
    return emulate_barrier(0, (int)(blockDim.x * blockDim.y * blockDim.z), is_true != 0);
}
static inline void __syncwarp()
{
    emulate_warp(NULL, [](void *const *) {});
}
template <typename T> static inline T __shfl_xor_sync(unsigned, T x, int distance)
{
    struct mine {
        T in, out;
        int from;
    } m = { x, x, (int)threadIdx.x % 32 ^ distance };
    emulate_warp(&m, [](void *const *lanes) {
        for (int i = 0; i < 32; i++)
            ((mine *)lanes[i])->out = ((mine *)lanes[((mine *)lanes[i])->from])->in;
    });
    return m.out;
}
template <typename T> static inline T __shfl_sync(unsigned, T x, int lane)
{
    struct mine {
        T in, out;
        int from;
    } m = { x, x, lane };
    emulate_warp(&m, [](void *const *lanes) {
        for (int i = 0; i < 32; i++)
            ((mine *)lanes[i])->out = ((mine *)lanes[((mine *)lanes[i])->from])->in;
    });
    return m.out;
}
static inline bool __all_sync(unsigned, bool is_true)
{
    emulate_warp(&is_true, [](void *const *lanes) {
        bool all = true;
        for (int i = 0; i < 32; i++)
            all &= *(bool *)lanes[i];
        for (int i = 0; i < 32; i++)
            *(bool *)lanes[i] = all;
    });
    return is_true;
}
static inline bool __any_sync(unsigned lanes, bool is_true)
{
    return !__all_sync(lanes, !is_true);
}
static inline uint32_t __cvta_generic_to_shared(const void *p)
{
    return (uint32_t)((const char *)p - memory);
}

/* ---- arithmetic ---- */

template <typename T> static inline T max(T a, T b)
{
    return a > b ? a : b;
}
template <typename T> static inline T min(T a, T b)
{
    return a < b ? a : b;
}

static inline float __fdividef(float a, float b)
{
    return a / b;
}
static inline float __fdiv_rn(float a, float b)
{
    return a / b;
}
static inline float __fsqrt_rn(float x)
{
    return sqrtf(x);
}
static inline uint32_t __float_as_uint(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
static inline float __uint_as_float(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
#define __expf(x) expf(x) /* glibc has a function of this name */

/* ---- the host's side: every call has happened when it returns ---- */

typedef void *cudaStream_t;
enum cudaError_t { cudaSuccess };
enum {
    cudaDevAttrMaxSharedMemoryPerBlockOptin,
    cudaDevAttrComputeCapabilityMajor,
    cudaFuncAttributeMaxDynamicSharedMemorySize
};
extern int emulated_shared_of_gpu; /* what the GPU says it has for a block */
static inline cudaError_t cudaGetLastError()
{
    return cudaSuccess;
}
static inline const char *cudaGetErrorString(cudaError_t)
{
    return "";
}
static inline cudaError_t cudaGetDevice(int *device)
{
    *device = 0;
    return cudaSuccess;
}
static inline cudaError_t cudaDeviceGetAttribute(int *value, int attribute, int)
{
    bool is_9 = emulated_shared_of_gpu >= EMULATED_SHARED;
    *value = attribute == cudaDevAttrComputeCapabilityMajor ? 8 + is_9 : emulated_shared_of_gpu;
    return cudaSuccess;
}
template <typename F> static inline cudaError_t cudaFuncSetAttribute(F, int, int)
{
    return cudaSuccess;
}
static inline cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t)
{
    memset(p, value, bytes);
    return cudaSuccess;
}
static inline cudaError_t cudaMemset2DAsync(void *p, size_t pitch, int value, size_t bytes, size_t rows, cudaStream_t)
{
    for (size_t i = 0; i < rows; i++)
        memset((char *)p + i * pitch, value, bytes);
    return cudaSuccess;
}

struct tr_call;
template <typename... P, typename... A>
static inline void start(const struct tr_call *, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes,
                         const A &...args)
{
    emulate_launch(grid, block, shared_bytes, [&] { kernel(args...); });
}

#endif
