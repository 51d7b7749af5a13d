/* optim8.cu - AdamW and Lion with moments of 8 bits.
 *
 * A warp updates a block of 256 elements, eight in each lane, so that the largest moment of the block needs no shared
 * memory. The tables that find codes (base/quant.h) lie in the shared memory of every block of threads; therefore few
 * blocks of threads run, and each walks over many blocks of elements.
 */
#include "ops/cuda/optim.cuh"
extern "C" {
#include "base/quant.h"
}

enum {
    THREADS = 256,
    WARPS = THREADS / 32,
    LANE = TR_DYNAMIC_BLOCK / 32,
    RESIDENT = 4 /* blocks of threads on a multiprocessor */
};

__device__ struct tr_dynamic maps[2]; /* unsigned, signed */

struct finder {
    float value[256], border[256];
    uint8_t cell[TR_DYNAMIC_CELLS + 3];
};

__device__ static void read_map(const struct tr_dynamic *from, finder *to)
{
    for (int i = threadIdx.x; i < 256; i += THREADS)
        to->value[i] = from->value[i], to->border[i] = from->border[i];
    for (int i = threadIdx.x; i < TR_DYNAMIC_CELLS; i += THREADS)
        to->cell[i] = from->cell[i];
}

/* As tr_dynamic_code and tr_dynamic_code_signed; zero: the code of 0. */
__device__ static int code_of(const finder &f, int zero, float x)
{
    int cell = (int)(__float_as_uint(x) >> 16) - TR_DYNAMIC_CELL0;
    if (cell < 0)
        return zero;
    int code = f.cell[min(cell, TR_DYNAMIC_CELLS - 1)];
    return code + (x > f.border[code]);
}
__device__ static int signed_code_of(const finder &f, int zero, float x)
{
    int code = code_of(f, zero, fabsf(x)), turned = 2 * zero - code;
    return x >= 0 ? code : max(turned == zero ? turned - 1 : turned, 0);
}

template <typename G, typename S, typename C> struct updates8 {
    struct {
        const G *g;
        S *p;
        C *copy;
        uint8_t *m, *v;
        float *max_m, *max_v;
        int64_t n;
        optim_args o;
        unsigned first_block;
        bool is_wide; /* whole vectors may be read and written */
    } t[TR_UPDATES_MAX];
    int n;
    unsigned n_blocks;
};

template <int V, typename T> __device__ static void load_some(const T *p, int64_t n, float *out)
{
#pragma unroll
    for (int k = 0; k < V; k++)
        out[k] = k < n ? to_f32(p[k]) : 0.0f;
}

template <typename G, typename S, typename C, int KIND>
__global__ void __launch_bounds__(THREADS, RESIDENT) updates8_kernel(const __grid_constant__ updates8<G, S, C> u)
{
    constexpr bool HAS_V = KIND == TR_OP_ADAMW8;
    __shared__ finder of_v, of_m;
    if (HAS_V)
        read_map(&maps[0], &of_v);
    read_map(&maps[1], &of_m);
    __syncthreads();
    int lane = (int)threadIdx.x % 32, k = 0, zero = maps[1].zero;
    for (unsigned b = blockIdx.x * WARPS + threadIdx.x / 32; b < u.n_blocks; b += gridDim.x * WARPS) {
        while (k + 1 < u.n && b >= u.t[k + 1].first_block)
            k++;
        const auto &t = u.t[k];
        update x = update_of(t.o);
        int64_t block = b - t.first_block, i = block * TR_DYNAMIC_BLOCK + lane * LANE;
        int left = (int)min((int64_t)LANE, max((int64_t)0, t.n - i));
        bool is_wide = t.is_wide && left == LANE;
        float gv[LANE], pv[LANE], mv[LANE], vv[LANE], max_m = t.max_m[block], max_v = HAS_V ? t.max_v[block] : 0.0f;
        uint8_t cm[LANE] = {}, cv[LANE] = {};
        if (is_wide) {
            load<LANE>(t.g + i, gv);
            load<LANE>(t.p + i, pv);
            *(uint2 *)cm = *(const uint2 *)(t.m + i);
            if (HAS_V)
                *(uint2 *)cv = *(const uint2 *)(t.v + i);
        } else {
            load_some<LANE>(t.g + i, left, gv);
            load_some<LANE>(t.p + i, left, pv);
            for (int e = 0; e < left; e++)
                cm[e] = t.m[i + e], cv[e] = HAS_V ? t.v[i + e] : 0;
        }
        float most_m = 0.0f, most_v = 0.0f, rate = x.lr / x.bias1, grow = 1.0f / x.root_bias2;
        uint64_t number = sizeof(S) == 2 ? step_number(t.o.step) : 0;
        pack<S, LANE> sp;
#pragma unroll
        for (int e = 0; e < LANE; e++) {
            bool is_here = e < left;
            float g = gv[e] * x.clip;
            float m = of_m.value[cm[e]] * max_m, d = x.beta1 * m + (1.0f - x.beta1) * g, p;
            if (HAS_V) {
                mv[e] = is_here ? d : 0.0f;
                vv[e] = is_here ? x.beta2 * (of_v.value[cv[e]] * max_v) + (1.0f - x.beta2) * g * g : 0.0f;
                p = (pv[e] - __fdividef(rate * mv[e], root(vv[e]) * grow + x.eps)) * x.keep;
            } else {
                mv[e] = is_here ? x.beta2 * m + (1.0f - x.beta2) * g : 0.0f;
                vv[e] = 0.0f;
                p = pv[e] * x.keep - x.lr * (float)((d > 0) - (d < 0));
            }
            uint32_t word = 0;
            if (sizeof(S) == 2) {
                int64_t at = t.o.first + i + e;
                word = word_of(philox(t.o.key, number, (uint64_t)at >> 2), at);
            }
            pv[e] = put(&sp.v[e], p, word);
            most_m = fmaxf(most_m, fabsf(mv[e]));
            most_v = fmaxf(most_v, vv[e]);
        }
        most_m = warp_max(most_m);
        most_v = warp_max(most_v);
        float part_m = most_m > 0.0f ? 1.0f / most_m : 0.0f, part_v = most_v > 0.0f ? 1.0f / most_v : 0.0f;
#pragma unroll
        for (int e = 0; e < LANE; e++) {
            cm[e] = (uint8_t)signed_code_of(of_m, zero, mv[e] * part_m);
            if (HAS_V)
                cv[e] = (uint8_t)code_of(of_v, 0, vv[e] * part_v);
        }
        __syncwarp(); /* all lanes have read the old scales */
        if (lane == 0)
            t.max_m[block] = most_m;
        if (HAS_V && lane == 0)
            t.max_v[block] = most_v;
        if (is_wide) {
            *(pack<S, LANE> *)(t.p + i) = sp;
            *(uint2 *)(t.m + i) = *(const uint2 *)cm;
            if (HAS_V)
                *(uint2 *)(t.v + i) = *(const uint2 *)cv;
            if (t.copy)
                store<LANE>(t.copy + i, pv);
        } else {
            for (int e = 0; e < left; e++) {
                t.p[i + e] = sp.v[e], t.m[i + e] = cm[e];
                if (HAS_V)
                    t.v[i + e] = cv[e];
                if (t.copy)
                    t.copy[i + e] = from_f32<C>(pv[e]);
            }
        }
    }
}

