/* open.c - opens an executor: reserves exactly the arenas of the plan, and selects the kernels of its device.
 *
 * Arenas that collectives read and write come from the mesh, so that nothing is copied on the way to a peer.
 */
#include "exec/exec_impl.h"
#include <stdlib.h>

/* Do collectives read and write this arena? */
static bool has_collectives(const struct tr_compiled *c, int arena)
{
    bool is_split = tr_layout_splits(&c->opt.layout, TR_ON(TR_AXIS_TP) | TR_ON(TR_AXIS_CP));
    switch (arena) {
    case TR_A_PARAMS:
    case TR_A_GRADS:
        return true;
    case TR_A_ACTS:
        return c->place.n_stages > 1 || is_split;
    default:
        return arena == TR_A_WORK && is_split;
    }
}

size_t tr_exec_shared_bytes(const struct tr_compiled *c)
{
    size_t sum = 0;
    for (int a = 0; a < TR_A_COUNT; a++)
        sum += has_collectives(c, a) ? tr_round_up(c->memory.bytes[a], TR_COMM_ALIGN) : 0;
    return sum;
}

/* An arena with collectives is shared with the peers, where there are any. */
static bool is_shared(const struct tr_exec *e, int arena)
{
    return !tr_mesh_is_alone(e->mesh) && has_collectives(e->c, arena);
}

static enum tr_status reserve(struct tr_exec *e, int arena)
{
    void *base = NULL;
    size_t bytes = e->c->memory.bytes[arena];
    enum tr_status st = TR_OK;
    if (is_shared(e, arena) && bytes) {
        st = tr_comm_reserve(e->mesh->all, bytes, &base);
        e->dev->reserved_bytes += st == TR_OK ? bytes : 0;
        e->dev->n_reserves++;
    } else {
        const struct tr_arena_row *row = tr_arena_row((enum tr_arena_id)arena);
        st = tr_device_reserve(e->dev, row->space, bytes, row->name, &base);
    }
    e->base[arena] = base;
    return st;
}

static enum tr_status upload_constants(struct tr_exec *e)
{
    const struct tr_compiled *c = e->c;
    for (int i = 0; i < TR_C_COUNT; i++) {
        const struct tr_model *m = tr_constant_model(c, i);
        if (m->const_rows[i] == 0)
            continue;
        size_t bytes = (size_t)(m->const_rows[i] * m->const_cols[i]) * sizeof(float);
        float *table = malloc(bytes);
        if (!table)
            return tr_fail(TR_NOMEM, "rope table of %" PRId64 " positions: out of memory", m->const_rows[i]);
        tr_model_fill_constant(m, i, table);
        tr_device_copy_now(e->dev, e->base[TR_A_PARAMS] + c->memory.constant[i], table, bytes);
        free(table);
    }
    return TR_OK;
}

enum tr_status tr_exec_open(const struct tr_compiled *c, struct tr_device *dev, struct tr_pool *pool,
                            struct tr_mesh *mesh, uint64_t seed, struct tr_exec **out)
{
    enum tr_status st = TR_OK;
    struct tr_exec *e = calloc(1, sizeof *e);
    if (!e)
        return tr_fail(TR_NOMEM, "executor: out of memory");
    e->c = c;
    e->dev = dev;
    e->pool = pool;
    e->seed = seed;
    TR_TRY(tr_mesh_given(mesh, &e->own_mesh, &e->mesh));
    e->column = tr_column_of(dev->row->name);
    TR_BUG_ON(!e->column || !e->column->kernel);             /* a device without kernels could not be opened */
    TR_BUG_ON(e->column->scratch != c->opt.column->scratch); /* the plan was made for other kernels */
    for (int i = 0; i < TR_OP_COUNT; i++)
        e->kernel[i] = e->column->kernel((enum tr_opcode)i);
    e->norms = calloc((size_t)c->place.norm_first[c->place.model->n_params] + 1, sizeof *e->norms);
    /* of all ranks, and behind them those of this rank as the device has them */
    e->losses =
        calloc((size_t)(c->opt.layout.data_size + 1) * (size_t)(c->opt.n_micro + 1) * (size_t)c->place.model->n_losses,
               sizeof *e->losses);
    int64_t n_actions = 0;
    for (int k = 0; k < TR_PURPOSES; k++)
        n_actions = tr_max64(n_actions, c->schedule[k].n_actions);
    e->posted = calloc((size_t)n_actions + 1, sizeof *e->posted);
    e->n_documents = calloc((size_t)tr_max64(1, c->opt.n_micro), sizeof *e->n_documents);
    e->step_host = calloc(2 * TR_STEP_COUNT * (size_t)tr_max64(1, c->opt.groups.n), sizeof *e->step_host);
    if (!e->n_documents || !e->norms || !e->losses || !e->posted || !e->step_host)
        TR_TRY(tr_fail(TR_NOMEM, "executor: out of memory"));
    TR_TRY(tr_exec_recordings_open(e));
    TR_TRY(tr_exec_amax_open(e));
    e->joins_updates = e->column->update != NULL;
    e->has_one_norm =
        !dev->row->is_host && tr_mesh_is_alone(e->mesh) && !c->opt.layout.in_order && !c->opt.offloads_grads;
    /* A recording passes a failpoint once, when it is made, and not when it is replayed. */
    e->may_record = dev->row->capture && !getenv("TR_FAIL");
    if (dev->row->is_host && tr_failpoint("exec.poison_padding") != TR_OK) {
        tr_error_clear();
        e->poisons = true;
    }
    TR_TRY(tr_exec_copies_open(e));
    if (e->column->open)
        TR_TRY(e->column->open(dev, c->opt.any_order));
    for (int a = 0; a < TR_A_DISK; a++)
        TR_TRY(reserve(e, a));
    TR_TRY(tr_exec_spill_open(e));
    TR_TRY(upload_constants(e));
    for (int a = TR_A_GRADS; a <= TR_A_OPTIM; a++) /* memory of the host is zeroed */
        if (!dev->row->is_host && c->memory.bytes[a])
            tr_device_clear(dev, TR_STREAM_COMPUTE, e->base[a], c->memory.bytes[a]);
out:
    if (st == TR_OK)
        *out = e;
    else
        tr_exec_close(e);
    return st;
}

void tr_exec_close(struct tr_exec *e)
{
    if (!e)
        return;
    if (e->copied)
        (void)tr_device_sync_all(e->dev); /* copies that are under way use the arenas */
    tr_spill_close(e->disk);              /* its jobs use the arenas too */
    for (int a = 0; a < TR_A_DISK; a++)
        if (e->base[a] && is_shared(e, a))
            e->dev->reserved_bytes -= e->c->memory.bytes[a]; /* the mesh releases this memory */
        else if (e->base[a])
            tr_device_release(e->dev, tr_arena_row((enum tr_arena_id)a)->space, e->base[a], e->c->memory.bytes[a]);
    if (e->dev->library)
        e->column->close(e->dev);
    tr_exec_recordings_close(e);
    tr_exec_copies_close(e);
    tr_mesh_close(e->own_mesh);
    tr_exec_amax_close(e);
    free(e->n_documents);
    free(e->norms);
    free(e->losses);
    free(e->posted);
    free(e->step_host);
    free(e->checked);
    free(e);
}
