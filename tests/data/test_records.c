/* test_records.c - every record shape becomes the right tokens with the right loss mask; wrong records are skipped with
 * their line. Targets are shown in upper case, a trained end of text as '!'. */
#include "data/data_files.h"

static void shapes_are_detected_and_masked(void **state)
{
    static const struct {
        const char *text, *want;
        enum tr_shape shape;
        enum tr_packing packing; /* automatic */
    } cases[] = {
        { "{\"text\": \"abc\"}\n{\"text\": \"d\"}\n", "aBC!|d!|", TR_SHAPE_TEXT, TR_PACK_STREAM },
        { "{\"prompt\": \"ask\", \"completion\": \"say\"}\n{\"prompt\": \"\", \"completion\": \"xy\"}\n",
          "askSAY!|xY!|", TR_SHAPE_COMPLETION, TR_PACK_BESTFIT },
        { "{\"text\": \"zz\", \"prompt\": \"ask\", \"completion\": \"say\"}\n", "askSAY!|", TR_SHAPE_COMPLETION,
          TR_PACK_BESTFIT },
        { "{\"input_ids\": [97, 98, 99, 256], \"labels\": [-100, -100, 99, 256]}\n{\"input_ids\": [97, 98]}\n",
          "abC!|aB|", TR_SHAPE_TOKENS, TR_PACK_BESTFIT },
        { "{\"segments\": [{\"label\": false, \"text\": \"ask\"}, {\"label\": true, \"text\": \"say\"}, {\"label\": 0, "
          "\"text\": \"so\"}, {\"label\": 1, \"text\": \"b<|endoftext|>\"}]}\n",
          "askSAYsoB!|", TR_SHAPE_INPUT_OUTPUT, TR_PACK_BESTFIT },
        /* an end of text that the record brings is there once */
        { "{\"text\": \"abc<|endoftext|>\"}\n", "aBC!|", TR_SHAPE_TEXT, TR_PACK_STREAM },
        { "{\"prompt\": \"ask\", \"completion\": \"say<|endoftext|>\"}\n", "askSAY!|", TR_SHAPE_COMPLETION,
          TR_PACK_BESTFIT },
        { "{\"input_ids\": [97, 98, 99, 100], \"completion_mask\": [0, 0, 1, 1], \"assistant_masks\": [1, 1, 0, "
          "true]}\n"
          "{\"input_ids\": [97, 98, 99], \"loss_mask\": [0, 1, 1], \"labels\": [97, -100, 99]}\n",
          "abcD|abC|", TR_SHAPE_TOKENS, TR_PACK_BESTFIT },
        { "{\"input_ids\": [97, 98], \"labels\": null, \"attention_mask\": [1, 1]}\n", "aB|", TR_SHAPE_TOKENS,
          TR_PACK_BESTFIT },
    };
    struct bench b;
    bench_init(&b, *state);
    for (size_t i = 0; i < TR_COUNT_OF(cases); i++) {
        size_t n;
        assert_documents(&b, put_text(*state, "a.jsonl", cases[i].text), true, cases[i].want);
        b.options.packing = TR_PACK_AUTO;
        struct tr_data *d = bench_open(&b, in_scratch(*state, "a.jsonl"));
        const struct tr_data_file *f = tr_data_files(d, &n);
        assert_int_equal(n, 1);
        assert_int_equal(f->shape, cases[i].shape);
        assert_int_equal(f->packing, cases[i].packing);
        assert_true(f->was_cached);
        tr_data_close(d);
    }
    assert_int_equal(b.n_skips, 0);
    bench_release(&b);
}

static void alpaca_without_a_template_uses_the_stanford_wording(void **state)
{
    struct bench b;
    bench_init(&b, *state);
    b.options.row_tokens = 400;
    assert_documents(&b,
                     put_text(*state, "a.jsonl",
                              "{\"instruction\": \"Q\", \"input\": \"\", \"output\": \"ok\", \"text\": \"no\"}\n"
                              "{\"instruction\": \"Q\", \"input\": \"I\", \"output\": \"ok\"}\n"
                              "{\"instruction\": \"Q\", \"output\": \"ok\", \"system\": \"S\", \"history\": "
                              "[[\"A\", \"B\"]]}\n"),
                     true,
                     "Below is an instruction that describes a task. Write a response that appropriately completes the "
                     "request.\n\n### Instruction:\nQ\n\n### Response:\nOK!|"
                     "Below is an instruction that describes a task, paired with an input that provides further "
                     "context. Write a response that appropriately completes the request.\n\n### "
                     "Instruction:\nQ\n\n### Input:\nI\n\n### Response:\nOK!|"
                     "S\n\n### Instruction:\nA\n\n### Response:\nB\n\n### Instruction:\nQ\n\n### Response:\nOK!|");
    bench_release(&b);
}

