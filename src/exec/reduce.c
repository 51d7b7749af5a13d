/* reduce.c - the executor's gathers and reductions. Collectives are posted and waited for when their result is next
 * needed, so that they travel while other segments compute. */
#include "exec/exec_impl.h"
#include <stdlib.h>

static enum tr_status run(struct tr_exec *e, struct tr_comm *comm, const struct tr_coll *c)
{
    return e->checked ? tr_comm_run_checked(comm, c, e->checked) : tr_comm_run(comm, c);
}

/* What came -> added to the shard that earlier micro-batches left. */
static void add_shard(struct tr_exec *e, char *came, char *sum, int64_t n)
{
    struct tr_view s = { .data = sum, .dtype = e->c->opt.grad_dtype, .rows = 1, .cols = n, .ld = n };
    struct tr_call c = {
        .op = TR_OP_ADD, .pool = e->pool, .scratch = e->base[TR_A_WORK] + e->c->scratch, .dev = e->dev
    };
    c.in[0] = c.out[0] = s;
    c.in[1] = s;
    c.in[1].data = came;
    tr_exec_kernel(e, &c);
}

/* A shard has come: shards are summed over their own axis first, then over their replicas. */
static enum tr_status take_shard(struct tr_exec *e, int bucket, struct tr_pending *p)
{
    int64_t n = e->c->bucket[bucket].shard_n;
    struct tr_coll c = { .kind = TR_ALL_REDUCE,
                         .dtype = e->c->opt.grad_dtype,
                         .op = TR_SUM,
                         .in = p->shard,
                         .out = p->shard,
                         .count = (size_t)n,
                         .site = "reduce shards over replicas" };
    enum tr_status st =
        tr_mesh_group(e->mesh, TR_ON_REPLICAS)->size > 1 ? run(e, tr_mesh_group(e->mesh, TR_ON_REPLICAS), &c) : TR_OK;
    if (st == TR_OK && p->sum)
        add_shard(e, p->shard, p->sum, n);
    p->shard = p->sum = NULL;
    e->reducing = -1;
    return st;
}

enum tr_status tr_exec_settle(struct tr_exec *e, int bucket)
{
    struct tr_pending *p = &e->pending[bucket];
    struct tr_comm *comm = p->comm;
    p->comm = NULL;
    enum tr_status st = comm ? tr_comm_wait(comm, p->ticket) : TR_OK;
    return st == TR_OK && p->shard ? take_shard(e, bucket, p) : st;
}

enum tr_status tr_exec_check_sums(struct tr_exec *e)
{
    if (!e->dev->ops->is_host)
        return tr_fail(TR_USAGE, "sdc_check is for --device cpu");
    if (!tr_mesh_is_alone(e->mesh))
        e->checked = malloc(tr_comm_checked_bytes(e->mesh->world));
    return e->checked || tr_mesh_is_alone(e->mesh)
               ? TR_OK
               : tr_fail(TR_NOMEM, "no memory to check sums of %d ranks", e->mesh->world);
}

static enum tr_status post(struct tr_exec *e, int bucket, struct tr_comm *comm, const struct tr_coll *c)
{
    enum tr_status st = tr_exec_settle(e, bucket); /* one at a time for a bucket */
    if (e->checked && st == TR_OK && (c->kind == TR_ALL_REDUCE || c->kind == TR_REDUCE_SCATTER))
        return run(e, comm, c);
    if (st == TR_OK)
        st = tr_comm_post(comm, c, &e->pending[bucket].ticket);
    if (st == TR_OK)
        e->pending[bucket].comm = comm;
    return st;
}

