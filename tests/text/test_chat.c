/* test_chat.c - conversations render as transformers renders them, over a grid of templates and conversations, and loss
 * masks equal those derived in Python from sentinels and HF offsets.
 *
 * TR_CHATS names another directory like tests/golden/chat: chat_parity.py makes one of a hundred published templates.
 */
#include "token/token_test.h"
#include "text/chat.h"
#include <unistd.h>

#define GOLDEN TR_SOURCE_DIR "/tests/golden/chat"

/* A file of the directory that renderings are compared with. */
static const char *chats_path(char out[TR_PATH_MAX], const char *name)
{
    const char *dir = getenv("TR_CHATS");
    assert_ok(tr_path_join(out, dir ? dir : GOLDEN, name));
    return out;
}

static const cJSON *at(const cJSON *o, const char *key)
{
    return cJSON_GetObjectItemCaseSensitive(o, key);
}

static cJSON *load_golden(void)
{
    char *text = NULL, path[TR_PATH_MAX];
    size_t n = 0;
    cJSON *doc = NULL;
    assert_ok(tr_file_read(chats_path(path, "chats.json"), 64 << 20, &text, &n));
    assert_ok(tr_chat_parse(text, n, "chats.json", &doc));
    free(text);
    return doc;
}

/* "builtin/x" by its name, others from templates/. */
static struct tr_chat *open_template(const char *name)
{
    struct tr_chat *c = NULL;
    char path[TR_PATH_MAX], file[128];
    bool is_builtin = strncmp(name, "builtin/", 8) == 0;
    assert_ok(tr_format(file, sizeof file, "templates/%s.jinja", name));
    assert_ok(tr_chat_open(GOLDEN "/model", is_builtin ? name + 8 : chats_path(path, file), &c));
    cJSON *date = cJSON_CreateString("26 Jul 2024");
    assert_ok(tr_chat_set(c, "date_string", date));
    cJSON_Delete(date);
    return c;
}

/* The {% generation %} blocks, in bytes; NULL: they are not compared. */
static bool same_spans(const struct tr_jinja_spans *got, const cJSON *want)
{
    size_t i = 0;
    const cJSON *x;
    cJSON_ArrayForEach(x, want)
    {
        if (i >= got->n || got->p[i].begin != (size_t)x->child->valuedouble ||
            got->p[i].end != (size_t)x->child->next->valuedouble)
            return false;
        i++;
    }
    return !want || i == got->n;
}

static int check_rendering(const cJSON *doc, const cJSON *row)
{
    const char *template = at(row, "template")->valuestring, *chat = at(row, "chat")->valuestring;
    const char *wanted = cJSON_GetStringValue(at(row, "out"));
    struct tr_chat *c = open_template(template);
    struct tr_str out = { 0 };
    struct tr_jinja_spans spans = { 0 };
    const cJSON *extra;
    cJSON_ArrayForEach(extra, at(row, "set"))
    {
        assert_ok(tr_chat_set(c, extra->string, extra));
    }
    enum tr_status st =
        tr_chat_render(c, at(at(doc, "chats"), chat), cJSON_IsTrue(at(row, "tools")) ? at(doc, "tools") : NULL,
                       cJSON_IsTrue(at(row, "prompt")), &out, &spans);
    bool is_same =
        wanted ? st == TR_OK && strcmp(out.p, wanted) == 0 && same_spans(&spans, at(row, "spans")) : st == TR_USAGE;
    if (!is_same)
        print_error("%s of %s\nwanted: %s\ngot:    %s\n", template, chat, wanted ? wanted : "an error",
                    st ? tr_error_text() : out.p);
    tr_jinja_spans_release(&spans);
    tr_str_release(&out);
    tr_chat_close(c);
    return !is_same;
}

static void renderings_equal_transformers(void **state)
{
    (void)state;
    cJSON *doc = load_golden();
    const cJSON *row;
    int n_rows = 0, n_bad = 0;
    cJSON_ArrayForEach(row, at(doc, "rows"))
    {
        n_rows++;
        n_bad += check_rendering(doc, row);
    }
    cJSON_Delete(doc);
    assert_true(n_rows > 500);
    assert_int_equal(n_bad, 0);
}

