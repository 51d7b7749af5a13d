/* bench_machine.c - trireme bench machine: this host in the few numbers that `plan --machine FILE` needs, as such a
 * file on stdout. Products by size and the kernels between them, once for a rank that has all cores and once for ranks
 * of one core each, all at work; memory, two ranks' collectives, and the disk. Medians of passes over everything: a
 * shared machine is slower at times, and a plan is for the usual time.
 */
#include "cli/cli.h"
#include "launch/launch.h"
#include "plan/plan.h"
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PASSES = 5, ROUNDS = 3, POOL_FLOATS = 32 << 20, SMALL = 256 };

struct meter {
    struct tr_pool *pool;
    float *floats;
    size_t n_used;
    double seconds;          /* of one point */
    pthread_barrier_t *gate; /* of the cores that measure at once; NULL: this is the only one */
};

static double now(void)
{
    return (double)tr_clock_us() * 1e-6;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static struct tr_view view(struct meter *m, int64_t rows, int64_t cols)
{
    struct tr_view v = { .data = m->floats + m->n_used, .dtype = TR_F32, .rows = rows, .cols = cols, .ld = cols };
    m->n_used += ((size_t)(rows * cols) + 15) / 16 * 16;
    TR_BUG_ON(m->n_used > POOL_FLOATS);
    return v;
}

/* Every call finds its operands where a step's would be: the first, which another kernel has just written, in the
 * cache, the others, weights and what is kept for backward, not. So those go on to their next copy in the pool, which
 * is larger than a core's cache. An optimizer's are all of the second kind; a gradient on its way back is of the first.
 */
static void move_views(struct tr_call *c, ptrdiff_t n_floats)
{
    bool has_none = c->op == TR_OP_ADAMW || c->op == TR_OP_SUMSQ;
    for (int i = has_none ? 0 : 1; i < TR_MAX_IN + TR_MAX_OUT; i++) {
        struct tr_view *v = i < TR_MAX_IN ? &c->in[i] : &c->out[i - TR_MAX_IN];
        bool is_first = i == TR_MAX_IN && c->op == TR_OP_LINEAR_DX;
        if (v->dtype == TR_F32 && v->rows * v->cols >= SMALL && !is_first)
            v->data = (float *)v->data + n_floats;
    }
}

static void run_calls(struct meter *m, struct tr_call *c, int n)
{
    tr_kernel k = tr_op_cpu_fast(c->op);
    size_t n_copies = POOL_FLOATS / m->n_used, at = 0;
    for (int i = 0; i < n; i++) {
        k(c);
        bool is_last = ++at == n_copies || i == n - 1;
        move_views(c, is_last ? -(ptrdiff_t)((at - 1) * m->n_used) : (ptrdiff_t)m->n_used);
        at = is_last ? 0 : at;
    }
}

static struct tr_view ints(struct meter *m, int64_t rows, bool counts_up)
{
    struct tr_view v = view(m, rows, 1);
    int32_t *p = v.data;
    v.dtype = TR_I32;
    for (int64_t i = 0; i < rows; i++)
        p[i] = counts_up ? (int32_t)i : 0;
    return v;
}

static double median(double *x, int n)
{
    qsort(x, (size_t)n, sizeof *x, by_value);
    return x[n / 2];
}

/* Pages that nobody wrote are all the same one, in the cache; and what a kernel left may be so small that arithmetic
 * on it is slow. */
static void fill(struct meter *m)
{
    size_t n = 97 * 64;
    for (size_t i = 0; i < n; i++)
        m->floats[i] = 0.01f * (float)(i % 97 + 1);
    for (size_t more = n; n < POOL_FLOATS; n += more) {
        more = n < POOL_FLOATS - n ? n : POOL_FLOATS - n;
        memcpy(m->floats + n, m->floats, more * sizeof *m->floats);
    }
    m->n_used = 0;
}

/* Seconds of one call: rounds of as many calls as fill a part of the time. */
static double time_call(struct meter *m, struct tr_call *c)
{
    double t[ROUNDS], each = m->seconds / PASSES / ROUNDS;
    void *scratch = NULL;
    size_t bytes = tr_op_scratch(c, tr_pool_threads(m->pool));
    TR_BUG_ON(bytes && posix_memalign(&scratch, 64, bytes) != 0);
    c->scratch = scratch;
    c->pool = m->pool;
    if (m->gate)
        pthread_barrier_wait(m->gate);
    double start = now();
    run_calls(m, c, 1);
    if (now() - start < each) { /* the first one is cold */
        start = now();
        run_calls(m, c, 1);
    }
    int n = (int)fmin(1e6, 1 + each / (now() - start + 1e-6));
    for (int r = 0; r < ROUNDS; r++) {
        start = now();
        run_calls(m, c, n);
        t[r] = (now() - start) / n;
    }
    free(scratch);
    fill(m);
    return median(t, ROUNDS);
}

/* The mean of forward and backward. */
static double product(struct meter *m, int64_t n)
{
    double seconds = 0;
    for (int i = 0; i < 2; i++) {
        struct tr_call c = { .op = i ? TR_OP_LINEAR_DX : TR_OP_LINEAR };
        c.in[0] = view(m, n, n);
        c.in[1] = view(m, n, n);
        c.out[0] = view(m, n, n);
        seconds += time_call(m, &c) / 2;
    }
    return seconds;
}

/* Tokens x width of the kernels between products: as a small model's layer has them. */
enum { T = 512, D = 512, HEADS = 8, HEAD = 64, VOCAB = 4096 };

static double norm(struct meter *m, enum tr_opcode op)
{
    struct tr_call c = { .op = op, .attr = { .eps = 1e-5f, .group = D } };
    bool is_backward = op == TR_OP_LAYERNORM_BWD || op == TR_OP_RMSNORM_BWD;
    bool has_bias = op == TR_OP_LAYERNORM || op == TR_OP_LAYERNORM_BWD;
    struct tr_view stats = view(m, T, has_bias ? 2 : 1);
    int k = 0;
    for (int i = 0; i < (is_backward ? 2 : 1); i++)
        c.in[k++] = view(m, T, D);
    c.in[k++] = view(m, 1, D);
    if (is_backward || has_bias)
        c.in[k++] = is_backward ? stats : view(m, 1, D);
    c.out[0] = view(m, T, D);
    c.out[1] = is_backward ? view(m, 1, D) : stats;
    if (is_backward && has_bias)
        c.out[2] = view(m, 1, D);
    return time_call(m, &c) / (T * D);
}

static double pointwise(struct meter *m, enum tr_opcode op, int64_t rows, int64_t cols)
{
    struct tr_call c = { .op = op,
                         .attr = { .act = op == TR_OP_ACT || op == TR_OP_ACT_BWD ? TR_ACT_GELU_TANH : TR_ACT_SILU } };
    for (int i = 0; i < tr_op_row(op)->n_in; i++)
        c.in[i] = view(m, rows, cols);
    for (int i = 0; i < tr_op_row(op)->n_out; i++)
        c.out[i] = view(m, rows, cols);
    return time_call(m, &c) / (double)(rows * cols);
}

static double rope(struct meter *m)
{
    struct tr_call c = { .op = TR_OP_ROPE, .attr = { .head_dim = HEAD } };
    c.in[0] = view(m, T, D);
    c.in[1] = ints(m, T, true);
    c.in[2] = view(m, T, HEAD);
    c.out[0] = view(m, T, D);
    return time_call(m, &c) / (T * D);
}

/* Rows of so many tokens. */
static double attention(struct meter *m, bool is_backward, int64_t length, double *flops)
{
    struct tr_call c = {
        .op = is_backward ? TR_OP_ATTENTION_BWD : TR_OP_ATTENTION,
        .attr = { .n_heads_q = HEADS, .n_heads_kv = HEADS, .head_dim = HEAD, .scale = 0.125f, .seq_len = length }
    };
    int n = is_backward ? 5 : 3; /* do, q, k, v, o; or q, k, v */
    for (int i = 0; i < n; i++)
        c.in[i] = view(m, T, D);
    if (is_backward)
        c.in[n++] = view(m, T, HEADS);
    c.in[n] = ints(m, T, true);
    for (int32_t i = 0, *begin = c.in[n].data; i < T; i++)
        begin[i] = i / (int32_t)length * (int32_t)length;
    for (int i = 0; i < (is_backward ? 3 : 1); i++)
        c.out[i] = view(m, T, D);
    if (!is_backward)
        c.out[1] = view(m, T, HEADS);
    *flops = tr_op_flops(&c) * (is_backward ? 1.25 : 1);
    return time_call(m, &c);
}

/* Long rows say what a flop takes, short ones what a row adds. */
static void measure_attention(struct meter *m, bool is_backward, double *per_flop, double *per_row)
{
    double flops[2], t[2] = { attention(m, is_backward, T / 8, &flops[0]), attention(m, is_backward, T, &flops[1]) };
    *per_flop = (t[1] - t[0]) / (flops[1] - flops[0]);
    *per_row = fmax(0, t[0] - *per_flop * flops[0]) / (T * D);
    *per_flop = (t[1] - *per_row * (T * D)) / flops[1];
}

static double update(struct meter *m)
{
    struct tr_call c = { .op = TR_OP_ADAMW };
    int64_t n = 1 << 20;
    c.in[0] = view(m, 1, n);
    c.in[1] = view(m, 1, TR_STEP_COUNT);
    float *step = c.in[1].data;
    for (int i = 0; i < TR_STEP_COUNT; i++)
        step[i] = 0.5f;
    for (int i = 0; i < 3; i++)
        c.out[i] = view(m, 1, n);
    return time_call(m, &c) / (double)n;
}

static double sum_squares(struct meter *m)
{
    struct tr_call c = { .op = TR_OP_SUMSQ };
    int64_t n = 1 << 20;
    c.in[0] = view(m, 1, n);
    c.out[0] = view(m, 1, 2);
    c.out[0].dtype = TR_F64;
    c.out[0].cols = 1;
    return time_call(m, &c) / (double)n;
}

/* What the head adds to its products, a logit: whole, or in the two parts of ranks that split the vocabulary. */
static double head(struct meter *m, enum tr_opcode op, int n_products, const struct tr_curve *gemm)
{
    struct tr_call c = { .op = op };
    double flops = 2.0 * T * D * VOCAB;
    c.in[0] = view(m, T, D);
    c.in[1] = view(m, VOCAB, D);
    c.in[3] = ints(m, T, true);
    if (op != TR_OP_HEAD_STATS)
        c.in[4] = view(m, 1, TR_STEP_COUNT);
    int k = 0;
    if (op == TR_OP_HEAD_GRAD) {
        c.in[5] = view(m, T, 1);
        c.in[6] = view(m, T, VOCAB);
    } else {
        c.out[k++] = view(m, T, op == TR_OP_HEAD_STATS ? 2 : 1);
    }
    c.out[k++] = op == TR_OP_HEAD_STATS ? view(m, T, VOCAB) : view(m, T, D);
    if (op != TR_OP_HEAD_STATS)
        c.out[k] = view(m, VOCAB, D);
    double each = (time_call(m, &c) - n_products * flops / tr_curve_at(gemm, flops)) / ((double)T * VOCAB);
    return fmax(each, 1e-12);
}

static void measure_speed(struct meter *m, struct tr_speed *s)
{
    static const int64_t sizes[] = { 16, 32, 64, 128, 256, 512, 1024 };
    for (size_t i = 0; i < TR_COUNT_OF(sizes); i++) {
        double n = (double)sizes[i];
        s->gemm.at[i] = 2 * n * n * n;
        s->gemm.rate[i] = s->gemm.at[i] / product(m, sizes[i]);
    }
    s->gemm.n = (int)TR_COUNT_OF(sizes);
    s->op_s[TR_COST_NORM] = norm(m, TR_OP_LAYERNORM);
    s->op_s[TR_COST_NORM_BWD] = norm(m, TR_OP_LAYERNORM_BWD);
    s->op_s[TR_COST_RMSNORM] = norm(m, TR_OP_RMSNORM);
    s->op_s[TR_COST_RMSNORM_BWD] = norm(m, TR_OP_RMSNORM_BWD);
    s->op_s[TR_COST_ACT] = pointwise(m, TR_OP_ACT, T, 3 * D);
    s->op_s[TR_COST_ACT_BWD] = pointwise(m, TR_OP_ACT_BWD, T, 3 * D);
    s->op_s[TR_COST_GLU] = pointwise(m, TR_OP_GLU, T, 3 * D);
    s->op_s[TR_COST_GLU_BWD] = pointwise(m, TR_OP_GLU_BWD, T, 3 * D);
    s->op_s[TR_COST_ROPE] = rope(m);
    s->op_s[TR_COST_ADD] = pointwise(m, TR_OP_ADD, T, D);
    s->op_s[TR_COST_SUMSQ] = sum_squares(m);
    s->op_s[TR_COST_LOSS] = head(m, TR_OP_HEAD_LOSS_GRAD, 3, &s->gemm);
    s->op_s[TR_COST_STATS] = head(m, TR_OP_HEAD_STATS, 1, &s->gemm);
    s->op_s[TR_COST_STATS_BWD] = head(m, TR_OP_HEAD_GRAD, 2, &s->gemm);
    s->op_s[TR_COST_UPDATE] = update(m);
    measure_attention(m, false, &s->op_s[TR_COST_ATTENTION], &s->op_s[TR_COST_ATTENTION_ROW]);
    measure_attention(m, true, &s->op_s[TR_COST_ATTENTION_BWD], &s->op_s[TR_COST_ATTENTION_ROW_BWD]);
}

static enum tr_status meter_open(const struct tr_config *cfg, int n_threads, struct meter *m)
{
    *m = (struct meter){ .seconds = cfg->seconds };
    m->floats = malloc(POOL_FLOATS * sizeof *m->floats);
    if (!m->floats)
        return tr_fail(TR_NOMEM, "bench machine: out of memory");
    fill(m);
    return tr_pool_open(n_threads, &m->pool);
}

static void meter_close(struct meter *m)
{
    free(m->floats);
    tr_pool_close(m->pool);
}

/* ---- every core a rank of its own ---- */

struct core {
    struct meter m;
    struct tr_speed speed;
    pthread_t thread;
};

struct cores {
    struct core *core;
    int n;
    pthread_barrier_t gate;
};

static void *measure_core(void *arg)
{
    struct core *c = arg;
    measure_speed(&c->m, &c->speed);
    return NULL;
}

/* The mean of the cores' times. A thread stands for a rank with one: they share caches and memory, nothing else. */
static void measure_cores(struct cores *c, struct tr_speed *out)
{
    for (int k = 1; k < c->n; k++) /* one that does not start would leave the others at the gate */
        TR_BUG_ON(tr_thread_start(&c->core[k].thread, measure_core, &c->core[k]) != 0);
    measure_core(&c->core[0]);
    *out = c->core[0].speed;
    for (int k = 1; k < c->n; k++)
        pthread_join(c->core[k].thread, NULL);
    for (int i = 0; i < out->gemm.n; i++) {
        double seconds = 0;
        for (int k = 0; k < c->n; k++)
            seconds += 1 / c->core[k].speed.gemm.rate[i] / c->n;
        out->gemm.rate[i] = 1 / seconds;
    }
    for (int i = 0; i < TR_OP_COSTS; i++)
        for (int k = 1; k < c->n; k++)
            out->op_s[i] += (c->core[k].speed.op_s[i] - c->core[0].speed.op_s[i]) / c->n;
}

static void cores_close(struct cores *c)
{
    for (int k = 0; k < c->n; k++)
        meter_close(&c->core[k].m);
    if (c->n > 0)
        pthread_barrier_destroy(&c->gate);
    free(c->core);
}

static enum tr_status cores_open(const struct tr_config *cfg, int n, struct cores *c)
{
    enum tr_status st = TR_OK;
    *c = (struct cores){ .core = calloc((size_t)n, sizeof *c->core) };
    if (!c->core || pthread_barrier_init(&c->gate, NULL, (unsigned)n) != 0)
        TR_TRY(tr_fail(TR_NOMEM, "bench machine: out of memory"));
    for (c->n = n; n > 0; n--) {
        TR_TRY(meter_open(cfg, 1, &c->core[n - 1].m));
        c->core[n - 1].m.gate = &c->gate;
    }
out:
    if (st != TR_OK)
        cores_close(c);
    return st;
}

/* ---- all of it, several times ---- */

static void median_speed(const struct tr_speed *pass, struct tr_speed *out)
{
    double x[PASSES];
    *out = pass[0];
    for (int i = 0; i < out->gemm.n; i++) {
        for (int k = 0; k < PASSES; k++)
            x[k] = pass[k].gemm.rate[i];
        out->gemm.rate[i] = median(x, PASSES);
    }
    for (int i = 0; i < TR_OP_COSTS; i++) {
        for (int k = 0; k < PASSES; k++)
            x[k] = pass[k].op_s[i];
        out->op_s[i] = median(x, PASSES);
    }
}

/* Passes over everything, so that a moment in which the host gives less spoils no number. */
static enum tr_status measure_chip(const struct tr_config *cfg, struct meter *m, struct tr_chip *c)
{
    enum tr_status st = TR_OK;
    struct tr_speed all[PASSES], one[PASSES];
    struct cores cores;
    double rate[PASSES];
    c->n_units = tr_pool_threads(m->pool);
    TR_TRY(cores_open(cfg, c->n_units, &cores));
    for (int k = 0; k < PASSES; k++) {
        measure_speed(m, &all[k]);
        measure_cores(&cores, &one[k]);
        rate[k] = 12 / pointwise(m, TR_OP_ADD, 4096, 1024);
    }
    median_speed(all, &c->all);
    if (c->n_units > 1)
        median_speed(one, &c->one);
    c->memory_rate = median(rate, PASSES);
    c->memory_bytes = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGE_SIZE);
    c->gemm_share = c->stream_share = 1;
    for (int i = 0; i < c->all.gemm.n; i++)
        c->peak[TR_NUMBER_16] = fmax(c->peak[TR_NUMBER_16], c->all.gemm.rate[i]);
    c->peak[TR_NUMBER_FP32] = c->peak[TR_NUMBER_16];
    cores_close(&cores);
out:
    return st;
}

