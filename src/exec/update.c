/* update.c - what follows the gradients of a step: their norm, the clip factor, and the optimizer.
 *
 * Norms are summed in the order of parameters, so a split of the parameters over ranks or stages changes no bit.
 */
#include "exec/exec_impl.h"
#include <math.h>

static struct tr_view view_row(char *base, enum tr_dtype dtype, int64_t n)
{
    return (struct tr_view){ .data = base, .dtype = dtype, .rows = 1, .cols = n, .ld = n };
}

static char *step_row(struct tr_exec *e, int group)
{
    return e->base[TR_A_WORK] + e->c->memory.step + (size_t)group * TR_STEP_COUNT * sizeof(float);
}

/* Writes part of a group's row, where kernels of the device and where those of the host read it. */
static void set_row(struct tr_exec *e, int group, int first, const float *values, size_t n)
{
    memcpy(e->step_host + (size_t)group * TR_STEP_COUNT + first, values, n * sizeof *values);
    tr_device_copy_now(e->dev, step_row(e, group) + (size_t)first * sizeof *values, values, n * sizeof *values);
}

void tr_exec_send_step(struct tr_exec *e, const float values[TR_STEP_COUNT])
{
    for (int g = 0; g < tr_max64(1, e->c->opt.groups.n); g++) {
        float row[TR_STEP_COUNT];
        tr_group_values(&e->c->opt.groups, g, values, row);
        set_row(e, g, 0, row, TR_STEP_COUNT);
    }
}

void tr_exec_set_step(struct tr_exec *e, enum tr_step_slot slot, float value)
{
    set_row(e, 0, (int)slot, &value, 1);
}

/* whole: where the gradients of its bucket are; NULL: in their place. */
static void sum_squares(struct tr_exec *e, int param, const char *whole, char *norms)
{
    const struct tr_param_place *p = &e->c->place.param[param];
    int first_slot = e->c->place.norm_first[param];
    int64_t first = 0, n = 0, end = p->first + p->n,
            piece = e->c->opt.layout.in_order ? TR_NORM_PIECE : tr_max64(end, 1);
    const char *grad = whole ? whole + (size_t)p->at * tr_dtype_bytes(e->c->opt.grad_dtype)
                             : tr_exec_at(e, TR_S_GRAD, param, &first, &n);
    for (int64_t at = p->first; at < end; at += piece) {
        struct tr_call c = tr_exec_call(e, TR_OP_SUMSQ);
        c.in[0] = view_row((char *)(uintptr_t)grad + (size_t)at * tr_dtype_bytes(e->c->opt.grad_dtype),
                           e->c->opt.grad_dtype, tr_min64(piece, end - at));
        c.out[0] = view_row(norms + (size_t)(first_slot + at / piece) * sizeof(double), TR_F64, 1);
        tr_exec_kernel(e, &c);
    }
}

/* One sum over the arena gives the norm, because the arena holds only gradients and their padding is zero. */
static void sum_arena(struct tr_exec *e, char *norms)
{
    struct tr_call c = tr_exec_call(e, TR_OP_SUMSQ);
    c.in[0] = view_row(e->base[TR_A_GRADS], e->c->opt.grad_dtype,
                       (int64_t)(e->c->memory.bytes[TR_A_GRADS] / tr_dtype_bytes(e->c->opt.grad_dtype)));
    c.out[0] = view_row(norms, TR_F64, 1);
    tr_exec_kernel(e, &c);
}

/* Gradients that live on the host were summed while they were here. */
static bool is_summed(const struct tr_exec *e, int param)
{
    int bucket = e->c->place.param[param].bucket;
    return bucket >= 0 && e->c->place.is_grad_on_host[bucket];
}

static void sum_params(struct tr_exec *e, char *norms)
{
    for (int i = 0; i < e->c->place.model->n_params; i++)
        if (tr_param_is_counted(&e->c->place, i) && !is_summed(e, i))
            sum_squares(e, i, NULL, norms);
}

static char *norms_of(const struct tr_exec *e)
{
    return e->base[TR_A_WORK] + e->c->memory.norm;
}

/* Runs of slots that were not summed before. */
static char *clear_norms(struct tr_exec *e)
{
    const int *first = e->c->place.norm_first;
    for (int i = 0, from = 0; i <= e->c->place.model->n_params; i++) {
        bool is_end = i == e->c->place.model->n_params || is_summed(e, i);
        if (is_end && first[i] > from)
            tr_device_clear(e->dev, TR_STREAM_COMPUTE, norms_of(e) + (size_t)from * sizeof(double),
                            (size_t)(first[i] - from) * sizeof(double));
        if (is_end && i < e->c->place.model->n_params)
            from = first[i + 1];
    }
    return norms_of(e);
}

void tr_exec_norm(struct tr_exec *e)
{
    (e->has_one_norm ? sum_arena : sum_params)(e, clear_norms(e));
}

