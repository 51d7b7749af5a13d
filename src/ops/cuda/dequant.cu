/* dequant.cu - packed weights to 16 bits or fp32. Bound by memory: a block of threads copies its grains to shared
 * memory as they are, and each thread writes 8 neighbouring elements at a time.
 *
 * The 16 values lie in 16 banks of shared memory, so a lookup never waits for another: equal indices are one read. A
 * table of pairs by byte would halve the lookups, but its 256 entries share 32 banks.
 */
#include "ops/cuda/cuda.cuh"
extern "C" {
#include "base/quant.h"
}

enum {
    GRAIN = TR_Q4_BLOCK,
    GRAIN_WORDS = GRAIN / 8 + 1, /* of 4 bytes: codes, then the scale */
    THREADS = 256,
    PER_THREAD = 32,
    TILE = THREADS * PER_THREAD, /* elements */
    TILE_WORDS = TILE / GRAIN * GRAIN_WORDS
};

struct values {
    float v[16];
};

/* Word w holds 8 codes; byte k holds those of elements 2k (high half) and 2k + 1. */
__device__ static void decode(const float *table, uint32_t w, float scale, float out[8])
{
#pragma unroll
    for (int k = 0; k < 4; k++) {
        out[2 * k] = table[w >> (8 * k + 4) & 15] * scale;
        out[2 * k + 1] = table[w >> (8 * k) & 15] * scale;
    }
}

/* W is a run of n elements. V: elements that are written at once, 8 or 1. is_wide: the grains are copied 16 bytes at a
 * time. */
template <typename T, int V>
__global__ void __launch_bounds__(THREADS)
    dequant_kernel(const uint32_t *grains, int64_t n_words, bool is_wide, values of, mat<T> w, int64_t cols, int64_t n)
{
    __shared__ alignas(16) uint32_t tile[TILE_WORDS];
    __shared__ float table[16];
    int64_t word0 = (int64_t)blockIdx.x * TILE_WORDS, first = (int64_t)blockIdx.x * TILE;
    int n_here = (int)min((int64_t)TILE_WORDS, n_words - word0);
    if (threadIdx.x < 16)
        table[threadIdx.x] = of.v[threadIdx.x];
    if (is_wide && n_here == TILE_WORDS)
        for (int i = threadIdx.x; i < TILE_WORDS / 4; i += THREADS)
            ((uint4 *)tile)[i] = __ldcs((const uint4 *)(grains + word0) + i);
    else
        for (int i = threadIdx.x; i < n_here; i += THREADS)
            tile[i] = grains[word0 + i];
    __syncthreads();
#pragma unroll
    for (int k = 0; k < PER_THREAD / 8; k++) {
        int at = (k * THREADS + threadIdx.x) * 8, grain = at / GRAIN;
        int64_t i = first + at;
        if (i >= n)
            return;
        const uint32_t *from = &tile[grain * GRAIN_WORDS];
        float out[8];
        decode(table, from[at % GRAIN / 8], __uint_as_float(from[GRAIN_WORDS - 1]), out);
        if (V == 8) {
            store<8>(w.p + i, out);
        } else {
            for (int j = 0; j < 8 && i + j < n; j++)
                *w.at((i + j) / cols, (i + j) % cols) = from_f32<T>(out[j]);
        }
    }
}

template <typename T> static void dequant(const struct tr_call *c)
{
    const struct tr_view &in = c->in[0], &w = c->out[0];
    int64_t n = w.rows * w.cols, n_words = in.rows * GRAIN_WORDS;
    bool is_dense = w.ld == w.cols && n % 8 == 0 && (uintptr_t)w.data % (8 * sizeof(T)) == 0;
    values of;
    memcpy(of.v, tr_q4_values(c->attr.packed == TR_PACKED_FP4 ? TR_FP4 : TR_NF4), sizeof of.v);
    auto kernel = is_dense ? dequant_kernel<T, 8> : dequant_kernel<T, 1>;
    kernel<<<(unsigned)ceil_div(n, TILE), THREADS, 0, stream_of(c)>>>(
        (const uint32_t *)in.data, n_words, (uintptr_t)in.data % 16 == 0, of, mat_of<T>(w), w.cols, n);
    check_launch(c);
}

void tr_cuda_DEQUANT(const struct tr_call *c)
{
    with_type(c->out[0], [&](auto t) { dequant<decltype(t)>(c); });
}
