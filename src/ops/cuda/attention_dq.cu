/* attention_dq.cu - attention on tensor cores: dq of a tile of queries, which walks over the keys as the forward does.
 */
#include "ops/cuda/attention_bwd.cuh"
#include "ops/cuda/attention_launch.cuh"

template <template <int> class E_, int D_, int WARPS_, int MT_, int BN_, int STAGES_, int BLOCKS_> struct dq_shape {
    using E = E_<D_>;
    static constexpr int D = D_, WARPS = WARPS_, MT = MT_, BN = BN_, STAGES = STAGES_, BLOCKS = BLOCKS_;
    static constexpr bool IS_FIRST = true;
    static constexpr int BM = WARPS * MT * 16, THREADS = WARPS * 32;
    static constexpr uint32_t KEYS = E::bytes(BN), STAGE = 2 * KEYS, SHARED = 2 * E::bytes(BM) + STAGES * STAGE;
};

template <typename T, typename S, int EXTRA> __device__ inline void tile_dq_body(const bwd_call<T> &f)
{
    extern __shared__ __align__(1024) char memory[];
    const tile_call<T> &t = f.t;
    using E = typename S::E;
    constexpr int BM = S::BM, BN = S::BN, MT = S::MT, D = S::D, NT = BN / 8;
    int32_t n_tiles = tr_tiles_of_row(t.row_tokens, BM), n_same = t.n_heads * t.n_rows, x = (int32_t)blockIdx.x;
    int32_t h = x % t.n_heads, row = x % n_same / t.n_heads;
    tr_tile q = tr_tile_at(row, n_tiles - 1 - x / n_same, t.row_tokens, BM);
    int64_t col = (int64_t)h * t.d, kv = (int64_t)(h / t.group) * t.d;
    uint32_t q_at = shared_at(memory), do_at = q_at + E::bytes(BM), kv_at = do_at + E::bytes(BM);
    copy_tile<E, BM, S::THREADS, MT>(q_at, t.q.at(q.first, col), t.q.ld, q.end - q.first, t.d);
    copy_tile<E, BM, S::THREADS, MT>(do_at, f.d_o.at(q.first, col), f.d_o.ld, q.end - q.first, t.d);
    tr_seen seen = seen_by_rows(t, q.first, q.end).some;
    int32_t first = seen.first, end = seen.end;
    if (EXTRA == DROPPED && t.threshold && first < end && first > 0)
        first -= (int32_t)(token_of(t, t.rule.row_k + first) & 1);
    int32_t n_blocks = first < end ? (end - first + BN - 1) / BN : 0;
    auto copy_keys = [&](int32_t b) {
        int32_t j = first + b * BN;
        uint32_t to = kv_at + (uint32_t)(b % S::STAGES) * S::STAGE;
        copy_tile<E, BN, S::THREADS>(to, t.k.at(j, kv), t.k.ld, end - j, t.d);
        copy_tile<E, BN, S::THREADS>(to + S::KEYS, t.v.at(j, kv), t.v.ld, end - j, t.d);
    };
    if (n_blocks > 0)
        copy_keys(0);
    int warp = threadIdx.x / 32, lane = threadIdx.x % 4;
    int32_t i = q.first + warp * MT * 16 + (int)threadIdx.x % 32 / 4;
    float lse2[MT][2], delta[MT][2], dq[MT][D / 8][4];
    int32_t first_of[MT][2];
    drawn_queries<MT> drawn = {};
    if (EXTRA == DROPPED && t.threshold)
        drawn.init(t, h, q, i, tr_seen{ first, end });
    clear(dq);
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int32_t at = tr_seen_min(i + m * 16 + half * 8, q.end - 1);
            first_of[m][half] = seen_by(t, at).first;
            lse2[m][half] = *t.lse.at(at, h) * LOG2_E;
            delta[m][half] = f.delta[(int64_t)h * t.rule.n_q + at];
        }
    q_at += E::template own_rows<MT>(warp), do_at += E::template own_rows<MT>(warp);
    int32_t own = q.first + warp / E::WARPS * E::WARPS * MT * 16; /* of those who compute together */
    seen_rows own_see = seen_by_rows(t, own, tr_seen_min(own + E::WARPS * MT * 16, q.end));
    for (int32_t b = 0; b < n_blocks; b++) {
        int32_t j = first + b * BN;
        if (S::STAGES == 1 && b > 0) {
            __syncthreads();
            copy_keys(b);
        }
        copies_end();
        E::see_copies();
        __syncthreads();
        if (S::STAGES > 1 && b + 1 < n_blocks)
            copy_keys(b + 1);
        if (j >= own_see.some.end || j + BN <= own_see.some.first) /* keys that only other warps see */
            continue;
        uint32_t k_at = kv_at + (uint32_t)(b % S::STAGES) * S::STAGE;
        float s[MT][NT][4], dp[MT][NT][4];
        E::template of_rows<T, BM>(s, q_at, k_at);
        E::template of_rows<T, BM>(dp, do_at, k_at + S::KEYS);
        E::wait();
        bool is_masked = j < own_see.every.first || j + BN > own_see.every.end;
#pragma unroll
        for (int n = 0; n < NT; n++) {
            uint4 w = make_uint4(~0u, ~0u, ~0u, ~0u);
            if (EXTRA == DROPPED && t.threshold)
                w = drawn.words(t, j + n * 8);
#pragma unroll
            for (int m = 0; m < MT; m++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    int32_t at = j + n * 8 + 2 * lane + e % 2;
                    bool sees_it =
                        !is_masked || (at >= first_of[m][e / 2] && at < tr_seen_end(&t.rule, i + m * 16 + e / 2 * 8));
                    bool kept = is_kept(word_of(w, 2 * m + e / 2), e % 2, t.threshold);
                    pair_of<EXTRA>(t, s[m][n][e], dp[m][n][e], lse2[m][e / 2], delta[m][e / 2], sees_it, kept);
                }
        }
        E::template of_result<T>(dq, dp, k_at);
        E::wait();
    }
    if (f.is_f32)
        store_grad<float, 8>(f.out[0], f.ld[0], col, t.d, dq, t.scale, f.adds[0], i, q.end);
    else
        store_grad<T, 8>(f.out[0], f.ld[0], col, t.d, dq, t.scale, f.adds[0], i, q.end);
}

