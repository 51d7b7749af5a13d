/* compare.h - part of the room header: a run beside its forecast. */
#ifndef TR_PLAN_COMPARE_H
#define TR_PLAN_COMPARE_H

#include "plan/search.h"

/* A question as members of a JSON object, and back: what a run writes into its `layout` event. */
void tr_forecast_query_json(const struct tr_forecast_query *a, struct tr_str *out);
enum tr_status tr_forecast_query_of_json(const cJSON *o, struct tr_forecast_query *out);

/* A line for people: the layout, the bytes, and with a machine the forecast; step_s 0: none. */
void tr_chosen_text(const struct tr_forecast_query *a, uint64_t bytes, double step_s, struct tr_str *out);
/* What could be better: too few micro-batches for the stages; with a machine, a layout that is clearly faster. "":
 * nothing. */
enum tr_status tr_advice_text(const struct tr_search_query *q, const struct tr_forecast_query *a, struct tr_str *out);

/* What a run's events say of its steps; medians over all but the first. */
struct tr_measured {
    struct tr_forecast_query query; /* without machine and impl */
    char machine[64];               /* "": the run named none */
    double predicted_s;             /* a step, by the run's own forecast; 0: it made none */
    int64_t n_steps;
    double step_s, slow_step_s;                          /* median; the 90th percentile */
    double tokens, data_wait_s, comm_exposed_s, stall_s; /* of a step; stall: of checkpoints, spread over the steps */
    double bubble;                                       /* share, < 0: not measured */
};
enum tr_status tr_measured_read(const char *dir, struct tr_measured *out);
/* Predicted beside measured, and the likely reason of the gap. */
void tr_compare_text(const struct tr_measured *m, const struct tr_forecast *f, struct tr_str *out);
void tr_compare_json(const struct tr_measured *m, const struct tr_forecast *f, struct tr_str *out);

#endif
