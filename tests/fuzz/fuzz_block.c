/* fuzz_block.c - any bytes as one compressed block: it becomes exactly the bytes that were asked for, or is refused.
 * What a codec compresses is in fuzz_parquet.c and fuzz_arrow.c. */
#include "table/block.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    static uint8_t out[1 << 16];
    if (n < 3)
        return 0;
    enum tr_block codec = (enum tr_block)(bytes[0] % (TR_BLOCK_LZ4_FRAME + 1));
    (void)tr_block_unpack(codec, bytes + 3, n - 3, out, (size_t)bytes[1] << 8 | bytes[2]);
    return 0;
}
