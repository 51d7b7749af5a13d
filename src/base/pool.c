/* pool.c - a thread pool for thousands of short loops a step.
 *
 * A run opens a gate; workers that are awake enter it, everybody claims tasks from one counter, and the caller, who can
 * do all the work alone, closes the gate when the counter is used up and waits only for those inside. A worker that the
 * kernel did not wake in time finds the gate closed: the caller never waits for a thread that has no task, which keeps
 * loops fast on a busy machine. Waiting spins for a bounded time, gives the core away between spins, then sleeps.
 * Invariant: the job fields are written only while the gate is shut and empty. Rejected: a barrier of all threads
 * (waits for sleepers), a mutex queue (allocates, ten times the latency), OpenMP (spins without bound or sleeps at
 * once).
 */
#include "base/pool.h"
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "base/misc.h"
#include "base/banned.h"

enum {
    N_THREADS_MAX = 1024,
    LINE = 64,
    SPIN_US = 50,       /* longer than the serial work between two loops of a step */
    PAUSES_A_LOOK = 32, /* about 1 us of pause instructions between two looks at the clock */
};

/* The gate word: two flags above the number of workers inside. */
#define GATE_OPEN          0x80000000u
#define GATE_CALLER_SLEEPS 0x40000000u

struct worker {
    struct tr_pool *pool;
    pthread_t thread;
    int id;
};

struct tr_pool {
    /* What the caller writes before opening the gate. */
    alignas(LINE) tr_task_fn *fn;
    void *ctx;
    int64_t n_tasks;
    alignas(LINE) _Atomic int64_t next; /* first unclaimed task */
    alignas(LINE) _Atomic uint32_t gate;
    alignas(LINE) _Atomic uint32_t epoch; /* grows with every opening: what workers watch and sleep on */
    _Atomic int n_asleep;
    _Atomic bool is_closing;
    int n_threads; /* the caller and n_threads - 1 workers */
    int n_started;
    struct worker *workers;
};

static void futex_wait(_Atomic uint32_t *word, uint32_t seen)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word, int n)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

/* Until *word equals `value` (is_equal) or differs from it, for SPIN_US at most; true when it came about. */
static bool spin_until(_Atomic uint32_t *word, uint32_t value, bool is_equal)
{
    int64_t end_us = 0;
    for (;;) {
        for (int i = 0; i < PAUSES_A_LOOK; i++) {
            if ((atomic_load_explicit(word, memory_order_acquire) == value) == is_equal)
                return true;
            tr_cpu_pause();
        }
        int64_t now_us = tr_clock_us();
        if (end_us == 0)
            end_us = now_us + SPIN_US;
        else if (now_us >= end_us)
            return false;
        sched_yield(); /* the thread we wait for may be queued on this very core */
    }
}

static void claim_tasks(struct tr_pool *p, int worker)
{
    for (;;) {
        int64_t task = atomic_fetch_add_explicit(&p->next, 1, memory_order_relaxed);
        if (task >= p->n_tasks)
            return;
        p->fn(p->ctx, task, worker);
    }
}

static bool enter_gate(struct tr_pool *p)
{
    uint32_t gate = atomic_load_explicit(&p->gate, memory_order_relaxed);
    while (gate & GATE_OPEN)
        if (atomic_compare_exchange_weak_explicit(&p->gate, &gate, gate + 1, memory_order_acquire,
                                                  memory_order_relaxed))
            return true;
    return false;
}

static void leave_gate(struct tr_pool *p)
{
    uint32_t gate = atomic_fetch_sub_explicit(&p->gate, 1, memory_order_release) - 1;
    if (gate == GATE_CALLER_SLEEPS) /* shut and now empty */
        futex_wake(&p->gate, 1);
}

/* Sleeps until the epoch moves on from `seen`. n_asleep and epoch are written and then read crosswise by sleeper and
 * caller, both sequentially consistent: one of the two always sees the other. */
static void sleep_through(struct tr_pool *p, uint32_t seen)
{
    atomic_fetch_add(&p->n_asleep, 1);
    while (atomic_load(&p->epoch) == seen)
        futex_wait(&p->epoch, seen);
    atomic_fetch_sub(&p->n_asleep, 1);
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    struct tr_pool *p = w->pool;
    uint32_t seen = 0;
    for (;;) {
        if (!spin_until(&p->epoch, seen, false))
            sleep_through(p, seen);
        seen = atomic_load_explicit(&p->epoch, memory_order_acquire);
        if (atomic_load_explicit(&p->is_closing, memory_order_relaxed))
            return NULL;
        if (enter_gate(p)) {
            claim_tasks(p, w->id);
            leave_gate(p);
        }
    }
}

