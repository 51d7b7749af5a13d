/* test_loader.c - the loader gives what a direct fill gives, for any depth, slice and first step; and it fails cleanly.
 */
#include "data/data_test.h"

#include <unistd.h>

enum { T = 16, WAIT_US = 10000000 };

static struct tr_data *open_data(struct scratch *s)
{
    static const int64_t lengths[] = { 3, 100, 1, 40, 7, 200, 5, 90, 11 };
    struct tr_data_options o = { .row_tokens = T, .vocab_size = 500, .shuffle = true, .seed = 3 };
    struct tr_data *d = NULL;
    put_shard(in_scratch(s, "a.trtok"), lengths, TR_COUNT_OF(lengths), 0, 500, true);
    const char *path = s->path;
    assert_ok(tr_data_open(&path, 1, NULL, &o, &d));
    return d;
}

static struct tr_loader *open_loader(const struct tr_data *d, const struct tr_loader_shape *shape, uint64_t first,
                                     uint64_t last, uint64_t total, void **mem)
{
    struct tr_loader *l = NULL;
    size_t n = tr_loader_bytes(shape);
    assert_true(n > 0 && n % 64 == 0);
    *mem = aligned_alloc(64, n);
    assert_non_null(*mem);
    assert_ok(tr_loader_open(d, shape, first, last, total, *mem, n, &l));
    return l;
}

static void check_step(const struct tr_data *d, const struct tr_loader_shape *s, const struct tr_step_batch *b,
                       uint64_t step, uint64_t total)
{
    struct rows want = rows_new(s->micro_rows, s->row_tokens);
    int64_t n, sum = 0, all;
    assert_int_equal(b->step, step);
    assert_int_equal(b->first_sample, step * (uint64_t)s->batch_rows);
    assert_int_equal(b->n_micro, s->n_rows / s->micro_rows);
    uint64_t left = total - b->first_sample;
    assert_int_equal(b->n_samples, left < (uint64_t)s->batch_rows ? left : (uint64_t)s->batch_rows);
    for (int64_t i = 0; i < b->n_micro; i++) {
        uint64_t first = b->first_sample + (uint64_t)(s->first_row + i * s->micro_rows);
        assert_ok(tr_data_fill(d, first, s->micro_rows, total, &want.b, &n));
        assert_same_rows(&b->micro[i], 0, &want.b, want.n, 0);
        assert_int_equal(b->n_micro_targets[i], n);
        sum += n;
    }
    assert_int_equal(b->n_targets_local, sum);
    assert_ok(tr_data_count(d, b->first_sample, s->batch_rows, total, &all));
    assert_int_equal(b->n_targets, all);
    rows_free(&want);
}

static void loader_equals_direct_fill_for_every_slice_depth_and_start(void **state)
{
    static const struct tr_loader_shape shapes[] = {
        { T, 8, 0, 8, 2, 2 }, { T, 8, 0, 8, 8, 3 }, { T, 8, 4, 4, 1, 5 }, { T, 8, 2, 4, 2, 2 }, { T, 1, 0, 1, 1, 2 },
    };
    struct tr_data *d = open_data(*state);
    uint64_t total = 2 * tr_data_rows(d);
    for (size_t i = 0; i < TR_COUNT_OF(shapes); i++) {
        uint64_t n_steps = tr_data_steps(total, (uint64_t)shapes[i].batch_rows);
        for (uint64_t first = 0; first <= n_steps; first += 3) {
            void *mem;
            struct tr_step_batch *b = NULL;
            struct tr_loader *l = open_loader(d, &shapes[i], first, n_steps, total, &mem);
            for (uint64_t step = first; step < n_steps; step++) {
                assert_ok(tr_loader_next(l, &b, WAIT_US));
                assert_non_null(b);
                check_step(d, &shapes[i], b, step, total);
            }
            for (int again = 0; again < 2; again++) {
                assert_ok(tr_loader_next(l, &b, 0));
                assert_null(b);
            }
            tr_loader_close(l);
            free(mem);
        }
    }
    tr_data_close(d);
}

static void closing_early_is_clean(void **state)
{
    static const struct tr_loader_shape shape = { T, 4, 0, 4, 2, 3 };
    struct tr_data *d = open_data(*state);
    for (int n = 0; n < 4; n++) {
        void *mem;
        struct tr_step_batch *b = NULL;
        struct tr_loader *l = open_loader(d, &shape, 0, 1000000, 4000000, &mem);
        for (int i = 0; i < n; i++)
            assert_ok(tr_loader_next(l, &b, WAIT_US));
        tr_loader_close(l);
        free(mem);
    }
    tr_data_close(d);
}

