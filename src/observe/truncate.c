/* truncate.c - cuts events.jsonl back to a step, so that the log of a resumed run is the log of an undisturbed one.
 *
 * Invariant: the name holds the old file or the new one, never a mix; memory is one line, whatever the file's size.
 * A line that is no event (torn by a crash or a full disk) goes; one that only lacks its newline is whole. Steps are
 * logged in order, so everything before a line of a step that stays is kept unread: a long log costs what its tail
 * costs, and a copy of its bytes where lines go. Rejected: cutting the file in place (who follows it would go on behind
 * lines that are no longer there).
 */
#include "observe/observe_impl.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TAIL_BYTES = 1 << 20 };

/* Is the event part of a run that ended at `step`? */
static bool keeps(const struct tr_event *e, int64_t step)
{
    return e->kind >= TR_EVENT_LAYOUT || e->step <= step;
}

/* What is to be done with a log. Bytes [0, kept) stay as they are. */
struct log_cut {
    uint64_t kept;
    bool is_whole; /* nothing is to be done */
    int64_t n_removed;
};

/* Finds a line of a step that stays, in the last tail_bytes; *out is where it ends, 0 where there is none. */
static enum tr_status find_kept(const char *path, uint64_t tail_bytes, int64_t step, uint64_t *out)
{
    struct tr_events *in = NULL;
    struct tr_event e;
    *out = 0;
    TR_PASS(tr_events_open(path, tail_bytes, &in));
    while (*out == 0 && tr_events_next(in, &e))
        if (e.kind == TR_EVENT_STEP && e.step <= step)
            *out = tr_events_at(in);
    enum tr_status st = tr_events_failed(in);
    tr_events_close(in);
    return st;
}

/* Reads the lines behind `kept`. */
static enum tr_status look(const char *path, int64_t step, struct log_cut *cut)
{
    struct tr_events *in = NULL;
    struct tr_event e;
    TR_PASS(tr_events_open_at(path, cut->kept, &in));
    while (tr_events_next(in, &e))
        cut->n_removed += !keeps(&e, step);
    cut->n_removed += tr_events_skipped(in);
    enum tr_status st = tr_events_failed(in);
    tr_events_close(in);
    return st;
}

static enum tr_status plan_cut(const char *path, int64_t step, struct log_cut *cut)
{
    uint64_t n_bytes = 0, tail = TAIL_BYTES;
    int fd = -1;
    char last = '\n';
    enum tr_status st = tr_file_open_read(path, &fd, &n_bytes);
    if (st != TR_OK)
        return st;
    bool is_read = n_bytes == 0 || pread(fd, &last, 1, (off_t)n_bytes - 1) == 1;
    close(fd);
    if (!is_read)
        return tr_fail(TR_IO, "%s: cannot be read to its end", path);
    *cut = (struct log_cut){ 0 };
    while (st == TR_OK && cut->kept == 0 && tail < n_bytes) {
        st = find_kept(path, tail, step, &cut->kept);
        tail *= 4;
    }
    if (st == TR_OK)
        st = look(path, step, cut);
    cut->is_whole = cut->n_removed == 0 && last == '\n'; /* a line that only lacks its newline gets it */
    return st;
}

static enum tr_status copy_kept(const char *path, uint64_t n, FILE *out)
{
    char block[1 << 16];
    uint64_t n_bytes = 0;
    int fd = -1;
    TR_PASS(tr_file_open_read(path, &fd, &n_bytes));
    while (n > 0 && !ferror(out)) {
        ssize_t got = read(fd, block, n < sizeof block ? (size_t)n : sizeof block);
        if (got <= 0)
            break;
        (void)fwrite(block, 1, (size_t)got, out);
        n -= (uint64_t)got;
    }
    close(fd);
    return n == 0 || ferror(out) ? TR_OK : tr_fail(TR_IO, "%s: cannot be read to its end", path);
}

static enum tr_status copy_lines(const char *path, const struct log_cut *cut, FILE *out, int64_t step)
{
    struct tr_events *in = NULL;
    struct tr_event e;
    enum tr_status st = TR_OK;
    TR_TRY(copy_kept(path, cut->kept, out));
    TR_TRY(tr_events_open_at(path, cut->kept, &in));
    while (!ferror(out) && tr_events_next(in, &e))
        if (keeps(&e, step))
            fprintf(out, "%s\n", e.text);
    if (ferror(out))
        TR_TRY(tr_fail(TR_IO, "%s: cutting back to step %" PRId64 ": %s", path, step, strerror(errno)));
    TR_TRY(tr_events_failed(in));
out:
    tr_events_close(in);
    return st;
}

/* Closes f in any case. TR_OK: the data is on disk. */
static enum tr_status finish(FILE *f, const char *path, enum tr_status st)
{
    bool is_written = fflush(f) == 0 && fsync(fileno(f)) == 0;
    int why = errno;
    if (fclose(f) != 0 || !is_written)
        return st != TR_OK ? st : tr_fail(TR_IO, "%s: %s", path, strerror(why));
    return st;
}

static enum tr_status rewrite(const char *path, const char *dir, const char *temp, const struct log_cut *cut,
                              int64_t step)
{
    int fd = -1;
    (void)tr_out_unlink(dir, temp); /* left by a crashed process that had our pid */
    enum tr_status st = tr_out_open(dir, temp, TR_OUT_NEW, &fd);
    if (st != TR_OK)
        return st;
    FILE *out = fdopen(fd, "w");
    if (out == NULL) {
        st = tr_fail(TR_IO, "%s: %s", temp, strerror(errno));
        close(fd);
        return st;
    }
    return finish(out, temp, copy_lines(path, cut, out, step));
}

static enum tr_status write_anew(const char *path, const char *dir, const char *name, const struct log_cut *cut,
                                 int64_t step)
{
    char temp[TR_PATH_MAX];
    TR_PASS(tr_format(temp, sizeof temp, "%s.tmp-%d", name, (int)getpid()));
    enum tr_status st = rewrite(path, dir, temp, cut, step);
    int err = st == TR_OK ? tr_out_move(dir, temp, name, TR_OUT_RENAME) : 0;
    if (err)
        st = tr_fail(TR_IO, "%s: %s", path, strerror(err));
    if (st != TR_OK) {
        (void)tr_out_unlink(dir, temp);
        return st;
    }
    return tr_fsync_dir(dir);
}

enum tr_status tr_events_truncate(const char *path, int64_t step, int64_t *n_removed)
{
    char dir[TR_PATH_MAX];
    const char *name;
    struct log_cut cut = { 0 };
    if (n_removed != NULL)
        *n_removed = 0;
    if (!tr_file_exists(path))
        return TR_OK;
    TR_PASS(tr_path_split(path, dir, &name));
    TR_PASS(tr_out_check(dir, name)); /* a log that was moved away and linked must not become a copy */
    TR_PASS(plan_cut(path, step, &cut));
    if (!cut.is_whole)
        TR_PASS(write_anew(path, dir, name, &cut, step));
    if (n_removed != NULL)
        *n_removed = cut.n_removed;
    return TR_OK;
}
