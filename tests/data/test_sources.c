/* test_sources.c - from files to tokens: order, skipped records, refusals, and the cache. */
#include "data/data_test.h"
#include "data/sources.h"
#include "table/textfile.h"
#include "data/tokenize.h"

#include <dirent.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <fcntl.h>
#include <unistd.h>

struct skips {
    int n;
    int64_t lines[64];
    char text[4096];
};

static void note_skip(void *ctx, const char *path, int64_t line, const char *why)
{
    struct skips *k = ctx;
    (void)path;
    k->lines[k->n++ % 64] = line;
    strncat(k->text, why, sizeof k->text - strlen(k->text) - 2);
    strncat(k->text, "\n", 2);
}

struct setup {
    struct tr_tokenizer *tokenizer;
    struct tr_data_options options;
    struct skips skips;
    char cache[TR_PATH_MAX];
};

static void setup_init(struct setup *u, struct scratch *s)
{
    *u = (struct setup){ .tokenizer = byte_tokenizer(s) };
    memcpy(u->cache, in_scratch(s, "cache"), TR_PATH_MAX);
    u->options = (struct tr_data_options){
        .row_tokens = 9,
        .vocab_size = 257,
        .cache_dir = u->cache,
        .max_skipped = 100,
        .on_skip = note_skip,
        .on_skip_ctx = &u->skips,
    };
}

/* The stream as text: <eos> as '$', '/' between documents. */
static char *stream_text(const struct tr_data *d)
{
    struct tr_data_info info;
    tr_data_get_info(d, &info);
    struct rows r = rows_new((int64_t)info.n_rows, tr_data_row_tokens(d));
    struct tr_str out = { 0 };
    int64_t n_targets;
    assert_ok(tr_data_fill(d, 0, (int64_t)info.n_rows, info.n_rows, &r.b, &n_targets));
    for (size_t i = 0; i < info.n_tokens; i++) {
        char c = r.b.tokens[i] == 256 ? '$' : (char)r.b.tokens[i];
        tr_str_add(&out, &c, 1);
        if (r.b.targets[i] == TR_TARGET_NONE)
            tr_str_add(&out, "/", 1);
    }
    rows_free(&r);
    return out.p;
}

static void assert_stream(const struct setup *u, const char *path, const char *want)
{
    struct tr_data *d = NULL;
    assert_ok(tr_data_open(&path, 1, u->tokenizer, &u->options, &d));
    char *got = stream_text(d);
    assert_string_equal(got, want);
    free(got);
    tr_data_close(d);
}

static void jsonl_records_become_documents_and_bad_ones_are_skipped_by_line(void **state)
{
    static const char text[] = "\xEF\xBB\xBF{\"text\": \"one\"}\r\n"              /* 1: byte order mark, CRLF */
                               "{\"text\": \"tw\n"                                /* 2: not JSON */
                               "\n"                                               /* 3: empty */
                               "{\"other\": 1}\n"                                 /* 4: missing */
                               "{\"text\": 5}\n"                                  /* 5: wrong type */
                               "{\"text\": \"\"}\n"                               /* 6: empty text */
                               "[\"text\"]\n"                                     /* 7: not an object */
                               "{\"text\": \"\\ud800\"}\n"                        /* 8: half a pair */
                               "{\"text\": \"a\\u0000b\"}\n"                      /* 9: NUL */
                               "{\"x\": {\"text\": \"no\"}, \"text\": \"two\"}\n" /* 10: fine */
                               "{\"text\": \"a\xFF\"}\n"                          /* 11: U+FFFD */
                               "{\"text\": null}\n"                               /* 12 */
                               "{\"text\": \"end\"}";                             /* 13: no newline */
    struct scratch *s = *state;
    struct setup u;
    setup_init(&u, s);
    assert_stream(&u, put_text(s, "a.jsonl", text), "one$/two$/a\xEF\xBF\xBD$/end$/");
    static const int64_t lines[] = { 2, 3, 4, 5, 6, 7, 8, 9, 12 };
    assert_int_equal(u.skips.n, TR_COUNT_OF(lines));
    assert_memory_equal(u.skips.lines, lines, sizeof lines);
    assert_non_null(strstr(u.skips.text, "\"text\" is missing"));
    assert_non_null(strstr(u.skips.text, "\"text\" is not a string"));
    tr_tokenizer_close(u.tokenizer);
}

