/* Faults: a rank that dies or stops anywhere is named by every other rank, in time, and nothing is left behind. */
#include "comm/serial.h"
#include <dirent.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/un.h>
#include "comm/shm_impl.h"

/* Instrumented ranks start ten times slower: there a few of each are enough to see races, and the plain build finds the
 * rare instants. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { N_KILLS = 12, N_STOPS = 4, N_JOIN_KILLS = 5, N_X = 30000 };
#else
enum { N_KILLS = 80, N_STOPS = 10, N_JOIN_KILLS = 12, N_X = 30000 };
#endif

static int64_t second_us, stop_timeout_us; /* set once in main */

/* What ranks tell the test, in memory that survives them. */
struct board {
    struct {
        enum tr_status st;
        char text[1024];
        int64_t at_us;
        atomic_int n_done;
    } rank[N_RANKS_MAX];
    int64_t timeout_us;
};

static struct board *new_board(int64_t timeout_us)
{
    struct board *b = mmap(NULL, sizeof *b, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(b != MAP_FAILED);
    b->timeout_us = timeout_us;
    return b;
}

static void report(struct board *b, int rank, enum tr_status st)
{
    (void)snprintf(b->rank[rank].text, sizeof b->rank[rank].text, "%s", tr_error_text());
    b->rank[rank].st = st;
    b->rank[rank].at_us = tr_clock_us();
}

/* One of everything: small, staged, direct, a pair, an axis. */
static enum tr_status work(struct tr_comm *w, struct tr_comm *axis, float *plain, float *shared, int i)
{
    enum tr_status st = TR_OK;
    struct tr_coll small = {
        .kind = TR_ALL_REDUCE, .dtype = TR_F32, .in = plain, .out = plain, .count = 7, .site = "small"
    };
    struct tr_coll staged = { .kind = TR_ALL_REDUCE, .dtype = TR_F32, .in = plain, .out = plain, .site = "staged" };
    struct tr_coll direct = { .kind = TR_ALL_REDUCE, .dtype = TR_F32, .in = shared, .out = shared, .site = "direct" };
    struct tr_coll give = { .kind = TR_SEND, .dtype = TR_F32, .in = plain, .count = N_X, .site = "give" };
    struct tr_coll take = { .kind = TR_RECV, .dtype = TR_F32, .out = shared, .count = N_X, .site = "take" };
    tr_ticket t[2];
    staged.count = direct.count = N_X;
    give.root = (w->rank + 1) % w->size;
    take.root = (w->rank + w->size - 1) % w->size;
    memset(plain, i, N_X * sizeof *plain);
    TR_TRY(tr_comm_run(w, &small));
    TR_TRY(tr_comm_run(i & 1 ? w : axis, &staged));
    TR_TRY(tr_comm_run(w, &direct));
    TR_TRY(tr_comm_post(w, &give, &t[0]));
    TR_TRY(tr_comm_post(w, &take, &t[1]));
    TR_TRY(tr_comm_wait(w, t[0]));
    TR_TRY(tr_comm_wait(w, t[1]));
out:
    return st;
}

static void loop_for_ever(const struct tr_comm_env *given, void *ctx)
{
    struct board *b = ctx;
    struct tr_comm_env env = *given;
    struct tr_comm *w, *axis;
    void *shared;
    float *plain = calloc(N_X, sizeof *plain);
    env.timeout_us = b->timeout_us;
    env.arena_bytes = N_X * sizeof(float) + TR_COMM_ALIGN;
    CHECK(plain);
    enum tr_status st = tr_failpoint_setup(NULL, env.rank);
    if (st == TR_OK)
        st = tr_comm_open("shm", &env, &w);
    if (st == TR_OK)
        st = tr_comm_reserve(w, N_X * sizeof(float), &shared);
    if (st == TR_OK)
        st = tr_comm_split(w, env.rank / 2, 0, 2, &axis);
    for (int i = 0; st == TR_OK; i++) {
        st = work(w, axis, plain, shared, i);
        b->rank[env.rank].n_done++;
    }
    report(b, env.rank, st);
}

static void start_all(int size, rank_fn *fn, struct board *b, pid_t *pids)
{
    char job[64];
    for (int r = 0; r < size; r++) {
        struct tr_comm_env env = env_of(r, size, job, sizeof job);
        pids[r] = start_rank(&env, fn, b);
        assert_true(pids[r] > 0);
    }
}

/* All but the victim must end by themselves; then the victim is swept away. */
static void reap(int size, const pid_t *pids, int victim)
{
    for (int r = 0; r < size; r++) {
        if (r == victim)
            continue;
        int status;
        assert_int_equal(waitpid(pids[r], &status, 0), pids[r]);
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
            fail_msg("rank %d ended with wait status %#x", r, (unsigned)status);
    }
    kill(pids[victim], SIGKILL);
    assert_int_equal(waitpid(pids[victim], NULL, 0), pids[victim]);
}

static void check_reports(const struct board *b, int size, int victim, pid_t pid, int64_t hit_us, int64_t bound_us,
                          enum tr_status want)
{
    char name[64];
    (void)snprintf(name, sizeof name, "rank %d (pid %d,", victim, (int)pid);
    for (int r = 0; r < size; r++) {
        if (r == victim)
            continue;
        if (b->rank[r].st != want || !strstr(b->rank[r].text, name) || !strstr(b->rank[r].text, " #"))
            fail_msg("rank %d of victim %d: %s: %s", r, victim, tr_status_str(b->rank[r].st), b->rank[r].text);
        if (b->rank[r].at_us - hit_us > bound_us)
            fail_msg("rank %d knew after %d ms", r, (int)((b->rank[r].at_us - hit_us) / 1000));
    }
}

static bool all_work(const struct board *b, int size)
{
    for (int r = 0; r < size; r++)
        if (b->rank[r].n_done == 0)
            return false;
    return true;
}

/* A job, and the rank of it that was hit. */
struct hit {
    struct board *b;
    pid_t pids[N_RANKS_MAX];
    int size, victim;
    int64_t at_us;
};

static void start_job(struct hit *h, int size, int victim, int64_t timeout_us)
{
    *h = (struct hit){ .b = new_board(timeout_us), .size = size, .victim = victim };
    start_all(size, loop_for_ever, h->b, h->pids);
}

static void await_work(const struct hit *h)
{
    for (int64_t t = tr_clock_us(); !all_work(h->b, h->size) && tr_clock_us() - t < 10000000;)
        usleep(200);
}

static void strike(struct hit *h, int sig)
{
    h->at_us = tr_clock_us();
    kill(h->pids[h->victim], sig);
}

static void end_job(const struct hit *h)
{
    reap(h->size, h->pids, h->victim);
}

/* A job that was hit only waits, so that the next begins meanwhile; how long each took, its ranks say. */
static void hit_random_ranks(int n_times, int sig, int64_t timeout_us, int64_t bound_us, enum tr_status want)
{
    int64_t worst_us = 0;
    static struct hit hits[N_KILLS > N_STOPS ? N_KILLS : N_STOPS];
    for (int i = 0; i < n_times; i++) {
        struct tr_philox dice = tr_philox(tr_rng_key(1, "hit", (uint64_t)sig), 0, (uint64_t)i);
        int size = 2 + 2 * (int)(dice.v[0] % 2);
        start_job(&hits[i], size, (int)(dice.v[1] % (unsigned)size), timeout_us);
        await_work(&hits[i]);
        usleep(dice.v[2] % 5000);
        strike(&hits[i], sig);
    }
    for (int i = 0; i < n_times; i++) {
        const struct hit *h = &hits[i];
        end_job(h);
        check_reports(h->b, h->size, h->victim, h->pids[h->victim], h->at_us, bound_us, want);
        for (int r = 0; r < h->size; r++)
            if (r != h->victim && h->b->rank[r].at_us - h->at_us > worst_us)
                worst_us = h->b->rank[r].at_us - h->at_us;
        munmap(h->b, sizeof *h->b);
    }
    print_message("worst %d ms of %d\n", (int)(worst_us / 1000), (int)(bound_us / 1000));
}

static void a_killed_rank_is_named_within_a_second(void **state)
{
    (void)state;
    hit_random_ranks(N_KILLS, SIGKILL, 30 * 1000000, second_us, TR_PEER);
}

static void a_stopped_rank_is_named_when_the_bound_runs_out(void **state)
{
    (void)state;
    hit_random_ranks(N_STOPS, SIGSTOP, stop_timeout_us, stop_timeout_us + second_us, TR_TIMEOUT);
}

/* Without waiting for a long bound: the kernel says that it is stopped. */
static void a_stopped_rank_is_named_within_five_seconds_whatever_the_bound(void **state)
{
    (void)state;
    struct hit h;
    start_job(&h, 4, 2, 300 * INT64_C(1000000));
    await_work(&h);
    strike(&h, SIGSTOP);
    end_job(&h);
    check_reports(h.b, 4, 2, h.pids[2], h.at_us, 4 * second_us + second_us, TR_TIMEOUT);
    munmap(h.b, sizeof *h.b);
}

/* All ranks stopped together for longer than the bound, as a scheduler may do: nobody is to blame. */
static void a_job_stopped_as_a_whole_goes_on(void **state)
{
    (void)state;
    struct hit h;
    start_job(&h, 2, 1, stop_timeout_us);
    const struct board *b = h.b;
    await_work(&h);
    kill(h.pids[0], SIGSTOP);
    kill(h.pids[1], SIGSTOP);
    usleep((useconds_t)(stop_timeout_us + stop_timeout_us / 4));
    int n_done = b->rank[0].n_done;
    kill(h.pids[0], SIGCONT);
    kill(h.pids[1], SIGCONT);
    for (int64_t t = tr_clock_us(); b->rank[0].n_done < n_done + 3 && tr_clock_us() - t < 10000000;)
        usleep(200);
    assert_true(b->rank[0].n_done >= n_done + 3 && !b->rank[0].text[0]);
    strike(&h, SIGKILL);
    end_job(&h);
    munmap(h.b, sizeof *h.b);
}

/* At any instant of the start: before it connects the others can only miss it, afterwards they hear of it. */
static void a_rank_killed_while_they_join_does_not_hold_the_others(void **state)
{
    (void)state;
    struct hit hits[N_JOIN_KILLS];
    for (int i = 0; i < N_JOIN_KILLS; i++) {
        struct tr_philox dice = tr_philox(3, 0, (uint64_t)i);
        start_job(&hits[i], 4, (int)(dice.v[0] % 4), stop_timeout_us);
        usleep(dice.v[1] % 6000);
        strike(&hits[i], SIGKILL);
    }
    for (int i = 0; i < N_JOIN_KILLS; i++) {
        struct board *b = hits[i].b;
        int victim = hits[i].victim;
        end_job(&hits[i]);
        for (int r = 0; r < 4; r++)
            if (r != victim) {
                char name[16];
                (void)snprintf(name, sizeof name, "rank %d", victim);
                bool is_named = strstr(b->rank[r].text, name) || strstr(b->rank[r].text, "rank 0 of job");
                if ((b->rank[r].st != TR_PEER && b->rank[r].st != TR_TIMEOUT) || !is_named)
                    fail_msg("rank %d of victim %d: %s", r, victim, b->rank[r].text);
                assert_true(b->rank[r].at_us - hits[i].at_us < stop_timeout_us + 2 * second_us);
            }
        munmap(b, sizeof *b);
    }
}

/* ---- meeting places ---- */

static void join_and_leave(const struct tr_comm_env *env, void *ctx)
{
    struct board *b = ctx;
    struct tr_comm *world = NULL;
    struct tr_str notes = { 0 };
    struct tr_comm_env mine = *env;
    mine.notes = &notes;
    int64_t start_us = tr_clock_us();
    CHECK_OK(tr_comm_open("shm", &mine, &world));
    b->rank[env->rank].at_us = tr_clock_us() - start_us;
    (void)snprintf(b->rank[env->rank].text, sizeof b->rank[0].text, "%s", notes.p ? notes.p : "");
    tr_str_release(&notes);
    tr_comm_close(world);
}

static void wait_for_all(int n, const pid_t *pids)
{
    for (int r = 0; r < n; r++) {
        int status;
        assert_int_equal(waitpid(pids[r], &status, 0), pids[r]);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
}

/* Another user has the first two names: it listens at one and lets nobody in, and only holds the other. */
static void squat(const struct tr_comm_env *env, void *ctx)
{
    struct sockaddr_un a[2];
    socklen_t n = 0;
    for (int k = 0; k < 2; k++)
        n = tr_shm_place(env, k, &a[k]); /* of the ranks' user */
    CHECK(setgid(65534) == 0 && setuid(65534) == 0);
    for (int k = 0; k < 2; k++) {
        int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
        CHECK(fd >= 0 && bind(fd, (struct sockaddr *)&a[k], n) == 0 && (k == 1 || listen(fd, 0) == 0));
    }
    CHECK(write(*(int *)ctx, "", 1) == 1);
    pause();
}

static void a_squatted_place_is_named_and_another_is_taken(void **state)
{
    (void)state;
    char job[64];
    pid_t pids[2], squatter;
    int ready[2];
    if (geteuid() != 0)
        skip(); /* needs a second user */
    struct board *b = new_board(0);
    struct sockaddr_un with, without;
    struct tr_comm_env env = env_of(0, 2, job, sizeof job), secret = env;
    socklen_t n = tr_shm_place(&env, 0, &without);
    secret.secret = "known to the ranks";
    assert_int_equal(tr_shm_place(&secret, 0, &with), n);
    assert_true(memcmp(&with, &without, n) != 0);
    assert_int_equal(pipe(ready), 0);
    squatter = start_rank(&env, squat, &ready[1]);
    char byte;
    assert_int_equal(read(ready[0], &byte, 1), 1);
    for (int r = 0; r < 2; r++) {
        env.rank = r;
        pids[r] = start_rank(&env, join_and_leave, b);
    }
    wait_for_all(2, pids);
    assert_non_null(strstr(b->rank[0].text, "another user holds the meeting place @trireme-0-"));
    assert_true(b->rank[1].at_us < 5 * second_us);
    kill(squatter, SIGKILL);
    (void)waitpid(squatter, NULL, 0);
    close(ready[0]);
    close(ready[1]);
    munmap(b, sizeof *b);
}

/* A process of this user opens connections and says nothing, faster than they run out of time. */
static void hold_idle(const struct tr_comm_env *env, void *ctx)
{
    int fds[512], n = 0;
    (void)ctx;
    for (int64_t until = tr_clock_us() + 20 * 1000000; tr_clock_us() < until;) {
        struct sockaddr_un a;
        socklen_t len = tr_shm_place(env, 0, &a);
        int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0);
        if (fd >= 0 && connect(fd, (struct sockaddr *)&a, len) == 0) {
            if (n >= 512)
                close(fds[n % 512]);
            fds[n++ % 512] = fd;
            if (n % 64 != 0)
                continue;
        } else if (fd >= 0) {
            close(fd);
        }
        usleep(1000);
    }
}

static void idle_connections_delay_no_rank(void **state)
{
    (void)state;
    char job[64];
    pid_t pids[3], holder;
    struct board *b = new_board(0);
    struct tr_comm_env env = env_of(0, 3, job, sizeof job);
    holder = start_rank(&env, hold_idle, NULL);
    for (int r = 0; r < 3; r++) {
        env.rank = r;
        pids[r] = start_rank(&env, join_and_leave, b);
        usleep(100000); /* the holder is there first */
    }
    wait_for_all(3, pids);
    assert_true(b->rank[2].at_us < second_us);
    kill(holder, SIGKILL);
    (void)waitpid(holder, NULL, 0);
    munmap(b, sizeof *b);
}

/* Each failpoint, armed to kill: the instants that random times seldom hit. */
static void a_rank_killed_at_a_failpoint_is_named(void **state)
{
    (void)state;
    static const char *const points[] = { "comm.post", "comm.wait", "comm.in_reduce" };
    for (int i = 0; i < 12; i++) {
        char spec[64];
        int victim = i % 4;
        (void)snprintf(spec, sizeof spec, "%s:kill:%d:%d", points[i % 3], 5 + 7 * i, victim);
        setenv("TR_FAIL", spec, 1);
        struct board *b = new_board(30 * 1000000);
        pid_t pids[N_RANKS_MAX];
        int64_t start_us = tr_clock_us();
        start_all(4, loop_for_ever, b, pids);
        reap(4, pids, victim);
        check_reports(b, 4, victim, pids[victim], start_us, 5 * second_us, TR_PEER);
        munmap(b, sizeof *b);
    }
    setenv("TR_FAIL", "comm.in_reduce:error:3:1", 1);
    struct board *b = new_board(30 * 1000000);
    pid_t pids[N_RANKS_MAX];
    start_all(4, loop_for_ever, b, pids);
    reap(4, pids, 1);
    for (int r = 0; r < 4; r++)
        assert_non_null(strstr(b->rank[r].text, "rank 1: failpoint comm.in_reduce"));
    munmap(b, sizeof *b);
    unsetenv("TR_FAIL");
}

/* Rank 0 waits for 1, which waits for 2, which does nothing: 2 is to blame. */
static void chain(const struct tr_comm_env *given, void *ctx)
{
    struct board *b = ctx;
    struct tr_comm_env env = *given;
    struct tr_comm *w, *axis;
    float x = 0;
    env.timeout_us = b->timeout_us;
    CHECK_OK(tr_comm_open("shm", &env, &w));
    CHECK_OK(tr_comm_split(w, env.rank == 2 ? -1 : 0, 0, 2, &axis));
    struct tr_coll take = { .kind = TR_RECV, .dtype = TR_F32, .out = &x, .count = 1, .root = 2, .site = "late" };
    struct tr_coll sum = { .kind = TR_ALL_REDUCE, .dtype = TR_F32, .in = &x, .out = &x, .count = 1, .site = "grads" };
    enum tr_status st = TR_OK;
    if (env.rank == 0)
        st = tr_comm_run(axis, &sum);
    if (env.rank == 1)
        st = tr_comm_run(w, &take);
    if (env.rank == 2)
        usleep((useconds_t)(b->timeout_us + second_us / 2));
    report(b, env.rank, st);
}

static void blame_goes_to_the_end_of_the_chain(void **state)
{
    (void)state;
    struct board *b = new_board(stop_timeout_us);
    pid_t pids[N_RANKS_MAX];
    start_all(3, chain, b, pids);
    reap(3, pids, 2);
    for (int r = 0; r < 2; r++) {
        assert_int_equal(b->rank[r].st, TR_TIMEOUT);
        assert_non_null(strstr(b->rank[r].text, "rank 2 (pid"));
        assert_non_null(strstr(b->rank[r].text, "it is in no collective"));
    }
    munmap(b, sizeof *b);
}

static void disagree(const struct tr_comm_env *env, void *ctx)
{
    const struct tr_coll *two = ctx;
    struct tr_comm *w;
    char before[8192] = { 1 };
    static char buf[65536];
    memset(buf, env->rank + 1, sizeof buf);
    CHECK_OK(tr_comm_open("shm", env, &w));
    struct tr_coll c = two[env->rank == 1];
    c.in = c.out = buf;
    memcpy(before, buf, sizeof before);
    CHECK(tr_comm_run(w, &c) == TR_USAGE);
    CHECK(strstr(tr_error_text(), "\"here\"") && strstr(tr_error_text(), "\"there\""));
    CHECK(strstr(tr_error_text(), "rank 1 posted"));
    CHECK(memcmp(before, buf, sizeof before) == 0); /* no data moved */
    CHECK(tr_comm_run(w, &c) == TR_USAGE);          /* and none will */
    tr_comm_close(w);
}

static void collectives_that_differ_are_reported_on_all_ranks_with_both_sites(void **state)
{
    (void)state;
    struct tr_coll a = { .kind = TR_ALL_REDUCE, .dtype = TR_F32, .count = 10, .site = "here" };
    struct tr_coll b[5] = { a, a, a, a, a };
    for (int i = 0; i < 5; i++)
        b[i].site = "there"; /* b[4]: the order was swapped, and only the site shows it */
    b[0].count = 11;
    b[1].kind = TR_REDUCE_SCATTER;
    b[2].dtype = TR_BF16;
    b[3].op = TR_MAX;
    for (int i = 0; i < 5; i++)
        for (int n = 2; n < 5; n += 2) {
            struct tr_coll two[2] = { a, b[i] };
            if (n == 4)
                two[0].count = two[1].count = 10000;
            if (n == 4 && i == 0)
                two[1].count++;
            run_ranks(n, disagree, two);
        }
}

static void abort_frees(const struct tr_comm_env *env, void *ctx)
{
    (void)ctx;
    struct tr_comm *w;
    int64_t start = tr_clock_us();
    CHECK_OK(tr_comm_open("shm", env, &w));
    if (env->rank == 1) {
        usleep(50000);
        tr_comm_abort(w, "the disk is on fire");
    }
    struct tr_coll c = { .kind = TR_BARRIER };
    CHECK(tr_comm_run(w, &c) == TR_PEER);
    CHECK(strstr(tr_error_text(), "rank 1 aborted: the disk is on fire"));
    CHECK(tr_comm_check(w) == TR_PEER);
    CHECK(tr_clock_us() - start < 5 * second_us);
    tr_comm_close(w);
}

static void abort_frees_every_rank(void **state)
{
    (void)state;
    run_ranks(4, abort_frees, NULL);
    run_threads(3, abort_frees, NULL);
}

static void leave_early(const struct tr_comm_env *env, void *ctx)
{
    (void)ctx;
    struct tr_comm *w;
    CHECK_OK(tr_comm_open("shm", env, &w));
    if (env->rank != 2) {
        CHECK(tr_comm_run(w, &(struct tr_coll){ .kind = TR_BARRIER, .site = "end" }) == TR_PEER);
        CHECK(strstr(tr_error_text(), "rank 2 (pid") && strstr(tr_error_text(), "closed its communicators"));
    }
    tr_comm_close(w);
}

static void a_rank_that_closed_is_named_by_who_waits_for_it(void **state)
{
    (void)state;
    run_ranks(3, leave_early, NULL);
}

static void open_wrongly(const struct tr_comm_env *given, void *ctx)
{
    struct board *b = ctx;
    struct tr_comm_env env = *given;
    struct tr_comm *w;
    if (env.rank == 2) { /* comes as a second rank 1, or with another size */
        env.rank = 1;
        env.size += b->timeout_us == 1;
    }
    CHECK(tr_comm_open("shm", &env, &w) == TR_USAGE);
    CHECK(strstr(tr_error_text(), b->timeout_us == 1 ? "was started for 3 ranks" : "rank 1 was started twice"));
}

static void two_ranks_of_one_number_and_other_sizes_are_refused(void **state)
{
    (void)state;
    struct board b = { .timeout_us = 0 };
    run_ranks(3, open_wrongly, &b);
    b.timeout_us = 1;
    run_ranks(3, open_wrongly, &b);
}

static int n_entries(const char *dir, const char *prefix)
{
    int n = 0;
    DIR *d = opendir(dir);
    assert_non_null(d);
    for (const struct dirent *e; (e = readdir(d)) != NULL;)
        n += strncmp(e->d_name, prefix, strlen(prefix)) == 0;
    closedir(d);
    return n;
}

static int n_fds;

static int note_what_is_there(void **state)
{
    (void)state;
    n_fds = n_entries("/proc/self/fd", "");
    return 0;
}

static void nothing_is_left_behind(void **state)
{
    (void)state;
    char line[512], mine[32];
    (void)snprintf(mine, sizeof mine, "@trireme-%u-", (unsigned)geteuid());
    assert_int_equal(n_entries("/dev/shm", "trireme"), 0);
    assert_int_equal(n_entries("/proc/self/fd", ""), n_fds);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* no child */
    FILE *f = fopen("/proc/net/unix", "r");
    int n_places = 0;
    while (f && fgets(line, sizeof line, f))
        n_places += strstr(line, mine) != NULL;
    if (f)
        fclose(f);
    if (n_places) /* another test run's may be among them */
        print_message("%d meeting places of this user are open\n", n_places);
}

int main(int argc, char **argv)
{
    if (argc > 1) /* one of them, to run it many times */
        cmocka_set_test_filter(argv[1]);
    second_us = stretched(1000 * 1000);
    stop_timeout_us = stretched(400 * 1000);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(collectives_that_differ_are_reported_on_all_ranks_with_both_sites),
        cmocka_unit_test(abort_frees_every_rank),
        cmocka_unit_test(a_rank_that_closed_is_named_by_who_waits_for_it),
        cmocka_unit_test(two_ranks_of_one_number_and_other_sizes_are_refused),
        cmocka_unit_test(blame_goes_to_the_end_of_the_chain),
        cmocka_unit_test(a_rank_killed_at_a_failpoint_is_named),
        cmocka_unit_test(a_killed_rank_is_named_within_a_second),
        cmocka_unit_test(a_stopped_rank_is_named_when_the_bound_runs_out),
        cmocka_unit_test(a_stopped_rank_is_named_within_five_seconds_whatever_the_bound),
        cmocka_unit_test(a_job_stopped_as_a_whole_goes_on),
        cmocka_unit_test(a_rank_killed_while_they_join_does_not_hold_the_others),
        cmocka_unit_test(a_squatted_place_is_named_and_another_is_taken),
        cmocka_unit_test(idle_connections_delay_no_rank),
        cmocka_unit_test(nothing_is_left_behind),
    };
    return cmocka_run_group_tests(tests, note_what_is_there, NULL);
}
