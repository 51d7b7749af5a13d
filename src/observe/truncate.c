/* truncate.c - cuts events.jsonl back to a step, so that the log of a resumed run is the log of an undisturbed one.
 *
 * Invariant: the name holds the old file or the new one, never a mix; memory is one line, whatever the file's size.
 * A line that is no event (torn by a crash or a full disk) goes; one that only lacks its newline is whole.
 */
#include "observe/observe_impl.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

/* Is the event part of a run that ended at `step`? */
static bool keeps(const struct tr_event *e, int64_t step)
{
    return e->kind >= TR_EVENT_LAYOUT || e->step <= step;
}

static enum tr_status copy_lines(struct tr_events *in, FILE *out, const char *path, int64_t step, int64_t *n_removed)
{
    struct tr_event e;
    while (!ferror(out) && tr_events_next(in, &e)) {
        if (keeps(&e, step))
            fprintf(out, "%s\n", e.text);
        else
            (*n_removed)++;
    }
    *n_removed += tr_events_skipped(in);
    if (ferror(out))
        return tr_fail(TR_IO, "%s: cutting back to step %" PRId64 ": %s", path, step, strerror(errno));
    return tr_events_failed(in);
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

static enum tr_status rewrite(struct tr_events *in, const char *path, const char *dir, const char *temp, int64_t step,
                              int64_t *n_removed)
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
    return finish(out, temp, copy_lines(in, out, path, step, n_removed));
}

enum tr_status tr_events_truncate(const char *path, int64_t step, int64_t *n_removed)
{
    char dir[TR_PATH_MAX], temp[TR_PATH_MAX];
    const char *name;
    int64_t n = 0;
    struct tr_events *in = NULL;
    if (n_removed != NULL)
        *n_removed = 0;
    if (!tr_file_exists(path))
        return TR_OK;
    enum tr_status st = TR_OK;
    TR_TRY(tr_path_split(path, dir, &name));
    TR_TRY(tr_format(temp, sizeof temp, "%s.tmp-%d", name, (int)getpid()));
    TR_TRY(tr_out_check(dir, name)); /* a log that was moved away and linked must not become a copy */
    TR_TRY(tr_events_open(path, 0, &in));
    st = rewrite(in, path, dir, temp, step, &n);
    tr_events_close(in);
    int err = st == TR_OK ? tr_out_move(dir, temp, name, TR_OUT_RENAME) : 0;
    if (err)
        st = tr_fail(TR_IO, "%s: %s", path, strerror(err));
    if (st != TR_OK) {
        (void)tr_out_unlink(dir, temp);
        return st;
    }
    if (n_removed != NULL)
        *n_removed = n;
    st = tr_fsync_dir(dir);
out:
    return st;
}