template <typename T, typename S, int EXTRA>
__global__ void __launch_bounds__(S::THREADS, S::BLOCKS) tile_dq(bwd_call<T> f)
{
    if constexpr (is_of_this_gpu<S>())
        tile_dq_body<T, S, EXTRA>(f);
}

/* ---- the call ---- */

template <int EXTRA, typename T, typename... S>
static bool first_that_fits(const struct tr_call *c, const bwd_call<T> &f)
{
    int64_t n_same = (int64_t)f.t.n_heads * f.t.n_rows;
    return (tile_launch<S>(c, tile_dq<T, S, EXTRA>, f, tr_tiles_of_row(f.t.row_tokens, S::BM) * n_same) || ...);
}

/* With caps or dropout some head sizes take the shape of a larger one: fewer kernels to compile. */
template <int EXTRA, typename T> static bool launch(const struct tr_call *c, const bwd_call<T> &f)
{
    int d = f.t.d;
    if constexpr (EXTRA == PLAIN) {
        if (d > 64 && d <= 96)
            return first_that_fits<EXTRA, T, dq_shape<by_warp, 96, 4, 2, 32, 2, 2>>(c, f);
        if (d > 128 && d <= 192)
            return first_that_fits<EXTRA, T, dq_shape<by_warp, 192, 4, 1, 32, 2, 1>>(c, f);
    }
    if constexpr (EXTRA != CAPPED)
        if (d <= 64)
            return first_that_fits<EXTRA, T, dq_shape<by_group, 64, 4, 1, 64, 2, 3>,
                                   small<dq_shape<by_warp, 64, 4, 2, 64, 2, 2>>>(c, f);
    if (d <= 128)
        return first_that_fits<EXTRA, T, dq_shape<by_group, 128, 8, 1, 64, 2, 1>,
                               by_warps<dq_shape<by_warp, 128, 4, 2, 32, 2, 2>>,
                               small<dq_shape<by_warp, 128, 4, 2, 32, 1, 2>>>(c, f);
    return first_that_fits<EXTRA, T, dq_shape<by_warp, 256, 8, 1, 32, 2, 1>,
                           small<dq_shape<by_warp, 256, 4, 1, 32, 1, 2>>>(c, f);
}

template <typename T> bool tile_launch_dq(const struct tr_call *c, const bwd_call<T> &f)
{
#define RUN(extra) return launch<extra>(c, f)
    FOR_EXTRA(f.t, RUN);
#undef RUN
}
template bool tile_launch_dq<bf16>(const struct tr_call *c, const bwd_call<bf16> &f);
template bool tile_launch_dq<f16>(const struct tr_call *c, const bwd_call<f16> &f);
