/* attention_dropout.cuh - which pairs dropout keeps, drawn by the tensor-core kernels of attention as ops/dropout.h
 * defines it.
 *
 * A counter has the numbers of four queries 8 apart and of two neighbouring keys. Where tokens have consecutive numbers
 * and a tile begins at a multiple of what a counter spans, all of them are elements of one lane, which draws once for
 * eight elements and exchanges nothing. Elsewhere (rows of a length that 32 does not divide) every element is drawn by
 * itself. Tokens of a row have consecutive numbers whatever documents are in it.
 */
#ifndef TR_OPS_CUDA_ATTENTION_DROPOUT_CUH
#define TR_OPS_CUDA_ATTENTION_DROPOUT_CUH

#include "ops/cuda/attention_tile.cuh"

/* The high half of all counters of a head. */
struct dice {
    uint32_t c2, c3;
};
template <typename T> __device__ inline dice dice_of(const tile_call<T> &t, int32_t h)
{
    uint64_t hi = tr_drop_hi_of_head(step_number(t.step), t.head0 + h);
    return dice{ (uint32_t)hi, (uint32_t)(hi >> 32) };
}

/* tr_philox7 */
template <typename T> __device__ inline uint4 draw(const tile_call<T> &t, const dice &d, uint32_t query, uint32_t key)
{
    uint32_t c0 = key >> 1, c1 = tr_drop_group_of_query(query), c2 = d.c2, c3 = d.c3;
#pragma unroll
    for (int round = 0; round < 7; round++) {
        uint64_t x = (uint64_t)0xD2511F53u * c0, y = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(y >> 32) ^ c1 ^ t.round_key[round].x, c1 = (uint32_t)y;
        c2 = (uint32_t)(x >> 32) ^ c3 ^ t.round_key[round].y, c3 = (uint32_t)x;
    }
    return make_uint4(c0, c1, c2, c3);
}

/* The number of a token; i: a row of the micro-batch. */
template <typename T> __device__ inline uint32_t token_of(const tile_call<T> &t, int32_t i)
{
    return tr_drop_token(*t.sample.at(i, 0), *t.position.at(i, 0));
}

/* May lanes draw for several elements of rows [first, end) of the micro-batch? */
template <typename T> __device__ inline bool may_share(const tile_call<T> &t, int32_t first, int32_t end, uint32_t span)
{
    uint32_t a = token_of(t, first), b = token_of(t, end - 1);
    return a % span == 0 && b - a == (uint32_t)(end - 1 - first);
}

/* The numbers of queries i + 8 a and keys j + h, as number h of word a. Shared: `query` and `key` are the numbers of i
 * and j. Of fragments that have 16 of a counter's 32 queries only two words count: two_words says which. */
template <typename T>
__device__ inline uint4 words_of(const tile_call<T> &t, const dice &d, bool is_shared, uint32_t query, uint32_t key,
                                 int32_t i, int32_t j)
{
    if (is_shared)
        return draw(t, d, query, key);
    uint32_t w[4] = {};
#pragma unroll 1
    for (int x = 0; x < 8; x++) {
        query = token_of(t, t.rule.row_q + tr_seen_min(i + x / 2 * 8, t.rule.n_q - 1));
        key = token_of(t, t.rule.row_k + tr_seen_min(j + x % 2, t.rule.n_k - 1));
        int at = tr_drop_at_of_pair(query, key);
        uint32_t number = tr_drop_number(word_of(draw(t, d, query, key), at / 2), at) << x % 2 * 16;
#pragma unroll
        for (int a = 0; a < 4; a++)
            w[a] |= a == x / 2 ? number : 0;
    }
    return make_uint4(w[0], w[1], w[2], w[3]);
}
__device__ inline uint2 two_words(const uint4 &w, bool is_second)
{
    return is_second ? make_uint2(w.z, w.w) : make_uint2(w.x, w.y);
}

/* Is number `half` of a word at least the threshold (which has 16 zeros below it)? */
__device__ inline bool is_kept(uint32_t word, int half, uint32_t threshold)
{
    return (half ? word : word << 16) >= threshold;
}

/* What a lane draws when rows are queries and columns keys: the fragments of a warp whose first query is i of
 * [tile.first, tile.end), for keys [first, end). */
template <int MT> struct drawn_queries {
    static_assert(MT <= 2, "a counter has 32 queries");
    dice d;
    bool is_shared, is_second;
    uint32_t query, key; /* numbers of this lane's first query and of its column of key `first` */
    int32_t i, first;

    template <typename T> __device__ void init(const tile_call<T> &t, int32_t h, tr_tile tile, int32_t i0, tr_seen k)
    {
        d = dice_of(t, h);
        first = k.first, i = i0;
        is_shared = k.first < k.end && may_share(t, t.rule.row_q + tile.first, t.rule.row_q + tile.end, 32) &&
                    may_share(t, t.rule.row_k + k.first, t.rule.row_k + k.end, 2);
        query = token_of(t, t.rule.row_q + tile.first) + (uint32_t)(i - tile.first);
        key = token_of(t, t.rule.row_k + tr_seen_min(first, t.rule.n_k - 1)) + 2 * (threadIdx.x % 4);
        is_second = MT == 1 && is_shared && (query >> 4 & 1);
    }
    /* For the fragments with 8 keys from j on; word 2 m + half is that of fragment m's row `half`. */
    template <typename T> __device__ uint4 words(const tile_call<T> &t, int32_t j) const
    {
        uint4 w = words_of(t, d, is_shared, query, key + (uint32_t)(j - first), i, j + 2 * (int32_t)(threadIdx.x % 4));
        uint2 r = two_words(w, is_second);
        return MT == 1 ? make_uint4(r.x, r.y, 0, 0) : w;
    }
};

#endif
