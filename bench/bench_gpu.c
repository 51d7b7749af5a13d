/* bench_gpu.c - whole optimizer steps on random tokens: tokens/s, and model flops beside the peak: on the CPU the
 * matrix peak measured in the same run, on a GPU the datasheet's. Prints one JSON line; profile=1 adds a table of ops,
 * each timed alone (waiting after every one, so the sum is more than a step).
 *
 *   bench_gpu [CONFIG.json|gpt2] [name=value ...]
 *   rows 4, length 256, micro 1, threads 2, steps 8, pack 0 (tokens of a document; 0 = a row), dtype float32, grad,
 * state (master and moments) float32, device cpu, recompute 0 (1 ops, 2 blocks), any_order 0 (1: other bits every run),
 * fp8 0, profile 0, graph 1 (cuda: replay steps), curve 0 (1: all losses). In the result: used, bytes in use on the
 * GPU; beside, those of no arena.
 */
#include "base/base.h"
#include "train/train.h"
#include <stdio.h>
#include <stdlib.h>

static const char gpt2[] = "{\"model_type\":\"gpt2\",\"vocab_size\":50304,\"n_embd\":768,\"n_layer\":12,\"n_head\":12,"
                           "\"n_positions\":1024,\"resid_pdrop\":0,\"embd_pdrop\":0,\"attn_pdrop\":0}";

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* The value of name=value among the arguments. */
static const char *text(int argc, char **argv, const char *name, const char *fallback)
{
    size_t n = strlen(name);
    for (int i = 1; i < argc; i++)
        if (strncmp(argv[i], name, n) == 0 && argv[i][n] == '=')
            return argv[i] + n + 1;
    return fallback;
}

static int64_t number(int argc, char **argv, const char *name, const char *fallback)
{
    int64_t v = 0;
    if (tr_parse_int(text(argc, argv, name, fallback), 0, 1 << 20, &v) != TR_OK) {
        fprintf(stderr, "bench_gpu: %s: %s\n", name, tr_error_text());
        exit(1);
    }
    return v;
}

static enum tr_dtype dtype(int argc, char **argv, const char *name)
{
    enum tr_dtype d = TR_F32;
    if (tr_dtype_parse(text(argc, argv, name, "float32"), &d) != TR_OK) {
        fprintf(stderr, "bench_gpu: %s: %s\n", name, tr_error_text());
        exit(1);
    }
    return d;
}

static void fill(const struct tr_batch *b, int64_t rows, int64_t length, int64_t pack, int64_t vocab, uint64_t key)
{
    for (int64_t i = 0; i < rows * length; i++) {
        int64_t in_row = i % length, at = in_row % (pack > 0 ? pack : length);
        b->tokens[i] = (int32_t)(tr_philox(key, 0, (uint64_t)i).v[0] % (uint64_t)vocab);
        b->positions[i] = (int32_t)at;
        b->begin[i] = (int32_t)(i - at);
        b->sample[i] = i / length;
        b->targets[i] = (int32_t)(tr_philox(key, 0, (uint64_t)i + 1).v[0] % (uint64_t)vocab);
    }
}

/* ---- the table of ops ---- */

static tr_kernel real[TR_OP_COUNT];
static struct {
    double seconds, flops, bytes;
    int64_t calls;
} spent[TR_OP_COUNT];

/* What a call must read and write at least: its views, each once. */
static double bytes_of(const struct tr_call *c)
{
    double sum = 0;
    for (int i = 0; i < TR_MAX_IN + TR_MAX_OUT; i++) {
        const struct tr_view *v = i < TR_MAX_IN ? &c->in[i] : &c->out[i - TR_MAX_IN];
        bool adds = i >= TR_MAX_IN && c->accumulate[i - TR_MAX_IN];
        sum += v->data ? (adds ? 2.0 : 1.0) * (double)(v->rows * v->cols) * (double)tr_dtype_bytes(v->dtype) : 0;
    }
    bool is_update = c->op == TR_OP_ADAMW || c->op == TR_OP_LION || c->op == TR_OP_SGD; /* state: read and written */
    for (int i = 0; is_update && i < 3; i++)
        sum += c->out[i].data ? (double)c->out[i].cols * (double)tr_dtype_bytes(c->out[i].dtype) : 0;
    return sum;
}

