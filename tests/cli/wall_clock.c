/* wall_clock.c - preloaded: the wall clock has just been set back by an hour after the program has looked at it. */
#define _GNU_SOURCE
#include <time.h>
#include <sys/syscall.h>
#include <unistd.h>

int clock_gettime(clockid_t id, struct timespec *t)
{
    int rc = (int)syscall(SYS_clock_gettime, id, t);
    if (rc == 0 && id == CLOCK_REALTIME)
        t->tv_sec += 3600;
    return rc;
}
