/* attention_product.cuh - the products of attention's kernels: a warp's (mma.sync, every GPU) or a warpgroup's (wgmma,
 * compute capability 9.0). by_warp and by_group also say how a tile lies in shared memory.
 *
 * Rows and columns that a call does not have are zeros. The results of both have the fragments of mma.m16n8k16: of a
 * 16 x 8 result a lane holds rows lane / 4 and lane / 4 + 8, columns 2 (lane % 4) and the next. The result of one
 * product is the left factor of the next as it is, because the layouts agree; so what lies between two products is the
 * same code for both.
 */
#ifndef TR_OPS_CUDA_ATTENTION_PRODUCT_CUH
#define TR_OPS_CUDA_ATTENTION_PRODUCT_CUH

#include "ops/cuda/ptx.cuh"

template <int MT, int NT> __device__ inline void clear(float (&c)[MT][NT][4])
{
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                c[m][n][e] = 0;
}

/* The left factor of k-step k from a result. */
template <typename T, int NT> __device__ inline void left_of(uint32_t (&a)[4], const float (&p)[NT][4], int k)
{
    a[0] = two_of<T>(p[2 * k][0], p[2 * k][1]);
    a[1] = two_of<T>(p[2 * k][2], p[2 * k][3]);
    a[2] = two_of<T>(p[2 * k + 1][0], p[2 * k + 1][1]);
    a[3] = two_of<T>(p[2 * k + 1][2], p[2 * k + 1][3]);
}

/* Where a lane's address lies in a 16 x 16 block for ldmatrix: of a left factor, or of a right factor stored with the
 * summed dimension along rows (turned); and of a right factor stored with the summed dimension along columns. */
template <int LD> __device__ inline uint32_t lane_of_left()
{
    int lane = threadIdx.x % 32;
    return (uint32_t)(lane % 16 * LD + lane / 16 * 8) * 2;
}
template <int LD> __device__ inline uint32_t lane_of_right()
{
    int lane = threadIdx.x % 32;
    return (uint32_t)((lane % 8 + lane / 16 * 8) * LD + lane / 8 % 2 * 8) * 2;
}

/* ---- products of a warp ---- */

/* Rows are 16 bytes apart from a multiple of 128, so that the eight rows that ldmatrix reads lie in different banks. */
template <int D_> struct by_warp {
    static constexpr int D = D_, LD = D + 8, WARPS = 1;
    static constexpr bool IS_GROUP = false;
    static constexpr uint32_t ALIGN = 16;

    static __host__ __device__ constexpr uint32_t bytes(int rows)
    {
        return (uint32_t)(rows * LD * 2);
    }
    template <int ROWS> static __device__ inline uint32_t place(int row, int col)
    {
        return (uint32_t)(row * LD + col) * 2;
    }
    template <int MT> static __device__ inline int row_at(int row)
    {
        return row;
    }
    /* Where the rows of a warp begin in a left factor. */
    template <int MT> static __device__ inline uint32_t own_rows(int warp)
    {
        return bytes(warp * MT * 16);
    }
    static __device__ inline void see_copies()
    {
    }
    static __device__ inline void wait()
    {
    }

    /* c = A B^T, A (16 MT, D) and B (8 NT, D) in shared memory. */
    template <typename T, int ROWS_A, int MT, int NT>
    static __device__ inline void of_rows(float (&c)[MT][NT][4], uint32_t a_at, uint32_t b_at)
    {
        a_at += lane_of_left<LD>(), b_at += lane_of_right<LD>();
        clear(c);
#pragma unroll
        for (int k = 0; k < D / 16; k++) {
            uint32_t a[MT][4], b[4];
#pragma unroll
            for (int m = 0; m < MT; m++)
                load4x(a[m], a_at + (uint32_t)(m * 16 * LD + k * 16) * 2);
#pragma unroll
            for (int n = 0; n < NT / 2; n++) {
                load4x(b, b_at + (uint32_t)(n * 16 * LD + k * 16) * 2);
#pragma unroll
                for (int m = 0; m < MT; m++) {
                    mma<T>(c[m][2 * n], a[m], b[0], b[1]);
                    mma<T>(c[m][2 * n + 1], a[m], b[2], b[3]);
                }
            }
        }
    }

    /* c += A B, 16 elements of the summed dimension, which are rows of B from b_at on. */
    template <typename T, int MT, int NT>
    static __device__ inline void add_step(float (&c)[MT][NT][4], const uint32_t (&a)[MT][4], uint32_t b_at)
    {
#pragma unroll
        for (int n = 0; n < NT / 2; n++) {
            uint32_t b[4];
            load4x_turned(b, b_at + (uint32_t)(n * 16) * 2);
#pragma unroll
            for (int m = 0; m < MT; m++) {
                mma<T>(c[m][2 * n], a[m], b[0], b[1]);
                mma<T>(c[m][2 * n + 1], a[m], b[2], b[3]);
            }
        }
    }

    /* c += P B, P (16 MT, 8 KT) in registers, rounded to T; B (8 KT, 8 NT) in shared memory, rows of D elements. */
    template <typename T, int MT, int KT, int NT>
    static __device__ inline void of_result(float (&c)[MT][NT][4], const float (&p)[MT][KT][4], uint32_t b_at)
    {
        b_at += lane_of_left<LD>();
#pragma unroll
        for (int k = 0; k < KT / 2; k++) {
            uint32_t a[MT][4];
#pragma unroll
            for (int m = 0; m < MT; m++)
                left_of<T>(a[m], p[m], k);
            add_step<T>(c, a, b_at + (uint32_t)(k * 16 * LD) * 2);
        }
    }

    /* The same with P (16 MT, K) in shared memory, rows of K + 8 elements. */
    template <typename T, int K, int MT, int NT>
    static __device__ inline void of_shared(float (&c)[MT][NT][4], uint32_t a_at, uint32_t b_at)
    {
        constexpr int LD_A = K + 8;
        a_at += lane_of_left<LD_A>(), b_at += lane_of_left<LD>();
#pragma unroll
        for (int k = 0; k < K / 16; k++) {
            uint32_t a[MT][4];
#pragma unroll
            for (int m = 0; m < MT; m++)
                load4x(a[m], a_at + (uint32_t)(m * 16 * LD_A + k * 16) * 2);
            add_step<T>(c, a, b_at + (uint32_t)(k * 16 * LD) * 2);
        }
    }
};

