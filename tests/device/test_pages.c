/* Pages of the host: as they are reserved, and after they were touched by all threads, they are zero and can be
 * written, whatever the node that they are asked from. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "device/device_impl.h"

static void touched_pages_are_zero_and_writable(void **state)
{
    (void)state;
    static const size_t sizes[] = { 1, 4096, 4097, (64 << 20) - 1, (200 << 20) + 12345 };
    struct tr_device d;
    assert_int_equal(tr_device_open("cpu", &d), TR_OK);
    for (size_t i = 0; i < TR_COUNT_OF(sizes); i++)
        for (int node = -1; node < 2000; node = node < 1 ? node + 1 : node * 1999) { /* nodes that are not there */
            char *p = NULL;
            void *base = NULL;
            assert_int_equal(tr_pages_reserve(&d, TR_SPACE_PINNED, sizes[i], "test", &base), TR_OK);
            tr_pages_touch(base, sizes[i], node);
            p = base;
            for (size_t k = 0; k < sizes[i]; k += 4093)
                assert_int_equal(p[k], 0);
            p[sizes[i] - 1] = 1;
            tr_pages_release(&d, TR_SPACE_PINNED, base, sizes[i]);
        }
    tr_device_close(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(touched_pages_are_zero_and_writable) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
