/* test_parts.c - conversations whose contents are lists of parts, from a file to token ids and targets: parts of OpenAI
 * ("text") and of LLaMA-Factory ("value") are read as the text that they hold, or not at all. */
#include "data/data_files.h"

#define EACH(content)                                                                                                  \
    "{% for m in messages %}<{{ m.role }}>" content ";{% endfor %}{% if add_generation_prompt %}<assistant>{% endif "  \
    "%}"
#define PRINTS EACH("{{ m.content }}")
#define FAILS  EACH("{{ '' + m.content }}")
#define DROPS  EACH("{% if m.content is string %}{{ m.content }}{% endif %}")
#define WRITES                                                                                                         \
    EACH("{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}({% if p.type == 'note' %}"     \
         "{{ p.note }}{% else %}{{ p.text }}{% endif %}){% endfor %}{% endif %}")
#define RICH                                                                                                           \
    EACH("{% if m.reasoning_content %}[{{ m.reasoning_content }}]{% endif %}{{ m.content }}"                           \
         "{% for c in m.tool_calls %}{{ c.function.name }}={{ c.function.arguments.at }}{% endfor %}")
#define JSON EACH("{% if m.role == 'tool' %}{{ m.content | tojson }}{% else %}{{ m.content }}{% endif %}")

#define TURN(role, content) "{\"role\": \"" role "\", \"content\": " content "}"
#define CHAT(asked, said)   "{\"messages\": [" TURN("user", asked) ", " TURN("assistant", said) "]}"
#define OPENAI(text)        "{\"type\": \"text\", \"text\": \"" text "\"}"
#define FACTORY(text)       "{\"type\": \"text\", \"value\": \"" text "\"}"
#define ASKED               "<user>how deep?;<assistant>"

static void reads(struct scratch *s, const char *template, const char *records, const char *want)
{
    struct bench b;
    struct tr_chat *chat = NULL;
    bench_init(&b, s);
    assert_ok(tr_chat_open(NULL, template, &chat));
    b.options.chat = chat;
    b.options.row_tokens = 512;
    assert_documents(&b, put_text(s, "a.jsonl", records), true, want);
    assert_int_equal(b.n_skips, 0);
    tr_chat_close(chat);
    bench_release(&b);
}

/* The second of two records is skipped as line 2 for this reason. */
static void refuses(struct scratch *s, const char *template, const char *record, const char *why)
{
    struct bench b;
    struct tr_chat *chat = NULL;
    struct tr_str text = { 0 };
    size_t n;
    bench_init(&b, s);
    assert_ok(tr_chat_open(NULL, template, &chat));
    b.options.chat = chat;
    b.options.row_tokens = 512;
    tr_str_addf(&text, "%s\n%s\n", CHAT("\"how?\"", "\"so.\""), record);
    struct tr_data *d = bench_open(&b, put_text(s, "a.jsonl", text.p));
    const struct tr_data_skip *skip = tr_data_skips(d, &n);
    assert_int_equal(n, 1);
    assert_int_equal(skip->line, 2);
    if (!strstr(skip->why, why))
        fail_msg("says: %s", skip->why);
    tr_data_close(d);
    tr_str_release(&text);
    tr_chat_close(chat);
    bench_release(&b);
}

static void parts_are_one_text_where_the_template_takes_texts(void **state)
{
    static const char *const templates[] = { PRINTS, FAILS, DROPS };
    static const char *const records[] = {
        CHAT("\"how deep?\"", "\"12 m.\""),
        CHAT("[" OPENAI("how ") ", " OPENAI("deep?") "]", "[" OPENAI("12 m.") "]"),
        CHAT("[" FACTORY("how ") ", " FACTORY("deep?") "]", "[" FACTORY("12 m.") "]"),
        CHAT("\"how deep?\"", "[" FACTORY("12") ", " OPENAI(" m.") "]"),
    };
    for (size_t t = 0; t < TR_COUNT_OF(templates); t++)
        for (size_t i = 0; i < TR_COUNT_OF(records); i++)
            reads(*state, templates[t], records[i], ASKED "12 M.;|");
    reads(*state, PRINTS, CHAT("[]", "[" OPENAI("12 m.") "]"), "<user>;<assistant>12 M.;|");
}

static char *documents_of(struct scratch *s, const char *template, const char *records)
{
    struct bench b;
    struct tr_chat *chat = NULL;
    bench_init(&b, s);
    assert_ok(tr_chat_open(TR_SOURCE_DIR "/tests/golden/chat/model", template, &chat));
    b.options.chat = chat;
    b.options.row_tokens = 4096;
    b.options.packing = TR_PACK_NONE;
    struct tr_data *d = bench_open(&b, put_text(s, "a.jsonl", records));
    char *out = documents(d, true);
    tr_data_close(d);
    tr_chat_close(chat);
    bench_release(&b);
    return out;
}

