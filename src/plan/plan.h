/* plan.h - room header of plan: what a compiled run holds and does, as tables and as JSON. */
#ifndef TR_PLAN_PLAN_H
#define TR_PLAN_PLAN_H

#include "parallel/parallel.h"

/* Bytes per arena; with_slices: every named slice too. */
void tr_plan_text(const struct tr_compiled *c, bool with_slices, struct tr_str *out);
/* {ranks: [{rank, total_bytes, arenas: [{name, bytes, slices: [...]}]}], flops_per_token, parameters, total_bytes}
 * c: one for each pipeline rank, or with tensor ranks two: of the first and of the last of them. */
void tr_plan_json(const struct tr_compiled *const *c, int n_ranks, bool with_slices, struct tr_str *out);

#endif
