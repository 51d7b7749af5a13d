/* conventions.c - model flops of a token by the formula of each source. */
#include "forecast/conventions.h"

double tr_convention_flops(const struct tr_forecast_query *a, enum tr_convention c)
{
    const struct tr_shape_cost *s = &a->shape;
    double L = s->layers, h = s->hidden, V = s->vocab, t = a->seq, gpt = L * h * h;
    double heads = (1 + s->n_further) * V * h, cores = (L + s->n_further) * (1 - s->local_share);
    double width = s->q_rank > 0 ? s->heads * (2 * s->head_dim + s->rope_dim) / 2 : s->heads * s->head_dim;
    switch (c) {
    case TR_FLOPS_CAUSAL:
        return tr_token_flops(a);
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
