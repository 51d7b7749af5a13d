/* Ranks that time the same product at once must go on with one algorithm: the first that was written down. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <cmocka.h>
#include "ops/cuda/gemm_memory.h"

static void the_first_record_of_a_key_holds_for_everybody(void **state)
{
    static struct tr_gemm_memory one, two, later;
    char dir[] = "/tmp/trireme-test-XXXXXX";
    const uint64_t key[TR_GEMM_KEY] = { 1, 2, 3 }, other[TR_GEMM_KEY] = { 4 };
    const uint64_t fast[TR_GEMM_ALGO] = { 10 }, slow[TR_GEMM_ALGO] = { 20 };
    (void)state;
    assert_non_null(mkdtemp(dir));
    assert_int_equal(setenv("XDG_CACHE_HOME", dir, 1), 0);
    tr_gemm_memory_open(&one, 13, 90, 132);
    tr_gemm_memory_open(&two, 13, 90, 132); /* before the other has written anything */
    assert_true(tr_gemm_memory_is_open(&one) && tr_gemm_memory_is_open(&two));
    assert_int_equal(tr_gemm_memory_add(&one, key, fast)->algo[0], 10);
    assert_int_equal(tr_gemm_memory_add(&two, key, slow)->algo[0], 10);
    assert_int_equal(tr_gemm_memory_add(&two, other, slow)->algo[0], 20);
    assert_int_equal(tr_gemm_memory_add(&one, other, fast)->algo[0], 20);
    tr_gemm_memory_close(&one);
    tr_gemm_memory_close(&two);
    tr_gemm_memory_open(&later, 13, 90, 132);
    assert_int_equal(later.n, 2);
    assert_int_equal(tr_gemm_memory_find(&later, key)->algo[0], 10);
    tr_gemm_memory_close(&later);
    char path[sizeof dir + 64];
    assert_int_equal(tr_format(path, sizeof path, "rm -r %s", dir), TR_OK);
    assert_int_equal(system(path), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(the_first_record_of_a_key_holds_for_everybody) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
