/* update.c - what follows the gradients of a step: their norm, the clip factor, and the optimizer.
 *
 * Norms are summed in the order of parameters, so that no split of them over ranks or stages changes a bit.
 */
#include "exec/exec_impl.h"
#include <math.h>

static struct tr_view view_row(char *base, enum tr_dtype dtype, int64_t n)
{
    return (struct tr_view){ .data = base, .dtype = dtype, .rows = 1, .cols = n, .ld = n };
}

static struct tr_call call_of(struct tr_exec *e, enum tr_opcode op)
{
    return (struct tr_call){ .op = op, .pool = e->pool, .scratch = e->base[TR_A_WORK] + e->c->scratch, .dev = e->dev };
}

static struct tr_view step_view(struct tr_exec *e)
{
    return view_row(e->base[TR_A_WORK] + e->c->step, TR_F32, TR_STEP_COUNT);
}

/* A tensor that every rank of an axis holds is counted once, by the first rank. */
static bool is_counted(const struct tr_exec *e, int param)
{
    const struct tr_param_place *p = &e->c->place[param];
    bool is_first = p->tp.is_split || e->c->opt.layout.coord[TR_AXIS_TP] == 0;
    return p->n > 0 && is_first && tr_param_is_first(e->c, param);
}

static void sum_squares(struct tr_exec *e, int param, char *norms)
{
    const struct tr_param_place *p = &e->c->place[param];
    int first_slot = e->c->norm_first[param];
    int64_t first = 0, n = 0, end = p->first + p->n,
            piece = e->c->opt.layout.in_order ? TR_NORM_PIECE : tr_max64(end, 1);
    const char *grad = tr_exec_at(e, TR_S_GRAD, param, &first, &n);
    for (int64_t at = p->first; at < end; at += piece) {
        struct tr_call c = call_of(e, TR_OP_SUMSQ);
        c.in[0] = view_row((char *)(uintptr_t)grad + (size_t)at * tr_dtype_bytes(e->c->opt.grad_dtype),
                           e->c->opt.grad_dtype, tr_min64(piece, end - at));
        c.out[0] = view_row(norms + (size_t)(first_slot + at / piece) * sizeof(double), TR_F64, 1);
        tr_exec_kernel(e, &c);
    }
}

/* The arena holds nothing but gradients, and their padding is zero. */
static void sum_arena(struct tr_exec *e, char *norms)
{
    struct tr_call c = call_of(e, TR_OP_SUMSQ);
    c.in[0] = view_row(e->base[TR_A_GRADS], e->c->opt.grad_dtype,
                       (int64_t)(e->c->bytes[TR_A_GRADS] / tr_dtype_bytes(e->c->opt.grad_dtype)));
    c.out[0] = view_row(norms, TR_F64, 1);
    tr_exec_kernel(e, &c);
}

static void sum_params(struct tr_exec *e, char *norms)
{
    for (int i = 0; i < e->c->model->n_params; i++)
        if (is_counted(e, i))
            sum_squares(e, i, norms);
}

static char *clear_norms(struct tr_exec *e)
{
    char *norms = e->base[TR_A_WORK] + e->c->norm;
    e->dev->ops->clear(e->dev, norms, (size_t)e->c->norm_first[e->c->model->n_params] * sizeof(double));
    return norms;
}

void tr_exec_norm(struct tr_exec *e)
{
    (e->has_one_norm ? sum_arena : sum_params)(e, clear_norms(e));
}

void tr_exec_param_norms(struct tr_exec *e, double *out)
{
    const int *first = e->c->norm_first;
    int n_params = e->c->model->n_params;
    for (int p = 0; p < n_params && !e->has_one_norm; p++) {
        double sum = 0;
        for (int i = first[p]; i < first[p + 1]; i++)
            sum += e->norms[i];
        out[p] = sqrt(sum);
    }
    if (!e->has_one_norm)
        return;
    TR_BUG_ON(first[n_params] != n_params);
    sum_params(e, clear_norms(e)); /* the gradients are still there, and nothing reads the slots after the clip */
    e->dev->ops->download(e->dev, out, e->base[TR_A_WORK] + e->c->norm, (size_t)n_params * sizeof *out);
    for (int p = 0; p < n_params; p++)
        out[p] = sqrt(out[p] / e->norm_scale);
}