static int check_mask(const cJSON *doc, const cJSON *row, const struct tr_tokenizer *t, const char *key,
                      enum tr_chat_mask mode)
{
    const char *template = at(row, "template")->valuestring, *chat = at(row, "chat")->valuestring;
    const char *wanted = cJSON_GetStringValue(at(row, key)); /* NULL: must be refused */
    struct tr_chat *c = open_template(template);
    struct tr_ids ids = { 0 };
    struct tr_str mask = { 0 };
    enum tr_status st =
        tr_chat_encode(c, t, &(struct tr_conversation){ .messages = at(at(doc, "chats"), chat) }, mode, &ids, &mask);
    bool is_same = wanted ? st == TR_OK && mask.n == strlen(wanted) && ids.n == mask.n : st == TR_USAGE;
    const cJSON *id = at(row, "ids")->child;
    for (size_t i = 0; is_same && i < ids.n; i++, id = id->next)
        is_same = ids.p[i] == (int32_t)id->valuedouble && mask.p[i] == wanted[i] - '0';
    for (size_t i = 0; i < mask.n; i++)
        mask.p[i] = (char)(mask.p[i] + '0');
    if (!is_same)
        print_error("mask %s: %s of %s\nwanted: %s\ngot:    %s\n", key, template, chat, wanted ? wanted : "a refusal",
                    st ? tr_error_text() : mask.p);
    tr_ids_release(&ids);
    tr_str_release(&mask);
    tr_chat_close(c);
    return !is_same;
}

static void masks_equal_an_independent_derivation(void **state)
{
    (void)state;
    cJSON *doc = load_golden();
    struct tr_tokenizer *t = NULL;
    const cJSON *row;
    int n_rows = 0, n_bad = 0;
    assert_ok(tr_tokenizer_open(GOLDEN "/model", &t));
    cJSON_ArrayForEach(row, at(doc, "masks"))
    {
        n_rows++;
        n_bad += check_mask(doc, row, t, "assistant", TR_MASK_ASSISTANT);
        n_bad += check_mask(doc, row, t, "last", TR_MASK_LAST);
    }
    tr_tokenizer_close(t);
    cJSON_Delete(doc);
    assert_true(n_rows > 100 || getenv("TR_CHATS"));
    assert_int_equal(n_bad, 0);
}

static void builtin_templates_are_the_files(void **state)
{
    (void)state;
    size_t n_names, n;
    const char *const *names = tr_chat_builtin_names(&n_names);
    assert_true(n_names >= 10);
    for (size_t i = 0; i < n_names; i++) {
        char path[TR_PATH_MAX], *text = NULL;
        snprintf(path, sizeof path, GOLDEN "/builtin/%s.jinja", names[i]);
        assert_ok(tr_file_read(path, 1 << 20, &text, &n));
        assert_string_equal(text, tr_chat_builtin(names[i]));
        free(text);
    }
    assert_null(tr_chat_builtin("nope"));
}

/* Encodes a conversation with a template text in the scratch directory; ids and mask stay empty on failure. */
static enum tr_status encode(struct scratch *s, const char *template, const char *json, enum tr_chat_mask mode,
                             struct tr_str *shown)
{
    struct tr_tokenizer *t = byte_tokenizer(s);
    struct tr_chat *c = NULL;
    cJSON *messages = NULL;
    struct tr_ids ids = { 0 };
    struct tr_str mask = { 0 };
    put_text(s, "chat_template.jinja", template);
    assert_ok(tr_chat_open(s->dir, NULL, &c));
    assert_ok(tr_chat_parse(json, strlen(json), "messages", &messages));
    enum tr_status st = tr_chat_encode(c, t, &(struct tr_conversation){ .messages = messages }, mode, &ids, &mask);
    for (size_t i = 0; shown && i < mask.n; i++)
        if (mask.p[i])
            assert_ok(tr_tokenizer_decode(t, &ids.p[i], 1, shown));
    if (st != TR_OK) {
        assert_int_equal(ids.n, 0);
        assert_int_equal(mask.n, 0);
    }
    cJSON_Delete(messages);
    tr_ids_release(&ids);
    tr_str_release(&mask);
    tr_chat_close(c);
    tr_tokenizer_close(t);
    return st;
}

#define CHAT "[{\"role\":\"user\",\"content\":\"hi\"},{\"role\":\"assistant\",\"content\":\"yo\"}]"
#define LONG                                                                                                           \
    "[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\"},"                               \
    "{\"role\":\"user\",\"content\":\"c\"},{\"role\":\"assistant\",\"content\":\"d\"}]"
#define TURNS  "{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>\n{% endfor %}\n"
#define PROMPT "{% if add_generation_prompt %}<assistant>{% endif %}"

static void trains(struct scratch *s, const char *template, const char *json, enum tr_chat_mask mode,
                   const char *wanted)
{
    struct tr_str shown = { 0 };
    assert_ok(encode(s, template, json, mode, &shown));
    assert_string_equal(shown.p, wanted);
    tr_str_release(&shown);
}

