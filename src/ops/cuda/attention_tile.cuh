/* attention_tile.cuh - what the tensor-core kernels of attention share: the call, tiles in shared memory, products.
 *
 * A tile has rows of D 16-bit elements, 16 bytes apart from a multiple of 128, so that the eight rows that ldmatrix
 * reads lie in different banks. Rows and columns that a call does not have are zeros. Fragments are those of
 * mma.m16n8k16: of a 16 x 8 result a lane holds rows lane / 4 and lane / 4 + 8, columns 2 (lane % 4) and the next. The
 * result of one product is the left factor of the next as it is, because the layouts agree.
 */
#ifndef TR_OPS_CUDA_ATTENTION_TILE_CUH
#define TR_OPS_CUDA_ATTENTION_TILE_CUH

#include "ops/cuda/attention_range.h"
#include "ops/cuda/cuda.cuh"
#include "ops/cuda/ptx.cuh"
#include "ops/dropout.h"

/* ---- the call ---- */

/* What a kernel can do beside the plain softmax; DROPPED: capped scores too. */
enum extra { PLAIN, CAPPED, DROPPED };

/* Where the log-sum-exp of a row and head is: (row of tokens, head, token), or (token, head). */
struct lse_place {
    float *p;
    int64_t row_tokens, ld_row, ld_head, ld;
    __device__ float *at(int64_t i, int64_t h) const
    {
        return p + i / row_tokens * ld_row + h * ld_head + i % row_tokens * ld;
    }
};

template <typename T> struct tile_call {
    mat<const T> q, k, v;
    mat<const int32_t> begin, position;
    mat<const int64_t> sample;
    const float *step;
    struct lse_place lse;
    struct tr_seen_rule rule;
    int32_t d, n_heads, n_heads_kv, group, n_rows,
        row_tokens; /* n_rows rows of row_tokens tokens have their own tiles */
    float scale, softcap, keep_scale;
    uint32_t threshold; /* dropout: numbers below its high half drop their pair; 0 = no dropout */
    uint2 round_key[7]; /* of the generator, one for each round */
    int64_t head0;      /* number of head 0 in the whole model */
};

template <typename T> __device__ inline tr_seen seen_by(const tile_call<T> &t, int32_t i)
{
    return tr_seen_by(&t.rule, i, *t.begin.at(t.rule.row_q + i, 0));
}

/* What rows [first, end) see: `some` and `every` one of them. */
struct seen_rows {
    tr_seen some, every;
};
template <typename T> __device__ inline seen_rows seen_by_rows(const tile_call<T> &t, int32_t first, int32_t end)
{
    if (first >= end)
        return seen_rows{ { 0, 0 }, { 0, 0 } };
    tr_seen a = seen_by(t, first), b = seen_by(t, end - 1);
    return seen_rows{ { a.first, b.end }, { b.first, a.end } };
}

/* Merges the stored result of a row with that of new keys: the log-sum-exp of both, and the weight of each. */
struct merge {
    float lse, old, fresh;
};
__device__ inline merge merge_of(float was, float now)
{
    float top = fmaxf(was, now);
    if (top == -INFINITY)
        return merge{ top, 0.0f, 0.0f };
    float lse = top + logf(expf(was - top) + expf(now - top));
    return merge{ lse, expf(was - lse), expf(now - lse) };
}

/* tanh to a few 2^-23 absolute, which a cap of 50 needs; tanh.approx has 2^-11. */
__device__ inline float tanh_of(float x)
{
    return 1.0f - __fdividef(2.0f, 1.0f + exp2_of(2.0f * 1.44269504f * x));
}

#define LOG2_E 1.44269504f
#define LN_2   0.69314718f

/* ---- tiles ---- */

template <int D> struct tile {
    static constexpr int LD = D + 8;
    static __device__ constexpr uint32_t bytes(int rows)
    {
        return (uint32_t)(rows * LD * 2);
    }
};

/* Rows 8 apart of a tile of paired rows are neighbours: row r of the tile is this one. */
__device__ inline int paired(int r)
{
    return (r & ~15) | (r & 7) << 1 | (r >> 3 & 1);
}

