/* tail.c - a file of lines, read to its end or while it grows (tail.h). Rejected: stdio, which reads a byte at a time
 * through a lock or a macro and forgets nothing of an end of file that has passed. */
#include "observe/tail.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

struct tr_tail {
    size_t max_line;
    bool is_following;
    int fd, why; /* why: errno of a read that failed */
    bool is_in_long;
    size_t from, to, cap; /* bytes of buf that were read and not yet handed out */
    uint64_t n_read;      /* file offset of buf[to] */
    char path[TR_PATH_MAX];
    char buf[];
};

enum tr_status tr_tail_open(const char *path, size_t max_line, uint64_t tail_bytes, struct tr_tail **out)
{
    enum tr_status st = TR_OK;
    int fd = -1;
    uint64_t n_bytes = 0;
    size_t cap = 4 * max_line;
    struct tr_tail *t = calloc(1, sizeof *t + cap + 1);
    if (t == NULL)
        return tr_fail(TR_NOMEM, "no memory to read %s", path);
    TR_TRY(tr_format(t->path, sizeof t->path, "%s", path));
    TR_TRY(tr_file_open_read(path, &fd, &n_bytes));
    t->max_line = max_line;
    t->cap = cap;
    t->n_read = tail_bytes > 0 && n_bytes > tail_bytes ? n_bytes - tail_bytes : 0;
    t->fd = fd;
    *out = t;
out:
    if (st != TR_OK)
        free(t);
    return st;
}

void tr_tail_follow(struct tr_tail *t)
{
    t->is_following = true;
}

void tr_tail_seek(struct tr_tail *t, uint64_t at)
{
    t->n_read = at;
}

uint64_t tr_tail_at(const struct tr_tail *t)
{
    return t->n_read - (t->to - t->from);
}

void tr_tail_close(struct tr_tail *t)
{
    if (t == NULL)
        return;
    close(t->fd);
    free(t);
}

/* More bytes behind those of the line that is begun; false: there are none now. */
static bool fill(struct tr_tail *t)
{
    ssize_t n;
    if (t->to - t->from > t->max_line) { /* no newline in a whole line: its rest is read past */
        t->is_in_long = true;
        t->from = t->to = 0;
    }
    memmove(t->buf, t->buf + t->from, t->to - t->from);
    t->to -= t->from;
    t->from = 0;
    do
        n = pread(t->fd, t->buf + t->to, t->cap - t->to, (off_t)t->n_read);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        t->why = errno;
    if (n <= 0)
        return false;
    t->to += (size_t)n;
    t->n_read += (uint64_t)n;
    return true;
}

static enum tr_tail_line hand_out(struct tr_tail *t, size_t n, char **line, size_t *n_line)
{
    bool is_long = t->is_in_long || n > t->max_line;
    t->is_in_long = false;
    *line = t->buf + t->from;
    *n_line = n;
    (*line)[n] = '\0';
    t->from += n < t->to - t->from ? n + 1 : n; /* the newline too, where there is one */
    return is_long ? TR_TAIL_TOO_LONG : TR_TAIL_LINE;
}

enum tr_tail_line tr_tail_next(struct tr_tail *t, char **line, size_t *n)
{
    size_t seen = 0; /* of the line that is begun: bytes without a newline */
    for (;;) {
        char *end = memchr(t->buf + t->from + seen, '\n', t->to - t->from - seen);
        if (end != NULL)
            return hand_out(t, (size_t)(end - t->buf) - t->from, line, n);
        seen = t->to - t->from > t->max_line ? 0 : t->to - t->from;
        if (fill(t))
            continue;
        if (t->is_following) { /* read again then: its writer may cut off what it could not finish */
            t->n_read -= t->to - t->from;
            t->to = t->from;
            return TR_TAIL_NONE;
        }
        bool has_rest = t->to > t->from || t->is_in_long;
        return has_rest ? hand_out(t, t->to - t->from, line, n) : TR_TAIL_NONE;
    }
}

bool tr_tail_was_replaced(const struct tr_tail *t)
{
    struct stat mine, named;
    if (fstat(t->fd, &mine) != 0 || stat(t->path, &named) != 0)
        return true;
    return mine.st_dev != named.st_dev || mine.st_ino != named.st_ino || (uint64_t)mine.st_size < t->n_read;
}

enum tr_status tr_tail_failed(const struct tr_tail *t)
{
    return t->why ? tr_fail(TR_IO, "%s: cannot be read to its end: %s", t->path, strerror(t->why)) : TR_OK;
}

const char *tr_tail_path(const struct tr_tail *t)
{
    return t->path;
}
