/* test_rows.c - rows, targets, positions and the global sample index, against a brute-force model of the stream. */
#include "data/data_test.h"

enum { VOCAB = 500 };

struct stream { /* what the rows must be, one entry a token */
    int64_t n_tokens;
    int64_t doc[4096]; /* number of the token's document */
};

/* Three shards (16 bits, masked or not) with short, long and one-token documents. */
static struct tr_data *open_stream(struct scratch *s, struct stream *m, int64_t row_tokens, bool shuffle, uint64_t seed,
                                   bool has_mask)
{
    static const int64_t a[] = { 3, 1, 40, 7 }, b[] = { 1 }, c[] = { 200, 5, 5, 1, 1, 90 };
    static const struct {
        const char *name;
        const int64_t *lengths;
        size_t n;
    } shards[] = { { "a.trtok", a, TR_COUNT_OF(a) },
                   { "b.trtok", b, TR_COUNT_OF(b) },
                   { "c.trtok", c, TR_COUNT_OF(c) } };
    struct tr_data_options o = { .row_tokens = row_tokens, .vocab_size = VOCAB, .shuffle = shuffle, .seed = seed };
    struct tr_data *d = NULL;
    int64_t doc = 0;
    m->n_tokens = 0;
    for (size_t i = 0; i < TR_COUNT_OF(shards); i++) {
        put_shard(in_scratch(s, shards[i].name), shards[i].lengths, shards[i].n, (uint64_t)m->n_tokens, VOCAB,
                  has_mask);
        for (size_t k = 0; k < shards[i].n; k++, doc++)
            for (int64_t j = 0; j < shards[i].lengths[k]; j++)
                m->doc[m->n_tokens++] = doc;
    }
    const char *pattern = in_scratch(s, "*.trtok");
    assert_ok(tr_data_open(&pattern, 1, NULL, &o, &d));
    return d;
}

/* Row `row` of the stream stands at element `at` of the batch as sample g. Returns its valid targets. */
static int64_t check_row(const struct stream *m, const struct tr_batch *b, int64_t at, int64_t row, int64_t row_tokens,
                         uint64_t g, bool has_mask)
{
    int64_t n_targets = 0, begin = 0;
    for (int64_t t = 0; t < row_tokens; t++) {
        int64_t j = row * row_tokens + t;
        bool is_pad = j >= m->n_tokens;
        bool starts = t == 0 || (is_pad ? j == m->n_tokens : m->doc[j] != m->doc[j - 1]);
        bool has_target =
            !is_pad && j + 1 < m->n_tokens && m->doc[j + 1] == m->doc[j] && !(has_mask && (j + 1) % 3 == 0);
        if (starts)
            begin = t;
        assert_int_equal(b->tokens[at + t], is_pad ? 0 : stream_id((uint64_t)j, VOCAB));
        assert_int_equal(b->targets[at + t], has_target ? stream_id((uint64_t)j + 1, VOCAB) : TR_TARGET_NONE);
        assert_int_equal(b->begin[at + t], at + begin);
        assert_int_equal(b->positions[at + t], t - begin);
        assert_int_equal(b->sample[at + t], (int64_t)g * row_tokens + begin);
        n_targets += has_target;
    }
    return n_targets;
}

static void rows_hold_the_stream_with_targets_positions_and_boundaries(void **state)
{
    static const int64_t row_tokens[] = { 1, 2, 7, 16, 64, 354, 1000 }; /* 354 = the stream */
    struct stream m;
    for (size_t i = 0; i < 2 * TR_COUNT_OF(row_tokens); i++) {
        int64_t T = row_tokens[i / 2], n_targets, want = 0, count;
        bool has_mask = i % 2;
        struct tr_data *d = open_stream(*state, &m, T, false, 0, has_mask);
        int64_t n = (int64_t)tr_data_rows(d);
        assert_int_equal(m.n_tokens, 354);
        assert_int_equal(n, (m.n_tokens + T - 1) / T);
        struct rows r = rows_new(n, T);
        assert_ok(tr_data_fill(d, 0, n, (uint64_t)n, &r.b, &n_targets));
        for (int64_t row = 0; row < n; row++)
            want += check_row(&m, &r.b, row * T, row, T, (uint64_t)row, has_mask);
        assert_int_equal(n_targets, want);
        assert_ok(tr_data_count(d, 0, n, (uint64_t)n, &count));
        assert_int_equal(count, want);
        rows_free(&r);
        tr_data_close(d);
    }
}

