/* cache.h - the directory of token shards made from text, and the lock that lets one process fill it at a time. */
#ifndef TR_DATA_CACHE_H
#define TR_DATA_CACHE_H

#include "base/base.h"
#include <stdatomic.h>

struct tr_cache {
    const char *dir;
    int64_t wait_us;
    int lock_fd;                   /* -1: not taken */
    const atomic_bool *is_closing; /* not NULL: a wait ends with TR_STOPPED when it becomes true */
};

/* Makes the directory, takes the lock and removes temporary files of dead writers. Waits at most wait_us. Does nothing
 * when this process already holds the lock. On a file system without locks it succeeds without one: writers may then
 * repeat work, but they write the same bytes. */
enum tr_status tr_cache_lock(struct tr_cache *c);
/* The same, but it ends without the lock as soon as one of these files is there. */
enum tr_status tr_cache_lock_unless(struct tr_cache *c, char (*files)[TR_PATH_MAX], size_t n_files);
/* TR_STOPPED when the cache's owner closes. */
enum tr_status tr_cache_check(const struct tr_cache *c);
void tr_cache_unlock(struct tr_cache *c);
/* A small file in the directory of a cache, which exists. */
enum tr_status tr_cache_write(const char *dir, const char *name, const void *p, size_t n);
enum tr_status tr_cache_path(const struct tr_cache *c, struct tr_hash128 key, uint32_t part, char out[TR_PATH_MAX]);

#endif