static void timed(const struct tr_call *c)
{
    (void)c->dev->ops->sync(c->dev);
    int64_t at = tr_clock_us();
    real[c->op](c);
    (void)c->dev->ops->sync(c->dev);
    spent[c->op].seconds += (double)(tr_clock_us() - at) * 1e-6;
    spent[c->op].flops += tr_op_flops(c);
    spent[c->op].bytes += bytes_of(c);
    spent[c->op].calls++;
}

static enum tr_status profile(struct tr_exec *e, const struct tr_config *cfg, const struct tr_batch *b,
                              const float *values)
{
    e->may_record = false;
    struct tr_step_result r;
    double sum = 0;
    for (int i = 0; i < TR_OP_COUNT; i++) {
        real[i] = e->kernel[i];
        e->kernel[i] = timed;
    }
    enum tr_status st = tr_exec_step(e, cfg, b, values, &r);
    for (int i = 0; i < TR_OP_COUNT; i++) {
        e->kernel[i] = real[i];
        sum += spent[i].seconds;
    }
    for (int i = 0; i < TR_OP_COUNT; i++)
        if (spent[i].calls)
            printf("  %-18s %5" PRId64 " calls %9.3f ms %5.1f %% %8.1f TFLOP/s %7.0f GB/s\n",
                   tr_op_row((enum tr_opcode)i)->name, spent[i].calls, spent[i].seconds * 1e3,
                   100 * spent[i].seconds / sum, spent[i].flops / spent[i].seconds * 1e-12,
                   spent[i].bytes / spent[i].seconds * 1e-9);
    printf("  %-18s             %9.3f ms\n", "all, one by one", sum * 1e3);
    return st;
}

