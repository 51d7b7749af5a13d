/* bench_machine.c - trireme bench machine: this host in the few numbers that `plan --machine FILE` needs, as such a
 * file on stdout. Products by size, the kernels between them, memory, two ranks' collectives, and the disk. Medians of
 * short rounds: a shared machine is slower at times, and a plan is for the usual time.
 */
#include "cli/cli.h"
#include "launch/launch.h"
#include "plan/plan.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { ROUNDS = 5, POOL_FLOATS = 48 << 20 };

struct meter {
    struct tr_pool *pool;
    float *at; /* where the next view begins */
    float *floats;
    size_t n_used;
    double seconds; /* of one point */
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

static struct tr_view ints(struct meter *m, int64_t rows, bool counts_up)
{
    struct tr_view v = view(m, rows, 1);
    int32_t *p = v.data;
    v.dtype = TR_I32;
    for (int64_t i = 0; i < rows; i++)
        p[i] = counts_up ? (int32_t)i : 0;
    return v;
}

/* Seconds of one call: rounds of as many calls as fill a part of the time. */
static double time_call(struct meter *m, struct tr_call *c)
{
    double t[ROUNDS];
    void *scratch = NULL;
    size_t bytes = tr_op_scratch(c, tr_pool_threads(m->pool));
    if (bytes && posix_memalign(&scratch, 64, bytes) != 0)
        return 0;
    c->scratch = scratch;
    c->pool = m->pool;
    tr_kernel k = tr_op_cpu_fast(c->op);
    k(c);
    double start = now();
    int n = 0;
    while (n < 1 || now() - start < m->seconds / ROUNDS / 4) {
        k(c);
        n++;
    }
    n = (int)(n * 4) > 0 ? n * 4 : 1;
    for (int r = 0; r < ROUNDS; r++) {
        start = now();
        for (int i = 0; i < n; i++)
            k(c);
        t[r] = (now() - start) / n;
    }
    free(scratch);
    m->n_used = 0;
    qsort(t, ROUNDS, sizeof t[0], by_value);
    return t[ROUNDS / 2];
}

static double product(struct meter *m, int64_t rows, int64_t in, int64_t out)
{
    struct tr_call c = { .op = TR_OP_LINEAR };
    c.in[0] = view(m, rows, in);
    c.in[1] = view(m, out, in);
    c.out[0] = view(m, rows, out);
    return time_call(m, &c);
}

/* Tokens x width of the kernels between products: as a small model's layer has them. */
enum { T = 512, D = 768, HEADS = 12, HEAD = 64, VOCAB = 8192 };

static double norm(struct meter *m, bool is_backward)
{
    struct tr_call c = { .op = is_backward ? TR_OP_LAYERNORM_BWD : TR_OP_LAYERNORM, .attr = { .eps = 1e-5f } };
    int k = 0;
    c.in[k++] = view(m, T, D);
    if (is_backward)
        c.in[k++] = view(m, T, D);
    c.in[k++] = view(m, 1, D);
    if (is_backward) {
        c.in[k++] = view(m, T, 2);
        c.out[0] = view(m, T, D);
        c.out[1] = view(m, 1, D);
        c.out[2] = view(m, 1, D);
    } else {
        c.in[k++] = view(m, 1, D);
        c.out[0] = view(m, T, D);
        c.out[1] = view(m, T, 2);
    }
    return time_call(m, &c) / (T * D);
}

static double pointwise(struct meter *m, enum tr_opcode op, int n_in, int64_t rows, int64_t cols)
{
    struct tr_call c = { .op = op, .attr = { .act = TR_ACT_GELU_TANH } };
    for (int i = 0; i < n_in; i++)
        c.in[i] = view(m, rows, cols);
    c.out[0] = view(m, rows, cols);
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

static double attention(struct meter *m, bool is_backward)
{
    struct tr_call c = {
        .op = is_backward ? TR_OP_ATTENTION_BWD : TR_OP_ATTENTION,
        .attr = { .n_heads_q = HEADS, .n_heads_kv = HEADS, .head_dim = HEAD, .scale = 0.125f, .seq_len = T }
    };
    int n = is_backward ? 5 : 3; /* do, q, k, v, o; or q, k, v */
    for (int i = 0; i < n; i++)
        c.in[i] = view(m, T, D);
    if (is_backward)
        c.in[n++] = view(m, T, HEADS);
    c.in[n] = ints(m, T, false);
    for (int i = 0; i < (is_backward ? 3 : 1); i++)
        c.out[i] = view(m, T, D);
    if (!is_backward)
        c.out[1] = view(m, T, HEADS);
    double flops = tr_op_flops(&c) * (is_backward ? 1.25 : 1);
    return time_call(m, &c) / flops;
}

static double update(struct meter *m)
{
    struct tr_call c = { .op = TR_OP_ADAMW };
    int64_t n = 4 << 20;
    c.in[0] = view(m, 1, n);
    c.in[1] = view(m, 1, TR_STEP_COUNT);
    float *step = c.in[1].data;
    for (int i = 0; i < TR_STEP_COUNT; i++)
        step[i] = 0.5f;
    for (int i = 0; i < 3; i++)
        c.out[i] = view(m, 1, n);
    return time_call(m, &c) / (double)n;
}

/* What the loss adds to its three products, a logit. */
static double loss(struct meter *m)
{
    struct tr_call c = { .op = TR_OP_HEAD_LOSS_GRAD };
    c.in[0] = view(m, T, D);
    c.in[1] = view(m, VOCAB, D);
    c.in[3] = ints(m, T, true);
    c.in[4] = view(m, 1, TR_STEP_COUNT);
    c.out[0] = view(m, T, 1);
    c.out[1] = view(m, T, D);
    c.out[2] = view(m, VOCAB, D);
    double all = time_call(m, &c),
           products = product(m, T, D, VOCAB) + product(m, T, VOCAB, D) + product(m, VOCAB, T, D);
    double each = (all - products) / ((double)T * VOCAB);
    return each > 1e-12 ? each : 1e-12;
}

static void measure_chip(struct meter *m, struct tr_machine *out)
{
    static const int64_t sizes[] = { 16, 32, 64, 128, 256, 512, 1024, 2048 };
    struct tr_chip *c = &out->chip;
    for (size_t i = 0; i < TR_COUNT_OF(sizes); i++) {
        double n = (double)sizes[i];
        c->gemm.at[i] = 2 * n * n * n;
        c->gemm.rate[i] = c->gemm.at[i] / product(m, sizes[i], sizes[i], sizes[i]);
        if (c->gemm.rate[i] > c->peak[TR_NUMBER_16])
            c->peak[TR_NUMBER_16] = c->peak[TR_NUMBER_FP32] = c->gemm.rate[i];
    }
    c->gemm.n = (int)TR_COUNT_OF(sizes);
    c->op_s[TR_COST_NORM] = norm(m, false);
    c->op_s[TR_COST_NORM_BWD] = norm(m, true);
    c->op_s[TR_COST_ACT] = pointwise(m, TR_OP_ACT, 1, T, 4 * D);
    c->op_s[TR_COST_ACT_BWD] = pointwise(m, TR_OP_ACT_BWD, 2, T, 4 * D);
    c->op_s[TR_COST_ROPE] = rope(m);
    c->op_s[TR_COST_ADD] = pointwise(m, TR_OP_ADD, 2, T, D);
    c->op_s[TR_COST_LOSS] = loss(m);
    c->op_s[TR_COST_UPDATE] = update(m);
    c->op_s[TR_COST_ATTENTION] = attention(m, false);
    c->op_s[TR_COST_ATTENTION_BWD] = attention(m, true);
    c->memory_rate = 12 / pointwise(m, TR_OP_ADD, 2, 4096, 2048);
    c->memory_bytes = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGE_SIZE);
    c->gemm_share = c->stream_share = 1;
    c->n_units = tr_pool_threads(m->pool);
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

static enum tr_status measure_ranks(const struct tr_config *cfg, struct tr_machine *out)
{
    char seconds[32], *text = NULL;
    char *argv[] = { "trireme", "bench", "comm", "--json", "--bytes_max", "16MiB", "--seconds", seconds, NULL };
    struct tr_launch_end end = { 0 };
    enum tr_status st = TR_OK;
    int fd = memfd_create("points", MFD_CLOEXEC);
    if (fd < 0)
        return tr_fail(TR_IO, "bench machine: no memory file");
    snprintf(seconds, sizeof seconds, "%g", cfg->seconds);
    struct tr_launch l = {
        .program = "/proc/self/exe", .argv = argv, .envp = environ, .n_ranks = 2, .out_fd = fd, .err_fd = STDERR_FILENO
    };
    TR_TRY(tr_launch_run(&l, &end));
    off_t n = lseek(fd, 0, SEEK_END);
    text = calloc(1, (size_t)(n > 0 ? n : 0) + 1);
    if (!text)
        TR_TRY(tr_fail(TR_NOMEM, "bench machine: out of memory"));
    TR_TRY(tr_pread_all(fd, "points", text, (size_t)(n > 0 ? n : 0), 0));
    read_points(text, &out->fast);
    out->slow = out->fast;
out:
    free(text);
    close(fd);
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
    struct meter m = { .seconds = cfg->seconds };
    struct tr_str out = { 0 };
    struct tr_machine machine;
    TR_TRY(tr_machine_find("A100-80GB", &machine)); /* the keys that nothing here measures */
    machine.chip = (struct tr_chip){ .price = 0 };
    (void)tr_format(machine.name, sizeof machine.name, "this host");
    TR_TRY(tr_pool_open((int)cfg->threads, &m.pool));
    m.floats = calloc(POOL_FLOATS, sizeof *m.floats);
    if (!m.floats)
        TR_TRY(tr_fail(TR_NOMEM, "bench machine: out of memory"));
    measure_chip(&m, &machine);
    TR_TRY(measure_ranks(cfg, &machine));
    machine.disk_rate = disk_rate();
    machine.domain = machine.node = tr_pool_threads(m.pool);
    machine.is_shared = true;
    machine.host_rate = machine.chip.memory_rate;
    tr_str_addf(&out, "# measured by trireme bench machine\n");
    tr_machine_write(&machine, &out);
    if (tr_str_ok(&out))
        cli_print(out.p);
out:
    free(m.floats);
    tr_pool_close(m.pool);
    tr_str_release(&out);
    return st;
}
