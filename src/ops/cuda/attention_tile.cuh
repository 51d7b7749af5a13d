/* attention_tile.cuh - what the tensor-core kernels of attention share: the call, tiles in shared memory, products.
 */
#ifndef TR_OPS_CUDA_ATTENTION_TILE_CUH
#define TR_OPS_CUDA_ATTENTION_TILE_CUH

#include "ops/cuda/attention_product.cuh"
#include "ops/cuda/attention_range.h"
#include "ops/cuda/cuda.cuh"
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

/* Rows 8 apart of a tile of paired rows are neighbours: row r of the tile is this one. */
__device__ inline int paired(int r)
{
    return (r & ~15) | (r & 7) << 1 | (r >> 3 & 1);
}

/* Begins to copy rows [0, ROWS) of a head as a tile of E; those from n_rows on, and columns from d on, are zeros. MT:
 * fragments of a left factor that a warp has; of a right factor 1. */
template <typename E, int ROWS, int THREADS, int MT = 1, bool IS_PAIRED = false, typename T>
__device__ inline void copy_tile(uint32_t to, const T *from, int64_t ld, int n_rows, int d)
{
    constexpr int CHUNKS = E::D / 8, N = ROWS * CHUNKS;
    static_assert(N % THREADS == 0, "every thread copies the same number of chunks");
#pragma unroll
    for (int u = 0; u < N / THREADS; u++) {
        int x = u * THREADS + (int)threadIdx.x, row = x / CHUNKS, col = x % CHUNKS * 8,
            of = E::template row_at<MT>(row);
        if (IS_PAIRED)
            of = paired(of);
        bool is_in = of < n_rows && col < d;
        copy16(to + E::template place<ROWS>(row, col), is_in ? from + of * ld + col : from, is_in);
    }
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
