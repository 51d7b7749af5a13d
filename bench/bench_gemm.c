/* bench_gemm.c - speed of the matrix product on the shapes of a GPT-2 124M step, beside the FMA peak of the machine.
 *
 * usage: bench_gemm [n_threads ...]   (default: 1 2)
 * One JSON line a shape and thread count: GFLOP/s by the wall clock (low, median, best) of each engine that loads, and
 * the best's part of the peak that a register-only FMA loop reached in the same seconds. Engines take turns, so that a
 * busy machine slows all alike; cpu_of_peak compares medians by the CPU time used (x threads), which other processes
 * hardly disturb, but which does not see a thread asleep.
 */
#include "ops/cpu/gemm_impl.h"
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include "base/banned.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { N_REPS_MIN = 3, N_REPS_MAX = 60, SHAPE_US = 350000, PEAK_STEPS = 400000, N_CHAINS = 16 };

struct shape {
    const char *name;
    int64_t m, n, k;
    bool a_t, b_t, is_serial;
    enum tr_dtype dtype;
};

static const struct shape shapes[] = {
    { "qkv NT", 1024, 2304, 768, false, true, false, TR_F32 },
    { "proj NT", 1024, 768, 768, false, true, false, TR_F32 },
    { "fc1 NT", 1024, 3072, 768, false, true, false, TR_F32 },
    { "fc2 NT", 1024, 768, 3072, false, true, false, TR_F32 },
    { "qkv dX NN", 1024, 768, 2304, false, false, false, TR_F32 },
    { "proj dX NN", 1024, 768, 768, false, false, false, TR_F32 },
    { "fc1 dX NN", 1024, 768, 3072, false, false, false, TR_F32 },
    { "fc2 dX NN", 1024, 3072, 768, false, false, false, TR_F32 },
    { "qkv dW TN", 2304, 768, 1024, true, false, false, TR_F32 },
    { "proj dW TN", 768, 768, 1024, true, false, false, TR_F32 },
    { "fc1 dW TN", 3072, 768, 1024, true, false, false, TR_F32 },
    { "fc2 dW TN", 768, 3072, 1024, true, false, false, TR_F32 },
    { "head NT 128", 128, 50257, 768, false, true, false, TR_F32 },
    { "head NT 1024", 1024, 50257, 768, false, true, false, TR_F32 },
    { "head dX NN 128", 128, 768, 50257, false, false, false, TR_F32 },
    { "head dX NN", 1024, 768, 50257, false, false, false, TR_F32 },
    { "head dW TN 128", 50257, 768, 128, true, false, false, TR_F32 },
    { "head dW TN", 50257, 768, 1024, true, false, false, TR_F32 },
    { "lora A NT", 1024, 16, 768, false, true, false, TR_F32 },
    { "lora B NT", 1024, 3072, 16, false, true, false, TR_F32 },
    { "lora dA TN", 16, 768, 1024, true, false, false, TR_F32 },
    { "lora dB TN", 3072, 16, 1024, true, false, false, TR_F32 },
    { "attn QK NT", 64, 256, 64, false, true, true, TR_F32 },
    { "attn PV NN", 64, 64, 256, false, false, true, TR_F32 },
    { "attn dV TN", 256, 64, 64, true, false, true, TR_F32 },
    { "qkv NT bf16", 1024, 2304, 768, false, true, false, TR_BF16 },
    { "fc2 dX NN bf16", 1024, 3072, 768, false, false, false, TR_BF16 },
    { "fc1 dW TN bf16", 3072, 768, 1024, true, false, false, TR_BF16 },
};

#if defined(__x86_64__)
TR_TARGET("avx512f") static void fma_loop_avx512(float *out)
{
    __m512 acc[N_CHAINS], x = _mm512_set1_ps(0.999f), y = _mm512_set1_ps(1e-3f);
    TR_UNROLL
    for (int i = 0; i < N_CHAINS; i++)
        acc[i] = _mm512_set1_ps((float)i);
    for (int step = 0; step < PEAK_STEPS; step++) {
        TR_UNROLL
        for (int i = 0; i < N_CHAINS; i++)
            acc[i] = _mm512_fmadd_ps(acc[i], x, y);
    }
    TR_UNROLL
    for (int i = 1; i < N_CHAINS; i++)
        acc[0] = _mm512_add_ps(acc[0], acc[i]);
    *out = _mm512_cvtss_f32(acc[0]);
}