/* Begins to copy rows [0, ROWS) of a head; those from n_rows on, and columns from d on, are zeros. */
template <int D, int ROWS, int THREADS, bool IS_PAIRED = false, typename T>
__device__ inline void copy_tile(uint32_t to, const T *from, int64_t ld, int n_rows, int d)
{
    constexpr int CHUNKS = D / 8, N = ROWS * CHUNKS;
    static_assert(N % THREADS == 0, "every thread copies the same number of chunks");
#pragma unroll
    for (int u = 0; u < N / THREADS; u++) {
        int x = u * THREADS + (int)threadIdx.x, row = x / CHUNKS, col = x % CHUNKS * 8;
        int of = IS_PAIRED ? paired(row) : row;
        bool is_in = of < n_rows && col < d;
        copy16(to + (uint32_t)(row * tile<D>::LD + col) * 2, is_in ? from + of * ld + col : from, is_in);
    }
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

/* c += A B^T, A (16 MT, D) and B (8 NT, D) in shared memory. */
template <typename T, int D, int MT, int NT>
__device__ inline void product_of_rows(float (&c)[MT][NT][4], uint32_t a_at, uint32_t b_at)
{
    constexpr int LD = tile<D>::LD;
    a_at += lane_of_left<LD>(), b_at += lane_of_right<LD>();
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

/* The left factor of k-step k from a result. */
template <typename T, int NT> __device__ inline void left_of(uint32_t a[4], const float (&p)[NT][4], int k)
{
    a[0] = two_of<T>(p[2 * k][0], p[2 * k][1]);
    a[1] = two_of<T>(p[2 * k][2], p[2 * k][3]);
    a[2] = two_of<T>(p[2 * k + 1][0], p[2 * k + 1][1]);
    a[3] = two_of<T>(p[2 * k + 1][2], p[2 * k + 1][3]);
}

/* c += P B, P (16 MT, 8 KT) in registers, rounded to T; B (8 KT, 8 NT) in shared memory, rows of D elements. */
template <typename T, int D, int MT, int KT, int NT>
__device__ inline void product_from_result(float (&c)[MT][NT][4], const float (&p)[MT][KT][4], uint32_t b_at)
{
    constexpr int LD = tile<D>::LD;
    b_at += lane_of_left<LD>();
#pragma unroll
    for (int k = 0; k < KT / 2; k++) {
        uint32_t a[MT][4], b[4];
#pragma unroll
        for (int m = 0; m < MT; m++)
            left_of<T>(a[m], p[m], k);
#pragma unroll
        for (int n = 0; n < NT / 2; n++) {
            load4x_turned(b, b_at + (uint32_t)(k * 16 * LD + n * 16) * 2);
#pragma unroll
            for (int m = 0; m < MT; m++) {
                mma<T>(c[m][2 * n], a[m], b[0], b[1]);
                mma<T>(c[m][2 * n + 1], a[m], b[2], b[3]);
            }
        }
    }
}

/* The same with P (16 MT, K) in shared memory, rows of K + 8 elements. */
template <typename T, int D, int K, int MT, int NT>
__device__ inline void product_of_shared(float (&c)[MT][NT][4], uint32_t a_at, uint32_t b_at)
{
    constexpr int LD = tile<D>::LD, LD_A = K + 8;
    a_at += lane_of_left<LD_A>(), b_at += lane_of_left<LD>();
#pragma unroll
    for (int k = 0; k < K / 16; k++) {
        uint32_t a[MT][4], b[4];
#pragma unroll
        for (int m = 0; m < MT; m++)
            load4x(a[m], a_at + (uint32_t)(m * 16 * LD_A + k * 16) * 2);
#pragma unroll
        for (int n = 0; n < NT / 2; n++) {
            load4x_turned(b, b_at + (uint32_t)(k * 16 * LD + n * 16) * 2);
#pragma unroll
            for (int m = 0; m < MT; m++) {
                mma<T>(c[m][2 * n], a[m], b[0], b[1]);
                mma<T>(c[m][2 * n + 1], a[m], b[2], b[3]);
            }
        }
    }
}

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

/* Stores two neighbouring columns of an output; `adds` to what is there. */
__device__ inline void put2(float *at, float x, float y, bool adds)
{
    float2 *p = (float2 *)at;
    *p = adds ? make_float2(p->x + x, p->y + y) : make_float2(x, y);
}
template <typename T> __device__ inline void put2(T *at, float x, float y, bool adds)
{
    if (adds)
        x += to_f32(at[0]), y += to_f32(at[1]);
    *(uint32_t *)at = two_of<T>(x, y);
}

#endif
