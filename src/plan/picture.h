/* picture.h - part of the room header: a forecast as pictures. */
#ifndef TR_PLAN_PICTURE_H
#define TR_PLAN_PICTURE_H

#include "plan/search.h"

/* The step as it is predicted: a row a pipeline rank, turns of micro-batches, traffic under them. path ends in .svg, or
 * in .json for a trace that chrome://tracing and Perfetto open. */
enum tr_status tr_timeline_write(const char *path, const struct tr_ask *a);

/* One bar a pipeline rank, an arena a colour; room_bytes 0: no line for the chip's memory. */
void tr_memory_svg(const struct tr_compiled *const *c, int n, double room_bytes, struct tr_str *out);
/* The same of one rank in a line of text. */
void tr_memory_bar(const struct tr_compiled *c, double room_bytes, struct tr_str *out);

#endif
