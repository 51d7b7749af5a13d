/* test_utf8.c - invalid UTF-8 becomes U+FFFD, one for each maximal piece, however the text is cut. */
#include "token/token_test.h"
#include "token/utf8.h"

#define R "\xEF\xBF\xBD"

static const struct {
    const char *in, *want;
} cases[] = {
    { "plain", "plain" },
    { "\xC3\xA9\xE2\x82\xAC\xF0\x9F\x9A\x80", "\xC3\xA9\xE2\x82\xAC\xF0\x9F\x9A\x80" },
    { "a\x80z", "a" R "z" },
    { "\xC0\xAF", R R },             /* overlong */
    { "\xE0\x80\xAF", R R R },       /* overlong: E0 wants A0..BF */
    { "\xED\xA0\x80", R R R },       /* a surrogate */
    { "\xF4\x90\x80\x80", R R R R }, /* beyond U+10FFFF */
    { "\xF5\xFF", R R },             /* never legal */
    { "\xE2\x82z", R "z" },          /* cut short: one piece */
    { "\xF0\x9F\x9A"
      "a",
      R "a" },
    { "\xF0\x9F", R },                                           /* cut by the end */
    { "\x61\xF1\x80\x80\xE1\x80\xC2\x62\x80", "a" R R R "b" R }, /* the example of Unicode 15, table 3-11 */
};

static void invalid_pieces_become_one_replacement_each_however_cut(void **state)
{
    (void)state;
    for (size_t i = 0; i < TR_COUNT_OF(cases); i++) {
        size_t n = strlen(cases[i].in);
        for (size_t cut = 0; cut <= n; cut++) {
            struct tr_str out = { 0 };
            size_t n_used, n_rest;
            tr_utf8_clean(cases[i].in, cut, false, &out, &n_used);
            assert_in_range(cut - n_used, 0, 3);
            tr_utf8_clean(cases[i].in + n_used, n - n_used, true, &out, &n_rest);
            assert_int_equal(n_used + n_rest, n);
            assert_string_equal(out.p, cases[i].want);
            tr_str_release(&out);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(invalid_pieces_become_one_replacement_each_however_cut) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
