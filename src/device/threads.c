/* threads.c - the device `threads`, for tests: a CPU with one thread for each stream, and random delays between jobs.
 *
 * A wait that is missing in a schedule gives right results on a CPU, whose streams run in place, and on most runs of a
 * GPU. Here it gives wrong bits for some seed, and a report of TSan. So the queues synchronise one way only: a job runs
 * after its issue and after the events it waits for, and nothing else orders two streams. That is why each queue has a
 * semaphore and an atomic counter of its own instead of one lock for all, and why the issuer looks at the counter only
 * where it must: when a queue is full, or to wait. Kernels on streams other than compute get no thread pool from their
 * callers, because a pool is not reentrant. Queues are allocated at open: nothing allocates later.
 */
#include "device/device_impl.h"
#include <semaphore.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

enum { N_JOBS = 512, CALL_BYTES = 1536, POLL_US = 20, DEFAULT_DELAY_US = 200 };

enum job_kind { JOB_COPY, JOB_CLEAR, JOB_LAUNCH, JOB_RECORD, JOB_WAIT, JOB_STOP };

struct stream_event {
    uint64_t n_recorded; /* only the issuing thread uses it */
    enum tr_stream stream;
    _Atomic uint64_t n_done;
};

struct stream_job {
    enum job_kind kind;
    void *dst;
    const void *src;
    size_t bytes;
    tr_kernel kernel;
    struct stream_event *event;
    uint64_t ticket; /* which record of the event */
    alignas(64) unsigned char call[CALL_BYTES];
};

struct queue {
    struct threads *all;
    int stream;
    pthread_t thread;
    bool is_started;
    sem_t ready;
    uint64_t n_issued, n_seen; /* only the issuing thread uses them; n_seen: n_done when it last read it */
    _Atomic uint64_t n_done;
    struct stream_job *job; /* a ring of N_JOBS */
};

struct threads {
    uint64_t seed;
    int max_us;
    struct queue queue[TR_STREAM_HOST]; /* the host stream is the issuing thread */
};

static struct threads *threads_of(const struct tr_device *d)
{
    return d->impl;
}

static void run(struct stream_job *j)
{
    switch (j->kind) {
    case JOB_COPY:
        memcpy(j->dst, j->src, j->bytes);
        break;
    case JOB_CLEAR:
        memset(j->dst, 0, j->bytes);
        break;
    case JOB_LAUNCH:
        j->kernel((const struct tr_call *)(const void *)j->call);
        break;
    case JOB_RECORD:
        atomic_store_explicit(&j->event->n_done, j->ticket, memory_order_release);
        break;
    case JOB_WAIT:
        while (atomic_load_explicit(&j->event->n_done, memory_order_acquire) < j->ticket)
            usleep(POLL_US);
        break;
    case JOB_STOP:
        break;
    }
}

/* Half of the jobs start at once; the others wait for up to max_us. */
static void delay(const struct queue *q, uint64_t number)
{
    const struct threads *t = q->all;
    struct tr_philox w = tr_philox(t->seed, (uint64_t)q->stream, number);
    if (t->max_us > 0 && w.v[0] % 2 == 0)
        usleep(w.v[1] % (uint32_t)t->max_us);
}

static void *body(void *arg)
{
    struct queue *q = arg;
    enum job_kind kind = JOB_WAIT;
    for (uint64_t i = 0; kind != JOB_STOP; i++) {
        while (sem_wait(&q->ready) != 0) /* EINTR */
            ;
        delay(q, i);
        kind = q->job[i % N_JOBS].kind;
        run(&q->job[i % N_JOBS]);
        atomic_store_explicit(&q->n_done, i + 1, memory_order_release);
    }
    return NULL;
}

/* Blocks the issuing thread until n jobs of the queue are done. */
static void wait_for(struct queue *q, uint64_t n)
{
    while (q->n_seen < n) {
        q->n_seen = atomic_load_explicit(&q->n_done, memory_order_acquire);
        if (q->n_seen < n)
            usleep(POLL_US);
    }
}

/* Issues a job; *j has everything except the call, which is `bytes` long. */
static void issue(struct queue *q, const struct stream_job *j, const struct tr_call *call, size_t bytes)
{
    if (q->n_issued >= N_JOBS)
        wait_for(q, q->n_issued - N_JOBS + 1);
    struct stream_job *to = &q->job[q->n_issued % N_JOBS];
    memcpy(to, j, offsetof(struct stream_job, call));
    if (call)
        memcpy(to->call, call, bytes);
    q->n_issued++;
    (void)sem_post(&q->ready);
}

