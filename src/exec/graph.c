/* graph.c - the two halves of a step, gradients and update, as recordings of the device (CUDA graphs).
 *
 * Everything that changes from step to step is in the step buffer and in the batches' place, so a recording is good for
 * every later step; only how a batch is cut into documents chooses kernels, and a batch cut another way is run as it is
 * and recorded anew when its kind comes again. The first steps run as they are: kernels are chosen by timing them. Not
 * with peers, and not when somebody watches the actions or times them.
 */
#include "exec/exec_impl.h"
#include <stdlib.h>

enum { PLAIN_STEPS = 2 };

struct tr_recording {
    void *graph;
    int n_runs; /* as they are */
    bool is_refused;
};

/* How a micro-batch is cut, as far as kernels care: unknown, a document a row, several. */
static int cut_of(const struct tr_exec *e, int micro)
{
    const struct tr_model *m = e->c->model;
    int64_t n = e->n_documents[micro];
    return n == 0 ? 0 : n == m->n_tokens / m->sequence_length ? 1 : 2;
}

/* One kind for all micro-batches, or nothing to record. */
static struct tr_recording *recording_of(struct tr_exec *e, enum tr_step_part part)
{
    if (!tr_mesh_is_alone(e->mesh) || e->trace || e->look || !e->recording || !e->may_record)
        return NULL;
    int cut = cut_of(e, 0);
    for (int i = 1; part == TR_PART_GRADIENTS && i < e->c->opt.n_micro; i++)
        if (cut_of(e, i) != cut)
            return NULL;
    struct tr_recording *r = &e->recording[part == TR_PART_GRADIENTS ? cut : 3];
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
    e->recording = calloc(4, sizeof *e->recording); /* gradients by kind of batch, update */
    return e->recording ? TR_OK : tr_fail(TR_NOMEM, "executor: out of memory");
}

void tr_exec_recordings_close(struct tr_exec *e)
{
    for (int i = 0; e->recording && i < 4; i++)
        tr_device_forget(e->dev, e->recording[i].graph);
    free(e->recording);
}