/* A tokenizer whose post-processor puts a token in front, as Llama's does: every text has it, once, never as a target.
 */
static void what_the_tokenizer_puts_in_front_begins_each_document(void **state)
{
    static const char slot[] = "\"post_processor\"";
    static const char with[] = "\"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": "
                               "{\"id\": \"<|endoftext|>\", \"type_id\": 0}}, {\"Sequence\": {\"id\": \"A\", "
                               "\"type_id\": 0}}], \"pair\": [], \"special_tokens\": {\"<|endoftext|>\": {\"id\": "
                               "\"<|endoftext|>\", \"ids\": [256], \"tokens\": [\"<|endoftext|>\"]}}}";
    struct bench b;
    struct tr_str json = { 0 };
    char *text = NULL;
    size_t n;
    bench_init(&b, *state);
    assert_ok(tr_file_read(in_scratch(*state, "tokenizer.json"), 1 << 20, &text, &n));
    const char *at = strstr(text, slot), *end = at ? strchr(at, '}') : NULL; /* a flat object */
    assert_non_null(end);
    tr_str_add(&json, text, (size_t)(at - text));
    tr_str_add(&json, with, sizeof with - 1);
    tr_str_add(&json, end + 1, strlen(end + 1));
    put_file(*state, "tokenizer.json", json.p, json.n);
    tr_tokenizer_close(b.tokenizer);
    assert_ok(tr_tokenizer_open(b.s->dir, &b.tokenizer));
    assert_documents(&b, put_text(*state, "a.jsonl", "{\"text\": \"ab\"}\n"), true, "$AB!|");
    assert_documents(&b, put_text(*state, "b.jsonl", "{\"prompt\": \"ab\", \"completion\": \"c\"}\n"), true, "$abC!|");
    assert_documents(&b, put_text(*state, "c.txt", "ab"), true, "$AB!|");
    /* a record that brings the token itself still has it once */
    assert_documents(&b, put_text(*state, "d.jsonl", "{\"text\": \"<|endoftext|>ab\"}\n"), true, "$AB!|");
    assert_documents(&b, put_text(*state, "e.jsonl", "{\"prompt\": \"<|endoftext|>ab\", \"completion\": \"c\"}\n"),
                     true, "$abC!|");
    free(text);
    tr_str_release(&json);
    bench_release(&b);
}

static void mask_all_trains_on_prompts_too_and_has_its_own_cache_entry(void **state)
{
    struct bench b;
    bench_init(&b, *state);
    const char *text = "{\"prompt\": \"ask\", \"completion\": \"say\"}\n";
    assert_documents(&b, put_text(*state, "a.jsonl", text), true, "askSAY!|");
    b.options.mask = TR_MASK_ALL;
    assert_documents(&b, in_scratch(*state, "a.jsonl"), true, "aSKSAY!|");
    b.options.mask = TR_MASK_ASSISTANT;
    assert_documents(&b, in_scratch(*state, "a.jsonl"), true, "askSAY!|");
    bench_release(&b);
}

#define U    "<|im_start|>user\n"
#define A    "<|im_start|>assistant\n"
#define E    "<|im_end|>\n"
#define E_ON "<|IM_END|>\n" /* trained */