/* ---- two ranks ---- */

static void read_points(const char *text, struct tr_link *l)
{
    double small = 0, large = 0, bytes = 0;
    for (const char *p = text; (p = strstr(p, "\"kind\":\"all_reduce\"")); p++) {
        const char *b = strstr(p, "\"bytes\":"), *t = strstr(p, "\"median_us\":");
        if (!b || !t)
            break;
        double n = strtod(b + 8, NULL), us = strtod(t + 12, NULL);
        small = small == 0 ? us : small;
        large = us;
        bytes = n;
    }
    if (large > small && bytes > 0) /* two ranks: a sum moves half of it twice */
        *l = (struct tr_link){ .rate = bytes / (large * 1e-6), .share = 1, .latency_s = small * 0.5e-6 };
}

/* This program again, as two ranks of one thread; what they print. */
static enum tr_status run_ranks(char *const *argv, char **out)
{
    struct tr_launch_end end = { 0 };
    enum tr_status st = TR_OK;
    char *text = NULL;
    int fd = memfd_create("points", MFD_CLOEXEC);
    if (fd < 0)
        return tr_fail(TR_IO, "bench machine: no memory file");
    struct tr_launch l = {
        .program = "/proc/self/exe", .argv = argv, .envp = environ, .n_ranks = 2, .out_fd = fd, .err_fd = STDERR_FILENO
    };
    TR_TRY(tr_launch_run(&l, &end));
    off_t n = lseek(fd, 0, SEEK_END);
    text = calloc(1, (size_t)(n > 0 ? n : 0) + 1);
    if (!text)
        TR_TRY(tr_fail(TR_NOMEM, "bench machine: out of memory"));
    TR_TRY(tr_pread_all(fd, "points", text, (size_t)(n > 0 ? n : 0), 0));
out:
    if (st == TR_OK)
        *out = text;
    else
        free(text);
    close(fd);
    return st;
}

