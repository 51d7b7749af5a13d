/* The mpi engine under mpirun of each MPI library that is here: the serial bits, groups and order as shm, and faults
 * that name the rank. This program is its own ranks: `test_mpi CASE` inside mpirun. Its ranks wait for what others did,
 * never for a time: a busy machine makes it slow, not red. */
#include "comm/checks.h"
#include "comm/group_checks.h"
#include "comm/mpi_impl.h"
#include <malloc.h>

#if defined(__SANITIZE_THREAD__)
enum { IS_TSAN = 1 }; /* the libraries are not built for it, and it would report them */
#else
enum { IS_TSAN = 0 };
#endif

#define MPI ((void *)(uintptr_t) "mpi")

static int env_number(const char *a, const char *b)
{
    const char *text = getenv(a) ? getenv(a) : getenv(b);
    int64_t n = -1;
    return text && tr_parse_int(text, 0, 1 << 20, &n) == TR_OK ? (int)n : -1;
}

/* The bound of waits from here on. Opening has the long one: MPI's own start takes its time. */
static void set_bound(struct tr_comm *w, int64_t us)
{
    ((struct tr_front_comm *)w)->w->timeout_us = us;
}

/* What a fault must do to those who are left, within 5 s: this status and these words. */
static void expect(struct tr_comm *w, enum tr_status want, const char *word)
{
    float x = 0;
    enum tr_status st = TR_OK;
    int64_t start = tr_clock_us(), bound_us = stretched(5000000);
    struct tr_coll c = { .kind = TR_ALL_REDUCE, .dtype = TR_F32, .in = &x, .out = &x, .count = 1, .site = "grads" };
    while (st == TR_OK && tr_clock_us() - start < bound_us)
        st = tr_comm_run(w, &c);
    if (st != want || !strstr(tr_error_text(), word))
        fprintf(stderr, "got %s: %s\n", tr_status_str(st), tr_error_text());
    CHECK(st == want && strstr(tr_error_text(), word) && tr_comm_check(w) == want);
    CHECK(tr_clock_us() - start < bound_us);
}

static void one_disagrees(const struct tr_comm_env *env, void *ctx)
{
    struct tr_comm *w;
    char buf[4096] = { 0 }, before[4096] = { 0 };
    CHECK_OK(tr_comm_open(ctx, env, &w));
    struct tr_coll c = { .kind = TR_ALL_REDUCE, .dtype = TR_F32, .in = buf, .out = buf, .count = 1000, .site = "here" };
    memset(buf, env->rank + 1, sizeof buf);
    memcpy(before, buf, sizeof before);
    if (env->rank == 1) {
        c.dtype = TR_BF16;
        c.site = "there";
    }
    CHECK(tr_comm_run(w, &c) == TR_USAGE);
    CHECK(strstr(tr_error_text(), "\"here\"") && strstr(tr_error_text(), "\"there\""));
    CHECK(memcmp(before, buf, sizeof before) == 0); /* no data moved */
    tr_comm_close(w);
}

static void one_aborts(const struct tr_comm_env *env, void *ctx)
{
    struct tr_comm *w;
    CHECK_OK(tr_comm_open(ctx, env, &w));
    enum tr_status st = tr_comm_run(w, &(struct tr_coll){ .kind = TR_BARRIER, .site = "all are open" });
    CHECK(st == TR_OK || env->rank != 1); /* the others may hear of it in here already */
    if (env->rank == 1)
        tr_comm_abort(w, "the disk is on fire");
    expect(w, TR_PEER, "rank 1 aborted: the disk is on fire");
    tr_comm_close(w);
}

/* What a rank said before it left in the middle of an operation stays as it was, although MPI passes it on later. */
static void one_leaves(const struct tr_comm_env *env, void *ctx)
{
    struct tr_comm *w;
    float x = 0;
    tr_ticket t;
    CHECK_OK(tr_comm_open(ctx, env, &w));
    CHECK_OK(tr_comm_run(w, &(struct tr_coll){ .kind = TR_BARRIER, .site = "all are open" }));
    if (env->rank == 0) {
        (void)mallopt(M_PERTURB, 0xa5); /* what is freed is filled with this */
        CHECK_OK(
            tr_comm_post(w,
                         &(struct tr_coll){
                             .kind = TR_ALL_REDUCE, .dtype = TR_F32, .in = &x, .out = &x, .count = 1, .site = "grads" },
                         &t));
    } else {
        usleep(50 * 1000);
        expect(w, TR_PEER, "rank 0 (pid");
    }
    tr_comm_close(w);
}

/* Computes while its helper answers for it, until the others have given it up. */
static void one_is_late(const struct tr_comm_env *env, void *ctx)
{
    struct tr_comm *w;
    CHECK_OK(tr_comm_open(ctx, env, &w));
    set_bound(w, 500000);
    for (int64_t start = tr_clock_us(); env->rank == 1 && !atomic_load(((struct tr_front_comm *)w)->w->fault);) {
        usleep(1000);
        CHECK(tr_clock_us() - start < stretched(5000000));
    }
    expect(w, TR_TIMEOUT, "rank 1 (pid ");
    CHECK(strstr(tr_error_text(), "has not entered all_reduce #") && strstr(tr_error_text(), "no collective"));
    tr_comm_close(w);
}

