/* test_streams.c - devices as rows: what every row promises about spaces, streams and events; and the device `threads`,
 * whose streams are threads with random delays: order within a stream, events across streams, the same delays from the
 * same seed. Clean under TSan, which would see an order that comes from anything but the rules above. */
#include "device/device.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

enum { N = 64, N_SEEDS = 6 };

/* A kernel call of this test: appends a number to a list. */
struct tr_call {
    int *list, *n;
    int value;
};

static void append(const struct tr_call *c)
{
    c->list[(*c->n)++] = c->value;
}

static void launch(struct tr_device *d, enum tr_stream s, int *list, int *n, int value)
{
    struct tr_call c = { list, n, value };
    d->row->stream->launch(d, s, append, &c, sizeof c);
    memset(&c, 0xff, sizeof c); /* a launch keeps its own copy */
}

static void open_seeded(struct tr_device *d, uint64_t seed)
{
    assert_int_equal(tr_device_open("threads", d), TR_OK);
    tr_threads_delays(d, seed, 100);
}

static void a_stream_keeps_its_order(void **state)
{
    (void)state;
    const enum tr_stream streams[] = { TR_STREAM_COMPUTE, TR_STREAM_COMM, TR_STREAM_IN, TR_STREAM_OUT };
    for (uint64_t seed = 1; seed <= N_SEEDS; seed++) {
        struct tr_device d;
        int list[TR_COUNT_OF(streams)][N] = { 0 }, n[TR_COUNT_OF(streams)] = { 0 };
        open_seeded(&d, seed);
        for (int i = 0; i < N; i++)
            for (size_t s = 0; s < TR_COUNT_OF(streams); s++)
                launch(&d, streams[s], list[s], &n[s], i);
        assert_int_equal(tr_device_sync_all(&d), TR_OK);
        for (size_t s = 0; s < TR_COUNT_OF(streams); s++)
            for (int i = 0; i < N; i++)
                assert_int_equal(list[s][i], i);
        tr_device_close(&d);
    }
}

/* One list for two streams: only events keep its appends apart and in order. */
static void events_order_two_streams(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= N_SEEDS; seed++) {
        struct tr_device d;
        void *there = NULL, *back = NULL;
        int list[2 * N] = { 0 }, n = 0;
        open_seeded(&d, seed);
        assert_int_equal(tr_stream_event_open(&d, &there), TR_OK);
        assert_int_equal(tr_stream_event_open(&d, &back), TR_OK);
        for (int i = 0; i < N; i++) {
            tr_stream_wait(&d, TR_STREAM_IN, back); /* the first time it was never recorded, and holds nothing */
            launch(&d, TR_STREAM_IN, list, &n, 2 * i);
            tr_stream_record(&d, TR_STREAM_IN, there);
            tr_stream_wait(&d, TR_STREAM_COMPUTE, there);
            launch(&d, TR_STREAM_COMPUTE, list, &n, 2 * i + 1);
            tr_stream_record(&d, TR_STREAM_COMPUTE, back);
        }
        tr_stream_wait(&d, TR_STREAM_HOST, back); /* blocks this thread */
        assert_int_equal(n, 2 * N);
        for (int i = 0; i < 2 * N; i++)
            assert_int_equal(list[i], i);
        assert_int_equal(tr_device_sync_all(&d), TR_OK);
        tr_stream_event_close(&d, there);
        tr_stream_event_close(&d, back);
        tr_device_close(&d);
    }
}

/* A queue holds a bounded number of jobs; issuing more waits for the stream instead of losing them. */
static void a_full_queue_loses_nothing(void **state)
{
    (void)state;
    enum { MANY = 3000 };
    static int list[MANY];
    struct tr_device d;
    int n = 0;
    assert_int_equal(tr_device_open("threads", &d), TR_OK);
    tr_threads_delays(&d, 1, 0);
    for (int i = 0; i < MANY; i++)
        launch(&d, TR_STREAM_OUT, list, &n, i);
    assert_int_equal(tr_device_sync(&d, TR_STREAM_OUT), TR_OK);
    assert_int_equal(n, MANY);
    for (int i = 0; i < MANY; i++)
        assert_int_equal(list[i], i);
    tr_device_close(&d);
}

/* Two streams that append to lists of their own, and the times at which they did. */
static int64_t times[2][N];

static void note_time(const struct tr_call *c)
{
    times[c->value][(*c->n)++] = tr_clock_us();
}

