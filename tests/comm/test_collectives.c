/* Every collective gives the bits of its serial definition: any kind, type, count, place of its buffers, rank count. */
#include "comm/checks.h"
#include "comm/comm_impl.h"

static void one_rank_copies_in_to_out(void **state)
{
    (void)state;
    run_ranks(1, check_all, (void *)(uintptr_t) "self");
    run_ranks(1, check_all, (void *)(uintptr_t) "shm");
    run_ranks(1, check_all, NULL);
}

static void processes_get_the_serial_bits(void **state)
{
    (void)state;
    for (int size = 2; size <= 5; size++)
        run_ranks(size, check_all, NULL);
    run_ranks(8, check_all, NULL);
}

static void large_buffers_get_the_serial_bits(void **state)
{
    (void)state;
    for (int size = 2; size <= 3; size++)
        run_ranks(size, check_large, NULL);
    run_ranks(7, check_large, NULL);
    run_threads(3, check_large, (void *)(uintptr_t) "shm"); /* TSan sees both ends */
}

static void nan_wins_a_maximum_of(const struct tr_comm_env *env, void *ctx)
{
    (void)ctx;
    struct tr_comm *w;
    float x[3] = { 1.0f, (float)env->rank, -1.0f };
    CHECK_OK(tr_comm_open(NULL, env, &w));
    if (env->rank == 1)
        x[0] = (float)strtod("nan", NULL);
    CHECK_OK(tr_comm_run(
        w, &(struct tr_coll){ .kind = TR_ALL_REDUCE, .dtype = TR_F32, .op = TR_MAX, .in = x, .out = x, .count = 3 }));
    CHECK(x[0] != x[0] && x[1] == (float)(env->size - 1) && x[2] == -1.0f);
    tr_comm_close(w);
}

static void a_nan_of_any_rank_wins_a_maximum(void **state)
{
    (void)state;
    run_ranks(3, nan_wins_a_maximum_of, NULL);
}

static void phantom_counts_and_touches_nothing(void **state)
{
    (void)state;
    struct tr_comm_env env = { .rank = 5, .size = 64, .timeout_us = 1 };
    struct tr_comm *world, *axis;
    void *base, *unreadable = (void *)(uintptr_t)64;
    assert_int_equal(tr_comm_open("phantom", &env, &world), TR_OK);
    assert_int_equal(tr_comm_split(world, 3, 1, 4, &axis), TR_OK);
    assert_int_equal(axis->rank, 1);
    assert_int_equal(axis->size, 4);
    assert_int_equal(tr_comm_reserve(world, (size_t)1 << 40, &base), TR_OK);
    struct tr_coll c = { .kind = TR_ALL_REDUCE, .dtype = TR_BF16, .in = unreadable, .out = unreadable, .count = 1000 };
    tr_ticket t;
    assert_int_equal(tr_comm_run(axis, &c), TR_OK);
    assert_int_equal(tr_comm_post(axis, &c, &t), TR_OK);
    assert_int_equal(tr_comm_wait(axis, t), TR_OK);
    assert_int_equal(tr_comm_counts(axis)->n_calls[TR_ALL_REDUCE], 2);
    assert_int_equal(tr_comm_counts(axis)->bytes[TR_ALL_REDUCE], 4000);
    assert_int_equal(tr_comm_counts(world)->n_calls[TR_ALL_REDUCE], 0);
    assert_int_equal(tr_comm_counts(world)->reserved_bytes, (size_t)1 << 40);
    tr_comm_close(axis);
    tr_comm_close(world);
}

static void a_copy_past_the_cache_copies_every_byte_and_no_more(void **state)
{
    (void)state;
    static char from[20000], to[20000];
    for (size_t i = 0; i < sizeof from; i++)
        from[i] = (char)(i * 7 + i / 256);
    for (size_t at = 0; at < 130; at += 13)
        for (size_t n = 0; n < 19000; n += n < 200 ? 1 : 977) {
            memset(to, 0x55, sizeof to);
            tr_copy_past_cache(to + at, from + 3, n);
            assert_memory_equal(to + at, from + 3, n);
            assert_true(to[at + n] == 0x55 && (at == 0 || to[at - 1] == 0x55));
        }
}

static void wrong_calls_are_refused(void **state)
{
    (void)state;
    struct tr_comm_env env = { .rank = 0, .size = 1, .timeout_us = 1000 };
    struct tr_comm *w;
    float x[2] = { 0 };
    assert_int_equal(tr_comm_open("morse", &env, &w), TR_USAGE);
    assert_int_equal(tr_comm_open("shm", &env, &w), TR_USAGE); /* no job */
    env.size = 2;
    assert_int_equal(tr_comm_open("self", &env, &w), TR_USAGE);
    env.rank = 2;
    assert_int_equal(tr_comm_open(NULL, &env, &w), TR_USAGE);
    env = (struct tr_comm_env){ .rank = 0, .size = 1, .timeout_us = 0 };
    assert_int_equal(tr_comm_open(NULL, &env, &w), TR_USAGE);
    env.timeout_us = 1000;
    assert_int_equal(tr_comm_open(NULL, &env, &w), TR_OK);
    struct tr_coll bad_type = { .kind = TR_ALL_REDUCE, .dtype = TR_U8, .in = x, .out = x, .count = 1 };
    struct tr_coll bad_root = { .kind = TR_BROADCAST, .dtype = TR_F32, .in = x, .out = x, .count = 1, .root = 1 };
    struct tr_coll too_many = { .kind = TR_ALL_REDUCE, .dtype = TR_F32, .in = x, .out = x, .count = SIZE_MAX / 2 };
    assert_int_equal(tr_comm_run(w, &bad_type), TR_USAGE);
    assert_int_equal(tr_comm_run(w, &bad_root), TR_USAGE);
    assert_int_equal(tr_comm_run(w, &too_many), TR_USAGE);
    tr_comm_close(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_rank_copies_in_to_out),
        cmocka_unit_test(processes_get_the_serial_bits),
        cmocka_unit_test(large_buffers_get_the_serial_bits),
        cmocka_unit_test(a_nan_of_any_rank_wins_a_maximum),
        cmocka_unit_test(phantom_counts_and_touches_nothing),
        cmocka_unit_test(wrong_calls_are_refused),
        cmocka_unit_test(a_copy_past_the_cache_copies_every_byte_and_no_more),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
