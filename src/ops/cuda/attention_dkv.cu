/* attention_dkv.cu - attention on tensor cores: dk and dv of a tile of keys, which walks over the queries that see one
 * of them, head by head of the group.
 *
 * The scores are computed transposed, so that the probabilities of a key are a row and go from registers into the next
 * product. Where dk and dv of a key do not fit a warp's registers, several warps (WD) share the key: each computes the
 * scores of some queries, and, after an exchange through shared memory, some columns of dk and dv.
 *
 * Tiles of keys are paired: a lane holds neighbouring keys, whose masks one counter draws.
 */
#include "ops/cuda/attention_bwd.cuh"
#include "ops/cuda/attention_launch.cuh"

/* WK groups of WD warps; a group owns 16 MT keys. BQ queries at a time. */
template <template <int> class E_, int D_, int WK_, int MT_, int WD_, int BQ_, int STAGES_, int BLOCKS_>
struct dkv_shape {
    using E = E_<D_>;
    static constexpr int D = D_, WK = WK_, MT = MT_, WD = WD_, BQ = BQ_, STAGES = STAGES_, BLOCKS = BLOCKS_;
    static constexpr bool IS_FIRST = true;
    static_assert(!E::IS_GROUP || WD == 1, "warps of a group have the columns side by side already");
    static_assert(BQ / WD % 16 == 0 && D / WD % 16 == 0, "products take 16 columns at a time");
    static constexpr int BN = WK * MT * 16, THREADS = WK * WD * 32;
    enum { LSE, DELTA, BEGIN, N_STATS }; /* of each query, four bytes each */
    static constexpr uint32_t ROWS = E::bytes(BQ), STATS = BQ * 4;
    static constexpr uint32_t STAGE = (2 * ROWS + N_STATS * STATS + E::ALIGN - 1) / E::ALIGN * E::ALIGN;
    static constexpr uint32_t KEYS = E::bytes(BN), EXCHANGE = WD > 1 ? BN *(BQ + 8) * 2 : 0;
    static constexpr uint32_t SHARED = 2 * KEYS + STAGES * STAGE + 2 * EXCHANGE;
};

/* How many tiles of queries from row i on see a key before `end`. All threads get the result. */
template <typename T, int BQ> __device__ inline int32_t tiles_that_see(const tile_call<T> &t, int32_t i, int32_t end)
{
    int32_t n = 0, more = 1;
    while (more) {
        int32_t at = i + (n + (int32_t)threadIdx.x) * BQ;
        int32_t found = __syncthreads_count(at < t.rule.n_q && seen_by(t, at).first < end);
        n += found;
        more = found == (int32_t)blockDim.x;
    }
    return n;
}

/* Begins to copy queries [i, i + BQ) of a head with their numbers; rows past the last are zeros and add nothing. */
template <typename T, typename S>
__device__ inline void copy_queries(const bwd_call<T> &f, uint32_t to, int64_t h, int32_t i)
{
    const tile_call<T> &t = f.t;
    int32_t n = t.rule.n_q - i;
    copy_tile<typename S::E, S::BQ, S::THREADS>(to, t.q.at(i, h * t.d), t.q.ld, n, t.d);
    copy_tile<typename S::E, S::BQ, S::THREADS>(to + S::ROWS, f.d_o.at(i, h * t.d), f.d_o.ld, n, t.d);
    to += 2 * S::ROWS;
    for (int x = threadIdx.x; x < S::BQ; x += S::THREADS) {
        bool is_in = x < n;
        int32_t at = is_in ? i + x : i;
        int64_t row = t.rule.row_q + at;
        copy4(to + (uint32_t)x * 4 + S::LSE * S::STATS, t.lse.at(at, h), is_in);
        copy4(to + (uint32_t)x * 4 + S::DELTA * S::STATS, f.delta + h * t.rule.n_q + at, is_in);
        copy4(to + (uint32_t)x * 4 + S::BEGIN * S::STATS, t.begin.at(row, 0), is_in);
    }
}

/* What a lane draws when rows are keys: `query` and `key` are the numbers of query i0 and of key j0 of the tile. */
struct drawn_keys {
    dice d;
    bool is_shared;
    uint32_t query, key;
    int32_t i0, j0;
};

