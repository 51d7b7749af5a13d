/* pipe.c - the executor's part of the pipeline: messages between stages, and parameters that two stages hold. */
#include "exec/exec_impl.h"

static enum tr_status message(struct tr_run *r, const struct tr_action *a)
{
    bool is_send = a->kind == TR_DO_SEND;
    char *acts = r->e->base[TR_A_ACTS];
    struct tr_coll c = { .kind = is_send ? TR_SEND : TR_RECV,
                         .dtype = a->dtype,
                         .count = a->count,
                         .root = a->peer,
                         .in = is_send ? acts + a->in : NULL,
                         .out = is_send ? NULL : acts + a->out,
                         .site = is_send ? "send to a stage" : "receive from a stage" };
    return tr_exec_post(r, a, tr_mesh_axis(r->e->mesh, TR_AXIS_PP), &c);
}

enum tr_status tr_run_SEND(struct tr_run *r, const struct tr_action *a)
{
    return message(r, a);
}

enum tr_status tr_run_RECV(struct tr_run *r, const struct tr_action *a)
{
    return message(r, a);
}

/* The loop has done the wait; the action itself does nothing. */
enum tr_status tr_run_WAIT(struct tr_run *r, const struct tr_action *a)
{
    (void)r;
    (void)a;
    return TR_OK;
}

/* Both stages get the same sum, bit for bit, so both copies of the parameters stay equal. */
enum tr_status tr_run_TIE(struct tr_run *r, const struct tr_action *a)
{
    struct tr_exec *e = r->e;
    char *at = tr_exec_shard(e, a->of);
    struct tr_coll c = { .kind = TR_ALL_REDUCE,
                         .dtype = e->c->opt.grad_dtype,
                         .op = TR_SUM,
                         .in = at,
                         .out = at,
                         .count = (size_t)e->c->place.bucket[a->of].shard_n,
                         .site = "gradients of shared parameters" };
    if (e->c->place.bucket[a->of + 1].n > 0) { /* this rank holds both uses */
        tr_exec_add_second_use(e, a->of, at);
        return TR_OK;
    }
    return tr_comm_run(tr_mesh_ends(e->mesh), &c);
}

enum tr_status tr_exec_from_last_stage(struct tr_exec *e, const char *site, double *x, size_t n)
{
    return tr_exec_sum(tr_mesh_axis(e->mesh, TR_AXIS_PP), site, x, n); /* the other stages pass 0 */
}
