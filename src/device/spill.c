/* spill.c - a file as a place: see spill.h. */
#include "device/spill.h"
#include "device/uring.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

struct spill_job {
    bool is_started, is_done; /* started: not waited for */
    size_t at, bytes;
    char *memory;
    enum tr_status st;
    char cause[TR_PATH_MAX + 128];
};

/* The hash of a range that a job has written. */
struct range_sum {
    size_t at;
    struct tr_hash128 hash;
    bool is_known;
};

struct spill_worker {
    struct tr_spill *disk;
    bool is_write, is_running;
    pthread_t thread;
    struct spill_job job[TR_DISK_JOBS];
    int queue[TR_DISK_JOBS], n_queued; /* jobs to do, in order */
    struct tr_uring *ring;
};

struct tr_spill {
    int fd;
    char *base, dir[TR_PATH_MAX];
    size_t bytes;
    bool is_closing;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct spill_worker worker[2]; /* reads, writes */
    struct range_sum *sum;
    size_t n_sums, n_sums_cap;
};

/* ---- the file ---- */

/* A file that never has a name; past the page cache where the file system can. */
static int open_file(const char *dir)
{
    int fd = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC | O_DIRECT, 0600);
    return fd < 0 && errno == EINVAL ? open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600) : fd;
}

static enum tr_status make_room(struct tr_spill *d)
{
    struct statvfs v = { 0 };
    char need[32], have[32];
    int failed = fallocate(d->fd, 0, 0, (off_t)d->bytes) == 0 ? 0 : errno;
    if (failed == EOPNOTSUPP)
        failed = ftruncate(d->fd, (off_t)d->bytes) == 0 ? 0 : errno;
    if (failed == 0)
        failed = tr_failpoint("offload.open") == TR_OK ? 0 : ENOSPC;
    if (failed == 0)
        return TR_OK;
    if (failed != ENOSPC && failed != EFBIG && failed != EDQUOT)
        return tr_fail(TR_IO, "offload to %s: %s", d->dir, strerror(failed));
    (void)statvfs(d->dir, &v);
    return tr_fail(TR_USAGE, "does not fit: a rank needs %s in %s, where %s are free; offload less (offload_share)",
                   tr_human_bytes(d->bytes, need, sizeof need), d->dir,
                   tr_human_bytes((uint64_t)v.f_bavail * v.f_frsize, have, sizeof have));
}

/* ---- jobs ---- */