static void conversations_go_through_the_chat_template(void **state)
{
    static const struct {
        const char *text, *want;
        enum tr_shape shape;
        enum tr_chat_mask mask;
    } cases[] = {
        { "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}, {\"role\": \"assistant\", \"content\": "
          "\"yo\"}]}\n",
          U "hi" E A "YO" E_ON "|", TR_SHAPE_MESSAGES, TR_MASK_ASSISTANT },
        { "{\"conversations\": [{\"from\": \"human\", \"value\": \"hi\"}, {\"from\": \"gpt\", \"value\": \"yo\"}, "
          "{\"from\": \"human\", \"value\": \"ok\"}, {\"from\": \"gpt\", \"value\": \"by\"}], \"system\": \"sys\"}\n",
          "<|im_start|>system\nsys" E U "hi" E A "YO" E_ON U "ok" E A "BY" E_ON "|", TR_SHAPE_SHAREGPT,
          TR_MASK_ASSISTANT },
        { "{\"conversations\": [{\"from\": \"human\", \"value\": \"hi\"}, {\"from\": \"gpt\", \"value\": \"yo\"}, "
          "{\"from\": \"human\", \"value\": \"ok\"}, {\"from\": \"gpt\", \"value\": \"by\"}]}\n",
          U "hi" E A "yo" E U "ok" E A "BY" E_ON "|", TR_SHAPE_SHAREGPT, TR_MASK_LAST },
        { "{\"prompt\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\"}, "
          "{\"role\": \"user\", \"content\": \"c\"}], \"completion\": [{\"role\": \"assistant\", \"content\": "
          "\"d\"}]}\n",
          U "a" E A "b" E U "c" E A "D" E_ON "|", TR_SHAPE_CHAT_COMPLETION, TR_MASK_ASSISTANT },
        { "{\"prompt\": [{\"role\": \"user\", \"content\": \"a\"}], \"completion\": [{\"role\": \"assistant\", "
          "\"content\": \"b\"}, {\"role\": \"user\", \"content\": \"c\"}, {\"role\": \"assistant\", \"content\": "
          "\"d\"}]}\n",
          U "a" E A "B" E_ON U "c" E A "D" E_ON "|", TR_SHAPE_CHAT_COMPLETION, TR_MASK_ASSISTANT },
        { "{\"prompt\": [{\"role\": \"user\", \"content\": \"a\"}], \"completion\": [{\"role\": \"assistant\", "
          "\"content\": \"b\"}, {\"role\": \"user\", \"content\": \"c\"}, {\"role\": \"assistant\", \"content\": "
          "\"d\"}]}\n",
          U "a" E A "B<|IM_END|>\n<|IM_START|>USER\nC<|IM_END|>\n<|IM_START|>ASSISTANT\nD<|IM_END|>\n|",
          TR_SHAPE_CHAT_COMPLETION, TR_MASK_COMPLETION },
        /* tools, a call, its answer and reasoning, with the nulls of a table */
        { "{\"messages\": [{\"role\": \"user\", \"content\": \"a\", \"tool_calls\": null}, {\"role\": \"assistant\", "
          "\"content\": null, \"tool_calls\": [{\"function\": {\"name\": \"f\", \"arguments\": {\"x\": 1.0, \"y\": "
          "null}}}]}, {\"role\": \"tool\", \"content\": \"b\"}, {\"role\": \"assistant\", \"content\": \"c\", "
          "\"reasoning_content\": \"r\"}], \"tools\": \"[{\\\"name\\\": \\\"f\\\"}]\"}\n",
          "<|im_start|>system\nFunctions that can be called:\n<tools>\n{\"name\": \"f\"}\n</tools>\nA call is a JSON "
          "object "
          "with name and arguments between <tool_call> and </tool_call>.<|im_end|>\n" U "a" E A
          "<TOOL_CALL>\n{\"NAME\": \"F\", \"ARGUMENTS\": {\"X\": 1.0}}\n</TOOL_CALL>" E_ON "<|im_start|>tool\nb" E A
          "<THINK>\nR\n</THINK>\n\nC" E_ON "|",
          TR_SHAPE_MESSAGES, TR_MASK_ASSISTANT },
        { "{\"instruction\": \"do\", \"input\": \"it\", \"output\": \"yo\", \"history\": [[\"a\", \"b\"]]}\n",
          U "a" E A "B" E_ON U "do\nit" E A "YO" E_ON "|", TR_SHAPE_ALPACA, TR_MASK_ASSISTANT },
    };
    struct bench b;
    struct tr_chat *chat = NULL;
    bench_init(&b, *state);
    assert_ok(tr_chat_open(NULL, "chatml", &chat));
    b.options.chat = chat;
    b.options.row_tokens = 600;
    for (size_t i = 0; i < TR_COUNT_OF(cases); i++) {
        size_t n;
        b.options.mask = cases[i].mask;
        assert_documents(&b, put_text(*state, "a.jsonl", cases[i].text), true, cases[i].want);
        struct tr_data *d = bench_open(&b, b.s->path);
        assert_int_equal(tr_data_files(d, &n)->shape, cases[i].shape);
        tr_data_close(d);
    }
    b.options.mask = TR_MASK_ASSISTANT;
    static const char *const bad[] = {
        "{\"conversations\": [{\"from\": \"alien\", \"value\": \"x\"}]}",
        "{\"conversations\": []}",
        "{\"conversations\": [5]}",
        "{\"conversations\": [{\"from\": \"human\", \"value\": \"only asks\"}]}",
        "{\"conversations\": {}, \"tools\": 4}",
    };
    for (size_t i = 0; i < TR_COUNT_OF(bad); i++) {
        char text[512];
        size_t n;
        snprintf(text, sizeof text, "%s%s\n", cases[1].text, bad[i]);
        struct tr_data *d = bench_open(&b, put_text(*state, "b.jsonl", text));
        assert_int_equal(tr_data_files(d, &n)->n_skipped, 1);
        tr_data_close(d);
    }
    tr_chat_close(chat);
    bench_release(&b);
}