static enum tr_status measure_ranks(const struct tr_config *cfg, struct tr_machine *out)
{
    char seconds[32], *text = NULL;
    char *comm[] = { "trireme", "bench", "comm", "--json", "--bytes_max", "16MiB", "--seconds", seconds, NULL };
    char *meet[] = { "trireme", "bench", "machine", "--seconds", seconds, NULL };
    enum tr_status st = TR_OK;
    snprintf(seconds, sizeof seconds, "%g", cfg->seconds);
    TR_TRY(run_ranks(comm, &text));
    read_points(text, &out->fast);
    out->slow = out->fast;
    free(text);
    text = NULL;
    TR_TRY(run_ranks(meet, &text));
    const char *share = strstr(text, "meet_share: ");
    out->meet_share = share ? fmax(0, strtod(share + 12, NULL)) : 0;
out:
    free(text);
    return st;
}

/* One of two ranks: products as long as a layer's kernels between two collectives, and a sum after each. What a rank
 * waits there is what the other took longer: the machine's unrest, which nobody has alone. */
enum { MEET_SIZE = 320, MEET_PRODUCTS = 2 };
static enum tr_status be_rank(const struct tr_config *cfg, struct tr_comm_env *env)
{
    enum tr_status st = TR_OK;
    struct tr_comm *world = NULL;
    struct meter m = { 0 };
    struct tr_call c = { .op = TR_OP_LINEAR };
    double rounds[2 * PASSES + 1], x[2] = { 0 }, length = 10 * cfg->seconds / TR_COUNT_OF(rounds);
    env->timeout_us = (int64_t)(cfg->ddp_timeout * 1e6);
    TR_TRY(tr_comm_open(NULL, env, &world));
    TR_TRY(meter_open(cfg, 1, &m));
    struct tr_coll sum = {
        .kind = TR_ALL_REDUCE, .dtype = TR_F64, .op = TR_SUM, .in = x, .out = x, .count = 2, .site = "bench"
    };
    c.in[0] = view(&m, MEET_SIZE, MEET_SIZE);
    c.in[1] = view(&m, MEET_SIZE, MEET_SIZE);
    c.out[0] = view(&m, MEET_SIZE, MEET_SIZE);
    c.scratch = malloc(tr_op_scratch(&c, 1));
    if (!c.scratch)
        TR_TRY(tr_fail(TR_NOMEM, "bench machine: out of memory"));
    for (size_t r = 0; r < TR_COUNT_OF(rounds); r++) {
        double work = 0, wait = 0;
        for (x[0] = x[1] = 0; x[1] < 2 * length;) { /* both see the same sum */
            double start = now();
            run_calls(&m, &c, MEET_PRODUCTS);
            double middle = now();
            work += middle - start;
            x[0] = wait;
            x[1] = work;
            TR_TRY(tr_comm_run(world, &sum));
            wait += now() - middle;
        }
        rounds[r] = x[0] / x[1];
    }
    if (env->rank == 0)
        printf("meet_share: %.6g\n", median(rounds, TR_COUNT_OF(rounds)));
out:
    free(c.scratch);
    meter_close(&m);
    tr_comm_close(world);
    return st;
}

