/* adafactor.cu - Adafactor: a block of threads for each line, which is what a call has of one row of the matrix, or a
 * whole vector. Sums are in double, without atomics. */
#include "ops/cuda/optim.cuh"
extern "C" {
#include "ops/adafactor.h"
}

enum { THREADS = 256, COLS = 32, LINES = 8, ONE_BLOCK = 1024 };

struct matrix {
    int64_t at, n, rows, width, first_row;
    double *sums; /* of the call, or factors */
    const float *step;
    float *v; /* of a vector */
    /* Line k: elements [begin, end) of the call; returns the column of the first. */
    __device__ int64_t line(int64_t k, int64_t *begin, int64_t *end) const
    {
        int64_t row = (first_row + k) * width;
        *begin = max(row - at, (int64_t)0);
        *end = min(row + width - at, n);
        return at + *begin - row;
    }
    __device__ float square(float g) const
    {
        g *= step[TR_STEP_CLIP];
        return g * g + TR_ADAFACTOR_EPS;
    }
    __device__ double *row_sums() const
    {
        return sums + TR_SUM_ROWS;
    }
    __device__ double *col_sums() const
    {
        return sums + TR_SUM_ROWS + rows;
    }
    __device__ float direction(float g, float row, int64_t i, int64_t col) const
    {
        g *= step[TR_STEP_CLIP];
        return rows > 0 ? g * row * (float)col_sums()[col] : __fdiv_rn(g, __fsqrt_rn(v[i]));
    }
};

static matrix matrix_of(const struct tr_call *c)
{
    const struct tr_attr &a = c->attr;
    int64_t n = c->in[0].cols, width = a.rows > 0 ? a.cols : tr_max64(1, a.at + n);
    return matrix{ a.at,
                   n,
                   a.rows,
                   width,
                   a.at / width,
                   (double *)c->out[4].data,
                   (const float *)c->in[1].data,
                   (float *)c->out[2].data };
}

static unsigned lines_of(const matrix &m)
{
    return m.n > 0 ? (unsigned)((m.at + m.n - 1) / m.width - m.first_row + 1) : 0;
}

/* The sum over the threads of a block; thread 0 has it. */
template <int N> __device__ static double block_sum(double x)
{
    __shared__ double all[N];
    all[threadIdx.x] = x;
    __syncthreads();
    for (int s = N / 2; s > 0; s /= 2) {
        if ((int)threadIdx.x < s)
            all[threadIdx.x] += all[threadIdx.x + s];
        __syncthreads();
    }
    double sum = all[0];
    __syncthreads();
    return sum;
}

template <typename G, typename P>
__global__ void __launch_bounds__(THREADS) sum_lines_kernel(matrix m, const G *g, const P *p, double *of_line)
{
    int64_t begin, end;
    double of_p = 0, of_u = 0;
    m.line(blockIdx.x, &begin, &end);
    for (int64_t i = begin + threadIdx.x; i < end; i += THREADS) {
        float x = to_f32(p[i]);
        of_p += (double)x * x;
        of_u += m.square(to_f32(g[i]));
    }
    of_p = block_sum<THREADS>(of_p);
    of_u = block_sum<THREADS>(of_u);
    if (threadIdx.x == 0) {
        of_line[blockIdx.x] = of_p;
        if (m.rows > 0)
            m.row_sums()[m.first_row + blockIdx.x] = of_u;
    }
}

__global__ void __launch_bounds__(ONE_BLOCK) add_lines_kernel(const double *of_line, int64_t n, double *to)
{
    double sum = 0;
    for (int64_t i = threadIdx.x; i < n; i += ONE_BLOCK)
        sum += of_line[i];
    sum = block_sum<ONE_BLOCK>(sum);
    if (threadIdx.x == 0)
        *to = sum;
}

template <typename G> __global__ void sum_columns_kernel(matrix m, const G *g, int64_t n_lines)
{
    __shared__ double part[LINES][COLS];
    int64_t col = (int64_t)blockIdx.x * COLS + threadIdx.x;
    double sum = 0;
    for (int64_t k = threadIdx.y; k < n_lines; k += LINES) {
        int64_t i = (m.first_row + k) * m.width + col - m.at;
        if (col < m.width && i >= 0 && i < m.n)
            sum += m.square(to_f32(g[i]));
    }
    part[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y > 0 || col >= m.width)
        return;
    for (int y = 1; y < LINES; y++)
        sum += part[y][threadIdx.x];
    m.col_sums()[col] = sum;
}

/* Block 0: rows; block 1: columns. */
__global__ void __launch_bounds__(ONE_BLOCK)
    factors_kernel(float *row, int64_t rows, float *col, int64_t cols, double *sums, const float *step)
{
    bool is_col = blockIdx.x == 1;
    float *average = is_col ? col : row;
    int64_t n = is_col ? cols : rows, n_others = is_col ? rows : cols;
    double *of = sums + TR_SUM_ROWS + (is_col ? rows : 0), beta2 = step[TR_STEP_BETA2], sum = 0;
    for (int64_t i = threadIdx.x; i < n; i += ONE_BLOCK) {
        average[i] = (float)(beta2 * average[i] + (1 - beta2) * (of[i] / (double)n_others));
        sum += average[i];
    }
    double mean = is_col ? 1 : block_sum<ONE_BLOCK>(sum) / (double)n;
    for (int64_t i = threadIdx.x; i < n; i += ONE_BLOCK)
        of[i] = 1 / sqrt(average[i] / mean);
}

