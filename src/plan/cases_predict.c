/* cases_predict.c - one number of a forecast, in the words and units of the source that published it. */
#include "plan/cases.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define GIB (1024.0 * 1024 * 1024)

static bool is(const struct tr_case *c, const char *metric)
{
    return strcasecmp(c->field[TR_CASE_metric], metric) == 0;
}

/* ---- conventions of sources ---- */

static enum tr_convention convention_of(const struct tr_case *c)
{
    bool is_gpt = tr_case_has(c, TR_CASE_model, "GPT") || tr_case_has(c, TR_CASE_model, "Nemotron");
    if (tr_case_has(c, TR_CASE_source, "Korthikanti") || tr_case_has(c, TR_CASE_source, "MegaScale"))
        return TR_FLOPS_MEGATRON;
    if (tr_case_has(c, TR_CASE_source, "SC21") || tr_case_has(c, TR_CASE_source, "MT-NLG"))
        return TR_FLOPS_SC21;
    if (tr_case_has(c, TR_CASE_source, "BigScience") || tr_case_has(c, TR_CASE_source, "BLOOM")) {
        bool is_early = false; /* the formula changed on 2022-02-21 */
        for (int day = 17; day <= 20; day++) {
            char date[16];
            (void)tr_format(date, sizeof date, "02-%d", day);
            is_early |= tr_case_has(c, TR_CASE_source, date);
        }
        return is_early ? TR_FLOPS_8N : TR_FLOPS_SC21;
    }
    if (tr_case_has(c, TR_CASE_source, "MosaicML") || tr_case_has(c, TR_CASE_source, "torchtitan") ||
        tr_case_has(c, TR_CASE_source, "fms-fsdp"))
        return TR_FLOPS_6N;
    if (tr_case_has(c, TR_CASE_source, "dgxc") && c->ask.shape.experts > 0)
        return TR_FLOPS_CAUSAL;
    if (tr_case_has(c, TR_CASE_source, "dgxc")) { /* one formula for all from 25.05 on: GPT's, but not for Nemotron */
        bool is_late = tr_case_release(c, "dgxc") >= 25.05;
        if (is_late ? tr_case_has(c, TR_CASE_model, "llama") : is_gpt)
            return TR_FLOPS_GPT_DGXC;
    }
    if (tr_case_has(c, TR_CASE_source, "Megatron-Bridge") || tr_case_has(c, TR_CASE_source, "AutoModel") ||
        tr_case_has(c, TR_CASE_source, "Llama 3") || tr_case_has(c, TR_CASE_source, "Grattafiori"))
        return TR_FLOPS_CAUSAL;
    return TR_FLOPS_FULL;
}

static double peak_of(const struct tr_case *c)
{
    enum tr_number n = c->ask.number == TR_NUMBER_FP32 ? TR_NUMBER_16 : c->ask.number;
    double peak = c->machine.chip.peak[n];
    return peak > 0 ? peak : c->machine.chip.peak[TR_NUMBER_16];
}

/* Megatron-Bridge before 26.06 counted two of the three matrices of GPT-OSS's experts, and every layer's whole past. */
static double tflops(const struct tr_case *c, const struct tr_forecast *f, enum tr_convention v)
{
    struct tr_ask a = c->ask;
    double release = tr_case_release(c, "Megatron-Bridge");
    if (release > 0 && release < 26.05 && tr_case_has(c, TR_CASE_model, "oss")) {
        a.shape.is_gated = false;
        a.shape.local_share = 0;
    }
    return tr_convention_flops(&a, v) * f->tokens_per_s / f->chips * 1e-12;
}

/* What recompute adds; the formulas of SC21 and of BLOOM count it themselves. */
static double hardware_tflops(const struct tr_case *c, const struct tr_forecast *f)
{
    enum tr_convention v = convention_of(c);
    enum tr_keep keep = c->ask.keep;
    double again = keep == TR_KEEP_INPUT ? 4.0 / 3 : 1;
    if (v == TR_FLOPS_SC21 || v == TR_FLOPS_8N)
        again = 1;
    else if (v == TR_FLOPS_MEGATRON && keep == TR_KEEP_CORE)
        v = TR_FLOPS_MEGATRON_HARDWARE;
    else if (keep == TR_KEEP_OP || keep == TR_KEEP_HALF || keep == TR_KEEP_CORE)
        again = 7.0 / 6;
    return again * tflops(c, f, v);
}

/* ---- formulas of memory ---- */

/* "7.5B params": the number before B. */
static bool named_params(const struct tr_case *c, double *out)
{
    char *end;
    *out = strtod(c->field[TR_CASE_model], &end) * 1e9;
    return end != c->field[TR_CASE_model] && *end == 'B' && *out > 0 && *out < 1e18;
}

static bool state_bytes(const struct tr_case *c, double *zero, double *dp, double *tp)
{
    return tr_parse_real(c->field[TR_CASE_zero_stage], zero) == TR_OK && *zero >= 0 && *zero <= 3 &&
           tr_parse_real(c->field[TR_CASE_dp], dp) == TR_OK && *dp >= 1 &&
           tr_parse_real(c->field[TR_CASE_tp], tp) == TR_OK && *tp >= 1;
}

