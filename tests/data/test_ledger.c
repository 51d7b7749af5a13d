/* test_ledger.c - G13: whatever the world sizes and wherever runs are killed and resumed, every sample of every epoch
 * is trained on exactly once. The ledger is a sum, free of order, of a hash of each (epoch, sample) and of what the
 * sample held; a run that is disturbed must have the sum of one that is not. */
#include "data/data_test.h"

enum { VOCAB = 500, T = 16, B = 24, WAIT_US = 10000000 };

#define TEST(f) cmocka_unit_test_setup_teardown(f, scratch_setup, scratch_teardown)

struct ledger {
    uint64_t sum, n_samples, n_targets;
};

static struct tr_data *open_data(struct scratch *s, enum tr_packing packing, const double *weights)
{
    struct tr_data_options o = {
        .row_tokens = T, .vocab_size = VOCAB, .shuffle = true, .seed = 17, .packing = packing, .weights = weights
    };
    struct tr_data *d = NULL;
    int64_t lengths[80];
    char a[TR_PATH_MAX], b[TR_PATH_MAX];
    for (size_t i = 0; i < TR_COUNT_OF(lengths); i++)
        lengths[i] = 1 + (int64_t)(tr_philox(3, 0, i).v[0] % 25);
    put_shard(in_scratch(s, "a.trtok"), lengths, 80, 0, VOCAB, true);
    memcpy(a, s->path, sizeof a);
    put_shard(in_scratch(s, "b.trtok"), lengths, 30, 5000, VOCAB, true);
    memcpy(b, s->path, sizeof b);
    const char *paths[] = { a, b };
    assert_ok(tr_data_open(paths, 2, NULL, &o, &d));
    return d;
}

/* The rows of one rank in one step: what the trainer would commit. */
static void commit(struct ledger *l, const struct tr_step_batch *step, const struct tr_loader_shape *s, uint64_t total)
{
    for (int64_t m = 0; m < step->n_micro; m++)
        for (int64_t r = 0; r < s->micro_rows; r++) {
            uint64_t g = step->first_sample + (uint64_t)(s->first_row + m * s->micro_rows + r);
            const struct tr_batch *b = &step->micro[m];
            struct {
                uint64_t g;
                struct tr_hash128 tokens, targets;
            } entry = { g, tr_hash(b->tokens + r * T, T * 4), tr_hash(b->targets + r * T, T * 4) };
            if (g >= total)
                continue;
            assert_int_equal(b->sample[r * T], g * T);
            l->sum += tr_hash(&entry, sizeof entry).lo;
            l->n_samples++;
        }
    l->n_targets += (uint64_t)step->n_targets_local;
}

/* All ranks of a world train steps [first, last). */
static void run(const struct tr_data *d, int world, uint64_t first, uint64_t last, uint64_t total, struct ledger *l)
{
    for (int rank = 0; rank < world; rank++) {
        /* ranks own rows rank * B / world and on: worlds that do not divide B get uneven slices */
        int64_t begin = (int64_t)B * rank / world, end = (int64_t)B * (rank + 1) / world;
        struct tr_loader_shape s = { T, B, begin, end - begin, 1, 2 };
        struct tr_loader *loader = NULL;
        size_t n = tr_loader_bytes(&s);
        void *mem = aligned_alloc(64, n);
        assert_ok(tr_loader_open(d, &s, first, last, total, mem, n, &loader));
        for (uint64_t step = first; step < last; step++) {
            struct tr_step_batch *b = NULL;
            assert_ok(tr_loader_next(loader, &b, WAIT_US));
            assert_int_equal(b->step, step);
            commit(l, b, &s, total);
        }
        tr_loader_close(loader);
        free(mem);
    }
}

