/* shard_read.c - opens, verifies and reads token shards.
 *
 * Verification reads the file once through one buffer, so memory does not depend on the size of the shard. Afterwards a
 * shard needs a small struct and, unless it is parked, a descriptor. Readers share no state, so threads need no lock.
 */
#include "data/shard.h"
#include "data/data.h"
#include "data/le.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { VERIFY_BYTES = 1 << 20, READ_BYTES = 8192 };

struct tr_shard {
    struct tr_shard_info info;
    struct tr_shard_sections at;
    struct stat seal; /* of the file that was verified */
    int fd;           /* -1: parked */
    char path[];
};

/* ---- verification ---- */

struct verify {
    const struct tr_shard *s;
    struct tr_hasher *hasher;
    unsigned char *buf;
    uint64_t limit;     /* ids must be below */
    uint64_t last_doc;  /* start of the document before */
    uint64_t n_docs_in; /* offsets seen */
};

static enum tr_status check_tokens(struct verify *v, size_t n, uint64_t at)
{
    size_t size = v->s->info.token_bytes;
    uint64_t first = (at - TR_SHARD_HEADER_BYTES) / size;
    for (size_t i = 0; i < n / size; i++) {
        uint64_t id = size == 2 ? tr_get_u16(v->buf + 2 * i) : tr_get_u32(v->buf + 4 * i);
        if (id >= v->limit)
            return tr_fail(TR_USAGE,
                           "byte %" PRIu64 ": token %" PRIu64 " has id %" PRIu64 ", beyond the vocabulary of %" PRIu64
                           "; was the shard made with another tokenizer?",
                           at + i * size, first + i, id, v->limit);
    }
    return TR_OK;
}

static enum tr_status check_pad(struct verify *v, size_t n, uint64_t at)
{
    for (size_t i = 0; i < n; i++)
        if (v->buf[i])
            return tr_fail(TR_USAGE, "byte %" PRIu64 ": the padding after the tokens is not zero", at + i);
    return TR_OK;
}

static enum tr_status check_docs(struct verify *v, size_t n, uint64_t at)
{
    for (size_t i = 0; i < n / 8; i++, v->n_docs_in++) {
        uint64_t start = tr_get_u64(v->buf + 8 * i);
        bool is_first = v->n_docs_in == 0, is_end = v->n_docs_in == v->s->info.n_docs;
        if (is_first ? start != 0 : start <= v->last_doc || (is_end && start != v->s->info.n_tokens))
            return tr_fail(TR_USAGE,
                           "byte %" PRIu64 ": document %" PRIu64 " starts at token %" PRIu64
                           "; starts must begin at 0, grow, and end at %" PRIu64,
                           at + 8 * i, v->n_docs_in, start, v->s->info.n_tokens);
        v->last_doc = start;
    }
    return TR_OK;
}

static enum tr_status check_weights(struct verify *v, size_t n, uint64_t at)
{
    for (size_t i = 0; i < n / 4; i++)
        if (tr_get_u32(v->buf + 4 * i) > (uint32_t)TR_WEIGHT_MOST * TR_WEIGHT_ONE)
            return tr_fail(TR_USAGE, "byte %" PRIu64 ": a weight is above %d", at + 4 * i, TR_WEIGHT_MOST);
    return TR_OK;
}

static enum tr_status check_nothing(struct verify *v, size_t n, uint64_t at)
{
    (void)v, (void)n, (void)at;
    return TR_OK;
}

static enum tr_status verify_range(struct verify *v, uint64_t at, uint64_t end,
                                   enum tr_status (*check)(struct verify *v, size_t n, uint64_t at))
{
    while (at < end) {
        size_t n = end - at < VERIFY_BYTES ? (size_t)(end - at) : VERIFY_BYTES;
        TR_PASS(tr_pread_all(v->s->fd, "token shard", v->buf, n, at));
        tr_hasher_add(v->hasher, v->buf, n);
        TR_PASS(check(v, n, at));
        at += n;
    }
    return TR_OK;
}

