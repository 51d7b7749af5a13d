/* test_chunks.c - a text of many batches, encoded in threads: the ids of the whole, whatever the threads and pieces. */
#include "data/chunks.h"
#include "data/lines.h"
#include "data/data_files.h"

/* Words, numbers, line ends and other scripts; one stretch has no place for a cut that is longer than a task. */
static void make_text(struct tr_str *out, size_t n)
{
    static const char *const words[] = { "oar ", "stroke, ", "170 ",         "\xC3\xA9t\xC3\xA9 ",
                                         "\n",   "drum",     "\xE4\xB8\xAD", "  " };
    uint64_t x = 1;
    for (size_t i = 0; out->n < n; i++) {
        x = x * UINT64_C(6364136223846793005) + 1442695040888963407u;
        const char *w = words[(x >> 33) % TR_COUNT_OF(words)];
        tr_str_add(out, w, strlen(w));
        for (int k = 0; i == n / 64 && k < 400000; k++)
            tr_str_add(out, "-", 1);
    }
    assert_true(tr_str_ok(out));
}

static enum tr_status take(void *ctx, const int32_t *ids, size_t n)
{
    struct tr_ids *all = ctx;
    for (size_t i = 0; i < n; i++)
        assert_ok(tr_ids_add(all, ids[i]));
    return TR_OK;
}

/* Fed piece by piece; *n_early: ids that came before the end of the text. */
static void encode_in_threads(const struct tr_tokenizer *t, const struct tr_str *text, size_t piece, int n_threads,
                              struct tr_ids *out, size_t *n_early)
{
    struct tr_chunks c = { .tokenizer = t };
    struct tr_pool *pool = NULL;
    assert_ok(tr_pool_open(n_threads, &pool));
    for (size_t at = 0; at < text->n; at += piece) {
        tr_str_add(&c.text, text->p + at, at + piece < text->n ? piece : text->n - at);
        if (tr_chunks_is_full(&c))
            assert_ok(tr_chunks_encode(&c, false, pool, take, out));
    }
    *n_early = out->n;
    assert_ok(tr_chunks_encode(&c, true, pool, take, out));
    assert_int_equal(c.text.n, 0);
    tr_chunks_release(&c);
    tr_pool_close(pool);
}

static void check(const char *name, size_t n, size_t piece, int n_threads, bool is_cut)
{
    struct tr_tokenizer *t = open_golden(name);
    struct tr_str text = { 0 };
    struct tr_ids whole = { 0 }, got = { 0 };
    size_t n_early = 0;
    make_text(&text, n);
    assert_ok(tr_tokenizer_encode(t, text.p, text.n, &whole));
    encode_in_threads(t, &text, piece, n_threads, &got, &n_early);
    assert_int_equal(n_early > 0, is_cut);
    assert_int_equal(got.n, whole.n);
    assert_memory_equal(got.p, whole.p, whole.n * sizeof *whole.p);
    tr_ids_release(&whole);
    tr_ids_release(&got);
    tr_str_release(&text);
    tr_tokenizer_close(t);
}

static void threads_give_the_ids_of_the_whole_text(void **state)
{
    (void)state;
    check("llama3", 9 << 20, 777777, 3, true);
    check("llama2", 9 << 20, 1 << 20, 2, true); /* a space in front of the first piece only */
}

static void a_tokenizer_without_cuts_gets_its_text_whole(void **state)
{
    (void)state;
    check("pcre", 1 << 20, 1 << 20, 3, false);
}

static void a_file_of_text_is_the_same_shard_from_any_number_of_threads(void **state)
{
    struct bench b;
    struct tr_str text = { 0 };
    struct tr_data_info info[2];
    make_text(&text, 1 << 20);
    bench_init(&b, *state);
    tr_tokenizer_close(b.tokenizer);
    b.tokenizer = open_golden("llama3");
    b.options.vocab_size = tr_tokenizer_vocab_size(b.tokenizer);
    char path[TR_PATH_MAX];
    memcpy(path, put_file(b.s, "long.txt", text.p, text.n), TR_PATH_MAX);
    for (int i = 0; i < 2; i++) {
        char cache[TR_PATH_MAX];
        memcpy(cache, in_scratch(b.s, i ? "cache1" : "cache0"), TR_PATH_MAX);
        b.options.cache_dir = cache;
        b.options.n_threads = 1 + 3 * i;
        struct tr_data *d = bench_open(&b, path);
        tr_data_get_info(d, &info[i]);
        tr_data_close(d);
    }
    assert_int_equal(info[0].n_docs, 1);
    assert_memory_equal(&info[0].hash, &info[1].hash, sizeof info[0].hash);
    bench_release(&b);
    tr_str_release(&text);
}

