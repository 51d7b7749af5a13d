/* attention_fwd.cu - attention on tensor cores of any GPU from compute capability 8.0 on: the forward.
 *
 * A block of threads owns a tile of queries of one head and walks over the keys that some query of the tile sees: from
 * the first document's begin (or the window's) to the diagonal. Keys outside are never read, so packed documents cost
 * their own squares. A warp owns 16 or 32 queries; softmax is taken as keys come, in base 2. The next keys and values
 * are copied while the current ones are used. Documents are data (`begin`), so a recorded graph replays any.
 */
#include "ops/cuda/attention_dropout.cuh"
#include "ops/cuda/attention_launch.cuh"

template <template <int> class E_, int D_, int WARPS_, int MT_, int BN_, int STAGES_, int BLOCKS_> struct fwd_shape {
    using E = E_<D_>;
    static constexpr int D = D_, WARPS = WARPS_, MT = MT_, BN = BN_, STAGES = STAGES_, BLOCKS = BLOCKS_;
    static constexpr bool IS_FIRST = true;
    static constexpr int BM = WARPS * MT * 16, THREADS = WARPS * 32;
    static constexpr uint32_t KEYS = E::bytes(BN), STAGE = 2 * KEYS, SHARED = E::bytes(BM) + STAGES * STAGE;
};

template <typename T> struct fwd_call {
    tile_call<T> t;
    void *o;
    int64_t ld_o;
    bool is_f32, merges;
};

/* The state of a lane's rows: largest score so far (in base 2), sum of exponentials, the first key that each sees. */
template <int MT> struct fwd_rows {
    float max[MT][2], sum[MT][2];
    int32_t first[MT][2];
};

/* Scores times log2(e), capped. */
template <int EXTRA, typename T, int MT, int NT>
__device__ inline float cap_scores(const tile_call<T> &t, float (&s)[MT][NT][4])
{
    if (EXTRA == PLAIN || t.softcap <= 0)
        return t.scale * LOG2_E;
    float in = t.scale / t.softcap, out = t.softcap * LOG2_E;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                s[m][n][e] = out * tanh_of(in * s[m][n][e]);
    return 1.0f;
}

/* Rows are queries from i on, columns keys from j on. */
template <typename T, int MT, int NT>
__device__ inline void mask_keys(const tile_call<T> &t, float (&s)[MT][NT][4], const fwd_rows<MT> &r, int32_t i,
                                 int32_t j)
{
    int lane = threadIdx.x % 4;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int32_t at = j + n * 8 + 2 * lane + e % 2;
                if (at < r.first[m][e / 2] || at >= tr_seen_end(&t.rule, i + m * 16 + e / 2 * 8))
                    s[m][n][e] = -INFINITY;
            }
}

__device__ inline float quad_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
__device__ inline float quad_sum(float x)
{
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

/* Turns scores into exponentials relative to the largest so far, and fades what was summed before. */
template <int MT, int NT, int NO>
__device__ inline void softmax_step(float (&s)[MT][NT][4], float (&o)[MT][NO][4], fwd_rows<MT> &r, float factor)
{
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float top = -INFINITY;
#pragma unroll
            for (int n = 0; n < NT; n++)
                top = fmaxf(top, fmaxf(s[m][n][2 * half], s[m][n][2 * half + 1]));
            top = fmaxf(r.max[m][half], quad_max(top) * factor);
            float base = top == -INFINITY ? 0.0f : top, fade = exp2_of(r.max[m][half] - base), sum = 0;
            r.max[m][half] = top;
#pragma unroll
            for (int n = 0; n < NT; n++)
#pragma unroll
                for (int e = 2 * half; e < 2 * half + 2; e++) {
                    s[m][n][e] = exp2_of(s[m][n][e] * factor - base);
                    sum += s[m][n][e];
                }
            r.sum[m][half] = r.sum[m][half] * fade + sum;
#pragma unroll
            for (int n = 0; n < NO; n++)
                o[m][n][2 * half] *= fade, o[m][n][2 * half + 1] *= fade;
        }
}

