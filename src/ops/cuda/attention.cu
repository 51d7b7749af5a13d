/* attention.cu - attention for every case: any head size, type, window, cap and dropout, packed documents, a cache,
 * blocks of a longer row.
 *
 * A warp owns one query row and head (for dk and dv: one key row and key head). It takes 32 rows of the other side at a
 * time, one for each lane; sums run in row order, without atomics. These kernels run what the engines on tensor cores
 * do not cover; the table of engines is at the end.
 */
#include "ops/cuda/attention_tile.cuh"

enum { WARPS = 4, MAX_D = TR_CUDA_HEAD_DIM_MAX };

template <typename T> struct attn {
    mat<const T> q, k, v;
    /* with a cache begin is absent, and position is the last row seen of the sequence */
    mat<const int32_t> begin, position;
    mat<const int64_t> sample;
    const float *step;
    struct tr_attr a;
    float scale;
    int64_t n, n_k, group;
    int64_t cache_rows; /* of a sequence */
    bool is_cached;
};

/* The rows of k that row i of q sees; both are counted from the first row of their block. */
struct seen {
    int64_t first, last;
};

template <typename T> __device__ static seen seen_by(const attn<T> &t, int64_t i)
{
    if (t.is_cached) {
        int64_t last = *t.position.at(i, 0), base = t.a.seq_len > 0 ? i / t.a.seq_len * t.cache_rows : 0;
        return seen{ base + (t.a.window > 0 ? max((int64_t)0, last - t.a.window + 1) : 0), base + last };
    }
    int64_t row = t.a.row_q + i, first = max((int64_t)*t.begin.at(row, 0), t.a.row_k);
    if (t.a.window > 0)
        first = max(first, row - t.a.window + 1);
    return seen{ first - t.a.row_k, min(row - t.a.row_k, t.n_k - 1) };
}

template <typename T> __device__ static float cap(const attn<T> &t, float s)
{
    return t.a.softcap > 0 ? t.a.softcap * tanhf(s / t.a.softcap) : s;
}

template <typename T> __device__ static float cap_slope(const attn<T> &t, float capped)
{
    float x = t.a.softcap > 0 ? capped / t.a.softcap : 0.0f;
    return 1.0f - x * x;
}

/* The factor of dropout on the probability of (i, j). */
template <typename T> __device__ static float keep(const attn<T> &t, int64_t h, int64_t i, int64_t j)
{
    if (t.a.dropout_p <= 0)
        return 1.0f;
    int64_t row = t.a.row_q + i, of = t.a.row_k + j;
    uint32_t query = tr_drop_token(*t.sample.at(row, 0), *t.position.at(row, 0)),
             key = tr_drop_token(*t.sample.at(of, 0), *t.position.at(of, 0));
    uint4 w =
        philox<7>(t.a.key, tr_drop_hi_of_head(step_number(t.step), t.a.first + h), tr_drop_lo_of_pair(query, key));
    int at = tr_drop_at_of_pair(query, key);
    bool is_kept = tr_drop_number(word_of(w, at / 2), at) >= tr_drop_threshold(t.a.dropout_p);
    return is_kept ? tr_drop_scale(t.a.dropout_p) : 0.0f;
}

template <typename T> __device__ static float dot(const float *shared, const T *row, int d)
{
    float sum = 0;
    for (int e = 0; e < d; e++)
        sum += shared[e] * to_f32(row[e]);
    return sum;
}

