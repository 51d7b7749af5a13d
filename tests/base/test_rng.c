/* Random numbers: published Philox vectors, distribution of normals, permutations that are bijections. */
#include "base/base.h"
#include "base/philox7.h"
#include <setjmp.h>
#include <stdarg.h>
#include <math.h>
#include <cmocka.h>

static void philox_gives_the_published_vectors(void **state)
{
    (void)state;
    /* kat_vectors of Random123, philox4x32 10: counter words, key words, result words. */
    static const uint32_t kat[][10] = {
        { 0, 0, 0, 0, 0, 0, 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 },
        { 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0x408f276d, 0x41c83b0e, 0xa20bc7c6,
          0x6d5451fd },
        { 0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0, 0xd16cfe09, 0x94fdcceb, 0x5001e420,
          0x24126ea1 },
    };
    for (size_t i = 0; i < TR_COUNT_OF(kat); i++) {
        const uint32_t *k = kat[i];
        struct tr_philox r =
            tr_philox((uint64_t)k[5] << 32 | k[4], (uint64_t)k[3] << 32 | k[2], (uint64_t)k[1] << 32 | k[0]);
        assert_memory_equal(r.v, k + 6, sizeof r.v);
    }
    static const uint32_t kat7[][4] = { /* philox4x32 7, the same counters and keys */
                                        { 0x5f6fb709, 0x0d893f64, 0x4f121f81, 0x4f730a48 },
                                        { 0x5207ddc2, 0x45165e59, 0x4d8ee751, 0x8c52f662 },
                                        { 0x4dfccaba, 0x190a87f0, 0xc47362ba, 0xb6b5242a }
    };
    for (size_t i = 0; i < TR_COUNT_OF(kat); i++) {
        const uint32_t *k = kat[i];
        struct tr_philox r =
            tr_philox7((uint64_t)k[5] << 32 | k[4], (uint64_t)k[3] << 32 | k[2], (uint64_t)k[1] << 32 | k[0]);
        assert_memory_equal(r.v, kat7[i], sizeof r.v);
    }
}

static void streams_have_different_keys(void **state)
{
    (void)state;
    uint64_t a = tr_rng_key(1, "init", 0);
    assert_true(a == tr_rng_key(1, "init", 0));
    assert_true(a != tr_rng_key(2, "init", 0) && a != tr_rng_key(1, "shuffle", 0) && a != tr_rng_key(1, "init", 1));
}

static void u01_stays_inside_the_open_interval(void **state)
{
    (void)state;
    assert_true(tr_u01(0) > 0 && tr_u01(UINT32_MAX) < 1);
}

static void a_normal_depends_on_its_position_only(void **state)
{
    (void)state;
    enum { N = 103 };
    float whole[N], part[N];
    tr_normal_fill(5, 0, 1, whole, N);
    for (size_t first = 0; first < 9; first++)
        for (size_t n = 0; n < 12; n++) {
            tr_normal_fill(5, first, 1, part, n);
            assert_int_equal(memcmp(part, whole + first, n * sizeof *part), 0);
        }
    tr_normal_fill(5, 0, 0.5f, part, N);
    for (int i = 0; i < N; i++)
        assert_true(part[i] == 0.5f * whole[i]);
}

static void normals_have_their_moments(void **state)
{
    (void)state;
    enum { N = 1 << 18 };
    static float x[N];
    tr_normal_fill(tr_rng_key(9, "moments", 0), 0, 1, x, N);
    double sum[4] = { 0 }, lag = 0;
    for (int i = 0; i < N; i++) {
        double v = (double)x[i];
        sum[0] += v;
        sum[1] += v * v;
        sum[2] += v * v * v;
        sum[3] += v * v * v * v;
        lag += i ? v * (double)x[i - 1] : 0;
    }
    /* The k-th raw moment of N samples has variance (m_2k - m_k^2) / N: 1, 2, 15, 96; the lag product has 1. The key is
     * fixed, so five standard deviations is not a gamble but a statement about this stream. */
    static const double mean[] = { 0, 1, 0, 3 }, variance[] = { 1, 2, 15, 96 };
    for (int k = 0; k < 4; k++)
        assert_true(fabs(sum[k] / N - mean[k]) < 5 * sqrt(variance[k] / N));
    assert_true(fabs(lag / N) < 5 * sqrt(1.0 / N));
}

static void permute_is_a_bijection(void **state)
{
    (void)state;
    static const uint64_t sizes[] = { 1, 2, 3, 4, 5, 7, 16, 17, 63, 64, 65, 255, 256, 257, 1000, 4097, 65536, 100003 };
    static unsigned char seen[100003];
    for (size_t s = 0; s < TR_COUNT_OF(sizes); s++) {
        for (uint64_t key = 0; key < 4; key++) {
            memset(seen, 0, sizeof seen);
            for (uint64_t i = 0; i < sizes[s]; i++) {
                uint64_t j = tr_permute(key, sizes[s], i);
                assert_true(j < sizes[s]);
                assert_int_equal(seen[j]++, 0);
            }
        }
    }
    for (uint64_t i = 0; i < 1000; i++) { /* the largest domains stay inside */
        assert_true(tr_permute(i, UINT64_MAX, UINT64_MAX - 1 - i) < UINT64_MAX);
        assert_true(tr_permute(i, ((uint64_t)1 << 62) + 1, i) <= (uint64_t)1 << 62);
    }
}

static void permute_spreads_and_depends_on_the_key(void **state)
{
    (void)state;
    enum { N = 1000, N_KEYS = 2000, CELLS = 10 };
    int n_cell[CELLS] = { 0 }, n_same = 0, n_up = 0;
    for (uint64_t key = 0; key < N_KEYS; key++) {
        n_cell[tr_permute(key, N, 123) * CELLS / N]++;
        n_same += tr_permute(key, N, 7) == tr_permute(key + 1, N, 7);
        n_up += tr_permute(key, N, 8) > tr_permute(key, N, 7);
    }
    /* Binomial counts: mean and standard deviation 200 and 13.4, 2 and 1.4, 1000 and 22.4; five deviations each. */
    for (int i = 0; i < CELLS; i++)
        assert_in_range(n_cell[i], 200 - 67, 200 + 67);
    assert_true(n_same <= 2 + 7);
    assert_in_range(n_up, 1000 - 112, 1000 + 112);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_gives_the_published_vectors),
        cmocka_unit_test(streams_have_different_keys),
        cmocka_unit_test(u01_stays_inside_the_open_interval),
        cmocka_unit_test(a_normal_depends_on_its_position_only),
        cmocka_unit_test(normals_have_their_moments),
        cmocka_unit_test(permute_is_a_bijection),
        cmocka_unit_test(permute_spreads_and_depends_on_the_key),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
