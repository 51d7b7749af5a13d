/* bench_machine.c - trireme bench machine: this host in the few numbers that `plan --machine FILE` needs, as such a
 * file on stdout. Products by size and the kernels between them, once for a rank that has all cores and once for ranks
 * of one core each, all at work; memory, two ranks' collectives, and the disk. Medians of passes over everything: a
 * shared machine is slower at times, and a plan is for the usual time.
 */
#include "cli/bench_kernels.h"
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

enum { POOLS = 6 }; /* 384 MiB, for all ranks together */

/* ---- every core a rank of its own ---- */

struct core {
    struct cores *all;
    struct tr_meter m;
    struct tr_speed speed;
    pthread_t thread;
};

struct cores {
    struct core *core;
    int n;
    pthread_barrier_t gate; /* of n threads, which wait for each other before every kernel */
    pthread_mutex_t start;  /* held until all threads are there; n_started < n after that: go home */
    int n_started;
};

static void *measure_core(void *arg)
{
    struct core *c = arg;
    pthread_mutex_lock(&c->all->start);
    bool has_all = c->all->n_started == c->all->n;
    pthread_mutex_unlock(&c->all->start);
    if (has_all)
        tr_meter_speed(&c->m, &c->speed);
    return NULL;
}

/* The mean of the cores' times. A thread stands for a rank with one: they share caches and memory, nothing else. */
static enum tr_status measure_cores(struct cores *c, struct tr_speed *out)
{
    int error = 0;
    pthread_mutex_lock(&c->start);
    for (c->n_started = 1; c->n_started < c->n; c->n_started++) {
        struct core *next = &c->core[c->n_started];
        if ((error = tr_thread_start(&next->thread, measure_core, next)) != 0)
            break;
    }
    pthread_mutex_unlock(&c->start);
    measure_core(&c->core[0]);
    for (int k = 1; k < c->n_started; k++)
        pthread_join(c->core[k].thread, NULL);
    if (error)
        return tr_fail(TR_NOMEM, "bench machine: thread %d of %d does not start (%s); fewer with --threads",
                       c->n_started + 1, c->n, strerror(error));
    *out = c->core[0].speed;
    for (int i = 0; i < out->gemm.n; i++) {
        double seconds = 0;
        for (int k = 0; k < c->n; k++)
            seconds += 1 / c->core[k].speed.gemm.rate[i] / c->n;
        out->gemm.rate[i] = 1 / seconds;
    }
    for (int i = 0; i < TR_OP_COSTS; i++)
        for (int k = 1; k < c->n; k++)
            out->op_s[i] += (c->core[k].speed.op_s[i] - c->core[0].speed.op_s[i]) / c->n;
    return TR_OK;
}

static void cores_close(struct cores *c)
{
    for (int k = 0; k < c->n; k++)
        tr_meter_close(&c->core[k].m);
    if (c->n > 0) {
        pthread_barrier_destroy(&c->gate);
        pthread_mutex_destroy(&c->start);
    }
    free(c->core);
}

static enum tr_status cores_open(const struct tr_config *cfg, int n, struct cores *c)
{
    *c = (struct cores){ .core = calloc((size_t)n, sizeof *c->core) };
    if (!c->core || pthread_barrier_init(&c->gate, NULL, (unsigned)n) != 0)
        return tr_fail(TR_NOMEM, "bench machine: out of memory");
    pthread_mutex_init(&c->start, NULL);
    for (c->n = n; n > 0; n--) {
        c->core[n - 1].all = c;
        TR_PASS(tr_meter_open(cfg, 1, c->n < POOLS ? POOLS / c->n : 1, &c->core[n - 1].m));
        c->core[n - 1].m.gate = &c->gate;
    }
    return TR_OK;
}

/* ---- all of it, several times ---- */

/* A kernel's time: its median pass. A step is long, and has its share of the moments in which the host or other
 * processes take a core away, which medians do not see: all times are longer by what the mean pass is longer than the
 * median one, over all kernels together. */
