/* A file as a place: what a job writes is what a job reads and what the mapping shows, in any order, by io_uring and
 * without it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>

#include "device/device.h"

enum { RANGE = 5 * (1 << 20) + TR_DISK_ALIGN, RANGES = 3, ROUNDS = 12 };

static void fill(char *p, int seed)
{
    for (size_t i = 0; i < RANGE; i++)
        p[i] = (char)(i * 31 + i / 4096 + (size_t)seed * 7);
}

static void write_and_read(const char *dir)
{
    char *memory = aligned_alloc(TR_DISK_ALIGN, 2 * TR_DISK_JOBS * RANGE), *want = malloc(RANGE);
    struct tr_spill *d = NULL;
    int last[RANGES] = { 0 };
    assert_non_null(memory);
    assert_non_null(want);
    assert_int_equal(tr_spill_open(dir, RANGES * RANGE, memory, 2 * TR_DISK_JOBS * RANGE, &d), TR_OK);
    for (size_t i = 0; i < RANGES * RANGE; i += 4096)
        assert_int_equal(tr_spill_base(d)[i], 0);
    for (int round = 0; round < ROUNDS; round++) {
        int job = round % TR_DISK_JOBS, range = round % RANGES;
        char *out = memory + (size_t)(TR_DISK_JOBS + job) * RANGE, *in = memory + (size_t)job * RANGE;
        assert_int_equal(tr_spill_wait(d, true, job), TR_OK);
        fill(out, last[range] = round + 1);
        tr_spill_start(d, true, job, (size_t)range * RANGE, out, RANGE);
        tr_spill_start(d, false, job, (size_t)range * RANGE, in, RANGE); /* waits for the write */
        assert_int_equal(tr_spill_wait(d, false, job), TR_OK);
        assert_memory_equal(in, out, RANGE);
    }
    assert_int_equal(tr_spill_sync(d), TR_OK);
    for (int range = 0; range < RANGES; range++) {
        fill(want, last[range]);
        assert_memory_equal(tr_spill_base(d) + (size_t)range * RANGE, want, RANGE);
    }
    /* What the host writes through the mapping, a job reads. */
    fill(tr_spill_base(d), 99);
    tr_spill_changed(d, 0);
    tr_spill_start(d, false, 0, 0, memory, RANGE);
    assert_int_equal(tr_spill_wait(d, false, 0), TR_OK);
    assert_memory_equal(memory, tr_spill_base(d), RANGE);
    tr_spill_close(d);
    free(memory);
    free(want);
}

static void ranges_keep_their_bytes(void **state)
{
    (void)state;
    write_and_read("/tmp");
    write_and_read("/dev/shm");
}

static void without_io_uring_too(void **state)
{
    (void)state;
    assert_int_equal(tr_failpoint_setup("offload.ring:error:1,offload.ring:error:2", 0), TR_OK);
    write_and_read("/tmp");
    assert_int_equal(tr_failpoint_setup("", 0), TR_OK);
}

static void what_cannot_be_opened_is_named(void **state)
{
    struct tr_spill *d = NULL;
    char memory[64];
    (void)state;
    assert_int_equal(tr_spill_open("/nowhere", 1 << 20, memory, sizeof memory, &d), TR_USAGE);
    assert_non_null(strstr(tr_error_text(), "/nowhere: No such file or directory"));
    assert_int_equal(tr_spill_open("/dev/shm", (size_t)1 << 50, memory, sizeof memory, &d), TR_USAGE);
    assert_non_null(strstr(tr_error_text(), "does not fit: a rank needs 1"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranges_keep_their_bytes),
        cmocka_unit_test(without_io_uring_too),
        cmocka_unit_test(what_cannot_be_opened_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
