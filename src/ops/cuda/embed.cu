/* embed.cu - rows of a table by index, its gradient, rope, and heads out of their groups.
 *
 * The gradient adds up, for every row of the table, the tokens that read it, in token order. The order comes from a
 * counting sort in three small kernels: ranks inside chunks of tokens, a walk over the chunks of each row, a scan over
 * the rows. Rejected: atomics (non-deterministic bits), a general radix sort (more passes for the same 64 Ki tokens).
 */
#include "ops/cuda/cuda.cuh"

template <typename T, int V>
__global__ void embed_kernel(mat<const int32_t> index, mat<const T> w, mat<T> y, int64_t n_rows, int64_t cols,
                             int32_t offset, float scale, bool is_turned)
{
    int64_t n = blockIdx.x, row = (int64_t)*index.at(n, 0) + offset;
    for (int64_t j = threadIdx.x * V; j < cols; j += blockDim.x * V) {
        float t[V];
#pragma unroll
        for (int v = 0; v < V; v++)
            t[v] = 0;
        if (row >= 0 && row < n_rows)
            load<V>(is_turned ? w.at(j, row) : w.at(row, j), t);
#pragma unroll
        for (int v = 0; v < V; v++)
            t[v] *= scale;
        store<V>(y.at(n, j), t);
    }
}

template <typename T, int V> static void embed(const struct tr_call *c)
{
    int64_t cols = c->out[0].cols;
    unsigned threads = (unsigned)tr_min64(256, (int64_t)tr_round_up((size_t)ceil_div(cols, V), 32));
    bool is_turned = c->attr.weight_is_in_out;
    start(c, embed_kernel<T, V>, (unsigned)c->out[0].rows, threads, 0, mat_of<const int32_t>(c->in[0]),
          mat_of<const T>(c->in[1]), mat_of<T>(c->out[0]), is_turned ? c->in[1].cols : c->in[1].rows, cols,
          c->attr.index_offset, factor_of(c), is_turned);
}

void tr_cuda_EMBED(const struct tr_call *c)
{
    const struct tr_view *views[] = { &c->in[1], &c->out[0] };
    with_type(c->out[0], [&](auto t) {
        typedef decltype(t) T;
        bool wide = !c->attr.weight_is_in_out && is_wide(views, 2, 16 / sizeof(T));
        wide ? embed<T, 16 / sizeof(T)>(c) : embed<T, 1>(c);
    });
}

/* ---- gradient ---- */

struct sorted {
    int32_t *count; /* (chunks, rows): tokens of the chunk that read the row; later: those of earlier chunks */
    int32_t *start; /* (rows + 1): where the row's tokens begin in `order` */
    int32_t *order; /* the tokens, sorted by row, then by position */
    int32_t *rank;  /* position of a token among those of its chunk and row */
    int64_t n_tokens, n_rows, n_chunks;
};

__device__ static int64_t row_of(const mat<const int32_t> &index, int64_t n, int32_t offset, int64_t n_rows)
{
    int64_t row = (int64_t)*index.at(n, 0) + offset;
    return row >= 0 && row < n_rows ? row : -1;
}

/* One block for each chunk: each thread compares its token with all tokens of the chunk. */
__global__ void __launch_bounds__(1024) rank_kernel(mat<const int32_t> index, int32_t offset, sorted s)
{
    __shared__ int32_t row[TR_CUDA_SORT];
    int64_t first = (int64_t)blockIdx.x * TR_CUDA_SORT;
    int n = (int)min((int64_t)TR_CUDA_SORT, s.n_tokens - first);
    for (int i = threadIdx.x; i < n; i += 1024)
        row[i] = (int32_t)row_of(index, first + i, offset, s.n_rows);
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += 1024) {
        int before = 0, all = 0, mine = row[i];
        for (int k = 0; k < n; k++) {
            all += row[k] == mine;
            before += k < i && row[k] == mine;
        }
        s.rank[first + i] = before;
        if (before == 0 && mine >= 0)
            s.count[blockIdx.x * s.n_rows + mine] = all;
    }
}