/* ---- products of a warpgroup ---- */

/* Panels of 64 columns (ptx.cuh). A left factor is in the order in which products take it: fragment m of warp w has
 * rows 64 m + 16 w on of its warpgroup's, so that a warp's MT fragments are neighbours as those of by_warp are. */
template <int D_> struct by_group {
    static constexpr int D = D_, WARPS = 4;
    static constexpr bool IS_GROUP = true;
    static constexpr uint32_t ALIGN = 1024;
    static_assert(D % 64 == 0, "whole panels");

    static __host__ __device__ constexpr uint32_t bytes(int rows)
    {
        return (uint32_t)(rows * D * 2);
    }
    template <int ROWS> static __device__ inline uint32_t place(int row, int col)
    {
        return (uint32_t)(col / 64 * ROWS * 128 + row * 128 + (col / 8 % 8 ^ row % 8) * 16);
    }
    template <int MT> static __device__ inline int row_at(int row)
    {
        return row / (64 * MT) * (64 * MT) + row % 64 / 16 * (16 * MT) + row / 64 % MT * 16 + row % 16;
    }
    template <int MT> static __device__ inline uint32_t own_rows(int warp)
    {
        return (uint32_t)(warp / 4 * 64 * MT * 128);
    }
    static __device__ inline void see_copies()
    {
        group_sees_copies();
    }
    /* Until the products are done: of_rows and of_result only begin them. */
    static __device__ inline void wait()
    {
        group_wait<0>();
    }

    /* ROWS_A: of the whole tile that A is part of. */
    template <typename T, int ROWS_A, int MT, int NT>
    static __device__ inline void of_rows(float (&c)[MT][NT][4], uint32_t a_at, uint32_t b_at)
    {
        group_begin();
#pragma unroll
        for (int k = 0; k < D / 16; k++)
#pragma unroll
            for (int m = 0; m < MT; m++)
                group_mma<T>(c[m], group_rows(a_at + (uint32_t)(k / 4 * ROWS_A * 128 + m * 64 * 128 + k % 4 * 32)),
                             group_rows(b_at + (uint32_t)(k / 4 * NT * 8 * 128 + k % 4 * 32)), k > 0);
        group_commit();
    }

    template <typename T, int MT, int KT, int NT>
    static __device__ inline void of_result(float (&c)[MT][NT][4], const float (&p)[MT][KT][4], uint32_t b_at)
    {
        uint32_t a[MT][KT / 2][4];
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int k = 0; k < KT / 2; k++)
                left_of<T>(a[m][k], p[m], k);
        group_begin();
#pragma unroll
        for (int k = 0; k < KT / 2; k++)
#pragma unroll
            for (int m = 0; m < MT; m++)
                group_mma<T, true>(c[m], a[m][k], group_columns(b_at + (uint32_t)(k * 16 * 128), KT * 8 * 128), true);
        group_commit();
    }
};

#endif
