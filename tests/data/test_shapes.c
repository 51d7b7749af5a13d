/* test_shapes.c - records of every shape, from a file to token ids and targets, equal what the tool that defines the
 * shape makes of them: results of TRL and axolotl, recorded by tests/golden/shapes/make_shapes.py, and of
 * LLaMA-Factory, recorded by make_llamafactory.py. */
#include "data/data_files.h"

#define GOLDEN TR_SOURCE_DIR "/tests/golden/"

static const cJSON *at(const cJSON *o, const char *key)
{
    return cJSON_GetObjectItemCaseSensitive(o, key);
}

static enum tr_chat_mask mask_of(const char *word)
{
    static const char *const words[] = { "assistant", "last", "completion", "all" };
    for (int i = 0; i < 4; i++)
        if (strcmp(words[i], word) == 0)
            return (enum tr_chat_mask)i;
    fail_msg("%s", word);
    return TR_MASK_ALL;
}

static const char *write_records(struct scratch *s, const cJSON *records)
{
    struct tr_str text = { 0 };
    const cJSON *r;
    cJSON_ArrayForEach(r, records)
    {
        char *line = cJSON_PrintUnformatted(r);
        tr_str_addf(&text, "%s\n", line);
        cJSON_free(line);
    }
    put_file(s, "a.jsonl", text.p, text.n);
    tr_str_release(&text);
    return s->path;
}

/* The first token of a document is never a target, because nothing precedes it. */
static void check_row(const char *name, const struct tr_batch *b, const cJSON *want)
{
    const cJSON *id = at(want, "ids")->child, *label = at(want, "labels")->child;
    for (size_t i = 0; id; i++, id = id->next, label = label->next) {
        int32_t target = i > 0 ? b->targets[i - 1] : TR_TARGET_NONE;
        if (b->tokens[i] != (int32_t)id->valuedouble)
            fail_msg("%s: id %zu is %d, not %d", name, i, b->tokens[i], (int)id->valuedouble);
        if (i > 0 && target != (int32_t)label->valuedouble)
            fail_msg("%s: target %zu is %d, not %d", name, i, target, (int)label->valuedouble);
    }
}

static void check_case(struct bench *b, const cJSON *c)
{
    enum { T = 2048 };
    const char *name = at(c, "name")->valuestring;
    char *map = cJSON_IsObject(at(c, "map")) ? cJSON_PrintUnformatted(at(c, "map")) : NULL;
    const char *const maps[] = { map };
    struct rows r = rows_new(1, T);
    const cJSON *want;
    uint64_t g = 0;
    int64_t n_targets;
    b->options.maps = maps;
    b->options.mask = mask_of(at(c, "mask")->valuestring);
    b->options.row_tokens = T;
    b->options.packing = TR_PACK_NONE;
    struct tr_data *d = bench_open(b, write_records(b->s, at(c, "records")));
    if (tr_data_rows(d) != (uint64_t)cJSON_GetArraySize(at(c, "rows")))
        fail_msg("%s: %d rows", name, (int)tr_data_rows(d));
    cJSON_ArrayForEach(want, at(c, "rows"))
    {
        assert_ok(tr_data_fill(d, g, 1, tr_data_rows(d), &r.b, &n_targets));
        assert_int_equal(r.b.targets[cJSON_GetArraySize(at(want, "ids")) - 1], TR_TARGET_NONE);
        check_row(name, &r.b, want);
        g++;
    }
    tr_data_close(d);
    rows_free(&r);
    cJSON_free(map);
}

static void check_file(void **state, const char *file, int n_cases)
{
    struct bench b;
    struct tr_chat *chat = NULL;
    cJSON *cases = NULL;
    const cJSON *c;
    int n = 0;
    bench_init(&b, *state);
    tr_tokenizer_close(b.tokenizer);
    assert_ok(tr_tokenizer_open(GOLDEN "chat/model", &b.tokenizer));
    assert_ok(tr_chat_open(GOLDEN "chat/model", "chatml", &chat));
    assert_ok(tr_json_load(file, 1 << 22, &cases));
    b.options.chat = chat;
    b.options.vocab_size = tr_tokenizer_vocab_size(b.tokenizer);
    cJSON_ArrayForEach(c, cases)
    {
        check_case(&b, c);
        n++;
    }
    assert_int_equal(n, n_cases);
    assert_int_equal(b.n_skips, 0);
    cJSON_Delete(cases);
    tr_chat_close(chat);
    bench_release(&b);
}

static void records_are_read_as_by_the_tool_that_defines_them(void **state)
{
    check_file(state, GOLDEN "shapes/shapes.json", 30);
}

static void records_of_llama_factory_are_read_as_there(void **state)
{
    check_file(state, GOLDEN "shapes/llamafactory.json", 9);
}

int main(void)
{
    const struct CMUnitTest tests[] = { TEST(records_are_read_as_by_the_tool_that_defines_them),
                                        TEST(records_of_llama_factory_are_read_as_there) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
