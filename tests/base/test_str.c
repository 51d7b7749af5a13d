/* Strings: growth, escaping, UTF-8, strict numbers, nearest names. */
#include "base/base.h"
#include "base/show.h"
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static void appending_grows_and_stays_terminated(void **state)
{
    (void)state;
    struct tr_str s = { 0 };
    for (int i = 0; i < 1000; i++)
        tr_str_addf(&s, "%04d", i);
    tr_str_add(&s, "end", 3);
    assert_true(tr_str_ok(&s));
    assert_int_equal(s.n, 4003);
    assert_int_equal(strlen(s.p), 4003);
    assert_memory_equal(s.p + 3996, "0999end", 8);
    tr_str_clear(&s);
    assert_string_equal(s.p, "");
    tr_str_release(&s);
    assert_null(s.p);
}

static void a_failed_string_swallows_appends_until_cleared(void **state)
{
    (void)state;
    struct tr_str s = { 0 };
    tr_str_add(&s, "a", 1);
    tr_str_add(&s, "b", SIZE_MAX - 1); /* cannot be had; the bytes are never read */
    assert_false(tr_str_ok(&s));
    assert_null(s.p);
    tr_str_addf(&s, "more");
    tr_str_json(&s, "more");
    assert_false(tr_str_ok(&s));
    tr_str_clear(&s);
    tr_str_add(&s, "c", 1);
    assert_string_equal(s.p, "c");
    tr_str_release(&s);
}

static void json_strings_read_back_as_written(void **state)
{
    (void)state;
    struct tr_str s = { 0 };
    tr_str_json(&s, "a\"b\\c\n\t\x01\x7f\xc3\xa9\xf0\x9f\x98\x80");
    assert_string_equal(s.p, "\"a\\\"b\\\\c\\n\\u0009\\u0001\\u007f\xc3\xa9\xf0\x9f\x98\x80\"");
    cJSON *tree = NULL;
    assert_int_equal(tr_json_parse(s.p, s.n, "test", &tree), TR_OK);
    assert_string_equal(tree->valuestring, "a\"b\\c\n\t\x01\x7f\xc3\xa9\xf0\x9f\x98\x80");
    cJSON_Delete(tree);
    tr_str_clear(&s);
    tr_str_json(&s, "x\xff\xc3");
    assert_string_equal(s.p, "\"x\\ufffd\\ufffd\"");
    tr_str_release(&s);
}

static void escape_leaves_nothing_a_terminal_obeys(void **state)
{
    (void)state;
    char buf[64], tiny[6];
    assert_string_equal(tr_escape("\x1b[2J\"\\\xc2\x9b\xc3\xa9\xff", buf, sizeof buf),
                        "\\x1b[2J\"\\\\\\xc2\\x9b\xc3\xa9\\xff");
    assert_string_equal(tr_escape("ab\x1b", tiny, sizeof tiny), "ab"); /* an escape is whole or absent */
    assert_string_equal(tr_escape("a\xe2\x80\xae\xe2\x81\xa6 \xe2\x80\x8d", buf, sizeof buf),
                        "a\\u202e\\u2066 \xe2\x80\x8d");
    assert_string_equal(tr_escape("abcdefgh", tiny, sizeof tiny), "abcde");
    assert_string_equal(tr_escape("abc", tiny, 1), "");
}

static void format_reports_truncation(void **state)
{
    (void)state;
    char buf[4];
    assert_int_equal(tr_format(buf, sizeof buf, "%s", "abc"), TR_OK);
    assert_string_equal(buf, "abc");
    assert_int_equal(tr_format(buf, sizeof buf, "%s", "abcd"), TR_USAGE);
}

static void utf8_accepts_exactly_the_well_formed(void **state)
{
    (void)state;
    /* Every code point, encoded here by the definition, has its length; surrogates have none. */
    for (uint32_t u = 0; u <= 0x110000; u++) {
        unsigned char c[4];
        size_t n;
        if (u < 0x80) {
            c[0] = (unsigned char)u, n = 1;
        } else if (u < 0x800) {
            c[0] = (unsigned char)(0xc0 | u >> 6), n = 2;
        } else if (u < 0x10000) {
            c[0] = (unsigned char)(0xe0 | u >> 12), n = 3;
        } else {
            c[0] = (unsigned char)(0xf0 | u >> 18), n = 4;
        }
        for (size_t i = 1; i < n; i++)
            c[i] = (unsigned char)(0x80 | (u >> 6 * (n - 1 - i) & 0x3f));
        bool is_legal = (u < 0xd800 || u > 0xdfff) && u <= 0x10ffff;
        assert_int_equal(tr_utf8_len((char *)c, n), is_legal ? n : 0);
        assert_int_equal(tr_utf8_len((char *)c, n - 1), 0);
    }
    static const char *const bad[] = {
        "\x80", "\xc0\x80", "\xc1\xbf", "\xe0\x9f\xbf", "\xf0\x8f\xbf\xbf", "\xf5\x80\x80\x80", "\xe1\x80\x41", "\xff"
    };
    for (size_t i = 0; i < TR_COUNT_OF(bad); i++)
        assert_int_equal(tr_utf8_len(bad[i], strlen(bad[i])), 0);
}

static void integers_are_strict(void **state)
{
    (void)state;
    int64_t v = 77;
    assert_int_equal(tr_parse_int("-9223372036854775808", INT64_MIN, INT64_MAX, &v), TR_OK);
    assert_true(v == INT64_MIN);
    assert_int_equal(tr_parse_int("42", 0, 42, &v), TR_OK);
    assert_int_equal(v, 42);
    static const char *const bad[] = { "",   "-", " 1", "1 ", "+1", "0x10", "1.0", "1e3", "9223372036854775808",
                                       "43", "-1" };
    for (size_t i = 0; i < TR_COUNT_OF(bad); i++)
        assert_int_equal(tr_parse_int(bad[i], 0, 42, &v), TR_USAGE);
    assert_int_equal(v, 42);
}

