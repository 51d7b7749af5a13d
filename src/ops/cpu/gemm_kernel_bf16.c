/* gemm_kernel_bf16.c - the column of the matrix product for two bfloat16 operands where the processor has AVX512-BF16:
 * the tile of gemm_kernel_avx512.c on words of two elements.
 *
 * A step of the instruction multiplies two pairs exactly and adds them to a float, which takes twice the elements of a
 * fused multiply-add in the same time. It rounds after each addition, treats subnormal elements as zero, and is not
 * specified to the last bit across makers: sums have other last bits than those of the other columns, the same whatever
 * the rows, columns and threads.
 */
#include "ops/cpu/gemm_impl.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define ISA TR_TARGET("avx512bf16,avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")

ISA TR_FORCE_INLINE __m512 multiply_add(__m512 x, __m512 b, __m512 sum)
{
    return _mm512_dpbf16_ps(sum, (__m512bh)x, (__m512bh)b);
}

#include "ops/cpu/gemm_tile_avx512.h"

const struct tr_gemm_isa tr_gemm_bf16 = {
    "avx512bf16",         MR, NR, 2, tile, tr_gemm_pack_row_pairs, tr_gemm_pack_line_pairs, tr_gemm_widen_avx512,
    tr_gemm_narrow_avx512
};
#endif