template <typename T, int MT, int NT>
__device__ inline void drop_keys(const tile_call<T> &t, float (&p)[MT][NT][4], const drawn_queries<MT> &drawn,
                                 int32_t j)
{
#pragma unroll
    for (int n = 0; n < NT; n++) {
        uint4 w = drawn.words(t, j + n * 8);
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                p[m][n][e] = is_kept(word_of(w, 2 * m + e / 2), e % 2, t.threshold) ? p[m][n][e] : 0.0f;
    }
}

template <typename O, typename T, int MT, int NO>
__device__ inline void store_rows(const fwd_call<T> &f, float (&o)[MT][NO][4], const fwd_rows<MT> &r, int64_t h,
                                  int32_t i, int32_t end)
{
    int lane = threadIdx.x % 4;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int32_t row = i + m * 16 + half * 8;
            float sum = quad_sum(r.sum[m][half]), lse = (r.max[m][half] + log2f(sum)) * LN_2;
            float *at_lse = f.t.lse.at(tr_seen_min(row, end - 1), h);
            merge w = { sum > 0 ? lse : -INFINITY, 0.0f, 1.0f };
            if (f.merges)
                w = merge_of(*at_lse, w.lse);
            __syncwarp(); /* all lanes have read lse */
            if (row >= end)
                continue;
            if (lane == 0)
                *at_lse = w.lse;
            float factor = sum > 0 ? w.fresh * f.t.keep_scale / sum : 0.0f;
            O *at = (O *)f.o + row * f.ld_o + h * f.t.d + 2 * lane;
#pragma unroll
            for (int n = 0; n < NO; n++)
                if (n * 8 < f.t.d) {
                    float x = o[m][n][2 * half] * factor, y = o[m][n][2 * half + 1] * factor;
                    if (w.old > 0)
                        x += w.old * to_f32(at[n * 8]), y += w.old * to_f32(at[n * 8 + 1]);
                    put2(at + n * 8, x, y, false);
                }
        }
}

template <typename T, typename S, int EXTRA> __device__ inline void tile_forward_body(const fwd_call<T> &f)
{
    extern __shared__ __align__(1024) char memory[];
    const tile_call<T> &t = f.t;
    using E = typename S::E;
    constexpr int BM = S::BM, BN = S::BN, MT = S::MT, D = S::D;
    /* tiles with the most keys first: late tiles of a row, heads side by side */
    int32_t n_tiles = tr_tiles_of_row(t.row_tokens, BM), n_same = t.n_heads * t.n_rows, x = (int32_t)blockIdx.x;
    int32_t h = x % t.n_heads, row = x % n_same / t.n_heads;
    tr_tile q = tr_tile_at(row, n_tiles - 1 - x / n_same, t.row_tokens, BM);
    int64_t kv = (int64_t)(h / t.group) * t.d;
    uint32_t q_at = shared_at(memory), kv_at = q_at + E::bytes(BM);
    copy_tile<E, BM, S::THREADS, MT>(q_at, t.q.at(q.first, (int64_t)h * t.d), t.q.ld, q.end - q.first, t.d);
    tr_seen seen = seen_by_rows(t, q.first, q.end).some;
    int32_t first = seen.first, end = seen.end;
    if (EXTRA == DROPPED && t.threshold && first < end && first > 0) /* so that lanes may share draws */
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
    int warp = threadIdx.x / 32;
    int32_t i = q.first + warp * MT * 16 + (int)threadIdx.x % 32 / 4; /* this lane's first row */
    fwd_rows<MT> r;
    drawn_queries<MT> drawn = {};
    if (EXTRA == DROPPED && t.threshold)
        drawn.init(t, h, q, i, tr_seen{ first, end });
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int32_t at = tr_seen_min(i + m * 16 + half * 8, q.end - 1);
            r.max[m][half] = -INFINITY, r.sum[m][half] = 0;
            r.first[m][half] = seen_by(t, at).first;
        }
    float o[MT][D / 8][4];
    clear(o);
    q_at += E::template own_rows<MT>(warp);
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
        float s[MT][BN / 8][4];
        E::template of_rows<T, BM>(s, q_at, k_at);
        E::wait();
        float factor = cap_scores<EXTRA>(t, s);
        if (j < own_see.every.first || j + BN > own_see.every.end)
            mask_keys(t, s, r, i, j);
        softmax_step(s, o, r, factor);
        if (EXTRA == DROPPED && t.threshold)
            drop_keys(t, s, drawn, j);
        E::template of_result<T>(o, s, k_at + S::KEYS);
        E::wait();
    }
    if (f.is_f32)
        store_rows<float>(f, o, r, h, i, q.end);
    else
        store_rows<T>(f, o, r, h, i, q.end);
}

