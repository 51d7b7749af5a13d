/* commit.c - writing a checkpoint directory, and the lock that says who may.
 *
 * Invariant: the final name appears by one rename (or one exchange) of a directory whose every file, directory and
 * manifest is already durable. Nothing of an older checkpoint is touched before that. A checkpoint of the same step
 * that is already there is exchanged atomically; the old one then has the temp name and goes away with it.
 * Rejected: writing into the final directory with a "done" file (a crash leaves a directory that looks whole to HF).
 */
#include "ckpt/commit_impl.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- lock ---- */

struct tr_ckpt_lock {
    int fd;
    char path[TR_PATH_MAX];
};

static void read_holder(int fd, char *holder, size_t n_holder)
{
    ssize_t n = pread(fd, holder, n_holder - 1, 0);
    holder[n > 0 ? n : 0] = '\0';
    holder[strcspn(holder, "\n")] = '\0';
}

static enum tr_status refuse_locked(int fd, const char *output_dir)
{
    char holder[256] = "", text[300];
    read_holder(fd, holder, sizeof holder);
    return tr_fail(TR_USAGE, "%s is being written by another run (%s); stop it or choose another output_dir",
                   output_dir, tr_escape(holder, text, sizeof text));
}

static enum tr_status write_holder(int fd, const char *path, const char *run_id, int64_t generation)
{
    char host[64] = "", job[128], text[256];
    gethostname(host, sizeof host - 1);
    tr_fence_name(job, sizeof job);
    TR_PASS(tr_format(text, sizeof text, "pid %d host %s run %s generation %" PRId64 "%s\n", (int)getpid(), host,
                      run_id, generation, job));
    if (ftruncate(fd, 0) != 0 || lseek(fd, 0, SEEK_SET) != 0)
        return tr_fail(TR_IO, "%s: truncate: %s", path, strerror(errno));
    TR_PASS(tr_write_all(fd, path, text, strlen(text)));
    if (fsync(fd) != 0)
        return tr_fail(TR_IO, "%s: fsync: %s", path, strerror(errno));
    return TR_OK;
}

static enum tr_status open_lock(const char *output_dir, int *out)
{
    enum tr_status st = tr_out_open(output_dir, TR_NAME_LOCK, TR_OUT_SHARE, out);
    return st == TR_OK ? TR_OK : tr_fail_at(TR_USAGE, "output_dir is not writable: ");
}

/* A process that was killed lets go a moment later, when the kernel has taken its memory back: a start right after it
 * waits for that. A rank of an older generation of this job is waited for longer, then left behind with its file (C12).
 */
static enum tr_status break_lock(const char *output_dir, const char *path, int *fd)
{
    enum { TRIES = 50, TRY_US = 20000 };
    char holder[256] = "";
    read_holder(*fd, holder, sizeof holder);
    bool is_older = tr_fence_is_older(output_dir, holder);
    for (int i = 0; i < TRIES << is_older; i++) {
        usleep(TRY_US);
        if (flock(*fd, LOCK_EX | LOCK_NB) == 0)
            return TR_OK;
    }
    if (!is_older)
        return refuse_locked(*fd, output_dir);
    close(*fd);
    *fd = -1;
    int err = tr_out_unlink(output_dir, TR_NAME_LOCK);
    if (err)
        return tr_fail(TR_IO, "%s: %s", path, strerror(err));
    TR_PASS(open_lock(output_dir, fd));
    return flock(*fd, LOCK_EX | LOCK_NB) != 0 ? refuse_locked(*fd, output_dir) : TR_OK;
}

enum tr_status tr_ckpt_lock(const char *output_dir, const char *run_id, int64_t generation, struct tr_ckpt_lock **out)
{
    enum tr_status st = TR_OK;
    char path[TR_PATH_MAX];
    struct tr_ckpt_lock *l = NULL;
    int fd = -1;
    TR_TRY(tr_ckpt_check_run_id(run_id));
    TR_TRY(tr_mkdirs(output_dir));
    TR_TRY(tr_path_join(path, output_dir, TR_NAME_LOCK));
    TR_TRY(open_lock(output_dir, &fd));
    if (flock(fd, LOCK_EX | LOCK_NB) != 0)
        TR_TRY(errno == EWOULDBLOCK ? break_lock(output_dir, path, &fd)
                                    : tr_fail(TR_IO, "%s: lock: %s", path, strerror(errno)));
    TR_TRY(write_holder(fd, path, run_id, generation));
    TR_TRY(TR_ALLOC(l, 1, "a lock"));
    l->fd = fd;
    memcpy(l->path, path, sizeof l->path);
    *out = l;
    return TR_OK;
out:
    if (fd >= 0)
        close(fd);
    return st;
}