/* E: columns that a lane owns; O: element type of o. */
template <typename T, typename O, int E>
__global__ void __launch_bounds__(WARPS * 32) forward_kernel(attn<T> t, mat<O> o, mat<float> lse, bool merges)
{
    extern __shared__ float shared[];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, d = t.a.head_dim;
    int64_t i = (int64_t)blockIdx.x * WARPS + warp, h = blockIdx.y;
    float *q = shared + warp * d;
    if (i >= t.n)
        return;
    for (int e = lane; e < d; e += 32)
        q[e] = t.scale * to_f32(*t.q.at(i, h * d + e));
    __syncwarp();
    seen r = seen_by(t, i);
    int64_t last = r.last, kv = h / t.group * d;
    float max = -INFINITY, sum = 0, acc[E];
#pragma unroll
    for (int e = 0; e < E; e++)
        acc[e] = 0;
    for (int64_t j0 = r.first; j0 <= last; j0 += 32) {
        int64_t j = j0 + lane;
        bool is_in = j <= last;
        float s = is_in ? cap(t, dot(q, t.k.at(j, kv), d)) : -INFINITY;
        float top = fmaxf(max, warp_max(s)), fade = expf(max - top), p = is_in ? expf(s - top) : 0.0f;
        max = top;
        sum = sum * fade + warp_sum(p);
        p *= is_in ? keep(t, h, i, j) : 0.0f;
#pragma unroll
        for (int e = 0; e < E; e++)
            acc[e] *= fade;
        int n = (int)min((int64_t)32, last - j0 + 1);
        for (int k = 0; k < n; k++) {
            float pk = __shfl_sync(0xffffffffu, p, k);
#pragma unroll
            for (int e = 0; e < E; e++)
                if (e * 32 + lane < d)
                    acc[e] += pk * to_f32(*t.v.at(j0 + k, kv + e * 32 + lane));
        }
    }
    merge m = { sum > 0 ? max + logf(sum) : -INFINITY, 0.0f, 1.0f };
    if (merges)
        m = merge_of(*lse.at(i, h), m.lse);
    __syncwarp(); /* all lanes have read lse */
#pragma unroll
    for (int e = 0; e < E; e++)
        if (e * 32 + lane < d) {
            O *at = o.at(i, h * d + e * 32 + lane);
            float x = sum > 0 ? m.fresh * (acc[e] / sum) : 0.0f;
            *at = from_f32<O>(m.old > 0 ? x + m.old * to_f32(*at) : x);
        }
    if (lane == 0 && lse)
        *lse.at(i, h) = m.lse;
}

template <typename T, typename O> struct attn_bwd {
    mat<const T> d_o, o;
    mat<const float> lse;
    mat<O> dq, dk, dv;
    float *delta; /* (N, H): do.o */
    bool adds[3]; /* adds to dq, dk, dv instead of overwriting them */
};

template <typename O> __device__ static void put(O *at, float x, bool adds)
{
    *at = from_f32<O>(adds ? to_f32(*at) + x : x);
}

/* Computes dq of one row, and its do.o for the kernel of dk and dv. */
template <typename T, typename O, int E>
__global__ void __launch_bounds__(WARPS * 32) dq_kernel(attn<T> t, attn_bwd<T, O> b)
{
    extern __shared__ float shared[];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, d = t.a.head_dim;
    int64_t i = (int64_t)blockIdx.x * WARPS + warp, h = blockIdx.y, kv = h / t.group * d;
    float *q = shared + warp * 2 * d, *d_o = q + d, acc[E];
    if (i >= t.n)
        return;
    for (int e = lane; e < d; e += 32) {
        q[e] = t.scale * to_f32(*t.q.at(i, h * d + e));
        d_o[e] = to_f32(*b.d_o.at(i, h * d + e));
    }
    __syncwarp();
    /* Summed in the order of do.v, so that the ds of a row that sees one key is exactly 0. */
    float delta = dot(d_o, b.o.at(i, h * d), d);
    if (lane == 0)
        b.delta[i * t.a.n_heads_q + h] = delta;
#pragma unroll
    for (int e = 0; e < E; e++)
        acc[e] = 0;
    float lse = *b.lse.at(i, h);
    seen r = seen_by(t, i);
    for (int64_t j0 = r.first; j0 <= r.last; j0 += 32) {
        int64_t j = j0 + lane;
        float ds = 0;
        if (j <= r.last) {
            float s = cap(t, dot(q, t.k.at(j, kv), d)), p = expf(s - lse);
            ds = p * (keep(t, h, i, j) * dot(d_o, t.v.at(j, kv), d) - delta) * cap_slope(t, s);
        }
        int n = (int)min((int64_t)32, r.last - j0 + 1);
        for (int k = 0; k < n; k++) {
            float dk = __shfl_sync(0xffffffffu, ds, k);
#pragma unroll
            for (int e = 0; e < E; e++)
                if (e * 32 + lane < d)
                    acc[e] += dk * to_f32(*t.k.at(j0 + k, kv + e * 32 + lane));
        }
    }
#pragma unroll
    for (int e = 0; e < E; e++)
        if (e * 32 + lane < d)
            put(b.dq.at(i, h * d + e * 32 + lane), t.scale * acc[e], b.adds[0]);
}

