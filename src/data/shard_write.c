/* shard_write.c - writes a token shard: tokens go to disk at once, document starts and mask bits wait in memory.
 *
 * Checksums are computed from memory before the write, so that a fault of the disk is detected later. The order is:
 * tokens, document starts, mask, weights, header at offset 0, fsync, rename. The directory is not synced: a shard whose
 * name a power cut takes back is made again, and a directory of small files would wait for the disk twice as often.
 * When an fsync fails, the file is abandoned; the fsync is never tried again.
 */
#include "data/shard.h"
#include "data/data.h"
#include "data/le.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

enum { BUF_BYTES = 64 << 10 };

struct bytes {
    unsigned char *p;
    size_t n, n_cap;
};

struct tr_shard_writer {
    struct tr_shard_info info; /* n_tokens includes the open document */
    uint64_t doc_start;        /* of the open document */
    struct tr_hasher *hasher;
    int fd;
    size_t n_buf;
    struct bytes docs, mask, weights;
    char path[TR_PATH_MAX];
    struct tr_out_at at, temp; /* what it becomes, and what it is until then */
    unsigned char buf[BUF_BYTES];
};

static enum tr_status bytes_reserve(struct bytes *b, size_t n_more)
{
    size_t n = b->n + n_more;
    return TR_ROOM(b->p, n, &b->n_cap, "%zu bytes of shard index", n);
}

static enum tr_status put(struct tr_shard_writer *w, const void *p, size_t n)
{
    tr_hasher_add(w->hasher, p, n);
    return tr_write_all(w->fd, w->temp.name, p, n);
}

static enum tr_status flush(struct tr_shard_writer *w)
{
    enum tr_status st = put(w, w->buf, w->n_buf);
    w->n_buf = 0;
    return st;
}

enum tr_status tr_shard_writer_open(const char *path, const struct tr_shard_info *info, struct tr_shard_writer **out)
{
    static const unsigned char blank[TR_SHARD_HEADER_BYTES];
    enum tr_status st = TR_OK;
    uint64_t number = 0;
    const char *name;
    char dir[TR_PATH_MAX], temp[TR_PATH_MAX];
    struct tr_shard_writer *w = calloc(1, sizeof *w);
    if (!w)
        return tr_fail(TR_NOMEM, "no memory for a shard writer");
    w->fd = -1;
    w->info = *info;
    w->info.token_bytes = info->vocab_size <= 65536 ? 2 : 4;
    w->info.n_tokens = w->info.n_docs = 0;
    if (info->vocab_size == 0 || info->vocab_size > INT32_MAX)
        TR_TRY(tr_fail(TR_USAGE, "%s: vocabulary size %" PRIu64 " is not in [1, 2^31)", path, info->vocab_size));
    TR_TRY(tr_format(w->path, sizeof w->path, "%s", path));
    TR_TRY(tr_path_split(w->path, dir, &name));
    TR_TRY(tr_out_beneath(dir, name, &w->at));
    TR_TRY(tr_hasher_open(&w->hasher));
    if (getrandom(&number, sizeof number, 0) != (ssize_t)sizeof number) /* several hosts may write without a lock */
        TR_TRY(tr_fail(TR_IO, "no random bytes for the name of a shard: %s", strerror(errno)));
    TR_TRY(tr_format(temp, sizeof temp, "%s.tmp-%" PRIu64, name, number));
    TR_TRY(tr_out_beneath(dir, temp, &w->temp));
    TR_TRY(tr_out_open(w->temp.dir, w->temp.name, TR_OUT_NEW, &w->fd));
    TR_TRY(tr_write_all(w->fd, w->temp.name, blank, sizeof blank));
    *out = w;
    w = NULL;
out:
    tr_shard_writer_abort(w);
    return st;
}

static enum tr_status add_mask(struct tr_shard_writer *w, const uint8_t *mask, size_t n)
{
    TR_PASS(bytes_reserve(&w->mask, n / 8 + 2));
    for (size_t i = 0; i < n; i++) {
        uint64_t at = w->info.n_tokens + i;
        if (at / 8 >= w->mask.n)
            w->mask.p[w->mask.n++] = 0;
        if (!mask || mask[i])
            w->mask.p[at / 8] |= (unsigned char)(1u << at % 8);
    }
    return TR_OK;
}

static enum tr_status add_weights(struct tr_shard_writer *w, const uint32_t *weight, size_t n)
{
    TR_PASS(bytes_reserve(&w->weights, n * 4));
    for (size_t i = 0; i < n; i++, w->weights.n += 4)
        tr_put_u32(w->weights.p + w->weights.n, weight ? weight[i] : TR_WEIGHT_ONE);
    return TR_OK;
}

