/* forecast_impl.h - private to plan: what seconds (forecast.c), bytes (forecast_bytes.c) and the search share. */
#ifndef TR_PLAN_FORECAST_IMPL_H
#define TR_PLAN_FORECAST_IMPL_H

#include "parallel/parallel.h"
#include "plan/forecast.h"

double tr_shard_size(const struct tr_forecast_query *a);      /* ranks that hold one copy between them */
double tr_shape_expert_params(const struct tr_shape_cost *s); /* of a layer's experts */
/* Of the fullest rank's parameters those whose optimizer state is there. */
double tr_owned_params(const struct tr_forecast_query *a, const struct tr_forecast *f);
/* Fills rank_parameters, bytes and total_bytes: those of the fullest rank. */
void tr_forecast_bytes(const struct tr_forecast_query *a, const struct tr_layer_cost *layer,
                       const struct tr_layer_cost *head, struct tr_forecast *f);

/* ---- pipeline schedules that are used again (pipes.c) ---- */

struct tr_pipes;
struct tr_pipe_key {
    const char *schedule;
    int n_ranks, n_chunks, n_micro;
};
enum tr_status tr_pipes_open(struct tr_pipes **out);
void tr_pipes_close(struct tr_pipes *o);
/* The seconds that the schedule takes with these costs. o NULL: nothing is remembered. */
enum tr_status tr_pipes_play(struct tr_pipes *o, const struct tr_pipe_key *key, const struct tr_pipe_costs *costs,
                             double *length);
/* tr_forecast for a search, which asks for the same schedules again and again. */
enum tr_status tr_forecast_again(const struct tr_forecast_query *a, struct tr_pipes *pipes, struct tr_forecast *out);

#endif
