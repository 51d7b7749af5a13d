/* test_datasets.c - directories of data sets, splits and slices: which records of which files are used. */
#include "data/data_test.h"
#include "data/sources.h"

#include <sys/stat.h>

#define GOLDEN TR_SOURCE_DIR "/tests/table/golden"

/* The files of a path as "name" or "name[first:end]", with blanks between; the refusal, when there is one. */
static void assert_sources(const char *path, const char *says)
{
    struct tr_sources s = { 0 };
    struct tr_str text = { 0 };
    static const struct tr_seals none;
    enum tr_status st = tr_sources_expand(&path, 1, &none, &s);
    for (size_t i = 0; i < s.n; i++) {
        const char *name = strrchr(s.p[i].path, '/') + 1;
        tr_str_addf(&text, "%s%s", i ? " " : "", name);
        if (s.p[i].is_part)
            tr_str_addf(&text, "[%" PRIu64 ":%" PRIu64 "]", s.p[i].first, s.p[i].end);
    }
    const char *got = st == TR_OK ? text.p : tr_error_text();
    if (st == TR_OK ? strcmp(got, says) != 0 : strstr(got, says) == NULL)
        fail_msg("%s: %s; expected %s", path, got, says);
    tr_sources_release(&s);
    tr_str_release(&text);
    tr_error_clear();
}

static void make_dir(struct scratch *s, const char *name)
{
    assert_ok(tr_mkdirs(in_scratch(s, name)));
}

static void saved_directories_are_read_as_their_state_says(void **state)
{
    (void)state;
    assert_sources(GOLDEN "/saved", "data-00000-of-00002.arrow data-00001-of-00002.arrow");
    assert_sources(GOLDEN "/saved#train", "data-00000-of-00002.arrow data-00001-of-00002.arrow");
    assert_sources(GOLDEN "/saved#test", "data-00000-of-00001.arrow");
    assert_sources(GOLDEN "/saved/test", "data-00000-of-00001.arrow");
    assert_sources(GOLDEN "/saved#dev", "saved: the data set has no split dev; it has train, test");
    assert_sources(GOLDEN "/saved/test#test", "one split, which is called train");
    assert_sources(GOLDEN "/saved#train[:5]", "data-00000-of-00002.arrow data-00001-of-00002.arrow[0:1]");
    assert_sources(GOLDEN "/saved#train[:-3]", "data-00000-of-00002.arrow");
    assert_sources(GOLDEN "/saved#train[50%:]", "data-00001-of-00002.arrow");
    assert_sources(GOLDEN "/saved#[1:3]", "data-00000-of-00002.arrow[1:3]");
    assert_sources(GOLDEN "/saved#[7:]", "the slice holds none of the 7 records");
    assert_sources(GOLDEN "/saved#train[", "saved: split \"train[\" is not a name with a slice");
}

static void snapshots_of_the_hub_hold_splits_by_their_names(void **state)
{
    struct scratch *s = *state;
    char path[TR_PATH_MAX];
    make_dir(s, "hub/data");
    put_text(s, "hub/README.md", "---\n");
    put_text(s, "hub/.gitattributes", "");
    put_text(s, "hub/dataset_infos.json", "{}");
    put_text(s, "hub/data/train-00001-of-00002.jsonl", "{}\n{}\n");
    put_text(s, "hub/data/train-00000-of-00002.jsonl", "{}\n{}\n{}\n");
    put_text(s, "hub/data/test_sft-00000-of-00001.jsonl", "{}\n");
    memcpy(path, in_scratch(s, "hub"), sizeof path);
    assert_sources(path, "train-00000-of-00002.jsonl train-00001-of-00002.jsonl");
    assert_sources(in_scratch(s, "hub#train[-3:]"), "train-00000-of-00002.jsonl[2:3] train-00001-of-00002.jsonl");
    assert_sources(in_scratch(s, "hub#test_sft"), "test_sft-00000-of-00001.jsonl");
    assert_sources(in_scratch(s, "hub#test"),
                   "the data set has no split test; it has test_sft, train: write PATH#SPLIT");
    put_text(s, "hub/data/train-00000-of-00001.csv", "a\n");
    assert_sources(path, "the split as");

    make_dir(s, "cards");
    put_text(s, "cards/README.md", "");
    put_text(s, "cards/LICENSE", "");
    put_text(s, "cards/questions.json", "[]");
    assert_sources(in_scratch(s, "cards"), "questions.json");
    assert_sources(in_scratch(s, "cards#test"), "no split test; it has train");
    put_text(s, "cards/valid.json", "[]");
    assert_sources(in_scratch(s, "cards"), "no split train; it has validation");
    assert_sources(in_scratch(s, "cards#validation"), "valid.json");

    make_dir(s, "several/main");
    make_dir(s, "several/other");
    put_text(s, "several/README.md", "");
    put_text(s, "several/main/train.jsonl", "{}\n");
    put_text(s, "several/other/train.jsonl", "{}\n");
    assert_sources(in_scratch(s, "several"), "several data sets");
    assert_sources(in_scratch(s, "several/main"), "train.jsonl");

    make_dir(s, "cached"); /* as the package keeps what it has converted */
    put_text(s, "cached/dataset_info.json", "{}");
    put_text(s, "cached/imdb-train.arrow", "");
    put_text(s, "cached/imdb-test.arrow", "");
    put_text(s, "cached/cache-1234.arrow", "");
    assert_sources(in_scratch(s, "cached"), "imdb-train.arrow");
    assert_sources(in_scratch(s, "cached#test"), "imdb-test.arrow");
}