static void every_epoch_covers_every_row_once_in_its_own_order(void **state)
{
    enum { T = 5, EPOCHS = 4 };
    struct stream m;
    struct tr_data *d = open_stream(*state, &m, T, true, 42, false);
    uint64_t n = tr_data_rows(d);
    struct rows r = rows_new(1, T);
    int64_t order[EPOCHS][128], n_targets;
    assert_true(n <= 128);
    for (uint64_t e = 0; e < EPOCHS; e++) {
        bool seen[128] = { false };
        for (uint64_t i = 0; i < n; i++) {
            assert_ok(tr_data_fill(d, e * n + i, 1, EPOCHS * n, &r.b, &n_targets));
            /* 7 and VOCAB have no common factor, so that an id tells its place in the stream */
            int64_t row = 0;
            while (stream_id((uint64_t)(row * T), VOCAB) != r.b.tokens[0])
                row++;
            assert_true(row < (int64_t)n);
            assert_false(seen[row]);
            seen[row] = true;
            order[e][i] = row;
            assert_int_equal(check_row(&m, &r.b, 0, row, T, e * n + i, false), n_targets);
        }
        for (uint64_t f = 0; f < e; f++)
            assert_memory_not_equal(order[e], order[f], n * sizeof order[e][0]);
    }
    rows_free(&r);
    tr_data_close(d);
}

static void any_split_of_a_batch_gives_the_same_rows(void **state)
{
    enum { T = 16, B = 12, TOTAL = 60 };
    struct stream m;
    struct tr_data *d = open_stream(*state, &m, T, true, 7, true);
    struct rows whole = rows_new(B, T), part = rows_new(B, T);
    int64_t n_whole, n_part, n_count;
    for (uint64_t first = 0; first < TOTAL; first += B) {
        assert_ok(tr_data_fill(d, first, B, TOTAL, &whole.b, &n_whole));
        for (int64_t k = 1; k <= B; k++) {
            int64_t sum = 0;
            for (int64_t r = 0; r < B; r += k) {
                int64_t n = r + k <= B ? k : B - r;
                assert_ok(tr_data_fill(d, first + (uint64_t)r, n, TOTAL, &part.b, &n_part));
                assert_same_rows(&whole.b, (size_t)(r * T), &part.b, (size_t)(n * T), (int32_t)(r * T));
                assert_ok(tr_data_count(d, first + (uint64_t)r, n, TOTAL, &n_count));
                assert_int_equal(n_count, n_part);
                sum += n_part;
            }
            assert_int_equal(sum, n_whole);
        }
    }
    rows_free(&whole);
    rows_free(&part);
    tr_data_close(d);
}

static void samples_beyond_the_total_are_padding_and_steps_cover_the_rest(void **state)
{
    enum { T = 16, B = 8 };
    struct stream m;
    struct tr_data *d = open_stream(*state, &m, T, true, 7, false);
    uint64_t total = 2 * tr_data_rows(d); /* 2 epochs of 23 rows */
    assert_int_equal(tr_data_steps(total, B), 6);
    assert_int_equal(tr_data_steps(48, B), 6);
    assert_int_equal(tr_data_steps(49, B), 7);
    struct rows r = rows_new(B, T);
    int64_t n_targets, sum = 0, n_padding = 0, epoch;
    for (uint64_t step = 0; step < 6; step++) {
        assert_ok(tr_data_fill(d, step * B, B, total, &r.b, &n_targets));
        sum += n_targets;
        for (uint64_t i = 0; i < B * T; i++)
            if (step * B + i / T >= total) {
                assert_int_equal(r.b.targets[i], TR_TARGET_NONE);
                assert_int_equal(r.b.tokens[i], 0);
                assert_int_equal(r.b.begin[i], i / T * T);
                n_padding++;
            }
    }
    assert_int_equal(n_padding, 2 * T);
    assert_ok(tr_data_count(d, 0, (int64_t)tr_data_rows(d), total, &epoch));
    assert_int_equal(epoch, m.n_tokens - 11); /* all but the last token of each document */
    assert_int_equal(sum, 2 * epoch);
    rows_free(&r);
    tr_data_close(d);
}

