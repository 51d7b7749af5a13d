/* JSON: a table of legal and illegal documents in the manner of JSONTestSuite, positions, limits, typed members. */
#include "base/base.h"
#include <setjmp.h>
#include <stdarg.h>
#include <malloc.h>
#include <math.h>
#include <unistd.h>
#include <cmocka.h>

struct text {
    const char *p;
    size_t n;
};
#define T(literal)                                                                                                     \
    {                                                                                                                  \
        literal, sizeof(literal) - 1                                                                                   \
    } /* may hold NUL bytes */

static const struct text good[] = {
    T("[]"),
    T("{}"),
    T("null"),
    T("true"),
    T("false"),
    T("\"\""),
    T("42"),
    T("-0"),
    T("0"),
    T("-0.0"),
    T("0e+1"),
    T("[[]   ]"),
    T("[\"\"]"),
    T("[null, 1, \"1\", {}]"),
    T(" [1]\n"),
    T("\t\r\n []\n"),
    T("[1,null,null,null,2]"),
    T("[0e1]"),
    T("[1E22]"),
    T("[1E-2]"),
    T("[1E+2]"),
    T("[123.456e78]"),
    T("[-123]"),
    T("[-1]"),
    T("[-0]"),
    T("[123.456789]"),
    T("{\"a\":\"b\"}"),
    T("{\"\":0}"),
    T("{\"a\":[]}"),
    T("{\"a\":{\"a\":{\"a\":1}}}"),
    T("{\"a\":1,\"A\":2,\"b\":{\"a\":1},\"c\":{\"a\":1}}"),
    T("[{\"a\":1},{\"a\":2}]"),
    T("{\"foo\\u0001bar\": 42}"),
    T("{ \"min\": -1.0e+28, \"max\": 1.0e+28 }"),
    T("[\"\\u0060\\u012a\\u12AB\"]"),
    T("[\"\\uD801\\udc37\"]"),
    T("[\"\\ud83d\\ude39\\ud83d\\udc8d\"]"),
    T("[\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"]"),
    T("[\"\\\\u0000\"]"),
    T("[\"\\u0012\"]"),
    T("[\"\\uFFFF\"]"),
    T("[\"\\uDBFF\\uDFFF\"]"),
    T("[\"\xef\xbf\xbf\"]"),
    T("[\"\xf4\x8f\xbf\xbf\"]"),
    T("[\"\xe2\x80\xa8\"]"),
    T("[\"\x7f\"]"),
    T("[\"asd \"]"),
    T("[\"a/*b*/c/*d//e\"]"),
    T("[-0.000000000000000000000000000000000000000000000000000000000000000000000000000001]"),
    T("[0.4e00669999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999]"),
};