static int64_t longest_gap(uint64_t seed, int max_us)
{
    struct tr_device d;
    int n[2] = { 0 };
    assert_int_equal(tr_device_open("threads", &d), TR_OK);
    tr_threads_delays(&d, seed, max_us);
    for (int i = 0; i < N; i++)
        for (int s = 0; s < 2; s++) {
            struct tr_call c = { NULL, &n[s], s };
            d.row->stream->launch(&d, s ? TR_STREAM_IN : TR_STREAM_COMPUTE, note_time, &c, sizeof c);
        }
    assert_int_equal(tr_device_sync_all(&d), TR_OK);
    tr_device_close(&d);
    int64_t most = 0;
    for (int i = 1; i < N; i++)
        most = tr_max64(most, times[0][i] - times[0][i - 1]);
    return most;
}

/* 64 jobs with delays of up to 20 ms: by chance alone no seed leaves all gaps below a fifth of that. */
static void jobs_are_delayed_at_random(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 2; seed++)
        assert_true(longest_gap(seed, 20000) > 4000);
}

/* What every row that opens here promises. */
static void every_row_keeps_the_contract(void **state)
{
    (void)state;
    const char *const names[] = { "cpu", "phantom", "threads" };
    for (size_t i = 0; i < TR_COUNT_OF(names); i++) {
        struct tr_device d;
        void *base[TR_SPACE_DISK] = { NULL }, *event = NULL;
        bool has_memory = strcmp(names[i], "phantom") != 0;
        assert_int_equal(tr_device_open(names[i], &d), TR_OK);
        assert_string_equal(d.row->name, names[i]);
        for (int s = 0; s < TR_SPACE_DISK; s++)
            assert_int_equal(tr_device_reserve(&d, (enum tr_space)s, 4096, "test", &base[s]), TR_OK);
        assert_int_equal(d.reserved_bytes, 3 * 4096);
        assert_int_equal(d.n_reserves, 3);
        assert_int_equal(tr_stream_event_open(&d, &event), TR_OK);
        if (has_memory)
            memset(base[TR_SPACE_HOST], 7, 4096);
        tr_device_copy(&d, TR_STREAM_IN, base[TR_SPACE_DEVICE], base[TR_SPACE_HOST], 4096);
        tr_stream_record(&d, TR_STREAM_IN, event);
        tr_stream_wait(&d, TR_STREAM_OUT, event);
        tr_device_copy(&d, TR_STREAM_OUT, base[TR_SPACE_PINNED], base[TR_SPACE_DEVICE], 4096);
        assert_int_equal(tr_device_sync(&d, TR_STREAM_OUT), TR_OK);
        if (has_memory)
            assert_memory_equal(base[TR_SPACE_PINNED], base[TR_SPACE_HOST], 4096);
        tr_device_clear(&d, TR_STREAM_COMPUTE, base[TR_SPACE_DEVICE], 4096);
        assert_int_equal(tr_device_sync_all(&d), TR_OK);
        if (has_memory)
            assert_int_equal(*(char *)base[TR_SPACE_DEVICE], 0);
        assert_false(tr_device_record(&d)); /* no capture */
        assert_null(tr_device_stream(&d, TR_STREAM_COMPUTE));
        tr_device_note(&d, TR_IO, "a failure of job %d", 1);
        tr_device_note(&d, TR_IO, "a later one");
        assert_int_equal(tr_device_sync(&d, TR_STREAM_COMPUTE), TR_IO);
        assert_string_equal(tr_error_text(), "a failure of job 1");
        assert_int_equal(tr_device_sync(&d, TR_STREAM_COMPUTE), TR_OK);
        tr_stream_event_close(&d, event);
        for (int s = 0; s < TR_SPACE_DISK; s++)
            tr_device_release(&d, (enum tr_space)s, base[s], 4096);
        assert_int_equal(d.reserved_bytes, 0);
        tr_device_close(&d);
    }
}

/* Plans need the facts of devices whose module is not here; users are offered none of the test devices. */
static void rows_are_found_by_name(void **state)
{
    (void)state;
    struct tr_device d;
    assert_non_null(tr_device_row("cuda"));
    assert_false(tr_device_row("cuda")->is_host);
    assert_null(tr_device_row("abacus"));
    assert_true(tr_device_best()->is_offered && tr_device_is_present(tr_device_best()));
    assert_false(tr_device_row("phantom")->is_offered || tr_device_row("threads")->is_offered);
    assert_int_equal(tr_device_open("abacus", &d), TR_USAGE);
    assert_non_null(strstr(tr_error_text(), "device \"abacus\" is not known; there are: "));
    tr_device_close(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_found_by_name),     cmocka_unit_test(every_row_keeps_the_contract),
        cmocka_unit_test(a_stream_keeps_its_order),   cmocka_unit_test(events_order_two_streams),
        cmocka_unit_test(a_full_queue_loses_nothing), cmocka_unit_test(jobs_are_delayed_at_random),
    };
    return cmocka_run_group_tests_name("device streams", tests, NULL, NULL);
}