static double disk_rate(void)
{
    static const char path[] = "./.trireme.bench";
    const int64_t bytes = 64 << 20;
    double seconds = 0;
    bool is_ok = cli_disk_write(path, bytes, &seconds) == TR_OK;
    (void)unlink(path);
    tr_error_clear();
    return is_ok && seconds > 0 ? (double)bytes / seconds : 0;
}

enum tr_status bench_machine(const struct tr_config *cfg)
{
    enum tr_status st = TR_OK;
    struct meter m = { 0 };
    struct tr_str out = { 0 };
    struct tr_machine machine;
    struct tr_comm_env env;
    TR_TRY(tr_mesh_env(&env));
    if (env.size > 1)
        return be_rank(cfg, &env);
    TR_TRY(tr_machine_find("A100-80GB", &machine)); /* the keys that nothing here measures */
    machine.chip = (struct tr_chip){ .price = 0 };
    (void)tr_format(machine.name, sizeof machine.name, "this host");
    TR_TRY(meter_open(cfg, (int)cfg->threads, &m));
    TR_TRY(measure_chip(cfg, &m, &machine.chip));
    TR_TRY(measure_ranks(cfg, &machine));
    machine.disk_rate = disk_rate();
    machine.domain = machine.node = machine.chip.n_units;
    machine.is_shared = true;
    machine.host_rate = machine.chip.memory_rate;
    tr_str_addf(&out, "# measured by trireme bench machine\n");
    tr_machine_write(&machine, &out);
    if (tr_str_ok(&out))
        cli_print(out.p);
out:
    meter_close(&m);
    tr_str_release(&out);
    return st;
}