enum tr_status tr_ckpt_lock_write(struct tr_ckpt_lock *l, const char *run_id, int64_t generation)
{
    return write_holder(l->fd, l->path, run_id, generation);
}

void tr_ckpt_unlock(struct tr_ckpt_lock *l)
{
    if (!l)
        return;
    close(l->fd); /* the file stays: removing it would let two holders lock two files of one name */
    free(l);
}

/* ---- saving ---- */

struct tr_commit {
    char output_dir[TR_PATH_MAX];
    char dir[TR_PATH_MAX], final[TR_PATH_MAX];                     /* for messages and readers */
    char dir_name[TR_CKPT_NAME_MAX], final_name[TR_CKPT_NAME_MAX]; /* the same, beneath output_dir */
    char run_id[TR_CKPT_RUN_ID_MAX];
    int64_t step, generation;
    struct tr_ckpt_file *files; /* names are ours */
    size_t n_files, n_cap;
    bool owns_dir;   /* dir is ours to remove: a failed save, or the old checkpoint after an exchange */
    bool is_renamed; /* the new checkpoint has its final name */
};

void tr_commit_dir_name(int64_t step, int64_t generation, char out[TR_CKPT_NAME_MAX])
{
    (void)snprintf(out, TR_CKPT_NAME_MAX, TR_NAME_CHECKPOINT "%" PRId64 ".tmp-%" PRId64, step, generation);
}

static enum tr_status fill(struct tr_commit *c, const char *output_dir, const char *run_id, int64_t step,
                           int64_t generation)
{
    if (step < 0 || generation < 0)
        return tr_fail(TR_USAGE, "step %" PRId64 ", generation %" PRId64 ": must not be negative", step, generation);
    c->step = step;
    c->generation = generation;
    TR_PASS(tr_ckpt_check_run_id(run_id));
    TR_PASS(tr_format(c->run_id, sizeof c->run_id, "%s", run_id));
    TR_PASS(tr_format(c->output_dir, sizeof c->output_dir, "%s", output_dir));
    tr_commit_dir_name(step, generation, c->dir_name);
    tr_ckpt_step_name(step, c->final_name);
    TR_PASS(tr_path_join(c->dir, output_dir, c->dir_name));
    return tr_path_join(c->final, output_dir, c->final_name);
}

enum tr_status tr_commit_make_dir(const char *output_dir, int64_t step, int64_t generation)
{
    char dir[TR_CKPT_NAME_MAX], state[2 * TR_CKPT_NAME_MAX];
    tr_commit_dir_name(step, generation, dir);
    TR_PASS(tr_format(state, sizeof state, "%s/" TR_CKPT_STATE_DIR, dir));
    TR_PASS(tr_mkdirs(output_dir));
    TR_PASS(tr_ckpt_io(tr_out_mkdir(output_dir, state)));
    TR_PASS(tr_fence_check(output_dir)); /* after the directory is made: a newer generation sweeps what it finds */
    return tr_failpoint("ckpt.begin");
}

enum tr_status tr_commit_begin(const char *output_dir, const char *run_id, int64_t step, int64_t generation,
                               struct tr_commit **out)
{
    enum tr_status st = TR_OK;
    struct tr_commit *c = calloc(1, sizeof *c);
    if (!c)
        return tr_fail(TR_NOMEM, "no memory for a checkpoint");
    TR_TRY(fill(c, output_dir, run_id, step, generation));
    c->owns_dir = true;
    TR_TRY(tr_commit_make_dir(output_dir, step, generation));
    *out = c;
    return TR_OK;
out:
    tr_commit_close(c);
    return st;
}

const char *tr_commit_dir(const struct tr_commit *c)
{
    return c->dir;
}

