/* state.c - where the executor keeps each state of a parameter: what ckpt saves and loads, and kernels update. */
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
    const struct tr_compile_options *o = &e->c->opt;
    switch (what) {
    case TR_S_VALUE:
        return true;
    case TR_S_GRAD:
        return !o->is_inference;
    case TR_S_MASTER:
        return !o->is_inference && o->master_dtype != o->compute_dtype;
    default:
        return !o->is_inference && o->n_moments > (int)what - TR_S_M;
    }
}

enum tr_dtype tr_exec_dtype(const struct tr_exec *e, enum tr_state what)
{
    const struct tr_compile_options *o = &e->c->opt;
    switch (what) {
    case TR_S_VALUE:
        return o->compute_dtype;
    case TR_S_GRAD:
        return o->grad_dtype;
    case TR_S_MASTER:
        return o->master_dtype;
    default:
        return o->moment_dtype;
    }
}

bool tr_exec_is_sharded(const struct tr_exec *e, enum tr_state what)
{
    int zero = e->c->opt.layout.zero;
    return what == TR_S_VALUE ? zero >= 3 : what == TR_S_GRAD ? tr_grad_zero(&e->c->opt.layout) >= 2 : zero >= 1;
}

char *tr_exec_at(const struct tr_exec *e, enum tr_state what, int param, int64_t *first, int64_t *n)
{
    const struct tr_param_place *p = &e->c->place[param];
    *first = *n = 0;
    TR_BUG_ON(e->n_posted > 0 && !e->is_running); /* the caller has to drain first */
    if (p->bucket < 0)
        return NULL;
    const struct tr_bucket *f = &e->c->bucket[p->bucket];
    int64_t at = p->at - (tr_exec_is_sharded(e, what) ? f->shard_first : 0);
    char *bucket_at = what == TR_S_VALUE  ? e->base[TR_A_PARAMS] + f->value
                      : what == TR_S_GRAD ? e->base[TR_A_GRADS] + f->grad
                                          : e->base[TR_A_OPTIM] + f->state[what];
    *first = tr_exec_is_sharded(e, what) ? p->first : 0;
    *n = tr_exec_is_sharded(e, what) ? p->n : p->tp.n;
    return bucket_at + at * (int64_t)tr_dtype_bytes(tr_exec_dtype(e, what));
}
