/* Pool: every task once, results visible to the caller, whatever the number of threads, tasks and sleeps between. */
#include "base/base.h"
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <time.h>
#include <cmocka.h>

enum { N_TASKS_MAX = 1000 };

struct job {
    int n_threads;
    int64_t offset;
    int64_t out[N_TASKS_MAX]; /* plain memory on purpose: the pool itself must order it */
    int n_calls[N_TASKS_MAX];
    atomic_int n_bad_worker;
    atomic_uint workers_seen; /* bit per worker */
};

static void fill(void *ctx, int64_t task, int worker)
{
    struct job *j = ctx;
    j->out[task] = j->offset + task;
    j->n_calls[task]++;
    if (worker < 0 || worker >= j->n_threads)
        atomic_fetch_add(&j->n_bad_worker, 1);
}

static void check_run(struct tr_pool *p, struct job *j, int64_t n_tasks, int64_t offset)
{
    memset(j->n_calls, 0, sizeof j->n_calls);
    j->n_threads = tr_pool_threads(p);
    j->offset = offset;
    tr_pool_run(p, n_tasks, fill, j);
    for (int64_t i = 0; i < N_TASKS_MAX; i++) {
        if (i < n_tasks && j->out[i] != offset + i)
            fail_msg("task %d was not done", (int)i);
        if (j->n_calls[i] != (i < n_tasks))
            fail_msg("task %d ran %d times", (int)i, j->n_calls[i]);
    }
    assert_int_equal(atomic_load(&j->n_bad_worker), 0);
}

static void every_task_runs_once_for_any_thread_count(void **state)
{
    (void)state;
    static struct job j;
    static const int64_t n_tasks[] = { 0, 1, 2, 3, 17, N_TASKS_MAX };
    for (int n_threads = 1; n_threads <= 9; n_threads += 2) { /* 9: more threads than cores on a small machine */
        struct tr_pool *p = NULL;
        assert_int_equal(tr_pool_open(n_threads, &p), TR_OK);
        assert_int_equal(tr_pool_threads(p), n_threads);
        for (int64_t round = 0; round < 30; round++)
            for (size_t i = 0; i < TR_COUNT_OF(n_tasks); i++)
                check_run(p, &j, n_tasks[i], round * 5000);
        tr_pool_close(p);
    }
}

static void runs_work_after_workers_fell_asleep(void **state)
{
    (void)state;
    static struct job j;
    struct tr_pool *p = NULL;
    assert_int_equal(tr_pool_open(3, &p), TR_OK);
    for (int i = 0; i < 100; i++) { /* pauses around the spin time hit the edge between spinning and sleeping */
        struct timespec pause = { .tv_nsec = i * 2000 };
        nanosleep(&pause, NULL);
        check_run(p, &j, 8, i);
    }
    tr_pool_close(p);
}

static void slow(void *ctx, int64_t task, int worker)
{
    struct job *j = ctx;
    struct timespec t = { .tv_nsec = 3000000 };
    atomic_fetch_or(&j->workers_seen, 1u << worker);
    nanosleep(&t, NULL);
    fill(ctx, task, worker);
}

static void slow_tasks_are_shared_and_waited_for(void **state)
{
    (void)state;
    static struct job j;
    struct tr_pool *p = NULL;
    assert_int_equal(tr_pool_open(4, &p), TR_OK);
    j.n_threads = 4;
    for (int i = 0; i < 10; i++) {
        memset(&j.n_calls, 0, sizeof j.n_calls);
        tr_pool_run(p, 5, slow, &j);
        for (int t = 0; t < 5; t++)
            assert_int_equal(j.n_calls[t], 1);
    }
    assert_int_equal(atomic_load(&j.workers_seen), 0xf); /* the tasks sleep, so even one core lets all four take part */
    tr_pool_close(p);
}

static void many_short_runs_do_not_lose_one(void **state)
{
    (void)state;
    static struct job j;
    struct tr_pool *p = NULL;
    assert_int_equal(tr_pool_open(2, &p), TR_OK);
    j.n_threads = 2;
    for (int64_t i = 0; i < 20000; i++) {
        j.offset = i;
        tr_pool_run(p, 2, fill, &j);
        if (j.out[0] != i || j.out[1] != i + 1)
            fail_msg("run %d came back early", (int)i);
    }
    tr_pool_close(p);
}

static void no_pool_and_bad_counts(void **state)
{
    (void)state;
    static struct job j;
    assert_int_equal(tr_pool_threads(NULL), 1);
    check_run(NULL, &j, 10, 3);
    struct tr_pool *p = NULL;
    assert_int_equal(tr_pool_open(-1, &p), TR_USAGE);
    assert_int_equal(tr_pool_open(100000, &p), TR_USAGE);
    assert_null(p);
    assert_int_equal(tr_pool_open(0, &p), TR_OK);
    assert_true(tr_pool_threads(p) >= 1);
    tr_pool_close(p);
    tr_pool_close(NULL);
}

static void a_wait_ends_by_the_monotonic_clock(void **state)
{
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t cond;
    int64_t until_us = tr_clock_us() + 30 * 1000;
    int rc = 0;
    (void)state;
    tr_cond_init(&cond);
    pthread_mutex_lock(&lock);
    while (rc == 0) /* it may wake for no reason */
        rc = tr_cond_wait_until(&cond, &lock, until_us);
    assert_int_equal(rc, ETIMEDOUT);
    assert_true(tr_clock_us() >= until_us);
    assert_int_equal(tr_cond_wait_until(&cond, &lock, until_us - 1000000), ETIMEDOUT); /* it is over already */
    pthread_mutex_unlock(&lock);
    pthread_cond_destroy(&cond);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_wait_ends_by_the_monotonic_clock),
        cmocka_unit_test(every_task_runs_once_for_any_thread_count),
        cmocka_unit_test(runs_work_after_workers_fell_asleep),
        cmocka_unit_test(slow_tasks_are_shared_and_waited_for),
        cmocka_unit_test(many_short_runs_do_not_lose_one),
        cmocka_unit_test(no_pool_and_bad_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
