/* file.c - reading files, and moving bytes into open ones.
 *
 * Invariant: every loop survives EINTR and short transfers. Opening never blocks on a pipe and never hands out anything
 * but a regular file.
 */
#include "base/file.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/out.h"
#include "base/str.h"
#include "base/banned.h"

enum tr_status tr_file_fail(const char *verb, const char *path)
{
    int err = errno;
    bool is_named_wrong = err == ENOENT || err == ENOTDIR || err == EISDIR || err == EEXIST || err == ENAMETOOLONG ||
                          err == EACCES || err == EROFS;
    enum tr_status st = is_named_wrong ? TR_USAGE : TR_IO;
    return tr_fail(st, "cannot %s %s: %s", verb, path, strerror(err));
}

enum tr_status tr_path_join(char out[TR_PATH_MAX], const char *dir, const char *name)
{
    size_t n_dir = strlen(dir);
    const char *slash = n_dir == 0 || dir[n_dir - 1] == '/' ? "" : "/";
    enum tr_status st = tr_format(out, TR_PATH_MAX, "%s%s%s", dir, slash, name);
    return st == TR_OK ? TR_OK : tr_fail_at(st, "path of %.40s... in %.40s...: ", name, dir);
}

enum tr_status tr_path_split(const char *path, char dir[TR_PATH_MAX], const char **last)
{
    const char *slash = strrchr(path, '/');
    int n = slash == NULL ? 0 : slash == path ? 1 : (int)(slash - path);
    *last = slash ? slash + 1 : path;
    return tr_format(dir, TR_PATH_MAX, "%.*s", n ? n : 1, n ? path : ".");
}