enum tr_status tr_commit_add(struct tr_commit *c, const char *name, uint64_t bytes, struct tr_hash128 hash)
{
    char text[96];
    if (!tr_ckpt_member_is_legal(name))
        return tr_fail(TR_USAGE, "checkpoint file name \"%s\" is not allowed", tr_escape(name, text, sizeof text));
    if (c->n_files == TR_CKPT_MAX_FILES)
        return tr_fail(TR_USAGE, "a checkpoint has at most %d files", TR_CKPT_MAX_FILES);
    TR_PASS(TR_ROOM(c->files, c->n_files + 1, &c->n_cap, "%zu files", c->n_files + 1));
    struct tr_ckpt_file *f = &c->files[c->n_files];
    *f = (struct tr_ckpt_file){ strdup(name), bytes, hash };
    if (!f->name)
        return tr_fail(TR_NOMEM, "no memory for a file name");
    c->n_files++;
    return TR_OK;
}

/* A new member; path: for messages. */
static enum tr_status create(const struct tr_commit *c, const char *name, char path[TR_PATH_MAX], int *out_fd)
{
    char member[TR_PATH_MAX];
    if (!tr_ckpt_member_is_legal(name))
        return tr_fail(TR_USAGE, "checkpoint file name is not allowed");
    TR_PASS(tr_path_join(path, c->dir, name));
    TR_PASS(tr_path_join(member, c->dir_name, name));
    return tr_ckpt_io(tr_out_open(c->output_dir, member, TR_OUT_NEW, out_fd));
}

/* fsync once, close always. */
static enum tr_status seal(int fd, const char *path)
{
    enum tr_status st = fsync(fd) == 0 ? TR_OK : tr_fail(TR_IO, "%s: fsync: %s", path, strerror(errno));
    if (close(fd) != 0 && st == TR_OK)
        st = tr_fail(TR_IO, "%s: close: %s", path, strerror(errno));
    return st;
}

enum tr_status tr_commit_put(struct tr_commit *c, const char *name, const void *p, size_t n)
{
    enum tr_status st = TR_OK;
    char path[TR_PATH_MAX];
    int fd = -1;
    TR_TRY(create(c, name, path, &fd));
    TR_TRY(tr_write_all(fd, path, p, n));
    st = seal(fd, path);
    fd = -1;
    TR_TRY(st);
    TR_TRY(tr_commit_add(c, name, n, tr_hash(p, n)));
out:
    if (fd >= 0)
        close(fd);
    return st;
}

enum tr_status tr_commit_copy(struct tr_commit *c, const char *name, const char *from)
{
    enum tr_status st = TR_OK;
    char path[TR_PATH_MAX], chunk[65536];
    int in = -1, fd = -1;
    uint64_t n_bytes = 0;
    struct tr_hasher *h = NULL;
    TR_TRY(tr_hasher_open(&h));
    TR_TRY(tr_file_open_read(from, &in, &n_bytes));
    TR_TRY(create(c, name, path, &fd));
    for (uint64_t at = 0; at < n_bytes;) {
        size_t n = n_bytes - at < sizeof chunk ? (size_t)(n_bytes - at) : sizeof chunk;
        TR_TRY(tr_pread_all(in, from, chunk, n, at));
        tr_hasher_add(h, chunk, n);
        TR_TRY(tr_write_all(fd, path, chunk, n));
        at += n;
    }
    st = seal(fd, path);
    fd = -1;
    TR_TRY(st);
    TR_TRY(tr_commit_add(c, name, n_bytes, tr_hasher_get(h)));
out:
    if (fd >= 0)
        close(fd);
    if (in >= 0)
        close(in);
    tr_hasher_close(h);
    return st;
}

/* A file that a rank reported but did not write, or wrote short, must not reach the manifest. */
static enum tr_status check_files(struct tr_commit *c)
{
    char path[TR_PATH_MAX];
    struct stat info;
    if (c->n_files)
        qsort(c->files, c->n_files, sizeof *c->files, tr_by_text);
    for (size_t i = 0; i < c->n_files; i++) {
        const struct tr_ckpt_file *f = &c->files[i];
        if (i > 0 && strcmp(c->files[i - 1].name, f->name) == 0)
            return tr_fail(TR_USAGE, "checkpoint file %s is registered twice", f->name);
        TR_PASS(tr_path_join(path, c->dir, f->name));
        if (lstat(path, &info) != 0)
            return tr_fail(TR_IO, "%s: %s", path, strerror(errno));
        if (!S_ISREG(info.st_mode) || (uint64_t)info.st_size != f->bytes)
            return tr_fail(TR_IO, "%s: %" PRId64 " bytes on disk, its writer reported %" PRIu64, path,
                           (int64_t)info.st_size, f->bytes);
    }
    return TR_OK;
}