template <typename G> __global__ void __launch_bounds__(THREADS) norm_kernel(matrix m, const G *g, double *of_line)
{
    int64_t begin, end, col = m.line(blockIdx.x, &begin, &end);
    float row = m.rows > 0 ? (float)m.row_sums()[m.first_row + blockIdx.x] : 0.0f, beta2 = m.step[TR_STEP_BETA2];
    double sum = 0;
    for (int64_t i = begin + threadIdx.x; i < end; i += THREADS) {
        float gi = to_f32(g[i]);
        if (m.rows == 0)
            m.v[i] = beta2 * m.v[i] + (1.0f - beta2) * m.square(gi);
        float d = m.direction(gi, row, i, col + i - begin);
        sum += (double)d * d;
    }
    sum = block_sum<THREADS>(sum);
    if (threadIdx.x == 0)
        of_line[blockIdx.x] = sum;
}

template <typename G, typename S, typename C>
__global__ void __launch_bounds__(THREADS)
    apply_kernel(matrix m, const G *g, S *p, C *copy, const double *norm, double n_all, optim_args o)
{
    int64_t begin, end, col = m.line(blockIdx.x, &begin, &end);
    float row = m.rows > 0 ? (float)m.row_sums()[m.first_row + blockIdx.x] : 0.0f;
    double rms_p = sqrt(m.sums[TR_SUM_P] / n_all), rms_d = sqrt(*norm / n_all);
    double rate = m.step[TR_STEP_LR] * (m.step[TR_STEP_ADJUST] > 0 ? fmax(TR_ADAFACTOR_LEAST, rms_p) : 1.0);
    float decay = (float)(rate * (o.decay ? m.step[TR_STEP_DECAY] : 0.0f));
    float step = (float)(rate / fmax(1.0, rms_d / TR_ADAFACTOR_CLIP));
    uint64_t number = sizeof(S) == 2 ? step_number(m.step) : 0;
    for (int64_t i = begin + threadIdx.x; i < end; i += THREADS) {
        int64_t e = o.first + i;
        uint32_t random = sizeof(S) == 2 ? word_of(philox(o.key, number, (uint64_t)e >> 2), e) : 0;
        float old = to_f32(p[i]), direction = m.direction(to_f32(g[i]), row, i, col + i - begin);
        float x = put(p + i, old - old * decay - direction * step, random);
        if (copy)
            copy[i] = from_f32<C>(x);
    }
}

template <typename G, typename P> static void sums(const struct tr_call *c)
{
    matrix m = matrix_of(c);
    unsigned n_lines = lines_of(m);
    const G *g = (const G *)c->in[0].data;
    double *of_line = (double *)c->scratch;
    (void)cudaMemsetAsync(m.sums, 0, (size_t)c->out[4].cols * sizeof(double), stream_of(c));
    if (n_lines == 0)
        return;
    start(c, sum_lines_kernel<G, P>, n_lines, THREADS, 0, m, g, (const P *)c->out[0].data, of_line);
    start(c, add_lines_kernel, 1, ONE_BLOCK, 0, of_line, n_lines, m.sums + TR_SUM_P);
    if (m.rows > 0)
        start(c, sum_columns_kernel<G>, (unsigned)ceil_div(m.width, COLS), dim3(COLS, LINES), 0, m, g, n_lines);
}

void tr_cuda_ADAFACTOR_SUMS(const struct tr_call *c)
{
    if (is_bf16(c->in[0]))
        is_bf16(c->out[0]) ? sums<bf16, bf16>(c) : sums<bf16, float>(c);
    else
        is_bf16(c->out[0]) ? sums<float, bf16>(c) : sums<float, float>(c);
}

void tr_cuda_ADAFACTOR_FACTORS(const struct tr_call *c)
{
    start(c, factors_kernel, 2, ONE_BLOCK, 0, (float *)c->out[2].data, c->out[2].cols, (float *)c->out[3].data,
          c->out[3].cols, (double *)c->out[4].data, (const float *)c->in[1].data);
}

template <typename G> static void norm(const struct tr_call *c)
{
    matrix m = matrix_of(c);
    unsigned n_lines = lines_of(m);
    double *of_line = (double *)c->scratch;
    if (n_lines > 0)
        start(c, norm_kernel<G>, n_lines, THREADS, 0, m, (const G *)c->in[0].data, of_line);
    start(c, add_lines_kernel, 1, ONE_BLOCK, 0, of_line, n_lines, (double *)c->out[5].data);
}

void tr_cuda_ADAFACTOR_NORM(const struct tr_call *c)
{
    is_bf16(c->in[0]) ? norm<bf16>(c) : norm<float>(c);
}

template <typename G, typename S> static void apply(const struct tr_call *c)
{
    matrix m = matrix_of(c);
    optim_args o = { (const float *)c->in[1].data, c->attr.decay, c->attr.key, c->attr.first };
    unsigned n_lines = lines_of(m);
    if (n_lines == 0)
        return;
    with_type(c->out[1], [&](auto t) {
        typedef decltype(t) C;
        start(c, apply_kernel<G, S, C>, n_lines, THREADS, 0, m, (const G *)c->in[0].data, (S *)c->out[0].data,
              (C *)c->out[1].data, (const double *)c->out[5].data, (double)c->attr.n_all, o);
    });
}

void tr_cuda_ADAFACTOR_APPLY(const struct tr_call *c)
{
    if (is_bf16(c->in[0]))
        is_bf16(c->out[0]) ? apply<bf16, bf16>(c) : apply<bf16, float>(c);
    else
        is_bf16(c->out[0]) ? apply<float, bf16>(c) : apply<float, float>(c);
}
