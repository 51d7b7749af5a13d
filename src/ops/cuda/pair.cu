/* pair.cu - sums over documents and the loss of pairs. Both are a few numbers for each token: simple kernels do. */
#include "ops/cuda/cuda.cuh"
#include <math.h>
extern "C" {
#include "ops/pair_token.h"
}

enum { WARPS = 4, LANES = 32 };

__device__ static double lanes_sum(double x)
{
    for (int d = LANES / 2; d > 0; d /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, d);
    return x;
}

/* Lane l looks at rows l, l + 32, ... of [from, end). */
__device__ static bool is_before(mat<const int32_t> begin, int32_t value, int64_t end, int lane)
{
    bool is_found = false;
    for (int64_t j = lane; j < end && !is_found; j += LANES)
        is_found = *begin.at(j, 0) == value;
    return __any_sync(0xffffffffu, is_found);
}

/* A warp for each row. That of the first row of a document adds the document up; all others end at once. With context
 * parallel (in_pieces) a document may lie in two pieces, of which the first has the work. */
__global__ void __launch_bounds__(WARPS *LANES)
    doc_sums_kernel(mat<const float> loss, mat<const int32_t> target, mat<const int32_t> begin, mat<const float> ref,
                    mat<const float> weight, mat<const float> squares, mat<const float> match, int64_t n,
                    bool in_pieces, mat<float> sums, int n_sums)
{
    int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / LANES;
    int lane = threadIdx.x % LANES;
    if (row >= n)
        return;
    int32_t own = *begin.at(row, 0);
    if (row > 0 && *begin.at(row - 1, 0) == own)
        return;
    if (in_pieces && is_before(begin, own, row, lane))
        return;
    double sum[TR_DOC_ALL_SUMS] = { 0 };
    bool goes_on = true;
    for (int64_t first = row; first < n && goes_on; first += LANES) {
        int64_t j = first + lane;
        bool is_own = j < n && *begin.at(j, 0) == own;
        if (is_own) {
            sum[TR_DOC_LOSS] += *loss.at(j, 0);
            sum[TR_DOC_REF] += *ref.at(j, 0);
            sum[TR_DOC_TARGETS] += *target.at(j, 0) >= 0;
            sum[TR_DOC_WEIGHED] += *loss.at(j, 0) * (weight ? *weight.at(j, 0) : 1.0f);
            sum[TR_DOC_SQUARES] += squares ? *squares.at(j, 0) : 0.0f;
            sum[TR_DOC_MATCH] += match ? *match.at(j, 0) : 0.0f;
        }
        goes_on = in_pieces || __all_sync(0xffffffffu, is_own);
    }
    for (int k = 0; k < n_sums; k++) {
        double all = lanes_sum(sum[k]);
        if (lane == 0)
            *sums.at(own, k) = (float)all;
    }
}

void tr_cuda_DOC_SUMS(const struct tr_call *c)
{
    const struct tr_view &y = c->out[0];
    int64_t n = c->in[0].rows;
    cudaError_t e = cudaMemset2DAsync(y.data, (size_t)y.ld * sizeof(float), 0, (size_t)y.cols * sizeof(float),
                                      (size_t)y.rows, stream_of(c));
    if (e != cudaSuccess)
        tr_device_note(c->dev, TR_IO, "device cuda: op doc_sums: %s", cudaGetErrorString(e));
    start(c, doc_sums_kernel, (unsigned)ceil_div(n, WARPS), WARPS * LANES, 0, mat_of<const float>(c->in[0]),
          mat_of<const int32_t>(c->in[1]), mat_of<const int32_t>(c->in[2]), mat_of<const float>(c->in[3]),
          mat_of<const float>(c->in[4]), mat_of<const float>(c->in[5]), mat_of<const float>(c->in[6]), n, y.rows > n,
          mat_of<float>(y), (int)y.cols);
}

__global__ void pair_loss_kernel(mat<const float> sums, mat<const int32_t> begin, mat<const int32_t> position,
                                 mat<const int32_t> other, const float *step, mat<const float> weights, int64_t n,
                                 struct tr_pair_rule rule, mat<float> parts, mat<float> weight)
{
    int64_t row = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    float part[TR_METRICS] = { 0 };
    struct tr_pair_slope slope = { 0, 0 };
    if (row >= n)
        return;
    int32_t own = *begin.at(row, 0), second = *other.at(row, 0);
    bool is_first = *position.at(row, 0) == 0;
    if (second >= 0 && step) /* of labels */
        slope = tr_label_token(&rule, sums.at(own, 0), second > own, (double)step[TR_STEP_KL], is_first ? part : NULL);
    else if (second >= 0)
        slope = tr_pair_token(&rule, sums.at(own, 0), sums.at(second, 0), second > own,
                              second > own && is_first ? part : NULL);
    for (int k = 0; k < TR_METRICS; k++)
        *parts.at(row, k) = part[k];
    *weight.at(row, 0) = tr_pair_token_weight(slope, weights ? (double)*weights.at(row, 0) : 1.0);
}

void tr_cuda_PAIR_LOSS(const struct tr_call *c)
{
    int64_t n = c->out[0].rows;
    start(c, pair_loss_kernel, (unsigned)ceil_div(n, 256), 256, 0, mat_of<const float>(c->in[0]),
          mat_of<const int32_t>(c->in[1]), mat_of<const int32_t>(c->in[2]), mat_of<const int32_t>(c->in[3]),
          tr_pair_has_labels(&c->attr.pair) ? (const float *)c->in[4].data : NULL, mat_of<const float>(c->in[5]), n,
          c->attr.pair, mat_of<float>(c->out[0]), mat_of<float>(c->out[1]));
}

__global__ void dft_loss_kernel(mat<const float> loss, int64_t n, mat<float> parts, mat<float> weight)
{
    int64_t row = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= n)
        return;
    float nll = *loss.at(row, 0), p = expf(-nll);
    *parts.at(row, 0) = p * nll;
    *weight.at(row, 0) = p;
}

void tr_cuda_DFT_LOSS(const struct tr_call *c)
{
    int64_t n = c->out[0].rows;
    start(c, dft_loss_kernel, (unsigned)ceil_div(n, 256), 256, 0, mat_of<const float>(c->in[0]), n,
          mat_of<float>(c->out[0]), mat_of<float>(c->out[1]));
}

__global__ void weigh_loss_kernel(mat<const float> loss, mat<const float> weight, int64_t n, mat<float> parts)
{
    int64_t row = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (row < n)
        *parts.at(row, 0) = *loss.at(row, 0) * *weight.at(row, 0);
}

void tr_cuda_WEIGH_LOSS(const struct tr_call *c)
{
    int64_t n = c->out[0].rows;
    start(c, weigh_loss_kernel, (unsigned)ceil_div(n, 256), 256, 0, mat_of<const float>(c->in[0]),
          mat_of<const float>(c->in[1]), n, mat_of<float>(c->out[0]));
}
