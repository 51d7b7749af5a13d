/* checks.h - every collective against its serial definition: any kind, type, count and place of its buffers. */
#ifndef TR_TESTS_COMM_CHECKS_H
#define TR_TESTS_COMM_CHECKS_H

#include "comm/serial.h"

enum { BUF_BYTES = 4 << 20 };

struct rank {
    struct tr_comm *world;
    char *arena[2], *plain[2], *want;
};

static inline struct rank open_rank(const struct tr_comm_env *env, const char *engine)
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

static inline void close_rank(struct rank *k)
{
    tr_comm_close(k->world);
    for (int i = 0; i < 2; i++)
        free(k->plain[i]);
    free(k->want);
}

/* Fills in, runs, compares out. `in` and `out` may be one buffer. */
static inline void check_one(struct rank *k, struct tr_coll c, uint64_t seed, char *in, char *out)
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
static inline char *place(const struct rank *k, int where, int i)
{
    bool is_in_arena = where == 0 || (where == 2 && k->world->rank == 1);
    return is_in_arena ? k->arena[i] : k->plain[i];
}

static inline void check_places(struct rank *k, struct tr_coll c, uint64_t *seed)
{
    for (int where = 0; where < 3; where++)
        for (int in_place = 0; in_place < 2; in_place++)
            if (!in_place || c.kind != TR_ALL_TO_ALL)
                check_one(k, c, ++*seed, place(k, where, 0), place(k, where, !in_place));
}

static inline void check_all(const struct tr_comm_env *env, void *ctx)
{
    static const enum tr_dtype dtypes[] = { TR_F32, TR_BF16, TR_F64, TR_I64, TR_F16 };
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
static inline void check_large(const struct tr_comm_env *env, void *ctx)
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

#endif
