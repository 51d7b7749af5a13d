/* test_pairs.c - records with two answers become two documents of one row that know each other; every pair is counted
 * once, cut as the rule says, or named. Targets are shown in upper case, a trained end of text as '!'. */
#include "data/data_files.h"

/* All rows, one pair in each: '|' ends a document. */
static void assert_pairs(struct bench *b, const char *path, const char *want)
{
    struct tr_str out = { 0 };
    b->options.packing = TR_PACK_NONE;
    struct tr_data *d = bench_open(b, path);
    int64_t T = tr_data_row_tokens(d), n_pairs, n_tokens;
    struct rows r = rows_new(1, T);
    for (uint64_t g = 0; g < tr_data_rows(d); g++) {
        assert_ok(tr_data_fill(d, g, 1, g + 1, &r.b, &n_pairs));
        assert_ok(tr_data_tokens(d, g, 1, g + 1, &n_tokens));
        assert_int_equal(n_pairs, 1);
        for (int64_t i = 0; i < n_tokens; i++) {
            int32_t id = r.b.tokens[i];
            bool is_on = i > 0 && r.b.targets[i - 1] != TR_TARGET_NONE;
            char c = id == 256 ? '$' : (char)id;
            if (is_on)
                c = c == '$' ? '!' : c >= 'a' && c <= 'z' ? (char)(c - 32) : c;
            if (i > 0 && r.b.positions[i] == 0)
                tr_str_add(&out, "|", 1);
            tr_str_add(&out, &c, 1);
        }
        tr_str_add(&out, "|", 1);
    }
    assert_string_equal(out.p, want);
    tr_str_release(&out);
    rows_free(&r);
    tr_data_close(d);
}

static void pairs_become_two_documents(void **state)
{
    static const struct {
        const char *text, *want;
    } cases[] = {
        { "{\"prompt\": \"ask\", \"chosen\": \"yes\", \"rejected\": \"no\"}\n", "askYES!|askNO!|" },
        { "{\"prompt\": \"\", \"chosen\": \"ab\", \"rejected\": \"cd\"}\n", "aB!|cD!|" },
        { "{\"chosen\": \"so it is\", \"rejected\": \"so it was\"}\n", "so it IS!|so it WAS!|" },
        { "{\"chosen\": \"same\", \"rejected\": \"same more\"}\n", "" }, /* nothing of its own is left of the first */
    };
    struct bench b;
    bench_init(&b, *state);
    b.options.wants_pairs = true;
    for (size_t i = 0; i + 1 < TR_COUNT_OF(cases); i++)
        assert_pairs(&b, put_text(*state, "a.jsonl", cases[i].text), cases[i].want);
    assert_int_equal(b.n_skips, 0);
    const char *path = put_text(*state, "a.jsonl", cases[3].text);
    struct tr_data *d = NULL;
    assert_refused(tr_data_open(&path, 1, b.tokenizer, &b.options, &d), TR_USAGE, "no document");
    bench_release(&b);
}