static bool is_aligned(const struct tr_view &v)
{
    return !v.data || (uintptr_t)v.data % (LANE * tr_dtype_bytes(v.dtype)) == 0;
}

template <typename G, typename S, typename C, int KIND> static void update_all(const struct tr_call *c, int n)
{
    updates8<G, S, C> u = {};
    static_assert(sizeof u <= 4096, "kernels take 4 KiB of arguments");
    int64_t n_blocks = 0;
    for (int i = 0; i < n; i++) {
        auto &t = u.t[u.n++];
        t.g = (const G *)c[i].in[0].data, t.p = (S *)c[i].out[0].data, t.copy = (C *)c[i].out[1].data;
        t.m = (uint8_t *)c[i].out[2].data, t.max_m = (float *)c[i].out[KIND == TR_OP_ADAMW8 ? 4 : 3].data;
        if (KIND == TR_OP_ADAMW8)
            t.v = (uint8_t *)c[i].out[3].data, t.max_v = (float *)c[i].out[5].data;
        t.n = c[i].out[0].cols;
        t.o = optim_args{ (const float *)c[i].in[1].data, c[i].attr.decay, c[i].attr.key, c[i].attr.first };
        /* the last lane with elements may have fewer than eight: it reads them one by one */
        t.is_wide = is_aligned(c[i].in[0]);
        for (int k = 0; k < (KIND == TR_OP_ADAMW8 ? 4 : 3); k++)
            t.is_wide = t.is_wide && is_aligned(c[i].out[k]);
        t.first_block = (unsigned)n_blocks;
        n_blocks += ceil_div(t.n, TR_DYNAMIC_BLOCK);
    }
    TR_BUG_ON(n_blocks > INT32_MAX);
    u.n_blocks = (unsigned)n_blocks;
    unsigned grid = (unsigned)tr_min64(tr_max64(1, c->dev->n_units) * RESIDENT, ceil_div(n_blocks, WARPS));
    if (n_blocks > 0)
        updates8_kernel<G, S, C, KIND><<<grid, THREADS, 0, stream_of(c)>>>(u);
    check_launch(c);
}

template <typename G, typename S, int KIND> static void update_to(const struct tr_call *c, int n)
{
    with_type(c->out[1], [&](auto t) { update_all<G, S, decltype(t), KIND>(c, n); });
}

template <int KIND> static void update_any(const struct tr_call *c, int n)
{
    if (is_bf16(c->in[0]))
        is_bf16(c->out[0]) ? update_to<bf16, bf16, KIND>(c, n) : update_to<bf16, float, KIND>(c, n);
    else
        is_bf16(c->out[0]) ? update_to<float, bf16, KIND>(c, n) : update_to<float, float, KIND>(c, n);
}

void tr_cuda_updates8(const struct tr_call *c, int n)
{
    c->op == TR_OP_ADAMW8 ? update_any<TR_OP_ADAMW8>(c, n) : update_any<TR_OP_LION8>(c, n);
}

void tr_cuda_ADAMW8(const struct tr_call *c)
{
    tr_cuda_updates8(c, 1);
}

void tr_cuda_LION8(const struct tr_call *c)
{
    tr_cuda_updates8(c, 1);
}

cudaError_t tr_cuda_updates8_open(void)
{
    for (int s = 0; s < 2; s++) {
        cudaError_t e = cudaMemcpyToSymbol(maps, tr_dynamic(s), sizeof *maps, (size_t)s * sizeof *maps);
        if (e != cudaSuccess)
            return e;
    }
    return cudaSuccess;
}
