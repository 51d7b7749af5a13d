/* picture.h - part of the room header: forecasts as pictures. */
#ifndef TR_PLAN_PICTURE_H
#define TR_PLAN_PICTURE_H

#include "plan/search.h"

/* A span of the predicted step: what a pipeline rank does, or the traffic below it. */
struct tr_timeline_span {
    int rank, micro; /* micro: -1 = none */
    bool is_traffic;
    const char *name;
    double begin_s, s;
};
/* Calls `each` for the spans of at most most_slots slots; *step_s is the whole step. */
enum tr_status tr_timeline_each(const struct tr_forecast_query *a, int most_slots, double *step_s,
                                void (*each)(void *context, const struct tr_timeline_span *span), void *context);
/* Writes the predicted step: a row for each pipeline rank with the slots of its micro-batches, and traffic below them.
 * path ends in .svg, or in .json for a trace that chrome://tracing and Perfetto open. */
enum tr_status tr_timeline_write(const char *path, const struct tr_forecast_query *a);

/* One bar for each pipeline rank, one colour for each arena. room_bytes 0: no line for the memory of the chip. */
void tr_memory_svg(const struct tr_compiled *const *c, int n, double room_bytes, struct tr_str *out);
/* The memory of every pipeline rank through one step, as the pickle that pytorch.org/memory_viz reads. */
enum tr_status tr_memory_snapshot(const struct tr_compiled *const *c, int n, struct tr_str *out);
/* The bar of one rank as a line of text. */
void tr_memory_bar(const struct tr_compiled *c, double room_bytes, struct tr_str *out);

#endif