void tr_exec_norm_of(struct tr_exec *e, int bucket, const char *whole)
{
    for (int i = 0; i < e->c->place.model->n_params; i++) {
        const struct tr_param_place *p = &e->c->place.param[i];
        size_t n = (size_t)(e->c->place.norm_first[i + 1] - e->c->place.norm_first[i]);
        if (p->bucket == bucket && tr_param_is_counted(&e->c->place, i))
            sum_squares(e, i, whole, norms_of(e));
        else if (p->bucket == bucket)
            tr_device_clear(e->dev, TR_STREAM_COMPUTE, norms_of(e) + (size_t)e->c->place.norm_first[i] * sizeof(double),
                            n * sizeof(double));
    }
}

void tr_exec_param_norms(struct tr_exec *e, double *out)
{
    const int *first = e->c->place.norm_first;
    int n_params = e->c->place.model->n_params;
    for (int p = 0; p < n_params && !e->has_one_norm; p++) {
        double sum = 0;
        for (int i = first[p]; i < first[p + 1]; i++)
            sum += e->norms[i];
        out[p] = sqrt(sum);
    }
    if (!e->has_one_norm)
        return;
    TR_BUG_ON(first[n_params] != n_params);
    sum_params(e, clear_norms(e)); /* the gradients are still in memory, and nothing reads these slots after the clip */
    tr_device_copy_now(e->dev, out, e->base[TR_A_WORK] + e->c->memory.norm, (size_t)n_params * sizeof *out);
    for (int p = 0; p < n_params; p++)
        out[p] = sqrt(out[p] / e->norm_scale);
}

enum tr_status tr_exec_clip(struct tr_exec *e, double max_norm, double loss_scale, double *norm)
{
    size_t n = (size_t)e->c->place.norm_first[e->c->place.model->n_params];
    tr_device_copy_now(e->dev, e->norms, e->base[TR_A_WORK] + e->c->memory.norm, n * sizeof(double));
    if (e->c->opt.layout.zero >= 1) /* with zero 0 every rank has summed all elements */
        TR_PASS(tr_exec_sum(tr_mesh_axis(e->mesh, TR_AXIS_SHARD), "gradient norms over shards", e->norms, n));
    TR_PASS(tr_exec_sum(tr_mesh_axis(e->mesh, TR_AXIS_TP), "gradient norms over parts", e->norms, n));
    TR_PASS(tr_exec_sum(tr_mesh_axis(e->mesh, TR_AXIS_PP), "gradient norms over stages", e->norms, n));
    double sum = 0;
    e->norm_scale = loss_scale * loss_scale;
    for (size_t i = 0; i < n; i++)
        sum += e->norms[i] /= e->norm_scale;
    *norm = sqrt(sum);
    float clip = tr_clip_factor(*norm, max_norm) / (float)loss_scale;
    for (int g = 0; g < tr_max64(1, e->c->opt.groups.n); g++)
        set_row(e, g, TR_STEP_CLIP, &clip, 1);
    return TR_OK;
}

/* This rank's elements of one state of a parameter, while an update runs; an empty view where the run has no such
 * state. */
static struct tr_view state_view(struct tr_exec *e, const struct tr_action *a, int row, int param)
{
    const struct tr_param_place *p = &e->c->place.param[param];
    const struct tr_state_row *r = &e->c->place.states.row[row];
    int64_t first = 0, n = 0;
    if (!tr_exec_holds(e, (enum tr_state)row, param))
        return (struct tr_view){ 0 };
    char *at = tr_exec_fetched(e, a, row, param, tr_exec_at(e, (enum tr_state)row, param, &first, &n));
    if (r->shape != TR_PER_BLOCK)
        return view_row(at, r->dtype, n);
    return view_row(at + (size_t)(p->first / r->block) * tr_dtype_bytes(r->dtype), r->dtype,
                    tr_state_count(r, 1, p->n));
}

/* An update that waited for the next step reads the values of its own. */
struct tr_view tr_exec_step_view(struct tr_exec *e, int param)
{
    char *row = step_row(e, e->c->place.group_of[param]);
    return view_row(row + (e->is_pending ? e->c->memory.step_before - e->c->memory.step : 0), TR_F32, TR_STEP_COUNT);
}

void tr_exec_keep_step(struct tr_exec *e)
{
    char *work = e->base[TR_A_WORK];
    size_t n_groups = (size_t)tr_max64(1, e->c->opt.groups.n);
    tr_device_copy(e->dev, TR_STREAM_COMPUTE, work + e->c->memory.step_before, work + e->c->memory.step,
                   n_groups * TR_STEP_COUNT * sizeof(float));
    memcpy(e->step_host + n_groups * TR_STEP_COUNT, e->step_host, n_groups * TR_STEP_COUNT * sizeof(float));
}

