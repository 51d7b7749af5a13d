/* cuda_bf16.h - for kernels on a CPU (cuda_runtime.h). */
#ifndef TR_TESTS_EMULATE_CUDA_BF16_H
#define TR_TESTS_EMULATE_CUDA_BF16_H

#include <cuda_runtime.h>
extern "C" {
#include "base/dtype.h"
}

struct __nv_bfloat16 {
    uint16_t bits;
};
static inline float __bfloat162float(__nv_bfloat16 x)
{
    return tr_f32_of_bf16(x.bits);
}
static inline __nv_bfloat16 __float2bfloat16_rn(float x)
{
    return __nv_bfloat16{ tr_bf16_of_f32(x) };
}
static inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits)
{
    return __nv_bfloat16{ bits };
}

#endif