static void predict_formula(struct tr_case *c)
{
    double n, zero, dp, tp;
    struct tr_machine m;
    if (is(c, "busbw_GBps")) {
        (void)tr_format(c->reason, sizeof c->reason, "a property of the cluster, which its preset states");
        return;
    }
    if (!state_bytes(c, &zero, &dp, &tp)) {
        (void)tr_format(c->reason, sizeof c->reason, "zero_stage, dp or tp is not stated");
        return;
    }
    double each = tr_zero_bytes((int)zero, dp);
    if (is(c, "model_state_mem_GB")) {
        if (named_params(c, &n))
            c->predicted = each * n * 1e-9;
        else
            (void)tr_format(c->reason, sizeof c->reason, "the model does not say its parameters");
        return;
    }
    bool is_guess;
    if (tr_machine_guess(c->field[TR_CASE_gpu], &m, &is_guess) != TR_OK) {
        (void)tr_format(c->reason, sizeof c->reason, "%s", tr_error_text());
        tr_error_clear();
        return;
    }
    /* what is left of the chip when activations, buffers and fragments have had theirs: 18 % at ZeRO's measured limit
     * with shards, 35 % without (Rajbhandari 2020, table 2: both columns) */
    double room = is(c, "max_params_B_theory") ? 1 : zero == 0 ? 0.65 : 0.82;
    c->predicted = room * m.chip.memory_bytes / GIB * 1e9 / each * tp * 1e-9;
}

/* ---- the table of metrics ---- */

static double model_tflops(const struct tr_case *c, const struct tr_forecast *f)
{
    return tflops(c, f, convention_of(c));
}

static double predict_time(const struct tr_case *c, const struct tr_forecast *f)
{
    if (is(c, "step_time_s"))
        return f->step_s;
    if (is(c, "step_time_ms"))
        return 1e3 * f->step_s;
    if (is(c, "tokens_per_s_gpu"))
        return f->tokens_per_s / f->chips;
    if (is(c, "tokens_per_s"))
        return f->tokens_per_s;
    if (is(c, "samples_per_s"))
        return f->tokens_per_s / c->ask.seq;
    if (is(c, "mfu_pct") || is(c, "pct_peak"))
        return 100 * model_tflops(c, f) * 1e12 / peak_of(c);
    if (is(c, "hfu_pct"))
        return 100 * hardware_tflops(c, f) * 1e12 / peak_of(c);
    if (is(c, "hw_tflops_per_gpu"))
        return hardware_tflops(c, f);
    if (is(c, "model_tflops_per_gpu") || is(c, "tflops_per_gpu"))
        return model_tflops(c, f);
    if (is(c, "days_300B_tokens"))
        return 300e9 / (c->ask.global * c->ask.seq) * f->step_s / 86400;
    if (is(c, "layer_fwd_ms"))
        return 1e3 * f->layer_forward_s;
    if (is(c, "layer_bwd_ms"))
        return 1e3 * f->layer_backward_s;
    return -1;
}

static double predict_memory(const struct tr_case *c, const struct tr_forecast *f)
{
    if (is(c, "peak_mem_GiB"))
        return f->total_bytes / GIB;
    if (is(c, "peak_mem_GB") || is(c, "mem_GB_nvidia_smi"))
        return f->total_bytes * 1e-9;
    if (is(c, "oom"))
        return f->total_bytes > c->machine.chip.memory_bytes;
    if (is(c, "activation_mem_GiB_analytic"))
        return tr_korthikanti_bytes(&c->ask) / GIB;
    if (is(c, "param+opt_mem_GiB_analytic"))
        return 18 * c->ask.shape.layers * (tr_shape_layer_params(&c->ask.shape, true) - 2 * c->ask.shape.hidden) /
               ((double)c->ask.tp * c->ask.pp) / GIB;
    if (is(c, "activation_mem_pct_of_tp_baseline"))
        return 100 * tr_korthikanti_share(&c->ask);
    return -1;
}

void tr_case_predict(struct tr_case *c)
{
    struct tr_forecast f;
    c->predicted = 0;
    if (c->reason[0])
        return;
    if (!c->has_ask) {
        predict_formula(c);
        return;
    }
    c->ask.machine = &c->machine;
    c->ask.impl = &c->impl;
    if (tr_forecast(&c->ask, &f) != TR_OK) {
        (void)tr_format(c->reason, sizeof c->reason, "%s", tr_error_text());
        tr_error_clear();
        return;
    }
    c->predicted = predict_time(c, &f);
    if (c->predicted < 0)
        c->predicted = predict_memory(c, &f);
    if (!(c->predicted >= 0) || isinf(c->predicted)) {
        char esc[40];
        (void)tr_format(c->reason, sizeof c->reason, "metric \"%s\" is not one that is forecast",
                        tr_escape(c->field[TR_CASE_metric], esc, sizeof esc));
    }
}

double tr_case_error(const struct tr_case *c)
{
    double scale = fabs(c->published) > 0 ? fabs(c->published) : 1;
    return 100 * fabs(c->predicted - c->published) / scale;
}

/* All that predict_time knows. */
bool tr_case_is_throughput(const struct tr_case *c)
{
    static const char *const names[] = { "step_time_s",          "step_time_ms",    "tokens_per_s_gpu", "tokens_per_s",
                                         "samples_per_s",        "mfu_pct",         "pct_peak",         "hfu_pct",
                                         "hw_tflops_per_gpu",    "tflops_per_gpu",  "layer_fwd_ms",     "layer_bwd_ms",
                                         "model_tflops_per_gpu", "days_300B_tokens" };
    for (size_t i = 0; i < TR_COUNT_OF(names); i++)
        if (is(c, names[i]))
            return true;
    return false;
}
