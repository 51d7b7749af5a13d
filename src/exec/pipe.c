/* pipe.c - the executor's part of the pipeline: messages between stages, and parameters that two stages hold. */
#include "exec/exec_impl.h"

enum tr_status tr_exec_message(struct tr_exec *e, const struct tr_action *a)
{
    struct tr_coll c = { .dtype = a->dtype, .count = a->count, .root = a->peer };
    if (a->kind == TR_DO_WAIT)
        return tr_comm_wait(tr_mesh_axis(e->mesh, TR_AXIS_PP), e->message[a->message]);
    c.kind = a->kind == TR_DO_SEND ? TR_SEND : TR_RECV;
    c.site = a->kind == TR_DO_SEND ? "send to a stage" : "receive from a stage";
    if (c.kind == TR_SEND)
        c.in = e->base[TR_A_ACTS] + a->in;
    else
        c.out = e->base[TR_A_ACTS] + a->out;
    return tr_comm_post(tr_mesh_axis(e->mesh, TR_AXIS_PP), &c, &e->message[a->message]);
}

/* Both stages get the same sum, bit for bit, so that both copies of the parameters stay the same. */
enum tr_status tr_exec_tie(struct tr_exec *e, const struct tr_action *a)
{
    const struct tr_bucket *f = &e->c->bucket[a->segment];
    int zero = tr_grad_zero(&e->c->opt.layout);
    enum tr_dtype dtype = e->c->opt.grad_dtype;
    size_t skip = zero == 1 ? (size_t)f->shard_first * tr_dtype_bytes(dtype) : 0;
    char *at = e->base[TR_A_GRADS] + f->grad + skip;
    struct tr_coll c = { .kind = TR_ALL_REDUCE,
                         .dtype = dtype,
                         .op = TR_SUM,
                         .in = at,
                         .out = at,
                         .count = (size_t)f->shard_n,
                         .site = "gradients of shared parameters" };
    enum tr_status st = tr_exec_settle(e, a->segment);
    if (e->c->bucket[a->segment + 1].n > 0) { /* both uses are here */
        tr_exec_add_second_use(e, a->segment, at);
        return st;
    }
    return st == TR_OK ? tr_comm_run(tr_mesh_ends(e->mesh), &c) : st;
}

enum tr_status tr_exec_from_last_stage(struct tr_exec *e, const char *site, double *x, size_t n)
{
    return tr_exec_sum(tr_mesh_axis(e->mesh, TR_AXIS_PP), site, x, n); /* the others have 0 */
}
