/* tree.c - sums whose order is the same for every layout ("reproducible layout").
 *
 * The gradients of all micro-batches of a step are added along one tree over the micro-batch numbers. For odd * 2^k
 * micro-batches, each leaf is the sum of `odd` neighbours, added one by one; the leaves are added along a balanced
 * binary tree. A rank holds whole leaves and adds them as a binary counter counts: level k holds the sum of 2^k leaves.
 * The ranks then exchange parts, all to all, and every rank adds the rest of the tree for its part. This moves the
 * bytes of a reduce-scatter and does the same additions for any number of ranks. Losses are few, so they are added one
 * by one in the order of micro-batches. Rejected: sums in the order of the communication engine, rounded until they
 * agree.
 */
#include "exec/exec_impl.h"

static struct tr_view row(char *at, enum tr_dtype dtype, int64_t n)
{
    return (struct tr_view){ .data = at, .dtype = dtype, .rows = 1, .cols = n, .ld = n };
}

static void run_op(struct tr_exec *e, enum tr_opcode op, char *a, char *b, char *out, int64_t n)
{
    enum tr_dtype d = e->c->opt.grad_dtype;
    struct tr_call c = tr_exec_call(e, op);
    c.in[0] = row(a, d, n);
    if (b)
        c.in[1] = row(b, d, n);
    c.out[0] = row(out, d, n);
    tr_exec_kernel(e, &c);
}

/* Adds elements [at, at + n) of one micro-batch's gradients of a bucket to the sums of earlier micro-batches. */
static void tree_add(struct tr_exec *e, const struct tr_action *a, int64_t at, int64_t n)
{
    const struct tr_bucket *f = &e->c->place.bucket[a->of];
    const struct tr_bucket_offsets *o = &e->c->memory.bucket[a->of];
    size_t size = tr_dtype_bytes(e->c->opt.grad_dtype), skip = (size_t)at * size, stride = (size_t)f->n * size;
    char *sum = e->base[TR_A_GRADS] + a->grad[0] + skip, *level = e->base[TR_A_GRADS] + o->levels + skip;
    int odd = tr_odd_part(e->c->opt.n_micro), group = a->micro / odd, place = a->micro % odd;
    bool is_last = a->micro == e->c->opt.n_micro - 1, is_second_use = a->of != a->bucket[0];
    if (place > 0)
        run_op(e, TR_OP_ADD, sum, level, sum, n);
    if (place == odd - 1) {
        level += odd > 1 ? stride : 0;
        for (; group & 1; group >>= 1, level += stride) /* level k holds a sum where bit k is set */
            run_op(e, TR_OP_ADD, sum, level, sum, n);
    }
    if (!is_last || is_second_use)
        run_op(e, TR_OP_CAST, sum, NULL, is_last ? e->base[TR_A_GRADS] + o->state[TR_S_GRAD] + skip : level, n);
}

/* Adds the gradients that a backward, or a part of one, has written. */
enum tr_status tr_run_TREE_ADD(struct tr_run *r, const struct tr_action *a)
{
    const int *param = r->s->model->segment[a->segment].param;
    const struct tr_param_place *p = r->e->c->place.param;
    for (int i = 0; i < 64; i++)
        if (a->params >> i & 1)
            tree_add(r->e, a, p[param[i]].at, p[param[i]].tp.n_held);
    return TR_OK;
}

void tr_exec_add_second_use(struct tr_exec *e, int shared, char *at)
{
    const struct tr_bucket *f = &e->c->place.bucket[shared];
    size_t skip = e->c->opt.layout.zero >= 1 ? (size_t)f->shard_first * tr_dtype_bytes(e->c->opt.grad_dtype) : 0;
    char *second = e->base[TR_A_GRADS] + e->c->memory.bucket[shared + 1].state[TR_S_GRAD] + skip;
    run_op(e, TR_OP_ADD, at, second, at, f->shard_n);
}