static void files_have_slices_and_odd_names(void **state)
{
    struct scratch *s = *state;
    put_text(s, "a.jsonl", "{}\n{}\n{}\n{}\n");
    put_text(s, "b#[1:2].jsonl", "{}\n");
    put_text(s, "c.txt", "text");
    assert_sources(in_scratch(s, "a.jsonl#[:50%]"), "a.jsonl[0:2]");
    assert_sources(in_scratch(s, "a.jsonl#train"), "a.jsonl");
    assert_sources(in_scratch(s, "a.jsonl#test"), "one split, train; test is not there");
    assert_sources(in_scratch(s, "b#[1:2].jsonl"), "b#[1:2].jsonl");
    assert_sources(in_scratch(s, "c.txt#[:1]"), "a slice is of records, and this file is one document");
    assert_sources(in_scratch(s, "*.jsonl#[3:]"), "a.jsonl[3:4] b#[1:2].jsonl");
}

static struct tr_data_info info_of(struct scratch *s, const char *path, struct tr_data **kept)
{
    struct tr_tokenizer *tokenizer = byte_tokenizer(s);
    struct tr_data *d = NULL;
    struct tr_data_info info;
    char cache[TR_PATH_MAX];
    memcpy(cache, in_scratch(s, "cache"), sizeof cache);
    struct tr_data_options o = { .row_tokens = 9, .vocab_size = 257, .cache_dir = cache, .max_skipped = 9 };
    assert_ok(tr_data_open(&path, 1, tokenizer, &o, &d));
    tr_data_get_info(d, &info);
    tr_tokenizer_close(tokenizer);
    if (kept)
        *kept = d;
    else
        tr_data_close(d);
    return info;
}

static void a_slice_is_the_samples_of_its_records(void **state)
{
    struct scratch *s = *state;
    char part[TR_PATH_MAX], slice[TR_PATH_MAX];
    struct tr_data *d = NULL;
    size_t n;
    put_text(s, "a.jsonl", "{\"text\": \"one\"}\n{\"text\": \"two\"}\nx\n{\"text\": \"four\"}\n{\"text\": \"five\"}\n");
    put_text(s, "part.jsonl", "{\"text\": \"two\"}\nx\n{\"text\": \"four\"}\n");
    memcpy(part, in_scratch(s, "part.jsonl"), sizeof part);
    memcpy(slice, in_scratch(s, "a.jsonl#[1:4]"), sizeof slice);
    struct tr_data_info a = info_of(s, part, NULL);
    for (int again = 0; again < 2; again++) {
        struct tr_data_info b = info_of(s, slice, &d);
        assert_int_equal(b.n_docs, 2);
        assert_true(tr_hash_eq(a.hash, b.hash));
        assert_int_equal(tr_data_skips(d, &n)[0].line, 3); /* of the file */
        assert_int_equal(n, 1);
        tr_data_close(d);
    }
    struct tr_data_info train = info_of(s, GOLDEN "/saved", NULL), test = info_of(s, GOLDEN "/saved#test", NULL);
    assert_int_equal(train.n_docs, 7);
    assert_int_equal(test.n_docs, 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(saved_directories_are_read_as_their_state_says),
        cmocka_unit_test_setup_teardown(snapshots_of_the_hub_hold_splits_by_their_names, scratch_setup,
                                        scratch_teardown),
        cmocka_unit_test_setup_teardown(files_have_slices_and_odd_names, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(a_slice_is_the_samples_of_its_records, scratch_setup, scratch_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
