/* clock.c - two clocks: a monotonic one for decisions, wall time for people. */
#include "base/misc.h"
#include <time.h>
#include "base/banned.h"

int64_t tr_clock_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

double tr_clock_wall(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}
