/* test_random_records.c - records of random lengths and formats, with random options: no row is without a target, so no
 * batch is, and no answer is without its question. A question begins with '?' and its number in two letters, and all of
 * its answers have these two letters in upper case and nothing else, so that a row says which belongs to which. */
#include "data/data_files.h"

enum { N_CASES = 60, MOST_RECORDS = 24 };
enum kind { COMPLETION, ALPACA, MESSAGES, SHAREGPT, PAIRS, LABELS, N_KINDS };

static uint64_t draw(uint64_t *seed, uint64_t n)
{
    *seed = tr_rng_key(*seed, "draw", 0);
    return *seed % n;
}

/* Mostly short, sometimes longer than any row. */
static int length(uint64_t *seed)
{
    static const int most[] = { 3, 10, 40, 90, 300 };
    return 1 + (int)draw(seed, (uint64_t)most[draw(seed, TR_COUNT_OF(most))]);
}

static void add_question(struct tr_str *out, int i, int n)
{
    tr_str_addf(out, "?%c%c", 'a' + i / 26, 'a' + i % 26);
    for (; n > 0; n--)
        tr_str_add(out, ".", 1);
}

static void add_answer(struct tr_str *out, int i, int n)
{
    for (; n > 0; n--)
        tr_str_addf(out, "%c%c", 'A' + i / 26, 'A' + i % 26);
}

static void add_record(struct tr_str *out, enum kind kind, int i, uint64_t *seed)
{
    static const char *const parts[N_KINDS][4] = {
        [COMPLETION] = { "{\"prompt\": \"", "\", \"completion\": \"", "\"}\n" },
        [ALPACA] = { "{\"instruction\": \"", "\", \"output\": \"", "\"}\n" },
        [MESSAGES] = { "{\"messages\": [{\"role\": \"user\", \"content\": \"",
                       "\"}, {\"role\": \"assistant\", \"content\": \"", "\"}]}\n" },
        [SHAREGPT] = { "{\"conversations\": [{\"from\": \"human\", \"value\": \"",
                       "\"}, {\"from\": \"gpt\", \"value\": \"", "\"}]}\n" },
        [PAIRS] = { "{\"prompt\": \"", "\", \"chosen\": \"", "\", \"rejected\": \"", "\"}\n" },
        [LABELS] = { "{\"prompt\": \"", "\", \"label\": true, \"completion\": \"", "\"}\n" },
    };
    const char *const *p = parts[kind];
    tr_str_addf(out, "%s", p[0]);
    add_question(out, i, length(seed));
    tr_str_addf(out, "%s", p[1]);
    add_answer(out, i, length(seed));
    if (kind == PAIRS) {
        tr_str_addf(out, "%s", p[2]);
        add_answer(out, i, length(seed));
    }
    tr_str_addf(out, "%s", p[kind == PAIRS ? 3 : 2]);
}

/* The number of the question in the document at elements [begin, end); -1: the row was too short for all of its mark.
 */
static int question_of(const struct tr_batch *b, int64_t begin, int64_t end)
{
    for (int64_t i = begin; i + 2 < end; i++)
        if (b->tokens[i] == '?' && b->targets[i] == TR_TARGET_NONE && b->tokens[i + 1] >= 'a' &&
            b->tokens[i + 1] <= 'z' && b->tokens[i + 2] >= 'a' && b->tokens[i + 2] <= 'z')
            return 26 * (b->tokens[i + 1] - 'a') + b->tokens[i + 2] - 'a';
    return -1;
}

