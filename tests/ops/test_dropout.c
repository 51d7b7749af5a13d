/* Which elements dropout keeps: no two share a number, what a counter's eight are, and that they are dropped as
 * independent ones are. */
#include "base/base.h"
#include "ops/cpu/dropout.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <math.h>
#include <cmocka.h>

enum { QUERIES = 96, KEYS = 50 };
static const uint32_t FIRST = 0xffffffc0u; /* numbers of tokens run over */

static int by_place(const void *a, const void *b)
{
    return memcmp(a, b, 2 * sizeof(uint64_t));
}

static void no_two_scores_share_a_number(void **state)
{
    static uint64_t place[QUERIES * KEYS][2];
    (void)state;
    for (uint32_t q = 0; q < QUERIES; q++)
        for (uint32_t k = 0; k < KEYS; k++) {
            place[q * KEYS + k][0] = tr_drop_lo_of_pair(FIRST + q, FIRST + k);
            place[q * KEYS + k][1] = (uint64_t)tr_drop_at_of_pair(FIRST + q, FIRST + k);
            assert_in_range(place[q * KEYS + k][1], 0, 7);
        }
    qsort(place, QUERIES * KEYS, sizeof place[0], by_place);
    for (size_t i = 1; i < QUERIES * KEYS; i++)
        assert_memory_not_equal(place[i], place[i - 1], sizeof place[0]);
    assert_true(tr_drop_hi_of_head(7, 3) != tr_drop_hi_of_head(7, 4));
    assert_true(tr_drop_hi_of_head(7, 3) != tr_drop_hi_of_head(8, 3));
}

/* A lane of a 16 x 8 result holds rows g and g + 8, columns 2 l and 2 l + 1. Queries as rows: two results below each
 * other have one counter in a lane. Keys as rows, key 2 g + h dealt to row g + 8 h: four results side by side do. */
static void a_lane_of_a_tensor_core_has_whole_counters(void **state)
{
    (void)state;
    for (uint32_t g = 0; g < 8; g++)
        for (uint32_t l = 0; l < 4; l++)
            for (uint32_t x = 0; x < 8; x++) { /* word x / 2, half x % 2 */
                uint32_t query = FIRST + g + x / 2 * 8, key = FIRST + 2 * l + x % 2;
                assert_int_equal(tr_drop_lo_of_pair(query, key), tr_drop_lo_of_pair(FIRST + g, FIRST + 2 * l));
                assert_int_equal(tr_drop_at_of_pair(query, key), x);
                for (uint32_t e = 0; e < 2; e++) {
                    query = FIRST + x / 2 * 8 + 2 * l + e, key = FIRST + 2 * g + x % 2;
                    assert_int_equal(tr_drop_lo_of_pair(query, key),
                                     tr_drop_lo_of_pair(FIRST + 2 * l + e, FIRST + 2 * g));
                    assert_int_equal(tr_drop_at_of_pair(query, key), x);
                }
            }
}

/* Of neighbours of every kind both are dropped p^2 of the time, and all four corners of a rectangle p^4. */
static void scores_are_dropped_as_independent_ones(void **state)
{
    enum { N = 512 };
    static const int apart[][2] = { { 0, 1 }, { 0, 2 }, { 1, 0 }, { 8, 0 }, { 8, 1 }, { 16, 0 }, { 32, 0 }, { 0, 32 } };
    static bool is_dropped[N][N];
    struct tr_attr a = { .dropout_p = 0.3f, .key = 11 };
    float step[TR_STEP_COUNT] = { 0 };
    struct tr_dropout d = tr_dropout_init(&a, step);
    double p = (double)d.threshold / 65536, n = (double)N * N, all = 0;
    (void)state;
    assert_true(fabs(p - 0.3) <= 0x1p-17 && fabs((double)d.scale * (1 - p) - 1) < 1e-6);
    for (uint32_t q = 0; q < N; q++)
        for (uint32_t k = 0; k < N; k++) {
            struct tr_philox eight = tr_dropout_pair8(&d, 5, FIRST + q, FIRST + k);
            is_dropped[q][k] = tr_dropout_keep(&d, &eight, tr_drop_at_of_pair(FIRST + q, FIRST + k)) == 0;
            all += is_dropped[q][k];
        }
    assert_true(fabs(all - p * n) < 5 * sqrt(n * p * (1 - p)));
    for (size_t i = 0; i < TR_COUNT_OF(apart); i++) {
        double both = 0, corners = 0;
        for (int q = 0; q < N; q++)
            for (int k = 0; k < N; k++) {
                int x = (q + apart[i][0]) % N, y = (k + apart[i][1]) % N;
                both += is_dropped[q][k] && is_dropped[x][y];
                corners += is_dropped[q][k] && is_dropped[q][(y + 7) % N] && is_dropped[(x + 3) % N][k] &&
                           is_dropped[(x + 3) % N][(y + 7) % N];
            }
        assert_true(fabs(both - p * p * n) < 6 * sqrt(n * p * p)); /* pairs overlap, so a little wider */
        assert_true(fabs(corners - pow(p, 4) * n) < 8 * sqrt(n * pow(p, 4)));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_two_scores_share_a_number),
        cmocka_unit_test(a_lane_of_a_tensor_core_has_whole_counters),
        cmocka_unit_test(scores_are_dropped_as_independent_ones),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
