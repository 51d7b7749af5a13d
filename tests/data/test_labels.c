/* test_labels.c - records with one answer and a label: one document each, with its label and its mismatched document;
 * every answer is counted once, and rows have room for both. Targets are shown in upper case, a trained end of text as
 * '!'. */
#include "data/data_files.h"

static void add_row(const struct tr_batch *b, int64_t n, struct tr_str *out)
{
    for (int64_t i = 0; i < n && b->other[i] >= 0; i++) {
        int32_t id = b->tokens[i];
        bool is_on = i > 0 && b->targets[i - 1] != TR_TARGET_NONE;
        char c = id == 256 ? '$' : (char)id;
        if (is_on)
            c = c == '$' ? '!' : c >= 'a' && c <= 'z' ? (char)(c - 32) : c;
        if (b->positions[i] == 0)
            tr_str_addf(out, "%s", i ? "|" : "");
        tr_str_add(out, &c, 1);
        if (i + 1 == n || b->begin[i + 1] != b->begin[i])
            tr_str_addf(out, "%c", b->other[i] == b->begin[i] ? '-' : '+');
    }
    tr_str_addf(out, "|");
}

/* All rows: documents with their labels, then the mismatched ones. */
static void assert_rows(struct bench *b, const char *path, const char *want, const char *mismatched)
{
    struct tr_str out = { 0 }, other = { 0 };
    struct tr_data *d = bench_open(b, path);
    int64_t T = tr_data_row_tokens(d), n;
    struct rows r = rows_new(1, T);
    for (uint64_t g = 0; g < tr_data_rows(d); g++) {
        assert_ok(tr_data_fill(d, g, 1, g + 1, &r.b, &n));
        add_row(&r.b, T, &out);
        assert_ok(tr_data_fill_mismatched(d, g, 1, g + 1, &r.b, &n));
        add_row(&r.b, T, &other);
    }
    assert_string_equal(out.p, want);
    assert_string_equal(other.p, mismatched);
    tr_str_release(&out);
    tr_str_release(&other);
    rows_free(&r);
    tr_data_close(d);
}

static void answers_have_a_label_and_a_partner(void **state)
{
    static const char *const text = "{\"prompt\": \"one\", \"completion\": \"yes\", \"label\": true}\n"
                                    "{\"prompt\": \"two\", \"completion\": \"no\", \"label\": false}\n"
                                    "{\"prompt\": \"two\", \"completion\": \"or\", \"kto_tag\": 1}\n"
                                    "{\"prompt\": \"six\", \"completion\": \"if\", \"label\": 0}\n";
    struct bench b;
    bench_init(&b, *state);
    b.options.wants_labels = true;
    b.options.packing = TR_PACK_NONE;
    /* the third record has the prompt of the second, so its partner is the first */
    assert_rows(&b, put_text(*state, "a.jsonl", text), "oneYES!+|twoNO!-|twoOR!+|sixIF!-|",
                "oneIF!+|twoYES!+|twoYES!+|sixOR!+|");
    assert_int_equal(b.n_skips, 0);
    bench_release(&b);
}

static void shapes_become_conversations(void **state)
{
    static const char *const texts[] = {
        "{\"instruction\": \"q\", \"input\": \"i\", \"output\": \"a\", \"label\": true}\n",
        "{\"question\": \"q\\ni\", \"completion\": \"a\", \"label\": true}\n",
        "{\"conversations\": [{\"from\": \"human\", \"value\": \"q\\ni\"}, {\"from\": \"gpt\", \"value\": \"a\"}], "
        "\"kto_tag\": true}\n",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"q\\ni\"}, {\"role\": \"assistant\", \"content\": \"a\"}], "
        "\"label\": true}\n",
        "{\"prompt\": [{\"role\": \"user\", \"content\": \"q\\ni\"}], \"completion\": [{\"role\": \"assistant\", "
        "\"content\": \"a\"}], \"label\": true}\n",
        "{\"completion\": [{\"role\": \"user\", \"content\": \"q\\ni\"}, {\"role\": \"assistant\", \"content\": "
        "\"a\"}], \"label\": true}\n",
    };
    static const char *const row = "<|im_start|>user\nq\ni<|im_end|>\n<|im_start|>assistant\nA<|IM_END|>\n+|";
    struct bench b;
    struct tr_chat *chat = NULL;
    bench_init(&b, *state);
    assert_ok(tr_chat_open(NULL, "chatml", &chat));
    b.options.chat = chat;
    b.options.wants_labels = true;
    b.options.packing = TR_PACK_NONE;
    b.options.row_tokens = 400;
    for (size_t i = 0; i < TR_COUNT_OF(texts); i++) {
        struct tr_str text = { 0 }, want = { 0 };
        tr_str_addf(&text, "%s%s", texts[i], texts[i]);
        tr_str_addf(&want, "%s%s", row, row);
        assert_rows(&b, put_text(*state, "a.jsonl", text.p), want.p, want.p);
        tr_str_release(&text);
        tr_str_release(&want);
    }
    assert_int_equal(b.n_skips, 0);
    tr_chat_close(chat);
    bench_release(&b);
}

/* Documents of many lengths, some longer than a row: all rows are filled twice, every answer is counted once, has its
 * prompt in both, and the references of both kinds come back to their places. */