/* Sums part `rank` of n elements over the ranks of a group, in the order of the tree. */
static enum tr_status sum_part(struct tr_exec *e, struct tr_comm *comm, char *in, int64_t n, char *out)
{
    char *parts = e->base[TR_A_GRADS] + e->c->memory.staging;
    int64_t each = n / comm->size;
    size_t bytes = (size_t)each * tr_dtype_bytes(e->c->opt.grad_dtype);
    struct tr_coll c = { .kind = TR_ALL_TO_ALL,
                         .dtype = e->c->opt.grad_dtype,
                         .in = in,
                         .out = parts,
                         .count = (size_t)n,
                         .site = "gradients, every rank's part" };
    if (comm->size == 1)
        return TR_OK;
    enum tr_status st = tr_comm_run(comm, &c);
    for (int stride = 1; stride < comm->size && st == TR_OK; stride *= 2)
        for (int r = 0; r + stride < comm->size; r += 2 * stride) {
            char *to = r == 0 && 2 * stride >= comm->size ? out : parts + (size_t)r * bytes;
            run_op(e, TR_OP_ADD, parts + (size_t)r * bytes, parts + (size_t)(r + stride) * bytes, to, each);
        }
    return st;
}

static enum tr_status sum_all(struct tr_exec *e, struct tr_comm *comm, char *at, int64_t n)
{
    char *part = at + (size_t)(n / comm->size * comm->rank) * tr_dtype_bytes(e->c->opt.grad_dtype);
    struct tr_coll c = { .kind = TR_ALL_GATHER,
                         .dtype = e->c->opt.grad_dtype,
                         .in = part,
                         .out = at,
                         .count = (size_t)n,
                         .site = "gradients, all parts" };
    enum tr_status st = sum_part(e, comm, at, n, part);
    return st == TR_OK && comm->size > 1 ? tr_comm_run(comm, &c) : st;
}

/* Sums over the shard axis first, then over replicas. Shard ranks are neighbours in the order of data, so this is the
 * same tree. */
enum tr_status tr_exec_reduce_in_order(struct tr_exec *e, const struct tr_action *a)
{
    const struct tr_bucket *f = &e->c->place.bucket[a->of];
    char *whole = e->base[TR_A_GRADS] + a->grad[0];
    if (e->c->opt.layout.zero == 0)
        return sum_all(e, tr_mesh_group(e->mesh, TR_ON_DATA), whole, f->n);
    char *shard = whole + (size_t)f->shard_first * tr_dtype_bytes(e->c->opt.grad_dtype);
    enum tr_status st = sum_part(e, tr_mesh_axis(e->mesh, TR_AXIS_SHARD), whole, f->n, shard);
    return st == TR_OK ? sum_all(e, tr_mesh_axis(e->mesh, TR_AXIS_DP), shard, f->shard_n) : st;
}

enum tr_status tr_exec_read_losses(struct tr_exec *e, double sum[TR_METRICS])
{
    const struct tr_layout *l = &e->c->opt.layout;
    size_t n = (size_t)e->c->opt.n_micro, n_all = (size_t)l->data_size * n,
           n_parts = (size_t)e->c->place.model->n_losses;
    double *own = e->losses + n_all * n_parts;
    memset(e->losses, 0, n_all * n_parts * sizeof *e->losses);
    if (tr_exec_has_loss(e)) {
        tr_device_copy_now(e->dev, own, e->base[TR_A_WORK] + e->c->memory.loss, n * n_parts * sizeof *own);
        for (size_t i = 0; i < n * n_parts; i++)
            e->losses[i % n_parts * n_all + (size_t)l->data_rank * n + i / n_parts] = own[i];
    }
    TR_PASS(tr_exec_sum(tr_mesh_group(e->mesh, TR_ON_TOKENS), "losses", e->losses, n_all * n_parts));
    TR_PASS(tr_exec_from_last_stage(e, "losses over stages", e->losses, n_all * n_parts));
    for (size_t k = 0; k < TR_METRICS; k++) {
        sum[k] = 0;
        for (size_t i = 0; k < n_parts && i < n_all; i++)
            sum[k] += e->losses[k * n_all + i];
    }
    return TR_OK;
}

enum tr_status tr_exec_add_in_order(struct tr_exec *e, const char *site, double x, double *sum)
{
    const struct tr_comm *data = tr_mesh_group(e->mesh, TR_ON_DATA);
    int size = data->size;
    memset(e->losses, 0, (size_t)size * sizeof *e->losses);
    e->losses[data->rank] = x;
    enum tr_status st = tr_exec_sum(tr_mesh_group(e->mesh, TR_ON_TOKENS), site, e->losses, (size_t)size);
    for (int r = 0; r < size && st == TR_OK; r++)
        *sum += e->losses[r];
    return st;
}