static void modes_train_what_they_say(void **state)
{
    struct scratch *s = *state;
    trains(s, TURNS PROMPT, LONG, TR_MASK_ASSISTANT, "b</assistant>d</assistant>");
    trains(s, TURNS PROMPT, LONG, TR_MASK_LAST, "d</assistant>");
    trains(s, "{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>\n\n{% endfor %}" PROMPT, CHAT,
           TR_MASK_COMPLETION, "yo</assistant>\n\n");
    trains(s, "{{ messages[0].content }}", CHAT, TR_MASK_ALL, "hi");
    trains(s,
           "{% for m in messages %}{{ m.role }}: {{ m.content }}\n\n{% endfor %}"
           "{% if add_generation_prompt %}assistant: {% endif %}",
           LONG, TR_MASK_ASSISTANT, "b\n\nd\n\n"); /* no end-of-turn token: the line end is what stops the turn */
}

static void wrong_masks_are_refused_with_the_sample(void **state)
{
    struct scratch *s = *state;
    static const char user_only[] = "[{\"role\":\"user\",\"content\":\"hi\\u001b\"}]";
    assert_refused(encode(s, TURNS PROMPT, user_only, TR_MASK_ASSISTANT, NULL), TR_USAGE, "<user>hi\\x1b</user>");
    /* The assistant's text is dropped. */
    assert_refused(encode(s, "{{ messages[0].content }}", CHAT, TR_MASK_ASSISTANT, NULL), TR_USAGE, "no token");
    /* The prompt is trained too. */
    assert_refused(encode(s, "{% generation %}{{ messages[0].content }}{{ messages[1].content }}{% endgeneration %}",
                          CHAT, TR_MASK_ASSISTANT, NULL),
                   TR_USAGE, "every token");
    /* The block ends before the end-of-turn token. */
    assert_refused(
        encode(s,
               "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
               "{% endgeneration %}{% else %}{{ m.content }}{% endif %}</s>{% endfor %}" PROMPT,
               CHAT, TR_MASK_ASSISTANT, NULL),
        TR_USAGE, "end-of-turn");
    /* Parts are expected, a text came: nothing of it is written. */
    assert_refused(encode(s,
                          "{% for m in messages %}<{{ m.role }}>{% for p in m.content %}{{ p.text }}{% endfor %}</s>{% "
                          "endfor %}" PROMPT,
                          CHAT, TR_MASK_ASSISTANT, NULL),
                   TR_USAGE, "list of parts");
    /* A block that is never reached. */
    assert_refused(
        encode(s, TURNS "{% if false %}{% generation %}{% endgeneration %}{% endif %}", CHAT, TR_MASK_LAST, NULL),
        TR_USAGE, "end-of-turn");
}

static void history_that_is_rewritten_has_no_loss(void **state)
{
    struct scratch *s = *state;
    /* Earlier assistant turns are cut to "..."; only the last stands as it was written. */
    trains(s,
           "{% for m in messages %}<{{ m.role }}>{{ m.content if loop.last or m.role == 'user' else '...' }}</s>{% "
           "endfor %}" PROMPT,
           LONG, TR_MASK_ASSISTANT, "d</s>");
    /* Every rendering is closed with a text of the template's own, as Phi-3 does. */
    trains(s, TURNS "{% if add_generation_prompt %}<assistant>{% else %}[eos]{% endif %}", LONG, TR_MASK_ASSISTANT,
           "b</assistant>d</assistant>\n[eos]");
    /* A generation prompt that opens <think>, which history does not hold. */
    trains(s, TURNS "{% if add_generation_prompt %}<assistant><think>{% endif %}", LONG, TR_MASK_ASSISTANT,
           "b</assistant>d</assistant>");
}

static void numbers_keep_their_spelling(void **state)
{
    (void)state;
    static const char json[] =
        "[{\"role\":\"user\",\"content\":[1, 1.0, 1e2, -0, 9007199254740993, \"2.0\\\"3\", {\"4\": 5.50}]}]";
    cJSON *messages = NULL;
    struct tr_jinja *t = NULL;
    struct tr_str out = { 0 };
    static const char text[] = "{{ messages[0].content }}";
    assert_ok(tr_chat_parse(json, strlen(json), "messages", &messages));
    assert_ok(tr_jinja_open(text, strlen(text), "t", &t));
    struct tr_jinja_var var = { "messages", messages, SIZE_MAX };
    assert_ok(tr_jinja_render(t, &var, 1, 0, &out, NULL));
    assert_string_equal(out.p, "[1, 1.0, 100.0, 0, 9007199254740993, '2.0\"3', {'4': 5.5}]");
    tr_str_release(&out);
    tr_jinja_close(t);
    cJSON_Delete(messages);
}