static void columns_become_conversations(void **state)
{
    static const char *const user = "<|im_start|>user\n", *const end = "<|im_end|>\n<|im_start|>assistant\n";
    static const char *const texts[] = {
        "{\"instruction\": \"q\", \"input\": \"i\", \"chosen\": \"a\", \"rejected\": \"b\"}\n",
        "{\"question\": \"q\\ni\", \"chosen\": \"a\", \"rejected\": \"b\"}\n",
        "{\"instruction\": \"q\\ni\", \"chosen_response\": \"a\", \"rejected_response\": \"b\"}\n",
        "{\"input\": \"q\\ni\", \"chosen\": \"a\", \"rejected\": \"b\"}\n",
        "{\"conversations\": [{\"from\": \"human\", \"value\": \"q\\ni\"}], \"chosen\": {\"from\": \"gpt\", \"value\": "
        "\"a\"}, \"rejected\": {\"from\": \"gpt\", \"value\": \"b\"}}\n",
        "{\"prompt\": [{\"role\": \"user\", \"content\": \"q\\ni\"}], \"chosen\": [{\"role\": \"assistant\", "
        "\"content\": \"a\"}], \"rejected\": [{\"role\": \"assistant\", \"content\": \"b\"}]}\n",
        "{\"prompt\": \"unused\", \"chosen\": [{\"role\": \"user\", \"content\": \"q\\ni\"}, {\"role\": \"assistant\", "
        "\"content\": \"a\"}], \"rejected\": [{\"role\": \"user\", \"content\": \"q\\ni\"}, {\"role\": \"assistant\", "
        "\"content\": \"b\"}]}\n",
        "{\"chosen_messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"value\": \"q\\ni\"}], "
        "\"loss_weight\": 0.0}, {\"role\": \"assistant\", \"content\": [{\"type\": \"text\", \"value\": \"a\"}], "
        "\"loss_weight\": 1.0}], \"rejected_messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\", "
        "\"value\": \"q\\ni\"}], \"loss_weight\": 0.0}, {\"role\": \"assistant\", \"content\": [{\"type\": \"text\", "
        "\"value\": \"b\"}], \"loss_weight\": 1.0}]}\n",
    };
    char want[400];
    struct bench b;
    bench_init(&b, *state);
    b.options.wants_pairs = true;
    b.options.row_tokens = 400;
    struct tr_chat *chat = NULL;
    assert_ok(tr_chat_open(NULL, "chatml", &chat));
    b.options.chat = chat;
    (void)snprintf(want, sizeof want, "%sq\ni%sA<|IM_END|>\n|%sq\ni%sB<|IM_END|>\n|", user, end, user, end);
    for (size_t i = 0; i < TR_COUNT_OF(texts); i++)
        assert_pairs(&b, put_text(*state, "a.jsonl", texts[i]), want);
    /* axolotl's: a map that names the column of the prompt only, and the members of every message */
    static const char map[] =
        "{\"columns\": {\"messages\": \"talk\"}, \"message\": {\"role\": \"who\", \"content\": \"what\"}}",
                      mapped[] =
                          "{\"talk\": [{\"who\": \"human\", \"what\": \"q\\ni\"}], \"chosen\": {\"who\": \"gpt\", "
                          "\"what\": \"a\"}, \"rejected\": {\"who\": \"gpt\", \"what\": \"b\"}}\n";
    static const char *const maps[] = { map };
    b.options.maps = maps;
    assert_pairs(&b, put_text(*state, "a.jsonl", mapped), want);
    assert_int_equal(b.n_skips, 0);
    tr_chat_close(chat);
    bench_release(&b);
}

static void rows_keep_pairs_together_and_count_them(void **state)
{
    enum { T = 40, N = 60 };
    struct bench b;
    struct tr_str text = { 0 };
    bench_init(&b, *state);
    for (int i = 0; i < N; i++)
        tr_str_addf(&text, "{\"prompt\": \"%d\", \"chosen\": \"%.*s\", \"rejected\": \"%.*s\"}\n", i, 1 + i % 7,
                    "abcdefg", 1 + i % 5, "ABCDE");
    const char *path = put_text(*state, "a.jsonl", text.p);
    b.options.wants_pairs = true;
    b.options.row_tokens = T;
    b.options.shuffle = true;
    struct tr_data *d = bench_open(&b, path);
    int64_t n_pairs = 0, n_rows = (int64_t)tr_data_rows(d), n_seen = 0, n_counted = 0;
    struct rows r = rows_new(n_rows, T);
    uint64_t n_ref;
    float *ref = tr_data_references(d, &n_ref), *sums = calloc((size_t)(n_rows * T), sizeof *sums);
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
    assert_ok(tr_data_fill(d, 0, n_rows, (uint64_t)n_rows, &r.b, &n_pairs));
    assert_ok(tr_data_count(d, 0, n_rows, (uint64_t)n_rows, &n_counted));
    assert_int_equal(n_pairs, N);
    assert_int_equal(n_counted, N);
    for (int64_t i = 0; i < n_rows * T; i++) {
        int32_t other = r.b.other[i];
        sums[i] = (float)i + 1;
        if (other < 0)
            continue;
        assert_int_equal(r.b.begin[other], other); /* where a document begins, whose other one is this */
        assert_int_equal(r.b.other[other], r.b.begin[i]);
        assert_int_equal(other / T, i / T);
        n_seen += r.b.begin[i] == i && other > i;
    }
    assert_int_equal(n_seen, N);
    assert_ok(tr_data_take_references(d, all, n_rows, &r.b, false, sums, 1));
    for (uint64_t i = 0; i < n_ref; i++)
        assert_true(ref[i] > 0);
    assert_ok(tr_data_fill(d, 0, n_rows, (uint64_t)n_rows, &r.b, &n_pairs));
    for (int64_t i = 0; i < n_rows * T; i++)
        assert_true(r.b.value[i] == (r.b.other[i] >= 0 && r.b.begin[i] == i ? sums[i] : 0));
    free(sums);
    free(all);
    rows_free(&r);
    tr_data_close(d);
    tr_str_release(&text);
    bench_release(&b);
}

