/* test_cases_g.c - the data cases of the reliability list, one test each, by number (G13 is test_ledger.c). */
#include "data/data_files.h"
#include "table/unzip.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

/* One good record, then this line; it must be skipped as line 2 with a reason that holds `why`. */
static void check_skip(struct bench *b, const char *line, const char *why)
{
    char text[512];
    size_t n;
    snprintf(text, sizeof text, "{\"text\": \"good\"}\n%s\n{\"text\": \"last\"}", line);
    struct tr_data *d = bench_open(b, put_text(b->s, "a.jsonl", text));
    struct tr_data_info info;
    tr_data_get_info(d, &info);
    const struct tr_data_skip *s = tr_data_skips(d, &n);
    assert_int_equal(n, 1);
    assert_int_equal(s->line, 2);
    assert_non_null(strstr(s->path, "a.jsonl"));
    if (!strstr(s->why, why))
        fail_msg("%s: says %s, not %s", line, s->why, why);
    assert_int_equal(info.n_docs, 2);
    tr_data_close(d);
}

static void g1_malformed_lines_are_skipped_by_line_under_a_budget(void **state)
{
    struct bench b;
    struct tr_data *d = NULL;
    bench_init(&b, *state);
    check_skip(&b, "{\"text\": \"x\"", "record:");
    check_skip(&b, "not json", "record:");
    check_skip(&b, "{\"text\": \"x\"} {}", "record:");
    check_skip(&b, "{\"text\": \"x\", \"text\": \"y\"}", "record:");
    b.options.max_skipped = 0;
    const char *path = put_text(*state, "b.jsonl", "{\"text\": \"x\"}\nbad\n");
    assert_refused(tr_data_open(&path, 1, b.tokenizer, &b.options, &d), TR_USAGE, "b.jsonl:2: ");
    bench_release(&b);
}

static void g2_a_missing_field_is_skipped_by_line(void **state)
{
    struct bench b;
    bench_init(&b, *state);
    check_skip(&b, "{\"body\": \"x\"}", "\"text\" is missing");
    bench_release(&b);
}

static void g3_a_wrong_type_is_skipped_by_line(void **state)
{
    struct bench b;
    bench_init(&b, *state);
    check_skip(&b, "{\"text\": 5}", "\"text\" is not a string");
    check_skip(&b, "{\"text\": [\"x\"]}", "\"text\" is not a string");
    check_skip(&b, "[\"text\", \"x\"]", "not a JSON object");
    bench_release(&b);
}

static void g4_empty_lines_and_empty_texts_are_skipped_by_line(void **state)
{
    struct bench b;
    bench_init(&b, *state);
    check_skip(&b, "", "the line is empty");
    check_skip(&b, "  \t", "the line is empty");
    check_skip(&b, "{\"text\": \"\"}", "\"text\" is empty");
    bench_release(&b);
}

/* Zeros compress a thousandfold: a file of 20 KB holds a line of 20 MiB, which is passed over, not kept. (1 GiB runs
 * into the guard of G12.) */
static void g5_a_line_over_the_cap_is_skipped_in_bounded_memory(void **state)
{
    enum { N = 20 << 20 };
    struct bench b;
    size_t n;
    bench_init(&b, *state);
    char *text = malloc(N);
    memset(text, 'x', N);
    memcpy(text, "{\"text\": \"a\"}\n", 14);
    memcpy(text + N - 14, "\n{\"text\":\"b\"}\n", 14);
    struct tr_data *d = bench_open(&b, put_gzip(*state, "a.jsonl.gz", text, N));
    const struct tr_data_skip *s = tr_data_skips(d, &n);
    assert_int_equal(n, 1);
    assert_int_equal(s->line, 2);
    assert_non_null(strstr(s->why, "16 MiB"));
    tr_data_close(d);
    free(text);
    bench_release(&b);
}

static void g6_the_last_line_needs_no_newline(void **state)
{
    struct bench b;
    bench_init(&b, *state);
    assert_documents(&b, put_text(*state, "a.jsonl", "{\"text\": \"a\"}\n{\"text\": \"b\"}"), false, "a$|b$|");
    bench_release(&b);
}