static enum tr_status give(void *ctx, int64_t number, const int32_t *ids, const uint8_t *mask, const uint32_t *weight,
                           size_t n_ids, const char *why)
{
    (void)ids, (void)mask, (void)weight, (void)number, (void)why;
    *(size_t *)ctx += n_ids;
    return TR_OK;
}

/* The steps of all records of a file are added up: one that took too many is refused as a whole, with its name. */
static void the_work_of_a_file_is_bounded_not_only_that_of_a_record(void **state)
{
    static const char line[] = "{\"text\": \"oars\"}";
    struct bench b;
    struct tr_pool *pool = NULL;
    struct tr_lines l = { .path = "x.jsonl" };
    size_t n_ids = 0;
    bench_init(&b, *state);
    struct tr_record_rules rules = { .shape = TR_SHAPE_TEXT, .text_key = "text", .tokenizer = b.tokenizer };
    struct tr_chunks c = { .tokenizer = b.tokenizer, .path = "x.txt" };
    struct tr_ids all = { 0 };
    assert_ok(tr_pool_open(2, &pool));
    for (int is_over = 0; is_over < 2; is_over++) {
        assert_ok(tr_lines_add(&l, line, sizeof line - 1, 1, NULL));
        tr_str_add(&c.text, line, sizeof line - 1);
        l.work.n_used = c.work.n_used = is_over ? TR_WORK_FILE + 100 * sizeof line * TR_WORK_BYTE : TR_WORK_FILE;
        enum tr_status st = tr_lines_encode(&l, &rules, pool, give, &n_ids);
        if (is_over)
            assert_refused(st, TR_USAGE, "x.jsonl: the chat template and the patterns of the tokenizer take more than");
        assert_int_equal(st, is_over ? TR_USAGE : TR_OK);
        st = tr_chunks_encode(&c, true, pool, take, &all);
        if (is_over)
            assert_refused(st, TR_USAGE, "x.txt: the chat template and the patterns of the tokenizer take more than");
        assert_int_equal(st, is_over ? TR_USAGE : TR_OK);
        assert_int_equal(n_ids, 5); /* and <eos>, of the first only */
    }
    tr_lines_release(&l);
    tr_chunks_release(&c);
    tr_ids_release(&all);
    tr_pool_close(pool);
    bench_release(&b);
}

/* A record of 10 bytes may become half a million tokens, many of them may not. */
static void the_tokens_of_a_batch_are_bounded_by_its_bytes(void **state)
{
    struct bench b;
    struct tr_data *d = NULL;
    struct tr_str json = { 0 }, text = { 0 };
    bench_init(&b, *state);
    tr_tokenizer_close(b.tokenizer);
    b.tokenizer = NULL;
    tr_str_addf(&json, "{\"normalizer\": {\"type\": \"Prepend\", \"prepend\": \"");
    for (int i = 0; i < 400000; i++)
        tr_str_add(&json, "a", 1);
    tr_str_addf(&json, "\"}, \"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 1}, \"merges\": []}}");
    assert_ok(tr_mkdirs(in_scratch(b.s, "model")));
    put_file(b.s, "model/tokenizer.json", json.p, json.n);
    assert_ok(tr_tokenizer_open(in_scratch(b.s, "model"), &b.tokenizer));
    for (int n = 1; n <= 20; n += 19) {
        tr_str_clear(&text);
        for (int i = 0; i < n; i++)
            tr_str_addf(&text, "{\"text\": \"b\"}\n");
        const char *path = put_file(b.s, n > 1 ? "many.jsonl" : "one.jsonl", text.p, text.n);
        enum tr_status st = tr_data_open(&path, 1, b.tokenizer, &b.options, &d);
        if (n > 1)
            assert_refused(st, TR_USAGE, "many.jsonl: the chat template or the tokenizer makes more than 32 tokens of");
        else
            assert_ok(st);
        if (st == TR_OK)
            tr_data_close(d);
    }
    tr_str_release(&json);
    tr_str_release(&text);
    bench_release(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(threads_give_the_ids_of_the_whole_text),
        TEST(a_tokenizer_without_cuts_gets_its_text_whole),
        TEST(a_file_of_text_is_the_same_shard_from_any_number_of_threads),
        TEST(the_work_of_a_file_is_bounded_not_only_that_of_a_record),
        TEST(the_tokens_of_a_batch_are_bounded_by_its_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