/* Counts become the number of earlier tokens of the same row; start gets the row's total. */
__global__ void walk_kernel(sorted s)
{
    int64_t row = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    int32_t sum = 0;
    if (row >= s.n_rows)
        return;
    for (int64_t k = 0; k < s.n_chunks; k++) {
        int32_t here = s.count[k * s.n_rows + row];
        s.count[k * s.n_rows + row] = sum;
        sum += here;
    }
    s.start[row] = sum;
}

/* Exclusive scan of start by one block; start[n_rows] = all. */
__global__ void __launch_bounds__(1024) scan_kernel(sorted s)
{
    __shared__ int32_t part[1024];
    int64_t each = (s.n_rows + 1023) / 1024, first = threadIdx.x * each, end = min(first + each, s.n_rows);
    int32_t sum = 0;
    for (int64_t i = first; i < end; i++)
        sum += s.start[i];
    part[threadIdx.x] = sum;
    __syncthreads();
    for (int d = 1; d < 1024; d *= 2) {
        int32_t add = (int)threadIdx.x >= d ? part[threadIdx.x - d] : 0;
        __syncthreads();
        part[threadIdx.x] += add;
        __syncthreads();
    }
    sum = part[threadIdx.x] - sum;
    for (int64_t i = first; i < end; i++) {
        int32_t here = s.start[i];
        s.start[i] = sum;
        sum += here;
    }
    if (threadIdx.x == 1023)
        s.start[s.n_rows] = part[1023];
}

__global__ void place_kernel(mat<const int32_t> index, int32_t offset, sorted s)
{
    int64_t n = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    int64_t row = n < s.n_tokens ? row_of(index, n, offset, s.n_rows) : -1;
    if (row >= 0)
        s.order[s.start[row] + s.count[n / TR_CUDA_SORT * s.n_rows + row] + s.rank[n]] = (int32_t)n;
}

template <typename T, typename G, int V>
__global__ void embed_dw_kernel(mat<const T> dy, mat<G> dw, sorted s, int64_t cols, float scale, bool accumulate,
                                bool is_turned)
{
    int64_t row = blockIdx.x;
    int32_t first = s.start[row], end = s.start[row + 1];
    if (first == end && accumulate)
        return;
    for (int64_t j = threadIdx.x * V; j < cols; j += blockDim.x * V) {
        float sum[V], t[V];
#pragma unroll
        for (int v = 0; v < V; v++)
            sum[v] = 0;
        for (int32_t i = first; i < end; i++) {
            load<V>(dy.at(s.order[i], j), t);
#pragma unroll
            for (int v = 0; v < V; v++)
                sum[v] += t[v];
        }
#pragma unroll
        for (int v = 0; v < V; v++)
            t[v] = 0;
        G *to = is_turned ? dw.at(j, row) : dw.at(row, j);
        if (accumulate)
            load<V>(to, t);
#pragma unroll
        for (int v = 0; v < V; v++)
            t[v] += scale * sum[v];
        store<V>(to, t);
    }
}

template <typename T, typename G> static void embed_dw(const struct tr_call *c, const sorted &s)
{
    const struct tr_view *views[] = { &c->in[1], &c->out[0] };
    int64_t cols = c->in[1].cols;
    bool is_turned = c->attr.weight_is_in_out, wide = !is_turned && is_wide(views, 2, 4);
    unsigned threads = (unsigned)tr_min64(256, (int64_t)tr_round_up((size_t)ceil_div(cols, wide ? 4 : 1), 32));
    mat<const T> dy = mat_of<const T>(c->in[1]);
    mat<G> dw = mat_of<G>(c->out[0]);
    start(c, wide ? embed_dw_kernel<T, G, 4> : embed_dw_kernel<T, G, 1>, (unsigned)s.n_rows, threads, 0, dy, dw, s,
          cols, factor_of(c), c->accumulate[0], is_turned);
}

