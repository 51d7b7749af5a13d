/* new_dir.c - directories that appear when they are whole: filled under a name of their own, which is removed when the
 * filling fails and when a signal ends the program.
 *
 * The handler only writes a byte into a pipe. A thread that reads it removes the directory, whatever the others are
 * doing, and then the signal ends the program as it would have. Rejected: a flag that the writers look at, because the
 * proof of a large model writes nothing for minutes; removing inside the handler, because a tree takes malloc.
 */
#include "base/out.h"
#include "train/merge.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

static const int signals[] = { SIGINT, SIGTERM, SIGHUP, SIGUSR1 };
enum { N_SIGNALS = sizeof signals / sizeof *signals, N_TRIES = 100, NAP_US = 10000 };

struct sweeper {
    const char *dir, *temp;
    pthread_t thread;
    struct sigaction old[N_SIGNALS];
    bool is_on;
};

static int pipe_fd[2] = { -1, -1 };

static void on_signal(int sig)
{
    int saved = errno;
    unsigned char byte = (unsigned char)sig;
    ssize_t n = write(pipe_fd[1], &byte, 1); /* a pipe that is full has the same news */
    (void)n;
    errno = saved;
}

static void *sweep(void *arg)
{
    const struct sweeper *s = arg;
    unsigned char sig = 0;
    ssize_t n;
    do
        n = read(pipe_fd[0], &sig, 1);
    while (n < 0 && errno == EINTR);
    if (n != 1 || sig == 0)
        return NULL; /* the directory has its name, or is gone */
    /* A file may be made in it while it is removed. */
    for (int i = 0; i < N_TRIES && tr_out_remove(s->dir, s->temp) != TR_OK; i++)
        usleep(NAP_US);
    signal(sig, SIG_DFL);
    kill(getpid(), sig);
    return NULL;
}

/* A signal that is ignored stays so, and one that has a handler is that handler's. Without a thread the directory is
 * left behind by a signal, as by kill -9. */
static void sweeper_start(struct sweeper *s)
{
    struct sigaction take = { .sa_handler = on_signal, .sa_flags = SA_RESTART };
    if (pipe2(pipe_fd, O_CLOEXEC) != 0)
        return;
    s->is_on = pthread_create(&s->thread, NULL, sweep, s) == 0;
    for (int i = 0; i < N_SIGNALS && s->is_on; i++)
        if (sigaction(signals[i], NULL, &s->old[i]) == 0 && s->old[i].sa_handler == SIG_DFL)
            sigaction(signals[i], &take, NULL);
}

static void sweeper_stop(struct sweeper *s)
{
    unsigned char none = 0;
    for (int i = 0; i < N_SIGNALS && s->is_on; i++)
        if (s->old[i].sa_handler == SIG_DFL)
            sigaction(signals[i], &s->old[i], NULL);
    if (s->is_on && write(pipe_fd[1], &none, 1) == 1)
        pthread_join(s->thread, NULL); /* after a signal it ends the program instead */
    for (int i = 0; i < 2; i++) {
        if (pipe_fd[i] >= 0)
            close(pipe_fd[i]);
        pipe_fd[i] = -1;
    }
}

/* name: room for the path without slashes at its end, which *last points into. */
static enum tr_status split(const char *out, char name[TR_PATH_MAX], char dir[TR_PATH_MAX], const char **last)
{
    TR_PASS(tr_format(name, TR_PATH_MAX, "%s", out));
    for (size_t n = strlen(name); n > 1 && name[n - 1] == '/'; n--)
        name[n - 1] = 0;
    TR_PASS(tr_path_split(name, dir, last));
    return tr_name_is_plain(*last)
               ? TR_OK
               : tr_fail(
                     TR_USAGE,
                     "output %s: such a name cannot be given to a new directory (., .., control bytes); give another",
                     out);
}

bool tr_new_dir_takes(const char *out)
{
    char dir[TR_PATH_MAX], name[TR_PATH_MAX];
    const char *last;
    bool is_taken = split(out, name, dir, &last) == TR_OK;
    tr_error_clear();
    return is_taken;
}

static enum tr_status refuse_taken(const char *out)
{
    return tr_fail(TR_USAGE, "%s is there and is no empty directory; name another --output", out);
}

enum tr_status tr_new_dir_check(const char *out)
{
    static const char *const none[] = { NULL };
    char dir[TR_PATH_MAX], name[TR_PATH_MAX], other[256];
    const char *last;
    struct statx info;
    TR_PASS(split(out, name, dir, &last));
    if (statx(AT_FDCWD, name, AT_SYMLINK_NOFOLLOW, STATX_TYPE, &info) != 0)
        return TR_OK; /* what is wrong with the path is said by the call that makes the directory */
    if (!S_ISDIR(info.stx_mode) || tr_dir_has_other(name, none, other))
        return refuse_taken(out);
    if (info.stx_attributes & info.stx_attributes_mask & STATX_ATTR_MOUNT_ROOT)
        return tr_fail(TR_USAGE,
                       "%s is a mount point, which cannot take the place of another directory; name one in "
                       "it, like %s/model",
                       out, name);
    return TR_OK;
}

enum tr_status tr_new_dir(const char *out, tr_new_dir_fn *fill, void *ctx)
{
    char dir[TR_PATH_MAX], name[TR_PATH_MAX], path[TR_PATH_MAX], temp[TR_PATH_MAX] = "";
    const char *last;
    enum tr_status st = TR_OK;
    struct sweeper sweeper = { 0 };
    TR_TRY(tr_new_dir_check(out));
    TR_TRY(split(out, name, dir, &last));
    TR_TRY(tr_format(temp, sizeof temp, "%s.tmp-%ld", last, (long)getpid()));
    TR_TRY(tr_mkdirs(dir));
    TR_TRY(tr_out_remove(dir, temp)); /* left by an earlier process of this number */
    sweeper = (struct sweeper){ .dir = dir, .temp = temp };
    sweeper_start(&sweeper);
    TR_TRY(tr_out_mkdir(dir, temp));
    TR_TRY(fill(ctx, dir, temp));
    TR_TRY(tr_path_join(path, dir, temp));
    TR_TRY(tr_fsync_dir(path));
    int err = tr_out_move(dir, temp, last, TR_OUT_RENAME);
    if (err)
        TR_TRY(err == ENOTEMPTY || err == EEXIST || err == ENOTDIR
                   ? refuse_taken(out)
                   : tr_fail(TR_IO, "%s: rename: %s", out, strerror(err)));
out:
    sweeper_stop(&sweeper);
    if (st != TR_OK && temp[0])
        (void)tr_out_remove(dir, temp);
    return st;
}
