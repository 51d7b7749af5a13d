/* fuzz_jsonl.c - any bytes as a JSONL file: lines are counted right, texts are valid UTF-8, cutting changes nothing. */
#include "data/jsonl.h"
#include "data/textfile.h"
#include "data/utf8.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

enum { MAX_LINE = 64 };

static void check_utf8(const struct tr_str *text)
{
    struct tr_str again = { 0 };
    size_t n_used;
    tr_utf8_clean(text->p, text->n, true, &again, &n_used);
    if (n_used != text->n || again.n != text->n || memcmp(again.p, text->p, text->n) != 0)
        abort();
    tr_str_release(&again);
}

/* Cleaning in two parts gives the same bytes as cleaning at once. */
static void check_cuts(const char *p, size_t n)
{
    struct tr_str whole = { 0 }, parts = { 0 };
    size_t n_used, cut = n / 2;
    tr_utf8_clean(p, n, true, &whole, &n_used);
    tr_utf8_clean(p, cut, false, &parts, &n_used);
    if (n_used > cut || cut - n_used > 3)
        abort();
    size_t at = n_used;
    tr_utf8_clean(p + at, n - at, true, &parts, &n_used);
    if (at + n_used != n || parts.n != whole.n || memcmp(parts.p, whole.p, whole.n) != 0)
        abort();
    tr_str_release(&whole);
    tr_str_release(&parts);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    char path[64];
    struct tr_textfile f = { .fd = -1 };
    struct tr_str text = { 0 };
    const char *line = NULL;
    enum tr_line kind = TR_LINE_END;
    size_t n_line = 0, n_lines = 0, n_seen = 0;
    int fd = memfd_create("jsonl", MFD_CLOEXEC);
    check_cuts((const char *)bytes, n);
    if (fd < 0 || tr_write_all(fd, "memfd", bytes, n) != TR_OK ||
        tr_format(path, sizeof path, "/proc/self/fd/%d", fd) != TR_OK || tr_textfile_open(&f, path, MAX_LINE) != TR_OK)
        goto out;
    while (tr_textfile_line(&f, &kind, &line, &n_line) == TR_OK && kind != TR_LINE_END) {
        n_lines++;
        if (kind == TR_LINE_TEXT && n_line > MAX_LINE)
            abort();
        if (kind == TR_LINE_TEXT && tr_jsonl_text(line, n_line, "text", &text) == TR_OK)
            check_utf8(&text);
    }
    for (size_t i = 0; i < n; i++)
        n_seen += bytes[i] == '\n';
    n_seen += n > 0 && bytes[n - 1] != '\n';
    if (kind != TR_LINE_END || n_lines != n_seen || (int64_t)n_lines != f.line ||
        !tr_hash_eq(tr_hasher_get(f.hasher), tr_hash(bytes, n)))
        abort();
out:
    tr_textfile_release(&f);
    tr_str_release(&text);
    if (fd >= 0)
        close(fd);
    return 0;
}