/* Scores and their derivatives, transposed: rows are keys from j on, columns queries from i on, whose numbers begin at
 * `stats`. */
template <typename S, int EXTRA, typename T, int MT, int NT>
__device__ inline void pairs_of_keys(const tile_call<T> &t, float (&s)[MT][NT][4], float (&dp)[MT][NT][4],
                                     const char *stats, const drawn_keys &drawn, int32_t j, int32_t i, bool is_masked)
{
    static_assert(NT % 4 == 0 || NT == 2, "a counter has four columns 8 apart, of which a fragment may have two");
    int lane = threadIdx.x % 4, g = threadIdx.x % 32 / 4;
    uint32_t query = drawn.query + (uint32_t)(i - drawn.i0);
    uint4 w[MT][2]; /* of four fragments, for their columns of each parity */
#pragma unroll
    for (int n = 0; n < NT; n++) {
        if (EXTRA == DROPPED && t.threshold && n % 4 == 0) {
#pragma unroll
            for (int m = 0; m < MT; m++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    int32_t column = n * 8 + 2 * lane + e, key = j + m * 16 + 2 * g;
                    w[m][e] = words_of(t, drawn.d, drawn.is_shared, query + (uint32_t)column,
                                       drawn.key + (uint32_t)(key - drawn.j0), i + column, key);
                    if (NT == 2) {
                        uint2 r = two_words(w[m][e], drawn.is_shared && (query >> 4 & 1));
                        w[m][e] = make_uint4(r.x, r.y, 0, 0);
                    }
                }
        }
        int c = n * 8 + 2 * lane;
        float2 lse = *(const float2 *)(stats + S::LSE * S::STATS + c * 4),
               delta = *(const float2 *)(stats + S::DELTA * S::STATS + c * 4);
        int2 begin = *(const int2 *)(stats + S::BEGIN * S::STATS + c * 4);
        tr_seen sees[2] = { tr_seen_by(&t.rule, i + c, begin.x), tr_seen_by(&t.rule, i + c + 1, begin.y) };
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int32_t at = j + m * 16 + 2 * g + e / 2;
                bool sees_it = !is_masked || (at >= sees[e % 2].first && at < sees[e % 2].end), kept = true;
                if (EXTRA == DROPPED && t.threshold)
                    kept = is_kept(word_of(w[m][e % 2], n % 4), e / 2, t.threshold);
                pair_of<EXTRA>(t, s[m][n][e], dp[m][n][e], (e % 2 ? lse.y : lse.x) * LOG2_E, e % 2 ? delta.y : delta.x,
                               sees_it, kept);
            }
    }
}

/* Writes a result, rounded, where of_shared reads it. */
template <typename T, int K, int MT, int NT> __device__ inline void to_shared(char *to, const float (&x)[MT][NT][4])
{
    int lane = threadIdx.x % 4, g = threadIdx.x % 32 / 4;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int half = 0; half < 2; half++)
                *(uint32_t *)(to + ((m * 16 + half * 8 + g) * (K + 8) + n * 8 + 2 * lane) * 2) =
                    two_of<T>(x[m][n][2 * half], x[m][n][2 * half + 1]);
}

