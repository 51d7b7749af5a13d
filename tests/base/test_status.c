/* Error texts: one per thread, replaced or prefixed, never cut without a terminator. */
#include "base/base.h"
#include <setjmp.h>
#include <stdarg.h>
#include <pthread.h>
#include <cmocka.h>

static void every_status_has_its_own_text(void **state)
{
    (void)state;
    for (int a = 0; a < TR_STATUS_COUNT; a++)
        for (int b = 0; b < a; b++)
            assert_string_not_equal(tr_status_str((enum tr_status)a), tr_status_str((enum tr_status)b));
    assert_string_equal(tr_status_str(TR_STATUS_COUNT), "unknown status");
}

static void fail_replaces_and_fail_at_prefixes(void **state)
{
    (void)state;
    assert_int_equal(tr_fail(TR_IO, "disk %d", 7), TR_IO);
    assert_string_equal(tr_error_text(), "disk 7");
    assert_int_equal(tr_fail_at(TR_IO, "shard %s: ", "a"), TR_IO);
    assert_string_equal(tr_error_text(), "shard a: disk 7");
    tr_fail(TR_IO, "again: %s", tr_error_text()); /* an argument may be the text itself */
    assert_string_equal(tr_error_text(), "again: shard a: disk 7");
    tr_error_clear();
    assert_string_equal(tr_error_text(), "");
}

static void long_texts_are_cut_and_terminated(void **state)
{
    (void)state;
    char big[12000];
    memset(big, 'x', sizeof big - 1);
    big[sizeof big - 1] = 0;
    tr_fail(TR_IO, "%s", big);
    assert_int_equal(strlen(tr_error_text()), 8191);
    tr_fail_at(TR_IO, "front: ");
    assert_int_equal(strlen(tr_error_text()), 8191);
    assert_memory_equal(tr_error_text(), "front: x", 8);
    tr_fail_at(TR_IO, "%s", big);
    assert_int_equal(strlen(tr_error_text()), 8191);
}

static void *fail_elsewhere(void *arg)
{
    (void)arg;
    tr_fail(TR_IO, "other thread");
    return NULL;
}

static void threads_do_not_share_their_text(void **state)
{
    (void)state;
    pthread_t t;
    tr_fail(TR_IO, "mine");
    assert_int_equal(pthread_create(&t, NULL, fail_elsewhere, NULL), 0);
    pthread_join(t, NULL);
    assert_string_equal(tr_error_text(), "mine");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_status_has_its_own_text),
        cmocka_unit_test(fail_replaces_and_fail_at_prefixes),
        cmocka_unit_test(long_texts_are_cut_and_terminated),
        cmocka_unit_test(threads_do_not_share_their_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
