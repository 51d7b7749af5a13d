/* attention_dropout.cuh - which pairs dropout keeps, drawn by the tensor-core kernels of attention as cpu/dropout.h
 * defines it.
 *
 * A counter gives the words of four neighbouring positions of keys. Where a block of keys has one document and begins
 * at a multiple of four (pos0 >= 0: its first position), lanes that hold pairs of the same counter draw once and
 * exchange words; elsewhere (pos0 < 0) every lane draws for itself. Results are bits: bit e = element e of the fragment
 * is kept.
 */
#ifndef TR_OPS_CUDA_ATTENTION_DROPOUT_CUH
#define TR_OPS_CUDA_ATTENTION_DROPOUT_CUH

#include "ops/cuda/attention_tile.cuh"

/* What all counters of a head have in common: the step, the head. */
struct dice {
    uint32_t step_lo, step_hi, head;
};
template <typename T> __device__ inline dice dice_of(const tile_call<T> &t, int32_t h)
{
    uint64_t step = step_number(t.step) << 24;
    return dice{ (uint32_t)step, (uint32_t)(step >> 32), (uint32_t)(t.head0 + h) << 20 };
}

/* A query: its sample and position, as the counter wants them. */
struct drawn_row {
    uint32_t sample, from;
};
template <typename T> __device__ inline drawn_row drawn_row_of(const tile_call<T> &t, int32_t i)
{
    int64_t row = t.rule.row_q + i;
    return drawn_row{ (uint32_t)*t.sample.at(row, 0) & 0xffffffu, (uint32_t)*t.position.at(row, 0) };
}

/* tr_philox of the counter (step << 24 | sample, head << 52 | from << 26 | at >> 2). */
template <typename T>
__device__ inline uint4 draw(const tile_call<T> &t, const dice &d, const drawn_row &r, uint32_t at)
{
    uint32_t c0 = r.from << 26 | at >> 2, c1 = d.head | r.from >> 6, c2 = d.step_lo | r.sample, c3 = d.step_hi;
#pragma unroll
    for (int round = 0; round < 10; round++) {
        uint64_t x = (uint64_t)0xD2511F53u * c0, y = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(y >> 32) ^ c1 ^ t.round_key[round].x, c1 = (uint32_t)y;
        c2 = (uint32_t)(x >> 32) ^ c3 ^ t.round_key[round].y, c3 = (uint32_t)x;
    }
    return make_uint4(c0, c1, c2, c3);
}

/* The first position of keys [j, j + n) when lanes may share draws, else -1. */
template <typename T> __device__ inline int32_t shared_position(const tile_call<T> &t, int32_t j, int32_t n)
{
    int32_t last = tr_seen_min(j + n, t.rule.n_k) - 1;
    int32_t a = *t.position.at(t.rule.row_k + j, 0), b = *t.position.at(t.rule.row_k + last, 0);
    return a % 4 == 0 && b - a == last - j ? a : -1;
}
template <typename T>
__device__ inline bool is_kept(const tile_call<T> &t, const dice &d, const drawn_row &r, int32_t j)
{
    uint32_t at = (uint32_t)*t.position.at(t.rule.row_k + tr_seen_min(j, t.rule.n_k - 1), 0);
    return word_of(draw(t, d, r, at), at) >= t.threshold;
}

/* Rows of the fragment are queries (r: this lane's two), columns keys from j on. */
template <typename T>
__device__ inline uint32_t kept_of_queries(const tile_call<T> &t, const dice &d, const drawn_row r[2], int32_t j,
                                           int32_t pos0)
{
    int lane = threadIdx.x % 4;
    if (pos0 < 0) {
        uint32_t bits = 0;
#pragma unroll 1
        for (int e = 0; e < 4; e++)
            bits |= (uint32_t)is_kept(t, d, e < 2 ? r[0] : r[1], j + 2 * lane + e % 2) << e;
        return bits;
    }
    bool is_odd = lane % 2; /* it draws for the second row */
    uint4 w = draw(t, d, is_odd ? r[1] : r[0], (uint32_t)(pos0 + lane / 2 * 4));
    uint32_t x = __shfl_xor_sync(0xffffffffu, is_odd ? w.x : w.z, 1),
             y = __shfl_xor_sync(0xffffffffu, is_odd ? w.y : w.w, 1);
    uint32_t own0 = is_odd ? w.z : w.x, own1 = is_odd ? w.w : w.y;
    uint32_t own = (uint32_t)(own0 >= t.threshold) | (uint32_t)(own1 >= t.threshold) << 1;
    uint32_t got = (uint32_t)(x >= t.threshold) | (uint32_t)(y >= t.threshold) << 1;
    return is_odd ? got | own << 2 : own | got << 2;
}

/* Rows of the fragment are keys from j on, columns queries (r: this lane's two). Four lanes hold the four keys of a
 * counter; each draws for one of the four (key group, query) pairs, and words go to the lane of their key. */
template <typename T>
__device__ inline uint32_t kept_of_keys(const tile_call<T> &t, const dice &d, const drawn_row r[2], int32_t j,
                                        int32_t pos0)
{
    int g = threadIdx.x % 32 / 4, mine = g % 4;
    if (pos0 < 0) {
        uint32_t bits = 0;
#pragma unroll 1
        for (int e = 0; e < 4; e++)
            bits |= (uint32_t)is_kept(t, d, e % 2 ? r[1] : r[0], j + g + e / 2 * 8) << e;
        return bits;
    }
    uint4 w = draw(t, d, mine % 2 ? r[1] : r[0], (uint32_t)(pos0 + g / 4 * 4 + mine / 2 * 8));
    /* bit 4 k + e: element e of the lane that holds key k; the elements are drawn by lane e, so e = mine here */
    uint32_t kept = (uint32_t)(w.x >= t.threshold) | (uint32_t)(w.y >= t.threshold) << 4 |
                    (uint32_t)(w.z >= t.threshold) << 8 | (uint32_t)(w.w >= t.threshold) << 12;
    kept <<= mine;
    kept |= __shfl_xor_sync(0xffffffffu, kept, 4);
    kept |= __shfl_xor_sync(0xffffffffu, kept, 8);
    return kept >> (4 * mine) & 15u;
}

#endif
