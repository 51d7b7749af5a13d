/* legal.h - part of the room header: a model and a mesh as a legality query (config/legal.h). */
#ifndef TR_PARALLEL_LEGAL_H
#define TR_PARALLEL_LEGAL_H

#include "config/config.h"
#include "mesh/mesh.h"
#include "model/model.h"

/* Adds the shape of a model of one micro-batch. */
void tr_legal_add_model(const struct tr_model *m, struct tr_legal_query *q);
/* A query for a model on a mesh, with one micro-batch, one chunk per pipeline rank and no other options. */
struct tr_legal_query tr_legal_mesh(const struct tr_model *m, const int size[TR_AXES]);
/* Reads a schedule file as the compile will: TR_USAGE where it does not fit the pipeline of the query. A named schedule
 * always fits. */
enum tr_status tr_legal_add_schedule(struct tr_legal_query *q);

#endif
