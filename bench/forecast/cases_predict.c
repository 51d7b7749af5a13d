/* cases_predict.c - the published number of a row, predicted: metric, unit and flops formula are those of its source.
 */
#include "forecast/cases.h"
#include "forecast/conventions.h"
#include "forecast/guess.h"
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
    bool is_frozen, is_tuning = tr_case_is_tuning(c, &is_frozen);
    if (is_frozen || (is_tuning && tr_case_has(c, TR_CASE_source, "NeMo")))
        return TR_FLOPS_TUNED;
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
    if (tr_case_has(c, TR_CASE_source, "dgxc") && c->query.shape.experts > 0)
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
    enum tr_precision n = c->query.precision == TR_PRECISION_FP32 ? TR_PRECISION_16 : c->query.precision;
    double peak = c->machine.chip.peak[n];
    return peak > 0 ? peak : c->machine.chip.peak[TR_PRECISION_16];
}

/* Megatron-Bridge before 26.06 counted two of the three matrices of GPT-OSS's experts, and every layer's whole past. */
static double tflops(const struct tr_case *c, const struct tr_forecast *f, enum tr_convention v)
{
    struct tr_forecast_query a = c->query;
    double release = tr_case_release(c, "Megatron-Bridge");
    if (release > 0 && release < 26.05 && tr_case_has(c, TR_CASE_model, "oss")) {
        a.shape.is_gated = false;
        a.shape.local_share = 0;
    }
    return tr_convention_flops(&a, v) * f->tokens_per_s / f->chips * 1e-12;
}

