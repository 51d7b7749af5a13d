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

enum { THREADS = 256, PER_THREAD = 32, TILE = THREADS * PER_THREAD /* elements */ };

/* GRAIN: its elements; WORDS: its codes and its scale, in words of 4 bytes. decode: 8 neighbouring elements. */
struct q4 {
    enum { GRAIN = TR_Q4_BLOCK, WORDS = GRAIN / 8 + 1 };
    float v[16];
    /* Byte k of the word holds the codes of elements 2k (high half) and 2k + 1. */
    __device__ static void decode(const float *table, const uint32_t *grain, int at, float out[8])
    {
        uint32_t w = grain[at / 8];
#pragma unroll
        for (int k = 0; k < 4; k++) {
            out[2 * k] = table[w >> (8 * k + 4) & 15];
            out[2 * k + 1] = table[w >> (8 * k) & 15];
        }
    }
};

struct f8 {
    enum { GRAIN = TR_F8_BLOCK, WORDS = GRAIN / 4 + 1 };
    float v[16]; /* not used */
    __device__ static void decode(const float *, const uint32_t *grain, int at, float out[8])
    {
#pragma unroll
        for (int k = 0; k < 8; k++) {
            __nv_fp8_e4m3 x;
            x.__x = (__nv_fp8_storage_t)(grain[(at + k) / 4] >> (8 * (k % 4)) & 255);
            out[k] = to_f32(x);
        }
    }
};

/* W is a run of n elements. V: elements that are written at once, 8 or 1. is_wide: the grains are copied 16 bytes at a
 * time. */
template <typename F, typename T, int V>
__global__ void __launch_bounds__(THREADS)
    dequant_kernel(const uint32_t *grains, int64_t n_words, bool is_wide, F of, mat<T> w, int64_t cols, int64_t n)
{
    enum { TILE_WORDS = TILE / F::GRAIN * F::WORDS };
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
        int at = (k * THREADS + threadIdx.x) * 8;
        int64_t i = first + at;
        if (i >= n)
            return;
        const uint32_t *grain = &tile[at / F::GRAIN * F::WORDS];
        float out[8], scale = __uint_as_float(grain[F::WORDS - 1]);
        F::decode(table, grain, at % F::GRAIN, out);
#pragma unroll
        for (int j = 0; j < 8; j++)
            out[j] *= scale;
        if (V == 8) {
            store<8>(w.p + i, out);
        } else {
            for (int j = 0; j < 8 && i + j < n; j++)
                *w.at((i + j) / cols, (i + j) % cols) = from_f32<T>(out[j]);
        }
    }
}

template <typename F, typename T> static void dequant(const struct tr_call *c)
{
    const struct tr_view &in = c->in[0], &w = c->out[0];
    int64_t n = w.rows * w.cols, n_words = in.rows * F::WORDS;
    bool is_dense = w.ld == w.cols && n % 8 == 0 && (uintptr_t)w.data % (8 * sizeof(T)) == 0;
    F of;
    memcpy(of.v, tr_q4_values(c->attr.packed == TR_PACKED_FP4 ? TR_FP4 : TR_NF4), sizeof of.v);
    auto kernel = is_dense ? dequant_kernel<F, T, 8> : dequant_kernel<F, T, 1>;
    kernel<<<(unsigned)ceil_div(n, TILE), THREADS, 0, stream_of(c)>>>(
        (const uint32_t *)in.data, n_words, (uintptr_t)in.data % 16 == 0, of, mat_of<T>(w), w.cols, n);
    check_launch(c);
}

void tr_cuda_DEQUANT(const struct tr_call *c)
{
    bool is_q4 = tr_packed_is_q4((enum tr_packed)c->attr.packed);
    with_type(c->out[0], [&](auto t) { is_q4 ? dequant<q4, decltype(t)>(c) : dequant<f8, decltype(t)>(c); });
}
