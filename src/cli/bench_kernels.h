/* bench_kernels.h - a meter for CPU kernels: threads, and memory for their operands. */
#ifndef TR_CLI_BENCH_KERNELS_H
#define TR_CLI_BENCH_KERNELS_H

#include "config/config.h"
#include "ops/ops.h"
#include "plan/plan.h"
#include <pthread.h>

enum { TR_METER_PASSES = 5 }; /* a point's seconds are divided between so many */

struct tr_meter {
    struct tr_pool *pool;
    float *floats;
    size_t n_used, n_touched; /* of these floats, by views; by calls and their copies */
    double seconds;           /* of one point, all passes */
    pthread_barrier_t *gate;  /* of the cores that measure at once; NULL: this is the only one */
};

enum tr_status tr_meter_open(const struct tr_config *cfg, int n_threads, struct tr_meter *m);
void tr_meter_close(struct tr_meter *m);
double tr_meter_now(void);                                     /* seconds */
double tr_meter_median(double *x, int n);                      /* sorts x */
void tr_meter_speed(struct tr_meter *m, struct tr_speed *out); /* one pass over all kernels */
double tr_meter_memory_rate(struct tr_meter *m);
/* A view of memory not yet used; n calls, operands moving on as a step's do. */
struct tr_view tr_meter_view(struct tr_meter *m, int64_t rows, int64_t cols);
void tr_meter_run(struct tr_meter *m, struct tr_call *c, int n);

#endif
