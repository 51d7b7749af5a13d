/* out.c - files beneath a directory.
 *
 * Invariants: a name is walked part by part with O_NOFOLLOW, from the descriptor of the directory before, so that a
 * link that is planted at any time leads nowhere. A function that fails removes the file it began and leaves the old
 * content of its target alone. Rejected: openat2 with RESOLVE_NO_SYMLINKS, which does the same in one call but is
 * missing in old kernels and refused by some sandboxes, so that the walk would be needed beside it; a list of output
 * directories in a global, which a path that was built elsewhere would slip past.
 */
#include "base/out.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/file.h"
#include "base/misc.h"
#include "base/str.h"
#include "base/banned.h"

enum { OPEN_DIR = O_RDONLY | O_DIRECTORY | O_CLOEXEC, NEW_FILE = O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC };

/* The directory that holds the last part of a name. */
struct out_place {
    int fd;
    const char *last;
    size_t n_seen; /* bytes of the name that were walked: the part that failed is their last one */
    bool is_odd;   /* the name, or a part of it, is none */
};

static bool is_link(int dir_fd, const char *part)
{
    struct stat s;
    return fstatat(dir_fd, part, &s, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(s.st_mode);
}

/* Enters one directory and leaves the one before; -1 with errno, which is ELOOP for a link. */
static int step_into(int dir_fd, const char *part, bool makes)
{
    bool is_made = makes && mkdirat(dir_fd, part, 0777) == 0;
    int fd = -1, err = is_made || !makes || errno == EEXIST ? 0 : errno;
    if (!err) {
        fd = openat(dir_fd, part, OPEN_DIR | O_NOFOLLOW);
        err = fd < 0 ? errno : 0;
    }
    if ((err == ENOTDIR || err == ELOOP) && is_link(dir_fd, part))
        err = ELOOP;
    close(dir_fd);
    errno = err;
    return fd;
}

/* makes: directories on the way. Only calls that are safe in a signal handler. */
static bool enter(const char *dir, const char *name, bool makes, struct out_place *p)
{
    *p = (struct out_place){ .fd = open(dir[0] ? dir : ".", OPEN_DIR), .last = name };
    for (const char *slash; p->fd >= 0 && (slash = strchr(p->last, '/')) != NULL; p->last = slash + 1) {
        char part[256];
        size_t n = (size_t)(slash - p->last);
        p->n_seen = (size_t)(slash - name);
        if (n < sizeof part) {
            memcpy(part, p->last, n);
            part[n] = 0;
        }
        p->is_odd = n >= sizeof part || !tr_name_is_plain(part);
        if (p->is_odd)
            break;
        p->fd = step_into(p->fd, part, makes);
    }
    if (p->fd < 0)
        return false;
    p->n_seen = strlen(name);
    p->is_odd = p->is_odd || !tr_name_is_plain(p->last);
    if (p->is_odd) /* a user may have chosen it */
        close(p->fd);
    p->fd = p->is_odd ? -1 : p->fd;
    errno = p->is_odd ? EINVAL : errno;
    return !p->is_odd;
}

static void leave(struct out_place *p)
{
    int err = errno;
    if (p->fd >= 0)
        close(p->fd);
    p->fd = -1;
    errno = err;
}

/* One sentence for a failed call. */
static enum tr_status fail_at(const char *verb, const char *dir, const char *name, const struct out_place *p)
{
    int err = errno, n = (int)p->n_seen;
    const char *slash = n ? "/" : "";
    if (err == ELOOP && n)
        return tr_fail(TR_USAGE,
                       "%s/%.*s is a link, and links beneath an output directory are not followed; move what it leads "
                       "to here, or remove the link",
                       dir, n, name);
    char path[TR_PATH_MAX], shown[300];
    if (p->is_odd)
        return tr_fail(TR_USAGE,
                       "\"%s\" is no name for a file in %s: it has 1 to 255 bytes, none of them a control byte",
                       tr_escape(name, shown, sizeof shown), dir);
    (void)snprintf(path, sizeof path, "%s%s%.*s", dir, slash, n, name);
    errno = err;
    return tr_file_fail(verb, path);
}

enum tr_status tr_out_beneath(const char *own_dir, const char *name, struct tr_out_at *out)
{
    const char *own;
    TR_PASS(tr_path_split(own_dir, out->dir, &own));
    if (tr_name_is_plain(own))
        return tr_path_join(out->name, own, name);
    TR_PASS(tr_format(out->dir, sizeof out->dir, "%s", own_dir));
    return tr_format(out->name, sizeof out->name, "%s", name);
}

/* An old file that is written on: no pipe, no device, and no second name. */
static enum tr_status check_file(int fd, const char *dir, const char *name)
{
    struct stat s;
    if (fstat(fd, &s) != 0)
        return tr_fail(TR_IO, "%s/%s: %s", dir, name, strerror(errno));
    if (!S_ISREG(s.st_mode))
        return tr_fail(TR_USAGE, "%s/%s exists and is not a regular file; move it away", dir, name);
    if (s.st_nlink > 1)
        return tr_fail(TR_USAGE,
                       "%s/%s has a second name (a hard link), whose file would change too; put a copy in its place",
                       dir, name);
    return TR_OK;
}

enum tr_status tr_out_open(const char *dir, const char *name, enum tr_out how, int *fd)
{
    static const struct {
        int flags;
        mode_t mode;
    } rows[] = {
        [TR_OUT_NEW] = { O_WRONLY | NEW_FILE, 0666 },
        [TR_OUT_SECRET] = { O_WRONLY | NEW_FILE, 0600 },
        [TR_OUT_APPEND] = { O_RDWR | O_APPEND | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666 },
        [TR_OUT_SHARE] = { O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666 },
    };
    struct out_place p;
    int f = enter(dir, name, false, &p) ? openat(p.fd, p.last, rows[how].flags, rows[how].mode) : -1;
    if (f < 0) {
        leave(&p);
        return fail_at("create", dir, name, &p);
    }
    leave(&p);
    enum tr_status st = check_file(f, dir, name);
    if (st != TR_OK) {
        close(f);
        return st;
    }
    *fd = f;
    return TR_OK;
}

int tr_out_signal_open(const char *dir, const char *name)
{
    struct out_place p;
    int fd = -1;
    if (enter(dir, name, true, &p) && (unlinkat(p.fd, p.last, 0) == 0 || errno == ENOENT))
        fd = openat(p.fd, p.last, O_WRONLY | NEW_FILE, 0666);
    leave(&p);
    return fd;
}

enum tr_status tr_out_mkdir(const char *dir, const char *name)
{
    struct out_place p;
    enum tr_status st = TR_OK;
    if (!enter(dir, name, true, &p) || (p.fd = step_into(p.fd, p.last, true)) < 0)
        st = fail_at("make directory", dir, name, &p);
    leave(&p);
    return st;
}

enum tr_status tr_out_check(const char *dir, const char *name)
{
    struct out_place p;
    bool is_there = enter(dir, name, false, &p);
    int err = is_there && is_link(p.fd, p.last) ? ELOOP : is_there ? 0 : errno;
    leave(&p);
    errno = err;
    return err == ELOOP || p.is_odd ? fail_at("use", dir, name, &p) : TR_OK;
}

/* ---- removing ---- */

static int remove_at(int dir_fd, const char *name);

/* Empties the directory behind fd, which it closes; 0 or -1 with errno. */
static int empty_dir(int fd)
{
    DIR *d = fdopendir(fd);
    if (!d) {
        close(fd);
        return -1;
    }
    int rc = 0;
    const struct dirent *e;
    while (rc == 0 && (errno = 0, e = readdir(d)) != NULL)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            rc = remove_at(dirfd(d), e->d_name);
    if (rc == 0 && errno)
        rc = -1;
    int err = errno;
    closedir(d);
    errno = err;
    return rc;
}

static int remove_at(int dir_fd, const char *name)
{
    struct stat s;
    if (unlinkat(dir_fd, name, 0) == 0 || errno == ENOENT)
        return 0;
    if (errno == EROFS && fstatat(dir_fd, name, &s, AT_SYMLINK_NOFOLLOW) != 0 && errno == ENOENT)
        return 0; /* the call that makes it says what is wrong */
    if (errno != EISDIR && errno != EPERM)
        return -1;
    int fd = openat(dir_fd, name, OPEN_DIR | O_NOFOLLOW);
    if (fd < 0 || empty_dir(fd) != 0)
        return -1;
    return unlinkat(dir_fd, name, AT_REMOVEDIR);
}

enum tr_status tr_out_remove(const char *dir, const char *name)
{
    struct out_place p;
    enum tr_status st = TR_OK;
    if (enter(dir, name, false, &p) ? remove_at(p.fd, p.last) != 0 : errno != ENOENT)
        st = fail_at("remove", dir, name, &p);
    leave(&p);
    return st;
}

int tr_out_unlink(const char *dir, const char *name)
{
    struct out_place p;
    int err = enter(dir, name, false, &p) && unlinkat(p.fd, p.last, 0) == 0 ? 0 : errno;
    leave(&p);
    return err;
}

enum tr_status tr_remove_tree(const char *path)
{
    return remove_at(AT_FDCWD, path) == 0 ? TR_OK : tr_file_fail("remove", path);
}

/* ---- names ---- */

int tr_out_move(const char *dir, const char *from, const char *to, enum tr_out_move how)
{
    struct out_place a, b = { .fd = -1 };
    struct stat s;
    int err = 0;
    if (!enter(dir, from, false, &a) || !enter(dir, to, false, &b))
        err = errno;
    else if (how == TR_OUT_LINK)
        err = linkat(a.fd, a.last, b.fd, b.last, 0) == 0 ? 0 : errno;
    else if (how == TR_OUT_EXCHANGE)
        err = renameat2(a.fd, a.last, b.fd, b.last, RENAME_EXCHANGE) == 0 ? 0 : errno;
    else if (fstatat(b.fd, b.last, &s, AT_SYMLINK_NOFOLLOW) == 0 && !S_ISREG(s.st_mode) && !S_ISLNK(s.st_mode) &&
             !S_ISDIR(s.st_mode))
        err = EEXIST; /* a device, which a user may have named */
    else
        err = renameat(a.fd, a.last, b.fd, b.last) == 0 ? 0 : errno;
    leave(&a);
    leave(&b);
    return err;
}

enum tr_status tr_fsync_dir(const char *path)
{
    int fd = open(path, OPEN_DIR);
    if (fd < 0)
        return tr_file_fail("open directory", path);
    enum tr_status st = TR_OK;
    if (fsync(fd) != 0 && errno != EINVAL && errno != ENOTSUP) /* some network file systems cannot, and need not */
        st = tr_file_fail("sync directory", path);
    close(fd);
    return st;
}

static enum tr_status fsync_parent(const char *path)
{
    char dir[TR_PATH_MAX];
    const char *last;
    enum tr_status st = tr_path_split(path, dir, &last);
    return st != TR_OK ? st : tr_fsync_dir(dir);
}

enum tr_status tr_mkdirs(const char *path)
{
    char dir[TR_PATH_MAX];
    if (!path[0])
        return tr_fail(TR_USAGE, "a directory needs a name");
    TR_PASS(tr_format(dir, sizeof dir, "%s", path));
    for (size_t i = 1;; i++) {
        if (path[i] != '/' && path[i] != 0)
            continue;
        dir[i] = 0;
        int err = mkdir(dir, 0777) == 0 ? 0 : errno;
        if (err && !tr_dir_exists(dir)) {
            errno = err;
            return tr_file_fail("make directory", dir);
        }
        if (!err)
            TR_PASS(fsync_parent(dir));
        if (path[i] == 0)
            break;
        dir[i] = '/';
    }
    return TR_OK;
}

enum tr_status tr_out_mkdirs(const char *path)
{
    char dir[TR_PATH_MAX];
    const char *last;
    TR_PASS(tr_path_split(path, dir, &last));
    TR_PASS(tr_mkdirs(dir));
    return tr_name_is_plain(last) ? tr_out_mkdir(dir, last) : tr_mkdirs(path);
}

/* ---- whole files ---- */

/* Syncs and closes fd in any case; `path` is for the message. */
static enum tr_status sync_close(int fd, const char *path, bool is_lazy)
{
    enum tr_status st = TR_OK;
    if (!is_lazy && fsync(fd) != 0)
        st = tr_file_fail("sync", path);
    if (close(fd) != 0 && st == TR_OK && errno != EINTR) /* after EINTR the descriptor is gone, the data is safe */
        st = tr_file_fail("close", path);
    return st;
}

/* `path` is for messages. */
static enum tr_status replace(const struct out_place *p, const char *temp, const char *path, const void *buf, size_t n,
                              bool is_lazy)
{
    enum tr_status st = TR_OK;
    struct stat s;
    if (fstatat(p->fd, p->last, &s, AT_SYMLINK_NOFOLLOW) == 0 && !S_ISREG(s.st_mode) && !S_ISLNK(s.st_mode))
        return tr_fail(TR_USAGE, "%s exists and is not a regular file", path);
    (void)unlinkat(p->fd, temp, 0); /* left by an earlier process of this number */
    int fd = openat(p->fd, temp, O_WRONLY | NEW_FILE, 0666);
    if (fd < 0)
        return tr_file_fail("create", path);
    TR_TRY(tr_write_all(fd, path, buf, n));
    TR_TRY(tr_failpoint("file.before_fsync"));
    st = sync_close(fd, path, is_lazy);
    fd = -1;
    TR_TRY(st);
    TR_TRY(tr_failpoint("file.after_fsync"));
    if (renameat(p->fd, temp, p->fd, p->last) != 0)
        TR_TRY(tr_file_fail("rename to", path));
    TR_TRY(tr_failpoint("file.after_rename"));
    if (!is_lazy && fsync(p->fd) != 0 && errno != EINVAL && errno != ENOTSUP)
        TR_TRY(tr_file_fail("sync the directory of", path));
out:
    if (fd >= 0)
        close(fd);
    if (st != TR_OK)
        (void)unlinkat(p->fd, temp, 0); /* gone already after the rename */
    return st;
}

static enum tr_status write_whole(const char *dir, const char *name, const void *buf, size_t n, bool is_lazy)
{
    enum tr_status st = TR_OK;
    struct out_place p;
    char temp[256], path[TR_PATH_MAX];
    if (!enter(dir, name, false, &p))
        return fail_at("create", dir, name, &p);
    TR_TRY(tr_path_join(path, dir, name));
    TR_TRY(tr_format(temp, sizeof temp, "%s.tmp-%d", p.last, (int)getpid()));
    TR_TRY(replace(&p, temp, path, buf, n, is_lazy));
out:
    leave(&p);
    return st;
}

enum tr_status tr_out_write(const char *dir, const char *name, const void *buf, size_t n)
{
    return write_whole(dir, name, buf, n, false);
}

enum tr_status tr_out_write_lazily(const char *dir, const char *name, const void *buf, size_t n)
{
    return write_whole(dir, name, buf, n, true);
}

enum tr_status tr_file_write_atomic(const char *path, const void *buf, size_t n)
{
    char dir[TR_PATH_MAX];
    const char *last;
    enum tr_status st = tr_path_split(path, dir, &last);
    if (st == TR_OK && !tr_name_is_plain(last))
        st = tr_fail(TR_USAGE, "%s: is no name of a file", path);
    return st == TR_OK ? tr_out_write(dir, last, buf, n) : st;
}