static void reals_are_strict(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        double value;
    } good[] = { { "3e-4", 3e-4 }, { "-1.5", -1.5 }, { ".5", .5 }, { "5.", 5 },
                 { "+2", 2 },      { "1E+3", 1000 }, { "0", 0 } };
    static const char *const bad[] = { "", ".", "e5", "1e", "nan", "inf", "0x1p3", " 1", "1 ", "1e999", "1,5", "1f" };
    double v = 0;
    for (size_t i = 0; i < TR_COUNT_OF(good); i++) {
        assert_int_equal(tr_parse_real(good[i].text, &v), TR_OK);
        assert_true(v == good[i].value);
    }
    for (size_t i = 0; i < TR_COUNT_OF(bad); i++)
        assert_int_equal(tr_parse_real(bad[i], &v), TR_USAGE);
}

static void sizes_have_decimal_and_binary_units(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t bytes;
    } good[] = { { "512", 512 }, { "10K", 10240 },          { "1.5GiB", 1610612736 }, { "2GB", 2000000000 },
                 { "0", 0 },     { "1tib", 1099511627776 }, { "100b", 100 },          { "1e3", 1000 } };
    static const char *const bad[] = { "", "K", "-1", "-1K", "1X", "1 K", "1KiBs", "9e9TiB", "nan" };
    int64_t v = 0;
    for (size_t i = 0; i < TR_COUNT_OF(good); i++) {
        assert_int_equal(tr_parse_bytes(good[i].text, &v), TR_OK);
        assert_true(v == good[i].bytes);
    }
    for (size_t i = 0; i < TR_COUNT_OF(bad); i++)
        assert_int_equal(tr_parse_bytes(bad[i], &v), TR_USAGE);
}

static void nearest_finds_the_slip_and_nothing_far(void **state)
{
    (void)state;
    static const char *const names[] = { "optim.lr", "optim.beta1", "optim.beta2", "mesh.tp", "tp" };
    assert_int_equal(tr_edit_distance("abc", "abc"), 0);
    assert_int_equal(tr_edit_distance("abc", "acb"), 1);
    assert_int_equal(tr_edit_distance("", "abc"), 3);
    assert_int_equal(tr_edit_distance("kitten", "sitting"), 3);
    assert_string_equal(tr_nearest("opitm.lr", names, TR_COUNT_OF(names)), "optim.lr");
    assert_string_equal(tr_nearest("optim.beta", names, TR_COUNT_OF(names)), "optim.beta1");
    assert_string_equal(tr_nearest("mesh.pt", names, TR_COUNT_OF(names)), "mesh.tp");
    assert_null(tr_nearest("zzzzzzzz", names, TR_COUNT_OF(names)));
    assert_null(tr_nearest("x", names, 0));
}

static void human_forms_are_short(void **state)
{
    (void)state;
    char buf[32];
    assert_string_equal(tr_human_bytes(1610612736, buf, sizeof buf), "1.50 GiB");
    assert_string_equal(tr_human_bytes(512, buf, sizeof buf), "512 B");
    assert_string_equal(tr_human_bytes(UINT64_MAX, buf, sizeof buf), "16.00 EiB");
    assert_string_equal(tr_human_count(124.44e6, buf, sizeof buf), "124.4 M");
    assert_string_equal(tr_human_count(7, buf, sizeof buf), "7");
}

/* A stream in pieces of any length shows what it shows as a whole. */
static void a_text_in_pieces_is_shown_as_a_whole(void **state)
{
    (void)state;
    static const char text[] =
        "a\x1b[36mb\x1b[0mc\x1b]0;t\x07\xe2\x94\x81\xf0\x9f\x9a\xa3 \xe2\x94 \xff\x1b[2J\xc2\x9b\x1b[0;3";
    struct tr_str whole = { 0 };
    tr_str_show(&whole, text, sizeof text - 1);
    assert_null(memchr(whole.p, '\x07', whole.n));
    for (size_t piece = 1; piece < sizeof text; piece++) {
        struct tr_str held = { 0 }, shown = { 0 };
        for (size_t at = 0; at < sizeof text - 1; at += piece) {
            tr_str_add(&held, text + at, piece < sizeof text - 1 - at ? piece : sizeof text - 1 - at);
            size_t n = tr_show_whole(held.p, held.n);
            assert_true(held.n - n < TR_SHOW_CUT);
            tr_str_show(&shown, held.p, n);
            memmove(held.p, held.p + n, held.n - n + 1);
            held.n -= n;
        }
        tr_str_show(&shown, held.p, held.n);
        assert_string_equal(shown.p, whole.p);
        tr_str_release(&held);
        tr_str_release(&shown);
    }
    tr_str_release(&whole);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(appending_grows_and_stays_terminated),
        cmocka_unit_test(a_failed_string_swallows_appends_until_cleared),
        cmocka_unit_test(json_strings_read_back_as_written),
        cmocka_unit_test(escape_leaves_nothing_a_terminal_obeys),
        cmocka_unit_test(a_text_in_pieces_is_shown_as_a_whole),
        cmocka_unit_test(format_reports_truncation),
        cmocka_unit_test(utf8_accepts_exactly_the_well_formed),
        cmocka_unit_test(integers_are_strict),
        cmocka_unit_test(reals_are_strict),
        cmocka_unit_test(sizes_have_decimal_and_binary_units),
        cmocka_unit_test(nearest_finds_the_slip_and_nothing_far),
        cmocka_unit_test(human_forms_are_short),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
