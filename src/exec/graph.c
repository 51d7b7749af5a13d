/* graph.c - the two halves of a step, gradients and update, as recordings of the device (CUDA graphs).
 *
 * Everything that changes from step to step is in the step buffer and in the fixed place of the batches, so a recording
 * is valid for every later step. One thing outside them chooses kernels: how a batch is packed with documents. Each
 * kind of packing has its own recording. The first steps run without recording, because kernels are chosen by timing
 * them. Nothing is recorded in a run with peers, or while a caller watches or times the actions.
 */
#include "exec/exec_impl.h"
#include <stdlib.h>

enum { PLAIN_STEPS = 2 };

struct tr_recording {
    void *graph;
    int n_runs; /* that were not replayed */
    bool is_refused;
};

/* How a micro-batch is packed, as far as kernels depend on it. 0: unknown, 1: one document per row, 2: several. */
static int packing_of(const struct tr_exec *e, int micro)
{
    const struct tr_model *m = e->c->place.model;
    int64_t n = e->n_documents[micro];
    return n == 0 ? 0 : n == m->n_tokens / m->sequence_length ? 1 : 2;
}

/* NULL: nothing is recorded. A recording needs micro-batches that are all packed in the same way. */
static struct tr_recording *recording_of(struct tr_exec *e, enum tr_step_part part)
{
    if (!tr_mesh_is_alone(e->mesh) || e->trace || e->look || !e->recording || !e->may_record)
        return NULL;
    int packing = packing_of(e, 0);
    for (int i = 1; part == TR_PART_GRADIENTS && i < e->c->opt.n_micro; i++)
        if (packing_of(e, i) != packing)
            return NULL;
    struct tr_recording *r = &e->recording[part == TR_PART_GRADIENTS ? packing : 3];
    return r->is_refused ? NULL : r;
}

bool tr_exec_replay(struct tr_exec *e, enum tr_step_part part)
{
    struct tr_recording *r = recording_of(e, part);
    if (!r || !r->graph)
        return false;
    tr_device_replay(e->dev, r->graph);
    return true;
}

bool tr_exec_record(struct tr_exec *e, enum tr_step_part part)
{
    struct tr_recording *r = recording_of(e, part);
    return r && r->n_runs++ >= PLAIN_STEPS && tr_device_record(e->dev);
}

bool tr_exec_recorded(struct tr_exec *e, enum tr_step_part part)
{
    struct tr_recording *r = recording_of(e, part);
    r->graph = tr_device_recorded(e->dev);
    r->is_refused = r->graph == NULL;
    if (r->graph)
        tr_device_replay(e->dev, r->graph);
    return r->graph != NULL;
}

enum tr_status tr_exec_recordings_open(struct tr_exec *e)
{
    e->recording = calloc(4, sizeof *e->recording); /* gradients for each kind of packing, then update */
    return e->recording ? TR_OK : tr_fail(TR_NOMEM, "executor: out of memory");
}

void tr_exec_recordings_close(struct tr_exec *e)
{
    for (int i = 0; e->recording && i < 4; i++)
        tr_device_forget(e->dev, e->recording[i].graph);
    free(e->recording);
}