/* Computes dk and dv of one row and key head, from all query heads of the group and all later rows that see the row. */
template <typename T, typename O, int E>
__global__ void __launch_bounds__(WARPS * 32) dkv_kernel(attn<T> t, attn_bwd<T, O> b)
{
    extern __shared__ float shared[];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, d = t.a.head_dim;
    int64_t j = (int64_t)blockIdx.x * WARPS + warp, h_kv = blockIdx.y;
    float *k = shared + warp * 2 * d, *v = k + d, dk[E], dv[E];
    if (j >= t.n_k)
        return;
    for (int e = lane; e < d; e += 32) {
        k[e] = t.scale * to_f32(*t.k.at(j, h_kv * d + e));
        v[e] = to_f32(*t.v.at(j, h_kv * d + e));
    }
    __syncwarp();
#pragma unroll
    for (int e = 0; e < E; e++)
        dk[e] = dv[e] = 0;
    for (int64_t h = h_kv * t.group; h < (h_kv + 1) * t.group; h++) {
        bool is_more = true;
        for (int64_t i0 = max((int64_t)0, t.a.row_k + j - t.a.row_q); is_more && i0 < t.n; i0 += 32) {
            int64_t i = i0 + lane;
            bool sees = i < t.n && seen_by(t, i).first <= j;
            is_more = __all_sync(0xffffffffu, sees); /* when one row no longer sees j, no later row does */
            float p = 0, ds = 0;
            if (sees) {
                float s = cap(t, dot(k, t.q.at(i, h * d), d)), prob = expf(s - *b.lse.at(i, h)), f = keep(t, h, i, j);
                p = prob * f;
                ds = prob * (f * dot(v, b.d_o.at(i, h * d), d) - b.delta[i * t.a.n_heads_q + h]) * cap_slope(t, s);
            }
            int n = (int)min((int64_t)32, t.n - i0);
            for (int x = 0; x < n; x++) {
                float px = __shfl_sync(0xffffffffu, p, x), dx = __shfl_sync(0xffffffffu, ds, x);
#pragma unroll
                for (int e = 0; e < E; e++)
                    if (e * 32 + lane < d) {
                        dk[e] += dx * to_f32(*t.q.at(i0 + x, h * d + e * 32 + lane));
                        dv[e] += px * to_f32(*b.d_o.at(i0 + x, h * d + e * 32 + lane));
                    }
            }
        }
    }
#pragma unroll
    for (int e = 0; e < E; e++)
        if (e * 32 + lane < d) {
            put(b.dk.at(j, h_kv * d + e * 32 + lane), t.scale * dk[e], b.adds[1]);
            put(b.dv.at(j, h_kv * d + e * 32 + lane), dv[e], b.adds[2]);
        }
}

template <typename T> static attn<T> attn_of(const struct tr_call *c, int q, int begin)
{
    attn<T> t = {};
    TR_BUG_ON(c->attr.head_dim > MAX_D || c->attr.n_heads_q % c->attr.n_heads_kv != 0);
    t.q = mat_of<const T>(c->in[q]), t.k = mat_of<const T>(c->in[q + 1]), t.v = mat_of<const T>(c->in[q + 2]);
    t.a = c->attr;
    t.scale = factor_of(c);
    t.n = c->in[q].rows, t.n_k = c->in[q + 1].rows;
    t.group = c->attr.n_heads_q / c->attr.n_heads_kv;
    t.is_cached = c->op == TR_OP_ATTENTION_CACHED;
    if (t.is_cached) {
        t.position = mat_of<const int32_t>(c->in[begin]);
        t.cache_rows = tr_cache_rows(&c->attr, t.n, t.n_k);
        t.a.dropout_p = 0;
        return t;
    }
    t.begin = mat_of<const int32_t>(c->in[begin]);
    t.sample = mat_of<const int64_t>(c->in[begin + 1]);
    t.position = mat_of<const int32_t>(c->in[begin + 2]);
    t.step = (const float *)c->in[begin + 3].data;
    return t;
}

/* Makes the number of columns that a lane owns a compile-time constant. */
#define FOR_HEAD_DIM(d, run)                                                                                           \
    do {                                                                                                               \
        if ((d) <= 64)                                                                                                 \
            run(2);                                                                                                    \
        else if ((d) <= 128)                                                                                           \
            run(4);                                                                                                    \
        else if ((d) <= 256)                                                                                           \
            run(8);                                                                                                    \
        else                                                                                                           \
            run(32);                                                                                                   \
    } while (0)

template <typename T, typename O> static void forward(const struct tr_call *c)
{
    attn<T> t = attn_of<T>(c, 0, 3);
    int d = c->attr.head_dim;
    mat<float> lse = c->op == TR_OP_ATTENTION_CACHED ? mat<float>{} : mat_of<float>(c->out[1]);
    dim3 grid((unsigned)ceil_div(t.n, WARPS), (unsigned)c->attr.n_heads_q);
    size_t bytes = (size_t)(WARPS * d) * sizeof(float);
#define RUN(e)                                                                                                         \
    start(c, forward_kernel<T, O, e>, grid, WARPS * 32, bytes, t, mat_of<O>(c->out[0]), lse, c->accumulate[0])
    FOR_HEAD_DIM(d, RUN);
#undef RUN
}