static void skipping_over_budget_is_refused_also_from_the_cache(void **state)
{
    struct scratch *s = *state;
    struct setup u;
    struct tr_data *d = NULL;
    struct tr_data_info info;
    setup_init(&u, s);
    put_text(s, "a.jsonl", "{\"text\": \"a\"}\nbad\nbad\nbad\n");
    const char *path = s->path;
    u.options.max_skipped = 2;
    assert_refused(tr_data_open(&path, 1, u.tokenizer, &u.options, &d), TR_USAGE, "a.jsonl:4: ");
    u.options.max_skipped = 3;
    assert_ok(tr_data_open(&path, 1, u.tokenizer, &u.options, &d));
    tr_data_get_info(d, &info);
    assert_int_equal(info.n_skipped, 3);
    tr_data_close(d);
    u.options.max_skipped = 2;
    assert_refused(tr_data_open(&path, 1, u.tokenizer, &u.options, &d), TR_USAGE, "3 records were skipped");
    tr_tokenizer_close(u.tokenizer);
}

static void lines_over_the_cap_are_skipped_and_the_next_one_is_read(void **state)
{
    enum { N = 17 << 20 };
    struct scratch *s = *state;
    struct setup u;
    setup_init(&u, s);
    char *big = malloc(N);
    memset(big, 'x', N);
    memcpy(big, "{\"text\": \"a\"}\n", 14);
    memcpy(big + N - 15, "\n{\"text\": \"b\"}\n", 15);
    assert_stream(&u, put_file(s, "a.jsonl", big, N), "a$/b$/");
    assert_int_equal(u.skips.n, 1);
    assert_int_equal(u.skips.lines[0], 2);
    free(big);
    tr_tokenizer_close(u.tokenizer);
}

static void a_text_file_is_one_document_in_any_size(void **state)
{
    struct scratch *s = *state;
    struct setup u;
    setup_init(&u, s);
    assert_stream(&u, put_text(s, "a.txt", "\xEF\xBB\xBFhi\r\n<|endoftext|>\xC3"), "hi\r\n$\xEF\xBF\xBD$/");
    /* Longer than a chunk (1 MiB), with a character and an added token across its end, in two places. */
    enum { N = (2 << 20) + 100 };
    struct tr_str text = { 0 };
    while (text.n < N)
        tr_str_add(&text,
                   text.n == (1 << 20) - 5   ? "<|endoftext|>"
                   : text.n == (2 << 20) - 1 ? "\xC3\xA9"
                                             : "y",
                   text.n == (1 << 20) - 5   ? 13
                   : text.n == (2 << 20) - 1 ? 2
                                             : 1);
    struct tr_data *d = NULL;
    struct tr_data_info info;
    const char *path = put_file(s, "b.txt", text.p, text.n);
    assert_ok(tr_data_open(&path, 1, u.tokenizer, &u.options, &d));
    char *got = stream_text(d);
    tr_data_get_info(d, &info);
    assert_int_equal(info.n_tokens, text.n - 12 + 1);
    assert_int_equal(got[(1 << 20) - 5], '$');
    assert_int_equal((unsigned char)got[(2 << 20) - 1 - 12], 0xC3);
    assert_int_equal((unsigned char)got[(2 << 20) - 12], 0xA9);
    free(got);
    tr_data_close(d);
    tr_str_release(&text);
    tr_tokenizer_close(u.tokenizer);
}

static void directories_and_globs_are_read_in_name_order(void **state)
{
    struct scratch *s = *state;
    struct setup u;
    setup_init(&u, s);
    assert_ok(tr_mkdirs(in_scratch(s, "d")));
    put_text(s, "d/b.txt", "2");
    put_text(s, "d/a.jsonl", "{\"text\": \"1\"}\n");
    put_text(s, "d/C.txt", "0");
    put_text(s, "d/.hidden", "x");
    assert_stream(&u, in_scratch(s, "d"), "0$/1$/2$/");
    assert_stream(&u, in_scratch(s, "d/*.txt"), "0$/2$/");
    put_text(s, "d/weird:2.txt", "w");
    assert_stream(&u, in_scratch(s, "d/weird:2.txt"), "w$/");
    tr_tokenizer_close(u.tokenizer);
}