static void g7_invalid_utf8_becomes_the_replacement_character_on_every_run(void **state)
{
    struct bench b;
    bench_init(&b, *state);
    for (int run = 0; run < 2; run++) {
        assert_ok(tr_remove_tree(b.cache));
        assert_documents(&b, put_text(*state, "a.jsonl", "{\"text\": \"a\xFF\xC3(\"}\n"), false,
                         "a\xEF\xBF\xBD\xEF\xBF\xBD($|");
    }
    bench_release(&b);
}

static void g8_nul_and_lone_surrogates_are_skipped(void **state)
{
    struct bench b;
    bench_init(&b, *state);
    check_skip(&b, "{\"text\": \"a\\u0000b\"}", "record:");
    check_skip(&b, "{\"text\": \"\\ud800\"}", "record:");
    check_skip(&b, "{\"text\": \"\\udc00\\ud800\"}", "record:");
    bench_release(&b);
}

static void g9_a_byte_order_mark_and_crlf_are_no_text(void **state)
{
    struct bench b;
    bench_init(&b, *state);
    assert_documents(&b, put_text(*state, "a.jsonl", "\xEF\xBB\xBF{\"text\": \"a\"}\r\n{\"text\": \"b\"}\r\n"), false,
                     "a$|b$|");
    assert_documents(&b, put_text(*state, "a.txt", "\xEF\xBB\xBFhi\r\n"), false, "hi\r\n$|");
    assert_int_equal(b.n_skips, 0);
    bench_release(&b);
}

/* A text that changed is another data set (a resume compares the hash); a shard that changes under a run stops it. */
static void g10_a_file_that_shrinks_grows_or_changes_is_noticed(void **state)
{
    static const char *const later[] = { "{\"text\": \"one\"}\n", "{\"text\": \"one\"}\n{\"text\": \"two\"}\nx\n",
                                         "{\"text\": \"one\"}\n{\"text\": \"twO\"}\n" };
    static const char first[] = "{\"text\": \"one\"}\n{\"text\": \"two\"}\n";
    struct bench b;
    struct tr_data_info before, after;
    bench_init(&b, *state);
    struct timespec old[2] = { { .tv_sec = 1000 }, { .tv_sec = 1000 } };
    for (size_t i = 0; i < TR_COUNT_OF(later); i++) {
        struct tr_data *d = bench_open(&b, put_text(*state, "a.jsonl", first));
        tr_data_get_info(d, &before);
        tr_data_close(d);
        /* same name, and the time of modification set back: only the content differs */
        assert_int_equal(utimensat(AT_FDCWD, put_text(*state, "a.jsonl", later[i]), old, 0), 0);
        d = bench_open(&b, in_scratch(*state, "a.jsonl"));
        tr_data_get_info(d, &after);
        tr_data_close(d);
        assert_int_equal(tr_hash_eq(before.hash, after.hash), i == 1); /* a skipped line changes no token */
    }
    int64_t length = 100, n_targets;
    put_shard(in_scratch(*state, "s.trtok"), &length, 1, 0, 257, false);
    struct tr_data *d = bench_open(&b, b.s->path);
    struct rows r = rows_new(1, 64);
    assert_ok(tr_data_fill(d, 0, 1, 2, &r.b, &n_targets));
    int fd = open(in_scratch(*state, "s.trtok"), O_WRONLY);
    assert_int_equal(pwrite(fd, "x", 1, 130), 1);
    close(fd);
    assert_refused(tr_data_fill(d, 0, 1, 2, &r.b, &n_targets), TR_IO, "changed since");
    tr_data_close(d);
    const char *path = in_scratch(*state, "s.trtok"); /* and its seal does not hold any more */
    assert_refused(tr_data_open(&path, 1, b.tokenizer, &b.options, &d), TR_USAGE, "checksum");
    rows_free(&r);
    bench_release(&b);
}

