/* kill_at.c - stands before libc in a process: byte TR_KILL_AT of all that is written to files whose path has
 * TR_KILL_IN in it is the last one; the process kills itself in the middle of that write. TR_KILL_COUNT is a file that
 * gets the number of such bytes when the process ends by itself. Built by read_back.py. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static atomic_llong n_written;

static int is_counted(int fd)
{
    char link[64], path[4096];
    const char *part = getenv("TR_KILL_IN");
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = part ? readlink(link, path, sizeof path - 1) : -1;
    if (n < 0)
        return 0;
    path[n] = 0;
    return strstr(path, part) != NULL;
}

/* How many bytes of a write are still made. *is_last: then it is over. */
static size_t allowed(int fd, size_t n, int *is_last)
{
    const char *text = getenv("TR_KILL_AT");
    *is_last = 0;
    if (!is_counted(fd))
        return n;
    long long before = atomic_fetch_add(&n_written, (long long)n), at = text ? atoll(text) : -1;
    if (at < 0 || before + (long long)n < at)
        return n;
    *is_last = 1;
    return at > before ? (size_t)(at - before) : 0;
}

static ssize_t finish(ssize_t got, int is_last)
{
    if (is_last)
        kill(getpid(), SIGKILL);
    return got;
}

ssize_t write(int fd, const void *p, size_t n)
{
    static ssize_t (*next)(int, const void *, size_t);
    int is_last;
    if (!next)
        *(void **)&next = dlsym(RTLD_NEXT, "write");
    ssize_t got = next(fd, p, allowed(fd, n, &is_last));
    return finish(got, is_last);
}

ssize_t pwrite64(int fd, const void *p, size_t n, off64_t at)
{
    static ssize_t (*next)(int, const void *, size_t, off64_t);
    int is_last;
    if (!next)
        *(void **)&next = dlsym(RTLD_NEXT, "pwrite64");
    ssize_t got = next(fd, p, allowed(fd, n, &is_last), at);
    return finish(got, is_last);
}

ssize_t pwrite(int fd, const void *p, size_t n, off_t at)
{
    return pwrite64(fd, p, n, at);
}

__attribute__((destructor)) static void report(void)
{
    FILE *f = getenv("TR_KILL_COUNT") ? fopen(getenv("TR_KILL_COUNT"), "w") : NULL;
    if (f) {
        fprintf(f, "%lld\n", (long long)n_written);
        fclose(f);
    }
}
