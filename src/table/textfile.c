/* textfile.c - see textfile.h. Memory: one chunk, or the longest line so far; at most max_line plus one chunk. */
#include "table/textfile.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum tr_status tr_textfile_open(struct tr_textfile *f, const char *path, size_t max_line)
{
    enum tr_status st = TR_OK;
    *f = (struct tr_textfile){ .path = path, .fd = -1, .max_line = max_line };
    TR_TRY(tr_file_open_read(path, &f->fd, &f->n_bytes));
    TR_TRY(tr_hasher_open(&f->hasher));
    if (tr_zip_of(path) != TR_ZIP_NONE) {
        TR_TRY(tr_unzip_open(tr_zip_of(path), &f->unzip));
        f->raw = malloc(TR_TEXT_CHUNK);
        if (!f->raw)
            TR_TRY(tr_fail(TR_NOMEM, "%s: no memory to decompress", path));
    }
out:
    if (st != TR_OK)
        tr_textfile_release(f);
    return st;
}

void tr_textfile_release(struct tr_textfile *f)
{
    if (f->fd >= 0)
        close(f->fd);
    tr_hasher_close(f->hasher);
    tr_unzip_close(f->unzip);
    free(f->raw);
    free(f->buf);
    *f = (struct tr_textfile){ .fd = -1 };
}

static enum tr_status make_room(struct tr_textfile *f, size_t n)
{
    if (f->begin > 0) {
        memmove(f->buf, f->buf + f->begin, f->end - f->begin);
        f->end -= f->begin;
        f->begin = 0;
    }
    return TR_ROOM(f->buf, f->end + n, &f->n_cap, "%s: a line of %zu bytes", f->path, f->end + n);
}

enum tr_status tr_textfile_of(struct tr_textfile *f, const char *path, const char *p, size_t n)
{
    f->path = path;
    f->begin = f->end = 0; /* the buffer is used again */
    TR_PASS(make_room(f, n));
    memcpy(f->buf, p, n);
    f->end = n;
    return TR_OK;
}

/* The next bytes of the file, at most TR_TEXT_CHUNK; *n = 0 at its end. */
static enum tr_status read_raw(struct tr_textfile *f, char *out, size_t *n)
{
    uint64_t left = f->n_bytes - f->at;
    size_t k = left < TR_TEXT_CHUNK ? (size_t)left : TR_TEXT_CHUNK;
    TR_PASS(k ? tr_pread_all(f->fd, f->path, out, k, f->at) : TR_OK);
    tr_hasher_add(f->hasher, out, k);
    f->at += k;
    *n = k;
    return TR_OK;
}

static enum tr_status read_zipped(struct tr_textfile *f, char *out, size_t *n)
{
    for (;;) {
        enum tr_status st = TR_OK;
        if (f->raw_begin == f->raw_end) {
            f->raw_begin = 0;
            st = read_raw(f, f->raw, &f->raw_end);
            if (st != TR_OK)
                return st;
        }
        size_t n_in = f->raw_end - f->raw_begin;
        bool is_end = n_in == 0;
        *n = TR_TEXT_CHUNK;
        st = tr_unzip_run(f->unzip, f->raw + f->raw_begin, &n_in, out, n);
        f->raw_begin += n_in;
        if (st == TR_OK && *n == 0 && is_end)
            st = tr_unzip_end(f->unzip);
        if (st != TR_OK)
            return tr_fail_at(st, "%s: ", f->path);
        if (*n > 0 || is_end)
            return TR_OK;
    }
}

enum tr_status tr_textfile_more(struct tr_textfile *f, size_t *n)
{
    TR_PASS(make_room(f, TR_TEXT_CHUNK));
    TR_PASS(f->unzip ? read_zipped(f, f->buf + f->end, n) : read_raw(f, f->buf + f->end, n));
    f->end += *n;
    return TR_OK;
}

/* Returns [begin, end) as a line. `rest` is where the next line starts. */
static void give(struct tr_textfile *f, size_t end, size_t rest, bool is_long, enum tr_line *kind, const char **text,
                 size_t *n)
{
    *kind = is_long || end - f->begin > f->max_line ? TR_LINE_TOO_LONG : TR_LINE_TEXT;
    *text = f->buf + f->begin;
    *n = end - f->begin;
    f->begin = rest;
    f->line++;
}

enum tr_status tr_textfile_line(struct tr_textfile *f, enum tr_line *kind, const char **text, size_t *n)
{
    bool is_long = false;
    size_t n_seen = 0; /* bytes from begin that hold no newline */
    for (;;) {
        size_t n_new = f->end - f->begin - n_seen, n_more;
        const char *nl = n_new ? memchr(f->buf + f->begin + n_seen, '\n', n_new) : NULL;
        if (nl) {
            size_t at = (size_t)(nl - f->buf);
            give(f, at, at + 1, is_long, kind, text, n);
            return TR_OK;
        }
        n_seen = f->end - f->begin;
        if (n_seen > f->max_line) {
            is_long = true;
            n_seen = f->begin = f->end = 0;
        }
        TR_PASS(tr_textfile_more(f, &n_more));
        if (n_more > 0)
            continue;
        if (n_seen > 0 || is_long)
            give(f, f->end, f->end, is_long, kind, text, n);
        else
            *kind = TR_LINE_END;
        return TR_OK;
    }
}

enum tr_status tr_textfile_rest(struct tr_textfile *f, struct tr_hash128 *out)
{
    size_t n = 1;
    f->begin = f->end = f->raw_begin = f->raw_end = 0;
    enum tr_status st = make_room(f, TR_TEXT_CHUNK);
    while (st == TR_OK && n > 0)
        st = read_raw(f, f->buf, &n);
    if (st == TR_OK)
        *out = tr_hasher_get(f->hasher);
    return st;
}

enum tr_status tr_textfile_hash(const char *path, struct tr_hash128 *out)
{
    struct tr_textfile f;
    enum tr_status st = tr_textfile_open(&f, path, 0);
    if (st == TR_OK)
        st = tr_textfile_rest(&f, out);
    tr_textfile_release(&f);
    return st;
}
