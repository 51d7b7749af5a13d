/* st_write.c - writing one safetensors file: the header is text made once, the data is a stream.
 *
 * Invariant: a path either holds a complete, fsynced file or nothing that finish() has blessed; any error abandons the
 * file, because after a failed fsync its pages may be lost and a second fsync would lie. The hash is taken from the
 * bytes in memory before they reach the disk, so a bad disk cannot be blessed either.
 */
#include "ckpt/safetensors.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CHUNK_BYTES = 65536, PIECE_BYTES = 1 << 20 };

struct write_slot {
    uint64_t n_elems;
    enum tr_dtype dtype;
};

struct tr_st_writer {
    struct write_slot *slots;
    size_t n_slots;
    struct tr_str header; /* length word, JSON, padding */
    uint64_t n_bytes;     /* of the whole file */
    struct tr_hasher *hasher;
    /* the file in progress */
    int fd; /* -1: none */
    struct tr_pump *pump;
    char dir[TR_PATH_MAX], name[TR_PATH_MAX], path[TR_PATH_MAX]; /* path: for messages */
    size_t slot;
    uint64_t n_done; /* elements of that slot */
};

enum tr_status tr_st_entry_size(const struct tr_st_entry *e, uint64_t *out_elems, uint64_t *out_bytes)
{
    size_t n = 1, n_bytes = 0;
    bool fits = e->n_dims >= 0 && e->n_dims <= TR_ST_MAX_DIMS;
    for (int d = 0; fits && d < e->n_dims; d++)
        fits = e->dims[d] >= 0 && tr_mul_size(n, (size_t)e->dims[d], &n);
    if (!fits || !tr_mul_size(n, tr_dtype_bytes(e->dtype), &n_bytes))
        return tr_fail(TR_USAGE, "tensor %s: bad shape", e->name);
    *out_elems = n;
    *out_bytes = n_bytes;
    return TR_OK;
}