enum tr_status tr_exec_clip(struct tr_exec *e, double max_norm, double loss_scale, double *norm)
{
    size_t n = (size_t)e->c->norm_first[e->c->model->n_params];
    enum tr_status st = TR_OK;
    e->dev->ops->download(e->dev, e->norms, e->base[TR_A_WORK] + e->c->norm, n * sizeof(double));
    if (e->c->opt.layout.zero >= 1) /* else every rank has summed everything */
        TR_TRY(tr_exec_sum(tr_mesh_axis(e->mesh, TR_AXIS_SHARD), "gradient norms over shards", e->norms, n));
    TR_TRY(tr_exec_sum(tr_mesh_axis(e->mesh, TR_AXIS_TP), "gradient norms over parts", e->norms, n));
    TR_TRY(tr_exec_sum(tr_mesh_axis(e->mesh, TR_AXIS_PP), "gradient norms over stages", e->norms, n));
    double sum = 0;
    e->norm_scale = loss_scale * loss_scale;
    for (size_t i = 0; i < n; i++)
        sum += e->norms[i] /= e->norm_scale;
    *norm = sqrt(sum);
    float clip = tr_clip_factor(*norm, max_norm) / (float)loss_scale;
    e->dev->ops->upload(e->dev, e->base[TR_A_WORK] + e->c->step + TR_STEP_CLIP * sizeof clip, &clip, sizeof clip);
out:
    return st;
}

static struct tr_call update_of(struct tr_exec *e, enum tr_opcode op, int param)
{
    const struct tr_param_place *p = &e->c->place[param];
    struct tr_call c = call_of(e, op);
    struct tr_view v[TR_STATE_COUNT] = { 0 };
    for (int what = 0; what < TR_STATE_COUNT; what++) {
        if (!tr_exec_has(e, (enum tr_state)what))
            continue;
        int64_t first = 0, n = 0;
        enum tr_dtype dtype = tr_exec_dtype(e, (enum tr_state)what);
        char *at = tr_exec_at(e, (enum tr_state)what, param, &first, &n);
        v[what] = view_row(at + (size_t)p->first * tr_dtype_bytes(dtype), dtype, p->n);
    }
    bool has_master = v[TR_S_MASTER].data != NULL;
    c.in[0] = v[TR_S_GRAD];
    c.in[1] = step_view(e);
    c.out[0] = has_master ? v[TR_S_MASTER] : v[TR_S_VALUE];
    c.out[1] = v[TR_S_M];
    c.out[2] = v[TR_S_V];
    c.out[3] = has_master ? v[TR_S_VALUE] : (struct tr_view){ 0 };
    c.attr.decay = e->c->model->param[param].has_decay;
    c.attr.first = p->first + (p->tp.is_split ? e->c->opt.layout.coord[TR_AXIS_TP] * p->tp.n_held : 0);
    c.attr.key = tr_rng_key(e->seed, e->c->model->param[param].name, 1);
    return c;
}

static void run_joined(struct tr_exec *e, const struct tr_call *c, int n)
{
    if (n == 0)
        return;
    int at = tr_trace_op(e->trace, c, n);
    tr_op_cuda_updates(c, n);
    tr_trace_end(e->trace, at);
}

void tr_exec_update_bucket(struct tr_exec *e, enum tr_optim_kind kind, int bucket)
{
    struct tr_call many[TR_UPDATES_MAX];
    int n = 0;
    for (int i = 0; i < e->c->model->n_params; i++) {
        const struct tr_param_place *p = &e->c->place[i];
        if (p->bucket != bucket || p->n == 0)
            continue;
        many[n] = update_of(e, tr_optim_row(kind)->op, i);
        if (!e->joins_updates) {
            tr_exec_kernel(e, &many[n]);
        } else if (++n == TR_UPDATES_MAX) {
            run_joined(e, many, n);
            n = 0;
        }
    }
    run_joined(e, many, n);
}
