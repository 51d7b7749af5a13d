/* plan.h - room header of plan: what a compiled run holds and does, as tables and as JSON; what it will take. */
#ifndef TR_PLAN_PLAN_H
#define TR_PLAN_PLAN_H

#include "parallel/parallel.h"
#include "plan/compare.h"
#include "plan/forecast.h"
#include "plan/picture.h"
#include "plan/price.h"
#include "plan/search.h"
#include "plan/whatif.h"

/* Bytes per arena; with_slices: every named slice too. */
void tr_plan_text(const struct tr_compiled *c, bool with_slices, struct tr_str *out);
/* {ranks: [{rank, total_bytes, arenas: [{name, bytes, slices: [...]}]}], flops_per_token, parameters,
 * parameters_trained, total_bytes} c: one for each pipeline rank, or with tensor ranks two: of the first and of the
 * last of them. forecast and known (what a model without a
 * directory stands for): objects that join them, or NULL. */
void tr_plan_json(const struct tr_compiled *const *c, int n_ranks, bool with_slices, const char *forecast,
                  const char *known, struct tr_str *out);

/* ---- what a host must have (remedy.c) ---- */

struct tr_setup;
struct tr_room { /* memory that one rank may take */
    uint64_t host_bytes, device_bytes;
};
uint64_t tr_host_bytes(const struct tr_compiled *c); /* of the host's memory; on a device of its own, without that */
bool tr_room_fits(const struct tr_room *room, const struct tr_compiled *c);
/* "; what fits, the cheapest first:" and at most three lines of options, each of which was compiled; or that none is
 * known. */
void tr_remedies_text(const struct tr_setup *s, const struct tr_room *room, struct tr_str *out);
/* The configuration with the rows that per_device_train_batch_size auto takes; others as they are. */
enum tr_status tr_find_batch(const struct tr_config *cfg, struct tr_config *out);
/* A setup that trains; one that is more than --memory_budget is refused with these lines. rank -1: of this process. */
enum tr_status tr_setup_open_advised(const struct tr_config *cfg, int rank, struct tr_setup **out);

void tr_shape_of_model(const struct tr_model *m, struct tr_shape_cost *out);
/* What a compiled run asks of a machine. */
void tr_forecast_query_of_compiled(const struct tr_compiled *c, const struct tr_machine *machine,
                                   struct tr_forecast_query *out);
void tr_conventions_text(const struct tr_forecast_query *a, enum tr_count_as as, struct tr_str *out);
void tr_forecast_text(const struct tr_forecast_query *a, const struct tr_forecast *f, struct tr_str *out);
void tr_forecast_json(const struct tr_forecast_query *a, const struct tr_forecast *f, struct tr_str *out);

#endif
