/* test_fetch.c - sources that are addresses: the command gets words and no shell, its failure is named, and the cache
 * has whole files only. */
#include "data/data_files.h"
#include "data/fetch.h"

enum { MINUTE_US = 60000000 };

static void addresses_are_told_from_paths(void **state)
{
    (void)state;
    assert_true(tr_fetch_is_address("s3://bucket/a.jsonl"));
    assert_true(tr_fetch_is_address("https://host/a.jsonl"));
    assert_true(tr_fetch_is_address("x+y.z-1://a"));
    assert_false(tr_fetch_is_address("a/b://c"));
    assert_false(tr_fetch_is_address("://a"));
    assert_false(tr_fetch_is_address("s3://"));
    assert_false(tr_fetch_is_address("a.jsonl:0.5"));
}

/* The script writes its arguments, one a line; the last is the path. */
static const char *put_script(struct scratch *s)
{
    return put_text(s, "fetch.sh", "for last; do :; done\nprintf '%s\\n' \"$@\" >\"$last\"\necho x >>\"$CALLS\"\n");
}

static void a_command_has_words_and_no_shell(void **state)
{
    struct scratch *s = *state;
    char command[2 * TR_PATH_MAX], cache[TR_PATH_MAX], out[TR_PATH_MAX], again[TR_PATH_MAX], *text = NULL;
    size_t n;
    memcpy(cache, in_scratch(s, "cache"), TR_PATH_MAX);
    setenv("CALLS", in_scratch(s, "calls"), 1);
    (void)snprintf(command, sizeof command, "sh %s 'a b' \"c'd\" e\\ f $HOME ;x --to={url} {path}", put_script(s));
    const char *url = "s3://bucket/dir/part 1;rm.jsonl?key=$(x)";
    assert_ok(tr_fetch(command, url, cache, MINUTE_US, out));
    assert_ok(tr_file_read(out, 1 << 16, &text, &n));
    static const char want[] = "a b\nc'd\ne f\n$HOME\n;x\n--to=s3://bucket/dir/part 1;rm.jsonl?key=$(x)\n";
    assert_int_equal(strncmp(text, want, sizeof want - 1), 0);
    assert_non_null(strstr(out, "-part_1_rm.jsonl"));
    free(text);
    assert_ok(tr_fetch(command, url, cache, MINUTE_US, again)); /* from the cache */
    assert_string_equal(out, again);
    assert_ok(tr_fetch(NULL, url, cache, MINUTE_US, again));
    assert_ok(tr_file_read(in_scratch(s, "calls"), 64, &text, &n));
    assert_int_equal(n, 2); /* one call */
    free(text);
}

static void what_fails_is_named_and_leaves_nothing(void **state)
{
    static const char *const bad[][2] = {
        { NULL, "--fetch_command 'aws s3 cp {url} {path}'" },
        { "", "fetch_command is empty" },
        { "cp {url}", "lacks {path}" },
        { "cp {path}", "lacks {url}" },
        { "cp 'x {url} {path}", "a quote that is not closed" },
        { "/nowhere/program {url} {path}", "/nowhere/program" },
        { "sh -c 'echo part >$1; echo \"no such key\" >&2; exit 7' {url} {path}",
          "ended with exit code 7: no such key" },
        { "sh -c 'kill -9 $$' {url} {path}", "was killed by signal 9" },
        { "true {url} {path}", "wrote no file" },
        { "ln -s {url} {path}", "wrote no file" },
        { "mkdir {path} {url}x", "mkdir {path} {url}x" },
    };
    struct scratch *s = *state;
    char cache[TR_PATH_MAX], out[TR_PATH_MAX];
    memcpy(cache, in_scratch(s, "cache"), TR_PATH_MAX);
    for (size_t i = 0; i < TR_COUNT_OF(bad); i++) {
        enum tr_status st = tr_fetch(bad[i][0], "s3://b/a.jsonl", cache, MINUTE_US, out);
        assert_true(st == TR_USAGE || st == TR_IO);
        assert_non_null(strstr(tr_error_text(), "data s3://b/a.jsonl: "));
        if (!strstr(tr_error_text(), bad[i][1]))
            fail_msg("\"%s\" does not say \"%s\"", tr_error_text(), bad[i][1]);
        assert_false(tr_file_exists(out));
    }
}

static void a_command_that_does_not_end_is_ended(void **state)
{
    struct scratch *s = *state;
    char cache[TR_PATH_MAX], out[TR_PATH_MAX];
    memcpy(cache, in_scratch(s, "cache"), TR_PATH_MAX);
    assert_refused(tr_fetch("sh -c 'exec sleep 100' {url} {path}", "s3://b/a.jsonl", cache, 200000, out), TR_TIMEOUT,
                   "ran longer than");
}

static void a_data_set_is_read_from_addresses(void **state)
{
    struct scratch *s = *state;
    struct bench b;
    char command[2 * TR_PATH_MAX];
    bench_init(&b, s);
    (void)snprintf(command, sizeof command, "sh -c 'cp \"$0\" \"$2\"' %s {url} {path}",
                   put_text(s, "there.jsonl", "{\"text\": \"abc\"}\n{\"text\": \"de\"}\n"));
    b.options.fetch_command = command;
    assert_documents(&b, "https://host/a.jsonl?x=1", true, "aBC!|dE!|");
    b.options.fetch_command = NULL;
    assert_documents(&b, "https://host/a.jsonl?x=1#[1:]", true, "dE!|");
    bench_release(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(addresses_are_told_from_paths),          TEST(a_command_has_words_and_no_shell),
        TEST(what_fails_is_named_and_leaves_nothing), TEST(a_command_that_does_not_end_is_ended),
        TEST(a_data_set_is_read_from_addresses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