static void templates_of_models_write_parts_as_the_same_text(void **state)
{
#define TEMPLATE(name) TR_SOURCE_DIR "/tests/golden/chat/templates/" name ".jinja"
    static const char *const templates[] = { TEMPLATE("chatml"),      TEMPLATE("command_r"), TEMPLATE("content_parts"),
                                             TEMPLATE("deepseek_r1"), TEMPLATE("gemma2"),    TEMPLATE("hermes_tools"),
                                             TEMPLATE("llama31"),     TEMPLATE("mistral03"), TEMPLATE("phi3"),
                                             TEMPLATE("qwen25"),      TEMPLATE("qwen3"),     TEMPLATE("smollm2"),
                                             TEMPLATE("zephyr") };
    for (size_t i = 0; i < TR_COUNT_OF(templates); i++) {
        char *want = documents_of(*state, templates[i], CHAT("\"how deep?\"", "\"12 m.\""));
        char *openai = documents_of(*state, templates[i], CHAT("[" OPENAI("how deep?") "]", "[" OPENAI("12 m.") "]"));
        char *factory = documents_of(*state, templates[i],
                                     CHAT("[" FACTORY("how ") ", " FACTORY("deep?") "]", "[" FACTORY("12 m.") "]"));
        assert_string_equal(openai, want);
        assert_string_equal(factory, want);
        assert_non_null(strstr(want, "how deep?"));
        free(want);
        free(openai);
        free(factory);
    }
}

static void a_template_that_writes_parts_is_given_parts(void **state)
{
    reads(*state, WRITES, CHAT("[" OPENAI("how ") ", " OPENAI("deep?") "]", "[" OPENAI("12 m.") "]"),
          "<user>(how )(deep?);<assistant>(12 M.);|");
    reads(*state, WRITES, CHAT("[" FACTORY("how ") ", " FACTORY("deep?") "]", "[" FACTORY("12 m.") "]"),
          "<user>(how )(deep?);<assistant>(12 M.);|");
    reads(*state, WRITES, CHAT("\"how deep?\"", "[{\"type\": \"note\", \"note\": \"lead\"}, " OPENAI("12 m.") "]"),
          ASKED "(LEAD)(12 M.);|");
}

static void reasoning_and_calls_of_llama_factory_reach_the_template(void **state)
{
    reads(*state, RICH,
          CHAT("[" FACTORY("how deep?") "]", "[{\"type\": \"reasoning\", \"value\": \"look\"}, " FACTORY("12 m.") "]"),
          ASKED "[LOOK]12 M.;|");
    reads(*state, RICH,
          CHAT("[" FACTORY("how deep?") "]",
               "[{\"type\": \"tool_call\", \"value\": \"{\\\"name\\\": \\\"lead\\\", \\\"arguments\\\": {\\\"at\\\": "
               "\\\"bow\\\"}}\"}]"),
          ASKED "LEAD=BOW;|");
}

static void a_turn_whose_loss_weight_is_0_has_no_loss(void **state)
{
    reads(
        *state, PRINTS,
        "{\"messages\": [{\"role\": \"user\", \"content\": [" FACTORY(
            "a") "], \"loss_weight\": 0.0}, "
                 "{\"role\": \"assistant\", \"content\": [" FACTORY(
                     "b") "], \"loss_weight\": 0.0}, "
                          "{\"role\": \"user\", \"content\": [" FACTORY(
                              "c") "], \"loss_weight\": 0.0}, "
                                   "{\"role\": \"assistant\", \"content\": [" FACTORY("d") "], \"loss_weight\": 1.0}]}",
        "<user>a;<assistant>b;<user>c;<assistant>D;|");
}

static void results_of_tools_are_kept_where_the_template_writes_json(void **state)
{
#define CALLED(result)                                                                                                 \
    "{\"messages\": [" TURN("user", "\"how?\"") ", " TURN("tool", result) ", " TURN("assistant", "\"so.\"") "]}"
    reads(*state, JSON, CALLED("[12, 13]"), "<user>how?;<tool>[12, 13];<assistant>SO.;|");
    refuses(*state, PRINTS, CALLED("[12, 13]"), "turn 1: its content is a list that the chat template does not write");
}

static void other_parts_are_refused_by_type(void **state)
{
#define IMAGE "{\"type\": \"image_url\", \"value\": \"a.png\"}"
    refuses(*state, PRINTS, CHAT("[" IMAGE ", " FACTORY("how?") "]", "[" FACTORY("so.") "]"),
            "turn 0: its content has a part of type \"image_url\"");
    refuses(*state, WRITES, CHAT("[{\"type\": \"image\"}, " OPENAI("how?") "]", "\"so.\""), "of type");
    refuses(*state, PRINTS, CHAT("\"how?\"", "[{\"type\": \"refusal\", \"refusal\": \"no\"}]"),
            "turn 1: its content has a part of type");
    refuses(*state, PRINTS, CHAT("[{\"type\": \"text\"}]", "\"so.\""), "neither");
    refuses(*state, RICH, CHAT("\"how?\"", "[{\"type\": \"tool_call\", \"value\": \"no json\"}]"), "turn 1");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(parts_are_one_text_where_the_template_takes_texts),
        TEST(templates_of_models_write_parts_as_the_same_text),
        TEST(a_template_that_writes_parts_is_given_parts),
        TEST(reasoning_and_calls_of_llama_factory_reach_the_template),
        TEST(a_turn_whose_loss_weight_is_0_has_no_loss),
        TEST(results_of_tools_are_kept_where_the_template_writes_json),
        TEST(other_parts_are_refused_by_type),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