enum tr_status tr_exec_post_gather(struct tr_exec *e, const struct tr_action *a)
{
    const struct tr_bucket *f = &e->c->bucket[a->segment];
    size_t size = tr_dtype_bytes(e->c->opt.compute_dtype);
    char *whole = e->base[TR_A_PARAMS] + a->value[0];
    bool is_moved = e->c->opt.layout.zero >= 3; /* else this rank's shard is already in its place */
    struct tr_coll c = { .kind = TR_ALL_GATHER,
                         .dtype = e->c->opt.compute_dtype,
                         .out = whole,
                         .count = (size_t)f->n,
                         .in = is_moved ? e->base[TR_A_PARAMS] + f->value : whole + (size_t)f->shard_first * size,
                         .site = "gather parameters" };
    return post(e, a->segment, tr_mesh_axis(e->mesh, TR_AXIS_SHARD), &c);
}

static void cast(struct tr_exec *e, char *from, enum tr_dtype from_dtype, char *to, enum tr_dtype to_dtype, int64_t n)
{
    struct tr_call c = {
        .op = TR_OP_CAST, .pool = e->pool, .scratch = e->base[TR_A_WORK] + e->c->scratch, .dev = e->dev
    };
    c.in[0] = (struct tr_view){ .data = from, .dtype = from_dtype, .rows = 1, .cols = n, .ld = n };
    c.out[0] = (struct tr_view){ .data = to, .dtype = to_dtype, .rows = 1, .cols = n, .ld = n };
    tr_exec_kernel(e, &c);
}

/* As the collective c on gradients, but in reduce_dtype: what a rank gives and the sum are rounded to it. */
static enum tr_status reduce_narrow(struct tr_exec *e, const struct tr_bucket *f, struct tr_coll c)
{
    enum tr_dtype narrow = e->c->opt.reduce_dtype, wide = c.dtype;
    bool is_whole = c.kind == TR_ALL_REDUCE;
    char *wire = e->base[TR_A_GRADS] + e->c->wire, *to = c.out;
    int64_t n = is_whole ? f->n : f->shard_n;
    cast(e, (char *)(uintptr_t)c.in, wide, wire, narrow, f->n);
    c.dtype = narrow;
    c.in = wire;
    c.out = is_whole ? wire : wire + (size_t)f->shard_first * tr_dtype_bytes(narrow);
    enum tr_status st =
        run(e, is_whole ? tr_mesh_group(e->mesh, TR_ON_TOKENS) : tr_mesh_axis(e->mesh, TR_AXIS_SHARD), &c);
    if (st == TR_OK)
        cast(e, c.out, narrow, to, wide, n);
    return st;
}

/* Gradients travel while the next bucket computes; before its own travel, what came is taken: buffers and staging are
 * free again then. */
enum tr_status tr_exec_post_reduce(struct tr_exec *e, const struct tr_action *a)
{
    enum tr_status st = TR_OK;
    const struct tr_layout *l = &e->c->opt.layout;
    const struct tr_bucket *f = &e->c->bucket[a->segment];
    struct tr_coll c = { .dtype = e->c->opt.grad_dtype, .op = TR_SUM, .site = "reduce gradients" };
    char *whole = e->base[TR_A_GRADS] + a->grad[0];
    if (l->in_order)
        return tr_exec_reduce_in_order(e, a);
    if (l->zero == 0) {
        c.kind = TR_ALL_REDUCE;
        c.in = c.out = whole;
        c.count = (size_t)f->n;
        return e->c->has_wire ? reduce_narrow(e, f, c) : post(e, a->segment, tr_mesh_group(e->mesh, TR_ON_TOKENS), &c);
    }
    bool is_first = !e->is_summed[a->segment];
    char *shard =
        tr_grad_zero(l) >= 2 ? e->base[TR_A_GRADS] + f->grad : whole + (size_t)f->shard_first * tr_dtype_bytes(c.dtype);
    c.kind = TR_REDUCE_SCATTER;
    c.in = whole;
    c.out = is_first ? shard : e->base[TR_A_GRADS] + e->c->staging;
    c.count = (size_t)f->n;
    if (e->reducing >= 0)
        TR_TRY(tr_exec_settle(e, e->reducing));
    if (e->c->has_wire)
        TR_TRY(reduce_narrow(e, f, c));
    else
        TR_TRY(post(e, a->segment, tr_mesh_axis(e->mesh, TR_AXIS_SHARD), &c));
    e->pending[a->segment].shard = c.out;
    e->pending[a->segment].sum = is_first ? NULL : shard;
    e->reducing = a->segment;
    e->is_summed[a->segment] = true;
    for (int i = 0; tr_grad_zero(l) >= 2 && i < e->c->model->n_params; i++) /* the buffer is another's now */
        if (e->c->place[i].bucket == a->segment)
            e->is_touched[i] = false;
out:
    return st;
}