/* Another template or mask is another document, so its tokens are not taken from the cache of this one. */
static void the_cache_knows_the_template_and_the_mask(void **state)
{
    struct bench b;
    struct tr_data_info info[4];
    static const struct {
        const char *name;
        enum tr_chat_mask mask;
    } cases[] = { { "chatml", TR_MASK_ASSISTANT },
                  { "chatml", TR_MASK_ASSISTANT },
                  { "llama3", TR_MASK_ASSISTANT },
                  { "chatml", TR_MASK_LAST } };
    bench_init(&b, *state);
    put_text(*state, "a.jsonl",
             "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}, {\"role\": \"assistant\", \"content\": "
             "\"yo\"}]}\n");
    for (int i = 0; i < 4; i++) {
        struct tr_chat *chat = NULL;
        size_t n;
        assert_ok(tr_chat_open(b.s->dir, cases[i].name, &chat));
        b.options.chat = chat;
        b.options.mask = cases[i].mask;
        struct tr_data *d = bench_open(&b, in_scratch(*state, "a.jsonl"));
        tr_data_get_info(d, &info[i]);
        assert_int_equal(tr_data_files(d, &n)->was_cached, i == 1);
        tr_data_close(d);
        tr_chat_close(chat);
    }
    assert_true(tr_hash_eq(info[0].hash, info[1].hash));
    assert_false(tr_hash_eq(info[0].hash, info[2].hash));
    bench_release(&b);
}