static const struct text bad[] = {
    T(""),
    T(" "),
    T("["),
    T("]"),
    T("{"),
    T("}"),
    T("[1"),
    T("[1,"),
    T("[,"),
    T("[,1]"),
    T("[1,]"),
    T("[1,,2]"),
    T("[1,,]"),
    T("[\"\",]"),
    T("[\"x\"]]"),
    T("[1 true]"),
    T("[3[4]]"),
    T("[1:2]"),
    T("[*]"),
    T("[#]"),
    T("[fals]"),
    T("[nul]"),
    T("[tru]"),
    T("[True]"),
    T("[NaN]"),
    T("[-NaN]"),
    T("[Infinity]"),
    T("[-Infinity]"),
    T("[inf]"),
    T("nan"),
    T("[+1]"),
    T("[++1]"),
    T("[-]"),
    T("[--1]"),
    T("[-01]"),
    T("[01]"),
    T("[012]"),
    T("[-012]"),
    T("[.1]"),
    T("[-.1]"),
    T("[1.]"),
    T("[-2.]"),
    T("[0.e1]"),
    T("[2.e3]"),
    T("[0e]"),
    T("[0e+]"),
    T("[1.0e]"),
    T("[1.0e-]"),
    T("[1eE2]"),
    T("[1e1.5]"),
    T("[0x1]"),
    T("[0x42]"),
    T("[1a]"),
    T("[1+2]"),
    T("[1 000.0]"),
    T("[- 1]"),
    T("[-foo]"),
    T("[\xef\xbc\x91]"),
    T("{\"a\""),
    T("{\"a\":"),
    T("{\"a\":1"),
    T("{\"a\":1,}"),
    T("{\"a\":1,,\"b\":2}"),
    T("{\"a\" 1}"),
    T("{:1}"),
    T("{1:1}"),
    T("{a:1}"),
    T("{'a':1}"),
    T("{null:1}"),
    T("{\"a\":1 \"b\":2}"),
    T("{\"a\":\"b\"}#"),
    T("{\"a\":true} \"x\""),
    T("{\"x\", null}"),
    T("{\"a\":1,\"a\":1}"),
    T("{\"a\":1,\"a\":2}"),
    T("{\"a\":1,\"\\u0061\":2}"),
    T("{\"\":1,\"\":2}"),
    T("[{\"b\":{\"a\":1,\"c\":2,\"a\":3}}]"),
    T("\""),
    T("[\""),
    T("[\"a"),
    T("[\"\\"),
    T("[\"\\\"]"),
    T("[\"\\x00\"]"),
    T("[\"\\a\"]"),
    T("[\"\\'\"]"),
    T("[\"\\U0041\"]"),
    T("[\"\\u\"]"),
    T("[\"\\u00A\"]"),
    T("[\"\\u00G0\"]"),
    T("[\"\\u 123\"]"),
    T("[\"\\u0000\"]"),
    T("{\"a\\u0000\":1}"),
    T("[\"\\uD800\"]"),
    T("[\"\\uDC00\"]"),
    T("[\"\\uD800\\n\"]"),
    T("[\"\\uD800\\u0041\"]"),
    T("[\"\\uD800\\uD800\"]"),
    T("[\"\\uDd1e\\uD834\"]"),
    T("[\"\\uD834\\u\"]"),
    T("[\"a\nb\"]"),
    T("[\"\t\"]"),
    T("[\"a\0b\"]"),
    T("[1\0]"),
    T("\0"),
    T("[1]\0"),
    T("[\"\x80\"]"),
    T("[\"\xff\"]"),
    T("[\"\xc0\xaf\"]"),
    T("[\"\xe0\x80\xaf\"]"),
    T("[\"\xed\xa0\x80\"]"),
    T("[\"\xf4\x90\x80\x80\"]"),
    T("[\"\xe2\x82\"]"),
    T("[\"\xf0\x9f\x98"),
    T("\xef\xbb\xbf[]"),
    T("\xef\xbb\xbf"),
    T("\xff\xfe[\0]\0"),
    T("[]/**/"),
    T("[]//"),
    T("/* a */ []"),
    T("[1]x"),
    T("[][]"),
    T("1 2"),
    T("[\f]"),
    T("[\v]"),
    T("[\xc2\xa0]"),
    T("[\xe2\x81\xa0]"),
    T("<.>"),
    T("[<null>]"),
    T("a"),
    T("\xc3\xa5"),
    T("*"),
    T("{]"),
    T("[}"),
    T("{\"a\":[}"),
    T("['x']"),
    T("`"),
    T("\\u0041"),
};

/* Copied to a block of its own size, so that a read beyond the text is an error under the sanitizers. */
static enum tr_status parse(const char *p, size_t n, cJSON **out)
{
    char *copy = malloc(n ? n : 1);
    assert_non_null(copy);
    memcpy(copy, p, n);
    enum tr_status st = tr_json_parse(copy, n, "t", out);
    free(copy);
    return st;
}

static void legal_documents_are_accepted(void **state)
{
    (void)state;
    for (size_t i = 0; i < TR_COUNT_OF(good); i++) {
        cJSON *tree = NULL;
        if (parse(good[i].p, good[i].n, &tree) != TR_OK)
            fail_msg("refused %s: %s", good[i].p, tr_error_text());
        assert_non_null(tree);
        cJSON_Delete(tree);
    }
}