static void median_speed(const struct tr_speed *pass, int n_passes, struct tr_speed *out)
{
    double x[TR_METER_PASSES], longer = 0;
    *out = pass[0];
    int n = out->gemm.n + TR_OP_COSTS;
    for (int i = 0; i < n; i++) {
        int op = i - out->gemm.n;
        double sum = 0;
        for (int k = 0; k < n_passes; k++)
            sum += x[k] = op < 0 ? 1 / pass[k].gemm.rate[i] : pass[k].op_s[op];
        double middle = tr_meter_median(x, n_passes);
        if (op < 0)
            out->gemm.rate[i] = 1 / middle;
        else
            out->op_s[op] = middle;
        longer += sum / n_passes / middle / n;
    }
    for (int i = 0; i < out->gemm.n; i++)
        out->gemm.rate[i] /= longer;
    for (int i = 0; i < TR_OP_COSTS; i++)
        out->op_s[i] *= longer;
    tr_meter_finish(out);
}

/* Passes over everything, so that a moment in which the host gives less spoils no number. */
static enum tr_status measure_chip(const struct tr_config *cfg, struct tr_meter *m, struct tr_chip *c)
{
    enum tr_status st = TR_OK;
    struct tr_speed all[TR_METER_PASSES], one[TR_METER_PASSES];
    struct cores cores = { 0 };
    double rate[TR_METER_PASSES];
    c->n_units = tr_pool_threads(m->pool);
    TR_TRY(cores_open(cfg, c->n_units, &cores));
    for (int k = 0; k < m->n_passes; k++) {
        tr_meter_speed(m, &all[k]);
        if (c->n_units > 1)
            TR_TRY(measure_cores(&cores, &one[k]));
        rate[k] = tr_meter_memory_rate(m);
    }
    median_speed(all, m->n_passes, &c->all);
    if (c->n_units > 1)
        median_speed(one, m->n_passes, &c->one);
    c->memory_rate = tr_meter_median(rate, m->n_passes);
    c->memory_bytes = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGE_SIZE);
    c->gemm_share = c->stream_share = 1;
    for (int i = 0; i < c->all.gemm.n; i++)
        c->peak[TR_PRECISION_16] = fmax(c->peak[TR_PRECISION_16], c->all.gemm.rate[i]);
    c->peak[TR_PRECISION_FP32] = c->peak[TR_PRECISION_16];
out:
    cores_close(&cores);
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
        return tr_fail(TR_IO, "bench machine: cannot make a file in memory (memfd_create)");
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
    char seconds[32], part[32], *text = NULL;
    char *comm[] = { "trireme", "bench", "comm", "--json", "--bytes_max", "16MiB", "--seconds", part, NULL };
    char *meet[] = { "trireme", "bench", "machine", "--seconds", seconds, NULL };
    enum tr_status st = TR_OK;
    snprintf(seconds, sizeof seconds, "%g", cfg->seconds);
    snprintf(part, sizeof part, "%g", fmax(0.001, cfg->seconds / 3)); /* it has 28 points, of which few are read */
    TR_TRY(run_ranks(comm, &text));
    read_points(text, &out->fast);
    out->slow = out->fast;
    free(text);
    text = NULL;
    TR_TRY(run_ranks(meet, &text));
    const char *near = strstr(text, "meet_share: "), *far = strstr(text, "meet_far_share: ");
    out->meet_share = near ? fmax(0, strtod(near + strlen("meet_share: "), NULL)) : 0;
    out->meet_far_share = far ? fmax(0, strtod(far + strlen("meet_far_share: "), NULL)) : 0;
out:
    free(text);
    return st;
}

/* Products of about half a millisecond: two are a layer's kernels between two collectives, 64 a block of layers. */
enum { MEET_SIZE = 320, MEET_NEAR = 2, MEET_FAR = 64 };
static double meet_seconds(const struct tr_meter *m)
{
    return fmin(4, 50 * m->seconds); /* what holds a rank up comes in bursts */
}

/* Of two ranks that do n products and then a sum, again and again, the part of the time that they wait there: for the
 * other, who took longer. All of that time counts, as in a step; a median would leave out what comes in bursts. */
static enum tr_status measure_meeting(struct tr_comm *world, struct tr_meter *m, struct tr_call *c, int n,
                                      double *share)
{
    double x[2] = { 0 }, work = 0, wait = 0;
    struct tr_coll sum = {
        .kind = TR_ALL_REDUCE, .dtype = TR_F64, .op = TR_SUM, .in = x, .out = x, .count = 2, .site = "bench"
    };
    while (x[1] < 2 * meet_seconds(m)) { /* both see the same sum */
        double start = tr_meter_now();
        tr_meter_run(m, c, n);
        double middle = tr_meter_now();
        work += middle - start;
        x[0] = wait;
        x[1] = work;
        TR_PASS(tr_comm_run(world, &sum));
        wait += tr_meter_now() - middle;
    }
    *share = x[0] / x[1];
    return TR_OK;
}