static enum tr_status verify(const struct tr_shard *s, uint64_t vocab_size)
{
    enum tr_status st = TR_OK;
    const struct tr_shard_info *i = &s->info;
    struct verify v = { .s = s, .limit = vocab_size < i->vocab_size ? vocab_size : i->vocab_size };
    uint64_t tokens_end = TR_SHARD_HEADER_BYTES + i->n_tokens * i->token_bytes;
    v.buf = malloc(VERIFY_BYTES);
    if (!v.buf)
        return tr_fail(TR_NOMEM, "no memory to verify a token shard");
    TR_TRY(tr_hasher_open(&v.hasher));
    TR_TRY(verify_range(&v, TR_SHARD_HEADER_BYTES, tokens_end, check_tokens));
    TR_TRY(verify_range(&v, tokens_end, s->at.docs, check_pad));
    TR_TRY(verify_range(&v, s->at.docs, s->at.mask, check_docs));
    TR_TRY(verify_range(&v, s->at.mask, s->at.weights, check_nothing));
    TR_TRY(verify_range(&v, s->at.weights, s->at.end, check_weights));
    if (!tr_hash_eq(tr_hasher_get(v.hasher), i->payload))
        TR_TRY(tr_fail(TR_USAGE,
                       "bytes %d to %" PRIu64
                       ": the content does not match its checksum: the file is damaged; remove it and make it again",
                       TR_SHARD_HEADER_BYTES, s->at.end - 1));
out:
    tr_hasher_close(v.hasher);
    free(v.buf);
    return st;
}

/* ---- open, close ---- */

/* A seal is valid only for the limit of ids that was checked, so the limit is part of its name. */
static enum tr_status verify_once(const struct tr_shard *s, uint64_t vocab_size, const struct tr_seals *seals)
{
    char what[64];
    struct tr_hash128 payload;
    enum tr_status st = tr_format(what, sizeof what, "shard below %" PRIu64, vocab_size);
    if (st != TR_OK || (tr_seal_find(seals, &s->seal, what, &payload) && tr_hash_eq(payload, s->info.payload)))
        return st;
    st = verify(s, vocab_size);
    if (st == TR_OK)
        /* no minimum age: the writers of shards never change a file, they replace it */
        tr_seal_save(seals, &s->seal, 0, what, s->info.payload);
    return st;
}

enum tr_status tr_shard_open_sealed(const char *path, uint64_t vocab_size, const struct tr_seals *seals,
                                    struct tr_shard **out)
{
    enum tr_status st = TR_OK;
    unsigned char header[TR_SHARD_HEADER_BYTES];
    uint64_t n_file = 0;
    size_t n_path = strlen(path) + 1;
    struct tr_shard *s = calloc(1, sizeof *s + n_path);
    if (!s)
        return tr_fail(TR_NOMEM, "no memory for a token shard");
    s->fd = -1;
    memcpy(s->path, path, n_path);
    TR_TRY(tr_file_open_read(path, &s->fd, &n_file));
    if (fstat(s->fd, &s->seal) != 0)
        TR_TRY(tr_fail(TR_IO, "%s: cannot be examined", path));
    if (n_file < sizeof header)
        TR_TRY(
            tr_fail(TR_USAGE, "%s: byte %" PRIu64 ": the file ends inside the header of a token shard", path, n_file));
    TR_TRY(tr_pread_all(s->fd, path, header, sizeof header, 0));
    st = tr_shard_parse(header, n_file, &s->info);
    if (st == TR_OK && tr_shard_layout(&s->info, &s->at))
        st = verify_once(s, vocab_size, seals);
    if (st != TR_OK)
        TR_TRY(tr_fail_at(st, "%s: ", path));
    *out = s;
    s = NULL;
out:
    tr_shard_close(s);
    return st;
}

enum tr_status tr_shard_open(const char *path, uint64_t vocab_size, struct tr_shard **out)
{
    static const struct tr_seals none;
    return tr_shard_open_sealed(path, vocab_size, &none, out);
}

void tr_shard_park(struct tr_shard *s)
{
    if (s->fd >= 0)
        close(s->fd);
    s->fd = -1;
}

void tr_shard_close(struct tr_shard *s)
{
    if (!s)
        return;
    tr_shard_park(s);
    free(s);
}

const struct tr_shard_info *tr_shard_get_info(const struct tr_shard *s)
{
    return &s->info;
}

const char *tr_shard_path(const struct tr_shard *s)
{
    return s->path;
}

/* ---- reads ---- */

enum tr_status tr_shard_begin(const struct tr_shard *s, int *out)
{
    struct stat now;
    uint64_t n_file;
    int fd = s->fd;
    if (fd < 0)
        TR_PASS(tr_file_open_read(s->path, &fd, &n_file));
    if (fstat(fd, &now) != 0 || now.st_dev != s->seal.st_dev || now.st_ino != s->seal.st_ino ||
        now.st_size != s->seal.st_size || now.st_mtim.tv_sec != s->seal.st_mtim.tv_sec ||
        now.st_mtim.tv_nsec != s->seal.st_mtim.tv_nsec) {
        tr_shard_end(s, fd);
        return tr_fail(TR_IO, "%s: the file has changed since it was verified; put the file back and resume", s->path);
    }
    *out = fd;
    return TR_OK;
}