static void illegal_documents_are_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < TR_COUNT_OF(bad); i++) {
        cJSON *tree = NULL;
        if (parse(bad[i].p, bad[i].n, &tree) != TR_USAGE)
            fail_msg("accepted bad[%d]: %s", (int)i, bad[i].p);
        assert_null(tree);
    }
}

static void every_prefix_of_a_document_is_refused(void **state)
{
    (void)state;
    static const char doc[] = "{\"a\": [1.5e3, true, null, \"x\\u00e9\\ud83d\\ude00\xc3\xa9\"], \"b\": {\"c\": -1}}";
    cJSON *tree = NULL;
    for (size_t n = 0; n < sizeof doc - 1; n++)
        assert_int_equal(parse(doc, n, &tree), TR_USAGE);
    assert_int_equal(parse(doc, sizeof doc - 1, &tree), TR_OK);
    cJSON_Delete(tree);
}

static void errors_name_line_and_column(void **state)
{
    (void)state;
    static const struct {
        const char *text, *error;
    } rows[] = {
        { "{\n  \"a\": 1,\n  \"a\": 2}", "f:3:3: duplicate key" },
        { "[1,\n 2,\n  x]", "f:3:3: expected a value" },
        { "[\"\xc3\xa9\xc3\xa9\", x]", "f:1:8: expected a value" }, /* characters, not bytes */
        { "[1", "f:1:3: unexpected end of the text" },
        { "", "f:1:1: unexpected end of the text" },
        { "[1] 2", "f:1:5: text after the end of the document" },
    };
    for (size_t i = 0; i < TR_COUNT_OF(rows); i++) {
        cJSON *tree = NULL;
        assert_int_equal(tr_json_parse(rows[i].text, strlen(rows[i].text), "f", &tree), TR_USAGE);
        assert_string_equal(tr_error_text(), rows[i].error);
    }
}

static void depth_ends_at_64(void **state)
{
    (void)state;
    for (int depth = 63; depth <= 66; depth++) {
        struct tr_str s = { 0 };
        for (int i = 0; i < depth; i++)
            tr_str_add(&s, i % 2 ? "[" : "{\"a\":", i % 2 ? 1 : 5);
        tr_str_add(&s, "1", 1);
        for (int i = depth - 1; i >= 0; i--)
            tr_str_add(&s, i % 2 ? "]" : "}", 1);
        cJSON *tree = NULL;
        assert_int_equal(parse(s.p, s.n, &tree), depth <= TR_JSON_MAX_DEPTH ? TR_OK : TR_USAGE);
        cJSON_Delete(tree);
        tr_str_release(&s);
    }
    static char open[1000000];
    memset(open, '[', sizeof open);
    cJSON *tree = NULL;
    assert_int_equal(parse(open, sizeof open, &tree), TR_USAGE);
}

static void long_numbers_keep_their_value(void **state)
{
    (void)state;
    struct tr_str s = { 0 };
    /* Two numbers longer than cJSON reads, with text before, between and after. */
    static const char zeros[] = "0000000000000000000000000000000000000000000000000000000000000000000000";
    tr_str_addf(&s, "{\"a\":1.5%s,\"k\":\"v\",\"b\":-1%s.25,\"c\":7}", zeros, zeros);
    cJSON *tree = NULL;
    double a = 0, b = 0, c = 0;
    assert_int_equal(parse(s.p, s.n, &tree), TR_OK);
    assert_int_equal(tr_json_real(tree, "a", true, &a), TR_OK);
    assert_int_equal(tr_json_real(tree, "b", true, &b), TR_OK);
    assert_int_equal(tr_json_real(tree, "c", true, &c), TR_OK);
    assert_true(a == 1.5 && b == -1e70 && c == 7);
    cJSON_Delete(tree);
    for (int n_digits = 399; n_digits <= 402; n_digits++) {
        tr_str_clear(&s);
        for (int i = 0; i < n_digits; i++)
            tr_str_add(&s, "1", 1);
        tree = NULL;
        assert_int_equal(parse(s.p, s.n, &tree), n_digits <= 400 ? TR_OK : TR_USAGE);
        cJSON_Delete(tree);
    }
    tr_str_release(&s);
}

