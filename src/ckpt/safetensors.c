/* safetensors.c - reading one safetensors file: sizes by subtraction, header by st_header.c, data by pread.
 *
 * Nothing is allocated from a declared size before the file is known to be that long. mmap was rejected: a file that
 * is truncated while mapped kills the process with SIGBUS.
 */
#include "ckpt/safetensors.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CHUNK_BYTES = 65536 };

struct tr_st {
    int fd;
    const struct tr_sums_file *sums; /* NULL: reads are not compared */
    char *path;
    char *json; /* names point into it */
    uint64_t data_at;
    struct tr_st_header h;
};

static enum tr_status read_header(struct tr_st *st, uint64_t n_bytes)
{
    unsigned char le[8];
    uint64_t n = 0;
    if (n_bytes < sizeof le)
        return tr_fail(TR_USAGE, "%" PRIu64 " bytes are too few for a safetensors file", n_bytes);
    enum tr_status s = tr_sums_pread(st->sums, st->fd, st->path, le, sizeof le, 0);
    if (s != TR_OK)
        return s;
    if (memcmp(le, "version ", sizeof le) == 0)
        return tr_fail(TR_USAGE, "this is a git-lfs pointer, not the file; run `git lfs pull`");
    for (size_t i = sizeof le; i-- > 0;)
        n = n << 8 | le[i];
    if (n == 0 || n > TR_ST_MAX_HEADER)
        return tr_fail(TR_USAGE, "header length %" PRIu64 " is not in 1..%d: no safetensors file", n, TR_ST_MAX_HEADER);
    if (n > n_bytes - sizeof le)
        return tr_fail(TR_USAGE, "header length %" PRIu64 " but only %" PRIu64 " bytes follow: truncated?", n,
                       n_bytes - sizeof le);
    st->json = malloc((size_t)n);
    if (!st->json)
        return tr_fail(TR_NOMEM, "no memory for a header of %" PRIu64 " bytes", n);
    s = tr_sums_pread(st->sums, st->fd, st->path, st->json, (size_t)n, sizeof le);
    if (s != TR_OK)
        return s;
    st->data_at = sizeof le + n;
    return tr_st_parse_header(st->json, (size_t)n, n_bytes - st->data_at, &st->h);
}

static enum tr_status open_fd(int fd, uint64_t n_bytes, const char *what, const struct tr_sums_file *sums,
                              struct tr_st **out)
{
    struct tr_st *st = calloc(1, sizeof *st);
    if (!st) {
        close(fd);
        return tr_fail(TR_NOMEM, "%s: no memory", what);
    }
    st->fd = fd;
    st->sums = sums;
    st->path = strdup(what);
    enum tr_status s = st->path ? read_header(st, n_bytes) : tr_fail(TR_NOMEM, "no memory");
    if (s != TR_OK) {
        tr_st_close(st);
        return tr_fail_at(s, "%s: ", what);
    }
    *out = st;
    return TR_OK;
}

enum tr_status tr_st_open_sums(const char *path, const struct tr_sums_file *sums, struct tr_st **out)
{
    int fd;
    uint64_t n_bytes;
    enum tr_status s = tr_file_open_read(path, &fd, &n_bytes);
    if (s != TR_OK)
        return sums && s == TR_USAGE ? TR_IO : s; /* it was there when it was verified */
    if (sums && n_bytes != sums->bytes) {
        close(fd);
        return tr_fail(TR_IO, "%s: %" PRIu64 " bytes, %" PRIu64 " when it was verified", path, n_bytes, sums->bytes);
    }
    return open_fd(fd, n_bytes, path, sums, out);
}

enum tr_status tr_st_open(const char *path, struct tr_st **out)
{
    return tr_st_open_sums(path, NULL, out);
}

void tr_st_close(struct tr_st *st)
{
    if (!st)
        return;
    close(st->fd);
    tr_st_header_release(&st->h);
    free(st->json);
    free(st->path);
    free(st);
}

