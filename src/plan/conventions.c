/* conventions.c - the same step in the words of each source: model flops of a token. */
#include "plan/forecast.h"

double tr_convention_flops(const struct tr_ask *a, enum tr_convention c)
{
    const struct tr_shape_cost *s = &a->shape;
    double L = s->layers, h = s->hidden, V = s->vocab, t = a->seq, gpt = L * h * h;
    double heads = (1 + s->n_further) * V * h, cores = (L + s->n_further) * (1 - s->local_share);
    double width = s->q_rank > 0 ? s->heads * (2 * s->head_dim + s->rope_dim) / 2 : s->heads * s->head_dim;
    switch (c) {
    case TR_FLOPS_CAUSAL:
        return 6 * (tr_shape_active_params(s) + heads) + 6 * cores * width * t;
    case TR_FLOPS_FULL:
        return 6 * (tr_shape_active_params(s) + heads) + 12 * cores * width * t;
    case TR_FLOPS_SC21:
        return 96 * gpt * (1 + t / (6 * h) + V / (16 * L * h));
    case TR_FLOPS_8N:
        return 8 * 12 * gpt;
    case TR_FLOPS_MEGATRON:
        return 72 * gpt * (1 + t / (6 * h) + V / (12 * L * h));
    case TR_FLOPS_MEGATRON_HARDWARE:
        return 72 * gpt * (1 + t / (3 * h) + V / (12 * L * h));
    case TR_FLOPS_6N:
        return 6 * tr_shape_params(s) + 12 * L * width * t;
    case TR_FLOPS_TUNED:
        return (a->is_frozen ? 4 : 6) * (tr_shape_active_params(s) + heads);
    case TR_FLOPS_GPT_DGXC:
    default:
        return 72 * gpt + 12 * L * h * t + 6 * V * h;
    }
}

/* ---- memory, in the words of the papers ---- */

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
static double korthikanti_layer(const struct tr_ask *a, enum tr_keep keep, bool has_sp)
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

double tr_korthikanti_bytes(const struct tr_ask *a)
{
    double p = a->pp, more = a->chunks > 1 ? 1 + (p - 1) / (p * a->chunks) : 1;
    return a->shape.layers * more * korthikanti_layer(a, a->keep, a->has_sp);
}

double tr_korthikanti_share(const struct tr_ask *a)
{
    return korthikanti_layer(a, a->keep, a->has_sp) / korthikanti_layer(a, TR_KEEP_ALL, false);
}
