/* test_mixing.c - mixtures by weight: exact shares in every prefix, exactly once per source and epoch. */
#include "data/data_test.h"
#include "data/mix.h"

enum { VOCAB = 500, T = 8, SECOND = 321 }; /* 8 * 40 tokens before it: no id is in both */

#define TEST(f) cmocka_unit_test_setup_teardown(f, scratch_setup, scratch_teardown)

static void check_shares(const double *weights, size_t n)
{
    struct tr_mix m;
    double sum = 0;
    uint64_t count[16] = { 0 };
    assert_ok(tr_mix_open(&m, weights, n));
    for (size_t i = 0; i < n; i++)
        sum += weights[i];
    for (uint64_t g = 0; g < 3 * m.period; g++) {
        size_t source;
        uint64_t k;
        tr_mix_at(&m, g, &source, &k);
        assert_true(source < n);
        assert_int_equal(k, count[source]); /* its samples come in order, none twice, none left out */
        count[source]++;
        for (size_t i = 0; i < n; i++) {
            uint64_t w = m.share[i], low = (g + 1) * w / m.period;
            bool is_even = (g + 1) * w % m.period == 0;
            assert_true(count[i] == low || (count[i] == low + 1 && !is_even)); /* floor or ceiling */
        }
    }
    for (size_t i = 0; i < n; i++) {
        double off = (double)m.share[i] / (double)m.period - weights[i] / sum;
        assert_true(off < 1e-9 && off > -1e-9);
    }
    tr_mix_release(&m);
}

static void every_prefix_has_the_floor_or_ceiling_of_each_share(void **state)
{
    static const double cases[][8] = {
        { 1 },
        { 0.5, 0.5 },
        { 3, 1 },
        { 0.7, 0.2, 0.1 },
        { 1, 1, 1, 1, 1, 1, 1 },
        { 100, 1, 1 },
        { 0.333333, 0.666667 },
        { 5, 7, 11, 13, 17 },
        { 0.05, 0.15, 0.35, 0.45 },
        { 97, 1, 1, 1 },
        { 0.001, 1 },
        { 12, 8, 4 },
    };
    (void)state;
    for (size_t i = 0; i < TR_COUNT_OF(cases); i++) {
        size_t n = 0;
        while (n < 8 && cases[i][n] > 0)
            n++;
        check_shares(cases[i], n);
    }
    for (uint64_t trial = 0; trial < 200; trial++) { /* random whole weights */
        double w[8];
        struct tr_philox x = tr_philox(trial, 1, 2), y = tr_philox(trial, 3, 4);
        for (size_t i = 0; i < 8; i++)
            w[i] = 1 + (i < 4 ? x.v[i] : y.v[i - 4]) % 40;
        check_shares(w, 2 + trial % 7);
    }
}

static void weights_that_cannot_be_exact_are_refused(void **state)
{
    struct tr_mix m;
    static const double third[] = { 1.0 / 3, 1 }, zero[] = { 1, 0 }, large[] = { 1048576, 1 }, tiny[] = { 1e-7, 1 };
    (void)state;
    assert_refused(tr_mix_open(&m, third, 2), TR_USAGE, "fewer digits");
    assert_refused(tr_mix_open(&m, zero, 2), TR_USAGE, "weight 0");
    assert_refused(tr_mix_open(&m, large, 2), TR_USAGE, "1048576");
    assert_refused(tr_mix_open(&m, tiny, 2), TR_USAGE, "fewer digits");
}

/* Two shards whose ids tell them apart: 40 rows and 10 rows. */
static struct tr_data *open_two(struct scratch *s, const double *weights, bool shuffle)
{
    struct tr_data *d = NULL;
    struct tr_data_options o = {
        .row_tokens = T, .vocab_size = VOCAB, .shuffle = shuffle, .seed = 9, .weights = weights
    };
    char a[TR_PATH_MAX], b[TR_PATH_MAX];
    int64_t big = 40 * T, small = 10 * T;
    put_shard(in_scratch(s, "a.trtok"), &big, 1, 0, VOCAB, false);
    memcpy(a, s->path, sizeof a);
    put_shard(in_scratch(s, "b.trtok"), &small, 1, SECOND, VOCAB, false);
    memcpy(b, s->path, sizeof b);
    const char *paths[] = { a, b };
    assert_ok(tr_data_open(paths, 2, NULL, &o, &d));
    return d;
}

/* Row of the stream that starts with this id: 0..39 of the first shard, 40..49 of the second. */
static int row_of(int32_t id)
{
    for (int i = 0; i < 50; i++)
        if (stream_id(i < 40 ? (uint64_t)i * T : SECOND + (uint64_t)(i - 40) * T, VOCAB) == id)
            return i;
    fail_msg("id %d starts no row", id);
    return -1;
}

static void each_source_has_epochs_of_its_own(void **state)
{
    static const double weights[] = { 1, 3 };
    struct tr_data *d = open_two(*state, weights, true);
    struct rows r = rows_new(1, T);
    int seen[50] = { 0 }, n_first = 0, n_second = 0, same_order = 0, order[10];
    assert_int_equal(tr_data_rows(d), 50);
    for (uint64_t g = 0; g < 160; g++) {
        int64_t n_targets;
        struct tr_proof_row proof;
        assert_ok(tr_data_fill(d, g, 1, 1000, &r.b, &n_targets));
        int row = row_of(r.b.tokens[0]);
        bool is_first = row < 40;
        assert_ok(tr_data_prove(d, NULL, g, &proof));
        assert_int_equal(proof.i_source, !is_first);
        assert_int_equal(proof.epoch, is_first ? n_first / 40 : n_second / 10);
        tr_proof_row_release(&proof);
        n_first += is_first;
        n_second += !is_first;
        if (!is_first && n_second <= 10)
            order[n_second - 1] = row;
        else if (!is_first && n_second <= 20)
            same_order += order[n_second - 11] == row;
        /* after e epochs of a source, each of its rows was seen e or e + 1 times */
        seen[row]++;
        assert_int_equal(seen[row] - 1, is_first ? (n_first - 1) / 40 : (n_second - 1) / 10);
    }
    assert_int_equal(n_first, 40);
    assert_int_equal(n_second, 120);
    assert_true(same_order < 8); /* another order in the second epoch */
    rows_free(&r);
    tr_data_close(d);
}

static void equal_weights_of_one_are_the_plain_data_set(void **state)
{
    static const double ones[] = { 1, 1 }, twos[] = { 2, 2 };
    struct tr_data_info none, one, two;
    struct tr_data *d = open_two(*state, NULL, true);
    tr_data_get_info(d, &none);
    tr_data_close(d);
    d = open_two(*state, ones, true);
    tr_data_get_info(d, &one);
    tr_data_close(d);
    assert_true(tr_hash_eq(none.hash, one.hash));
    d = open_two(*state, twos, true); /* half and half, whatever their sizes */
    tr_data_get_info(d, &two);
    assert_false(tr_hash_eq(none.hash, two.hash));
    struct rows r = rows_new(1, T);
    int n_second = 0;
    for (uint64_t g = 0; g < 50; g++) {
        int64_t n_targets;
        assert_ok(tr_data_fill(d, g, 1, 50, &r.b, &n_targets));
        n_second += row_of(r.b.tokens[0]) >= 40;
    }
    assert_int_equal(n_second, 25);
    rows_free(&r);
    tr_data_close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_prefix_has_the_floor_or_ceiling_of_each_share),
        cmocka_unit_test(weights_that_cannot_be_exact_are_refused),
        TEST(each_source_has_epochs_of_its_own),
        TEST(equal_weights_of_one_are_the_plain_data_set),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
