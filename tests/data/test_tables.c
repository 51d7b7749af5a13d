/* test_tables.c - the same records in any file are the same samples. The files are those of tests/table. */
#include "data/data_test.h"

#include <dirent.h>

#define GOLDEN TR_SOURCE_DIR "/tests/table/golden"

struct setup {
    struct tr_tokenizer *tokenizer;
    struct tr_data_options options;
    char cache[TR_PATH_MAX];
};

static void setup_init(struct setup *u, struct scratch *s, const char *text_key)
{
    *u = (struct setup){ .tokenizer = byte_tokenizer(s) };
    memcpy(u->cache, in_scratch(s, "cache"), TR_PATH_MAX);
    u->options = (struct tr_data_options){
        .row_tokens = 33,
        .vocab_size = 257,
        .cache_dir = u->cache,
        .max_skipped = 100,
        .text_key = text_key,
        .n_threads = 2,
    };
}

static struct tr_data_info info_of(const struct setup *u, const char *path)
{
    struct tr_data *d = NULL;
    struct tr_data_info info;
    assert_ok(tr_data_open(&path, 1, u->tokenizer, &u->options, &d));
    tr_data_get_info(d, &info);
    tr_data_close(d);
    return info;
}

/* Every file of the recording whose name begins so gives the samples of its rows as .jsonl. */
static int compare_all(struct scratch *s, const char *prefix, const char *text_key)
{
    struct setup u;
    char path[TR_PATH_MAX], *rows;
    const struct dirent *e;
    size_t n_bytes;
    int n = 0;
    setup_init(&u, s, text_key);
    assert_ok(tr_format(path, sizeof path, "%s/%s.rows", GOLDEN, prefix));
    assert_ok(tr_file_read(path, 1 << 20, &rows, &n_bytes));
    struct tr_data_info lines = info_of(&u, put_file(s, "rows.jsonl", rows, n_bytes));
    assert_true(lines.n_docs > 10);
    DIR *dir = opendir(GOLDEN);
    assert_non_null(dir);
    while ((e = readdir(dir)) != NULL) {
        if (strncmp(e->d_name, prefix, strlen(prefix)) != 0 || strstr(e->d_name, ".rows"))
            continue;
        assert_ok(tr_path_join(path, GOLDEN, e->d_name));
        for (int again = 0; again < 2; again++) { /* newly made, and from the cache */
            struct tr_data_info info = info_of(&u, path);
            assert_int_equal(info.n_docs, lines.n_docs);
            assert_int_equal(info.n_skipped, lines.n_skipped);
            assert_true(tr_hash_eq(info.hash, lines.hash));
        }
        n++;
    }
    closedir(dir);
    free(rows);
    tr_tokenizer_close(u.tokenizer);
    return n;
}

static void the_same_records_are_the_same_samples_in_any_file(void **state)
{
    assert_int_equal(compare_all(*state, "rows", NULL), 7);
    assert_int_equal(compare_all(*state, "chat", "text"), 9);
}

static void a_record_that_cannot_be_used_is_named_by_its_row(void **state)
{
    struct scratch *s = *state;
    struct setup u;
    struct tr_data *d = NULL;
    size_t n;
    setup_init(&u, s, NULL);
    const char *path = put_text(s, "a.csv", "prompt,completion\na,b\nc,\nd,e\nf\n");
    assert_ok(tr_data_open(&path, 1, u.tokenizer, &u.options, &d));
    const struct tr_data_skip *skips = tr_data_skips(d, &n);
    assert_int_equal(n, 2);
    assert_int_equal(skips[0].line, 2);
    assert_string_equal(skips[0].why, "\"completion\" is empty, so there is nothing to train on");
    assert_int_equal(skips[1].line, 4);
    assert_string_equal(skips[1].why, "the row has 1 fields, and the header has 2");
    tr_data_close(d);
    tr_tokenizer_close(u.tokenizer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_same_records_are_the_same_samples_in_any_file, scratch_setup,
                                        scratch_teardown),
        cmocka_unit_test_setup_teardown(a_record_that_cannot_be_used_is_named_by_its_row, scratch_setup,
                                        scratch_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
