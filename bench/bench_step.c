/* bench_step.c - whole optimizer steps on random tokens: tokens/s, and model flops beside the rate of a matrix product.
 *
 * A product of 768 cubed is timed before and after each step, so that a shared machine slows both alike: of_peak is the
 * median over steps, best_of_peak compares the best step with the best product of the run. Usage: bench_step
 * [CONFIG.json|gpt2] [rows] [length] [threads] [steps] [dtype] [builtin|onednn|cblas]. Prints one JSON line.
 */
#include "bench_rig.h"

static int64_t number(int argc, char **argv, int i, int64_t fallback)
{
    int64_t v = fallback;
    if (argc > i && tr_parse_int(argv[i], 1, 1 << 20, &v) != TR_OK)
        fprintf(stderr, "bench_step: %s\n", tr_error_text());
    return v;
}

/* Median of a few measurements; the best goes to *best. */
static double product_rate(struct tr_pool *pool, double *best)
{
    double rate[9];
    for (size_t i = 0; i < TR_COUNT_OF(rate); i++)
        rate[i] = tr_gemm_peak(pool, TR_F32);
    qsort(rate, TR_COUNT_OF(rate), sizeof *rate, by_value);
    *best = rate[TR_COUNT_OF(rate) - 1] > *best ? rate[TR_COUNT_OF(rate) - 1] : *best;
    return rate[TR_COUNT_OF(rate) / 2];
}

int main(int argc, char **argv)
{
    enum tr_status st = TR_OK;
    struct rig r = { 0 };
    double seconds[64], share[64];
    int64_t start = tr_clock_us(), steps = tr_min64(64, number(argc, argv, 5, 8));
    struct rig_shape s = { .model = argc > 1 && strcmp(argv[1], "gpt2") != 0 ? argv[1] : NULL,
                           .device = "cpu",
                           .vocab = 50257,
                           .rows = number(argc, argv, 2, 4),
                           .length = number(argc, argv, 3, 256),
                           .n_threads = (int)number(argc, argv, 4, 2),
                           .opt = { .n_micro = 1 } };
    if (argc > 6)
        TR_TRY(tr_dtype_parse(argv[6], &s.opt.compute_dtype));
    for (int g = TR_GEMM_BUILTIN; argc > 7 && g <= TR_GEMM_CBLAS; g++) {
        enum tr_gemm_choice got;
        if (strcmp(argv[7], tr_gemm_name((enum tr_gemm_choice)g)) == 0)
            TR_TRY(tr_gemm_select((enum tr_gemm_choice)g, &got));
    }
    TR_TRY(rig_open(&r, &s));
    double ready = seconds_since(start), loss = 0, best_peak = 0, before = product_rate(r.pool, &best_peak);
    double tok = (double)r.n_tokens, flops = tr_model_flops_per_token(r.m) * tok;
    for (int64_t i = 0; i < steps + 2; i++) { /* two to warm up */
        struct tr_step_result result;
        int64_t at = tr_clock_us();
        TR_TRY(rig_step(&r, i, steps + 2, &result));
        loss = result.loss_sum / tok;
        double took = seconds_since(at), after = product_rate(r.pool, &best_peak);
        if (i >= 2) {
            seconds[i - 2] = took;
            share[i - 2] = flops / took / ((before + after) / 2);
        }
        before = after;
    }
    qsort(share, (size_t)steps, sizeof *share, by_value);
    qsort(seconds, (size_t)steps, sizeof *seconds, by_value);
    double median = seconds[steps / 2];
    printf("{\"bench\":\"step\",\"model\":\"%s\",\"parameters\":%" PRId64 ",\"rows\":%" PRId64 ",\"length\":%" PRId64
           ",\"threads\":%d,\"dtype\":\"%s\",\"steps\":%" PRId64
           ",\"median_s\":%.4f,\"best_s\":%.4f,\"tokens_per_s\":%.1f,"
           "\"gflops\":%.1f,\"peak_gflops\":%.1f,\"of_peak\":%.3f,\"best_of_peak\":%.3f,\"bytes\":%zu,\"ready_s\":%.3f,"
           "\"loss\":%.6f}\n",
           r.m->arch->model_type, r.m->n_elements, s.rows, s.length, r.c->opt.n_threads,
           tr_dtype_name(s.opt.compute_dtype), steps, median, seconds[0], tok / median, flops / median * 1e-9,
           best_peak * 1e-9, share[steps / 2], flops / seconds[0] / best_peak, tr_compiled_bytes(r.c), ready, loss);
out:
    if (st != TR_OK)
        fprintf(stderr, "bench_step: %s\n", tr_error_text());
    rig_close(&r);
    return st == TR_OK ? 0 : 1;
}
