/* bench_comm.c - speed of the shm engine; peer_comm.py runs it beside MPICH, Open MPI and gloo.
 *
 * usage: bench_comm [n_ranks [arena|plain [bytes_max [seconds a point]]]]   (default: 2 arena 268435456 0.3)
 * "arena": buffers from tr_comm_reserve, as the trainer's; "plain": from the heap, through the staging memory.
 */
#include "comm/comm.h"
#include <sys/mman.h>
#include <sys/prctl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#include "comm_points.h"
#include "base/banned.h"

static void must(enum tr_status st)
{
    if (st == TR_OK)
        return;
    fprintf(stderr, "bench_comm: %s: %s\n", tr_status_str(st), tr_error_text());
    exit(1);
}

static double max_of(void *ctx, double x)
{
    struct tr_coll c = { .kind = TR_ALL_REDUCE, .dtype = TR_F64, .op = TR_MAX, .in = &x, .out = &x, .count = 1 };
    must(tr_comm_run(ctx, &c));
    return x;
}

static void run(void *ctx, enum points_kind kind, float *in, float *out, size_t count)
{
    static const enum tr_coll_kind kinds[] = { TR_ALL_REDUCE, TR_ALL_GATHER, TR_REDUCE_SCATTER };
    struct tr_coll c = { .kind = kinds[kind], .dtype = TR_F32, .in = in, .out = out, .count = count, .site = "bench" };
    must(tr_comm_run(ctx, &c));
}

static float *buffer(struct tr_comm *w, int is_arena)
{
    void *p = NULL;
    if (is_arena) {
        must(tr_comm_reserve(w, POINT_BYTES_MAX, &p));
    } else {
        p = mmap(NULL, POINT_BYTES_MAX, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED)
            must(tr_fail(TR_NOMEM, "no buffer"));
        (void)madvise(p, POINT_BYTES_MAX, MADV_HUGEPAGE); /* what glibc's malloc gives the peers at this size */
    }
    return p;
}

static void rank_main(int rank, int size, const char *job, int is_arena, size_t bytes_max, double budget_s)
{
    struct tr_comm_env env = { .rank = rank, .size = size, .job = job, .generation = 1, .timeout_us = 60 * 1000000 };
    struct tr_comm *w;
    env.arena_bytes = is_arena ? 2 * (size_t)POINT_BYTES_MAX : 0;
    must(tr_comm_open("shm", &env, &w));
    struct points p = { is_arena ? "trireme" : "trireme-plain", rank, size, max_of, run, w, NULL, NULL };
    p.in = buffer(w, is_arena);
    p.out = buffer(w, is_arena);
    points_all(&p, bytes_max, budget_s);
    tr_comm_close(w);
}

int main(int argc, char **argv)
{
    int64_t n_ranks = 2, bytes_max = POINT_BYTES_MAX;
    double budget_s = 0.3;
    char job[32];
    if (argc > 1)
        must(tr_parse_int(argv[1], 1, 64, &n_ranks));
    if (argc > 3)
        must(tr_parse_int(argv[3], 1024, POINT_BYTES_MAX, &bytes_max));
    if (argc > 4)
        must(tr_parse_real(argv[4], &budget_s));
    (void)snprintf(job, sizeof job, "bench-%d", (int)getpid());
    fflush(stdout);
    for (int r = 1; r < n_ranks; r++)
        if (fork() == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            rank_main(r, (int)n_ranks, job, !(argc > 2 && strcmp(argv[2], "plain") == 0), (size_t)bytes_max, budget_s);
            return 0;
        }
    rank_main(0, (int)n_ranks, job, !(argc > 2 && strcmp(argv[2], "plain") == 0), (size_t)bytes_max, budget_s);
    while (wait(NULL) > 0)
        ;
    return 0;
}