/* Halves of 4 + 6 and 4 + 2 tokens, an end of text included, in rows of ever fewer tokens. */
/* A pair that is cut has the lengths that are left of it. */
static void targets_behind_the_shorter_answer_weigh_less(void **state)
{
    static const char text[] = "{\"prompt\": \"q\", \"chosen\": \"ab\", \"rejected\": \"cdefgh\"}\n";
    static const struct {
        int64_t row;
        const char *want; /* a digit for each token in front of a target, with 3 for the weight of a tail, else '.' */
    } cases[] = { { 32, "111.1113333." }, { 9, "111.1113." } };
    for (size_t k = 0; k < TR_COUNT_OF(cases); k++) {
        struct bench b;
        char got[40] = { 0 };
        int64_t n_pairs, n_tokens;
        bench_init(&b, *state);
        b.options.wants_pairs = b.options.weighs_tails = true;
        b.options.tail_weight = 0.375f;
        b.options.packing = TR_PACK_NONE;
        b.options.row_tokens = cases[k].row;
        struct tr_data *d = bench_open(&b, put_text(*state, "tail.jsonl", text));
        struct rows r = rows_new(1, cases[k].row);
        assert_ok(tr_data_fill(d, 0, 1, 1, &r.b, &n_pairs));
        assert_ok(tr_data_tokens(d, 0, 1, 1, &n_tokens));
        for (int64_t i = 0; i < cases[k].row; i++) {
            float w = r.b.weight[i];
            assert_true(w == 0 || w == 1 || w == 0.375f);
            assert_true((w == 0) == (r.b.targets[i] == TR_TARGET_NONE));
            if (i < n_tokens)
                got[i] = w == 0 ? '.' : w < 1 ? '3' : '1';
        }
        assert_string_equal(got, cases[k].want);
        rows_free(&r);
        tr_data_close(d);
        bench_release(&b);
    }
}

static void long_pairs_lose_their_ends(void **state)
{
    static const struct {
        int64_t row_tokens;
        const char *want;
        uint64_t n_lost;
    } cases[] = {
        { 16, "askaBCDEF!|askaZ!|", 0 }, /* the first letter of the answers is shared, and no prompt is given */
        { 14, "askaBCDE|askaZ!|", 0 },   { 12, "askaBC|askaZ!|", 0 }, { 10, "askaB|askaZ|", 0 }, { 9, "", 0 },
    };
    struct bench b;
    bench_init(&b, *state);
    const char *path = put_text(*state, "a.jsonl", "{\"chosen\": \"askabcdef\", \"rejected\": \"askaz\"}\n");
    b.options.wants_pairs = true;
    for (size_t i = 0; i < TR_COUNT_OF(cases); i++) {
        b.options.row_tokens = cases[i].row_tokens;
        b.options.packing = TR_PACK_NONE;
        struct tr_data *d = NULL;
        if (cases[i].want[0])
            assert_pairs(&b, path, cases[i].want);
        else
            assert_refused(tr_data_open(&path, 1, b.tokenizer, &b.options, &d), TR_USAGE,
                           "; it needs --sequence_length 16); give a larger --sequence_length");
    }
    bench_release(&b);
}

static void pairs_and_other_records_do_not_mix(void **state)
{
    struct bench b;
    struct tr_data *d = NULL;
    bench_init(&b, *state);
    const char *pair = put_text(*state, "a.jsonl", "{\"prompt\": \"p\", \"chosen\": \"a\", \"rejected\": \"b\"}\n");
    assert_refused(tr_data_open(&pair, 1, b.tokenizer, &b.options, &d), TR_USAGE, "--task dpo");
    b.options.wants_pairs = true;
    const char *text = put_text(*state, "b.jsonl", "{\"text\": \"abc\"}\n");
    assert_refused(tr_data_open(&text, 1, b.tokenizer, &b.options, &d), TR_USAGE, "no pairs of answers");
    b.options.packing = TR_PACK_STREAM;
    assert_refused(tr_data_open(&pair, 1, b.tokenizer, &b.options, &d), TR_USAGE, "packing stream");
    bench_release(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(pairs_become_two_documents),
        TEST(columns_become_conversations),
        TEST(rows_keep_pairs_together_and_count_them),
        TEST(targets_behind_the_shorter_answer_weigh_less),
        TEST(long_pairs_lose_their_ends),
        TEST(pairs_and_other_records_do_not_mix),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
