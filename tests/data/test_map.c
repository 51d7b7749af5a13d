/* test_map.c - records with other names are read as the map of their source says; a map with a slip is refused. Targets
 * are shown in upper case, a trained end of text as '!'. */
#include "data/data_files.h"

#define U    "<|im_start|>user\n"
#define A    "<|im_start|>assistant\n"
#define S    "<|im_start|>system\n"
#define E    "<|im_end|>\n"
#define E_ON "<|IM_END|>\n" /* trained */

static void columns_messages_and_roles_are_renamed(void **state)
{
    static const struct {
        const char *map, *text, *want;
        enum tr_shape shape;
    } cases[] = {
        { "{\"columns\":{\"text\":\"body\"}}", "{\"body\": \"abc\", \"text\": \"no\", \"messages\": 1}\n", "aBC!|",
          TR_SHAPE_TEXT },
        { "{\"columns\":{\"prompt\":\"completion\",\"completion\":\"prompt\"}}",
          "{\"completion\": \"ask\", \"prompt\": \"say\"}\n", "askSAY!|", TR_SHAPE_COMPLETION },
        { "{\"columns\":{\"messages\":\"dialog\"},\"message\":{\"role\":\"speaker\",\"content\":\"utterance\"},"
          "\"roles\":{\"user\":\"client\",\"assistant\":[\"bot\",\"agent\"]}}",
          "{\"dialog\": [{\"speaker\": \"client\", \"utterance\": \"a\"}, {\"speaker\": \"bot\", \"utterance\": "
          "\"b\"}, "
          "{\"speaker\": \"human\", \"utterance\": \"c\"}, {\"speaker\": \"agent\", \"utterance\": \"d\"}]}\n",
          U "a" E A "B" E_ON U "c" E A "D" E_ON "|", TR_SHAPE_MESSAGES },
        { "{\"columns\":{\"messages\":\"conversations\",\"system\":\"sys\"},\"message\":{\"role\":\"from\","
          "\"content\":\"value\"},\"system\":\"none\"}",
          "{\"conversations\": [{\"from\": \"human\", \"value\": \"a\"}, {\"from\": \"gpt\", \"value\": \"b\"}], "
          "\"sys\": "
          "\"be\"}\n"
          "{\"conversations\": [{\"from\": \"human\", \"value\": \"a\"}, {\"from\": \"gpt\", \"value\": \"b\"}]}\n",
          S "be" E U "a" E A "B" E_ON "|" S "none" E U "a" E A "B" E_ON "|", TR_SHAPE_MESSAGES },
        { "{\"format\":\"sharegpt\",\"columns\":{\"messages\":\"talk\"}}",
          "{\"talk\": [{\"from\": \"human\", \"value\": \"a\"}, {\"from\": \"gpt\", \"value\": \"b\"}]}\n",
          U "a" E A "B" E_ON "|", TR_SHAPE_SHAREGPT },
        { "{\"message\":{\"train\":\"weight\"}}",
          "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\", "
          "\"weight\": 0}, {\"role\": \"user\", \"content\": \"c\"}, {\"role\": \"assistant\", \"content\": \"d\", "
          "\"weight\": 1}]}\n",
          U "a" E A "b" E U "c" E A "D" E_ON "|", TR_SHAPE_MESSAGES },
        { "{\"train_roles\":[\"user\"]}",
          "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\"}]}\n",
          U "A" E_ON A "b" E "|", TR_SHAPE_MESSAGES },
        { "{\"roles\":{\"system\":null}}",
          "{\"messages\": [{\"role\": \"system\", \"content\": \"be\"}, {\"role\": \"user\", \"content\": \"a\"}, "
          "{\"role\": "
          "\"assistant\", \"content\": \"b\"}]}\n",
          U "a" E A "B" E_ON "|", TR_SHAPE_MESSAGES },
        { "{\"roles\":{\"system\":null,\"tool\":null}}",
          "{\"conversations\": [{\"from\": \"system\", \"value\": \"be\"}, {\"from\": \"human\", \"value\": \"a\"}, "
          "{\"from\": \"observation\", \"value\": \"x\"}, {\"from\": \"gpt\", \"value\": \"b\"}]}\n",
          U "a" E A "B" E_ON "|", TR_SHAPE_SHAREGPT },
        { "{\"format\":\"sharegpt\",\"columns\":{\"messages\":\"talk\"},\"roles\":{\"system\":null}}",
          "{\"talk\": [{\"from\": \"system\", \"value\": \"be\"}, {\"from\": \"human\", \"value\": \"a\"}, "
          "{\"from\": \"gpt\", \"value\": \"b\"}]}\n",
          U "a" E A "B" E_ON "|", TR_SHAPE_SHAREGPT },
        { "{\"columns\":{\"messages\":\"talk\"},\"message\":{\"role\":\"who\",\"content\":\"what\"},\"roles\":{"
          "\"system\":null,"
          "\"user\":\"client\"}}",
          "{\"talk\": [{\"who\": \"system\", \"what\": \"be\"}, {\"who\": \"client\", \"what\": \"a\"}, {\"who\": "
          "\"gpt\", "
          "\"what\": \"b\"}]}\n",
          U "a" E A "B" E_ON "|", TR_SHAPE_MESSAGES },
        { "{\"columns\":{\"instruction\":\"q\",\"output\":\"r\",\"input\":null}}",
          "{\"q\": \"do\", \"r\": \"ok\", \"input\": \"not read\"}\n", U "do" E A "OK" E_ON "|", TR_SHAPE_ALPACA },
    };
    struct bench b;
    struct tr_chat *chat = NULL;
    bench_init(&b, *state);
    assert_ok(tr_chat_open(NULL, "chatml", &chat));
    b.options.chat = chat;
    b.options.row_tokens = 300;
    for (size_t i = 0; i < TR_COUNT_OF(cases); i++) {
        size_t n;
        b.options.maps = &cases[i].map;
        assert_documents(&b, put_text(*state, "a.jsonl", cases[i].text), true, cases[i].want);
        struct tr_data *d = bench_open(&b, in_scratch(*state, "a.jsonl"));
        assert_int_equal(tr_data_files(d, &n)->shape, cases[i].shape);
        tr_data_close(d);
    }
    assert_int_equal(b.n_skips, 0);
    tr_chat_close(chat);
    bench_release(&b);
}

