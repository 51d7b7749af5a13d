/* test_jinja.c - templates render as jinja2 renders them (golden snippets), and hostile ones stop at a limit. */
#include "token/token_test.h"
#include "text/chat.h"

static enum tr_status render(const char *text, size_t n, const cJSON *vars, struct tr_str *out,
                             struct tr_jinja_spans *spans)
{
    struct tr_jinja *t = NULL;
    struct tr_jinja_var list[64];
    size_t n_vars = 0;
    const cJSON *v;
    cJSON_ArrayForEach(v, vars)
    {
        list[n_vars++] = (struct tr_jinja_var){ v->string, v, SIZE_MAX };
    }
    enum tr_status st = tr_jinja_open(text, n, "test", &t);
    if (st == TR_OK)
        st = tr_jinja_render(t, list, n_vars, 1700000000, out, spans);
    tr_jinja_close(t);
    return st;
}

/* One row of snippets.json; 1 = differs. */
static int check_row(const cJSON *row, const cJSON *vars)
{
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(row, "template"));
    const char *wanted = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(row, "out"));
    struct tr_str out = { 0 };
    enum tr_status st = render(text, strlen(text), vars, &out, NULL);
    bool is_same = wanted ? st == TR_OK && strcmp(out.p, wanted) == 0 : st == TR_USAGE;
    if (!is_same)
        print_error("template: %s\nwanted: %s\ngot:    %s\n", text, wanted ? wanted : "an error",
                    st ? tr_error_text() : out.p);
    tr_str_release(&out);
    return !is_same;
}

static void snippets_render_as_jinja2_does(void **state)
{
    (void)state;
    cJSON *doc = NULL;
    const cJSON *row;
    int n_rows = 0, n_bad = 0;
    char *text = NULL;
    size_t n = 0;
    assert_ok(tr_file_read(TR_SOURCE_DIR "/tests/golden/chat/snippets.json", 1 << 20, &text, &n));
    assert_ok(tr_chat_parse(text, n, "snippets.json", &doc)); /* numbers keep their spelling */
    free(text);
    cJSON_ArrayForEach(row, cJSON_GetObjectItemCaseSensitive(doc, "rows"))
    {
        n_rows++;
        n_bad += check_row(row, cJSON_GetObjectItemCaseSensitive(doc, "vars"));
    }
    cJSON_Delete(doc);
    assert_true(n_rows > 100);
    assert_int_equal(n_bad, 0);
}

static void refused(const char *text, const char *part)
{
    struct tr_str out = { 0 };
    assert_refused(render(text, strlen(text), NULL, &out, NULL), TR_USAGE, part);
    tr_str_release(&out);
}

static void unknown_things_are_refused_by_name_and_line(void **state)
{
    (void)state;
    refused("a\n\n{{ 1 | frobnicate }}", "test:3: unknown filter \"frobnicate\"");
    refused("\n{{ 1 is frob }}", "test:2: unknown test \"frob\"");
    refused("{% if true %}\n{{ 1 is frob }}{% endif %}", "test:2: unknown test \"frob\"");
    refused("\n{% include 'x' %}", "test:2: unknown tag \"include\"");
    refused("{{ 'x'.zfill(3) }}", "zfill");
    refused("{{ cycler(1) }}", "cycler");
    refused("{{ f(**args) }}", "** in a call");
    refused("{% for x in y recursive %}{% endfor %}", "recursive");
    refused("{{ 'x'.__class__ }}", "underscores");
    refused("{{ '\xc3\x9f' | upper }}", "U+00DF");
    refused("{{ 99999999999999999999 }}", "too large");
    refused("{{ 9223372036854775807 + 1 }}", "64 bits");
    refused("{{ ('a' | safe).upper() }}", "safe");
    refused("{{ [1] | map('upper') }}", "printed");
    refused("{{ raise_exception('bad \x1b[31m') }}", "bad \\x1b[31m");
    refused("\xff", "UTF-8");
}

static void generation_spans_are_bytes_of_the_text(void **state)
{
    (void)state;
    static const char text[] = "é{% for x in 'ab' %}<{% generation %}é{{ x }}{% endgeneration %}>{% endfor %}";
    struct tr_str out = { 0 };
    struct tr_jinja_spans spans = { 0 };
    assert_ok(render(text, strlen(text), NULL, &out, &spans));
    assert_string_equal(out.p, "é<éa><éb>");
    assert_int_equal(spans.n, 2);
    assert_int_equal(spans.p[0].begin, 3);
    assert_int_equal(spans.p[0].end, 6);
    assert_int_equal(spans.p[1].begin, 8);
    assert_int_equal(spans.p[1].end, 11);
    tr_str_release(&out);
    static const char in_set[] = "{% set x %}{% generation %}a{% endgeneration %}{% endset %}{{ x }}";
    assert_refused(render(in_set, strlen(in_set), NULL, &out, &spans), TR_USAGE, "no known place");
    assert_int_equal(spans.n, 2);
    tr_jinja_spans_release(&spans);
    tr_str_release(&out);
}

static void the_clock_is_an_argument(void **state)
{
    (void)state;
    static const char text[] = "{{ strftime_now('%d %b %Y %H:%M') }}";
    struct tr_str out = { 0 };
    assert_ok(render(text, strlen(text), NULL, &out, NULL));
    assert_string_equal(out.p, "14 Nov 2023 22:13"); /* 1700000000 in UTC */
    tr_str_release(&out);
}

