/* tile_avx2.c - tile.c compiled once more, for AVX2 and FMA. */
#if defined(__x86_64__)
#define TR_ISA   avx2
#define TR_LANES 8
#include "ops/cpu/fast.h"
#include "ops/cpu/tile.h"
#include <immintrin.h>
#include <math.h>

TR_TARGET_BEGIN("avx2,fma,f16c")

#include "ops/cpu/tile.c"

TR_TARGET_END
#else
typedef int tr_not_x86; /* a translation unit is never empty */
#endif
