/* bench_attention.c - attention alone: milliseconds and TFLOP/s over the pairs that are needed (backward: five
 * products), one line a shape. `own` counts no documents, so that the kernels of our own run where the library would.
 *
 *   bench_attention [device=cuda] [calls=20] [cases=PATTERN]
 */
#include "base/base.h"
#include "device/device.h"
#include "ops/ops.h"
#include "ops/column.h"
#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct shape {
    const char *name;
    int64_t rows, length, document, window; /* document: tokens of each; 0 = the row */
    int heads, heads_kv, head_dim, dropout; /* percent */
    bool is_own, any_order;
};

static const struct shape shapes[] = {
    { "64, rows of 2048, library", 8, 2048, 0, 0, 32, 32, 64, 0, false },
    { "64, rows of 2048, own", 8, 2048, 0, 0, 32, 32, 64, 0, true },
    { "64, rows of 4096, library", 4, 4096, 0, 0, 32, 32, 64, 0, false },
    { "64, rows of 4096, library, any order", 4, 4096, 0, 0, 32, 32, 64, 0, false, true },
    { "64, rows of 4096, own", 4, 4096, 0, 0, 32, 32, 64, 0, true },
    { "64, rows of 16384, own", 1, 16384, 0, 0, 32, 32, 64, 0, true },
    { "64, rows of 8192, library", 2, 8192, 0, 0, 32, 32, 64, 0, false },
    { "64, rows of 16384, library", 1, 16384, 0, 0, 32, 32, 64, 0, false },
    { "64, rows of 512, library", 32, 512, 0, 0, 32, 32, 64, 0, false },
    { "64, rows of 512, own", 32, 512, 0, 0, 32, 32, 64, 0, true },
    { "64, documents of 2048 in 8192", 2, 8192, 2048, 0, 32, 32, 64, 0, false },
    { "64, documents of 512 in 8192", 2, 8192, 512, 0, 32, 32, 64, 0, false },
    { "64 grouped, documents of 512 in 8192", 2, 8192, 512, 0, 32, 8, 64, 0, false },
    { "64 grouped, rows of 512, library", 32, 512, 0, 0, 32, 8, 64, 0, false },
    { "64 grouped, documents of 300 in 8192", 2, 8192, 300, 0, 32, 8, 64, 0, false },
    { "128, rows of 2048, library", 8, 2048, 0, 0, 16, 16, 128, 0, false },
    { "128, rows of 4096, library", 4, 4096, 0, 0, 16, 16, 128, 0, false },
    { "128, rows of 4096, library, any order", 4, 4096, 0, 0, 16, 16, 128, 0, false, true },
    { "128, rows of 4096, own", 4, 4096, 0, 0, 16, 16, 128, 0, true },
    { "128, rows of 16384, own", 1, 16384, 0, 0, 16, 16, 128, 0, true },
    { "128, rows of 8192, library", 2, 8192, 0, 0, 16, 16, 128, 0, false },
    { "128, rows of 16384, library", 1, 16384, 0, 0, 16, 16, 128, 0, false },
    { "128, rows of 2048, own", 8, 2048, 0, 0, 16, 16, 128, 0, true },
    { "128, documents of 512 in 8192", 2, 8192, 512, 0, 16, 16, 128, 0, false },
    { "256, rows of 2048", 4, 2048, 0, 0, 8, 8, 256, 0, false },
    { "256, rows of 8192", 1, 8192, 0, 0, 8, 8, 256, 0, false },
    { "256, documents of 512 in 8192", 1, 8192, 512, 0, 8, 8, 256, 0, false },
    { "64, rows of 1024, library", 16, 1024, 0, 0, 12, 12, 64, 0, false },
    { "64, rows of 1024, own", 16, 1024, 0, 0, 12, 12, 64, 0, true },
    { "64, rows of 1024, dropout", 16, 1024, 0, 0, 12, 12, 64, 10, false },
    { "64, documents of 256 in 1024, dropout", 16, 1024, 256, 0, 12, 12, 64, 10, false },
    { "128, rows of 2048, dropout", 8, 2048, 0, 0, 16, 16, 128, 10, false },
};