void tr_cuda_EMBED_DW(const struct tr_call *c)
{
    sorted s = {};
    s.n_tokens = c->in[0].rows, s.n_rows = c->attr.weight_is_in_out ? c->out[0].cols : c->out[0].rows,
    s.n_chunks = ceil_div(s.n_tokens, TR_CUDA_SORT);
    s.count = (int32_t *)c->scratch;
    s.start = s.count + s.n_chunks * s.n_rows;
    s.order = s.start + s.n_rows + 1;
    s.rank = s.order + s.n_tokens;
    mat<const int32_t> index = mat_of<const int32_t>(c->in[0]);
    (void)cudaMemsetAsync(s.count, 0, (size_t)(s.n_chunks * s.n_rows) * sizeof(int32_t), stream_of(c));
    start(c, rank_kernel, (unsigned)s.n_chunks, 1024, 0, index, c->attr.index_offset, s);
    start(c, walk_kernel, (unsigned)ceil_div(s.n_rows, 256), 256, 0, s);
    start(c, scan_kernel, 1, 1024, 0, s);
    start(c, place_kernel, (unsigned)ceil_div(s.n_tokens, 256), 256, 0, index, c->attr.index_offset, s);
    with_type(c->in[1], [&](auto t) {
        typedef decltype(t) T;
        is_bf16(c->out[0]) ? embed_dw<T, bf16>(c, s) : embed_dw<T, float>(c, s);
    });
}

/* ---- rope ---- */

/* A thread rotates V pairs of one head: (i, i + half) from i on, or with NEAR (2i, 2i + 1). */
template <typename T, int V, bool NEAR>
__global__ void __launch_bounds__(256)
    rope_kernel(mat<const T> x, mat<const int32_t> position, mat<const float> table, mat<T> y, unsigned n_threads,
                unsigned heads, unsigned d, unsigned half, float sign)
{
    enum { W = V % 4 == 0 ? 4 : 1 }; /* elements of the table that one load reads */
    unsigned id = blockIdx.x * 256 + threadIdx.x, per_head = half / V, k = id % (heads * per_head),
             row = id / (heads * per_head), i = k % per_head * V, at = k / per_head * d + (NEAR ? 2 * i : i),
             other = at + (NEAR ? V : half);
    if (id >= n_threads)
        return;
    int64_t p = *position.at(row, 0);
    float t[2 * V], cosp[V], sinp[V];
    load<V>(x.at(row, at), t);
    load<V>(x.at(row, other), t + V);
#pragma unroll
    for (int v = 0; v < V; v += W) {
        load<W>(table.at(p, i + v), cosp + v);
        load<W>(table.at(p, half + i + v), sinp + v);
    }
#pragma unroll
    for (int v = 0; v < V; v++) {
        float &a = t[NEAR ? 2 * v : v], &b = t[NEAR ? 2 * v + 1 : V + v];
        float turned = a * cosp[v] - b * sign * sinp[v];
        b = b * cosp[v] + a * sign * sinp[v];
        a = turned;
    }
    store<V>(y.at(row, at), t);
    store<V>(y.at(row, other), t + V);
}

/* Copies the columns after the rotated ones. */
template <typename T>
__global__ void rope_rest(mat<const T> x, mat<T> y, int64_t rows, int64_t heads, int64_t d, int64_t turned)
{
    int64_t rest = d - turned, k = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, h = k / rest, i = turned + k % rest;
    for (int64_t n = blockIdx.y; h < heads && n < rows; n += gridDim.y)
        *y.at(n, h * d + i) = *x.at(n, h * d + i);
}

