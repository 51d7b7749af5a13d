/* cmd_bench.c - trireme bench comm: how fast ranks sum, gather and scatter. Started alone it starts its own ranks, two
 * and then four; inside a launch it is one of them. bench/peer_comm.py runs it beside MPICH, Open MPI and gloo.
 */
#include "cli/cli.h"
#include "cli/comm_points.h"
#include "launch/launch.h"
#include <sys/mman.h>

struct bench {
    struct tr_comm *world;
    enum tr_status st; /* the first failure; later calls do nothing */
};

static double max_of(void *ctx, double x)
{
    struct bench *b = ctx;
    struct tr_coll c = { .kind = TR_ALL_REDUCE, .dtype = TR_F64, .op = TR_MAX, .in = &x, .out = &x, .count = 1 };
    if (b->st == TR_OK)
        b->st = tr_comm_run(b->world, &c);
    return x;
}

static void run(void *ctx, enum points_kind kind, float *in, float *out, size_t count)
{
    static const enum tr_coll_kind kinds[POINT_KINDS] = { TR_ALL_REDUCE, TR_ALL_GATHER, TR_ALL_GATHER,
                                                          TR_REDUCE_SCATTER };
    struct bench *b = ctx;
    struct tr_coll c = { .kind = kinds[kind], .dtype = TR_F32, .in = in, .out = out, .count = count, .site = "bench" };
    if (b->st == TR_OK)
        b->st = tr_comm_run(b->world, &c);
}

static void say_row(const struct points *p, const struct point *x)
{
    char bytes[32];
    printf("%-19s %5d %10s %12.2f %12.2f %12.2f %9.3f\n", x->kind, p->size,
           tr_human_bytes(x->bytes, bytes, sizeof bytes), x->median_s * 1e6, x->low_s * 1e6, x->high_s * 1e6,
           (double)x->bytes / x->median_s * 1e-9);
    fflush(stdout);
}

static enum tr_status buffer(const struct tr_config *cfg, struct tr_comm *w, float **out)
{
    void *p = NULL;
    size_t bytes = (size_t)cfg->bytes_max;
    if (!cfg->heap) {
        enum tr_status st = tr_comm_reserve(w, bytes, &p);
        *out = p;
        return st;
    }
    p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return tr_fail(TR_NOMEM, "no buffer of %zu bytes", bytes);
    (void)madvise(p, bytes, MADV_HUGEPAGE); /* what glibc's malloc gives the peers at this size */
    *out = p;
    return TR_OK;
}

static enum tr_status be_rank(const struct tr_config *cfg, struct tr_comm_env *env)
{
    enum tr_status st = TR_OK;
    struct bench b = { 0 };
    env->timeout_us = (int64_t)(cfg->ddp_timeout * 1e6);
    env->arena_bytes = cfg->heap ? 0 : 2 * tr_round_up((size_t)cfg->bytes_max, TR_COMM_ALIGN);
    TR_TRY(tr_comm_open(cfg->comm == TR_COMM_AUTO ? NULL : tr_config_word("comm", (int)cfg->comm), env, &b.world));
    struct points p = { .engine = cfg->heap ? "trireme-plain" : "trireme",
                        .rank = env->rank,
                        .size = env->size,
                        .max = max_of,
                        .run = run,
                        .ctx = &b,
                        .say = cfg->json ? points_json : say_row };
    TR_TRY(buffer(cfg, b.world, &p.in));
    TR_TRY(buffer(cfg, b.world, &p.out));
    if (env->rank == 0 && !cfg->json)
        printf("%-19s %5s %10s %12s %12s %12s %9s   (%s)\n", "collective", "ranks", "bytes", "median us", "low us",
               "high us", "GB/s", b.world->ops->name);
    points_all(&p, (size_t)cfg->bytes_max, cfg->seconds);
    st = b.st;
out:
    tr_comm_close(b.world);
    return st;
}

/* Starts this program as n ranks with the same options. */
static enum tr_status start_ranks(const struct tr_config *cfg, int n)
{
    char bytes[32], seconds[32], timeout[32];
    char *argv[] = { "trireme",
                     "bench",
                     "comm",
                     "--comm",
                     (char *)(uintptr_t)tr_config_word("comm", (int)cfg->comm),
                     "--bytes_max",
                     bytes,
                     "--seconds",
                     seconds,
                     "--ddp_timeout",
                     timeout,
                     cfg->heap ? "--heap" : "--quiet",
                     cfg->json ? "--json" : "--quiet",
                     NULL };
    snprintf(bytes, sizeof bytes, "%" PRId64, cfg->bytes_max);
    snprintf(seconds, sizeof seconds, "%g", cfg->seconds);
    snprintf(timeout, sizeof timeout, "%g", cfg->ddp_timeout);
    struct tr_launch_end end = { 0 };
    struct tr_launch l = { .program = "/proc/self/exe",
                           .argv = argv,
                           .envp = environ,
                           .n_ranks = n,
                           .has_mpi = cfg->comm == TR_COMM_MPI,
                           .out_fd = STDOUT_FILENO,
                           .err_fd = STDERR_FILENO };
    TR_PASS(tr_launch_run(&l, &end));
    if (end.exit_code != 0)
        return tr_fail(TR_PEER, "the bench of %d ranks ended with exit code %d", n, end.exit_code);
    return TR_OK;
}

enum tr_status cmd_bench(const struct tr_config *cfg)
{
    struct tr_comm_env env;
    const char *what = cfg->args.n == 1 ? cfg->args.item[0] : "";
    if (strcmp(what, "machine") == 0)
        return bench_machine(cfg);
    if (strcmp(what, "disk") == 0)
        return cli_bench_disk(cfg);
    if (strcmp(what, "data") == 0)
        return cli_bench_data(cfg);
    if (strcmp(what, "comm") != 0)
        return tr_verb_misused(TR_VERB_BENCH);
    if (cfg->bytes_max < 1024 || cfg->bytes_max > POINT_BYTES_MAX)
        return tr_fail(TR_USAGE, "bytes_max %" PRId64 " is outside 1 KiB to 256 MiB", cfg->bytes_max);
    TR_PASS(tr_mesh_env(&env));
    if (env.size > 1)
        return be_rank(cfg, &env);
    for (int n = 2; n <= 4; n += 2)
        TR_PASS(start_ranks(cfg, n));
    return TR_OK;
}