/* Each record must have the shape of the first; what has not is skipped, and the reason names the member. */
static void records_of_another_shape_are_skipped_with_line_and_reason(void **state)
{
    static const struct {
        const char *line, *why;
        const char *first; /* of the file */
    } cases[] = {
        { "{\"text\": \"x\"}", "\"prompt\" is missing", "{\"prompt\": \"a\", \"completion\": \"b\"}" },
        { "{\"prompt\": \"x\", \"completion\": 5}", "\"completion\" is not a string",
          "{\"prompt\": \"a\", \"completion\": \"b\"}" },
        { "{\"prompt\": \"x\", \"completion\": \"\"}", "\"completion\" is empty",
          "{\"prompt\": \"a\", \"completion\": \"b\"}" },
        { "{\"instruction\": \"x\"}", "\"output\" is missing", "{\"instruction\": \"a\", \"output\": \"b\"}" },
        { "{\"instruction\": \"x\", \"output\": \"y\", \"history\": [[\"a\"]]}", "\"history\"",
          "{\"instruction\": \"a\", \"output\": \"b\"}" },
        { "{\"input_ids\": []}", "\"input_ids\" is empty", "{\"input_ids\": [1, 2]}" },
        { "{\"input_ids\": 7}", "\"input_ids\" is not a list", "{\"input_ids\": [1, 2]}" },
        { "{\"input_ids\": [1.5, 2]}", "\"input_ids\" at 0 is not a token id", "{\"input_ids\": [1, 2]}" },
        { "{\"input_ids\": [1, -2]}", "\"input_ids\" at 1 is not a token id", "{\"input_ids\": [1, 2]}" },
        { "{\"input_ids\": [1, 2], \"labels\": [1]}", "not as long as the 2", "{\"input_ids\": [1, 2]}" },
        { "{\"input_ids\": [1, 2], \"labels\": [1, 9]}", "\"labels\" at 1", "{\"input_ids\": [1, 2]}" },
        { "{\"input_ids\": [1, 2], \"labels\": [1, -100]}", "no token of the record has a loss",
          "{\"input_ids\": [1, 2]}" },
        { "{\"input_ids\": [1, 2], \"completion_mask\": [1]}", "\"completion_mask\" is not as long as the 2",
          "{\"input_ids\": [1, 2]}" },
        { "{\"input_ids\": [1, 2], \"loss_mask\": [1, 0.5]}", "\"loss_mask\" at 1 is neither 0 nor 1",
          "{\"input_ids\": [1, 2]}" },
        { "{\"input_ids\": [1, 2], \"attention_mask\": [1, 0]}", "without padding", "{\"input_ids\": [1, 2]}" },
    };
    struct bench b;
    bench_init(&b, *state);
    for (size_t i = 0; i < TR_COUNT_OF(cases); i++) {
        char text[512];
        size_t n;
        snprintf(text, sizeof text, "%s\n%s\n", cases[i].first, cases[i].line);
        put_text(*state, "a.jsonl", text);
        for (int again = 0; again < 2; again++) { /* also from the cache */
            struct tr_data *d = bench_open(&b, b.s->path);
            const struct tr_data_skip *skips = tr_data_skips(d, &n);
            assert_int_equal(n, 1);
            assert_int_equal(skips[0].line, 2);
            assert_string_equal(skips[0].path, b.s->path);
            if (!strstr(skips[0].why, cases[i].why))
                fail_msg("%s: says %s, not %s", cases[i].line, skips[0].why, cases[i].why);
            assert_int_equal(tr_data_files(d, &n)->n_skipped, 1);
            tr_data_close(d);
        }
    }
    assert_int_equal(b.n_skips, TR_COUNT_OF(cases));
    bench_release(&b);
}

static void a_given_shape_wins_over_detection(void **state)
{
    struct bench b;
    bench_init(&b, *state);
    const char *text = "{\"prompt\": \"ask\", \"completion\": \"say\", \"text\": \"tt\", \"body\": \"bb\"}\n";
    b.options.shape = TR_SHAPE_TEXT;
    assert_documents(&b, put_text(*state, "a.jsonl", text), true, "tT!|");
    b.options.shape = TR_SHAPE_AUTO;
    b.options.text_key = "body";
    assert_documents(&b, in_scratch(*state, "a.jsonl"), true, "bB!|");
    b.options.shape = TR_SHAPE_ALPACA;
    struct tr_data *d = NULL;
    const char *path = b.s->path;
    assert_refused(tr_data_open(&path, 1, b.tokenizer, &b.options, &d), TR_USAGE, "text_key body");
    bench_release(&b);
}

/* The first 20 are kept, all are counted, and the order is that of the lines whatever the threads do. */
static void the_first_skips_are_kept_in_order(void **state)
{
    struct bench b;
    struct tr_str text = { 0 };
    size_t n;
    bench_init(&b, *state);
    for (int i = 1; i <= 3000; i++)
        tr_str_addf(&text, i % 50 == 0 ? "bad %d\n" : "{\"text\": \"document %d\"}\n", i);
    struct tr_data *d = bench_open(&b, put_file(*state, "a.jsonl", text.p, text.n));
    const struct tr_data_skip *skips = tr_data_skips(d, &n);
    assert_int_equal(n, TR_DATA_KEPT_SKIPS);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(skips[i].line, 50 * (int64_t)(i + 1));
    assert_int_equal(b.n_skips, 60);
    tr_data_close(d);
    tr_str_release(&text);
    bench_release(&b);
}

/* Every record of the file below is where it belongs. */
static void check_documents(const struct tr_data *d, int n_lines)
{
    struct rows r = rows_new(1, tr_data_row_tokens(d));
    uint64_t g = 0;
    for (int i = 0; i < n_lines; i++) {
        char want[256];
        int64_t n_targets;
        if (i % 777 == 5)
            continue;
        int n = snprintf(want, sizeof want, "p%dc%0*d", i, i % 97 + 1, i);
        assert_ok(tr_data_fill(d, g++, 1, UINT64_MAX, &r.b, &n_targets));
        for (int k = 0; k < n; k++)
            assert_int_equal(r.b.tokens[k], want[k]);
        assert_int_equal(r.b.tokens[n], 256);
    }
    assert_int_equal(g, tr_data_rows(d));
    rows_free(&r);
}