enum { QUERY, KEY, VALUE, D_OUT, OUT, D_QUERY, D_KEY, D_VALUE, N_MATS, N_REPEAT = 5 };

struct memory {
    struct tr_device *dev;
    void *at[16];
    size_t bytes[16];
    int n;
};

static void *reserve(struct memory *m, size_t bytes, const void *from)
{
    void *p = NULL;
    if (tr_device_reserve(m->dev, TR_SPACE_DEVICE, bytes, "bench", &p) != TR_OK) {
        fprintf(stderr, "bench_attention: %s\n", tr_error_text());
        exit(1);
    }
    if (from)
        tr_device_copy_now(m->dev, p, from, bytes);
    m->at[m->n] = p, m->bytes[m->n++] = bytes;
    return p;
}

/* Milliseconds of one call: the median of some rounds. */
static double time_call(const struct tr_column *column, struct tr_call *c, int n)
{
    double ms[N_REPEAT];
    column->kernel(c->op)(c);
    for (int i = 0; i < N_REPEAT; i++) {
        (void)tr_device_sync(c->dev, TR_STREAM_COMPUTE);
        int64_t start = tr_clock_us();
        for (int k = 0; k < n; k++)
            column->kernel(c->op)(c);
        if (tr_device_sync(c->dev, TR_STREAM_COMPUTE) != TR_OK) {
            fprintf(stderr, "bench_attention: %s\n", tr_error_text());
            exit(1);
        }
        ms[i] = (double)(tr_clock_us() - start) * 1e-3 / n;
    }
    qsort(ms, N_REPEAT, sizeof *ms, tr_by_double);
    return ms[N_REPEAT / 2];
}

static double pairs_of(const struct shape *s)
{
    double sum = 0;
    int64_t document = s->document > 0 ? s->document : s->length;
    for (int64_t i = 0; i < s->length; i++) {
        int64_t sees = i % document + 1;
        sum += (double)(s->window > 0 && s->window < sees ? s->window : sees);
    }
    return sum * (double)s->rows;
}