TR_TARGET("avx2,fma") static void fma_loop_avx2(float *out)
{
    __m256 acc[12], x = _mm256_set1_ps(0.999f), y = _mm256_set1_ps(1e-3f);
    TR_UNROLL
    for (int i = 0; i < 12; i++)
        acc[i] = _mm256_set1_ps((float)i);
    for (int step = 0; step < PEAK_STEPS; step++) {
        TR_UNROLL
        for (int i = 0; i < 12; i++)
            acc[i] = _mm256_fmadd_ps(acc[i], x, y);
    }
    TR_UNROLL
    for (int i = 1; i < 12; i++)
        acc[0] = _mm256_add_ps(acc[0], acc[i]);
    *out = _mm256_cvtss_f32(acc[0]);
}
#endif

/* Runs the loop of this CPU's widest vectors; returns its flops, 0 when there is none. */
static double fma_loop(float *out)
{
    const struct tr_gemm_isa *isa[3];
    tr_gemm_isas(isa);
#if defined(__x86_64__)
    if (isa[0] == &tr_gemm_avx512) {
        fma_loop_avx512(out);
        return 2.0 * 16 * N_CHAINS * PEAK_STEPS;
    }
    if (isa[0] == &tr_gemm_avx2) {
        fma_loop_avx2(out);
        return 2.0 * 8 * 12 * PEAK_STEPS;
    }
#endif
    *out = 0;
    return 0;
}

static void peak_task(void *ctx, int64_t task, int worker)
{
    (void)worker;
    float *sink = ctx;
    fma_loop(&sink[task * 16]);
}

struct stopwatch {
    int64_t wall_us;
    struct timespec cpu;
};

static struct stopwatch start(void)
{
    struct stopwatch w;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &w.cpu);
    w.wall_us = tr_clock_us();
    return w;
}

struct rates {
    double wall[N_REPS_MAX], cpu[N_REPS_MAX]; /* GFLOP/s; cpu: as if every thread had a core to itself */
    int n;
};

static void stop(struct stopwatch w, double flops, int n_threads, struct rates *r)
{
    if (r->n == N_REPS_MAX)
        return;
    int64_t wall_us = tr_clock_us() - w.wall_us;
    struct timespec cpu;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu);
    double cpu_s = (double)(cpu.tv_sec - w.cpu.tv_sec) + 1e-9 * (double)(cpu.tv_nsec - w.cpu.tv_nsec);
    r->wall[r->n] = flops * 1e-3 / (double)tr_max64(wall_us, 1);
    r->cpu[r->n++] = flops * 1e-9 * n_threads / (cpu_s > 0 ? cpu_s : 1e-9);
}