static void the_number_of_threads_does_not_change_a_byte(void **state)
{
    struct bench b;
    struct tr_str text = { 0 };
    struct tr_hash128 first = { 0 };
    bench_init(&b, *state);
    for (int i = 0; i < 20000; i++) /* more than one task, less than one batch; then more than one batch */
        tr_str_addf(&text, i % 777 == 5 ? "x\n" : "{\"prompt\": \"p%d\", \"completion\": \"c%0*d\"}\n", i, i % 97 + 1,
                    i);
    assert_true(text.n > 1 << 20);
    put_file(*state, "a.jsonl", text.p, text.n);
    static const int threads[] = { 1, 2, 5 };
    b.options.packing = TR_PACK_NONE;
    b.options.row_tokens = 128;
    for (size_t i = 0; i < TR_COUNT_OF(threads); i++) {
        struct tr_data_info info;
        b.options.n_threads = threads[i];
        assert_ok(tr_remove_tree(b.cache));
        struct tr_data *d = bench_open(&b, in_scratch(*state, "a.jsonl"));
        tr_data_get_info(d, &info);
        if (i == 0) {
            first = info.hash;
            check_documents(d, 20000);
        }
        assert_true(tr_hash_eq(first, info.hash)); /* it covers the bytes of every shard */
        tr_data_close(d);
    }
    tr_str_release(&text);
    bench_release(&b);
}

/* The target of the last token of "abc" has weight 0.5 x 3, that of the one before it 2 x 3; counting and filling
 * agree, and a data set that does not weigh counts targets. */
static void weights_reach_the_batch_and_are_what_the_loss_is_divided_by(void **state)
{
    static const char text[] =
        "{\"input_ids\": [97, 98, 99, 100], \"loss_weights\": [9, 2, 0.5, 0], \"loss_weight\": 3}\n";
    struct bench b;
    bench_init(&b, *state);
    b.options.packing = TR_PACK_NONE;
    b.options.reads_weights = true;
    for (int weighs = 0; weighs < 2; weighs++) {
        int64_t n_filled = 0, n_counted = 0, want = weighs ? 15 * (int64_t)TR_WEIGHT_ONE / 2 : 2;
        b.options.weighs = weighs;
        struct rows r = rows_new(1, b.options.row_tokens);
        struct tr_data *d = bench_open(&b, put_text(*state, "w.jsonl", text));
        assert_ok(tr_data_fill(d, 0, 1, 1, &r.b, &n_filled));
        assert_ok(tr_data_count(d, 0, 1, 1, &n_counted));
        assert_int_equal(n_filled, want);
        assert_int_equal(n_counted, want);
        assert_true(r.b.weight[0] == (float)(weighs * 6 * TR_WEIGHT_ONE));
        assert_true(r.b.weight[1] == (float)weighs * 1.5f * (float)TR_WEIGHT_ONE);
        assert_int_equal(r.b.targets[2], TR_TARGET_NONE);
        for (int64_t i = 2; i < b.options.row_tokens; i++)
            assert_true(r.b.weight[i] == 0);
        tr_data_close(d);
        rows_free(&r);
    }
    b.options.reads_weights = b.options.weighs = false;
    struct tr_data *d = NULL;
    const char *path = in_scratch(*state, "w.jsonl");
    assert_refused(tr_data_open(&path, 1, b.tokenizer, &b.options, &d), TR_USAGE, "with --loss_weights");
    bench_release(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(shapes_are_detected_and_masked),
        TEST(alpaca_without_a_template_uses_the_stanford_wording),
        TEST(what_the_tokenizer_puts_in_front_begins_each_document),
        TEST(mask_all_trains_on_prompts_too_and_has_its_own_cache_entry),
        TEST(conversations_go_through_the_chat_template),
        TEST(the_cache_knows_the_template_and_the_mask),
        TEST(records_of_another_shape_are_skipped_with_line_and_reason),
        TEST(a_given_shape_wins_over_detection),
        TEST(weights_reach_the_batch_and_are_what_the_loss_is_divided_by),
        TEST(the_first_skips_are_kept_in_order),
        TEST(the_number_of_threads_does_not_change_a_byte),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
