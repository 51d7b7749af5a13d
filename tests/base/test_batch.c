/* The parts of a micro-batch come from one list, and lie side by side in one piece of memory. */
#include "base/base.h"
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static void batch_parts_lie_side_by_side(void **state)
{
    (void)state;
    static char mem[4096];
    const int64_t n = 20; /* 80 and 160 bytes: padded to 128 and 192 */
    struct tr_batch b = tr_batch_in(mem, n);
    assert_int_equal(tr_batch_bytes(n), 8 * 128 + 192);
    assert_true((char *)b.tokens == mem && (char *)b.sample == mem + 4 * 128);
    for (int i = 0; i < TR_B_COUNT; i++)
        assert_true((char *)tr_batch_part(&b, (enum tr_batch_slot)i) == mem + 128 * i + (i > TR_B_SAMPLE ? 64 : 0));
    assert_string_equal(tr_batch_name(TR_B_POSITIONS), "positions");
    assert_int_equal(tr_batch_dtype(TR_B_SAMPLE), TR_I64);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(batch_parts_lie_side_by_side) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