static void run(struct tr_device *dev, const struct tr_column *column, const struct shape *s, int n_calls)
{
    int64_t n = s->rows * s->length, document = s->document > 0 ? s->document : s->length;
    int64_t in_row = (s->length + document - 1) / document;
    size_t wide = (size_t)n * (size_t)(s->heads * s->head_dim);
    struct memory m = { .dev = dev };
    struct tr_view view[N_MATS], lse, begin, sample, position, step;
    uint16_t *random = malloc(wide * sizeof *random);
    int32_t *ints = malloc((size_t)n * 2 * sizeof *ints);
    int64_t *samples = malloc((size_t)n * sizeof *samples);
    float values[TR_STEP_COUNT] = { 0 };
    if (!random || !ints || !samples)
        exit(1);
    for (size_t i = 0; i < wide; i++)
        random[i] = i < 1 << 20 ? tr_bf16_of_f32((float)(int32_t)tr_philox(7, 0, i).v[0] * 0x1p-31f)
                                : random[i - (1 << 20) + i / (1 << 20) % 64];
    for (int64_t i = 0; i < n; i++) {
        int64_t at = i % s->length % document;
        ints[i] = (int32_t)(i - at), ints[n + i] = (int32_t)at, samples[i] = i - at;
    }
    for (int k = 0; k < N_MATS; k++) {
        int heads = k == KEY || k == VALUE || k == D_KEY || k == D_VALUE ? s->heads_kv : s->heads;
        int64_t cols = heads * s->head_dim;
        view[k] = (struct tr_view){ reserve(&m, wide * 2, random), TR_BF16, n, cols, cols };
    }
    lse = (struct tr_view){ reserve(&m, (size_t)(n * s->heads) * 4, NULL), TR_F32, n, s->heads, s->heads };
    begin = (struct tr_view){ reserve(&m, (size_t)n * 4, ints), TR_I32, n, 1, 1 };
    position = (struct tr_view){ reserve(&m, (size_t)n * 4, ints + n), TR_I32, n, 1, 1 };
    sample = (struct tr_view){ reserve(&m, (size_t)n * 8, samples), TR_I64, n, 1, 1 };
    step = (struct tr_view){ reserve(&m, sizeof values, values), TR_F32, 1, TR_STEP_COUNT, TR_STEP_COUNT };
    struct tr_call f = { .op = TR_OP_ATTENTION,
                         .dev = dev,
                         .n_documents = s->is_own ? 0 : s->rows * in_row,
                         .attr = { .n_heads_q = s->heads,
                                   .n_heads_kv = s->heads_kv,
                                   .head_dim = s->head_dim,
                                   .scale = 1.0f / sqrtf((float)s->head_dim),
                                   .window = (int32_t)s->window,
                                   .seq_len = s->length,
                                   .dropout_p = (float)s->dropout / 100,
                                   .any_order = s->any_order,
                                   .key = 3 },
                         .in = { view[QUERY], view[KEY], view[VALUE], begin, sample, position, step },
                         .out = { view[OUT], lse } };
    struct tr_call b = f;
    b.op = TR_OP_ATTENTION_BWD;
    struct tr_view in[] = { view[D_OUT], view[QUERY], view[KEY], view[VALUE], view[OUT],
                            lse,         begin,       sample,    position,    step };
    memcpy(b.in, in, sizeof in);
    b.out[0] = view[D_QUERY], b.out[1] = view[D_KEY], b.out[2] = view[D_VALUE];
    size_t bytes = column->scratch(&f, 1), bytes_b = column->scratch(&b, 1);
    f.scratch = b.scratch = reserve(&m, (bytes > bytes_b ? bytes : bytes_b) + 256, NULL);
    double flops = pairs_of(s) * s->heads * s->head_dim * 2, forward = time_call(column, &f, n_calls),
           backward = time_call(column, &b, n_calls);
    printf("| %s | %.3f | %.3f | %.0f | %.0f |\n", s->name, forward, backward, 2 * flops / forward * 1e-9,
           5 * flops / backward * 1e-9);
    fflush(stdout);
    for (int i = 0; i < m.n; i++)
        tr_device_release(dev, TR_SPACE_DEVICE, m.at[i], m.bytes[i]);
    free(random);
    free(ints);
    free(samples);
}

static const char *argument(int argc, char **argv, const char *name, const char *fallback)
{
    size_t n = strlen(name);
    for (int i = 1; i < argc; i++)
        if (strncmp(argv[i], name, n) == 0 && argv[i][n] == '=')
            return argv[i] + n + 1;
    return fallback;
}

int main(int argc, char **argv)
{
    const char *device = argument(argc, argv, "device", "cuda"), *cases = argument(argc, argv, "cases", "*");
    struct tr_device dev;
    int64_t calls = 0;
    if (tr_parse_int(argument(argc, argv, "calls", "20"), 1, 10000, &calls) != TR_OK ||
        !tr_device_is_present(tr_device_row(device)) || tr_device_open(device, &dev) != TR_OK) {
        fprintf(stderr, "bench_attention: no device %s here, or calls is no number\n", device);
        return 1;
    }
    const struct tr_column *column = tr_column_of(device);
    if (column->open && column->open(&dev, false) != TR_OK) {
        fprintf(stderr, "bench_attention: %s\n", tr_error_text());
        return 1;
    }
    printf("| heads of | forward ms | backward ms | TFLOP/s | backward |\n|---|---|---|---|---|\n");
    for (size_t i = 0; i < TR_COUNT_OF(shapes); i++)
        if (fnmatch(cases, shapes[i].name, 0) == 0)
            run(&dev, column, &shapes[i], (int)calls);
    if (column->close)
        column->close(&dev);
    tr_device_close(&dev);
    return 0;
}