/* One short sample of all threads of the pool together. */
static void peak_sample(struct tr_pool *pool, struct rates *r)
{
    static float sink[1024 * 16];
    int n = tr_pool_threads(pool);
    double flops = fma_loop(&sink[0]) * n;
    struct stopwatch w = start();
    tr_pool_run(pool, n, peak_task, sink);
    stop(w, flops, n, r);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void sort(struct rates *r)
{
    qsort(r->wall, (size_t)r->n, sizeof r->wall[0], by_value);
    qsort(r->cpu, (size_t)r->n, sizeof r->cpu[0], by_value);
}

static void sample(const struct tr_gemm *g, bool is_serial, struct tr_pool *pool, void *scratch, struct rates *r)
{
    double flops = 2.0 * (double)g->m * (double)g->n * (double)g->k;
    int64_t n_calls = tr_max64(1, (int64_t)(2e8 / flops)); /* a millisecond or more a sample */
    struct stopwatch w = start();
    for (int64_t i = 0; i < n_calls; i++) {
        if (is_serial && !tr_gemm_external(g, 1))
            tr_gemm_serial(g, scratch);
        else if (!is_serial)
            tr_gemm(g, pool, scratch);
    }
    stop(w, flops * (double)n_calls, is_serial ? 1 : tr_pool_threads(pool), r);
}

static void *filled(size_t n, enum tr_dtype dtype)
{
    size_t bytes = tr_round_up(n * tr_dtype_bytes(dtype), 64);
    char *p = aligned_alloc(64, bytes);
    if (!p)
        abort();
    for (size_t i = 0; i < n; i++) {
        float f = (float)(i % 1021) * 0.001f - 0.5f;
        if (dtype == TR_BF16)
            ((uint16_t *)(void *)p)[i] = tr_bf16_of_f32(f);
        else
            ((float *)(void *)p)[i] = f;
    }
    return p;
}

static void report(const struct shape *s, int n_threads, const struct rates *peak, const struct rates *rate)
{
    printf("{\"shape\":\"%s\",\"m\":%" PRId64 ",\"n\":%" PRId64 ",\"k\":%" PRId64 ",\"dtype\":\"%s\",\"threads\":%d,"
           "\"peak\":%.1f,\"peak_median\":%.1f",
           s->name, s->m, s->n, s->k, tr_dtype_name(s->dtype), n_threads, peak->wall[peak->n - 1],
           peak->wall[peak->n / 2]);
    for (int e = TR_GEMM_BUILTIN; e <= TR_GEMM_CBLAS; e++) {
        const struct rates *r = &rate[e];
        if (r->n == 0)
            continue;
        double best = r->wall[r->n - 1];
        printf(",\"%s\":{\"low\":%.1f,\"median\":%.1f,\"best\":%.1f,\"of_peak\":%.3f,\"cpu_of_peak\":%.3f}",
               tr_gemm_name((enum tr_gemm_choice)e), r->wall[0], r->wall[r->n / 2], best,
               best / peak->wall[peak->n - 1], r->cpu[r->n / 2] / peak->cpu[peak->n / 2]);
    }
    printf("}\n");
    fflush(stdout);
}

static void bench_shape(const struct shape *s, int n_threads, struct tr_pool *pool)
{
    struct tr_gemm g = { .m = s->m, .n = s->n, .k = s->k, .a_t = s->a_t, .b_t = s->b_t };
    g.a_dtype = g.b_dtype = g.c_dtype = s->dtype;
    g.lda = s->a_t ? s->m : s->k;
    g.ldb = s->b_t ? s->k : s->n;
    g.ldc = s->n;
    g.a = filled((size_t)(s->m * s->k), s->dtype);
    g.b = filled((size_t)(s->k * s->n), s->dtype);
    g.c = filled((size_t)(s->m * s->n), s->dtype);
    void *scratch = filled(tr_gemm_scratch(s->m, s->n, s->k, n_threads) / 4 + 1, TR_F32);
    struct rates peak = { .n = 0 }, rate[TR_GEMM_CBLAS + 1] = { { .n = 0 } };
    int64_t end_us = tr_clock_us() + SHAPE_US;
    for (int rep = -1; rep < N_REPS_MIN || (tr_clock_us() < end_us && rep < N_REPS_MAX); rep++) {
        if (rep == 0) { /* the first round warmed caches, pages and threads */
            peak.n = 0;
            memset(rate, 0, sizeof rate);
        }
        peak_sample(pool, &peak);
        for (int e = TR_GEMM_BUILTIN; e <= TR_GEMM_CBLAS; e++) {
            enum tr_gemm_choice got;
            if ((s->dtype == TR_F32 || e == TR_GEMM_BUILTIN) && tr_gemm_select((enum tr_gemm_choice)e, &got) == TR_OK)
                sample(&g, s->is_serial, pool, scratch, &rate[e]);
        }
    }
    sort(&peak);
    for (int e = 0; e <= TR_GEMM_CBLAS; e++)
        sort(&rate[e]);
    report(s, n_threads, &peak, rate);
    free((void *)(uintptr_t)g.a);
    free((void *)(uintptr_t)g.b);
    free(g.c);
    free(scratch);
}

static enum tr_status bench_threads(int n_threads)
{
    struct tr_pool *pool;
    enum tr_status st = tr_pool_open(n_threads, &pool);
    if (st != TR_OK)
        return st;
    for (size_t i = 0; i < TR_COUNT_OF(shapes); i++)
        if (!shapes[i].is_serial || n_threads == 1)
            bench_shape(&shapes[i], n_threads, pool);
    tr_pool_close(pool);
    return TR_OK;
}

int main(int argc, char **argv)
{
    for (int i = 1; i < (argc > 1 ? argc : 3); i++) {
        int64_t n_threads = i;
        if ((argc > 1 && tr_parse_int(argv[i], 1, 1024, &n_threads) != TR_OK) ||
            bench_threads((int)n_threads) != TR_OK) {
            fprintf(stderr, "bench_gemm: %s\n", tr_error_text());
            return 2;
        }
    }
    return 0;
}