static void rows_have_room_for_both(void **state)
{
    enum { T = 24, N = 200 };
    struct bench b;
    struct tr_str text = { 0 };
    bench_init(&b, *state);
    for (int i = 0; i < N; i++)
        tr_str_addf(&text, "{\"prompt\": \"%d:%.*s\", \"completion\": \"%.*s\", \"label\": %s}\n", i, i * 7 % 19,
                    "pppppppppppppppppppp", 1 + i * 5 % 31, "abcdefghijklmnopqrstuvwxyzabcdefgh",
                    i % 3 ? "true" : "false");
    const char *path = put_text(*state, "a.jsonl", text.p);
    b.options.wants_labels = true;
    b.options.row_tokens = T;
    b.options.shuffle = true;
    struct tr_data *d = bench_open(&b, path);
    int64_t n_rows = (int64_t)tr_data_rows(d), n[2], n_counted;
    struct rows r = rows_new(n_rows, T);
    float *sums = calloc((size_t)(n_rows * T), sizeof *sums);
    uint64_t n_ref;
    float *ref = tr_data_references(d, &n_ref);
    uint64_t *all = calloc((size_t)n_rows, sizeof *all), n_uses;
    unsigned char marks[N] = { 0 };
    assert_true(sums && all);
    assert_int_equal(n_ref, 2 * N);
    /* In a shuffled epoch every sample is the first use of its row, and of two epochs those of the first are. */
    assert_ok(tr_data_first_uses(d, 2 * (uint64_t)n_rows, marks, all, &n_uses));
    assert_int_equal(n_uses, n_rows);
    for (int64_t i = 0; i < n_rows; i++)
        assert_int_equal(all[i], i);
    assert_null(memchr(marks, 0, N));
    assert_ok(tr_data_count(d, 0, n_rows, (uint64_t)n_rows, &n_counted));
    for (int k = 0; k < 2; k++) {
        assert_ok((k ? tr_data_fill_mismatched : tr_data_fill)(d, 0, n_rows, (uint64_t)n_rows, &r.b, &n[k]));
        int64_t n_docs = 0, n_targets = 0;
        for (int64_t i = 0; i < n_rows * T; i++) {
            sums[i] = (float)(1 + i + k * n_rows * T);
            if (r.b.other[i] < 0)
                continue;
            if (r.b.begin[i] == i) {
                assert_true(n_docs == 0 || n_targets > 0);
                assert_int_equal(r.b.targets[i], TR_TARGET_NONE); /* prompts have at least two tokens */
                n_docs++;
                n_targets = 0;
            }
            n_targets += r.b.targets[i] != TR_TARGET_NONE;
            if (r.b.targets[i] != TR_TARGET_NONE)
                assert_int_equal(r.b.targets[i], r.b.tokens[i + 1]);
        }
        assert_int_equal(n[k], N);
        assert_int_equal(n_docs, N);
        assert_ok(tr_data_take_references(d, all, n_rows, &r.b, k, sums, 1));
    }
    assert_int_equal(n_counted, N);
    for (int i = 0; i < N; i++)
        assert_true(ref[2 * i] > 0 && ref[2 * i] <= (float)(n_rows * T) && ref[2 * i + 1] > (float)(n_rows * T));
    for (int k = 0; k < 2; k++) {
        assert_ok((k ? tr_data_fill_mismatched : tr_data_fill)(d, 0, n_rows, (uint64_t)n_rows, &r.b, &n[k]));
        for (int64_t i = 0; i < n_rows * T; i++)
            assert_true(r.b.value[i] == (r.b.other[i] >= 0 && r.b.begin[i] == i ? (float)(1 + i + k * n_rows * T) : 0));
    }
    free(sums);
    free(all);
    rows_free(&r);
    tr_data_close(d);
    tr_str_release(&text);
    bench_release(&b);
}

static void what_is_no_label_is_refused(void **state)
{
    static const char *const cases[][2] = {
        { "{\"prompt\": \"p\", \"completion\": \"a\"}\n", "\"label\" is missing" },
        { "{\"prompt\": \"p\", \"completion\": \"a\", \"label\": \"yes\"}\n", "neither true nor false" },
        { "{\"prompt\": \"p\", \"completion\": \"a\", \"label\": 0.5}\n", "neither true nor false" },
        { "{\"prompt\": \"p\", \"label\": true}\n", "\"completion\" is missing" },
        { "{\"prompt\": \"p\", \"completion\": \"\", \"label\": true}\n", "\"completion\" is empty" },
        { "{\"prompt\": \"p\", \"chosen\": \"a\", \"rejected\": \"b\"}\n", "pair of answers" },
    };
    struct bench b;
    bench_init(&b, *state);
    b.options.wants_labels = true;
    b.options.max_skipped = 0;
    for (size_t i = 0; i < TR_COUNT_OF(cases); i++) {
        const char *path = put_text(*state, "a.jsonl", cases[i][0]);
        struct tr_data *d = NULL;
        assert_refused(tr_data_open(&path, 1, b.tokenizer, &b.options, &d), TR_USAGE, cases[i][1]);
    }
    bench_release(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(answers_have_a_label_and_a_partner),
        TEST(shapes_become_conversations),
        TEST(rows_have_room_for_both),
        TEST(what_is_no_label_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
