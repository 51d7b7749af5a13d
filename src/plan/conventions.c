/* conventions.c - memory by the formulas of papers, for `plan --conventions`. What a run holds is the compile's matter.
 */
#include "plan/forecast.h"

/* Rajbhandari 2020, figure 1: fp16 parameters and gradients, Adam with K = 12. */
double tr_zero_bytes(int stage, double dp)
{
    return stage == 0 ? 16 : stage == 1 ? 4 + 12 / dp : stage == 2 ? 2 + 14 / dp : 16 / dp;
}

/* Megatron's: bf16 parameters, fp32 gradients; distributed optimizer: 12 of 18 over dp. */
double tr_megatron_bytes(bool is_distributed, double dp)
{
    return is_distributed ? 6 + 12 / dp : 18;
}

/* Korthikanti 2022, table 2: bytes that one layer keeps of one micro-batch. */
static double korthikanti_layer(const struct tr_forecast_query *a, enum tr_keep keep, bool has_sp)
{
    double sbh = a->seq * a->micro * a->shape.hidden, t = a->tp, h = a->shape.hidden;
    double wide = a->shape.is_gated ? 8 * a->shape.ffn / h : 4 * a->shape.ffn / h; /* 16 of 34 where f = 4h */
    double scores = 5 * a->shape.heads * a->seq / h, inner = 8 + wide, outer = 10;
    if (keep == TR_KEEP_INPUT)
        return 2 * sbh;
    if (keep == TR_KEEP_CORE)
        scores = 0;
    return sbh * (outer / (has_sp ? t : 1) + (inner + scores) / t);
}

double tr_korthikanti_bytes(const struct tr_forecast_query *a)
{
    double p = a->pp, more = a->chunks > 1 ? 1 + (p - 1) / (p * a->chunks) : 1;
    return a->shape.layers * more * korthikanti_layer(a, a->keep, a->has_sp);
}

double tr_korthikanti_share(const struct tr_forecast_query *a)
{
    return korthikanti_layer(a, a->keep, a->has_sp) / korthikanti_layer(a, TR_KEEP_ALL, false);
}