template <typename T, bool NEAR> static void rope(const struct tr_call *c)
{
    const struct tr_view *views[] = { &c->in[0], &c->out[0] };
    int64_t d = c->attr.head_dim, half = c->in[2].cols / 2, rows = c->in[0].rows, heads = c->in[0].cols / d;
    int width = 16 / sizeof(T);
    bool wide = is_wide(views, 2, width) && half % width == 0 && d % width == 0 && c->in[2].ld % 4 == 0;
    float sign = c->attr.inverse ? -1.0f : 1.0f;
    int64_t threads = rows * heads * half / (wide ? width : 1);
    mat<const T> x = mat_of<const T>(c->in[0]);
    mat<const int32_t> p = mat_of<const int32_t>(c->in[1]);
    mat<const float> table = mat_of<const float>(c->in[2]);
    mat<T> y = mat_of<T>(c->out[0]);
    TR_BUG_ON(threads > UINT32_MAX - 256);
    start(c, wide ? rope_kernel<T, 16 / sizeof(T), NEAR> : rope_kernel<T, 1, NEAR>, (unsigned)ceil_div(threads, 256),
          256, 0, x, p, table, y, (unsigned)threads, (unsigned)heads, (unsigned)d, (unsigned)half, sign);
    if (d > 2 * half) {
        dim3 rest((unsigned)ceil_div(heads * (d - 2 * half), 128), (unsigned)tr_min64(rows, 65535));
        start(c, rope_rest<T>, rest, 128, 0, x, y, rows, heads, d, 2 * half);
    }
}

void tr_cuda_ROPE(const struct tr_call *c)
{
    with_type(c->in[0], [&](auto t) {
        typedef decltype(t) T;
        c->attr.is_interleaved ? rope<T, true>(c) : rope<T, false>(c);
    });
}

/* ---- regroup ---- */

/* A thread moves V columns of one head. Head h of a group of n_q + 2 is head g * n_q + h of the query heads, or head g
 * of the key or value heads behind them. */
template <typename T, int V>
__global__ void __launch_bounds__(256) regroup_kernel(mat<const T> x, mat<T> y, unsigned n_threads, unsigned groups,
                                                      unsigned n_q, unsigned d, bool inverse)
{
    unsigned id = blockIdx.x * 256 + threadIdx.x, per_head = d / V, heads = groups * (n_q + 2);
    unsigned row = id / (heads * per_head), k = id % (heads * per_head), i = k % per_head * V, grouped = k / per_head;
    unsigned g = grouped / (n_q + 2), h = grouped % (n_q + 2), apart = h < n_q ? g * n_q + h : h * groups + g;
    if (id >= n_threads)
        return;
    float t[V];
    load<V>(x.at(row, (inverse ? apart : grouped) * d + i), t);
    store<V>(y.at(row, (inverse ? grouped : apart) * d + i), t);
}

template <typename T> static void regroup(const struct tr_call *c)
{
    const struct tr_view *views[] = { &c->in[0], &c->out[0] };
    int width = 16 / sizeof(T);
    int64_t d = c->attr.head_dim, n_q = c->attr.n_heads_q / c->attr.n_heads_kv;
    bool wide = is_wide(views, 2, width) && d % width == 0;
    int64_t threads = c->in[0].rows * c->in[0].cols / (wide ? width : 1), groups = c->in[0].cols / d / (n_q + 2);
    mat<const T> x = mat_of<const T>(c->in[0]);
    mat<T> y = mat_of<T>(c->out[0]);
    TR_BUG_ON(threads > UINT32_MAX - 256);
    start(c, wide ? regroup_kernel<T, 16 / sizeof(T)> : regroup_kernel<T, 1>, (unsigned)ceil_div(threads, 256), 256, 0,
          x, y, (unsigned)threads, (unsigned)groups, (unsigned)n_q, (unsigned)d, c->attr.inverse);
}

void tr_cuda_REGROUP(const struct tr_call *c)
{
    with_type(c->in[0], [&](auto t) { regroup<decltype(t)>(c); });
}
