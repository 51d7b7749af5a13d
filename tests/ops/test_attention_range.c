/* test_attention_range.c - what attention_range.h says about tiles, against a list of all pairs. */
#include "ops/cuda/attention_range.h"
#include "base/base.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

enum { N = 97 };

static int32_t begin[N];

/* Documents of random lengths, mostly short. */
static void fill_begin(uint64_t key)
{
    int32_t at = 0;
    for (int32_t i = 0; i < N; i++) {
        if (i == 0 || tr_philox(key, 0, (uint64_t)i).v[0] % (key % 5 == 0 ? 1000 : 7 * key) == 0)
            at = i;
        begin[i] = at;
    }
}

/* The definition: rows of the micro-batch. */
static bool sees(int32_t q, int32_t k, int32_t window)
{
    return k <= q && k >= begin[q] && (window == 0 || k > q - window);
}

static void check_rows(const struct tr_seen_rule *r)
{
    for (int32_t i = 0; i < r->n_q; i++) {
        struct tr_seen s = tr_seen_by(r, i, begin[r->row_q + i]);
        for (int32_t j = 0; j < r->n_k; j++)
            assert_int_equal(j >= s.first && j < s.end, sees(r->row_q + i, r->row_k + j, r->window));
        if (i > 0) { /* neither end moves back */
            struct tr_seen before = tr_seen_by(r, i - 1, begin[r->row_q + i - 1]);
            assert_true(s.first >= before.first && s.end >= before.end);
        }
    }
    for (int32_t j = 0; j < r->n_k; j++)
        for (int32_t i = 0; i < tr_seen_min(r->n_q, tr_seen_from(r, j)); i++)
            assert_false(sees(r->row_q + i, r->row_k + j, r->window));
}

/* A kernel takes the keys of a tile of queries from the first key of its first row to the last of its last, and leaves
 * out the mask of keys that its last row sees from the first on and its first row to the end. */
static void check_tile(const struct tr_seen_rule *r, struct tr_tile t)
{
    struct tr_seen top = tr_seen_by(r, t.first, begin[r->row_q + t.first]),
                   bottom = tr_seen_by(r, t.end - 1, begin[r->row_q + t.end - 1]);
    for (int32_t i = t.first; i < t.end; i++)
        for (int32_t j = 0; j < r->n_k; j++) {
            bool it_sees = sees(r->row_q + i, r->row_k + j, r->window);
            if (it_sees)
                assert_true(j >= top.first && j < bottom.end);
            if (j >= bottom.first && j < top.end)
                assert_true(it_sees);
        }
}

static void ranges_are_those_of_all_pairs(void **state)
{
    static const int32_t windows[] = { 0, 1, 5, 40 }, widths[] = { 1, 16, 33, 128 };
    (void)state;
    for (uint64_t key = 1; key <= 5; key++)
        for (int w = 0; w < 4; w++) {
            fill_begin(key);
            const struct tr_seen_rule rules[] = { { N, N, 0, 0, windows[w] },
                                                  { 30, 30, 60, 20, windows[w] },
                                                  { 30, 17, 15, 15, windows[w] },
                                                  { 20, 40, 0, 57, windows[w] } };
            for (int i = 0; i < 4; i++) {
                check_rows(&rules[i]);
                for (int t = 0; t < 4; t++)
                    for (int32_t x = 0; x < tr_tiles_of_row(rules[i].n_q, widths[t]); x++)
                        check_tile(&rules[i], tr_tile_at(0, x, rules[i].n_q, widths[t]));
            }
        }
}

static void tiles_cover_every_row_of_tokens_once(void **state)
{
    (void)state;
    for (int32_t width = 1; width <= 70; width += 23) {
        int32_t next = 0;
        for (int32_t row = 0; row < 3; row++)
            for (int32_t t = 0; t < tr_tiles_of_row(29, width); t++) {
                struct tr_tile x = tr_tile_at(row, t, 29, width);
                assert_int_equal(x.first, next);
                assert_true(x.end > x.first && x.end - x.first <= width);
                assert_int_equal(x.first / 29, (x.end - 1) / 29);
                next = x.end;
            }
        assert_int_equal(next, 3 * 29);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(ranges_are_those_of_all_pairs),
                                        cmocka_unit_test(tiles_cover_every_row_of_tokens_once) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