static void what_cannot_be_read_is_refused_by_name(void **state)
{
    struct scratch *s = *state;
    struct setup u;
    struct tr_data *d = NULL;
    setup_init(&u, s);
    assert_ok(tr_mkdirs(in_scratch(s, "empty")));
    assert_ok(tr_mkdirs(in_scratch(s, "mixed")));
    assert_ok(tr_mkdirs(in_scratch(s, "nested/inner")));
    put_text(s, "mixed/a.txt", "a");
    put_text(s, "mixed/b.md", "b");
    put_text(s, "a.parquet", "PAR1 and not more");
    put_text(s, "a.json", "[]");
    put_text(s, "other.jsonl", "{\"id\": 1, \"body\": \"x\"}\n");
    put_text(s, "pairs.jsonl", "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"c\"}\n");
    put_text(s, "chat.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}\n");
    put_text(s, "a.txt", "a");
    put_text(s, "none.txt", "");
    put_text(s, "none.jsonl", "");
    put_text(s, "bad.jsonl", "x\ny\n");
    put_text(s, "fake.trtok",
             "not a shard, but longer than the header of one: ......................................"
             "....................................................................................");
    assert_int_equal(mkfifo(in_scratch(s, "pipe.txt"), 0600), 0);
    static const struct {
        const char *name, *says;
    } cases[] = {
        { "absent.txt", "absent.txt: no such file" },
        { "empty", "no data files" },
        { "mixed", "b.md: the file is not .jsonl" },
        { "a.parquet", "does not end with PAR1" },
        { "a.json", "a.json: this file has no document" },
        { "other.jsonl", "other.jsonl:1: the members (id, body) are not those of a known record" },
        { "pairs.jsonl", "pairs.jsonl: the records are pairs of answers" },
        { "chat.jsonl", "need a chat template" },
        { "nested", "nested/inner: a directory" },
        { "none.txt", "none.txt: this file has no document" },
        { "none.jsonl", "none.jsonl: this file has no document" },
        { "bad.jsonl", "bad.jsonl: this file has no document (2 records were skipped; the first: " },
        { "fake.trtok", "bad magic" },
        { "pipe.txt", "pipe.txt" },
    };
    for (size_t i = 0; i < TR_COUNT_OF(cases); i++) {
        const char *path = in_scratch(s, cases[i].name);
        assert_refused(tr_data_open(&path, 1, u.tokenizer, &u.options, &d), TR_USAGE, cases[i].says);
    }
    const char *path = in_scratch(s, "a.txt");
    assert_refused(tr_data_open(&path, 0, u.tokenizer, &u.options, &d), TR_USAGE, "no data");
    assert_refused(tr_data_open(&path, 1, NULL, &u.options, &d), TR_USAGE, "has no tokenizer");
    u.options.vocab_size = 256;
    assert_refused(tr_data_open(&path, 1, u.tokenizer, &u.options, &d), TR_USAGE, "vocab_size of 256");
    u.options.vocab_size = 257;
    u.options.cache_dir = NULL;
    assert_refused(tr_data_open(&path, 1, u.tokenizer, &u.options, &d), TR_USAGE, "cache directory");
    tr_tokenizer_close(u.tokenizer);
}

static void shards_of_another_tokenizer_are_refused(void **state)
{
    struct scratch *s = *state;
    struct setup u;
    struct tr_data *d = NULL;
    struct tr_shard_writer *w = NULL;
    int32_t id = 1;
    setup_init(&u, s);
    struct tr_shard_info info = { .vocab_size = 257, .tokenizer = { 1, 2 } };
    const char *path = in_scratch(s, "a.trtok");
    assert_ok(tr_shard_writer_open(path, &info, &w));
    assert_ok(tr_shard_writer_add(w, &id, NULL, NULL, 1));
    assert_ok(tr_shard_writer_end_doc(w));
    assert_ok(tr_shard_writer_commit(w, true, 0));
    assert_refused(tr_data_open(&path, 1, u.tokenizer, &u.options, &d), TR_USAGE, "another tokenizer");
    assert_ok(tr_data_open(&path, 1, NULL, &u.options, &d));
    tr_data_close(d);
    tr_tokenizer_close(u.tokenizer);
}

/* Number of entries with this piece in their name; *sum adds up inode and mtime of the shards, so that a rewrite shows.
 */
static int cache_files(const struct setup *u, const char *piece, uint64_t *sum)
{
    DIR *dir = opendir(u->cache);
    const struct dirent *e;
    struct stat st;
    int n = 0;
    assert_non_null(dir);
    *sum = 0;
    while ((e = readdir(dir)) != NULL) {
        if (!strstr(e->d_name, piece))
            continue;
        assert_int_equal(fstatat(dirfd(dir), e->d_name, &st, 0), 0);
        *sum += (uint64_t)st.st_ino * 31 + (uint64_t)st.st_mtim.tv_nsec;
        n++;
    }
    closedir(dir);
    return n;
}