/* A bug that tests plant: a sum that is not taken. */
static bool is_skipped(void)
{
    if (tr_failpoint("tp.skip_reduce") == TR_OK)
        return false;
    tr_error_clear();
    return true;
}

/* What is this rank's of the bucket's first n_partial elements: the same range on every tensor rank. */
enum tr_status tr_exec_post_reduce_tp(struct tr_exec *e, const struct tr_action *a)
{
    const struct tr_bucket *f = &e->c->bucket[a->segment];
    int zero = tr_grad_zero(&e->c->opt.layout);
    int64_t first = zero >= 1 ? f->shard_first : 0, end = zero >= 1 ? first + f->shard_n : f->n;
    end = tr_min64(end, f->n_partial);
    if (first >= end || is_skipped())
        return TR_OK;
    char *at = e->base[TR_A_GRADS] + f->grad + (size_t)(zero == 1 ? first : 0) * tr_dtype_bytes(e->c->opt.grad_dtype);
    struct tr_coll c = { .kind = TR_ALL_REDUCE,
                         .dtype = e->c->opt.grad_dtype,
                         .op = TR_SUM,
                         .in = at,
                         .out = at,
                         .count = (size_t)(end - first),
                         .site = "reduce gradients of whole parameters" };
    return post(e, a->segment, tr_mesh_axis(e->mesh, TR_AXIS_TP), &c);
}

enum tr_status tr_exec_collective(struct tr_exec *e, const struct tr_call *c)
{
    static const enum tr_coll_kind kinds[] = { TR_ALL_REDUCE, TR_ALL_GATHER, TR_REDUCE_SCATTER };
    const struct tr_view *x = &c->in[0], *y = &c->out[0];
    if (c->op == TR_OP_COPY) /* y is x */
        return TR_OK;
    if (e->mesh->size[c->attr.axis] == 1 || (c->op == TR_OP_ALL_REDUCE && is_skipped())) {
        tr_exec_kernel(e, c);
        return TR_OK;
    }
    if (c->op == TR_OP_ALL_TO_ALL)
        return tr_exec_exchange(e, c);
    if (c->op == TR_OP_RING_ATTENTION || c->op == TR_OP_RING_ATTENTION_BWD)
        return tr_exec_ring(e, c);
    TR_BUG_ON(x->ld != x->cols || y->ld != y->cols || x->dtype != y->dtype);
    struct tr_coll coll = { .kind = kinds[c->op - TR_OP_ALL_REDUCE],
                            .dtype = x->dtype,
                            .op = TR_SUM,
                            .in = x->data,
                            .out = y->data,
                            .count = (size_t)(tr_max64(x->rows, y->rows) * x->cols),
                            .site = tr_op_row(c->op)->name };
    return run(e, tr_mesh_axis(e->mesh, c->attr.axis), &coll);
}

enum tr_status tr_exec_sum(struct tr_comm *comm, const char *site, double *x, size_t n)
{
    struct tr_coll c = {
        .kind = TR_ALL_REDUCE, .dtype = TR_F64, .op = TR_SUM, .in = x, .out = x, .count = n, .site = site
    };
    return tr_comm_run(comm, &c);
}

enum tr_status tr_exec_total(struct tr_exec *e, const char *site, double *x)
{
    return tr_exec_sum(tr_mesh_group(e->mesh, TR_ON_DATA), site, x, 1);
}

enum tr_status tr_exec_total_ranks(struct tr_exec *e, const char *site, double *x, size_t n)
{
    return tr_exec_sum(e->mesh->all, site, x, n);
}