static void g11_nothing_to_train_on_is_refused(void **state)
{
    struct bench b;
    struct tr_data *d = NULL;
    static const struct {
        const char *name, *text, *says;
    } cases[] = {
        { "a.txt", "", "no document" },
        { "a.jsonl", "", "no document" },
        { "b.jsonl", "x\ny\n", "this file has no document (2 records were skipped; the first: " },
        { "c.jsonl", "\n\n\n", "this file has no document (3 records were skipped; the first: the line is empty)" },
    };
    bench_init(&b, *state);
    for (size_t i = 0; i < TR_COUNT_OF(cases); i++) {
        const char *path = put_text(*state, cases[i].name, cases[i].text);
        assert_refused(tr_data_open(&path, 1, b.tokenizer, &b.options, &d), TR_USAGE, cases[i].says);
    }
    assert_refused(tr_data_open(NULL, 0, b.tokenizer, &b.options, &d), TR_USAGE, "no data");
    d = bench_open(&b, put_text(*state, "d.txt", "one row"));
    struct tr_loader_shape s = { 64, 8, 0, 2, 1, 2 }; /* four ranks for one sample */
    struct tr_loader *l = NULL;
    size_t n = tr_loader_bytes(&s);
    void *mem = aligned_alloc(64, n);
    assert_refused(tr_loader_open(d, &s, 0, 1, 1, mem, n, &l), TR_USAGE, "1 samples are fewer than the 4 ranks");
    free(mem);
    tr_data_close(d);
    bench_release(&b);
}

static void g12_bombs_damage_and_special_files_are_refused(void **state)
{
    enum { N = 80 << 20 };
    struct bench b;
    struct tr_data *d = NULL;
    bench_init(&b, *state);
    char *zeros = calloc(1, N);
    const char *path = put_zstd(*state, "bomb.txt.zst", zeros, N);
    assert_refused(tr_data_open(&path, 1, b.tokenizer, &b.options, &d), TR_USAGE, "more than 256 times");
    path = put_gzip(*state, "bomb.jsonl.gz", zeros, N);
    assert_refused(tr_data_open(&path, 1, b.tokenizer, &b.options, &d), TR_USAGE, "more than 256 times");
    free(zeros);
    static const char text[] = "{\"text\": \"some text that is long enough to be cut\"}\n";
    for (int zstd = 0; zstd < 2; zstd++) {
        const char *name = zstd ? "a.jsonl.zst" : "a.jsonl.gz";
        char *bytes = NULL;
        size_t n;
        path = zstd ? put_zstd(*state, name, text, sizeof text - 1) : put_gzip(*state, name, text, sizeof text - 1);
        assert_ok(tr_file_read(path, 1 << 20, &bytes, &n));
        for (size_t cut = 1; cut < n; cut += 3) {
            char place[64];
            path = put_file(*state, name, bytes, cut);
            assert_ok(tr_format(place, sizeof place, "%s: byte %zu: the file ends inside", name, cut));
            assert_refused(tr_data_open(&path, 1, b.tokenizer, &b.options, &d), TR_USAGE, place);
        }
        for (size_t i = 0; i < n && !zstd; i++) { /* what gzip does not use (time, system) may change without damage */
            bytes[i] ^= 0x10;
            path = put_file(*state, name, bytes, n);
            enum tr_status st = tr_data_open(&path, 1, b.tokenizer, &b.options, &d);
            if (st != TR_OK)
                assert_refused(st, TR_USAGE, "a.jsonl.gz: byte ");
            assert_true(st != TR_OK || i < 10);
            if (st == TR_OK)
                tr_data_close(d);
            bytes[i] ^= 0x10;
        }
        bytes[n - 1] ^= 0x55;
        path = put_file(*state, name, bytes, n);
        if (!zstd) /* zstd checks the content only when its writer asked for that */
            assert_refused(tr_data_open(&path, 1, b.tokenizer, &b.options, &d), TR_USAGE, "damaged");
        free(bytes);
        path = put_text(*state, name, "this is not compressed at all");
        assert_refused(tr_data_open(&path, 1, b.tokenizer, &b.options, &d), TR_USAGE, zstd ? "not zstd" : "not gzip");
    }
    assert_ok(tr_mkdirs(in_scratch(*state, "dir.jsonl")));
    path = in_scratch(*state, "dir.jsonl");
    assert_refused(tr_data_open(&path, 1, b.tokenizer, &b.options, &d), TR_USAGE, "no data files");
    assert_int_equal(mkfifo(in_scratch(*state, "pipe.jsonl"), 0600), 0);
    path = b.s->path;
    assert_refused(tr_data_open(&path, 1, b.tokenizer, &b.options, &d), TR_USAGE, "pipe.jsonl");
    assert_int_equal(symlink("/dev/zero", in_scratch(*state, "device.txt")), 0);
    path = b.s->path;
    assert_refused(tr_data_open(&path, 1, b.tokenizer, &b.options, &d), TR_USAGE, "device.txt");
    bench_release(&b);
}