static void an_error_of_the_thread_comes_out_after_the_good_steps_and_stays(void **state)
{
    static const struct tr_loader_shape shape = { T, 4, 0, 4, 2, 2 };
    struct scratch *s = *state;
    struct tr_data *d = open_data(s);
    struct tr_step_batch *b = NULL;
    void *mem;
    struct tr_loader *l = open_loader(d, &shape, 0, 1000, 4000, &mem);
    assert_ok(tr_loader_next(l, &b, WAIT_US));
    assert_int_equal(truncate(s->path, 150), 0);
    enum tr_status st = TR_OK;
    for (int i = 0; i < 4 && st == TR_OK; i++) /* steps made before the cut are still good */
        st = tr_loader_next(l, &b, WAIT_US);
    assert_int_equal(st, TR_IO);
    assert_refused(tr_loader_next(l, &b, WAIT_US), TR_IO,
                   "a.trtok"); /* seen as changed, or as cut in the middle of a read */
    tr_loader_close(l);
    free(mem);
    tr_data_close(d);
}

static void the_wait_is_bounded_and_can_go_on(void **state)
{
    static const struct tr_loader_shape shape = { T, 4, 0, 4, 2, 2 };
    struct tr_data *d = open_data(*state);
    struct tr_step_batch *b = NULL;
    void *mem;
    assert_ok(tr_failpoint_setup("data.load_step:delay300:1", 0));
    struct tr_loader *l = open_loader(d, &shape, 0, 3, 12, &mem);
    assert_refused(tr_loader_next(l, &b, 1000), TR_TIMEOUT, "step 0");
    for (uint64_t step = 0; step < 3; step++) {
        assert_ok(tr_loader_next(l, &b, WAIT_US));
        check_step(d, &shape, b, step, 12);
    }
    tr_loader_close(l);
    free(mem);
    assert_ok(tr_failpoint_setup("", 0));
    tr_data_close(d);
}

static void illegal_shapes_and_memory_are_refused(void **state)
{
    static const struct tr_loader_shape bad[] = {
        { 0, 8, 0, 8, 2, 2 },
        { T, 8, 0, 8, 3, 2 },
        { T, 8, 4, 8, 2, 2 },
        { T, 8, 0, 8, 2, 1 },
        { T, 8, -1, 4, 2, 2 },
        { INT64_MAX, 8, 0, 8, 2, 2 },
        { T, INT64_MAX, 0, INT64_MAX, 1, 2 },
    };
    static const struct tr_loader_shape good = { T, 8, 0, 8, 2, 2 }, other = { T + 1, 8, 0, 8, 2, 2 };
    struct tr_data *d = open_data(*state);
    struct tr_loader *l = NULL;
    for (size_t i = 0; i < TR_COUNT_OF(bad); i++)
        assert_int_equal(tr_loader_bytes(&bad[i]), 0);
    size_t n = tr_loader_bytes(&other);
    /* 2 slots of 4 micro-batches of 32 tokens of 40 bytes, and little else. */
    assert_in_range(tr_loader_bytes(&good), 2 * 8 * T * 40, 2 * 8 * T * 40 + 4096);
    void *mem = aligned_alloc(64, n);
    assert_refused(tr_loader_open(d, &bad[1], 0, 1, 8, mem, n, &l), TR_USAGE, "not a legal shape");
    assert_refused(tr_loader_open(d, &other, 0, 1, 8, mem, n, &l), TR_USAGE, "not a legal shape");
    assert_refused(tr_loader_open(d, &good, 0, 1, 8, mem, 100, &l), TR_USAGE, "100 bytes were given");
    assert_refused(tr_loader_open(d, &good, 2, 1, 8, mem, n, &l), TR_USAGE, "out of range");
    free(mem);
    tr_data_close(d);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, scratch_setup, scratch_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(loader_equals_direct_fill_for_every_slice_depth_and_start),
        TEST(closing_early_is_clean),
        TEST(an_error_of_the_thread_comes_out_after_the_good_steps_and_stays),
        TEST(the_wait_is_bounded_and_can_go_on),
        TEST(illegal_shapes_and_memory_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