static void run_or_issue(struct tr_device *d, enum tr_stream s, struct stream_job *j)
{
    if (s == TR_STREAM_HOST)
        run(j);
    else
        issue(&threads_of(d)->queue[s], j, NULL, 0);
}

static void copy(struct tr_device *d, enum tr_stream s, void *dst, const void *src, size_t bytes)
{
    run_or_issue(d, s, &(struct stream_job){ .kind = JOB_COPY, .dst = dst, .src = src, .bytes = bytes });
}

static void clear(struct tr_device *d, enum tr_stream s, void *dst, size_t bytes)
{
    run_or_issue(d, s, &(struct stream_job){ .kind = JOB_CLEAR, .dst = dst, .bytes = bytes });
}

static void launch(struct tr_device *d, enum tr_stream s, tr_kernel kernel, const struct tr_call *call, size_t bytes)
{
    TR_BUG_ON(bytes > CALL_BYTES);
    if (s == TR_STREAM_HOST)
        kernel(call);
    else
        issue(&threads_of(d)->queue[s], &(struct stream_job){ .kind = JOB_LAUNCH, .kernel = kernel }, call, bytes);
}

static enum tr_status event_open(struct tr_device *d, void **event)
{
    (void)d;
    *event = calloc(1, sizeof(struct stream_event));
    return *event ? TR_OK : tr_fail(TR_NOMEM, "no memory for an event");
}

static void event_close(struct tr_device *d, void *event)
{
    (void)d;
    free(event);
}

static void record(struct tr_device *d, enum tr_stream s, void *event)
{
    struct stream_event *e = event;
    TR_BUG_ON(e->stream != s && atomic_load_explicit(&e->n_done, memory_order_relaxed) < e->n_recorded);
    e->stream = s;
    run_or_issue(d, s, &(struct stream_job){ .kind = JOB_RECORD, .event = e, .ticket = ++e->n_recorded });
}

static void wait_event(struct tr_device *d, enum tr_stream s, void *event)
{
    struct stream_event *e = event;
    run_or_issue(d, s, &(struct stream_job){ .kind = JOB_WAIT, .event = e, .ticket = e->n_recorded });
}

static void drain(struct tr_device *d, enum tr_stream s)
{
    if (s != TR_STREAM_HOST)
        wait_for(&threads_of(d)->queue[s], threads_of(d)->queue[s].n_issued);
}

static void close_threads(struct tr_device *d)
{
    struct threads *t = threads_of(d);
    for (int s = 0; t && s < TR_STREAM_HOST; s++) {
        struct queue *q = &t->queue[s];
        if (q->is_started) {
            issue(q, &(struct stream_job){ .kind = JOB_STOP }, NULL, 0);
            (void)pthread_join(q->thread, NULL);
            (void)sem_destroy(&q->ready);
        }
        free(q->job);
    }
    free(t);
}

static enum tr_status open_threads(struct tr_device *d)
{
    struct threads *t = NULL;
    TR_PASS(TR_ALLOC(t, 1, "the device threads"));
    *t = (struct threads){ .seed = 1, .max_us = DEFAULT_DELAY_US };
    d->impl = t;
    for (int s = 0; s < TR_STREAM_HOST; s++) {
        struct queue *q = &t->queue[s];
        q->all = t;
        q->stream = s;
        q->job = aligned_alloc(alignof(struct stream_job), N_JOBS * sizeof *q->job);
        q->is_started = q->job && sem_init(&q->ready, 0, 0) == 0 && tr_thread_start(&q->thread, body, q) == 0;
        if (!q->is_started) {
            close_threads(d);
            return tr_fail(TR_NOMEM, "no memory for a stream of the device threads");
        }
    }
    return TR_OK;
}

void tr_threads_delays(struct tr_device *d, uint64_t seed, int max_us)
{
    TR_BUG_ON(d->row != &tr_threads_row);
    threads_of(d)->seed = seed;
    threads_of(d)->max_us = max_us;
}

static const struct tr_memory_ops memory = { tr_pages_reserve, tr_pages_release, copy, clear, NULL, NULL };
static const struct tr_stream_ops streams = { event_open, event_close, record, wait_event, launch, drain, NULL };

const struct tr_device_row tr_threads_row = { .name = "threads",
                                              .is_host = true,
                                              .open = open_threads,
                                              .close = close_threads,
                                              .memory = &memory,
                                              .stream = &streams };
