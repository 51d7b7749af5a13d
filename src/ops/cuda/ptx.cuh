/* ptx.cuh - instructions of the tensor-core kernels that CUDA C has no name for. Kernels use them through these
 * functions alone, so that tests/emulate can run the kernels on a CPU with another file of this name. */
#ifndef TR_OPS_CUDA_PTX_CUH
#define TR_OPS_CUDA_PTX_CUH

#include "ops/cuda/cuda.cuh"

__device__ inline uint32_t shared_at(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}
/* 16 bytes to shared memory without waiting; zeros when !is_in. */
__device__ inline void copy16(uint32_t to, const void *from, bool is_in)
{
    int n = is_in ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(to), "l"(from), "r"(n) : "memory");
}
__device__ inline void copy4(uint32_t to, const void *from, bool is_in)
{
    int n = is_in ? 4 : 0;
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;\n" ::"r"(to), "l"(from), "r"(n) : "memory");
}
/* 2^x, where exp2f handles denormals too, which do not matter in a sum of exponentials. */
__device__ inline float power_of_2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ inline void copies_end()
{
    asm volatile("cp.async.wait_all;\n" ::: "memory");
}
__device__ inline void load4x(uint32_t r[4], uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at));
}
__device__ inline void load4x_turned(uint32_t r[4], uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at));
}
template <typename T> __device__ inline void mma(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1);
template <> __device__ inline void mma<bf16>(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};\n"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <> __device__ inline void mma<f16>(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};\n"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <typename T> __device__ inline uint32_t two_of(float lo, float hi);
template <> __device__ inline uint32_t two_of<bf16>(float lo, float hi)
{
    __nv_bfloat162 x = __floats2bfloat162_rn(lo, hi);
    return *(uint32_t *)&x;
}
template <> __device__ inline uint32_t two_of<f16>(float lo, float hi)
{
    __half2 x = __floats2half2_rn(lo, hi);
    return *(uint32_t *)&x;
}
__device__ inline float exp2_of(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
/* Waits for n_threads threads of the block that name the same barrier, 1 to 15. */
__device__ inline void named_barrier(int barrier, int n_threads)
{
    asm volatile("bar.sync %0, %1;\n" ::"r"(barrier), "r"(n_threads) : "memory");
}

#endif