/* Every trained letter of the document belongs to its question. Returns its targets. */
static int64_t check_document(const struct tr_batch *b, int64_t begin, int64_t end, const char *what)
{
    int question = question_of(b, begin, end);
    int64_t n_targets = 0, n_prompt = 0;
    for (int64_t i = begin; i < end; i++) {
        int32_t id = b->targets[i];
        n_targets += id != TR_TARGET_NONE;
        n_prompt += n_targets == 0;
        if (question >= 0 && id >= 'A' && id <= 'Z' && id != 'A' + question / 26 && id != 'A' + question % 26)
            fail_msg("%s: %c is trained behind question %d", what, id, question);
    }
    if (n_targets > 0 && n_prompt == 0 && b->tokens[begin] >= 'A' && b->tokens[begin] <= 'Z')
        fail_msg("%s: the answer at element %d has no question", what, (int)begin);
    return n_targets;
}

static void check_rows(struct tr_data *d, const char *what)
{
    int64_t T = tr_data_row_tokens(d), n = 0;
    struct rows r = rows_new(1, T);
    for (uint64_t g = 0; g < tr_data_rows(d); g++) {
        assert_ok(tr_data_fill(d, g, 1, g + 1, &r.b, &n));
        int64_t n_targets = 0, n_tokens;
        assert_ok(tr_data_tokens(d, g, 1, g + 1, &n_tokens));
        for (int64_t i = 0, end; i < n_tokens; i = end) {
            for (end = i + 1; end < n_tokens && r.b.begin[end] == r.b.begin[i];)
                end++;
            n_targets += check_document(&r.b, i, end, what);
        }
        if (n_targets == 0 || n == 0)
            fail_msg("%s: row %" PRIu64 " has no target", what, g);
    }
    rows_free(&r);
}

static void no_row_without_target_and_no_answer_without_question(void **state)
{
    static const enum tr_long ways[] = { TR_LONG_FIT, TR_LONG_CUT, TR_LONG_DROP };
    struct tr_chat *chat = NULL;
    int n_open = 0;
    assert_ok(tr_chat_open(NULL, "chatml", &chat));
    for (uint64_t i = 0; i < N_CASES; i++) {
        uint64_t seed = tr_rng_key(41, "case", i);
        enum kind kind = (enum kind)draw(&seed, N_KINDS);
        int n_records = 2 + (int)draw(&seed, MOST_RECORDS - 1);
        struct tr_str text = { 0 };
        char what[160];
        struct bench b;
        struct tr_data *d = NULL;
        bench_init(&b, *state);
        for (int k = 0; k < n_records; k++)
            add_record(&text, kind, k, &seed);
        const char *path = put_text(*state, "a.jsonl", text.p);
        b.options.wants_pairs = kind == PAIRS;
        b.options.wants_labels = kind == LABELS;
        b.options.chat = kind == MESSAGES || kind == SHAREGPT || (kind == ALPACA && draw(&seed, 2)) ? chat : NULL;
        b.options.row_tokens =
            (int64_t)(kind == MESSAGES || kind == SHAREGPT || kind == ALPACA ? 80 : 12) + (int64_t)draw(&seed, 200);
        b.options.packing = draw(&seed, 2) ? TR_PACK_BESTFIT : TR_PACK_NONE;
        b.options.how_long = ways[draw(&seed, TR_COUNT_OF(ways))];
        b.options.shuffle = draw(&seed, 2);
        b.options.seed = seed;
        (void)snprintf(what, sizeof what, "case %d: kind %d, %d records, rows of %d, %s, long %d", (int)i, (int)kind,
                       n_records, (int)b.options.row_tokens, tr_packing_name(b.options.packing),
                       (int)b.options.how_long);
        enum tr_status st = tr_data_open(&path, 1, b.tokenizer, &b.options, &d);
        if (st == TR_OK)
            check_rows(d, what);
        else if (st != TR_USAGE || !strstr(tr_error_text(), "no document is left")) /* all of them were too long */
            fail_msg("%s: %s", what, tr_error_text());
        tr_error_clear();
        n_open += st == TR_OK;
        tr_data_close(d);
        tr_str_release(&text);
        bench_release(&b);
    }
    assert_true(n_open > N_CASES / 2);
    tr_chat_close(chat);
}

int main(void)
{
    const struct CMUnitTest tests[] = { TEST(no_row_without_target_and_no_answer_without_question) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
