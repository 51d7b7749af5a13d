/* optim.cuh - what the kernels of all optimizers share. */
#ifndef TR_OPS_CUDA_OPTIM_CUH
#define TR_OPS_CUDA_OPTIM_CUH

#include "ops/cuda/cuda.cuh"

struct optim_args {
    const float *step;
    bool decay;
    uint64_t key;
    int64_t first;
};

struct update {
    float lr, clip, beta1, beta2, eps, keep, bias1, root_bias2;
};

__device__ static inline update update_of(const optim_args &o)
{
    const float *s = o.step;
    return update{ s[TR_STEP_LR],    s[TR_STEP_CLIP],        s[TR_STEP_BETA1],
                   s[TR_STEP_BETA2], s[TR_STEP_EPS],         1.0f - s[TR_STEP_LR] * (o.decay ? s[TR_STEP_DECAY] : 0.0f),
                   s[TR_STEP_BIAS1], sqrtf(s[TR_STEP_BIAS2]) };
}

__device__ static inline float put(float *p, float x, uint32_t)
{
    *p = x;
    return x;
}
/* Stochastic rounding: adds 16 random bits below the bits that stay, then truncates. NaN needs a test to stay NaN;
 * infinity stays infinity without one. */
__device__ static inline float put(bf16 *p, float x, uint32_t random)
{
    uint32_t u = (x != x ? 0x7fc00000u : __float_as_uint(x) + (random & 0xffffu)) & 0xffff0000u;
    *p = __ushort_as_bfloat16((unsigned short)(u >> 16));
    return __uint_as_float(u);
}

__device__ static inline float root(float x) /* one instruction, within 1 ulp */
{
    float y;
    asm("sqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* n updates of one op: several tensors in one launch. */
void tr_cuda_updates(const struct tr_call *c, int n);
void tr_cuda_updates8(const struct tr_call *c, int n);
/* Puts the tables of 8-bit moments on the device. */
cudaError_t tr_cuda_updates8_open(void);

#endif
