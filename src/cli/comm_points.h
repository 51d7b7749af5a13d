/* comm_points.h - how a collective is timed, the same for `trireme bench comm` and for its peers (bench/peer_comm.c,
 * which is why this file needs nothing else of Trireme): float32 sums, all-reduce in place, all-gather both ways.
 *
 * A point is (kind, bytes of the whole). Some runs to warm up, then rounds: barrier, then n times: the rank writes its
 * input (as a backward pass would: it is new in this core's cache and in nobody else's), and runs the collective. Timed
 * are the collectives alone, the sum of the slowest rank divided by n: median, low and high over the rounds.
 */
#ifndef TR_CLI_COMM_POINTS_H
#define TR_CLI_COMM_POINTS_H

#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum points_kind { POINT_ALL_REDUCE, POINT_ALL_GATHER, POINT_ALL_GATHER_IN_PLACE, POINT_REDUCE_SCATTER, POINT_KINDS };
enum { POINT_ROUNDS_MAX = 25, POINT_BYTES_MAX = 256 << 20 };

struct point {
    const char *kind;
    size_t bytes;
    double median_s, low_s, high_s;
    int n_rounds;
};

struct points {
    const char *engine;
    int rank, size;
    double (*max)(void *ctx, double x); /* over the ranks; is a barrier too */
    void (*run)(void *ctx, enum points_kind kind, float *in, float *out, size_t count);
    void *ctx;
    float *in, *out;                                            /* bytes_max each */
    void (*say)(const struct points *p, const struct point *x); /* at rank 0 */
};

static double points_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int points_order(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double points_round(const struct points *p, enum points_kind kind, size_t count, int n)
{
    double sum = 0;
    size_t part = count / (size_t)p->size;
    bool is_gather = kind == POINT_ALL_GATHER || kind == POINT_ALL_GATHER_IN_PLACE;
    size_t n_in = is_gather ? part : count;
    float *in = kind == POINT_ALL_GATHER_IN_PLACE ? p->out + (size_t)p->rank * part : p->in;
    p->max(p->ctx, 0);
    for (int i = 0; i < n; i++) {
        for (size_t j = 0; j < n_in; j++)
            in[j] = 1.0f;
        double start = points_now();
        p->run(p->ctx, kind, in, kind == POINT_ALL_REDUCE ? p->in : p->out, count);
        sum += points_now() - start;
    }
    return p->max(p->ctx, sum) / n;
}

static void points_one(const struct points *p, enum points_kind kind, size_t bytes, double budget_s)
{
    static const char *const names[] = { "all_reduce", "all_gather", "all_gather_in_place", "reduce_scatter" };
    double times[POINT_ROUNDS_MAX];
    size_t count = bytes / sizeof(float);
    (void)points_round(p, kind, count, 1);
    double first = points_round(p, kind, count, bytes < 1 << 20 ? 50 : 1);
    double each = budget_s / POINT_ROUNDS_MAX;
    int n = first > each ? 1 : (int)(each / first) + 1;
    int n_rounds = (int)(budget_s / (first * n));
    n_rounds = n_rounds < 3 ? 3 : n_rounds > POINT_ROUNDS_MAX ? POINT_ROUNDS_MAX : n_rounds;
    for (int i = 0; i < n_rounds; i++)
        times[i] = points_round(p, kind, count, n);
    qsort(times, (size_t)n_rounds, sizeof times[0], points_order);
    struct point x = { names[kind], bytes, times[n_rounds / 2], times[0], times[n_rounds - 1], n_rounds };
    if (p->rank == 0)
        p->say(p, &x);
}

static void points_json(const struct points *p, const struct point *x)
{
    printf("{\"bench\":\"comm\",\"engine\":\"%s\",\"kind\":\"%s\",\"ranks\":%d,\"bytes\":%zu,\"median_us\":%.2f,"
           "\"low_us\":%.2f,\"high_us\":%.2f,\"gb_per_s\":%.3f,\"rounds\":%d}\n",
           p->engine, x->kind, p->size, x->bytes, x->median_s * 1e6, x->low_s * 1e6, x->high_s * 1e6,
           (double)x->bytes / x->median_s * 1e-9, x->n_rounds);
    fflush(stdout);
}

/* Rank r on core r: the question is the speed of the engine, not where the scheduler puts its ranks. */
static void points_pin(int rank)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)rank % (size_t)sysconf(_SC_NPROCESSORS_ONLN), &set);
    (void)sched_setaffinity(0, sizeof set, &set);
}

static void points_all(const struct points *p, size_t bytes_max, double budget_s)
{
    static const size_t sizes[] = { 1 << 10, 4 << 10,  16 << 10, 64 << 10, 256 << 10,
                                    1 << 20, 16 << 20, 64 << 20, 256 << 20 };
    points_pin(p->rank);
    for (size_t i = 0; i < bytes_max / sizeof(float); i++)
        p->in[i] = p->out[i] = 0;
    for (int kind = 0; kind < POINT_KINDS; kind++)
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0] && sizes[i] <= bytes_max; i++)
            points_one(p, (enum points_kind)kind, sizes[i], budget_s);
}

#endif