/* n times a piece, between a head and a tail. */
static void refused_repeat(const char *head, const char *piece, size_t n, const char *tail, const char *part)
{
    struct tr_str text = { 0 }, out = { 0 };
    tr_str_addf(&text, "%s", head);
    for (size_t i = 0; i < n; i++)
        tr_str_addf(&text, "%s", piece);
    tr_str_addf(&text, "%s", tail);
    assert_refused(render(text.p, text.n, NULL, &out, NULL), TR_USAGE, part);
    tr_str_release(&text);
    tr_str_release(&out);
}

static void hostile_templates_stop_at_a_limit(void **state)
{
    (void)state;
    refused_repeat("", "x", (1 << 20) + 1, "", "the limit is 1048576");
    refused_repeat("{{ ", "(", 5000, "1", "nested");
    refused_repeat("{{ 1", "+1", 5000, " }}", "nested");
    refused_repeat("{{ ", "not ", 5000, "1 }}", "nested");
    refused_repeat("{{ ", "-", 5000, "1 }}", "nested");
    refused_repeat("{{ x", ".a", 5000, " }}", "nested");
    refused_repeat("{{ 1", "|abs", 5000, " }}", "nested");
    refused_repeat("", "{% if 1 %}", 5000, "", "nested");
    refused_repeat("{% set ", "(", 5000, "a = 1 %}", "nested");
    refused_repeat("{{ 1 if ", "1 if 1 else ", 5000, "1 }}", "nested");
    refused("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "deep");
    refused("{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}", "steps");
    /* What reads a long string costs its length: 90 GB would be read in steps of one. */
    refused(
        "{% set s = 'x' * 1000000 %}{% set t = 'x' * 1000000 %}{% for a in range(90000) %}{% if s == t %}{% endif %}"
        "{% endfor %}",
        "steps");
    refused("{% set s = 'x' * 1000000 %}{% set t = 'x' * 1000000 %}{% for a in range(90000) %}{% if s < t %}{% endif %}"
            "{% endfor %}",
            "steps");
    refused("{% set s = 'x' * 1000000 %}{% for a in range(90000) %}{% if s.count('y') %}{% endif %}{% endfor %}",
            "steps");
    refused("{% set s = 'x' * 1000000 %}{% for a in range(90000) %}{% if s.strip() %}{% endif %}{% endfor %}", "steps");
    refused("{% set s = ' ' * 8000000 %}{% set c = 'xyz' * 1000000 ~ ' ' %}{{ s.strip(c) }}", "steps");
    refused("{% set s = ' ' * 8000000 %}{% set c = 'xyz' * 1000000 ~ ' ' %}{{ s|trim(c) }}", "steps");
    refused("{% set s = 'a' * 8000000 %}{% set t = 'a' * 1000000 ~ 'b' %}{{ s.rfind(t) }}", "steps");
    refused("{% set s = 'a' * 8000000 %}{% set t = 'a' * 1000000 ~ 'b' %}{{ s.rsplit(t) }}", "steps");
    refused("{% set s = 'a' * 1000000 %}{% set t = (s ~ 'b', s ~ 'c', s ~ 'd', s ~ 'e') %}"
            "{% for i in range(90000) %}{% if s.startswith(t) %}{% endif %}{% endfor %}",
            "steps");
    refused("{% set s = '\\x1b' * 100000 %}{% for i in range(999) %}{% set t = [s]|string %}{% endfor %}", "steps");
    /* What is made is bounded while it is made, and never cut short without a word. */
    refused("{{ [[[[[[[[1]]]]]]]]|tojson(indent='x' * 16000000) }}", "too long");
    refused("{% set s = 'ab' * 20 %}{{ s.replace('a', 'x' * 1000000)|length }}",
            "replace: the result is larger than 16 MiB");
    refused("{% set s = 'a\n' * 20 %}{{ s|indent('x' * 1000000)|length }}", "16 MiB");
    refused("{% set s = '{}' * 100000 %}{{ s.format('x' * 16000000, 'x' * 16000000)|length }}", "16 MiB");
    refused("{% for a in range(90000) %}{{ 'x' * 9000 }}{% endfor %}", "MiB");
    refused("{% set ns = namespace(s='x') %}{% for a in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}", "MiB");
    refused(
        "{% set ns = namespace(s=[1]) %}{% for a in range(99) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s }}",
        "");
    refused(
        "{% set ns = namespace(s=1) %}{% for a in range(9999) %}{% set ns.s = [ns.s] %}{% endfor %}{{ ns.s == [ns.s] }}"
        "{{ ns.s }}",
        "deep");
    refused("{{ 'x' * 99999999999 }}", "too large");
    refused("{{ [1] * 99999999999 }}", "too large");
    refused("{{ 9 ** 9 ** 9 }}", "64 bits");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(snippets_render_as_jinja2_does),
        cmocka_unit_test(unknown_things_are_refused_by_name_and_line),
        cmocka_unit_test(generation_spans_are_bytes_of_the_text),
        cmocka_unit_test(the_clock_is_an_argument),
        cmocka_unit_test(hostile_templates_stop_at_a_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
