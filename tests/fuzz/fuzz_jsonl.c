/* fuzz_jsonl.c - any bytes as a JSONL file: lines are counted right, cutting changes nothing, and whatever shape a
 * record is read as, its document is whole: ids in range, a mask of the same length, something to train on, and nothing
 * left behind by a record that is skipped. */
#include "data/record.h"
#include "table/textfile.h"
#include "token/utf8.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

enum { MAX_LINE = 4096 };

static struct tr_tokenizer *tokenizer;
static struct tr_chat *chat;

static void open_once(void)
{
    char dir[] = "/tmp/tr-fuzz-XXXXXX";
    if (tokenizer)
        return;
    if (!mkdtemp(dir) || tr_tokenizer_write_bytes(dir) != TR_OK || tr_tokenizer_open(dir, &tokenizer) != TR_OK ||
        tr_remove_tree(dir) != TR_OK || tr_chat_open(NULL, "chatml", &chat) != TR_OK)
        abort();
}

/* Cleaning in two parts gives the same bytes as cleaning at once, and they are valid. */
static void check_cuts(const char *p, size_t n)
{
    struct tr_str whole = { 0 }, parts = { 0 }, again = { 0 };
    size_t n_used, cut = n / 2;
    tr_utf8_clean(p, n, true, &whole, &n_used);
    tr_utf8_clean(p, cut, false, &parts, &n_used);
    if (n_used > cut || cut - n_used > 3)
        abort();
    size_t at = n_used;
    tr_utf8_clean(p + at, n - at, true, &parts, &n_used);
    if (at + n_used != n || parts.n != whole.n || (whole.n && memcmp(parts.p, whole.p, whole.n) != 0))
        abort();
    tr_utf8_clean(whole.p, whole.n, true, &again, &n_used);
    if (n_used != whole.n || again.n != whole.n || (whole.n && memcmp(again.p, whole.p, whole.n) != 0))
        abort();
    tr_str_release(&whole);
    tr_str_release(&parts);
    tr_str_release(&again);
}

static void check_record(const char *line, size_t n, enum tr_shape shape, bool has_chat, struct tr_doc *doc)
{
    struct tr_record_rules rules = { .shape = shape, .text_key = "text", .tokenizer = tokenizer };
    rules.chat = has_chat ? chat : NULL;
    size_t n_ids = doc->ids.n, n_mask = doc->mask.n;
    enum tr_status st = tr_record_encode(&rules, line, n, doc);
    if (st != TR_OK && (doc->ids.n != n_ids || doc->mask.n != n_mask))
        abort();
    if (st == TR_OK && doc->ids.n == n_ids)
        abort();
    if (st == TR_OK && shape != TR_SHAPE_TEXT && doc->mask.n - n_mask != doc->ids.n - n_ids)
        abort();
    for (size_t i = n_ids; i < doc->ids.n; i++)
        if (doc->ids.p[i] < 0 || (shape != TR_SHAPE_TOKENS && doc->ids.p[i] > 256))
            abort();
    doc->ids.n = 0;
    tr_str_clear(&doc->mask);
}

static void check_line(const char *line, size_t n, struct tr_doc *doc)
{
    enum tr_shape shape;
    bool is_object;
    (void)tr_record_detect(NULL, false, line, n, &is_object, &shape);
    for (int k = TR_SHAPE_TEXT; k < TR_SHAPE_COUNT; k++)
        check_record(line, n, (enum tr_shape)k, true, doc);
    check_record(line, n, TR_SHAPE_ALPACA, false, doc);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    char path[64];
    struct tr_textfile f = { .fd = -1 };
    struct tr_doc doc = { 0 };
    const char *line = NULL;
    enum tr_line kind = TR_LINE_END;
    size_t n_line = 0, n_lines = 0, n_seen = 0;
    int fd = memfd_create("jsonl", MFD_CLOEXEC);
    open_once();
    check_cuts((const char *)bytes, n);
    if (fd < 0 || tr_write_all(fd, "memfd", bytes, n) != TR_OK ||
        tr_format(path, sizeof path, "/proc/self/fd/%d", fd) != TR_OK || tr_textfile_open(&f, path, MAX_LINE) != TR_OK)
        goto out;
    while (tr_textfile_line(&f, &kind, &line, &n_line) == TR_OK && kind != TR_LINE_END) {
        n_lines++;
        if (kind == TR_LINE_TEXT && n_line > MAX_LINE)
            abort();
        if (kind == TR_LINE_TEXT)
            check_line(line, n_line, &doc);
    }
    for (size_t i = 0; i < n; i++)
        n_seen += bytes[i] == '\n';
    n_seen += n > 0 && bytes[n - 1] != '\n';
    if (kind != TR_LINE_END || n_lines != n_seen || (int64_t)n_lines != f.line ||
        !tr_hash_eq(tr_hasher_get(f.hasher), tr_hash(bytes, n)))
        abort();
out:
    tr_textfile_release(&f);
    tr_doc_release(&doc);
    if (fd >= 0)
        close(fd);
    return 0;
}
