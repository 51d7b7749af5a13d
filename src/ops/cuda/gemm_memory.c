/* gemm_memory.c - records of chosen algorithms in a file (gemm_memory.h). */
#include "ops/cuda/gemm_memory.h"
#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <unistd.h>

static uint64_t check_of(const struct tr_gemm_record *r)
{
    return tr_hash(r, offsetof(struct tr_gemm_record, check)).lo;
}

/* Reads the records that other processes have appended since. */
static void read_on(struct tr_gemm_memory *m)
{
    struct tr_gemm_record r;
    while (m->fd >= 0 && m->n < TR_GEMM_RECORDS && read(m->fd, &r, sizeof r) == (ssize_t)sizeof r)
        if (r.check == check_of(&r) && !tr_gemm_memory_find(m, r.key))
            m->record[m->n++] = r;
}

/* Only one process at a time reads and appends. It waits one second at most, in case the holder of the lock was
 * stopped. */
static bool take_lock(const struct tr_gemm_memory *m)
{
    for (int i = 0; i < 1000; i++, usleep(1000))
        if (flock(m->fd, LOCK_EX | LOCK_NB) == 0)
            return true;
    return false;
}

void tr_gemm_memory_open(struct tr_gemm_memory *m, size_t library_version, int capability, int n_units)
{
    char dir[TR_PATH_MAX], name[96];
    m->fd = -1;
    m->n = 0;
    if (tr_user_cache(dir) == TR_OK &&
        tr_format(name, sizeof name, "gemm-%zu-%d-%d", library_version, capability, n_units) == TR_OK)
        (void)tr_out_open(dir, name, TR_OUT_APPEND, &m->fd);
    tr_error_clear(); /* a run without a file is no error */
    read_on(m);
}

void tr_gemm_memory_close(struct tr_gemm_memory *m)
{
    if (m->fd >= 0)
        close(m->fd);
    m->fd = -1;
}

bool tr_gemm_memory_is_open(const struct tr_gemm_memory *m)
{
    return m->fd >= 0 && m->n < TR_GEMM_RECORDS;
}

const struct tr_gemm_record *tr_gemm_memory_find(const struct tr_gemm_memory *m, const uint64_t key[TR_GEMM_KEY])
{
    for (int i = 0; i < m->n; i++)
        if (memcmp(m->record[i].key, key, sizeof m->record[i].key) == 0)
            return &m->record[i];
    return NULL;
}

const struct tr_gemm_record *tr_gemm_memory_add(struct tr_gemm_memory *m, const uint64_t key[TR_GEMM_KEY],
                                                const uint64_t algo[TR_GEMM_ALGO])
{
    struct tr_gemm_record r;
    if (!tr_gemm_memory_is_open(m))
        return NULL;
    bool is_locked = take_lock(m);
    read_on(m);
    if (tr_gemm_memory_is_open(m) && !tr_gemm_memory_find(m, key)) {
        memcpy(r.key, key, sizeof r.key);
        memcpy(r.algo, algo, sizeof r.algo);
        r.check = check_of(&r);
        m->record[m->n++] = r;
        if (write(m->fd, &r, sizeof r) !=
            (ssize_t)sizeof r) { /* readers skip a partial record by its checksum; append no more */
            tr_gemm_memory_close(m);
            is_locked = false;
        }
    }
    if (is_locked)
        (void)flock(m->fd, LOCK_UN);
    return tr_gemm_memory_find(m, key);
}