const char *tr_st_path(const struct tr_st *st)
{
    return st->path;
}

size_t tr_st_count(const struct tr_st *st)
{
    return st->h.n_tensors;
}

const struct tr_st_tensor *tr_st_tensor(const struct tr_st *st, size_t i)
{
    TR_BUG_ON(i >= st->h.n_tensors);
    return &st->h.tensors[i];
}

bool tr_st_find(const struct tr_st *st, const char *name, size_t *out_i)
{
    size_t lo = 0, hi = st->h.n_tensors;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2, i = st->h.by_name[mid];
        int order = strcmp(name, st->h.tensors[i].name);
        if (order == 0) {
            *out_i = i;
            return true;
        }
        if (order < 0)
            hi = mid;
        else
            lo = mid + 1;
    }
    return false;
}

const char *tr_st_metadata(const struct tr_st *st, const char *key)
{
    for (size_t i = 0; i < st->h.n_metadata; i++)
        if (strcmp(st->h.metadata[i].key, key) == 0)
            return st->h.metadata[i].value;
    return NULL;
}

static enum tr_status read_converting(const struct tr_st *st, enum tr_dtype from, uint64_t at, size_t n, char *dst,
                                      enum tr_dtype to)
{
    _Alignas(64) unsigned char chunk[CHUNK_BYTES];
    size_t n_per_chunk = CHUNK_BYTES / tr_dtype_bytes(from);
    while (n > 0) {
        size_t size = tr_dtype_bytes(from), to_block = (TR_SUM_BLOCK - (size_t)(at % TR_SUM_BLOCK)) / size;
        size_t n_now = n < n_per_chunk ? n : n_per_chunk;
        if (to_block > 0 && n_now > to_block) /* so that a block is read once */
            n_now = to_block;
        size_t n_bytes = n_now * size;
        enum tr_status s = tr_sums_pread(st->sums, st->fd, st->path, chunk, n_bytes, at);
        if (s != TR_OK)
            return s;
        tr_convert(chunk, from, dst, to, n_now);
        dst += n_now * tr_dtype_bytes(to);
        at += n_bytes;
        n -= n_now;
    }
    return TR_OK;
}

enum tr_status tr_st_read(const struct tr_st *st, size_t i, uint64_t first, size_t n, void *dst,
                          enum tr_dtype dst_dtype)
{
    const struct tr_st_tensor *t = tr_st_tensor(st, i);
    char name[96];
    if (!tr_st_can_convert(t->dtype, dst_dtype))
        return tr_fail(TR_USAGE, "%s: tensor %s: dtype %s cannot be read as %s", st->path,
                       tr_escape(t->name, name, sizeof name), t->dtype_name, tr_dtype_name(dst_dtype));
    if (first > t->n_elems || n > t->n_elems - first)
        return tr_fail(TR_USAGE, "%s: tensor %s: %zu elements from %" PRIu64 " are outside its %" PRIu64, st->path,
                       tr_escape(t->name, name, sizeof name), n, first, t->n_elems);
    uint64_t at = st->data_at + t->begin + first * tr_dtype_bytes(t->dtype);
    if (t->dtype == dst_dtype)
        return tr_sums_pread(st->sums, st->fd, st->path, dst, n * tr_dtype_bytes(dst_dtype), at);
    return read_converting(st, t->dtype, at, n, dst, dst_dtype);
}

enum tr_status tr_st_read_bytes(const struct tr_st *st, size_t i, uint64_t first, size_t n, void *dst)
{
    const struct tr_st_tensor *t = tr_st_tensor(st, i);
    char name[96];
    if (first > t->end - t->begin || n > t->end - t->begin - first)
        return tr_fail(TR_USAGE, "%s: tensor %s: %zu bytes from %" PRIu64 " are outside its %" PRIu64, st->path,
                       tr_escape(t->name, name, sizeof name), n, first, t->end - t->begin);
    return tr_sums_pread(st->sums, st->fd, st->path, dst, n, st->data_at + t->begin + first);
}
