/* fuzz_csv.c - see table_fuzz.h. */
#include "table_fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    return fuzz_table(bytes, n, TR_TABLE_CSV, GOLDEN "*.csv");
}
