/* cuda_fp8.h - for kernels on a CPU (cuda_runtime.h): named, not computed with. */
#ifndef TR_TESTS_EMULATE_CUDA_FP8_H
#define TR_TESTS_EMULATE_CUDA_FP8_H

struct __nv_fp8_e4m3 {
    unsigned char bits;
    explicit operator float() const
    {
        return 0;
    }
};
struct __nv_fp8_e5m2 {
    unsigned char bits;
    explicit operator float() const
    {
        return 0;
    }
};

#endif
