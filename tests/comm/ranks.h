/* ranks.h - runs one function as every rank of a world: as processes, or as threads of this one. */
#ifndef TR_TESTS_COMM_RANKS_H
#define TR_TESTS_COMM_RANKS_H

#include "comm/comm.h"
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { IS_SLOW = 1 }; /* a sanitizer: a table of layouts runs some of its rows, and release runs all */
#else
enum { IS_SLOW = 0 };
#endif

enum { N_RANKS_MAX = 8, LIMIT_S = 120 };

/* In a rank: says what failed and ends the process (cmocka's own checks jump, which a child must not). */
#define CHECK(cond)                                                                                                    \
    do {                                                                                                               \
        if (!(cond)) {                                                                                                 \
            fprintf(stderr, "%s:%d: %s; last error: %s\n", __FILE__, __LINE__, #cond, tr_error_text());                \
            _exit(1);                                                                                                  \
        }                                                                                                              \
    } while (0)
#define CHECK_OK(call) CHECK((call) == TR_OK)

/* Bounds in time hold for ranks that get to run: on a busy machine they stretch with the work that waits for each core.
 */
static inline int64_t stretched(int64_t us)
{
    double load = 0;
    long n_cores = sysconf(_SC_NPROCESSORS_ONLN);
    if (getloadavg(&load, 1) != 1 || n_cores < 1)
        return us;
    return (int64_t)((double)us * (1 + 2 * load / (double)n_cores));
}

typedef void rank_fn(const struct tr_comm_env *env, void *ctx);

static inline struct tr_comm_env env_of(int rank, int size, char *job, size_t n_job)
{
    static int n_jobs;
    if (rank == 0)
        n_jobs++;
    (void)snprintf(job, n_job, "test-%d-%d", (int)getpid(), n_jobs);
    return (struct tr_comm_env){
        .rank = rank, .size = size, .job = job, .generation = 1, .timeout_us = 20 * 1000000, .arena_bytes = 16 << 20
    };
}

static inline pid_t start_rank(const struct tr_comm_env *env, rank_fn *fn, void *ctx)
{
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        alarm(getenv("TR_TEST_DEVICE") ? 5 * LIMIT_S : LIMIT_S);
        fn(env, ctx);
        _exit(0);
    }
    return pid;
}

static inline void run_ranks(int size, rank_fn *fn, void *ctx)
{
    char job[64];
    pid_t pids[N_RANKS_MAX];
    for (int r = 0; r < size; r++) {
        struct tr_comm_env env = env_of(r, size, job, sizeof job);
        pids[r] = start_rank(&env, fn, ctx);
        assert_true(pids[r] > 0);
    }
    for (int r = 0; r < size; r++) {
        int status;
        assert_int_equal(waitpid(pids[r], &status, 0), pids[r]);
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
            fail_msg("rank %d of %d ended with wait status %#x", r, size, (unsigned)status);
    }
}

struct thread_rank {
    struct tr_comm_env env;
    rank_fn *fn;
    void *ctx;
};

static inline void *run_thread_rank(void *arg)
{
    struct thread_rank *t = arg;
    t->fn(&t->env, t->ctx);
    return NULL;
}

static inline void run_threads(int size, rank_fn *fn, void *ctx)
{
    char job[64];
    pthread_t threads[N_RANKS_MAX];
    struct thread_rank ranks[N_RANKS_MAX];
    for (int r = 0; r < size; r++)
        ranks[r] = (struct thread_rank){ env_of(r, size, job, sizeof job), fn, ctx };
    for (int r = 0; r < size; r++)
        assert_int_equal(pthread_create(&threads[r], NULL, run_thread_rank, &ranks[r]), 0);
    for (int r = 0; r < size; r++)
        pthread_join(threads[r], NULL);
}

#endif
