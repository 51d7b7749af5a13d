/* group_checks.h - splits, rings of sends, posts ahead of waits, as one rank does them; ctx is the engine, NULL = auto.
 */
#ifndef TR_TESTS_COMM_GROUP_CHECKS_H
#define TR_TESTS_COMM_GROUP_CHECKS_H

#include "comm/serial.h"

enum { N_BIG = 60000, N_POSTS = 300 }; /* BIG: staged or direct; POSTS: more than one queue holds */

static inline void sum_of_ranks(struct tr_comm *c, int64_t mine, int64_t *out)
{
    CHECK_OK(tr_comm_run(
        c, &(struct tr_coll){
               .kind = TR_ALL_REDUCE, .dtype = TR_I64, .in = &mine, .out = out, .count = 1, .site = "sum of ranks" }));
}

/* 2 x 2 x 2: every axis holds the ranks that share the other two coordinates, in the order of its own. */
static inline void split_grid(const struct tr_comm_env *env, void *ctx)
{
    struct tr_comm *w, *axis[3], *none;
    CHECK_OK(tr_comm_open(ctx, env, &w));
    for (int a = 0; a < 3; a++) {
        int bit = 1 << a, mine = (env->rank & bit) != 0;
        CHECK_OK(tr_comm_split(w, env->rank & ~bit, -mine, 2, &axis[a])); /* backwards: the key decides */
        CHECK(axis[a]->size == 2 && axis[a]->rank == !mine);
        int64_t sum;
        sum_of_ranks(axis[a], env->rank, &sum);
        CHECK(sum == env->rank + (env->rank ^ bit));
    }
    CHECK_OK(tr_comm_split(w, env->rank == 3 ? 0 : -1, 0, 1, &none));
    CHECK((none != NULL) == (env->rank == 3));
    tr_comm_close(none);
    tr_comm_close(w); /* the axes go on without it */
    tr_ticket t[3];
    float *in = malloc(3 * N_BIG * sizeof *in), *want = malloc(N_BIG * sizeof *want);
    CHECK(in && want);
    for (int i = 0; i < 3; i++) { /* all three at once, posted in an order that differs from rank to rank */
        int a = (i + env->rank) % 3;
        fill(TR_F32, 7, axis[a]->rank, 0, N_BIG, in + a * N_BIG);
        struct tr_coll c = { .kind = TR_ALL_REDUCE, .dtype = TR_F32, .count = N_BIG, .site = "axis" };
        c.in = c.out = in + a * N_BIG;
        CHECK_OK(tr_comm_post(axis[a], &c, &t[a]));
    }
    serial_reduce(TR_F32, TR_SUM, 7, 2, 0, N_BIG, want);
    for (int a = 0; a < 3; a++) {
        CHECK_OK(tr_comm_wait(axis[a], t[a]));
        CHECK(memcmp(in + a * N_BIG, want, N_BIG * sizeof *want) == 0);
    }
    for (int a = 0; a < 3; a++)
        tr_comm_close(axis[a]);
    free(in);
    free(want);
}

static inline void split_often(const struct tr_comm_env *env, void *ctx)
{
    struct tr_comm *w, *c;
    CHECK_OK(tr_comm_open(ctx, env, &w));
    for (int i = 0; i < 300; i++) { /* more than the table has rows: closed ones are used again */
        CHECK_OK(tr_comm_split(w, env->rank / 2, env->rank, 2, &c));
        float x[2] = { (float)i, 0 };
        struct tr_coll give = { .kind = TR_SEND, .dtype = TR_F32, .in = x, .count = 1, .root = 1 };
        struct tr_coll take = { .kind = TR_RECV, .dtype = TR_F32, .out = x + 1, .count = 1, .root = 0 };
        CHECK_OK(tr_comm_run(c, c->rank == 0 ? &give : &take));
        CHECK(c->rank == 0 || x[1] == (float)i);
        tr_comm_close(c);
    }
    tr_comm_close(w);
}

/* What another engine moves: nothing is touched here, but ranks still say what they do, and hear who does another. */
static inline void elsewhere(const struct tr_comm_env *env, void *ctx)
{
    struct tr_comm *w;
    void *far = (void *)(uintptr_t)64; /* memory of nobody */
    tr_ticket sent = 0, got = 0;
    CHECK_OK(tr_comm_open(ctx, env, &w));
    struct tr_coll sum = { .kind = TR_ALL_REDUCE, .dtype = TR_BF16, .in = far, .out = far, .count = (size_t)1 << 33 };
    sum.is_elsewhere = true;
    sum.site = "far away";
    CHECK_OK(tr_comm_run(w, &sum));
    struct tr_coll pass = sum;
    pass.kind = TR_SEND;
    pass.root = (env->rank + 1) % env->size;
    CHECK_OK(tr_comm_post(w, &pass, &sent));
    pass.kind = TR_RECV;
    pass.root = (env->rank + env->size - 1) % env->size;
    CHECK_OK(tr_comm_post(w, &pass, &got));
    CHECK_OK(tr_comm_wait(w, sent));
    CHECK_OK(tr_comm_wait(w, got));
    CHECK(tr_comm_waited_us(w) > 0);
    CHECK(tr_comm_waited_us(w) == 0);
    sum.count += env->rank == 0;
    CHECK(tr_comm_run(w, &sum) == TR_USAGE);
    CHECK(strstr(tr_error_text(), "ranks disagree") && strstr(tr_error_text(), "far away"));
    tr_comm_close(w);
}

