/* attention_bwd.cuh - what the kernels of the backward of attention on tensor cores share. */
#ifndef TR_OPS_CUDA_ATTENTION_BWD_CUH
#define TR_OPS_CUDA_ATTENTION_BWD_CUH

#include "ops/cuda/attention_dropout.cuh"

template <typename T> struct bwd_call {
    tile_call<T> t;
    mat<const T> d_o, o;
    float *delta; /* (head, token): do.o */
    void *out[3]; /* dq, dk, dv */
    int64_t ld[3];
    bool is_f32, adds[3];
};

/* From s = q.k, dp = do.v: s becomes the probability that multiplies v, dp the derivative by scale * q.k. */
template <int EXTRA, typename T>
__device__ inline void pair_of(const tile_call<T> &t, float &s, float &dp, float lse2, float delta, bool sees,
                               bool is_kept)
{
    float slope = 1.0f, x = s * (t.scale * LOG2_E);
    if (EXTRA != PLAIN && t.softcap > 0) {
        float capped = tanh_of(s * (t.scale / t.softcap));
        x = capped * (t.softcap * LOG2_E), slope = 1.0f - capped * capped;
    }
    float p = sees ? exp2_of(x - lse2) : 0.0f;
    if (EXTRA == DROPPED) {
        float keep = is_kept ? t.keep_scale : 0.0f;
        s = p * keep;
        dp = p * (keep * dp - delta) * slope;
    } else {
        s = p;
        dp = p * (dp - delta) * slope;
    }
}

/* HALF: how far the two rows of a fragment that a lane holds are apart in the output. */
template <typename O, int HALF, int MT, int NO>
__device__ inline void store_grad(void *out, int64_t ld, int64_t col, int cols, const float (&x)[MT][NO][4],
                                  float factor, bool adds, int32_t row0, int32_t end)
{
    int lane = threadIdx.x % 4;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int32_t row = row0 + m * 16 + half * HALF;
            O *at = (O *)out + row * ld + col + 2 * lane;
#pragma unroll
            for (int n = 0; n < NO; n++)
                if (row < end && n * 8 < cols)
                    put2(at + n * 8, factor * x[m][n][2 * half], factor * x[m][n][2 * half + 1], adds);
        }
}

/* attention_dq.cu and attention_dkv.cu, for bf16 and f16; false: no shape of theirs fits the GPU. */
template <typename T> bool tile_launch_dq(const struct tr_call *c, const bwd_call<T> &f);
template <typename T> bool tile_launch_dkv(const struct tr_call *c, const bwd_call<T> &f);

#endif