enum tr_status tr_shard_writer_add(struct tr_shard_writer *w, const int32_t *ids, const uint8_t *mask,
                                   const uint32_t *weight, size_t n)
{
    size_t size = w->info.token_bytes;
    TR_BUG_ON((mask && !w->info.has_mask) || (weight && !w->info.has_weights));
    for (size_t i = 0; i < n; i++) {
        if (ids[i] < 0 || (uint64_t)ids[i] >= w->info.vocab_size)
            return tr_fail(TR_USAGE, "%s: token id %d is outside the vocabulary of %" PRIu64, w->path, ids[i],
                           w->info.vocab_size);
        if (w->n_buf == BUF_BYTES)
            TR_PASS(flush(w));
        if (size == 2)
            tr_put_u16(w->buf + w->n_buf, (uint16_t)ids[i]);
        else
            tr_put_u32(w->buf + w->n_buf, (uint32_t)ids[i]);
        w->n_buf += size;
    }
    if (w->info.has_mask)
        TR_PASS(add_mask(w, mask, n));
    if (w->info.has_weights)
        TR_PASS(add_weights(w, weight, n));
    w->info.n_tokens += n;
    return TR_OK;
}

enum tr_status tr_shard_writer_end_doc(struct tr_shard_writer *w)
{
    if (w->info.n_tokens == w->doc_start)
        return tr_fail(TR_USAGE, "%s: document %" PRIu64 " is empty", w->path, w->info.n_docs);
    TR_PASS(bytes_reserve(&w->docs, 16)); /* with room for the end of the last document */
    tr_put_u64(w->docs.p + w->docs.n, w->doc_start);
    w->docs.n += 8;
    w->doc_start = w->info.n_tokens;
    w->info.n_docs++;
    return TR_OK;
}

void tr_shard_writer_counts(const struct tr_shard_writer *w, uint64_t *n_tokens, uint64_t *n_docs)
{
    *n_tokens = w->doc_start;
    *n_docs = w->info.n_docs;
}

static enum tr_status write_tail(struct tr_shard_writer *w)
{
    static const unsigned char zeros[8];
    unsigned char header[TR_SHARD_HEADER_BYTES];
    size_t n_pad = (size_t)(-(w->info.n_tokens * w->info.token_bytes) % 8);
    TR_PASS(flush(w));
    TR_PASS(put(w, zeros, n_pad));
    tr_put_u64(w->docs.p + w->docs.n, w->info.n_tokens);
    TR_PASS(put(w, w->docs.p, w->docs.n + 8));
    TR_PASS(put(w, w->mask.p, w->mask.n));
    TR_PASS(put(w, w->weights.p, w->weights.n));
    w->info.payload = tr_hasher_get(w->hasher);
    tr_shard_format(&w->info, header);
    if (lseek(w->fd, 0, SEEK_SET) != 0)
        return tr_fail(TR_IO, "%s: seek: %s", w->temp.name, strerror(errno));
    TR_PASS(tr_write_all(w->fd, w->temp.name, header, sizeof header));
    return TR_OK;
}

static enum tr_status publish(struct tr_shard_writer *w)
{
    if (fsync(w->fd) != 0)
        return tr_fail(TR_IO, "%s: fsync: %s", w->temp.name, strerror(errno));
    TR_PASS(tr_failpoint("data.shard_fsynced"));
    int err = tr_out_move(w->at.dir, w->temp.name, w->at.name, TR_OUT_RENAME);
    if (err == EISDIR)
        return tr_fail(TR_USAGE, "%s is a directory, where a shard of tokens belongs; remove it", w->path);
    if (err)
        return tr_fail(TR_IO, "%s: rename: %s", w->path, strerror(err));
    w->temp.name[0] = 0;
    return TR_OK;
}

enum tr_status tr_shard_writer_commit(struct tr_shard_writer *w, bool is_last, uint64_t n_skipped)
{
    enum tr_status st = TR_OK;
    w->info.is_last = is_last;
    w->info.n_skipped = n_skipped;
    if (w->info.n_docs == 0 || w->info.n_tokens != w->doc_start)
        TR_TRY(tr_fail(TR_USAGE, "%s: there is no complete document to write", w->path));
    TR_TRY(write_tail(w));
    TR_TRY(publish(w));
out:
    tr_shard_writer_abort(w);
    return st;
}

void tr_shard_writer_abort(struct tr_shard_writer *w)
{
    if (!w)
        return;
    if (w->fd >= 0) {
        close(w->fd);
        if (w->temp.name[0])
            (void)tr_out_unlink(w->temp.dir, w->temp.name);
    }
    tr_hasher_close(w->hasher);
    free(w->docs.p);
    free(w->mask.p);
    free(w->weights.p);
    free(w);
}
