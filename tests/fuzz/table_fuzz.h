/* table_fuzz.h - any bytes as a data file of one kind: reading ends, a row is never longer than it may be, rows are
 * numbered, and a file that is read to its end has as many as it says.
 *
 * Formats with checksums and codecs are not found by chance, so an input whose first byte is above 127 is a recorded
 * file (tests/table/golden) with a few of its bytes changed: three bytes for each change, place and value. */
#ifndef TR_TESTS_FUZZ_TABLE_FUZZ_H
#define TR_TESTS_FUZZ_TABLE_FUZZ_H

#include "table/table.h"

#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

static inline void read_table(const uint8_t *bytes, size_t n, enum tr_table_kind kind)
{
    char path[64];
    struct tr_table *t = NULL;
    struct tr_row row = { .text = "" };
    uint64_t n_said = 0;
    int64_t n_rows = 0;
    int fd = memfd_create("table", MFD_CLOEXEC);
    if (fd < 0 || tr_write_all(fd, "memfd", bytes, n) != TR_OK ||
        tr_format(path, sizeof path, "/proc/self/fd/%d", fd) != TR_OK || tr_table_open(path, kind, &t) != TR_OK)
        goto out;
    enum tr_status st = TR_OK;
    while ((st = tr_table_next(t, &row)) == TR_OK && row.text) {
        if (row.number != ++n_rows || row.n > TR_LINE_MAX || (row.why && row.n > 0))
            abort();
    }
    if (st == TR_OK && (tr_table_count(path, kind, &n_said) != TR_OK || n_said != (uint64_t)n_rows))
        abort();
    if (st != TR_OK && st != TR_USAGE)
        abort();
out:
    tr_table_close(t);
    if (fd >= 0)
        close(fd);
    tr_error_clear();
}

static inline int fuzz_table(const uint8_t *bytes, size_t n, enum tr_table_kind kind, const char *pattern)
{
    static glob_t files;
    static int found = -1;
    char *copy = NULL;
    size_t n_copy;
    if (found < 0)
        found = glob(pattern, 0, NULL, &files);
    if (n == 0 || bytes[0] < 128 || found != 0) {
        read_table(bytes + (n > 0), n - (n > 0), kind);
        return 0;
    }
    if (tr_file_read(files.gl_pathv[bytes[0] % files.gl_pathc], 1 << 20, &copy, &n_copy) != TR_OK)
        abort();
    for (size_t i = 1; i + 3 <= n && n_copy > 0; i += 3) /* from the end, where footers are */
        copy[n_copy - 1 - ((size_t)bytes[i] << 8 | bytes[i + 1]) % n_copy] = (char)bytes[i + 2];
    read_table((const uint8_t *)copy, n_copy, kind);
    free(copy);
    return 0;
}

#define GOLDEN TR_SOURCE_DIR "/tests/table/golden/"

#endif