static int move_plain(const struct tr_spill *d, bool is_write, size_t at, char *memory, size_t bytes)
{
    while (bytes > 0) {
        ssize_t n = is_write ? pwrite(d->fd, memory, bytes, (off_t)at) : pread(d->fd, memory, bytes, (off_t)at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n == 0 ? EIO : errno;
        at += (size_t)n, memory += n, bytes -= (size_t)n;
    }
    return 0;
}

static struct range_sum *sum_of(struct tr_spill *d, size_t at)
{
    for (size_t i = 0; i < d->n_sums; i++)
        if (d->sum[i].at == at)
            return &d->sum[i];
    return NULL;
}

/* Compares what was read with what was written, or keeps the hash of what was written. */
static enum tr_status note_sum(struct tr_spill *d, bool is_write, const struct spill_job *j)
{
    struct tr_hash128 hash = tr_hash(j->memory, j->bytes);
    enum tr_status st = TR_OK;
    pthread_mutex_lock(&d->lock);
    struct range_sum *s = sum_of(d, j->at);
    if (is_write && !s && TR_GROW(d->sum, d->n_sums + 1, &d->n_sums_cap)) {
        s = &d->sum[d->n_sums++];
        s->at = j->at;
    }
    if (is_write && s) {
        s->hash = hash;
        s->is_known = true;
    } else if (!is_write && s && s->is_known && !tr_hash_eq(s->hash, hash)) {
        st = tr_fail(TR_IO, "offload to %s: the disk returns other bytes than were written, at %zu", d->dir, j->at);
    }
    pthread_mutex_unlock(&d->lock);
    return st;
}

static enum tr_status run_job(struct spill_worker *w, const struct spill_job *j)
{
    struct tr_spill *d = w->disk;
    char human[32];
    TR_PASS(tr_failpoint(w->is_write ? "offload.write" : "offload.read"));
    if (w->is_write)
        TR_PASS(note_sum(d, true, j));
    int failed = w->ring ? tr_uring_move(w->ring, w->is_write, j->at, j->memory, j->bytes)
                         : move_plain(d, w->is_write, j->at, j->memory, j->bytes);
    if (failed)
        return tr_fail(TR_IO, "offload to %s: cannot %s %s: %s", d->dir, w->is_write ? "write" : "read",
                       tr_human_bytes(j->bytes, human, sizeof human), strerror(failed));
    if (!w->is_write && tr_failpoint("offload.rot") != TR_OK)
        j->memory[j->bytes / 2] ^= 1; /* a fault that tests plant */
    return w->is_write ? TR_OK : note_sum(d, false, j);
}

/* Is a write of this range still to come? */
static bool is_being_written(const struct tr_spill *d, size_t at)
{
    for (int i = 0; i < TR_DISK_JOBS; i++)
        if (d->worker[1].job[i].is_started && !d->worker[1].job[i].is_done && d->worker[1].job[i].at == at)
            return true;
    return false;
}

static bool may_begin(const struct spill_worker *w)
{
    return w->n_queued > 0 && (w->is_write || !is_being_written(w->disk, w->job[w->queue[0]].at));
}

static void *body(void *arg)
{
    struct spill_worker *w = arg;
    struct tr_spill *d = w->disk;
    pthread_mutex_lock(&d->lock);
    for (;;) {
        while (!may_begin(w) && !(d->is_closing && w->n_queued == 0))
            pthread_cond_wait(&d->changed, &d->lock);
        if (w->n_queued == 0)
            break;
        struct spill_job *j = &w->job[w->queue[0]];
        pthread_mutex_unlock(&d->lock);
        enum tr_status st = run_job(w, j);
        pthread_mutex_lock(&d->lock);
        j->st = st;
        if (st != TR_OK)
            (void)snprintf(j->cause, sizeof j->cause, "%s", tr_error_text());
        j->is_done = true;
        memmove(w->queue, w->queue + 1, (size_t)--w->n_queued * sizeof *w->queue);
        pthread_cond_broadcast(&d->changed);
    }
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

void tr_spill_start(struct tr_spill *d, bool is_write, int job, size_t at, char *memory, size_t bytes)
{
    struct spill_worker *w = &d->worker[is_write];
    pthread_mutex_lock(&d->lock);
    TR_BUG_ON(w->job[job].is_started);
    w->job[job] = (struct spill_job){ .is_started = true, .at = at, .memory = memory, .bytes = bytes };
    w->queue[w->n_queued++] = job;
    pthread_cond_broadcast(&d->changed);
    pthread_mutex_unlock(&d->lock);
}

enum tr_status tr_spill_wait(struct tr_spill *d, bool is_write, int job)
{
    struct spill_job *j = &d->worker[is_write].job[job];
    enum tr_status st = TR_OK;
    pthread_mutex_lock(&d->lock);
    while (j->is_started && !j->is_done)
        pthread_cond_wait(&d->changed, &d->lock);
    if (j->is_started && j->st != TR_OK)
        st = tr_fail(j->st, "%s", j->cause);
    j->is_started = false;
    pthread_mutex_unlock(&d->lock);
    return st;
}

enum tr_status tr_spill_sync(struct tr_spill *d)
{
    for (int i = 0; i < TR_DISK_JOBS; i++)
        TR_PASS(tr_spill_wait(d, true, i));
    return TR_OK;
}

void tr_spill_changed(struct tr_spill *d, size_t at)
{
    pthread_mutex_lock(&d->lock);
    struct range_sum *s = sum_of(d, at);
    if (s)
        s->is_known = false;
    pthread_mutex_unlock(&d->lock);
}

char *tr_spill_base(const struct tr_spill *d)
{
    return d->base;
}

void tr_spill_close(struct tr_spill *d)
{
    if (!d)
        return;
    pthread_mutex_lock(&d->lock);
    d->is_closing = true;
    pthread_cond_broadcast(&d->changed);
    pthread_mutex_unlock(&d->lock);
    for (int i = 0; i < 2; i++) {
        if (d->worker[i].is_running)
            (void)pthread_join(d->worker[i].thread, NULL);
        tr_uring_close(d->worker[i].ring);
    }
    if (d->base)
        munmap(d->base, d->bytes);
    if (d->fd >= 0)
        close(d->fd);
    pthread_cond_destroy(&d->changed);
    pthread_mutex_destroy(&d->lock);
    free(d->sum);
    free(d);
}

static enum tr_status start_worker(struct tr_spill *d, bool is_write, void *buffers, size_t n_bytes)
{
    struct spill_worker *w = &d->worker[is_write];
    w->disk = d;
    w->is_write = is_write;
    w->ring = tr_failpoint("offload.ring") == TR_OK ? tr_uring_open(d->fd, buffers, n_bytes) : NULL;
    w->is_running = tr_thread_start(&w->thread, body, w) == 0;
    return w->is_running ? TR_OK : tr_fail(TR_NOMEM, "offload to %s: no thread for reads and writes", d->dir);
}

enum tr_status tr_spill_open(const char *dir, size_t bytes, void *buffers, size_t n_bytes, struct tr_spill **out)
{
    enum tr_status st = TR_OK;
    struct tr_spill *d = calloc(1, sizeof *d);
    if (!d)
        return tr_fail(TR_NOMEM, "offload to %s: out of memory", dir);
    d->fd = -1;
    d->bytes = tr_round_up(bytes, TR_DISK_ALIGN);
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->changed, NULL);
    TR_TRY(tr_format(d->dir, sizeof d->dir, "%s", dir));
    d->fd = open_file(dir);
    if (d->fd < 0)
        TR_TRY(tr_fail(TR_USAGE, "offload to %s: %s; it must be a directory of a local disk", dir, strerror(errno)));
    TR_TRY(make_room(d));
    void *base = mmap(NULL, d->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, d->fd, 0);
    if (base == MAP_FAILED)
        TR_TRY(tr_fail(TR_IO, "offload to %s: cannot map the file: %s", dir, strerror(errno)));
    d->base = base;
    TR_TRY(start_worker(d, false, buffers, n_bytes));
    TR_TRY(start_worker(d, true, buffers, n_bytes));
out:
    if (st == TR_OK)
        *out = d;
    else
        tr_spill_close(d);
    return st;
}
