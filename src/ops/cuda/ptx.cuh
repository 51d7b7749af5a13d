/* ptx.cuh - instructions of the tensor-core kernels that CUDA C has no name for. Kernels use them through these
 * functions alone, so that tests/emulate can run the kernels on a CPU with another file of this name. */
#ifndef TR_OPS_CUDA_PTX_CUH
#define TR_OPS_CUDA_PTX_CUH

#include "ops/cuda/cuda.cuh"
#include <type_traits>

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

/* ---- products of a warpgroup: four warps, the first a multiple of four (compute capability 9.0 alone) ----
 *
 * c (64 rows, 64 or 128 columns), of which warp w has rows 16 w to 16 w + 15 as mma has them; the summed dimension has
 * 16 elements. An operand in shared memory has panels of 64 columns: rows of 128 bytes from a multiple of 1024 on, of
 * which piece p of 16 bytes lies at p ^ row % 8. A product is under way until group_wait. */

/* An operand whose rows run along the summed dimension, from the address of its first element on. */
__device__ inline uint64_t group_rows(uint32_t at)
{
    return (uint64_t)(at >> 4 & 0x3fff) | 1ull << 16 | (uint64_t)(1024 >> 4) << 32 | 1ull << 62;
}
/* A right factor whose columns do: its rows are elements of the summed dimension; panels are so many bytes apart. */
__device__ inline uint64_t group_columns(uint32_t at, uint32_t panel)
{
    return (uint64_t)(at >> 4 & 0x3fff) | (uint64_t)(panel >> 4) << 16 | (uint64_t)(1024 >> 4) << 32 | 1ull << 62;
}
/* Lets products see what this thread has copied; before the barrier at which the others wait for it. */
__device__ inline void group_sees_copies()
{
    asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
}
__device__ inline void group_begin()
{
    asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
}
__device__ inline void group_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
}
/* Until all but the last N committed products are done. */
template <int N> __device__ inline void group_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(N) : "memory");
}
#define GROUP_4(n) "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])
#define GROUP_32   GROUP_4(0), GROUP_4(1), GROUP_4(2), GROUP_4(3), GROUP_4(4), GROUP_4(5), GROUP_4(6), GROUP_4(7)
#define GROUP_64                                                                                                       \
    GROUP_32, GROUP_4(8), GROUP_4(9), GROUP_4(10), GROUP_4(11), GROUP_4(12), GROUP_4(13), GROUP_4(14), GROUP_4(15)
#define GROUP_NAMES_32                                                                                                 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, "             \
    "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define GROUP_NAMES_64                                                                                                 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, "             \
    "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, "             \
    "%42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, "             \
    "%62, %63"
/* n columns, v values of c for a lane; the other numbers are those of the operands behind c. */
#define GROUP_OF_REGISTERS(type, n, v, a0, a1, a2, a3, b_, adds_, turned_)                                             \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #adds_ ", 0;\n"                                                  \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" GROUP_NAMES_##v                  \
                 "}, "                                                                                                 \
                 "{%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #b_ ", p, 1, 1, %" #turned_ ";\n}\n"                    \
                 : GROUP_##v                                                                                           \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)adds), "n"((int)IS_TURNED))
#define GROUP_OF_SHARED(type, n, v, a_, b_, adds_)                                                                     \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #adds_ ", 0;\n"                                                  \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" GROUP_NAMES_##v                  \
                 "}, "                                                                                                 \
                 "%" #a_ ", %" #b_ ", p, 1, 1, 0, 0;\n}\n"                                                             \
                 : GROUP_##v                                                                                           \
                 : "l"(a), "l"(b), "r"((int)adds))
/* c = A B, or with `adds` c += A B: A in registers as of mma, B by rows or (IS_TURNED) by columns. */
template <typename T, bool IS_TURNED, int NT>
__device__ inline void group_mma(float (&c)[NT][4], const uint32_t (&a)[4], uint64_t b, bool adds)
{
    constexpr bool IS_BF16 = std::is_same<T, bf16>::value;
    static_assert(NT == 8 || NT == 16, "64 or 128 columns");
    if constexpr (NT == 8 && IS_BF16)
        GROUP_OF_REGISTERS("bf16", 64, 32, 32, 33, 34, 35, 36, 37, 38);
    else if constexpr (NT == 8)
        GROUP_OF_REGISTERS("f16", 64, 32, 32, 33, 34, 35, 36, 37, 38);
    else if constexpr (IS_BF16)
        GROUP_OF_REGISTERS("bf16", 128, 64, 64, 65, 66, 67, 68, 69, 70);
    else
        GROUP_OF_REGISTERS("f16", 128, 64, 64, 65, 66, 67, 68, 69, 70);
}
/* The same, A and B in shared memory, both by rows. */
template <typename T, int NT> __device__ inline void group_mma(float (&c)[NT][4], uint64_t a, uint64_t b, bool adds)
{
    constexpr bool IS_BF16 = std::is_same<T, bf16>::value;
    static_assert(NT == 8 || NT == 16, "64 or 128 columns");
    if constexpr (NT == 8 && IS_BF16)
        GROUP_OF_SHARED("bf16", 64, 32, 32, 33, 34);
    else if constexpr (NT == 8)
        GROUP_OF_SHARED("f16", 64, 32, 32, 33, 34);
    else if constexpr (IS_BF16)
        GROUP_OF_SHARED("bf16", 128, 64, 64, 65, 66);
    else
        GROUP_OF_SHARED("f16", 128, 64, 64, 65, 66);
}

#endif
