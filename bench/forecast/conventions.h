/* conventions.h - published tables count the model flops of a step by different formulas; each is one row here. */
#ifndef FORECAST_CONVENTIONS_H
#define FORECAST_CONVENTIONS_H

#include "plan/forecast.h"

enum tr_convention {
    TR_FLOPS_CAUSAL,            /* 6 (L W + V h) + 6 L h s: Megatron-Bridge, AutoModel */
    TR_FLOPS_FULL,              /* 6 (L W + V h) + 12 L h s: NeMo 24.07, dgxc */
    TR_FLOPS_SC21,              /* 96 B s L h^2 (1 + s/6h + V/16Lh): recompute counted */
    TR_FLOPS_8N,                /* 8 N without embedding: BLOOM before its change of formula */
    TR_FLOPS_MEGATRON,          /* 72 B s L h^2 (1 + s/6h + V/12Lh): Korthikanti, MegaScale */
    TR_FLOPS_MEGATRON_HARDWARE, /* the same with the core of attention twice */
    TR_FLOPS_6N,                /* 6 N + 12 L h s with all parameters: MosaicML, torchtitan, fms */
    TR_FLOPS_TUNED,             /* 6 (L W + V h), 4 where weights are frozen: NeMo's fine-tuning */
    TR_FLOPS_GPT_DGXC,          /* 72 L h^2 + 12 L h s + 6 V h whatever the kv heads: dgxc's GPT and Nemotron */
};
double tr_convention_flops(const struct tr_forecast_query *a, enum tr_convention c); /* of one token */

#endif
