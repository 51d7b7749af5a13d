/* attention_launch.cuh - the host side of the tensor-core kernels of attention: the call, and the choice of a tile
 * shape.
 *
 * The shapes are the fastest of those that were timed on an H200 for each head size (bench/results/h200.md). A kernel
 * has a list of shapes for a head size, and the first that fits the GPU's shared memory runs. The last of a list fits
 * the GPUs that tile_shared promises.
 */
#ifndef TR_OPS_CUDA_ATTENTION_LAUNCH_CUH
#define TR_OPS_CUDA_ATTENTION_LAUNCH_CUH

#include "ops/cuda/attention_tile.cuh"

/* Shared memory that heads of this size need: every GPU from 8.0 on has 99 KiB, those with HBM have 163 KiB. */
constexpr uint32_t tile_shared(int d)
{
    return d <= 128 ? 99u << 10 : 163u << 10;
}

/* Shapes for GPUs on which the one before them does not run: without products of warpgroups, or with too little shared
 * memory. A GPU of 9.0 runs the first of a list. */
template <typename S> struct by_warps : S {
    static constexpr bool IS_FIRST = false;
};
template <typename S> struct small : S {
    static constexpr bool IS_FIRST = false;
    static_assert(S::SHARED <= tile_shared(S::D), "it fits the GPUs that tile_shared promises");
};

/* Does a GPU for which this code is compiled ever run the shape? Code for 9.0 alone needs the first of a list, code for
 * 8.x no large ones; code that is translated later needs all but products of warpgroups. */
template <typename S> __device__ constexpr bool is_of_this_gpu()
{
#if defined __CUDA_ARCH_FEAT_SM90_ALL
    return S::IS_FIRST;
#elif defined __CUDA_ARCH__ && __CUDA_ARCH__ < 900
    return !S::E::IS_GROUP && S::SHARED <= 163u << 10;
#elif defined __CUDA_ARCH__
    return !S::E::IS_GROUP;
#else
    return true;
#endif
}

/* Starts a kernel; false: the GPU does not run the shape. */
template <typename S, typename F>
static bool tile_launch(const struct tr_call *c, void (*kernel)(F), const F &f, int64_t n_blocks)
{
    if (S::SHARED > shared_of_gpu() || (S::E::IS_GROUP && generation_of_gpu() != 9))
        return false;
    (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)S::SHARED);
    start(c, kernel, (unsigned)n_blocks, S::THREADS, S::SHARED, f);
    return true;
}

/* What the kernel must be able to do, as a compile-time constant: run(extra). */
#define FOR_EXTRA(t, run)                                                                                              \
    do {                                                                                                               \
        if ((t).threshold)                                                                                             \
            run(DROPPED);                                                                                              \
        else if ((t).softcap > 0)                                                                                      \
            run(CAPPED);                                                                                               \
        else                                                                                                           \
            run(PLAIN);                                                                                                \
    } while (0)

/* q, k, v and the tokens of a call; `q` and `begin` are the numbers of these inputs. */
template <typename T>
static tile_call<T> tile_call_of(const struct tr_call *c, int q, int begin, const struct tr_view *lse)
{
    const struct tr_attr *a = &c->attr;
    int64_t n = c->in[q].rows, n_k = c->in[q + 1].rows, s = a->seq_len;
    bool is_whole = n == n_k && a->row_q == 0 && a->row_k == 0 && s > 0 && n % s == 0;
    tile_call<T> t = {};
    t.q = mat_of<const T>(c->in[q]), t.k = mat_of<const T>(c->in[q + 1]), t.v = mat_of<const T>(c->in[q + 2]);
    t.begin = mat_of<const int32_t>(c->in[begin]);
    t.sample = mat_of<const int64_t>(c->in[begin + 1]);
    t.position = mat_of<const int32_t>(c->in[begin + 2]);
    t.step = (const float *)c->in[begin + 3].data;
    t.rule = tr_seen_rule{ (int32_t)n, (int32_t)n_k, (int32_t)a->row_q, (int32_t)a->row_k, (int32_t)a->window };
    t.d = a->head_dim, t.n_heads = a->n_heads_q, t.n_heads_kv = a->n_heads_kv, t.group = a->n_heads_q / a->n_heads_kv;
    t.n_rows = is_whole ? (int32_t)(n / s) : 1, t.row_tokens = is_whole ? (int32_t)s : (int32_t)n;
    t.scale = factor_of(c), t.softcap = a->softcap;
    t.keep_scale = tr_drop_scale(a->dropout_p);
    t.threshold = tr_drop_threshold(a->dropout_p) << 16;
    t.head0 = a->first;
    for (uint32_t i = 0; i < TR_COUNT_OF(t.round_key); i++) /* tr_philox7 */
        t.round_key[i] = make_uint2((uint32_t)a->key + i * 0x9E3779B9u, (uint32_t)(a->key >> 32) + i * 0xBB67AE85u);
    float *p = (float *)lse->data;
    t.lse = tr_cuda_lse_is_by_head(c, lse) ? lse_place{ p, s, s * t.n_heads, s, 1 } : lse_place{ p, n, 0, 1, lse->ld };
    return t;
}

#endif