/* Two epochs hold the same rows, each once, in another order: equal sums of what the samples hold, free of order. */
static void check_epochs(const struct tr_data *d)
{
    uint64_t n = tr_data_rows(d), sum[2] = { 0 }, first[2] = { 0 };
    struct rows r = rows_new(1, T);
    for (uint64_t g = 0; g < 2 * n; g++) {
        int64_t n_targets;
        assert_ok(tr_data_fill(d, g, 1, 2 * n, &r.b, &n_targets));
        uint64_t row = tr_hash(r.b.tokens, T * 4).lo ^ tr_hash(r.b.targets, T * 4).hi;
        sum[g / n] += row;
        first[g / n] += g % n < n / 2 ? row : 0;
    }
    assert_int_equal(sum[0], sum[1]);
    assert_int_not_equal(first[0], first[1]);
    rows_free(&r);
}

static void check_ledger(const struct tr_data *d)
{
    uint64_t total = 2 * tr_data_rows(d) + 7, n_steps = tr_data_steps(total, B);
    struct ledger want = { 0 };
    run(d, 1, 0, n_steps, total, &want);
    assert_int_equal(want.n_samples, total);
    for (int world = 1; world <= 8; world++) { /* undisturbed */
        struct ledger got = { 0 };
        run(d, world, 0, n_steps, total, &got);
        assert_memory_equal(&got, &want, sizeof got);
    }
    for (uint64_t trial = 0; trial < 12; trial++) { /* killed and resumed on another world, several times */
        struct ledger got = { 0 };
        uint64_t saved = 0;
        for (uint64_t k = 0; saved < n_steps; k++) {
            struct tr_philox x = tr_philox(trial, 7, k);
            uint64_t left = n_steps - saved, n = 1 + x.v[0] % left, lost = x.v[1] % 3;
            int world = 1 + (int)(x.v[2] % 8);
            struct ledger forgotten = { 0 };
            run(d, world, saved, saved + n, total, &got);
            saved += n;
            /* steps after the last checkpoint are trained, lost with the process, and trained again */
            if (saved < n_steps)
                run(d, world, saved, saved + (lost < n_steps - saved ? lost : n_steps - saved), total, &forgotten);
        }
        assert_memory_equal(&got, &want, sizeof got);
    }
}

static void g13_a_stream_is_seen_exactly_once_over_worlds_and_resumes(void **state)
{
    struct tr_data *d = open_data(*state, TR_PACK_STREAM, NULL);
    check_epochs(d);
    check_ledger(d);
    tr_data_close(d);
}

static void g13_packed_rows_are_seen_exactly_once_over_worlds_and_resumes(void **state)
{
    struct tr_data *d = open_data(*state, TR_PACK_BESTFIT, NULL);
    check_epochs(d);
    check_ledger(d);
    tr_data_close(d);
}

static void g13_mixtures_are_seen_exactly_once_over_worlds_and_resumes(void **state)
{
    static const double weights[] = { 0.3, 0.7 };
    struct tr_data *d = open_data(*state, TR_PACK_AUTO, weights);
    check_ledger(d);
    tr_data_close(d);
}

/* The ledger can fail: one sample twice or one left out changes it. */
static void a_repeated_or_lost_step_shows_in_the_ledger(void **state)
{
    struct tr_data *d = open_data(*state, TR_PACK_STREAM, NULL);
    uint64_t total = 2 * tr_data_rows(d), n_steps = tr_data_steps(total, B);
    struct ledger want = { 0 }, twice = { 0 }, lost = { 0 };
    run(d, 2, 0, n_steps, total, &want);
    run(d, 2, 0, 2, total, &twice);
    run(d, 2, 1, n_steps, total, &twice);
    run(d, 2, 0, 1, total, &lost);
    run(d, 2, 2, n_steps, total, &lost);
    assert_int_not_equal(want.sum, twice.sum);
    assert_int_not_equal(want.sum, lost.sum);
    tr_data_close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(g13_a_stream_is_seen_exactly_once_over_worlds_and_resumes),
        TEST(g13_packed_rows_are_seen_exactly_once_over_worlds_and_resumes),
        TEST(g13_mixtures_are_seen_exactly_once_over_worlds_and_resumes),
        TEST(a_repeated_or_lost_step_shows_in_the_ledger),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
