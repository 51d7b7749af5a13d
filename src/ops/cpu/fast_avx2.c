/* fast_avx2.c - the kernel files compiled once more, for AVX2. They are included here, so that the build needs no flags
 * per file. Shared headers come before the target pragma and keep the base instructions. */
#if defined(__x86_64__)
#define TR_ISA   avx2
#define TR_LANES 8
#include "base/quant.h"
#include "ops/cpu/dropout.h"
#include "ops/cpu/fast.h"
#include "ops/cpu/gemm.h"

TR_TARGET_BEGIN("avx2,f16c")

#include "ops/cpu/fast_decode.c"
#include "ops/cpu/fast_dequant.c"
#include "ops/cpu/fast_dora.c"
#include "ops/cpu/fast_elementwise.c"
#include "ops/cpu/fast_linear.c"
#include "ops/cpu/fast_norm.c"
#include "ops/cpu/fast_optim.c"

TR_TARGET_END
#else
typedef int tr_not_x86; /* a translation unit is never empty */
#endif
