/* cache.c - see cache.h. The kernel drops the lock of a dead process, so no process waits for a dead one. */
#include "data/cache.h"

#include <dirent.h>
#include <errno.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

enum { POLL_MS = 20 };

enum tr_status tr_cache_path(const struct tr_cache *c, struct tr_hash128 key, uint32_t part, char out[TR_PATH_MAX])
{
    char hex[33], name[64];
    tr_hash_hex(key, hex);
    enum tr_status st = tr_format(name, sizeof name, "%s-%05" PRIu32 ".trtok", hex, part);
    return st == TR_OK ? tr_path_join(out, c->dir, name) : st;
}

/* Removes temporary files. Only under the lock: their writers are dead, because a writer holds the lock. */
static void sweep(const char *path)
{
    DIR *dir = opendir(path);
    const struct dirent *e;
    struct tr_out_at at;
    while (dir && (e = readdir(dir)) != NULL)
        if (strstr(e->d_name, ".tmp-") && tr_out_beneath(path, e->d_name, &at) == TR_OK)
            (void)tr_out_unlink(at.dir, at.name);
    if (dir)
        closedir(dir);
}

enum tr_status tr_cache_check(const struct tr_cache *c)
{
    return c->is_closing && atomic_load(c->is_closing) ? tr_fail(TR_STOPPED, "the data set is being closed") : TR_OK;
}

/* *is_done: one of the files is there, and the lock is not taken. */
static enum tr_status wait_lock(const struct tr_cache *c, int fd, char (*files)[TR_PATH_MAX], size_t n_files,
                                bool *is_held, bool *is_done)
{
    int64_t start_us = tr_clock_us();
    while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK && errno != EINTR) {
            *is_held = false;
            return TR_OK;
        }
        TR_PASS(tr_cache_check(c));
        for (size_t i = 0; i < n_files && !*is_done; i++)
            *is_done = tr_file_exists(files[i]);
        if (*is_done)
            return TR_OK;
        if (tr_clock_us() - start_us >= c->wait_us)
            return tr_fail(TR_TIMEOUT, "%s: another process has held the lock of this cache for %" PRId64 " s", c->dir,
                           c->wait_us / 1000000);
        nanosleep(&(struct timespec){ .tv_nsec = POLL_MS * 1000000 }, NULL);
    }
    *is_held = true;
    return TR_OK;
}

enum tr_status tr_cache_lock(struct tr_cache *c)
{
    return tr_cache_lock_unless(c, NULL, 0);
}

enum tr_status tr_cache_lock_unless(struct tr_cache *c, char (*files)[TR_PATH_MAX], size_t n_files)
{
    enum tr_status st = TR_OK;
    bool is_held = false, is_done = false;
    struct tr_out_at at;
    if (c->lock_fd >= 0)
        return TR_OK;
    TR_TRY(tr_out_mkdirs(c->dir));
    TR_TRY(tr_out_beneath(c->dir, "lock", &at));
    TR_TRY(tr_out_open(at.dir, at.name, TR_OUT_SHARE, &c->lock_fd));
    TR_TRY(wait_lock(c, c->lock_fd, files, n_files, &is_held, &is_done));
    if (is_held)
        sweep(c->dir);
out:
    if (st != TR_OK || is_done)
        tr_cache_unlock(c);
    return st;
}

enum tr_status tr_cache_write(const char *dir, const char *name, const void *p, size_t n)
{
    struct tr_out_at at;
    enum tr_status st = tr_out_beneath(dir, name, &at);
    return st == TR_OK ? tr_out_write(at.dir, at.name, p, n) : st;
}

void tr_cache_unlock(struct tr_cache *c)
{
    if (c->lock_fd >= 0)
        close(c->lock_fd);
    c->lock_fd = -1;
}