static inline void wrong_split(const struct tr_comm_env *env, void *ctx)
{
    struct tr_comm *w, *c;
    CHECK_OK(tr_comm_open(ctx, env, &w));
    CHECK(tr_comm_split(w, env->rank == 0, 0, 2, &c) == TR_USAGE); /* 1 and 2 ranks: somebody is wrong */
    CHECK(strstr(tr_error_text(), "color 1 has 1 ranks, rank 0 expects 2") != NULL);
    tr_comm_close(w);
}

/* Every rank to its right neighbour, all at once, then to everybody; small and large, in arenas and outside. */
static inline void ring(const struct tr_comm_env *env, void *ctx)
{
    struct tr_comm *w;
    void *base;
    CHECK_OK(tr_comm_open(ctx, env, &w));
    CHECK_OK(tr_comm_reserve(w, 2 * N_BIG * sizeof(float), &base));
    float *plain = malloc(2 * N_BIG * sizeof *plain), *want = malloc(N_BIG * sizeof *want);
    CHECK(plain && want);
    for (int round = 0; round < 8 * env->size; round++) {
        size_t n = round & 1 ? N_BIG : 5;
        int hop = 1 + round / 8 % (env->size > 1 ? env->size - 1 : 1);
        int right = (env->rank + hop) % env->size, left = (env->rank + env->size - hop) % env->size;
        float *in = round & 2 ? base : plain, *out = (round & 4 ? (float *)base : plain) + N_BIG;
        fill(TR_F32, (uint64_t)round, env->rank, 0, n, in);
        tr_ticket t[2];
        struct tr_coll give = { .kind = TR_SEND, .dtype = TR_F32, .in = in, .count = n, .root = right, .site = "give" };
        struct tr_coll take = {
            .kind = TR_RECV, .dtype = TR_F32, .out = out, .count = n, .root = left, .site = "take"
        };
        CHECK_OK(tr_comm_post(w, &give, &t[0]));
        CHECK_OK(tr_comm_post(w, &take, &t[1]));
        CHECK_OK(tr_comm_wait(w, t[round & 1]));
        CHECK_OK(tr_comm_wait(w, t[!(round & 1)]));
        fill(TR_F32, (uint64_t)round, left, 0, n, want);
        CHECK(memcmp(out, want, n * sizeof *want) == 0);
    }
    tr_comm_close(w);
    free(plain);
    free(want);
}

/* Posts run ahead of waits, sizes mixed; the helper thread works meanwhile. */
static inline void post_many(const struct tr_comm_env *env, void *ctx)
{
    struct tr_comm *w;
    CHECK_OK(tr_comm_open(ctx, env, &w));
    size_t n_each = 3000;
    int64_t *x = malloc(N_POSTS * n_each * sizeof *x);
    tr_ticket t[N_POSTS];
    CHECK(x);
    for (size_t i = 0; i < N_POSTS; i++) {
        size_t n = i % 3 ? 1 : n_each;
        for (size_t j = 0; j < n; j++)
            x[i * n_each + j] = (int64_t)(i * j) + env->rank;
        struct tr_coll c = { .kind = TR_ALL_REDUCE, .dtype = TR_I64, .count = n, .site = "many" };
        c.in = c.out = x + i * n_each;
        CHECK_OK(tr_comm_post(w, &c, &t[i]));
        CHECK(i == 0 || t[i] > t[i - 1]);
        if (i == N_POSTS / 2)
            usleep(20000); /* nobody waits: the helper's turn */
    }
    for (size_t i = N_POSTS; i-- > 0;)
        CHECK_OK(tr_comm_wait(w, t[i]));
    int64_t ranks = env->size * (env->size - 1) / 2;
    for (size_t i = 0; i < N_POSTS; i++)
        for (size_t j = 0, n = i % 3 ? 1 : n_each; j < n; j++)
            CHECK(x[i * n_each + j] == (int64_t)(i * j) * env->size + ranks);
    tr_comm_close(w);
    free(x);
}

/* A rank that only computes after its post does not hold up the others: the helper does its part. Rank 1 computes until
 * rank 0 has its sum and says so by a signal, the one word that no communicator carries. */
static inline void overlap(const struct tr_comm_env *env, void *ctx)
{
    struct tr_comm *w;
    int64_t pids[2] = { 0 };
    sigset_t word;
    sigemptyset(&word);
    sigaddset(&word, SIGUSR2);
    CHECK(pthread_sigmask(SIG_BLOCK, &word, NULL) == 0); /* the helper's mask too */
    CHECK_OK(tr_comm_open(ctx, env, &w));
    float *x = calloc(N_BIG, sizeof *x);
    CHECK(x);
    pids[env->rank] = getpid();
    struct tr_coll who = { .kind = TR_ALL_GATHER, .dtype = TR_I64, .out = pids, .count = 2, .site = "who" };
    who.in = &pids[env->rank];
    CHECK_OK(tr_comm_run(w, &who));
    struct tr_coll c = { .kind = TR_ALL_REDUCE, .dtype = TR_F32, .in = x, .out = x, .count = N_BIG, .site = "overlap" };
    tr_ticket t;
    CHECK_OK(tr_comm_post(w, &c, &t));
    if (env->rank == 1) /* less than rank 0 would wait */
        CHECK(sigtimedwait(&word, NULL, &(struct timespec){ .tv_sec = 15 }) == SIGUSR2);
    CHECK_OK(tr_comm_wait(w, t));
    if (env->rank == 0)
        CHECK(kill((pid_t)pids[1], SIGUSR2) == 0);
    tr_comm_close(w);
    free(x);
}

#endif
