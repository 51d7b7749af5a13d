/* reduce.c - gathers of parameters, sums of gradients over ranks, and the collectives inside programs. */
#include "exec/exec_impl.h"
#include <stdlib.h>

/* Adds a received shard to the sum of earlier micro-batches. */
static void add_shard(struct tr_exec *e, char *received, char *sum, int64_t n)
{
    struct tr_view s = { .data = sum, .dtype = e->c->opt.grad_dtype, .rows = 1, .cols = n, .ld = n };
    struct tr_call c = tr_exec_call(e, TR_OP_ADD);
    c.in[0] = c.out[0] = s;
    c.in[1] = s;
    c.in[1].data = received;
    tr_exec_kernel(e, &c);
}

enum tr_status tr_exec_check_sums(struct tr_exec *e)
{
    if (!e->dev->row->is_host)
        return tr_fail(TR_USAGE,
                       "sdc_check does not work on device %s: sums are checked in host memory; use --device cpu",
                       e->dev->row->name);
    if (!tr_mesh_is_alone(e->mesh))
        e->checked = malloc(tr_comm_checked_bytes(e->mesh->world));
    return e->checked || tr_mesh_is_alone(e->mesh)
               ? TR_OK
               : tr_fail(TR_NOMEM, "no memory to check sums of %d ranks", e->mesh->world);
}

enum tr_status tr_run_GATHER(struct tr_run *r, const struct tr_action *a)
{
    struct tr_exec *e = r->e;
    const struct tr_bucket *f = &e->c->place.bucket[a->of];
    char *whole = e->base[TR_A_PARAMS] + a->value[0];
    bool is_moved = e->c->opt.layout.zero >= 3; /* otherwise this rank's shard is already in its place */
    struct tr_coll c = { .kind = TR_ALL_GATHER,
                         .dtype = f->packed ? TR_U8 : e->c->opt.compute_dtype,
                         .out = whole,
                         .count = f->packed ? tr_bucket_bytes(&e->c->place, a->of, f->n) : (size_t)f->n,
                         .in = is_moved ? e->base[TR_A_PARAMS] + e->c->memory.bucket[a->of].state[TR_S_VALUE]
                                        : whole + tr_bucket_bytes(&e->c->place, a->of, f->shard_first),
                         .site = "gather parameters" };
    return tr_exec_post(r, a, tr_mesh_axis(e->mesh, TR_AXIS_SHARD), &c);
}

static void cast(struct tr_exec *e, char *from, enum tr_dtype from_dtype, char *to, enum tr_dtype to_dtype, int64_t n)
{
    struct tr_call c = tr_exec_call(e, TR_OP_CAST);
    c.in[0] = (struct tr_view){ .data = from, .dtype = from_dtype, .rows = 1, .cols = n, .ld = n };
    c.out[0] = (struct tr_view){ .data = to, .dtype = to_dtype, .rows = 1, .cols = n, .ld = n };
    tr_exec_kernel(e, &c);
}

char *tr_exec_shard(const struct tr_exec *e, int bucket)
{
    const struct tr_bucket *f = &e->c->place.bucket[bucket];
    /* the gradients are whole here, and the shard is a part of them */
    bool is_whole = tr_grad_zero(&e->c->opt.layout) < 2;
    return e->base[TR_A_GRADS] + e->c->memory.bucket[bucket].state[TR_S_GRAD] +
           (is_whole ? (size_t)f->shard_first * tr_dtype_bytes(e->c->opt.grad_dtype) : 0);
}

/* Runs the collective c on gradients in reduce_dtype: the input of each rank and the sum are rounded to it. */
static enum tr_status reduce_narrow(struct tr_run *r, const struct tr_action *a, struct tr_comm *comm, struct tr_coll c)
{
    struct tr_exec *e = r->e;
    const struct tr_bucket *f = &e->c->place.bucket[a->of];
    enum tr_dtype narrow = e->c->opt.reduce_dtype, wide = c.dtype;
    bool is_whole = c.kind == TR_ALL_REDUCE;
    char *wire = e->base[TR_A_GRADS] + e->c->memory.wire, *to = c.out;
    int64_t n = is_whole ? f->n : f->shard_n;
    cast(e, (char *)(uintptr_t)c.in, wide, wire, narrow, f->n);
    c.dtype = narrow;
    c.in = wire;
    c.out = is_whole ? wire : wire + (size_t)f->shard_first * tr_dtype_bytes(narrow);
    TR_PASS(tr_exec_post(r, a, comm, &c));
    cast(e, c.out, narrow, to, wide, n);
    return TR_OK;
}