static void a_million_keys_take_no_quadratic_time(void **state)
{
    (void)state;
    enum { N = 1000000 };
    struct tr_str s = { 0 };
    tr_str_add(&s, "{", 1);
    for (int i = 0; i < N; i++)
        tr_str_addf(&s, "%s\"k%d\":%d", i ? "," : "", i, i);
    size_t n = s.n;
    tr_str_add(&s, "}", 1);
    cJSON *tree = NULL;
    int64_t start_us = tr_clock_us();
    assert_int_equal(tr_json_parse(s.p, s.n, "t", &tree), TR_OK);
    cJSON_Delete(tree);
    s.n = n;
    tr_str_add(&s, ",\"k0\":0}", 8);
    assert_int_equal(tr_json_parse(s.p, s.n, "t", &tree), TR_USAGE);
    /* N^2 / 2 comparisons would take minutes; the bound leaves room for sanitizers on a busy machine. */
    assert_true(tr_clock_us() - start_us < 30 * 1000000);
    tr_str_release(&s);
}

static size_t n_taken, n_most;

static void *counted_malloc(size_t n)
{
    void *p = malloc(n);
    n_taken += p ? malloc_usable_size(p) + sizeof(size_t) : 0;
    n_most = n_taken > n_most ? n_taken : n_most;
    return p;
}

static void counted_free(void *p)
{
    n_taken -= p ? malloc_usable_size(p) + sizeof(size_t) : 0;
    free(p);
}

/* Documents that are all structure: 100 KiB of each, for which there is room, and 8 MiB. */
static void memory_is_bounded_by_the_size_of_the_text(void **state)
{
    static const struct {
        const char *first, *part, *last;
        bool is_refused;
    } rows[] = {
        { "[0", ",0", "]", true },
        { "[[]", ",[]", "]", true },
        { "[\"\"", ",\"\"", "]", true },
        { "[{}", ",{}", "]", true },
        { "[1e1", ",-1.5e10", "]", false },
        { "[true", ",false", "]", false },
        { "[0", ",[\"a\",\"b\"]", "]", true },
        { "[0", ",\"three banks of oars\"", "]", false },
    };
    (void)state;
    cJSON_InitHooks(&(cJSON_Hooks){ counted_malloc, counted_free });
    for (size_t i = 0; i < TR_COUNT_OF(rows); i++)
        for (size_t n = 100 << 10; n <= 8 << 20; n += (8 << 20) - (100 << 10)) {
            struct tr_str s = { 0 };
            cJSON *tree = NULL;
            tr_str_addf(&s, "%s", rows[i].first);
            while (s.n < n)
                tr_str_add(&s, rows[i].part, strlen(rows[i].part));
            tr_str_addf(&s, "%s", rows[i].last);
            n_most = 0;
            enum tr_status st = tr_json_parse(s.p, s.n, "big.json", &tree);
            assert_int_equal(st, rows[i].is_refused && n == 8 << 20 ? TR_USAGE : TR_OK);
            assert_true(n_most <= TR_JSON_FACTOR * s.n + TR_JSON_FREE);
            if (st != TR_OK) {
                assert_true(n_most == 0); /* refused before any of it was taken */
                assert_non_null(strstr(tr_error_text(), "big.json: the values of these "));
            }
            cJSON_Delete(tree);
            assert_true(n_taken == 0);
            tr_str_release(&s);
        }
    cJSON_InitHooks(NULL);
}