static const struct tr_optim *optim_of(const struct tr_exec *e, int bucket)
{
    bool is_apart = tr_bucket_fate(e->c->place.model, bucket) == TR_LEARNS_APART;
    return is_apart ? e->c->opt.optim->rest : e->c->opt.optim;
}

/* The call for one phase of the update of one parameter, with the slots of struct tr_update_phase. */
struct tr_call tr_exec_update_call(struct tr_exec *e, const struct tr_action *a, enum tr_opcode op, int param)
{
    const struct tr_param_place *p = &e->c->place.param[param];
    bool has_master = tr_exec_has(e, TR_S_MASTER);
    int group = e->c->place.group_of[param];
    struct tr_call c = tr_exec_call(e, op);
    c.in[0] = state_view(e, a, TR_S_GRAD, param);
    c.in[1] = tr_exec_step_view(e, param);
    c.out[0] = state_view(e, a, has_master ? TR_S_MASTER : TR_S_VALUE, param);
    int n = TR_OPTIM_STATE;
    for (int row = TR_S_OPTIM; row < e->c->place.states.n; row++)
        if (tr_exec_holds(e, (enum tr_state)row, param))
            c.out[n++] = state_view(e, a, row, param);
    if (optim_of(e, p->bucket)->has_direction)
        c.out[n] = tr_exec_direction(e, param);
    if (has_master)
        c.out[TR_OPTIM_COPY] = state_view(e, a, TR_S_VALUE, param);
    c.attr.decay = e->c->opt.groups.group[group].has_decay || e->c->place.model->param[param].has_decay;
    c.attr.first = p->first + (p->tp.is_split ? e->c->opt.layout.coord[TR_AXIS_TP] * p->tp.n_held : 0);
    c.attr.key = tr_rng_key(e->seed, e->c->place.model->param[param].name, 1);
    return c;
}

static void run_joined(struct tr_exec *e, const struct tr_call *c, int n)
{
    if (n == 0)
        return;
    int at = tr_trace_op(e->trace, c, n);
    e->column->update(c, n);
    tr_trace_end(e->trace, at);
}

static void run_custom(struct tr_exec *e, tr_kernel kernel, const struct tr_call *c)
{
    int at = tr_trace_op(e->trace, c, 1);
    kernel(c);
    tr_trace_end(e->trace, at);
}

static void run_phase(struct tr_exec *e, const struct tr_update_phase *phase, const struct tr_action *a)
{
    struct tr_call many[TR_UPDATES_MAX];
    int n = 0;
    for (int i = 0; i < e->c->place.model->n_params; i++) {
        const struct tr_param_place *p = &e->c->place.param[i];
        if (p->bucket != a->of || p->n == 0)
            continue;
        many[n] = tr_exec_update_call(e, a, phase->op, i);
        if (phase->kernel) {
            run_custom(e, phase->kernel, &many[n]);
        } else if (!e->joins_updates) {
            tr_exec_kernel(e, &many[n]);
        } else if (++n == TR_UPDATES_MAX) {
            run_joined(e, many, n);
            n = 0;
        }
    }
    run_joined(e, many, n);
}

enum tr_status tr_exec_update_bucket(struct tr_exec *e, const struct tr_action *a)
{
    const struct tr_optim *o = optim_of(e, a->of);
    enum tr_status st = TR_OK;
    for (int k = 0; k < o->n_phases && st == TR_OK; k++)
        if (o->phase[k].is_whole)
            st = tr_exec_whole(e, &o->phase[k], a->of);
        else if (o->phase[k].sums)
            st = tr_exec_sums(e, &o->phase[k], a);
        else
            run_phase(e, &o->phase[k], a);
    return st;
}

/* The same by kernels of the host, on what it holds. */
enum tr_status tr_run_UPDATE_HOST(struct tr_run *r, const struct tr_action *a)
{
    struct tr_exec *e = r->e;
    const struct tr_optim *o = optim_of(e, a->of);
    size_t before = (size_t)tr_max64(1, e->c->opt.groups.n);
    TR_BUG_ON(!e->is_pending);
    for (int k = 0; k < o->n_phases; k++)
        for (int i = 0; i < e->c->place.model->n_params; i++) {
            const struct tr_param_place *p = &e->c->place.param[i];
            if (p->bucket != a->of || p->n == 0)
                continue;
            const struct tr_update_phase *phase = &o->phase[k];
            struct tr_call c = tr_exec_update_call(e, a, phase->op, i);
            float *row = e->step_host + (before + (size_t)e->c->place.group_of[i]) * TR_STEP_COUNT;
            c.in[1] = view_row((char *)row, TR_F32, TR_STEP_COUNT);
            c.scratch = NULL; /* that of the device; what is updated element by element needs none */
            (phase->kernel          ? phase->kernel
             : e->dev->row->is_host ? e->kernel[phase->op]
                                    : tr_op_cpu_fast(phase->op))(&c);
        }
    return TR_OK;
}