/* A prompt format is the text of the prompt even if the model has a chat template; each map has tokens of its own. */
static void prompts_are_written_by_the_formats_of_the_source(void **state)
{
    static const struct {
        const char *map, *want;
    } cases[] = {
        { "{\"prompt_format\":\"q:{instruction} {input} a:\",\"no_input_format\":\"q:{instruction} a:\"}",
          "q:x y a:OK!|q:z a:OK!|" },
        { "{\"prompt_format\":\"{{{instruction}}}\",\"system_format\":\"s:{system} \",\"output_format\":\"is "
          "{output}\"}",
          "{x}IS OK!|s:sys {z}IS OK!|" },
        { "{\"prompt_format\":\"{instruction}\",\"system\":\"def\",\"system_format\":\"{system} \"}",
          "def xOK!|sys zOK!|" },
    };
    struct bench b;
    struct tr_chat *chat = NULL;
    bench_init(&b, *state);
    assert_ok(tr_chat_open(NULL, "chatml", &chat));
    b.options.chat = chat;
    put_text(*state, "a.jsonl",
             "{\"instruction\": \"x\", \"input\": \"y\", \"output\": \"ok\"}\n"
             "{\"instruction\": \"z\", \"input\": \"\", \"output\": \"ok\", \"system\": \"sys\"}\n");
    for (size_t i = 0; i < TR_COUNT_OF(cases); i++) {
        b.options.maps = &cases[i].map;
        assert_documents(&b, in_scratch(*state, "a.jsonl"), true, cases[i].want);
    }
    assert_int_equal(b.n_skips, 0);
    tr_chat_close(chat);
    bench_release(&b);
}

static void slips_in_a_map_are_refused_with_the_nearest_name(void **state)
{
    static const char *const bad[][2] = {
        { "{\"colums\":{}}", "did you mean \"columns\"" },
        { "{\"columns\":{\"mesages\":\"x\"}}", "did you mean \"messages\"" },
        { "{\"columns\":{\"text\":3}}", "\"columns\" is not an object of names" },
        { "{\"columns\":[]}", "\"columns\" is not an object of names" },
        { "{\"roles\":{\"asistant\":\"x\"}}", "did you mean \"assistant\"" },
        { "{\"roles\":{\"user\":[1]}}", "\"roles\" is not" },
        { "{\"format\":\"alpacca\"}", "did you mean \"alpaca\"" },
        { "{\"format\":\"text\",\"prompt_format\":\"x\"}", "\"prompt_format\" is of records of format alpaca" },
        { "{\"output_format\":\"x\"}", "need \"prompt_format\"" },
        { "[]", "not an object" },
        { "{", "data:1:" },
    };
    struct bench b;
    struct tr_data *d = NULL;
    bench_init(&b, *state);
    const char *path = put_text(*state, "a.jsonl", "{\"text\": \"abc\"}\n");
    for (size_t i = 0; i < TR_COUNT_OF(bad); i++) {
        b.options.maps = &bad[i][0];
        assert_refused(tr_data_open(&path, 1, b.tokenizer, &b.options, &d), TR_USAGE, bad[i][1]);
    }
    bench_release(&b);
}

/* A record that the map does not fit is skipped with the reason. */
static void records_that_do_not_fit_the_map_are_skipped(void **state)
{
    static const char map[] = "{\"prompt_format\":\"{question}\"}", *const maps[] = { map };
    struct bench b;
    bench_init(&b, *state);
    b.options.maps = maps;
    assert_documents(&b,
                     put_text(*state, "a.jsonl",
                              "{\"question\": \"q\", \"output\": \"ok\"}\n{\"output\": \"ok\"}\n"
                              "{\"question\": [1], \"output\": \"ok\"}\n{\"question\": \"q\", \"output\": \"\"}\n"),
                     true, "qOK!|");
    assert_int_equal(b.n_skips, 3);
    bench_release(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(columns_messages_and_roles_are_renamed),
        TEST(prompts_are_written_by_the_formats_of_the_source),
        TEST(slips_in_a_map_are_refused_with_the_nearest_name),
        TEST(records_that_do_not_fit_the_map_are_skipped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
