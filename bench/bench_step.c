/* bench_step.c - whole optimizer steps on random tokens: tokens/s, and model flops beside the rate of a matrix product.
 *
 * A product of 768 cubed is timed before and after each step, so that a shared machine slows both alike: of_peak is the
 * median over steps, best_of_peak compares the best step with the best product of the run. Usage: bench_step
 * [CONFIG.json|gpt2] [rows] [length] [threads] [steps] [dtype] [builtin|onednn|cblas]. Prints one JSON line.
 */
#include "base/base.h"
#include "train/train.h"
#include <stdio.h>
#include <stdlib.h>

static const char gpt2[] = "{\"model_type\":\"gpt2\",\"vocab_size\":50257,\"n_embd\":768,\"n_layer\":12,\"n_head\":12,"
                           "\"n_positions\":1024}";

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static int64_t number(int argc, char **argv, int i, int64_t fallback)
{
    int64_t v = fallback;
    if (argc > i && tr_parse_int(argv[i], 1, 1 << 20, &v) != TR_OK)
        fprintf(stderr, "bench_step: %s\n", tr_error_text());
    return v;
}

static void fill(const struct tr_batch *b, int64_t rows, int64_t length, int64_t vocab)
{
    for (int64_t i = 0; i < rows * length; i++) {
        b->tokens[i] = (int32_t)(tr_philox(1, 0, (uint64_t)i).v[0] % (uint64_t)vocab);
        b->positions[i] = (int32_t)(i % length);
        b->begin[i] = (int32_t)(i - i % length);
        b->sample[i] = i / length;
        b->targets[i] = (int32_t)(tr_philox(1, 0, (uint64_t)i + 1).v[0] % (uint64_t)vocab);
    }
}

/* Median of a few measurements; the best goes to *best. */
static double product_rate(struct tr_pool *pool, double *best)
{
    double rate[9];
    for (size_t i = 0; i < TR_COUNT_OF(rate); i++)
        rate[i] = tr_gemm_peak(pool);
    qsort(rate, TR_COUNT_OF(rate), sizeof *rate, by_value);
    *best = rate[TR_COUNT_OF(rate) - 1] > *best ? rate[TR_COUNT_OF(rate) - 1] : *best;
    return rate[TR_COUNT_OF(rate) / 2];
}

int main(int argc, char **argv)
{
    enum tr_status st = TR_OK;
    cJSON *json = NULL;
    struct tr_model *m = NULL;
    struct tr_compiled *c = NULL;
    struct tr_pool *pool = NULL;
    struct tr_exec *e = NULL;
    struct tr_device dev;
    double seconds[64], share[64];
    int64_t start = tr_clock_us();
    int64_t rows = number(argc, argv, 2, 4), length = number(argc, argv, 3, 256),
            steps = tr_min64(64, number(argc, argv, 5, 8));
    struct tr_model_options mo = { .rows = rows, .sequence_length = length };
    struct tr_compile_options co = { .n_moments = 2, .n_micro = 1 };
    float *buf = malloc(TR_IO_CHUNK * sizeof *buf);
    struct tr_config cfg = { .optim = TR_OPTIM_ADAMW,
                             .learning_rate = 1e-4,
                             .adam_beta1 = 0.9,
                             .adam_beta2 = 0.999,
                             .adam_epsilon = 1e-8,
                             .max_grad_norm = 1,
                             .weight_decay = 0.01,
                             .lr_scheduler_type = TR_LR_CONSTANT };
    if (argc > 6)
        TR_TRY(tr_dtype_parse(argv[6], &co.compute_dtype));
    for (int g = TR_GEMM_BUILTIN; argc > 7 && g <= TR_GEMM_CBLAS; g++) {
        enum tr_gemm_choice got;
        if (strcmp(argv[7], tr_gemm_name((enum tr_gemm_choice)g)) == 0)
            TR_TRY(tr_gemm_select((enum tr_gemm_choice)g, &got));
    }
    if (argc > 1 && strcmp(argv[1], "gpt2") != 0)
        TR_TRY(tr_json_load(argv[1], 1 << 20, &json));
    else
        TR_TRY(tr_json_parse(gpt2, sizeof gpt2 - 1, "gpt2", &json));
    TR_TRY(tr_model_from_json(json, &mo, &m));
    TR_TRY(tr_pool_open((int)number(argc, argv, 4, 2), &pool));
    co.n_threads = tr_pool_threads(pool);
    TR_TRY(tr_compile(m, NULL, NULL, &co, &c));
    TR_TRY(tr_device_open("cpu", &dev));
    TR_TRY(tr_exec_open(c, &dev, pool, NULL, 1, &e));
    struct tr_store store = tr_exec_store(e);
    TR_TRY(tr_load_random(&store, 1, pool, buf));
    void *mem = aligned_alloc(64, tr_batch_bytes(rows * length));
    struct tr_batch b = tr_batch_in(mem, rows * length);
    fill(&b, rows, length, m->hp.vocab);
    double ready = (double)(tr_clock_us() - start) * 1e-6, loss = 0, best_peak = 0,
           before = product_rate(pool, &best_peak);
    double flops = tr_model_flops_per_token(m) * (double)(rows * length);
    for (int64_t i = 0; i < steps + 2; i++) { /* two to warm up */
        float values[TR_STEP_COUNT];
        struct tr_step_result r;
        int64_t at = tr_clock_us();
        tr_step_values(&cfg, i, steps + 2, rows * length, values);
        TR_TRY(tr_exec_step(e, &cfg, &b, values, &r));
        loss = r.loss_sum / (double)(rows * length);
        double took = (double)(tr_clock_us() - at) * 1e-6, after = product_rate(pool, &best_peak);
        if (i >= 2) {
            seconds[i - 2] = took;
            share[i - 2] = flops / took / ((before + after) / 2);
        }
        before = after;
    }
    qsort(share, (size_t)steps, sizeof *share, by_value);
    qsort(seconds, (size_t)steps, sizeof *seconds, by_value);
    double tok = (double)(rows * length), median = seconds[steps / 2];
    printf("{\"bench\":\"step\",\"model\":\"%s\",\"parameters\":%" PRId64 ",\"rows\":%" PRId64 ",\"length\":%" PRId64
           ",\"threads\":%d,\"dtype\":\"%s\",\"steps\":%" PRId64
           ",\"median_s\":%.4f,\"best_s\":%.4f,\"tokens_per_s\":%.1f,"
           "\"gflops\":%.1f,\"peak_gflops\":%.1f,\"of_peak\":%.3f,\"best_of_peak\":%.3f,\"bytes\":%zu,\"ready_s\":%.3f,"
           "\"loss\":%.6f}\n",
           m->arch->model_type, m->n_elements, rows, length, co.n_threads, tr_dtype_name(co.compute_dtype), steps,
           median, seconds[0], tok / median, flops / median * 1e-9, best_peak * 1e-9, share[steps / 2],
           flops / seconds[0] / best_peak, tr_compiled_bytes(c), ready, loss);
    free(mem);
out:
    if (st != TR_OK)
        fprintf(stderr, "bench_step: %s\n", tr_error_text());
    tr_exec_close(e);
    tr_pool_close(pool);
    tr_compiled_close(c);
    tr_model_close(m);
    free(buf);
    return st == TR_OK ? 0 : 1;
}
