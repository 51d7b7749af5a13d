/* tile_avx512.c - tile.c compiled once more, for AVX-512. */
#if defined(__x86_64__)
#define TR_ISA   avx512
#define TR_LANES 16
#include "ops/cpu/fast.h"
#include "ops/cpu/tile.h"
#include <immintrin.h>
#include <math.h>

TR_TARGET_BEGIN("avx512f,avx512bw,avx512dq,avx512vl")

#include "ops/cpu/tile.c"

TR_TARGET_END
#else
typedef int tr_not_x86; /* a translation unit is never empty */
#endif