static enum tr_status write_manifest(const struct tr_commit *c)
{
    enum tr_status st = TR_OK;
    struct tr_str text = { 0 };
    char name[TR_PATH_MAX];
    const struct tr_ckpt_manifest m = {
        .run_id = c->run_id, .step = c->step, .generation = c->generation, .files = c->files, .n_files = c->n_files
    };
    TR_TRY(tr_fsync_dir(c->dir)); /* trireme/ is synced with the manifest */
    TR_TRY(tr_failpoint("ckpt.before_manifest"));
    TR_TRY(tr_ckpt_manifest_build(&m, &text));
    TR_TRY(tr_path_join(name, c->dir_name, TR_CKPT_MANIFEST));
    TR_TRY(tr_ckpt_io(tr_out_write(c->output_dir, name, text.p, text.n)));
    TR_TRY(tr_failpoint("ckpt.before_rename"));
out:
    tr_str_release(&text);
    return st;
}

/* File systems without an atomic exchange: a checkpoint under the final name is removed only if it does not verify. */
static enum tr_status replace_bad(const struct tr_commit *c)
{
    if (tr_ckpt_verify(c->final, NULL, NULL) == TR_OK)
        return tr_fail(TR_USAGE, "%s exists and is good, and this file system cannot exchange it; move it away",
                       c->final);
    enum tr_status st = tr_out_remove(c->output_dir, c->final_name);
    int err = st == TR_OK ? tr_out_move(c->output_dir, c->dir_name, c->final_name, TR_OUT_RENAME) : 0;
    return err ? tr_fail(TR_IO, "%s: rename: %s", c->final, strerror(err)) : st;
}

static enum tr_status publish(struct tr_commit *c)
{
    enum tr_status st = TR_OK;
    int err = tr_out_move(c->output_dir, c->dir_name, c->final_name, TR_OUT_RENAME);
    if (err == 0) {
        c->owns_dir = false;
    } else if (err == ENOTDIR) {
        st = tr_fail(TR_USAGE, "%s is a link or a file, where a checkpoint is to be; move it away", c->final);
    } else if (err != ENOTEMPTY && err != EEXIST) {
        st = tr_fail(TR_IO, "%s: rename: %s", c->final, strerror(err));
    } else if ((err = tr_out_move(c->output_dir, c->dir_name, c->final_name, TR_OUT_EXCHANGE)) != 0) {
        if (err != EINVAL && err != ENOSYS && err != EOPNOTSUPP)
            return tr_fail(TR_IO, "%s: exchange: %s", c->final, strerror(err));
        st = replace_bad(c);
        c->owns_dir = st != TR_OK;
    }
    c->is_renamed = st == TR_OK;
    return st;
}

static enum tr_status point_at(struct tr_commit *c)
{
    enum tr_status st = TR_OK;
    char text[64];
    bool had_old = c->owns_dir;
    c->owns_dir = false; /* an exchanged old checkpoint stays until the exchange is durable */
    TR_TRY(tr_failpoint("ckpt.after_rename"));
    TR_TRY(tr_fsync_dir(c->output_dir));
    c->owns_dir = had_old;
    TR_TRY(tr_failpoint("ckpt.before_pointer"));
    TR_TRY(tr_format(text, sizeof text, "%s\n", c->final_name));
    TR_TRY(tr_ckpt_io(tr_out_write(c->output_dir, TR_NAME_LATEST, text, strlen(text))));
    TR_TRY(tr_failpoint("ckpt.after_pointer"));
out:
    return st == TR_OK ? TR_OK : tr_fail_at(st, "%s is in place, but: ", c->final);
}

enum tr_status tr_commit_finish(struct tr_commit *c)
{
    TR_BUG_ON(c->is_renamed);
    TR_PASS(check_files(c));
    TR_PASS(write_manifest(c));
    TR_PASS(publish(c));
    return point_at(c);
}

void tr_commit_close(struct tr_commit *c)
{
    if (!c)
        return;
    if (c->owns_dir) {
        /* The caller's cause stays; a temp directory that will not go is swept at the next start. */
        char cause[1024];
        snprintf(cause, sizeof cause, "%s", tr_error_text());
        if (tr_out_remove(c->output_dir, c->dir_name) != TR_OK)
            tr_fail(TR_IO, "%s", cause);
    }
    for (size_t i = 0; i < c->n_files; i++)
        free((void *)(uintptr_t)c->files[i].name);
    free(c->files);
    free(c);
}