template <typename T, typename S, int EXTRA> __device__ inline void tile_dkv_body(const bwd_call<T> &f)
{
    extern __shared__ __align__(1024) char memory[];
    const tile_call<T> &t = f.t;
    using E = typename S::E;
    constexpr int BN = S::BN, BQ = S::BQ, MT = S::MT, D = S::D, WD = S::WD, NT = BQ / WD / 8, NO = D / WD / 8;
    int32_t n_same = t.n_heads_kv * t.n_rows, x = (int32_t)blockIdx.x; /* the first keys have the most queries */
    int32_t h_kv = x % t.n_heads_kv, row = x % n_same / t.n_heads_kv;
    tr_tile k = tr_tile_at(row, x / n_same, t.row_tokens, BN);
    int64_t col = (int64_t)h_kv * t.d;
    uint32_t k_at = shared_at(memory), v_at = k_at + S::KEYS, stage_at = v_at + S::KEYS;
    char *stages = memory + 2 * S::KEYS, *exchange = stages + S::STAGES * S::STAGE;
    copy_tile<E, BN, S::THREADS, MT, true>(k_at, t.k.at(k.first, col), t.k.ld, k.end - k.first, t.d);
    copy_tile<E, BN, S::THREADS, MT, true>(v_at, t.v.at(k.first, col), t.v.ld, k.end - k.first, t.d);
    int32_t i0 = tr_seen_from(&t.rule, k.first);
    if (i0 < t.rule.n_q) /* they see the first key, if any do */
        copy_queries<T, S>(f, stage_at, h_kv * t.group, i0);
    int32_t n_tiles = tiles_that_see<T, BQ>(t, i0, k.end), n = n_tiles * t.group;
    auto copy = [&](int32_t u) {
        copy_queries<T, S>(f, stage_at + (uint32_t)(u % S::STAGES) * S::STAGE, h_kv * t.group + u / n_tiles,
                           i0 + u % n_tiles * BQ);
    };
    int warp = threadIdx.x / 32, wk = warp / WD, wd = warp % WD;
    int32_t j = k.first + wk * MT * 16;
    drawn_keys drawn = {};
    if (EXTRA == DROPPED && t.threshold && n > 0) {
        int32_t q_end = tr_seen_min(i0 + n_tiles * BQ, t.rule.n_q);
        drawn =
            drawn_keys{ dice_of(t, 0), false, token_of(t, t.rule.row_q + i0), token_of(t, t.rule.row_k + k.first), i0,
                        k.first };
        drawn.is_shared = may_share(t, t.rule.row_q + i0, t.rule.row_q + q_end, 32) &&
                          may_share(t, t.rule.row_k + k.first, t.rule.row_k + k.end, 2);
    }
    k_at += E::template own_rows<MT>(wk), v_at += E::template own_rows<MT>(wk);
    int32_t own = k.first + wk / E::WARPS * E::WARPS * MT * 16; /* of those who compute together */
    float dk[MT][NO][4], dv[MT][NO][4];
    clear(dk), clear(dv);
    for (int32_t u = 0; u < n; u++) {
        int32_t h = h_kv * t.group + u / n_tiles, i = i0 + u % n_tiles * BQ, last = tr_seen_min(i + BQ, t.rule.n_q) - 1;
        if (S::STAGES == 1 && u > 0) {
            __syncthreads();
            copy(u);
        }
        copies_end();
        E::see_copies();
        __syncthreads();
        if (S::STAGES > 1 && u + 1 < n)
            copy(u + 1);
        tr_seen first = seen_by(t, i), end = seen_by(t, last);
        if (end.end <= own || first.first >= own + E::WARPS * MT * 16) /* no query sees a key of theirs */
            continue;
        uint32_t q_at = stage_at + (uint32_t)(u % S::STAGES) * S::STAGE, do_at = q_at + S::ROWS;
        const char *stats = stages + (u % S::STAGES) * S::STAGE + 2 * S::ROWS;
        bool is_masked = first.end < k.end || end.first > k.first;
        drawn.d.c3 = (drawn.d.c3 & 0xffffu) | (uint32_t)(t.head0 + h) << 16;
        float s[MT][NT][4], dp[MT][NT][4];
        E::template of_rows<T, BN>(s, k_at, q_at + E::bytes(wd * BQ / WD));
        E::template of_rows<T, BN>(dp, v_at, do_at + E::bytes(wd * BQ / WD));
        E::wait();
        pairs_of_keys<S, EXTRA>(t, s, dp, stats + wd * (BQ / WD) * 4, drawn, j, i + wd * (BQ / WD), is_masked);
        if constexpr (WD == 1) {
            E::template of_result<T>(dv, s, do_at);
            E::template of_result<T>(dk, dp, q_at);
            E::wait();
        } else {
            constexpr uint32_t GROUP = MT * 16 * (BQ + 8) * 2;
            char *p = exchange + wk * GROUP, *ds = p + S::EXCHANGE;
            to_shared<T, BQ>(p + wd * (BQ / WD) * 2, s);
            to_shared<T, BQ>(ds + wd * (BQ / WD) * 2, dp);
            named_barrier(1 + wk, WD * 32);
            E::template of_shared<T, BQ>(dv, shared_at(p), do_at + wd * (D / WD) * 2);
            E::template of_shared<T, BQ>(dk, shared_at(ds), q_at + wd * (D / WD) * 2);
        }
    }
    int32_t g = j + (int)threadIdx.x % 32 / 4 * 2, cols = t.d - wd * (D / WD);
    col += wd * (D / WD);
    if (f.is_f32) {
        store_grad<float, 1>(f.out[1], f.ld[1], col, cols, dk, t.scale, f.adds[1], g, k.end);
        store_grad<float, 1>(f.out[2], f.ld[2], col, cols, dv, 1.0f, f.adds[2], g, k.end);
    } else {
        store_grad<T, 1>(f.out[1], f.ld[1], col, cols, dk, t.scale, f.adds[1], g, k.end);
        store_grad<T, 1>(f.out[2], f.ld[2], col, cols, dv, 1.0f, f.adds[2], g, k.end);
    }
}