static enum tr_status add_entry(struct tr_str *s, const struct tr_st_entry *e, uint64_t *at, struct write_slot *slot)
{
    uint64_t n = 0, n_bytes = 0;
    TR_PASS(tr_st_entry_size(e, &n, &n_bytes));
    if (n_bytes > INT64_MAX - *at)
        return tr_fail(TR_USAGE, "tensor %s: the file would be larger than 2^63 bytes", e->name);
    if (n && *at % tr_dtype_bytes(e->dtype) != 0)
        return tr_fail(TR_USAGE, "tensor %s: data byte %" PRIu64 " is not aligned for %s; give wider dtypes first",
                       e->name, *at, tr_dtype_name(e->dtype));
    tr_str_member(s, ",", e->name);
    tr_str_addf(s, ":{\"dtype\":\"%s\",\"shape\":[", tr_dtype_safetensors(e->dtype));
    for (int d = 0; d < e->n_dims; d++)
        tr_str_addf(s, "%s%" PRId64, d ? "," : "", e->dims[d]);
    tr_str_addf(s, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", *at, *at + n_bytes);
    *slot = (struct write_slot){ n, e->dtype };
    *at += n_bytes;
    return TR_OK;
}

/* What we write must pass our own reader: bad or duplicate names are found before training, not at the first load. */
static enum tr_status check_header(const struct tr_str *header, uint64_t data_bytes)
{
    struct tr_st_header h;
    size_t n = header->n - 8;
    char *copy = malloc(n);
    if (!copy)
        return tr_fail(TR_NOMEM, "no memory for a header of %zu bytes", n);
    memcpy(copy, header->p + 8, n);
    enum tr_status st = tr_st_parse_header(copy, n, data_bytes, &h);
    if (st == TR_OK)
        tr_st_header_release(&h);
    free(copy);
    return st;
}

static enum tr_status build_header(struct tr_st_writer *w, const struct tr_st_entry *entries,
                                   const struct tr_st_pair *metadata, size_t n_metadata)
{
    struct tr_str *s = &w->header;
    uint64_t data_bytes = 0;
    tr_str_add(s, "\0\0\0\0\0\0\0\0", 8);
    tr_str_addf(s, "{\"__metadata__\":{\"format\":\"pt\"");
    for (size_t i = 0; i < n_metadata; i++) {
        tr_str_member(s, ",", metadata[i].key);
        tr_str_member(s, ":", metadata[i].value);
    }
    tr_str_addf(s, "}");
    for (size_t i = 0; i < w->n_slots; i++)
        TR_PASS(add_entry(s, &entries[i], &data_bytes, &w->slots[i]));
    tr_str_addf(s, "}");
    while (tr_str_ok(s) && s->n % TR_ST_ALIGN != 0)
        tr_str_addf(s, " ");
    TR_PASS(tr_str_check(s, "the header of %zu tensors", w->n_slots));
    uint64_t n = s->n - 8;
    if (n > TR_ST_MAX_HEADER)
        return tr_fail(TR_USAGE, "%zu tensors make a header of %" PRIu64 " bytes; the limit is %d, use more shards",
                       w->n_slots, n, TR_ST_MAX_HEADER);
    for (int i = 0; i < 8; i++)
        s->p[i] = (char)(unsigned char)(n >> (8 * i));
    w->n_bytes = s->n + data_bytes;
    return check_header(s, data_bytes);
}

enum tr_status tr_st_writer_prepare(const struct tr_st_entry *entries, size_t n_entries,
                                    const struct tr_st_pair *metadata, size_t n_metadata, struct tr_st_writer **out)
{
    enum tr_status st = TR_OK;
    struct tr_st_writer *w = calloc(1, sizeof *w);
    if (!w)
        return tr_fail(TR_NOMEM, "no memory for a safetensors writer");
    w->fd = -1;
    w->n_slots = n_entries;
    TR_TRY(TR_ALLOC(w->slots, n_entries + 1, "%zu tensors", n_entries));
    TR_TRY(tr_hasher_open(&w->hasher));
    TR_TRY(build_header(w, entries, metadata, n_metadata));
    *out = w;
    return TR_OK;
out:
    tr_st_writer_close(w);
    return st;
}

void tr_st_writer_close(struct tr_st_writer *w)
{
    if (!w)
        return;
    tr_st_writer_abort(w);
    tr_str_release(&w->header);
    tr_hasher_close(w->hasher);
    free(w->slots);
    free(w);
}

uint64_t tr_st_writer_bytes(const struct tr_st_writer *w)
{
    return w->n_bytes;
}

void tr_st_writer_abort(struct tr_st_writer *w)
{
    if (w->fd < 0)
        return;
    tr_pump_drop(w->pump);
    close(w->fd);
    w->fd = -1;
    (void)tr_out_unlink(w->dir, w->name);
}

static enum tr_status abandon(struct tr_st_writer *w, enum tr_status st)
{
    if (st != TR_OK)
        tr_st_writer_abort(w);
    return st;
}

static enum tr_status put(struct tr_st_writer *w, const void *p, size_t n)
{
    tr_hasher_add(w->hasher, p, n);
    return tr_pump_put(w->pump, p, n);
}

enum tr_status tr_st_writer_begin(struct tr_st_writer *w, struct tr_pump *pump, const char *dir, const char *name)
{
    enum tr_status st = TR_OK;
    TR_BUG_ON(w->fd >= 0);
    TR_TRY(tr_format(w->dir, sizeof w->dir, "%s", dir));
    TR_TRY(tr_format(w->name, sizeof w->name, "%s", name));
    TR_TRY(tr_path_join(w->path, dir, name));
    TR_TRY(tr_out_open(dir, name, TR_OUT_NEW, &w->fd));
    w->slot = 0;
    w->n_done = 0;
    w->pump = pump;
    tr_pump_begin(pump, w->fd, w->path);
    tr_hasher_clear(w->hasher);
    TR_TRY(tr_failpoint("ckpt.shard_header"));
    TR_TRY(put(w, w->header.p, w->header.n));
out:
    return abandon(w, st);
}

static enum tr_status add_as_is(struct tr_st_writer *w, const char *src, size_t n_bytes)
{
    while (n_bytes > 0) {
        size_t n_now = n_bytes < PIECE_BYTES ? n_bytes : PIECE_BYTES;
        TR_PASS(tr_failpoint("ckpt.shard_write"));
        TR_PASS(put(w, src, n_now));
        src += n_now;
        n_bytes -= n_now;
    }
    return TR_OK;
}

static enum tr_status add_converting(struct tr_st_writer *w, const char *src, enum tr_dtype from, enum tr_dtype to,
                                     size_t n)
{
    _Alignas(64) unsigned char chunk[CHUNK_BYTES];
    size_t n_per_chunk = CHUNK_BYTES / tr_dtype_bytes(to);
    while (n > 0) {
        size_t n_now = n < n_per_chunk ? n : n_per_chunk;
        TR_PASS(tr_failpoint("ckpt.shard_write"));
        tr_convert(src, from, chunk, to, n_now);
        TR_PASS(put(w, chunk, n_now * tr_dtype_bytes(to)));
        src += n_now * tr_dtype_bytes(from);
        n -= n_now;
    }
    return TR_OK;
}

enum tr_status tr_st_writer_add(struct tr_st_writer *w, const void *src, enum tr_dtype src_dtype, size_t n)
{
    TR_BUG_ON(w->fd < 0);
    if (n == 0)
        return TR_OK;
    while (w->slot < w->n_slots && w->n_done == w->slots[w->slot].n_elems) {
        w->slot++;
        w->n_done = 0;
    }
    const struct write_slot *s = &w->slots[w->slot];
    TR_BUG_ON(w->slot == w->n_slots || n > s->n_elems - w->n_done);
    TR_BUG_ON(!tr_st_can_convert(src_dtype, s->dtype));
    w->n_done += n;
    return abandon(w, s->dtype == src_dtype ? add_as_is(w, src, n * tr_dtype_bytes(src_dtype))
                                            : add_converting(w, src, src_dtype, s->dtype, n));
}

static bool is_complete(const struct tr_st_writer *w)
{
    size_t i = w->slot;
    if (i < w->n_slots && w->n_done == w->slots[i].n_elems)
        i++;
    while (i < w->n_slots && w->slots[i].n_elems == 0)
        i++;
    return i == w->n_slots;
}

enum tr_status tr_st_writer_finish(struct tr_st_writer *w, uint64_t *out_bytes, struct tr_hash128 *out_hash)
{
    enum tr_status st = TR_OK;
    TR_BUG_ON(w->fd < 0 || !is_complete(w));
    TR_TRY(tr_pump_finish(w->pump));
    TR_TRY(tr_failpoint("ckpt.before_fsync"));
    if (fsync(w->fd) != 0)
        TR_TRY(tr_fail(TR_IO, "%s: fsync: %s", w->path, strerror(errno)));
    int fd = w->fd;
    w->fd = -1;
    if (close(fd) != 0) {
        (void)tr_out_unlink(w->dir, w->name);
        return tr_fail(TR_IO, "%s: close: %s", w->path, strerror(errno));
    }
    st = tr_failpoint("ckpt.after_fsync");
    if (st != TR_OK) {
        (void)tr_out_unlink(w->dir, w->name);
        return st;
    }
    *out_bytes = w->n_bytes;
    *out_hash = tr_hasher_get(w->hasher);
    return TR_OK;
out:
    return abandon(w, st);
}
