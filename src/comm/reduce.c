/* reduce.c - sum, average or maximum of the same elements of several ranks, once per instruction set; a copy.
 *
 * Every call looks up the best set that the processor has (a load and two branches), so there is no state to set up.
 * Rejected: pairwise trees (shorter error bound, but the order would depend on the number of ranks present).
 */
#include "comm/comm_impl.h"
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

enum { BLOCK = 512, RUN = 64 };

#define NAME(x) x##_base
#include "comm/reduce_kernel.h"
#undef NAME

#if defined(__x86_64__)

#define NAME(x) x##_avx2
TR_TARGET_BEGIN("avx2")
#include "comm/reduce_kernel.h"
TR_TARGET_END
#undef NAME

#if defined(__clang__) /* it has no word for the width */
#define AVX512 "avx512f,avx512bw,avx512dq,avx512vl"
#else
#define AVX512 "avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512"
#endif
#define NAME(x) x##_avx512
TR_TARGET_BEGIN(AVX512)
#include "comm/reduce_kernel.h"
TR_TARGET_END
#undef NAME

#endif

void tr_reduce(enum tr_dtype dtype, enum tr_reduce_op op, const void *const *in, int n_in, void *const *out, int n_out,
               size_t count)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        reduce_avx512(dtype, op, in, n_in, out, n_out, count);
    else if (__builtin_cpu_supports("avx2"))
        reduce_avx2(dtype, op, in, n_in, out, n_out, count);
    else
#endif
        reduce_base(dtype, op, in, n_in, out, n_out, count);
}

#if defined(__SSE2__)
static void stream_line(char *to, const char *from)
{
    for (size_t i = 0; i < 64; i += 16)
        _mm_stream_si128((__m128i *)(void *)(to + i), _mm_loadu_si128((const __m128i *)(const void *)(from + i)));
}
#endif

/* Four runs side by side: one alone does not saturate the memory. */
void tr_copy_past_cache(void *restrict dst, const void *restrict src, size_t bytes)
{
#if defined(__SSE2__)
    char *to = dst;
    const char *from = src;
    if (bytes >= 16384) {
        size_t head = (64 - (uintptr_t)to % 64) % 64, run = (bytes - head) / 256 * 64, end = head + 4 * run;
        memcpy(to, from, head);
        for (size_t i = head; i < head + run; i += 64)
            for (size_t r = 0; r < 4; r++)
                stream_line(to + r * run + i, from + r * run + i);
        _mm_sfence(); /* non-temporal stores are not ordered otherwise */
        memcpy(to + end, from + end, bytes - end);
        return;
    }
#endif
    memcpy(dst, src, bytes);
}