template <typename T, typename S, int EXTRA>
__global__ void __launch_bounds__(S::THREADS, S::BLOCKS) tile_forward(fwd_call<T> f)
{
    if constexpr (is_of_this_gpu<S>())
        tile_forward_body<T, S, EXTRA>(f);
}

/* ---- the call ---- */

template <int EXTRA, typename T, typename... S>
static bool first_that_fits(const struct tr_call *c, const fwd_call<T> &f)
{
    int64_t n_same = (int64_t)f.t.n_heads * f.t.n_rows;
    return (tile_launch<S>(c, tile_forward<T, S, EXTRA>, f, tr_tiles_of_row(f.t.row_tokens, S::BM) * n_same) || ...);
}

/* With caps or dropout some head sizes take the shape of a larger one: fewer kernels to compile. */
template <int EXTRA, typename T> static bool launch(const struct tr_call *c, const fwd_call<T> &f)
{
    int d = f.t.d;
    if constexpr (EXTRA == PLAIN) {
        if (d > 64 && d <= 96)
            return first_that_fits<EXTRA, T, fwd_shape<by_warp, 96, 4, 2, 32, 2, 2>>(c, f);
        if (d > 128 && d <= 192)
            return first_that_fits<EXTRA, T, fwd_shape<by_warp, 192, 8, 1, 64, 2, 1>>(c, f);
    }
    if constexpr (EXTRA != CAPPED)
        if (d <= 64)
            return first_that_fits<EXTRA, T, fwd_shape<by_group, 64, 4, 2, 64, 2, 2>,
                                   small<fwd_shape<by_warp, 64, 4, 2, 64, 2, 2>>>(c, f);
    if constexpr (EXTRA == DROPPED) /* two fragments of a warp share a draw, for which a group has too few registers */
        if (d <= 128)
            return first_that_fits<EXTRA, T, fwd_shape<by_warp, 128, 4, 2, 32, 2, 2>>(c, f);
    if (d <= 128)
        return first_that_fits<EXTRA, T, fwd_shape<by_group, 128, 8, 1, 128, 2, 1>,
                               small<fwd_shape<by_warp, 128, 4, 2, 32, 2, 2>>>(c, f);
    return first_that_fits<EXTRA, T, fwd_shape<by_warp, 256, 8, 1, 32, 2, 1>>(c, f);
}

template <typename T> static bool forward(const struct tr_call *c)
{
    fwd_call<T> f = { tile_call_of<T>(c, 0, 3, &c->out[1]), c->out[0].data, c->out[0].ld, !is_half(c->out[0]),
                      c->accumulate[0] };
#define RUN(extra) return launch<extra>(c, f)
    FOR_EXTRA(f.t, RUN);
#undef RUN
}

bool tr_tile_attention(const struct tr_call *c)
{
    if (!tr_tile_attention_covers(c))
        return false;
    TR_BUG_ON(!(is_bf16(c->in[0]) ? forward<bf16>(c) : forward<f16>(c)));
    return true;
}