/* A fault that tests plant: a sum is skipped. */
static bool is_skipped(void)
{
    if (tr_failpoint("tp.skip_reduce") == TR_OK)
        return false;
    tr_error_clear();
    return true;
}

/* Where a reduction writes its shard: in its final place, or in the staging buffer when it is added to earlier sums. */
static char *reduced_shard(const struct tr_exec *e, const struct tr_action *a)
{
    return a->is_first ? tr_exec_shard(e, a->of) : e->base[TR_A_GRADS] + e->c->memory.staging;
}

/* The first hop reads the whole bucket. Later hops sum the part of the hop's elements that this rank keeps. */
enum tr_status tr_run_REDUCE(struct tr_run *r, const struct tr_action *a)
{
    struct tr_exec *e = r->e;
    const struct tr_bucket *f = &e->c->place.bucket[a->of];
    const struct tr_hop *h = &f->hop[a->hop];
    bool is_partial = h->n < f->n || h->axes == TR_ON(TR_AXIS_TP);
    struct tr_comm *comm = tr_mesh_group(e->mesh, h->axes);
    struct tr_coll c = { .kind = h->is_scatter ? TR_REDUCE_SCATTER : TR_ALL_REDUCE,
                         .dtype = e->c->opt.grad_dtype,
                         .op = TR_SUM,
                         .site = is_partial   ? "reduce gradients of whole parameters"
                                 : a->hop > 0 ? "reduce shards over replicas"
                                              : "reduce gradients" };
    if (e->c->opt.layout.in_order && !is_partial)
        return tr_exec_reduce_in_order(e, a);
    if (a->hop == 0 && !is_partial) {
        char *whole = e->base[TR_A_GRADS] + a->grad[0];
        c.in = whole;
        c.out = h->is_scatter ? reduced_shard(e, a) : whole;
        c.count = (size_t)f->n;
        return tr_has_wire(&e->c->opt) ? reduce_narrow(r, a, comm, c) : tr_exec_post(r, a, comm, &c);
    }
    int64_t first = f->shard_first, end = tr_min64(first + f->shard_n, h->n);
    if (first >= end || (is_partial && is_skipped()))
        return TR_OK;
    c.in = c.out = reduced_shard(e, a);
    c.count = (size_t)(end - first);
    return tr_exec_post(r, a, comm, &c);
}

enum tr_status tr_run_ADD(struct tr_run *r, const struct tr_action *a)
{
    struct tr_exec *e = r->e;
    add_shard(e, e->base[TR_A_GRADS] + e->c->memory.staging, tr_exec_shard(e, a->of),
              e->c->place.bucket[a->of].shard_n);
    return TR_OK;
}

enum tr_status tr_exec_collective(struct tr_exec *e, const struct tr_call *c)
{
    static const enum tr_coll_kind kinds[TR_OP_COUNT] = { [TR_OP_ALL_REDUCE] = TR_ALL_REDUCE,
                                                          [TR_OP_ALL_GATHER] = TR_ALL_GATHER,
                                                          [TR_OP_REDUCE_SCATTER] = TR_REDUCE_SCATTER };
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
    struct tr_coll coll = { .kind = kinds[c->op],
                            .dtype = x->dtype,
                            .op = TR_SUM,
                            .in = x->data,
                            .out = y->data,
                            .count = (size_t)(tr_max64(x->rows, y->rows) * x->cols),
                            .site = tr_op_row(c->op)->name };
    return tr_exec_run(e, tr_mesh_axis(e->mesh, c->attr.axis), &coll);
}

enum tr_status tr_exec_sum(struct tr_comm *comm, const char *site, double *x, size_t n)
{
    struct tr_coll c = {
        .kind = TR_ALL_REDUCE, .dtype = TR_F64, .op = TR_SUM, .in = x, .out = x, .count = n, .site = site
    };
    return tr_comm_run(comm, &c);
}

enum tr_status tr_exec_total_data(struct tr_exec *e, const char *site, double *x, size_t n)
{
    return tr_exec_sum(tr_mesh_group(e->mesh, TR_ON_DATA), site, x, n);
}

enum tr_status tr_exec_total(struct tr_exec *e, const char *site, double *x)
{
    return tr_exec_total_data(e, site, x, 1);
}

enum tr_status tr_exec_total_rows(struct tr_exec *e, const char *site, double *x, size_t n)
{
    enum tr_status st = tr_exec_sum(tr_mesh_group(e->mesh, TR_ON_DATA), site, x, n);
    return st == TR_OK ? tr_exec_from_last_stage(e, site, x, n) : st;
}

enum tr_status tr_exec_total_ranks(struct tr_exec *e, const char *site, double *x, size_t n)
{
    return tr_exec_sum(e->mesh->all, site, x, n);
}
