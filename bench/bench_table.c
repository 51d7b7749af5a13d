/* bench_table.c - reads data files as records, and prints rows and bytes a second; with --rows the records themselves,
 * which tests/table/oracle.py compares with what pyarrow reads.
 *   bench_table [--rows] FILE...
 *   bench_table --slice 'train[:5%]' N      the records [first, end) of N
 */
#include "table/table.h"

#include <stdio.h>
#include <string.h>

static enum tr_status read_all(const char *path, bool is_printed, uint64_t *n_rows, uint64_t *n_bytes)
{
    enum tr_status st = TR_OK;
    enum tr_table_kind kind = TR_TABLE_JSONL;
    struct tr_table *t = NULL;
    struct tr_row row = { 0 };
    if (!tr_table_kind_of(path, &kind))
        TR_TRY(tr_fail(TR_USAGE, "%s: not a file of records", path));
    TR_TRY(tr_table_open(path, kind, &t));
    for (;;) {
        TR_TRY(tr_table_next(t, &row));
        if (!row.text)
            break;
        ++*n_rows;
        *n_bytes += row.n;
        if (is_printed)
            printf("%.*s%s\n", (int)row.n, row.text, row.why ? row.why : "");
    }
out:
    tr_table_close(t);
    return st;
}

static int print_slice(const char *text, const char *count)
{
    struct tr_table_split split;
    uint64_t first, end;
    int64_t n;
    if (tr_table_split_parse(text, &split) != TR_OK || tr_parse_int(count, 0, INT64_MAX, &n) != TR_OK) {
        fprintf(stderr, "%s\n", tr_error_text());
        return 2;
    }
    tr_table_split_of(&split, (uint64_t)n, &first, &end);
    printf("%" PRIu64 " %" PRIu64 "\n", first, end);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 4 && strcmp(argv[1], "--slice") == 0)
        return print_slice(argv[2], argv[3]);
    bool is_printed = argc > 1 && strcmp(argv[1], "--rows") == 0;
    for (int i = 1 + is_printed; i < argc; i++) {
        uint64_t n_rows = 0, n_bytes = 0;
        int64_t start_us = tr_clock_us();
        if (read_all(argv[i], is_printed, &n_rows, &n_bytes) != TR_OK) {
            fprintf(stderr, "%s\n", tr_error_text());
            return 2;
        }
        double s = (double)(tr_clock_us() - start_us) / 1e6;
        if (!is_printed)
            printf("{\"file\":\"%s\",\"rows\":%" PRIu64 ",\"bytes\":%" PRIu64
                   ",\"s\":%.6f,\"rows_per_s\":%.0f,\"mb_per_s\":%.1f}\n",
                   argv[i], n_rows, n_bytes, s, (double)n_rows / s, (double)n_bytes / s / 1e6);
    }
    return 0;
}