/* Makes sure that n_wanted workers are awake; those that still spin need no system call. */
static void wake_workers(struct tr_pool *p, int n_wanted)
{
    atomic_fetch_add(&p->epoch, 1);
    int n_asleep = atomic_load(&p->n_asleep);
    int n_spinning = p->n_started - n_asleep;
    if (n_asleep > 0 && n_wanted > n_spinning)
        futex_wake(&p->epoch, n_wanted - n_spinning);
}

/* Shuts the gate and waits for the workers inside. */
static void shut_gate(struct tr_pool *p)
{
    atomic_fetch_and_explicit(&p->gate, ~GATE_OPEN, memory_order_acquire);
    if (spin_until(&p->gate, 0, true))
        return;
    uint32_t gate = atomic_fetch_or_explicit(&p->gate, GATE_CALLER_SLEEPS, memory_order_acquire) | GATE_CALLER_SLEEPS;
    while (gate != GATE_CALLER_SLEEPS) {
        futex_wait(&p->gate, gate);
        gate = atomic_load_explicit(&p->gate, memory_order_acquire);
    }
    atomic_store_explicit(&p->gate, 0, memory_order_relaxed); /* shut and empty: nobody else writes it */
}

void tr_pool_run(struct tr_pool *p, int64_t n_tasks, tr_task_fn *fn, void *ctx)
{
    if (!p || p->n_threads == 1 || n_tasks <= 1) {
        for (int64_t task = 0; task < n_tasks; task++)
            fn(ctx, task, 0);
        return;
    }
    TR_BUG_ON(atomic_load_explicit(&p->gate, memory_order_acquire) != 0); /* a task called tr_pool_run */
    p->fn = fn;
    p->ctx = ctx;
    p->n_tasks = n_tasks;
    atomic_store_explicit(&p->next, 0, memory_order_relaxed);
    atomic_store_explicit(&p->gate, GATE_OPEN, memory_order_release);
    wake_workers(p, (int)tr_min64(n_tasks - 1, p->n_threads - 1));
    claim_tasks(p, 0);
    shut_gate(p);
}

static int n_cores(void)
{
    cpu_set_t set;
    int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : (int)sysconf(_SC_NPROCESSORS_ONLN);
    return n < 1 ? 1 : n;
}

/* Signals are for the caller's threads: workers start with all of them blocked. */
int tr_thread_start(pthread_t *out, void *(*body)(void *), void *ctx)
{
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int err = pthread_create(out, NULL, body, ctx);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return err;
}

static enum tr_status start_workers(struct tr_pool *p)
{
    int err = 0;
    while (p->n_started < p->n_threads - 1 && err == 0) {
        struct worker *w = &p->workers[p->n_started];
        *w = (struct worker){ .pool = p, .id = p->n_started + 1 };
        err = tr_thread_start(&w->thread, worker_main, w);
        p->n_started += err == 0;
    }
    return err == 0
               ? TR_OK
               : tr_fail(TR_NOMEM, "thread %d of %d did not start: %s", p->n_started + 2, p->n_threads, strerror(err));
}

enum tr_status tr_pool_open(int n_threads, struct tr_pool **out)
{
    if (n_threads < 0 || n_threads > N_THREADS_MAX)
        return tr_fail(TR_USAGE, "%d threads; use 0 (one per core) to %d", n_threads, N_THREADS_MAX);
    if (n_threads == 0)
        n_threads = (int)tr_min64(n_cores(), N_THREADS_MAX);
    struct tr_pool *p = aligned_alloc(LINE, sizeof *p);
    if (!p)
        return tr_fail(TR_NOMEM, "no memory for a pool of %d threads", n_threads);
    memset(p, 0, sizeof *p);
    p->n_threads = n_threads;
    p->workers = calloc((size_t)n_threads, sizeof *p->workers);
    enum tr_status st =
        p->workers ? start_workers(p) : tr_fail(TR_NOMEM, "no memory for a pool of %d threads", n_threads);
    if (st != TR_OK) {
        tr_pool_close(p);
        return st;
    }
    *out = p;
    return TR_OK;
}

void tr_pool_close(struct tr_pool *p)
{
    if (!p)
        return;
    atomic_store(&p->is_closing, true);
    wake_workers(p, p->n_started);
    for (int i = 0; i < p->n_started; i++)
        pthread_join(p->workers[i].thread, NULL);
    free(p->workers);
    free(p);
}

int tr_pool_threads(const struct tr_pool *p)
{
    return p ? p->n_threads : 1;
}

void tr_cond_init(pthread_cond_t *cond)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &attr);
    pthread_condattr_destroy(&attr);
}

int tr_cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t until_us)
{
    const struct timespec until = { .tv_sec = until_us / 1000000, .tv_nsec = until_us % 1000000 * 1000 };
    return pthread_cond_timedwait(cond, lock, &until);
}