static bool is_alive(int pid)
{
    return !strchr("ZX?", tr_process_state(pid));
}

static void one_is_stopped(const struct tr_comm_env *env, void *ctx)
{
    struct tr_comm *w;
    CHECK_OK(tr_comm_open(ctx, env, &w));
    set_bound(w, 500000);
    if (env->rank == 1) {
        const struct tr_front_peer *p = ((struct tr_front_comm *)w)->w->peers;
        pid_t me = getpid();
        if (fork() == 0) { /* mpirun waits for the one that is stopped, which is not to die before the others ended */
            while (is_alive(p[0].pid) || is_alive(p[2].pid))
                usleep(1000);
            kill(me, SIGKILL);
            _exit(0);
        }
        kill(me, SIGSTOP);
    }
    expect(w, TR_TIMEOUT, "does not reply");
    tr_comm_close(w);
}

static const struct {
    const char *name;
    rank_fn *fn;
} cases[] = {
    { "all", check_all },    { "large", check_large }, { "grid", split_grid },         { "ring", ring },
    { "many", post_many },   { "overlap", overlap },   { "wrong_split", wrong_split }, { "disagree", one_disagrees },
    { "abort", one_aborts }, { "late", one_is_late },  { "stopped", one_is_stopped },  { "leaves", one_leaves },
};

static int be_rank(const char *name)
{
    struct tr_comm_env env = { .rank = env_number("PMI_RANK", "OMPI_COMM_WORLD_RANK"),
                               .size = env_number("PMI_SIZE", "OMPI_COMM_WORLD_SIZE"),
                               .job = "mpi",
                               .timeout_us = 20 * 1000000,
                               .arena_bytes = 16 << 20 };
    alarm(LIMIT_S);
    for (size_t i = 0; i < TR_COUNT_OF(cases); i++)
        if (strcmp(cases[i].name, name) == 0) {
            cases[i].fn(&env, MPI);
            printf("rank %d is well\n", env.rank);
            fflush(stdout);
            _exit(0);
        }
    return 2;
}

/* Runs a case under an mpirun; n_well ranks must say that all went as it should. */
static void run_case(const char *launcher, const char *name, int n_ranks, int n_well)
{
    char self[1024], command[2048], line[512], said[4096] = "";
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    int n_heard = 0;
    assert_true(n > 0);
    self[n] = 0;
    (void)snprintf(command, sizeof command, "timeout -k 1 %d %s -n %d %s %s 2>&1", LIMIT_S, launcher, n_ranks, self,
                   name);
    FILE *f = popen(command, "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        n_heard += strstr(line, "is well") != NULL;
        if (strlen(said) + strlen(line) < sizeof said)
            memcpy(said + strlen(said), line, strlen(line) + 1);
    }
    pclose(f);
    if (n_heard != n_well)
        fail_msg("%s: %d of %d ranks are well; they said:\n%s", command, n_heard, n_well, said);
}

static void skip_without(const char *program)
{
    char command[128];
    (void)snprintf(command, sizeof command, "command -v %s >/dev/null", program);
    if (IS_TSAN || system(command) != 0)
        skip();
}

#define MPICH "mpirun.mpich"
#define OPENMPI                                                                                                        \
    "mpirun.openmpi --allow-run-as-root --oversubscribe --mca btl_base_warn_component_unused 0 --mca "                 \
    "mpi_yield_when_idle 0"

static void run_all_good(const char *launcher)
{
    run_case(launcher, "all", 3, 3);
    run_case(launcher, "large", 2, 2);
    run_case(launcher, "grid", 8, 8);
    run_case(launcher, "ring", 3, 3);
}

static void mpich_gives_the_serial_bits_and_order(void **state)
{
    (void)state;
    skip_without("mpirun.mpich");
    run_all_good(MPICH);
    run_case(MPICH, "many", 3, 3);
    run_case(MPICH, "overlap", 2, 2);
}

static void openmpi_gives_the_serial_bits_and_order(void **state)
{
    (void)state;
    skip_without("mpirun.openmpi");
    run_all_good(OPENMPI);
}

static void differences_and_aborts_reach_every_rank(void **state)
{
    (void)state;
    skip_without("mpirun.mpich");
    run_case(MPICH " -disable-auto-cleanup", "disagree", 3, 3);
    run_case(MPICH " -disable-auto-cleanup", "wrong_split", 3, 3);
    run_case(MPICH " -disable-auto-cleanup", "abort", 4, 4);
    run_case(MPICH " -disable-auto-cleanup", "leaves", 4, 4);
}

static void a_missing_rank_is_named(void **state)
{
    (void)state;
    skip_without("mpirun.mpich");
    run_case(MPICH " -disable-auto-cleanup", "late", 3, 3);
    run_case(MPICH " -disable-auto-cleanup", "stopped", 3, 2);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        return be_rank(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mpich_gives_the_serial_bits_and_order),
        cmocka_unit_test(openmpi_gives_the_serial_bits_and_order),
        cmocka_unit_test(differences_and_aborts_reach_every_rank),
        cmocka_unit_test(a_missing_rank_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
