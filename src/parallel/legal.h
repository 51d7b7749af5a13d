/* legal.h - part of the room header: a model and a mesh as a request for the rules of what is legal (config/legal.h).
 */
#ifndef TR_PARALLEL_LEGAL_H
#define TR_PARALLEL_LEGAL_H

#include "config/config.h"
#include "mesh/mesh.h"
#include "model/model.h"

/* The shape of a model, which is of one micro-batch. */
void tr_legal_add_model(const struct tr_model *m, struct tr_legal_query *q);
/* A model on a mesh: one micro-batch, whole stages, nothing asked beyond. */
struct tr_legal_query tr_legal_mesh(const struct tr_model *m, const int size[TR_AXES]);
/* Reads a schedule file, as the compile will: TR_USAGE where it does not fit the pipeline of the query. Named schedules
 * always do. */
enum tr_status tr_legal_add_schedule(struct tr_legal_query *q);

#endif