/* Flops with recompute. The formulas of SC21 and of BLOOM count it already. */
static double hardware_tflops(const struct tr_case *c, const struct tr_forecast *f)
{
    enum tr_convention v = convention_of(c);
    enum tr_keep keep = c->query.keep;
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

enum metric {
    STEP,
    RATE,     /* tokens of all chips */
    SAMPLES,  /* rows of all chips */
    TFLOPS,   /* of a chip, as its source counts */
    HARDWARE, /* with recompute */
    TRAIN,    /* for a number of tokens */
    BUBBLE,   /* share of the step */
    LAYER_FORWARD,
    LAYER_BACKWARD,
    TOTAL_BYTES,
    DOES_NOT_FIT,
    KORTHIKANTI_ACTS,
    KORTHIKANTI_STATE,
    KORTHIKANTI_SHARE,
};

/* A metric is a value in SI units times `scale`; is_each: for one chip; is_of_peak: over the peak of the chip. */
static const struct metric_row {
    const char *name;
    enum metric metric;
    double scale;
    bool is_each, is_of_peak, is_memory;
} metrics[] = {
    { "step_time_s", STEP, 1, false, false, false },
    { "step_time_ms", STEP, 1e3, false, false, false },
    { "tokens_per_s", RATE, 1, false, false, false },
    { "tokens_per_s_gpu", RATE, 1, true, false, false },
    { "tokens_per_s_per_gpu", RATE, 1, true, false, false },
    { "tokens_per_day_gpu", RATE, 86400, true, false, false },
    { "samples_per_s", SAMPLES, 1, false, false, false },
    { "samples_per_s_gpu", SAMPLES, 1, true, false, false },
    { "samples_per_s_per_gpu", SAMPLES, 1, true, false, false },
    { "tflops_per_gpu", TFLOPS, 1, false, false, false },
    { "model_tflops_per_gpu", TFLOPS, 1, false, false, false },
    { "mfu_pct", TFLOPS, 100, false, true, false },
    { "pct_peak", TFLOPS, 100, false, true, false },
    { "hw_tflops_per_gpu", HARDWARE, 1, false, false, false },
    { "hfu_pct", HARDWARE, 100, false, true, false },
    { "bubble_pct", BUBBLE, 100, false, false, false },
    { "days_300B_tokens", TRAIN, 300e9 / 86400, false, false, false },
    { "days_450B_tokens", TRAIN, 450e9 / 86400, false, false, false },
    { "days_1T_tokens", TRAIN, 1e12 / 86400, false, false, false },
    { "layer_fwd_ms", LAYER_FORWARD, 1e3, false, false, false },
    { "layer_bwd_ms", LAYER_BACKWARD, 1e3, false, false, false },
    { "peak_mem_GiB", TOTAL_BYTES, 1 / GIB, false, false, true },
    { "peak_mem_GB", TOTAL_BYTES, 1e-9, false, false, true },
    { "mem_GB_nvidia_smi", TOTAL_BYTES, 1e-9, false, false, true },
    { "oom", DOES_NOT_FIT, 1, false, false, true },
    { "activation_mem_GiB_analytic", KORTHIKANTI_ACTS, 1 / GIB, false, false, true },
    { "param+opt_mem_GiB_analytic", KORTHIKANTI_STATE, 1 / GIB, false, false, true },
    { "activation_mem_pct_of_tp_baseline", KORTHIKANTI_SHARE, 100, false, false, true },
};

static const struct metric_row *metric_of(const struct tr_case *c)
{
    for (size_t i = 0; i < TR_COUNT_OF(metrics); i++)
        if (is(c, metrics[i].name))
            return &metrics[i];
    return NULL;
}

static double measure(const struct tr_case *c, const struct tr_forecast *f, enum metric metric)
{
    const struct tr_forecast_query *a = &c->query;
    switch (metric) {
    case STEP:
        return f->step_s;
    case RATE:
        return f->tokens_per_s;
    case SAMPLES:
        return f->tokens_per_s / a->seq;
    case TFLOPS:
        return tflops(c, f, convention_of(c));
    case HARDWARE:
        return hardware_tflops(c, f);
    case TRAIN: /* seconds of a token */
        return 1 / f->tokens_per_s;
    case BUBBLE:
        return f->bubble_s / f->step_s;
    case LAYER_FORWARD:
        return f->layer_forward_s;
    case LAYER_BACKWARD:
        return f->layer_backward_s;
    case TOTAL_BYTES:
        return f->total_bytes;
    case DOES_NOT_FIT:
        return f->total_bytes > c->machine.chip.memory_bytes;
    case KORTHIKANTI_ACTS:
        return tr_korthikanti_bytes(a);
    case KORTHIKANTI_STATE:
        return 18 * a->shape.layers * (tr_shape_layer_params(&a->shape, true) - 2 * a->shape.hidden) /
               ((double)a->tp * a->pp);
    case KORTHIKANTI_SHARE:
    default:
        return tr_korthikanti_share(a);
    }
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
    c->query.machine = &c->machine;
    c->query.impl = &c->impl;
    if (tr_forecast(&c->query, &f) != TR_OK) {
        (void)tr_format(c->reason, sizeof c->reason, "%s", tr_error_text());
        tr_error_clear();
        return;
    }
    const struct metric_row *m = metric_of(c);
    if (!m) {
        char esc[40];
        (void)tr_format(c->reason, sizeof c->reason, "metric \"%s\" is not one that is forecast",
                        tr_escape(c->field[TR_CASE_metric], esc, sizeof esc));
        return;
    }
    c->predicted =
        m->scale * measure(c, &f, m->metric) / (m->is_each ? f.chips : 1) / (m->is_of_peak ? peak_of(c) * 1e-12 : 1);
    if (!m->is_memory && f.total_bytes > 1.5 * c->machine.chip.memory_bytes)
        tr_case_note(c, "more than the chip holds");
}

double tr_case_error(const struct tr_case *c)
{
    double scale = fabs(c->published) > 0 ? fabs(c->published) : 1;
    return 100 * fabs(c->predicted - c->published) / scale;
}

bool tr_case_is_throughput(const struct tr_case *c)
{
    const struct metric_row *m = metric_of(c);
    return m && !m->is_memory;
}