template <typename T, typename O> static void backward(const struct tr_call *c)
{
    attn<T> t = attn_of<T>(c, 1, 6);
    int d = c->attr.head_dim;
    attn_bwd<T, O> b = { mat_of<const T>(c->in[0]),     mat_of<const T>(c->in[4]),
                         mat_of<const float>(c->in[5]), mat_of<O>(c->out[0]),
                         mat_of<O>(c->out[1]),          mat_of<O>(c->out[2]),
                         (float *)c->scratch,           { c->accumulate[0], c->accumulate[1], c->accumulate[2] } };
    dim3 grid((unsigned)ceil_div(t.n, WARPS), (unsigned)c->attr.n_heads_q);
    dim3 grid_kv((unsigned)ceil_div(t.n_k, WARPS), (unsigned)c->attr.n_heads_kv);
    size_t bytes = (size_t)(2 * WARPS * d) * sizeof(float);
#define RUN(e)                                                                                                         \
    do {                                                                                                               \
        start(c, dq_kernel<T, O, e>, grid, WARPS * 32, bytes, t, b);                                                   \
        start(c, dkv_kernel<T, O, e>, grid_kv, WARPS * 32, bytes, t, b);                                               \
    } while (0)
    FOR_HEAD_DIM(d, RUN);
#undef RUN
}

/* ---- engines ---- */

static bool plain_attention(const struct tr_call *c)
{
    with_type(c->in[0], [&](auto t) {
        typedef decltype(t) T;
        is_half(c->out[0]) ? forward<T, T>(c) : forward<T, float>(c);
    });
    return true;
}

static bool plain_attention_bwd(const struct tr_call *c)
{
    with_type(c->in[0], [&](auto t) {
        typedef decltype(t) T;
        is_half(c->out[0]) ? backward<T, T>(c) : backward<T, float>(c);
    });
    return true;
}

/* The first that covers a call runs it. What covers it depends on shapes and on how the micro-batch is packed, never on
 * a clock, so a run that resumes takes the same ones. */
static const struct {
    bool (*forward)(const struct tr_call *c), (*backward)(const struct tr_call *c);
} engines[] = {
    { tr_cudnn_attention, tr_cudnn_attention_bwd }, /* 16 bits, heads up to 128, one document a row */
    { tr_tile_attention, tr_tile_attention_bwd },   /* 16 bits, heads up to 256 */
    { plain_attention, plain_attention_bwd },       /* everything */
};

void tr_cuda_ATTENTION(const struct tr_call *c)
{
    size_t i = 0;
    while (!engines[i].forward(c))
        i++;
}

void tr_cuda_ATTENTION_BWD(const struct tr_call *c)
{
    size_t i = 0;
    while (!engines[i].backward(c))
        i++;
}

/* The ring of one rank. */
void tr_cuda_RING_ATTENTION(const struct tr_call *c)
{
    struct tr_call alone = *c;
    alone.op = TR_OP_ATTENTION;
    tr_cuda_ATTENTION(&alone);
}

void tr_cuda_RING_ATTENTION_BWD(const struct tr_call *c)
{
    struct tr_call alone = *c;
    alone.op = TR_OP_ATTENTION_BWD;
    tr_cuda_ATTENTION_BWD(&alone);
}

void tr_cuda_ATTENTION_CACHED(const struct tr_call *c)
{
    with_type(c->in[0], [&](auto t) { forward<decltype(t), decltype(t)>(c); });
}

template <typename T>
__global__ void put_kernel(mat<const T> x, mat<const int32_t> row, mat<T> cache, int64_t cols, int64_t seq_len,
                           int64_t n_rows)
{
    int64_t i = blockIdx.x, at = *row.at(i, 0), base = seq_len > 0 ? i / seq_len * n_rows : 0;
    for (int64_t j = threadIdx.x; at >= 0 && j < cols; j += blockDim.x)
        *cache.at(base + at, j) = *x.at(i, j);
}

void tr_cuda_CACHE_PUT(const struct tr_call *c)
{
    int64_t n_rows = tr_cache_rows(&c->attr, c->in[0].rows, c->out[0].rows);
    with_type(c->in[0], [&](auto t) {
        typedef decltype(t) T;
        start(c, put_kernel<T>, (unsigned)c->in[0].rows, 128, 0, mat_of<const T>(c->in[0]),
              mat_of<const int32_t>(c->in[1]), mat_of<T>(c->out[0]), c->in[0].cols, c->attr.seq_len, n_rows);
    });
}
