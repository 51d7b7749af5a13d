/* fuzz_quant_state.c - the JSON text that describes a 4-bit weight. What is accepted has sizes that nothing overflows.
 */
#include "ckpt/hfdir.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct tr_quant_state s;
    if (tr_quant_state_parse((const char *)data, n, &s) == TR_OK) {
        int64_t n_elems = 1;
        TR_BUG_ON(s.type >= TR_Q4_COUNT || s.dtype > TR_F16 || s.n_dims < 1 || s.n_dims > TR_ST_MAX_DIMS);
        TR_BUG_ON(s.block < 32 || s.block > 4096 || (s.block & (s.block - 1)) != 0);
        for (int d = 0; d < s.n_dims; d++)
            n_elems *= s.dims[d];
        TR_BUG_ON(n_elems != s.n_elems || n_elems < 1 || n_elems > INT64_C(1) << 50);
        TR_BUG_ON(s.offset != s.offset || s.offset - s.offset != 0);
    }
    return 0;
}
