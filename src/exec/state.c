/* state.c - where the executor keeps each state of a parameter. Checkpoints save and load these states; kernels update
 * them. */
#include "exec/exec_impl.h"

const struct tr_compiled *tr_exec_compiled(const struct tr_exec *e)
{
    return e->c;
}

struct tr_device *tr_exec_device(const struct tr_exec *e)
{
    return e->dev;
}

struct tr_pool *tr_exec_pool(const struct tr_exec *e)
{
    return e->pool;
}

struct tr_mesh *tr_exec_mesh(const struct tr_exec *e)
{
    return e->mesh;
}

char *tr_exec_arena(const struct tr_exec *e, enum tr_arena_id a)
{
    return e->base[a];
}

const double *tr_exec_losses(const struct tr_exec *e)
{
    return e->losses;
}

const double *tr_exec_norms(const struct tr_exec *e)
{
    return e->norms;
}

bool tr_exec_has_one_norm(const struct tr_exec *e)
{
    return e->has_one_norm;
}

struct tr_amax_history *tr_exec_amax(struct tr_exec *e)
{
    return &e->amax;
}

bool tr_exec_has(const struct tr_exec *e, enum tr_state what)
{
    return (int)what < e->c->place.states.n && e->c->place.states.row[what].is_held;
}

bool tr_exec_holds(const struct tr_exec *e, enum tr_state what, int param)
{
    return tr_states_has(&e->c->place.states, (int)what, (enum tr_fate)e->c->place.fate_of[param]);
}

bool tr_exec_is_on_host(const struct tr_exec *e, enum tr_state what, int param)
{
    int bucket = e->c->place.param[param].bucket;
    return e->dev->row->is_host ||
           (bucket >= 0 && tr_arena_row(tr_state_arena(&e->c->place, (int)what, bucket))->space != TR_SPACE_DEVICE);
}

enum tr_dtype tr_exec_dtype(const struct tr_exec *e, enum tr_state what)
{
    return e->c->place.states.row[what].dtype;
}

bool tr_exec_is_sharded(const struct tr_exec *e, enum tr_state what)
{
    return e->c->place.states.row[what].is_sharded;
}

struct tr_tp_shard tr_exec_tp_shard(const struct tr_exec *e, enum tr_state what, int param)
{
    const struct tr_param *p = &e->c->place.model->param[param];
    const struct tr_state_row *r = &e->c->place.states.row[what];
    if (r->shape != TR_PER_BLOCK)
        return tr_tp_shard_of(1, 1, tr_state_count(r, p->rows, p->cols), (struct tr_split){ .dim = TR_WHOLE }, 1, 0);
    return tr_tp_blocks(&e->c->place.param[param].tp, tr_exec_element(e, what, param).block);
}

struct tr_state_element tr_exec_element(const struct tr_exec *e, enum tr_state what, int param)
{
    const struct tr_state_row *r = &e->c->place.states.row[what];
    enum tr_packed packed = what == TR_S_VALUE ? (enum tr_packed)e->c->place.packed_of[param] : TR_NOT_PACKED;
    if (packed)
        return (struct tr_state_element){ tr_packed_format(packed)->grain, tr_packed_grain_bytes(packed) };
    return (struct tr_state_element){ r->block, tr_dtype_bytes(r->dtype) };
}

bool tr_exec_part(const struct tr_exec *e, enum tr_state what, int param, int64_t *first, int64_t *n)
{
    const struct tr_param_place *p = &e->c->place.param[param];
    const struct tr_state_row *r = &e->c->place.states.row[what];
    *first = *n = 0;
    if (p->bucket < 0 || !tr_exec_holds(e, what, param))
        return false;
    struct tr_state_element x = tr_exec_element(e, what, param);
    *first = r->is_sharded ? p->first / x.block : 0;
    *n = r->shape != TR_PER_BLOCK ? tr_exec_tp_shard(e, what, param).n
                                  : ((r->is_sharded ? p->n : p->tp.n) + x.block - 1) / x.block;
    return true;
}

char *tr_exec_at(const struct tr_exec *e, enum tr_state what, int param, int64_t *first, int64_t *n)
{
    const struct tr_param_place *p = &e->c->place.param[param];
    const struct tr_state_row *r = &e->c->place.states.row[what];
    TR_BUG_ON((e->n_posted > 0 || e->is_pending) && !e->is_running); /* the caller must drain first */
    if (!tr_exec_part(e, what, param, first, n))
        return NULL;
    const struct tr_bucket *f = &e->c->place.bucket[p->bucket];
    struct tr_state_element x = tr_exec_element(e, what, param);
    int64_t at = (p->at - (r->is_sharded ? f->shard_first : 0)) / x.block; /* both are multiples of the block */
    if (r->shape != TR_PER_BLOCK)
        at = p->at_by[r->shape];
    return e->base[tr_state_arena(&e->c->place, (int)what, p->bucket)] + e->c->memory.bucket[p->bucket].state[what] +
           at * (int64_t)x.bytes;
}