void tr_shard_end(const struct tr_shard *s, int fd)
{
    if (fd >= 0 && fd != s->fd)
        close(fd);
}

enum tr_status tr_shard_read(const struct tr_shard *s, int fd, uint64_t first, uint64_t n, int32_t *out)
{
    unsigned char buf[READ_BYTES];
    size_t size = s->info.token_bytes;
    TR_BUG_ON(first > s->info.n_tokens || n > s->info.n_tokens - first);
    while (n > 0) {
        size_t k = n < READ_BYTES / size ? (size_t)n : READ_BYTES / size;
        TR_PASS(tr_pread_all(fd, s->path, buf, k * size, TR_SHARD_HEADER_BYTES + first * size));
        uint32_t max = 0;
        for (size_t i = 0; i < k; i++) {
            uint32_t id = size == 2 ? tr_get_u16(buf + 2 * i) : tr_get_u32(buf + 4 * i);
            max = id > max ? id : max;
            out[i] = (int32_t)id;
        }
        if (max >= s->info.vocab_size)
            return tr_fail(TR_IO,
                           "%s: token id %" PRIu32
                           " is beyond the vocabulary: the file has changed since it was verified; put it back",
                           s->path, max);
        out += k;
        first += k;
        n -= k;
    }
    return TR_OK;
}

enum tr_status tr_shard_doc_starts(const struct tr_shard *s, int fd, uint64_t first, uint64_t n, uint64_t *out)
{
    TR_BUG_ON(first > s->info.n_docs || n > s->info.n_docs + 1 - first);
    TR_PASS(tr_pread_all(fd, s->path, out, (size_t)n * 8, s->at.docs + first * 8));
    for (uint64_t i = 0; i < n; i++) {
        unsigned char raw[8];
        memcpy(raw, &out[i], 8);
        out[i] = tr_get_u64(raw);
    }
    return TR_OK;
}

enum tr_status tr_shard_find_doc(const struct tr_shard *s, int fd, uint64_t token, uint64_t *doc)
{
    uint64_t lo = 0, hi = s->info.n_docs; /* start[lo] <= token < start[hi] */
    while (hi - lo > 1) {
        uint64_t mid = lo + (hi - lo) / 2, start;
        TR_PASS(tr_shard_doc_starts(s, fd, mid, 1, &start));
        if (start <= token)
            lo = mid;
        else
            hi = mid;
    }
    *doc = lo;
    return TR_OK;
}

enum tr_status tr_shard_mask(const struct tr_shard *s, int fd, uint64_t first, uint64_t n, int32_t *targets,
                             int64_t *n_targets)
{
    unsigned char buf[READ_BYTES];
    TR_BUG_ON(first > s->info.n_tokens || n > s->info.n_tokens - first);
    int64_t count = s->info.has_mask ? 0 : (int64_t)n;
    uint64_t i = s->info.has_mask ? 0 : n;
    while (i < n) {
        uint64_t base = (first + i) / 8, last = (first + n - 1) / 8;
        size_t k = last - base + 1 < READ_BYTES ? (size_t)(last - base + 1) : READ_BYTES;
        TR_PASS(tr_pread_all(fd, s->path, buf, k, s->at.mask + base));
        for (; i < n && (first + i) / 8 < base + k; i++) {
            bool is_on = buf[(first + i) / 8 - base] >> ((first + i) % 8) & 1;
            count += is_on;
            if (!is_on && targets)
                targets[i] = TR_TARGET_NONE;
        }
    }
    *n_targets = count;
    return TR_OK;
}

enum tr_status tr_shard_weights(const struct tr_shard *s, int fd, uint64_t first, uint64_t n, uint32_t *out)
{
    unsigned char buf[READ_BYTES];
    TR_BUG_ON(first > s->info.n_tokens || n > s->info.n_tokens - first);
    for (uint64_t i = 0; i < n && !s->info.has_weights; i++)
        out[i] = TR_WEIGHT_ONE;
    for (uint64_t i = 0, k; i < n && s->info.has_weights; i += k) {
        k = n - i < READ_BYTES / 4 ? n - i : READ_BYTES / 4;
        TR_PASS(tr_pread_all(fd, s->path, buf, (size_t)k * 4, s->at.weights + (first + i) * 4));
        for (uint64_t j = 0; j < k; j++)
            out[i + j] = tr_get_u32(buf + 4 * j);
    }
    return TR_OK;
}
