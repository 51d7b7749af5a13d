/* forecast_impl.h - what the two halves of a forecast, seconds (forecast.c) and bytes (forecast_bytes.c), share. */
#ifndef TR_PLAN_FORECAST_IMPL_H
#define TR_PLAN_FORECAST_IMPL_H

#include "plan/forecast.h"

double tr_shard_size(const struct tr_ask *a);                 /* ranks that hold one copy between them */
double tr_shape_expert_params(const struct tr_shape_cost *s); /* of a layer's experts */
/* Of the fullest rank's parameters those whose optimizer state is there. */
double tr_owned_params(const struct tr_ask *a, const struct tr_forecast *f);
/* Fills rank_parameters, bytes and total_bytes: those of the fullest rank. */
void tr_forecast_bytes(const struct tr_ask *a, const struct tr_layer_cost *layer, const struct tr_layer_cost *head,
                       struct tr_forecast *f);

#endif
