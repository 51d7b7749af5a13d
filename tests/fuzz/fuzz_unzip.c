/* fuzz_unzip.c - any bytes as gzip or zstd, fed in any cuts: no more comes out than the guard allows, and the cuts do
 * not matter. */
#include "table/unzip.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

enum { OUT_BYTES = 1 << 16, MAX_OUT = 1 << 24 };

/* Hash and length of what comes out before an error or the end, with at most n_step bytes given at a time. */
static enum tr_status run(enum tr_zip kind, const uint8_t *in, size_t n, size_t n_step, uint64_t *n_out)
{
    static unsigned char out[OUT_BYTES];
    struct tr_unzip *z = NULL;
    enum tr_status st = tr_unzip_open(kind, &z);
    size_t at = 0;
    *n_out = 0;
    while (st == TR_OK && *n_out < MAX_OUT) {
        size_t n_in = n - at < n_step ? n - at : n_step, n_got = OUT_BYTES;
        bool is_end = n_in == 0;
        st = tr_unzip_run(z, in + at, &n_in, out, &n_got);
        if (st == TR_OK && n_in == 0 && n_got == 0 && !is_end)
            abort(); /* would never end */
        at += n_in;
        *n_out += n_got;
        if (st == TR_OK && is_end && n_got == 0) {
            st = tr_unzip_end(z);
            break;
        }
    }
    tr_unzip_close(z);
    return st;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    for (int kind = TR_ZIP_GZIP; kind <= TR_ZIP_ZSTD; kind++) {
        uint64_t n_whole, n_cut;
        enum tr_status whole = run((enum tr_zip)kind, bytes, n, n + 1, &n_whole);
        enum tr_status cut = run((enum tr_zip)kind, bytes, n, 7, &n_cut);
        if (whole == TR_OK && (cut != TR_OK || n_cut != n_whole))
            abort();
    }
    return 0;
}