static void hash_follows_content_order_and_options(void **state)
{
    struct stream m;
    struct tr_data_info base, other;
    static const struct {
        int64_t row_tokens;
        bool shuffle;
        uint64_t seed;
        bool has_mask, is_same;
    } cases[] = {
        { 16, true, 1, false, true },  { 17, true, 1, false, false }, { 16, false, 1, false, false },
        { 16, true, 2, false, false }, { 16, true, 1, true, false },
    };
    struct tr_data *d = open_stream(*state, &m, 16, true, 1, false);
    tr_data_get_info(d, &base);
    tr_data_close(d);
    assert_int_equal(base.n_docs, 11);
    assert_int_equal(base.n_tokens, 354);
    assert_int_equal(base.n_shards, 3);
    for (size_t i = 0; i < TR_COUNT_OF(cases); i++) {
        d = open_stream(*state, &m, cases[i].row_tokens, cases[i].shuffle, cases[i].seed, cases[i].has_mask);
        tr_data_get_info(d, &other);
        assert_int_equal(tr_hash_eq(base.hash, other.hash), cases[i].is_same);
        tr_data_close(d);
    }
}

/* More shards than descriptors are kept: those beyond are opened when they are read. */
static void many_shards_are_read_with_few_descriptors(void **state)
{
    enum { N = 300 };
    struct scratch *s = *state;
    struct tr_data_options o = { .row_tokens = 64, .vocab_size = VOCAB };
    struct tr_data *d = NULL;
    int64_t length = 3, n_targets;
    for (int i = 0; i < N; i++) {
        char name[32];
        snprintf(name, sizeof name, "%04d.trtok", i);
        put_shard(in_scratch(s, name), &length, 1, (uint64_t)i * 3, VOCAB, false);
    }
    const char *path = s->dir;
    assert_ok(tr_data_open(&path, 1, NULL, &o, &d));
    int64_t n = (int64_t)tr_data_rows(d);
    struct rows r = rows_new(n, 64);
    assert_ok(tr_data_fill(d, 0, n, (uint64_t)n, &r.b, &n_targets));
    assert_int_equal(n_targets, 2 * N);
    for (int j = 0; j < 3 * N; j++)
        assert_int_equal(r.b.tokens[j], stream_id((uint64_t)j, VOCAB));
    rows_free(&r);
    tr_data_close(d);
}

static void options_and_ranges_out_of_bounds_are_refused(void **state)
{
    struct stream m;
    struct scratch *s = *state;
    struct tr_data *d = open_stream(s, &m, 16, true, 1, false), *none = NULL;
    struct tr_data_options o = { .row_tokens = 0, .vocab_size = VOCAB };
    int64_t n_targets;
    struct tr_batch b = { 0 };
    const char *path = s->path;
    assert_refused(tr_data_fill(d, 0, 0, 1, &b, &n_targets), TR_USAGE, "0 rows");
    assert_refused(tr_data_fill(d, 0, INT64_MAX, 1, &b, &n_targets), TR_USAGE, "rows of 16");
    assert_refused(tr_data_fill(d, UINT64_MAX, 1, UINT64_MAX, &b, &n_targets), TR_USAGE, "beyond");
    assert_refused(tr_data_open(&path, 1, NULL, &o, &none), TR_USAGE, "sequence_length 0");
    o = (struct tr_data_options){ .row_tokens = 4, .vocab_size = 0 };
    assert_refused(tr_data_open(&path, 1, NULL, &o, &none), TR_USAGE, "vocab_size 0");
    tr_data_close(d);
}

#define T(f) cmocka_unit_test_setup_teardown(f, scratch_setup, scratch_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(rows_hold_the_stream_with_targets_positions_and_boundaries),
        T(every_epoch_covers_every_row_once_in_its_own_order),
        T(any_split_of_a_batch_gives_the_same_rows),
        T(samples_beyond_the_total_are_padding_and_steps_cover_the_rest),
        T(hash_follows_content_order_and_options),
        T(many_shards_are_read_with_few_descriptors),
        T(options_and_ranges_out_of_bounds_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
