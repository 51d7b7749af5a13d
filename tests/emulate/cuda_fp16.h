/* cuda_fp16.h - for kernels on a CPU (cuda_runtime.h). */
#ifndef TR_TESTS_EMULATE_CUDA_FP16_H
#define TR_TESTS_EMULATE_CUDA_FP16_H

#include <cuda_runtime.h>
extern "C" {
#include "base/dtype.h"
}

struct __half {
    uint16_t bits;
};
static inline float __half2float(__half x)
{
    return tr_f32_of_f16(x.bits);
}
static inline __half __float2half_rn(float x)
{
    return __half{ tr_f16_of_f32(x) };
}

#endif