static void a_second_start_reuses_the_cache_and_changed_content_does_not(void **state)
{
    struct scratch *s = *state;
    struct setup u;
    uint64_t first, second;
    setup_init(&u, s);
    assert_stream(&u, put_text(s, "a.jsonl", "{\"text\": \"one\"}\nbad\n{\"text\": \"two\"}\n"), "one$/two$/");
    assert_int_equal(cache_files(&u, ".trtok", &first), 1);
    assert_int_equal(u.skips.n, 1);
    char old[TR_PATH_MAX]; /* content decides, not the name */
    memcpy(old, in_scratch(s, "a.jsonl"), sizeof old);
    assert_int_equal(rename(old, in_scratch(s, "moved.jsonl")), 0);
    assert_stream(&u, in_scratch(s, "moved.jsonl"), "one$/two$/");
    assert_int_equal(cache_files(&u, ".trtok", &second), 1);
    assert_true(first == second);
    assert_int_equal(u.skips.n, 1); /* nothing was tokenised again */
    assert_stream(&u, put_text(s, "moved.jsonl", "{\"text\": \"onE\"}\nbad\n{\"text\": \"two\"}\n"), "onE$/two$/");
    assert_int_equal(cache_files(&u, ".trtok", &second), 2);
    u.options.text_key = "body";
    u.options.max_skipped = 100;
    assert_stream(&u, put_text(s, "c.jsonl", "{\"text\": \"no\", \"body\": \"yes\"}\n"), "yes$/");
    u.options.text_key = NULL;
    assert_stream(&u, in_scratch(s, "c.jsonl"), "no$/");
    tr_tokenizer_close(u.tokenizer);
}

/* 70 files whose stream is "00$/01$/...". */
static void put_many(struct scratch *s, struct tr_str *want)
{
    char name[32];
    assert_ok(tr_mkdirs(in_scratch(s, "many")));
    for (int i = 0; i < 70; i++) {
        assert_ok(tr_format(name, sizeof name, "many/%02d.txt", i));
        put_text(s, name, name + 5);
        tr_str_addf(want, "%s$/", name + 5);
    }
}

static void many_small_files_share_a_shard_and_keep_their_names(void **state)
{
    struct scratch *s = *state;
    struct setup u;
    struct tr_str want = { 0 };
    struct tr_data *d = NULL;
    uint64_t first, second;
    size_t n;
    setup_init(&u, s);
    put_many(s, &want);
    assert_stream(&u, in_scratch(s, "many"), want.p);
    assert_int_equal(cache_files(&u, ".trtok", &first), 1);
    const char *path = in_scratch(s, "many");
    assert_ok(tr_data_open(&path, 1, u.tokenizer, &u.options, &d));
    const struct tr_data_file *f = tr_data_files(d, &n);
    assert_int_equal(n, 70);
    for (size_t i = 0; i < n; i++) {
        char name[32];
        assert_ok(tr_format(name, sizeof name, "many/%02zu.txt", i));
        assert_non_null(strstr(f[i].path, name));
        assert_true(f[i].n_docs == 1 && f[i].n_tokens == 7 && f[i].i_doc == i && f[i].was_cached);
    }
    tr_data_close(d);
    assert_int_equal(cache_files(&u, ".trtok", &second), 1);
    assert_true(first == second);
    /* what is wrong with one of them is told with its name */
    put_text(s, "many/41.txt", "a text that is longer than a row");
    u.options.packing = TR_PACK_BESTFIT;
    u.options.how_long = TR_LONG_REFUSE;
    assert_refused(tr_data_open(&path, 1, u.tokenizer, &u.options, &d), TR_USAGE, "many/41.txt:1: ");
    put_text(s, "many/41.txt", "");
    assert_refused(tr_data_open(&path, 1, u.tokenizer, &u.options, &d), TR_USAGE, "many/41.txt: this file has no doc");
    tr_str_release(&want);
    tr_tokenizer_close(u.tokenizer);
}