bool tr_name_is_plain(const char *name)
{
    size_t n = strlen(name);
    if (n == 0 || n > 255 || strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
        return false;
    for (size_t i = 0; i < n; i++)
        if (name[i] == '/' || (unsigned char)name[i] < 0x20 || name[i] == 0x7f)
            return false;
    return true;
}

bool tr_file_exists(const char *path)
{
    struct stat s;
    return stat(path, &s) == 0 && S_ISREG(s.st_mode);
}

bool tr_dir_exists(const char *path)
{
    struct stat s;
    return stat(path, &s) == 0 && S_ISDIR(s.st_mode);
}

bool tr_dir_has_other(const char *dir, const char *const *names, char other[256])
{
    bool is_found = false;
    DIR *d = opendir(dir);
    for (const struct dirent *e; d && !is_found && (e = readdir(d));) {
        size_t i = 0;
        while (names[i] && strcmp(names[i], e->d_name) != 0)
            i++;
        is_found = !names[i] && strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
        (void)snprintf(other, 256, "%s", e->d_name);
    }
    if (d)
        closedir(d);
    return is_found;
}

bool tr_dir_has(const char *dir, const char *name)
{
    char path[TR_PATH_MAX];
    return dir && tr_path_join(path, dir, name) == TR_OK && tr_file_exists(path);
}

enum tr_status tr_file_open_read(const char *path, int *fd, uint64_t *n_bytes)
{
    int f = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe must not hang us */
    if (f < 0)
        return tr_file_fail("open", path);
    struct stat s;
    enum tr_status st = TR_OK;
    if (fstat(f, &s) != 0)
        st = tr_file_fail("stat", path);
    else if (!S_ISREG(s.st_mode))
        st = tr_fail(TR_USAGE, "%s is not a regular file", path);
    if (st != TR_OK) {
        close(f);
        return st;
    }
    *fd = f;
    *n_bytes = (uint64_t)s.st_size;
    return TR_OK;
}

enum tr_status tr_pread_all(int fd, const char *what, void *buf, size_t n, uint64_t at)
{
    if (at > INT64_MAX || n > INT64_MAX - at)
        return tr_fail(TR_USAGE, "%s: offset %" PRIu64 " is beyond any file", what, at);
    for (size_t done = 0; done < n;) {
        ssize_t got = pread(fd, (char *)buf + done, n - done, (off_t)(at + done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return tr_file_fail("read", what);
        if (got == 0)
            return tr_fail(TR_IO, "%s: ends at byte %" PRIu64 ", wanted %zu bytes from %" PRIu64, what, at + done, n,
                           at);
        done += (size_t)got;
    }
    return TR_OK;
}

bool tr_file_direct(int fd, bool is_on)
{
    int flags = fcntl(fd, F_GETFL);
    return flags >= 0 && fcntl(fd, F_SETFL, is_on ? flags | O_DIRECT : flags & ~O_DIRECT) == 0;
}

enum tr_status tr_write_all(int fd, const char *what, const void *buf, size_t n)
{
    for (size_t done = 0; done < n;) {
        ssize_t put = write(fd, (const char *)buf + done, n - done);
        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            return tr_file_fail("write", what);
        done += (size_t)put;
    }
    return TR_OK;
}

/* To the end and not to the size that stat gave: files of /proc say 0, and logs grow. */
static enum tr_status read_to_end(int fd, const char *path, size_t max_bytes, char **buf, size_t *n_cap, size_t *n)
{
    for (;;) {
        ssize_t got = read(fd, *buf + *n, *n_cap - 1 - *n);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return tr_file_fail("read", path);
        if (got == 0)
            return TR_OK;
        *n += (size_t)got;
        if (*n > max_bytes)
            return tr_fail(TR_USAGE, "%s grew beyond the limit of %zu bytes", path, max_bytes);
        if (*n + 1 < *n_cap)
            continue;
        char *bigger = realloc(*buf, *n_cap * 2);
        if (!bigger)
            return tr_fail(TR_NOMEM, "no memory for %zu bytes of %s", *n_cap * 2, path);
        *buf = bigger;
        *n_cap *= 2;
    }
}

enum tr_status tr_file_read(const char *path, size_t max_bytes, char **out, size_t *out_n)
{
    enum tr_status st = TR_OK;
    char *buf = NULL;
    int fd = -1;
    uint64_t n_stat = 0;
    size_t n = 0;
    TR_TRY(tr_file_open_read(path, &fd, &n_stat));
    if (n_stat > max_bytes || n_stat > SIZE_MAX / 4) {
        st = tr_fail(TR_USAGE, "%s has %" PRIu64 " bytes; the limit is %zu", path, n_stat, max_bytes);
        goto out;
    }
    size_t n_cap = (size_t)n_stat + 2; /* one to notice growth, one for the terminator */
    buf = malloc(n_cap);
    if (!buf) {
        st = tr_fail(TR_NOMEM, "no memory for %zu bytes of %s", n_cap, path);
        goto out;
    }
    TR_TRY(read_to_end(fd, path, max_bytes, &buf, &n_cap, &n));
    buf[n] = 0;
    *out = buf;
    *out_n = n;
    buf = NULL;
out:
    free(buf);
    if (fd >= 0)
        close(fd);
    return st;
}

void tr_self_dir(char out[TR_PATH_MAX])
{
    ssize_t n = readlink("/proc/self/exe", out, TR_PATH_MAX - 1);
    out[n > 0 ? n : 0] = 0;
    char *slash = strrchr(out, '/');
    if (slash)
        *slash = 0;
}

enum tr_status tr_user_cache(char out[TR_PATH_MAX])
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    enum tr_status st = TR_OK;
    if (cache && cache[0] == '/')
        st = tr_format(out, TR_PATH_MAX, "%s/trireme", cache);
    else if (home && home[0] == '/')
        st = tr_format(out, TR_PATH_MAX, "%s/.cache/trireme", home);
    else
        st = tr_fail(TR_USAGE, "neither HOME nor XDG_CACHE_HOME names a directory for caches");
    return st == TR_OK ? tr_mkdirs(out) : st;
}