int main(int argc, char **argv)
{
    enum tr_status st = TR_OK;
    cJSON *json = NULL;
    struct tr_model *m = NULL;
    struct tr_compiled *c = NULL;
    struct tr_pool *pool = NULL;
    struct tr_exec *e = NULL;
    struct tr_device dev = { 0 };
    double seconds[256];
    int64_t start = tr_clock_us();
    int64_t rows = number(argc, argv, "rows", "4"), length = number(argc, argv, "length", "256"),
            steps = tr_max64(1, tr_min64(256, number(argc, argv, "steps", "8"))),
            n_micro = tr_max64(1, tr_min64(16, number(argc, argv, "micro", "1")));
    const char *device = text(argc, argv, "device", "cpu"),
               *model = argc > 1 && !strchr(argv[1], '=') ? argv[1] : "gpt2";
    bool is_cuda = strcmp(device, "cuda") == 0;
    struct tr_model_options mo = { .rows = rows, .sequence_length = length };
    struct tr_compile_options co = { .compute_dtype = dtype(argc, argv, "dtype"),
                                     .grad_dtype = dtype(argc, argv, "grad"),
                                     .master_dtype = dtype(argc, argv, "state"),
                                     .moment_dtype = dtype(argc, argv, "state"),
                                     .n_moments = 2,
                                     .n_micro = (int)n_micro,
                                     .recompute = (enum tr_recompute)number(argc, argv, "recompute", "0"),
                                     .is_cuda = is_cuda,
                                     .fuses = number(argc, argv, "fuse", is_cuda ? "1" : "0") != 0,
                                     .fp8 = number(argc, argv, "fp8", "0") != 0,
                                     .any_order = number(argc, argv, "any_order", "0") != 0,
                                     .save_bytes = TR_IO_CHUNK * sizeof(float),
                                     .batch_bytes = is_cuda ? tr_batch_bytes(rows * length) : 0,
                                     .data_bytes = (size_t)n_micro * tr_batch_bytes(rows * length) };
    struct tr_config cfg = { .optim = TR_OPTIM_ADAMW,
                             .learning_rate = 1e-4,
                             .adam_beta1 = 0.9,
                             .adam_beta2 = 0.999,
                             .adam_epsilon = 1e-8,
                             .max_grad_norm = 1,
                             .weight_decay = 0.01,
                             .lr_scheduler_type = TR_LR_CONSTANT };
    if (strcmp(model, "gpt2") != 0)
        TR_TRY(tr_json_load(model, 1 << 20, &json));
    else
        TR_TRY(tr_json_parse(gpt2, sizeof gpt2 - 1, "gpt2", &json));
    TR_TRY(tr_model_from_json(json, &mo, &m));
    TR_TRY(tr_pool_open((int)number(argc, argv, "threads", "2"), &pool));
    co.n_threads = tr_pool_threads(pool);
    TR_TRY(tr_compile(m, NULL, NULL, &co, &c));
    TR_TRY(tr_device_open(device, &dev));
    TR_TRY(tr_exec_open(c, &dev, pool, NULL, 1, &e));
    e->may_record = number(argc, argv, "graph", is_cuda ? "1" : "0") != 0;
    struct tr_store store = tr_exec_store(e);
    TR_TRY(tr_load_random(&store, 1, pool, (float *)(void *)e->base[TR_A_SAVE]));
    struct tr_batch b[16];
    for (int64_t i = 0; i < n_micro; i++) {
        b[i] = tr_batch_in(e->base[TR_A_DATA] + (size_t)i * tr_batch_bytes(rows * length), rows * length);
        fill(&b[i], rows, length, number(argc, argv, "pack", "0"), m->hp.vocab, (uint64_t)i + 1);
    }
    int64_t n_tokens = n_micro * rows * length;
    fprintf(stderr, "ready after %.3f s, %.2f GiB\n", (double)(tr_clock_us() - start) * 1e-6,
            (double)dev.reserved_bytes / 0x1p30);
    double ready = (double)(tr_clock_us() - start) * 1e-6, first = 0, loss = 0;
    double peak = is_cuda ? dev.peak_flops : tr_gemm_peak(pool);
    float values[TR_STEP_COUNT];
    struct tr_step_result r = { 0 };
    for (int64_t i = 0; i < steps + 3; i++) { /* three to warm up */
        int64_t at = tr_clock_us();
        tr_step_values(&cfg, i, steps + 3, n_tokens, values);
        TR_TRY(tr_exec_step(e, &cfg, b, values, &r));
        loss = r.loss_sum / (double)n_tokens;
        if (i == 0)
            first = (double)(tr_clock_us() - start) * 1e-6;
        if (i < 4 || number(argc, argv, "curve", "0"))
            fprintf(stderr, "step %" PRId64 ": %.1f ms, loss %.6f\n", i, (double)(tr_clock_us() - at) * 1e-3, loss);
        if (i >= 3)
            seconds[i - 3] = (double)(tr_clock_us() - at) * 1e-6;
        double now = is_cuda ? peak : tr_gemm_peak(pool); /* the machine's best in this very run */
        peak = now > peak ? now : peak;
    }
    qsort(seconds, (size_t)steps, sizeof *seconds, by_value);
    double median = seconds[steps / 2], flops = tr_model_flops_per_token(m) * (double)n_tokens;
    size_t used = tr_device_used(&dev);
    if (number(argc, argv, "profile", "0"))
        TR_TRY(profile(e, &cfg, b, values));
    printf("{\"bench\":\"gpu\",\"model\":\"%s\",\"parameters\":%" PRId64 ",\"rows\":%" PRId64 ",\"length\":%" PRId64
           ",\"micro\":%" PRId64 ",\"device\":\"%s\",\"threads\":%d,\"dtype\":\"%s\",\"grad\":\"%s\",\"state\":\"%s\","
           "\"steps\":%" PRId64 ",\"median_s\":%.5f,\"best_s\":%.5f,\"tokens_per_s\":%.1f,"
           "\"gflops\":%.1f,\"peak_gflops\":%.1f,\"of_peak\":%.3f,\"bytes\":%zu,\"reserved\":%zu,\"ready_s\":%.3f,"
           "\"first_step_s\":%.3f,\"grad_norm\":%.6g,\"loss\":%.6f,\"used\":%zu,\"beside\":%lld}\n",
           m->arch->model_type, m->n_elements, rows, length, n_micro, device, co.n_threads,
           tr_dtype_name(co.compute_dtype), tr_dtype_name(co.grad_dtype), tr_dtype_name(co.master_dtype), steps, median,
           seconds[0], (double)n_tokens / median, flops / median * 1e-9, peak * 1e-9, flops / median / peak,
           tr_compiled_bytes(c), dev.reserved_bytes, ready, first, r.grad_norm, loss, used,
           (long long)used - (long long)(tr_compiled_bytes(c) - c->bytes[TR_A_DATA] - c->bytes[TR_A_SAVE]));
out:
    if (st != TR_OK)
        fprintf(stderr, "bench_gpu: %s\n", tr_error_text());
    tr_exec_close(e);
    tr_device_close(&dev);
    tr_pool_close(pool);
    tr_compiled_close(c);
    tr_model_close(m);
    return st == TR_OK ? 0 : 1;
}
