/* sums.c - see sums.h. A block that a read covers whole is read to where it is used and hashed there; of one that it
 * covers in part, all is read beside and the part is copied. */
#include "ckpt/sums.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum tr_status tr_sums_open(const char *dir, size_t n_files, struct tr_sums **out)
{
    enum tr_status st = TR_OK;
    struct tr_sums *s = calloc(1, sizeof *s);
    if (!s)
        return tr_fail(TR_NOMEM, "no memory for the hashes of a checkpoint");
    TR_TRY(tr_format(s->dir, sizeof s->dir, "%s", dir));
    s->file = calloc(n_files + 1, sizeof *s->file);
    s->n_cap = n_files;
    if (!s->file)
        TR_TRY(tr_fail(TR_NOMEM, "no memory for the hashes of %zu files", n_files));
    *out = s;
    return TR_OK;
out:
    tr_sums_close(s);
    return st;
}

void tr_sums_close(struct tr_sums *s)
{
    if (!s)
        return;
    for (size_t i = 0; i < s->n; i++) {
        free(s->file[i].name);
        free(s->file[i].block);
    }
    free(s->file);
    free(s);
}

static size_t n_blocks(uint64_t bytes)
{
    return (size_t)(bytes / TR_SUM_BLOCK + (bytes % TR_SUM_BLOCK != 0));
}

enum tr_status tr_sums_add(struct tr_sums *s, const char *name, uint64_t bytes, struct tr_sums_file **out)
{
    TR_BUG_ON(s->n == s->n_cap);
    struct tr_sums_file *f = &s->file[s->n++];
    *f = (struct tr_sums_file){ .name = strdup(name),
                                .bytes = bytes,
                                .block = calloc(n_blocks(bytes) + 1, sizeof *f->block) };
    *out = f;
    return f->name && f->block ? TR_OK : tr_fail(TR_NOMEM, "no memory for the hashes of %s", name);
}

enum tr_status tr_sums_find(const struct tr_sums *s, const char *dir, const char *name, const struct tr_sums_file **out)
{
    char text[160];
    *out = NULL;
    if (!s || strcmp(s->dir, dir) != 0)
        return TR_OK;
    for (size_t i = 0; i < s->n && !*out; i++)
        if (strcmp(s->file[i].name, name) == 0)
            *out = &s->file[i];
    return *out ? TR_OK
                : tr_fail(TR_IO, "%s/%s: was not there when the checkpoint was verified", dir,
                          tr_escape(name, text, sizeof text));
}

enum tr_status tr_sums_pread(const struct tr_sums_file *f, int fd, const char *path, void *buf, size_t n, uint64_t at)
{
    if (!f)
        return tr_pread_all(fd, path, buf, n, at);
    char *to = buf;
    for (uint64_t end = at + n; at < end;) {
        unsigned char part[TR_SUM_BLOCK];
        uint64_t k = at / TR_SUM_BLOCK, first = k * TR_SUM_BLOCK;
        if (first >= f->bytes || end > f->bytes)
            return tr_fail(TR_IO, "%s: byte %" PRIu64 " is past the end of the file that was verified", path, end);
        size_t size = (size_t)(f->bytes - first < TR_SUM_BLOCK ? f->bytes - first : TR_SUM_BLOCK);
        size_t skip = (size_t)(at - first), n_now = size - skip < end - at ? size - skip : (size_t)(end - at);
        bool is_whole = n_now == size;
        void *block = is_whole ? (void *)to : (void *)part;
        enum tr_status st = tr_pread_all(fd, path, block, size, first);
        if (st != TR_OK)
            return TR_IO; /* a short file, too: it was longer */
        if (!tr_hash_eq(tr_hash(block, size), f->block[k]))
            return tr_fail(TR_IO, "%s: bytes %" PRIu64 "..%" PRIu64 " have changed since they were verified", path,
                           first, first + size);
        if (!is_whole)
            memcpy(to, part + skip, n_now);
        to += n_now;
        at += n_now;
    }
    return TR_OK;
}

enum tr_status tr_sums_read(const struct tr_sums *s, const char *dir, const char *name, size_t max_bytes, char **out,
                            size_t *out_n)
{
    enum tr_status st = TR_OK;
    const struct tr_sums_file *f = NULL;
    char path[TR_PATH_MAX], *text = NULL;
    int fd = -1;
    uint64_t n = 0;
    TR_TRY(tr_path_join(path, dir, name));
    TR_TRY(tr_sums_find(s, dir, name, &f));
    if (!f)
        return tr_file_read(path, max_bytes, out, out_n);
    if (f->bytes > max_bytes)
        TR_TRY(tr_fail(TR_USAGE, "%s has %" PRIu64 " bytes; the limit is %zu", path, f->bytes, max_bytes));
    st = tr_file_open_read(path, &fd, &n);
    TR_TRY(st == TR_USAGE ? TR_IO : st); /* it was there */
    text = malloc((size_t)f->bytes + 1);
    if (!text)
        TR_TRY(tr_fail(TR_NOMEM, "no memory for %" PRIu64 " bytes of %s", f->bytes, path));
    TR_TRY(tr_sums_pread(f, fd, path, text, (size_t)f->bytes, 0));
    text[f->bytes] = '\0';
    *out = text;
    *out_n = (size_t)f->bytes;
    text = NULL;
out:
    free(text);
    if (fd >= 0)
        close(fd);
    return st;
}
