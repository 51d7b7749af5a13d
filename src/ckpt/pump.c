/* pump.c - the caller fills one buffer while a thread writes the other.
 *
 * So hashing and copying cost the disk no time, and the disk costs them none. The pages go around the page cache where
 * the file system allows it (O_DIRECT): a cache that nobody reads from costs a second copy, memory that steps could
 * use, and on a busy or virtual machine more than the disk itself. The last, odd bytes of a file go through it.
 * Invariant: a buffer belongs to the thread while n_pending is not 0, else to the caller; an error stays until the next
 * file. Rejected: two writes in flight (measured: no faster, appends wait for each other) and io_uring (one more thing
 * to depend on).
 */
#include "ckpt/pump.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/file.h"
#include "base/pool.h"
#include "ckpt/ckpt.h"

enum { PIECE_BYTES = TR_SAVE_PAGES_BYTES / 2 };

struct tr_pump {
    char *own; /* NULL: the caller's */
    char *buf[2];
    int now;     /* the one that the caller fills */
    size_t n_in; /* bytes in it */
    const char *path;

    pthread_t thread;
    bool has_thread;
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    /* under the mutex */
    size_t n_pending; /* bytes of the other buffer that the thread is to write */
    int error;        /* of this file: errno */
    bool is_leaving;
    /* the thread's, while something is pending */
    int fd;
    bool is_direct;
};

/* 0 or errno. Direct writes are of whole blocks; a file system that wants larger ones gets none. */
static int write_out(struct tr_pump *p, const char *buf, size_t n)
{
    size_t done = 0;
    while (done < n) {
        size_t left = n - done, whole = left - left % TR_DIRECT_BLOCK;
        if (p->is_direct && !whole) {
            if (!tr_file_direct(p->fd, false))
                return errno;
            p->is_direct = false;
        }
        ssize_t put = write(p->fd, buf + done, p->is_direct ? whole : left);
        if (put >= 0)
            done += (size_t)put;
        else if (errno == EINVAL && p->is_direct && tr_file_direct(p->fd, false))
            p->is_direct = false;
        else if (errno != EINTR)
            return errno;
    }
    if (!p->is_direct) /* the disk works while we do; fsync still decides */
        (void)sync_file_range(p->fd, 0, 0, SYNC_FILE_RANGE_WRITE);
    return 0;
}

static void *run_thread(void *ctx)
{
    struct tr_pump *p = ctx;
    pthread_mutex_lock(&p->mutex);
    while (!p->is_leaving) {
        if (!p->n_pending) {
            pthread_cond_wait(&p->cond, &p->mutex);
            continue;
        }
        const char *buf = p->buf[!p->now];
        size_t n = p->n_pending;
        pthread_mutex_unlock(&p->mutex);
        int error = write_out(p, buf, n);
        pthread_mutex_lock(&p->mutex);
        p->error = error;
        p->n_pending = 0;
        pthread_cond_broadcast(&p->cond);
    }
    pthread_mutex_unlock(&p->mutex);
    return NULL;
}

enum tr_status tr_pump_open(void *pages, struct tr_pump **out)
{
    struct tr_pump *p = NULL;
    TR_PASS(TR_ALLOC(p, 1, "a save"));
    pthread_mutex_init(&p->mutex, NULL);
    pthread_cond_init(&p->cond, NULL);
    if (!pages)
        pages = p->own = aligned_alloc(TR_DIRECT_BLOCK, TR_SAVE_PAGES_BYTES);
    if (!pages) {
        tr_pump_close(p);
        return tr_fail(TR_NOMEM, "save: no memory for buffers of %d bytes", TR_SAVE_PAGES_BYTES);
    }
    memset(pages, 0, TR_SAVE_PAGES_BYTES); /* there before the first save */
    for (int i = 0; i < 2; i++)
        p->buf[i] = (char *)pages + i * PIECE_BYTES;
    int err = tr_thread_start(&p->thread, run_thread, p);
    p->has_thread = err == 0;
    if (err) {
        tr_pump_close(p);
        return tr_fail(TR_NOMEM, "save: no thread: %s", strerror(err));
    }
    *out = p;
    return TR_OK;
}

void tr_pump_close(struct tr_pump *p)
{
    if (!p)
        return;
    if (p->has_thread) {
        pthread_mutex_lock(&p->mutex);
        p->is_leaving = true;
        pthread_cond_broadcast(&p->cond);
        pthread_mutex_unlock(&p->mutex);
        pthread_join(p->thread, NULL);
    }
    pthread_mutex_destroy(&p->mutex);
    pthread_cond_destroy(&p->cond);
    free(p->own);
    free(p);
}

/* Until the thread has nothing to do: as long as the disk takes for one buffer. What it met, as errno; then it gets the
 * buffer that was filled, if all is well. */
static int hand_over(struct tr_pump *p)
{
    pthread_mutex_lock(&p->mutex);
    while (p->n_pending)
        pthread_cond_wait(&p->cond, &p->mutex);
    int error = p->error;
    if (!error && p->n_in) {
        p->now = !p->now;
        p->n_pending = p->n_in;
        p->n_in = 0;
        pthread_cond_broadcast(&p->cond);
    }
    pthread_mutex_unlock(&p->mutex);
    return error;
}

static enum tr_status told(const struct tr_pump *p, int error)
{
    return error ? tr_fail(TR_IO, "%s: write: %s", p->path, strerror(error)) : TR_OK;
}

void tr_pump_begin(struct tr_pump *p, int fd, const char *path)
{
    tr_pump_drop(p);
    p->error = 0;
    p->fd = fd;
    p->path = path;
    p->is_direct = tr_file_direct(fd, true);
}

enum tr_status tr_pump_put(struct tr_pump *p, const void *src, size_t n)
{
    const char *from = src;
    int error = 0;
    while (n > 0 && !error) {
        size_t room = PIECE_BYTES - p->n_in, n_now = n < room ? n : room;
        memcpy(p->buf[p->now] + p->n_in, from, n_now);
        p->n_in += n_now;
        from += n_now;
        n -= n_now;
        if (p->n_in == PIECE_BYTES)
            error = hand_over(p);
    }
    return told(p, error);
}

enum tr_status tr_pump_finish(struct tr_pump *p)
{
    int error = hand_over(p);
    if (!error)
        error = hand_over(p); /* nothing is left to give: it only waits */
    return told(p, error);
}

void tr_pump_drop(struct tr_pump *p)
{
    p->n_in = 0;
    (void)hand_over(p);
}