static void templates_are_found_where_transformers_finds_them(void **state)
{
    struct scratch *s = *state;
    struct tr_chat *c = NULL;
    struct tr_str out = { 0 };
    cJSON *empty = cJSON_CreateArray(), *tools = cJSON_CreateArray();
    assert_refused(tr_chat_open(s->dir, NULL, &c), TR_USAGE, "chatml, qwen, llama3");
    assert_refused(tr_chat_open(s->dir, "chatlm", &c), TR_USAGE, "did you mean chatml");
    assert_refused(tr_chat_open(s->dir, "zephyr", &c), TR_USAGE, "eos");
    put_text(s, "tokenizer_config.json",
             "{\"eos_token\": \"E\", \"chat_template\": [{\"name\": \"default\", \"template\": \"d{{ eos_token }}\"},"
             "{\"name\": \"tool_use\", \"template\": \"t\"}, {\"name\": \"rag\", \"template\": \"r\"}]}");
    assert_ok(tr_chat_open(s->dir, NULL, &c));
    assert_ok(tr_chat_render(c, empty, NULL, false, &out, NULL));
    assert_ok(tr_chat_render(c, empty, tools, false, &out, NULL));
    tr_chat_close(c);
    assert_ok(tr_chat_open(s->dir, "rag", &c));
    assert_ok(tr_chat_render(c, empty, NULL, false, &out, NULL));
    tr_chat_close(c);
    put_text(s, "chat_template.jinja", "f{{ eos_token }}");
    assert_ok(tr_chat_open(s->dir, NULL, &c));
    assert_ok(tr_chat_render(c, empty, NULL, false, &out, NULL));
    tr_chat_close(c);
    assert_string_equal(out.p, "dEtrfE");
    put_text(s, "chat_template.jinja", "\n{{ x | nope }}");
    assert_refused(tr_chat_open(s->dir, NULL, &c), TR_USAGE, "chat_template.jinja:2: unknown filter \"nope\"");
    tr_str_release(&out);
    cJSON_Delete(empty);
    cJSON_Delete(tools);
}

/* What ends a turn is found in templates with and without generation blocks, as one id or as several. */
static void the_end_of_a_turn_is_found(void **state)
{
    static const struct {
        const char *template, *text;
        int64_t n_ids; /* -1: more than one */
    } cases[] = {
        { "builtin/chatml", "<|im_end|>", 1 },
        { "builtin/llama2", "</s>", 1 },
        { "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}", "", 0 },
        { "{% for m in messages %}{{ m.role }}: {{ m.content }}<a b c>\n{% endfor %}", "<a b c>", -1 },
    };
    struct tr_tokenizer *t = NULL;
    (void)state;
    assert_ok(tr_tokenizer_open(GOLDEN "/model", &t));
    for (size_t i = 0; i < TR_COUNT_OF(cases); i++) {
        struct tr_chat *c = NULL;
        struct tr_chat_end end;
        const char *name = cases[i].template;
        char path[] = "/tmp/chat-end-XXXXXX.jinja";
        if (strncmp(name, "builtin/", 8) != 0) {
            int fd = mkstemps(path, 6);
            assert_true(fd >= 0 && write(fd, name, strlen(name)) == (ssize_t)strlen(name));
            close(fd);
            assert_ok(tr_chat_open(GOLDEN "/model", path, &c));
            assert_string_equal(tr_chat_source(c), name);
            unlink(path);
        } else {
            c = open_template(name);
        }
        assert_ok(tr_chat_find_end(c, t, &end));
        assert_string_equal(end.text, cases[i].text);
        assert_true(cases[i].n_ids < 0 ? end.n_ids > 1 : end.n_ids == (size_t)cases[i].n_ids);
        assert_int_equal(end.id, end.n_ids == 1 ? tr_tokenizer_find(t, cases[i].text) : -1);
        tr_chat_close(c);
    }
    tr_tokenizer_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_end_of_a_turn_is_found),
        cmocka_unit_test(renderings_equal_transformers),
        cmocka_unit_test(masks_equal_an_independent_derivation),
        cmocka_unit_test(builtin_templates_are_the_files),
        cmocka_unit_test(numbers_keep_their_spelling),
        cmocka_unit_test_setup_teardown(modes_train_what_they_say, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(wrong_masks_are_refused_with_the_sample, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(history_that_is_rewritten_has_no_loss, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(templates_are_found_where_transformers_finds_them, scratch_setup,
                                        scratch_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