static void members_are_typed(void **state)
{
    (void)state;
    static const char doc[] =
        "{\"i\":3,\"big\":9007199254740992,\"over\":9007199254740994,\"half\":1.5,\"inf\":1e999,\"neg\":-4,"
        "\"s\":\"x\",\"t\":true,\"null\":null}";
    cJSON *o = NULL;
    assert_int_equal(parse(doc, sizeof doc - 1, &o), TR_OK);
    int64_t i = 77;
    double r = 7.5;
    bool b = false;
    const char *s = "default";
    assert_int_equal(tr_json_int(o, "i", true, 0, 3, &i), TR_OK);
    assert_int_equal(i, 3);
    assert_int_equal(tr_json_int(o, "big", true, 0, INT64_MAX, &i), TR_OK);
    assert_true(i == 9007199254740992);
    assert_int_equal(tr_json_int(o, "neg", true, -4, 0, &i), TR_OK);
    assert_int_equal(i, -4);
    static const char *const bad_ints[] = { "over", "half", "inf", "s", "t", "null", "absent" };
    for (size_t k = 0; k < TR_COUNT_OF(bad_ints); k++)
        assert_int_equal(tr_json_int(o, bad_ints[k], true, INT64_MIN, INT64_MAX, &i), TR_USAGE);
    assert_int_equal(tr_json_int(o, "i", true, 4, 9, &i), TR_USAGE);
    assert_non_null(strstr(tr_error_text(), "\"i\" is 3, outside 4 to 9"));
    assert_int_equal(tr_json_int(o, "absent", false, 0, 9, &i), TR_OK);
    assert_int_equal(tr_json_int(o, "null", false, 0, 9, &i), TR_OK);
    assert_int_equal(i, -4); /* failures and absence write nothing */
    assert_int_equal(tr_json_real(o, "half", true, &r), TR_OK);
    assert_true(r == 1.5);
    assert_int_equal(tr_json_real(o, "inf", true, &r), TR_USAGE);
    assert_int_equal(tr_json_bool(o, "t", true, &b), TR_OK);
    assert_true(b);
    assert_int_equal(tr_json_bool(o, "i", true, &b), TR_USAGE);
    assert_int_equal(tr_json_str(o, "S", false, &s), TR_OK); /* case matters */
    assert_string_equal(s, "default");
    assert_int_equal(tr_json_str(o, "s", true, &s), TR_OK);
    assert_string_equal(s, "x");
    assert_int_equal(tr_json_str(o, "i", false, &s), TR_USAGE);
    assert_int_equal(tr_json_str(cJSON_GetObjectItem(o, "i"), "i", false, &s), TR_USAGE);
    assert_int_equal(tr_json_str(NULL, "i", false, &s), TR_USAGE);
    cJSON_Delete(o);
}

static void load_names_the_file(void **state)
{
    (void)state;
    char path[] = "/tmp/tr-json-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(tr_write_all(fd, path, "{\"a\": 1x}", 9), TR_OK);
    close(fd);
    cJSON *tree = NULL;
    assert_int_equal(tr_json_load(path, 100, &tree), TR_USAGE);
    assert_non_null(strstr(tr_error_text(), path));
    assert_int_equal(tr_json_load(path, 8, &tree), TR_USAGE);
    assert_int_equal(tr_file_write_atomic(path, "{\"a\": 1}", 8), TR_OK);
    assert_int_equal(tr_json_load(path, 8, &tree), TR_OK);
    cJSON_Delete(tree);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(legal_documents_are_accepted),
        cmocka_unit_test(illegal_documents_are_refused),
        cmocka_unit_test(every_prefix_of_a_document_is_refused),
        cmocka_unit_test(errors_name_line_and_column),
        cmocka_unit_test(depth_ends_at_64),
        cmocka_unit_test(long_numbers_keep_their_value),
        cmocka_unit_test(a_million_keys_take_no_quadratic_time),
        cmocka_unit_test(memory_is_bounded_by_the_size_of_the_text),
        cmocka_unit_test(members_are_typed),
        cmocka_unit_test(load_names_the_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