template <typename T, typename S, int EXTRA>
__global__ void __launch_bounds__(S::THREADS, S::BLOCKS) tile_dkv(bwd_call<T> f)
{
    if constexpr (is_of_this_gpu<S>())
        tile_dkv_body<T, S, EXTRA>(f);
}

/* ---- the call ---- */

template <int EXTRA, typename T, typename... S>
static bool first_that_fits(const struct tr_call *c, const bwd_call<T> &f)
{
    int64_t n_same = (int64_t)f.t.n_heads_kv * f.t.n_rows;
    return (tile_launch<S>(c, tile_dkv<T, S, EXTRA>, f, tr_tiles_of_row(f.t.row_tokens, S::BN) * n_same) || ...);
}

/* With caps or dropout some head sizes take the shape of a larger one: fewer kernels to compile. */
template <int EXTRA, typename T> static bool launch(const struct tr_call *c, const bwd_call<T> &f)
{
    int d = f.t.d;
    if constexpr (EXTRA == PLAIN) {
        if (d > 64 && d <= 96)
            return first_that_fits<EXTRA, T, dkv_shape<by_warp, 96, 4, 1, 1, 64, 2, 2>>(c, f);
        if (d > 128 && d <= 192)
            return first_that_fits<EXTRA, T, dkv_shape<by_warp, 192, 2, 2, 4, 64, 1, 1>>(c, f);
    }
    if constexpr (EXTRA == PLAIN)
        if (d <= 64)
            return first_that_fits<EXTRA, T, dkv_shape<by_group, 64, 8, 1, 1, 128, 2, 1>,
                                   small<dkv_shape<by_warp, 64, 4, 1, 1, 64, 2, 2>>>(c, f);
    if constexpr (EXTRA == DROPPED)
        if (d <= 64)
            return first_that_fits<EXTRA, T, dkv_shape<by_group, 64, 4, 1, 1, 64, 2, 3>,
                                   small<dkv_shape<by_warp, 64, 4, 1, 1, 64, 2, 2>>>(c, f);
    if (d <= 128)
        return first_that_fits<EXTRA, T, dkv_shape<by_group, 128, 8, 1, 1, 64, 2, 1>,
                               by_warps<dkv_shape<by_warp, 128, 4, 2, 2, 64, 2, 1>>,
                               small<dkv_shape<by_warp, 128, 4, 1, 1, 32, 2, 2>>>(c, f);
    return first_that_fits<EXTRA, T, dkv_shape<by_warp, 256, 4, 1, 2, 64, 2, 1>,
                           small<dkv_shape<by_warp, 256, 2, 2, 4, 64, 1, 1>>>(c, f);
}

template <typename T> bool tile_launch_dkv(const struct tr_call *c, const bwd_call<T> &f)
{
    bwd_call<T> of_keys = f;
    if (f.t.n_rows == 1)
        of_keys.t.row_tokens = f.t.rule.n_k;
#define RUN(extra) return launch<extra>(c, of_keys)
    FOR_EXTRA(f.t, RUN);
#undef RUN
}
template bool tile_launch_dkv<bf16>(const struct tr_call *c, const bwd_call<bf16> &f);
template bool tile_launch_dkv<f16>(const struct tr_call *c, const bwd_call<f16> &f);