/* The key was made of other bytes than those that are read now. */
static void a_file_that_changes_before_it_is_read_leaves_no_shard(void **state)
{
    struct scratch *s = *state;
    struct setup u;
    uint64_t sum;
    setup_init(&u, s);
    struct tr_tokenize t = { .tokenizer = u.tokenizer, .options = &u.options, .cache = { u.cache, 0, -1 } };
    struct tr_source source = { .path = (char *)(uintptr_t)put_text(s, "a.txt", "text"), .kind = TR_SOURCE_TEXT };
    struct tr_hash128 content;
    struct tr_make make = { .t = &t,
                            .source = &source,
                            .n = 1,
                            .contents = &content,
                            .rules = { .shape = TR_SHAPE_TEXT, .tokenizer = u.tokenizer } };
    assert_ok(tr_mkdirs(u.cache));
    assert_ok(tr_textfile_hash(source.path, &content));
    put_text(s, "a.txt", "next");
    assert_refused(tr_make_shards(&make), TR_IO, "changed while it was being read");
    assert_int_equal(cache_files(&u, ".trtok", &sum), 0);
    tr_tokenizer_close(u.tokenizer);
}

static void a_damaged_or_incomplete_cache_is_made_again(void **state)
{
    struct scratch *s = *state;
    struct setup u;
    uint64_t sum;
    setup_init(&u, s);
    u.options.shard_tokens = 6;
    struct tr_str text = { 0 };
    for (int i = 0; i < 10; i++)
        tr_str_addf(&text, "{\"text\": \"doc%d\"}\n", i);
    const char *want = "doc0$/doc1$/doc2$/doc3$/doc4$/doc5$/doc6$/doc7$/doc8$/doc9$/";
    char path[TR_PATH_MAX], shard[TR_PATH_MAX] = "";
    memcpy(path, put_file(s, "a.jsonl", text.p, text.n), sizeof path);
    assert_stream(&u, path, want);
    assert_int_equal(cache_files(&u, ".trtok", &sum), 5); /* two documents of five tokens a part */
    for (int damage = 0; damage < 3; damage++) {
        DIR *dir = opendir(u.cache);
        const struct dirent *e;
        while ((e = readdir(dir)) != NULL)
            if (strstr(e->d_name, damage == 0 ? "-00004.trtok" : "-00002.trtok"))
                assert_ok(tr_path_join(shard, u.cache, e->d_name));
        closedir(dir);
        if (damage == 0)
            assert_int_equal(unlink(shard), 0); /* as after a crash: the last part is missing */
        else
            assert_int_equal(truncate(shard, damage == 1 ? 100 : 140), 0);
        put_text(s, "cache/dead.trtok.tmp-abcdef", "left by a crash");
        assert_stream(&u, path, want);
        assert_int_equal(cache_files(&u, ".trtok", &sum), 5);
        assert_int_equal(cache_files(&u, ".tmp-", &sum), 0);
    }
    tr_str_release(&text);
    tr_tokenizer_close(u.tokenizer);
}

static void the_wait_for_a_cache_that_another_process_fills_is_bounded(void **state)
{
    struct scratch *s = *state;
    struct setup u;
    struct tr_data *d = NULL;
    setup_init(&u, s);
    assert_ok(tr_mkdirs(u.cache));
    int fd = open(in_scratch(s, "cache/lock"), O_RDWR | O_CREAT, 0600);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    u.options.cache_wait_us = 50000;
    const char *path = put_text(s, "a.txt", "a");
    assert_refused(tr_data_open(&path, 1, u.tokenizer, &u.options, &d), TR_TIMEOUT, "another process");
    close(fd);
    assert_stream(&u, in_scratch(s, "a.txt"), "a$/");
    tr_tokenizer_close(u.tokenizer);
}

#define T(f) cmocka_unit_test_setup_teardown(f, scratch_setup, scratch_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(jsonl_records_become_documents_and_bad_ones_are_skipped_by_line),
        T(skipping_over_budget_is_refused_also_from_the_cache),
        T(lines_over_the_cap_are_skipped_and_the_next_one_is_read),
        T(a_text_file_is_one_document_in_any_size),
        T(directories_and_globs_are_read_in_name_order),
        T(what_cannot_be_read_is_refused_by_name),
        T(shards_of_another_tokenizer_are_refused),
        T(a_second_start_reuses_the_cache_and_changed_content_does_not),
        T(many_small_files_share_a_shard_and_keep_their_names),
        T(a_file_that_changes_before_it_is_read_leaves_no_shard),
        T(a_damaged_or_incomplete_cache_is_made_again),
        T(the_wait_for_a_cache_that_another_process_fills_is_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