static enum tr_status be_rank(const struct tr_config *cfg, struct tr_comm_env *env)
{
    enum tr_status st = TR_OK;
    struct tr_comm *world = NULL;
    struct tr_meter m = { 0 };
    struct tr_call c = { .op = TR_OP_LINEAR };
    double near = 0, far = 0;
    env->timeout_us = (int64_t)(cfg->ddp_timeout * 1e6);
    TR_TRY(tr_comm_open(NULL, env, &world));
    TR_TRY(tr_meter_open(cfg, 1, 1, &m));
    c.in[0] = tr_meter_view(&m, MEET_SIZE, MEET_SIZE);
    c.in[1] = tr_meter_view(&m, MEET_SIZE, MEET_SIZE);
    c.out[0] = tr_meter_view(&m, MEET_SIZE, MEET_SIZE);
    c.scratch = malloc(tr_op_scratch(&c, 1));
    if (!c.scratch)
        TR_TRY(tr_fail(TR_NOMEM, "bench machine: out of memory"));
    TR_TRY(measure_meeting(world, &m, &c, MEET_NEAR, &near));
    TR_TRY(measure_meeting(world, &m, &c, MEET_FAR, &far));
    if (env->rank == 0)
        printf("meet_share: %.6g\nmeet_far_share: %.6g\n", near, far);
out:
    free(c.scratch);
    tr_meter_close(&m);
    tr_comm_close(world);
    return st;
}

static double disk_rate(void)
{
    const int64_t bytes = 64 << 20;
    double seconds = 0;
    bool is_ok = cli_disk_rate(".", bytes, &seconds, NULL) == TR_OK;
    tr_error_clear();
    return is_ok && seconds > 0 ? (double)bytes / seconds : 0;
}

/* The lines `key: value` as an object; numbers, lists of them and booleans are written alike in both. */
static void to_json(const char *lines, struct tr_str *out)
{
    char key[64];
    for (const char *p = lines, *end; *p; p = end + (*end == '\n')) {
        end = p + strcspn(p, "\n");
        const char *value = strstr(p, ": ");
        if (*p == '#' || !value || value > end)
            continue;
        (void)snprintf(key, sizeof key, "%.*s", (int)(value - p), p);
        value += 2;
        tr_str_addf(out, "%s\"%s\": ", out->n ? ", " : "{", key);
        bool is_number =
            strchr("[-0123456789", *value) || strncmp(value, "true", 4) == 0 || strncmp(value, "false", 5) == 0;
        tr_str_addf(out, is_number ? "%.*s" : "\"%.*s\"", (int)(end - value), value);
    }
    tr_str_addf(out, "}\n");
}

enum tr_status bench_machine(const struct tr_config *cfg)
{
    enum tr_status st = TR_OK;
    struct tr_meter m = { 0 };
    struct tr_str out = { 0 }, json = { 0 };
    struct tr_machine machine;
    struct tr_comm_env env;
    TR_TRY(tr_mesh_env(&env));
    if (env.size > 1)
        return be_rank(cfg, &env);
    TR_TRY(tr_machine_find("A100-80GB", &machine)); /* the keys that nothing here measures */
    machine.chip = (struct tr_chip){ .price = 0 };
    (void)tr_format(machine.name, sizeof machine.name, "this host");
    TR_TRY(tr_meter_open(cfg, (int)cfg->threads, POOLS, &m));
    TR_TRY(measure_chip(cfg, &m, &machine.chip));
    TR_TRY(measure_ranks(cfg, &machine));
    machine.disk_rate = disk_rate();
    machine.domain = machine.node = machine.chip.n_units;
    machine.is_shared = true;
    machine.host_rate = machine.chip.memory_rate;
    tr_str_addf(&out, "# measured by trireme bench machine\n");
    tr_machine_write(&machine, &out);
    if (cfg->json && tr_str_ok(&out))
        to_json(out.p, &json);
    if (tr_str_ok(&out) && tr_str_ok(&json))
        cli_print(cfg->json ? json.p : out.p);
out:
    tr_meter_close(&m);
    tr_str_release(&out);
    tr_str_release(&json);
    return st;
}