/* gzip files one after the other are one text, as in zcat. */
static void put_members(struct scratch *s, const char *text, size_t n)
{
    enum { CUT = 1000003 };
    char *first = NULL, *second = NULL;
    size_t n_first, n_second;
    assert_ok(tr_file_read(put_gzip(s, "first", text, CUT), 1 << 26, &first, &n_first));
    assert_ok(tr_file_read(put_gzip(s, "second", text + CUT, n - CUT), 1 << 26, &second, &n_second));
    first = realloc(first, n_first + n_second);
    memcpy(first + n_first, second, n_second);
    put_file(s, "d.jsonl.gz", first, n_first + n_second);
    free(first);
    free(second);
}

static void g12_compressed_text_is_the_same_text(void **state)
{
    struct bench b;
    struct tr_str text = { 0 };
    struct tr_hash128 want = { 0 };
    bench_init(&b, *state);
    for (int i = 0; i < 100000; i++) /* several chunks of 1 MiB */
        tr_str_addf(&text, "{\"text\": \"line %d of %d\"}\n", i, i * 7919);
    assert_true(text.n > 3 << 20);
    for (int k = 0; k < 4; k++) {
        struct tr_data_info info;
        if (k == 0)
            put_file(*state, "a.jsonl", text.p, text.n);
        else if (k == 1)
            put_gzip(*state, "b.jsonl.gz", text.p, text.n);
        else if (k == 2)
            put_zstd(*state, "c.jsonl.zst", text.p, text.n);
        else
            put_members(*state, text.p, text.n);
        struct tr_data *d = bench_open(&b, b.s->path);
        tr_data_get_info(d, &info);
        assert_int_equal(info.n_docs, 100000);
        struct rows r = rows_new(16, 64);
        int64_t n_targets;
        assert_ok(tr_data_fill(d, info.n_rows - 16, 16, info.n_rows, &r.b, &n_targets));
        struct tr_hash128 got = tr_hash(r.b.tokens, 16 * 64 * 4);
        if (k == 0)
            want = got;
        assert_true(tr_hash_eq(want, got));
        rows_free(&r);
        tr_data_close(d);
    }
    assert_documents(&b, put_gzip(*state, "t.txt.gz", "\xEF\xBB\xBFhello", 8), false, "hello$|");
    assert_documents(&b, put_zstd(*state, "t.txt.zst", "hello", 5), false, "hello$|");
    tr_str_release(&text);
    bench_release(&b);
}

static void g14_an_id_beyond_the_vocabulary_refuses_the_file(void **state)
{
    struct bench b;
    struct tr_data *d = NULL;
    bench_init(&b, *state);
    const char *path = put_text(*state, "a.jsonl", "{\"input_ids\": [1, 256]}\n{\"input_ids\": [1, 257]}\n");
    assert_refused(tr_data_open(&path, 1, b.tokenizer, &b.options, &d), TR_USAGE, "a.jsonl:2: ");
    assert_refused(tr_data_open(&path, 1, b.tokenizer, &b.options, &d), TR_USAGE, "token id 257");
    b.options.vocab_size = 258;
    assert_ok(tr_data_open(&path, 1, NULL, &b.options, &d)); /* ids need no tokenizer */
    tr_data_close(d);
    bench_release(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(g1_malformed_lines_are_skipped_by_line_under_a_budget),
        TEST(g2_a_missing_field_is_skipped_by_line),
        TEST(g3_a_wrong_type_is_skipped_by_line),
        TEST(g4_empty_lines_and_empty_texts_are_skipped_by_line),
        TEST(g5_a_line_over_the_cap_is_skipped_in_bounded_memory),
        TEST(g6_the_last_line_needs_no_newline),
        TEST(g7_invalid_utf8_becomes_the_replacement_character_on_every_run),
        TEST(g8_nul_and_lone_surrogates_are_skipped),
        TEST(g9_a_byte_order_mark_and_crlf_are_no_text),
        TEST(g10_a_file_that_shrinks_grows_or_changes_is_noticed),
        TEST(g11_nothing_to_train_on_is_refused),
        TEST(g12_bombs_damage_and_special_files_are_refused),
        TEST(g12_compressed_text_is_the_same_text),
        TEST(g14_an_id_beyond_the_vocabulary_refuses_the_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
