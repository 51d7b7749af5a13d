/* bench_kernels.h - a meter for CPU kernels: threads, and memory for their operands. */
#ifndef TR_CLI_BENCH_KERNELS_H
#define TR_CLI_BENCH_KERNELS_H

#include "config/config.h"
#include "device/device.h"
#include "ops/ops.h"
#include "plan/plan.h"
#include <pthread.h>

/* A point's seconds are divided between passes over everything: so many, none shorter than this. */
enum { TR_METER_PASSES = 9 };
#define TR_METER_SHORTEST_S 0.003

struct tr_meter {
    struct tr_pool *pool;
    struct tr_device device;
    float *base, *floats; /* the device's; the pool whose turn it is */
    int n_threads, n_passes, n_pools, turn;
    size_t n_used, n_touched; /* of these floats, by views; by calls and their copies */
    double seconds;           /* of one point, all passes */
    pthread_barrier_t *gate;  /* of the cores that measure at once; NULL: this is the only one */
};

/* A pool is 64 MiB; more of them keep operands out of a cache that many cores share. */
enum tr_status tr_meter_open(const struct tr_config *cfg, int n_threads, int n_pools, struct tr_meter *m);
void tr_meter_close(struct tr_meter *m);
double tr_meter_now(void);                /* seconds */
double tr_meter_median(double *x, int n); /* sorts x */
/* One pass over all kernels. Of the head and of attention (long rows, then short ones) it leaves a call's seconds;
 * finish, after medians over passes, makes differences of them, which of single passes would be mostly noise. */
void tr_meter_speed(struct tr_meter *m, struct tr_speed *out);
void tr_meter_finish(struct tr_speed *s);
double tr_meter_memory_rate(struct tr_meter *m);
/* A view of memory not yet used; n calls, operands moving on as a step's do. */
struct tr_view tr_meter_view(struct tr_meter *m, int64_t rows, int64_t cols);
void tr_meter_run(struct tr_meter *m, struct tr_call *c, int n);

#endif
