/* truncate.c - cuts events.jsonl back to a step, so that the log of a resumed run is the log of an undisturbed one.
 *
 * Invariant: the name holds the old file or the new one, never a mix; memory is one line, whatever the file's size.
 * A line that is no JSON object (torn by a crash or a full disk) goes; one that only lacks its newline is whole.
 */
#include "observe/observe_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

/* One line without its newline into buf. n = SIZE_MAX: longer than any line of ours (read past). False at the end. */
static bool read_line(FILE *f, char *buf, size_t n_buf, size_t *n)
{
    int c = getc(f);
    if (c == EOF)
        return false;
    for (*n = 0; c != EOF && c != '\n'; c = getc(f)) {
        if (*n != SIZE_MAX && *n + 1 < n_buf)
            buf[(*n)++] = (char)c;
        else
            *n = SIZE_MAX;
    }
    if (*n != SIZE_MAX)
        buf[*n] = '\0';
    return true;
}

static bool keeps(const char *text, size_t n, int64_t step)
{
    cJSON *root = NULL;
    if (n == SIZE_MAX || tr_json_parse(text, n, "event", &root) != TR_OK)
        return false;
    const char *event = NULL;
    int64_t at = 0;
    bool is_kept = cJSON_IsObject(root) && tr_json_str(root, "event", true, &event) == TR_OK;
    if (is_kept && (strcmp(event, "step") == 0 || strcmp(event, "eval") == 0 || strcmp(event, "checkpoint") == 0))
        is_kept = tr_json_int(root, "step", true, 0, INT64_MAX, &at) == TR_OK && at <= step;
    cJSON_Delete(root);
    return is_kept;
}

static enum tr_status copy_lines(FILE *in, FILE *out, const char *path, int64_t step, int64_t *n_removed)
{
    size_t n_buf = TR_EVENT_MAX_BYTES + 1, n = 0;
    char *buf = malloc(n_buf);
    if (buf == NULL)
        return tr_fail(TR_NOMEM, "no memory to read %s", path);
    while (read_line(in, buf, n_buf, &n)) {
        if (n == 0)
            continue; /* the newline that closed a torn line */
        if (!keeps(buf, n, step)) {
            (*n_removed)++;
            continue;
        }
        buf[n] = '\n';
        if (fwrite(buf, 1, n + 1, out) != n + 1)
            break;
    }
    free(buf);
    if (ferror(in) || ferror(out))
        return tr_fail(TR_IO, "%s: cutting back to step %" PRId64 ": %s", path, step, strerror(errno));
    return TR_OK;
}

/* fclose in any case; the data is on disk only when this says so. */
static enum tr_status finish(FILE *f, const char *path, enum tr_status st)
{
    bool is_written = fflush(f) == 0 && fsync(fileno(f)) == 0;
    int why = errno;
    if (fclose(f) != 0 || !is_written)
        return st != TR_OK ? st : tr_fail(TR_IO, "%s: %s", path, strerror(why));
    return st;
}

static enum tr_status sync_parent(const char *path)
{
    char dir[TR_PATH_MAX];
    const char *slash = strrchr(path, '/');
    enum tr_status st = slash == NULL ? tr_format(dir, sizeof dir, ".")
                                      : tr_format(dir, sizeof dir, "%.*s", (int)(slash - path + 1), path);
    return st == TR_OK ? tr_fsync_dir(dir) : st;
}

static enum tr_status rewrite(int in_fd, const char *path, const char *temp, int64_t step, int64_t *n_removed)
{
    FILE *in = fdopen(in_fd, "r");
    if (in == NULL) {
        close(in_fd);
        return tr_fail(TR_IO, "%s: %s", path, strerror(errno));
    }
    unlink(temp); /* left by a crash of a process with our number */
    int fd = open(temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0644);
    FILE *out = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (out == NULL) {
        enum tr_status st = tr_fail(TR_IO, "%s: %s", temp, strerror(errno));
        if (fd >= 0)
            close(fd);
        fclose(in);
        return st;
    }
    enum tr_status st = finish(out, temp, copy_lines(in, out, path, step, n_removed));
    fclose(in);
    return st;
}

enum tr_status tr_events_truncate(const char *path, int64_t step, int64_t *n_removed)
{
    char temp[TR_PATH_MAX];
    int64_t n = 0;
    uint64_t n_bytes;
    int fd;
    if (n_removed != NULL)
        *n_removed = 0;
    if (!tr_file_exists(path))
        return TR_OK;
    enum tr_status st = tr_format(temp, sizeof temp, "%s.tmp-%d", path, (int)getpid());
    if (st == TR_OK)
        st = tr_file_open_read(path, &fd, &n_bytes);
    if (st != TR_OK)
        return st;
    st = rewrite(fd, path, temp, step, &n);
    if (st == TR_OK && rename(temp, path) != 0)
        st = tr_fail(TR_IO, "%s: %s", path, strerror(errno));
    if (st != TR_OK) {
        unlink(temp);
        return st;
    }
    if (n_removed != NULL)
        *n_removed = n;
    return sync_parent(path);
}
