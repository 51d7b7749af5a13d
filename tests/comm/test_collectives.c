/* Every collective gives the bits of its serial definition: any kind, type, count, place of its buffers, rank count. */
#include "comm/serial.h"
#include "comm/comm_impl.h"

enum { BUF_BYTES = 4 << 20 };

struct rank {
    struct tr_comm *world;
    char *arena[2], *plain[2], *want;
};

static struct rank open_rank(const struct tr_comm_env *env, const char *engine)
{
    struct rank k = { 0 };
    CHECK_OK(tr_comm_open(engine, env, &k.world));
    for (int i = 0; i < 2; i++) {
        void *p;
        CHECK_OK(tr_comm_reserve(k.world, BUF_BYTES, &p));
        k.arena[i] = p;
        k.plain[i] = malloc(BUF_BYTES);
        CHECK(k.plain[i]);
    }
    k.want = malloc(BUF_BYTES);
    CHECK(k.want);
    return k;
}

static void close_rank(struct rank *k)
{
    tr_comm_close(k->world);
    for (int i = 0; i < 2; i++)
        free(k->plain[i]);
    free(k->want);
}

/* Fills in, runs, compares out. `in` and `out` may be one buffer. */
static void check_one(struct rank *k, struct tr_coll c, uint64_t seed, char *in, char *out)
{
    struct tr_comm *w = k->world;
    size_t elem = tr_dtype_bytes(c.dtype), first, n;
    bool is_in_place = in == out;
    tr_shard(c.count, w->size, w->rank, &first, &n);
    if (c.kind == TR_ALL_GATHER) {
        in += is_in_place ? first * elem : 0;
        fill(c.dtype, seed, w->rank, first, n, in);
    } else {
        fill(c.dtype, seed, w->rank, 0, c.count, in);
    }
    if (c.kind == TR_REDUCE_SCATTER && is_in_place)
        out += first * elem;
    c.in = in;
    c.out = out;
    c.site = "check";
    CHECK_OK(tr_comm_run(w, &c));
    size_t n_want = serial(&c, seed, w->rank, w->size, k->want);
    if (memcmp(out, k->want, n_want * elem) != 0) {
        fprintf(stderr, "%s %s count %zu op %d in place %d, rank %d of %d: other bits\n", tr_coll_name(c.kind),
                tr_dtype_name(c.dtype), c.count, c.op, is_in_place, w->rank, w->size);
        _exit(1);
    }
}

/* Where buffers lie: all in arenas, none, or rank 1's only. */
static char *place(const struct rank *k, int where, int i)
{
    bool is_in_arena = where == 0 || (where == 2 && k->world->rank == 1);
    return is_in_arena ? k->arena[i] : k->plain[i];
}

static void check_places(struct rank *k, struct tr_coll c, uint64_t *seed)
{
    for (int where = 0; where < 3; where++)
        for (int in_place = 0; in_place < 2; in_place++)
            if (!in_place || c.kind != TR_ALL_TO_ALL)
                check_one(k, c, ++*seed, place(k, where, 0), place(k, where, !in_place));
}

static void check_all(const struct tr_comm_env *env, void *ctx)
{
    static const enum tr_dtype dtypes[] = { TR_F32, TR_BF16, TR_F64, TR_I64 };
    static const size_t counts[] = { 0, 1, 3, 17, 511, 513, 2051, 40009 };
    struct rank k = open_rank(env, ctx);
    size_t size = (size_t)env->size;
    uint64_t seed = 0;
    for (int kind = TR_ALL_REDUCE; kind <= TR_ALL_TO_ALL; kind++)
        for (size_t d = 0; d < TR_COUNT_OF(dtypes); d++)
            for (size_t i = 0; i < TR_COUNT_OF(counts); i++) {
                struct tr_coll c = { .kind = (enum tr_coll_kind)kind, .dtype = dtypes[d], .count = counts[i] };
                if (counts[i] > 3000 && d > 1)
                    continue; /* what is new at this size does not depend on the type */
                if (kind == TR_ALL_TO_ALL)
                    c.count -= c.count % size;
                c.root = (int)(i % size);
                for (int op = 0; op < TR_REDUCE_OPS; op++) {
                    c.op = (enum tr_reduce_op)op;
                    if (op == 0 || (kind <= TR_REDUCE_SCATTER && counts[i] < 3000))
                        check_places(&k, c, &seed);
                }
            }
    close_rank(&k);
}

/* More than four rounds of staging, and several direct parts. */
static void check_large(const struct tr_comm_env *env, void *ctx)
{
    struct rank k = open_rank(env, ctx);
    uint64_t seed = 1000;
    for (int kind = TR_ALL_REDUCE; kind <= TR_ALL_TO_ALL; kind++) {
        struct tr_coll c = { .kind = (enum tr_coll_kind)kind, .dtype = TR_F32, .count = 300007, .root = env->size - 1 };
        c.count -= kind == TR_ALL_TO_ALL ? c.count % (size_t)env->size : 0;
        check_places(&k, c, &seed);
    }
    close_rank(&k);
}

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
    assert_int_equal(tr_comm_open("mpi", &env, &w), TR_USAGE);
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
