/* compile.c - tr_compile(): model + options -> programs, schedules, an offset for every byte. It also finds the
 * recompute set under a memory budget: the set with the fewest flops that fits. */
#include "parallel/parallel_impl.h"
#include "parallel/pipe.h"
#include <stdlib.h>

enum { CHECKED_ACTIONS = 20000 }; /* checking a longer list would take a noticeable part of a second */

static bool fits(const struct tr_compiled *c)
{
    return tr_compiled_bytes_in(c, TR_SPACE_DEVICE) <= c->opt.memory_budget;
}

/* The first n segments recompute by `more`, the others by `less`. The first segments come first because they hold their
 * saved values longest. */
static enum tr_status try_set(struct tr_compiled *c, enum tr_recompute less, enum tr_recompute more, int n)
{
    for (int g = 0; g < c->place.model->n_segments; g++)
        c->recompute_of[g] = g < n ? more : less;
    for (int k = 0; k < TR_PURPOSES; k++)
        if (c->schedule[k].model)
            TR_PASS(tr_schedule_build(c, &c->schedule[k]));
    TR_PASS(tr_place_bytes(c));
    return TR_OK;
}

/* Tries none, op in some segments, op in all, block in some, block in all. Each step costs more flops and fewer bytes.
 */
static enum tr_status fit_budget(struct tr_compiled *c)
{
    static const enum tr_recompute ladder[][2] = { { TR_RECOMPUTE_NONE, TR_RECOMPUTE_OP },
                                                   { TR_RECOMPUTE_OP, TR_RECOMPUTE_BLOCK } };
    int n = c->place.model->n_segments;
    for (size_t i = 0; i < TR_COUNT_OF(ladder); i++) {
        TR_PASS(try_set(c, ladder[i][0], ladder[i][1], n));
        if (!fits(c))
            continue;
        int lo = 0, hi = n; /* hi fits; find the smallest number that does */
        while (lo < hi) {
            int mid = (lo + hi) / 2;
            TR_PASS(try_set(c, ladder[i][0], ladder[i][1], mid));
            if (fits(c))
                hi = mid;
            else
                lo = mid + 1;
        }
        TR_PASS(try_set(c, ladder[i][0], ladder[i][1], hi));
        return TR_OK;
    }
    char need[32], have[32];
    return tr_fail(TR_USAGE, "memory_budget %s: a rank needs %s even with every block recomputed",
                   tr_human_bytes(c->opt.memory_budget, have, sizeof have),
                   tr_human_bytes(tr_compiled_bytes_in(c, TR_SPACE_DEVICE), need, sizeof need));
}

/* Recomputes as the options say. AUTO recomputes nothing where there is no budget. */
static enum tr_status build_as_given(struct tr_compiled *c)
{
    bool is_auto = c->opt.recompute == TR_RECOMPUTE_AUTO;
    char need[32], have[32];
    enum tr_status st =
        try_set(c, TR_RECOMPUTE_NONE, is_auto ? TR_RECOMPUTE_NONE : c->opt.recompute, c->place.model->n_segments);
    if (st == TR_OK && c->opt.memory_budget && !fits(c))
        st = tr_fail(TR_USAGE, "memory_budget %s: a rank needs %s",
                     tr_human_bytes(c->opt.memory_budget, have, sizeof have),
                     tr_human_bytes(tr_compiled_bytes_in(c, TR_SPACE_DEVICE), need, sizeof need));
    return st;
}

/* Fills in what the caller left out, and what follows from the models. */
static void resolve_options(struct tr_compiled *c, const struct tr_model *const model[TR_PURPOSES],
                            const struct tr_compile_options *opt)
{
    struct tr_layout *l = &c->opt.layout;
    c->opt = *opt;
    c->opt.column = opt->column ? opt->column : tr_column_of("cpu");
    c->opt.is_inference = !model[TR_FOR_TRAIN];
    TR_BUG_ON(!c->opt.is_inference && !opt->optim);
    if (l->data_size == 0) /* one rank */
        *l = (struct tr_layout){ .data_size = 1, .shard_size = 1 };
    for (int a = 0; a < TR_AXES; a++)
        l->size[a] = l->size[a] ? l->size[a] : 1;
    if (l->shard_size == 1) /* one shard: there is nothing to divide */
        l->zero = 0;
    for (int k = TR_PURPOSES - 1; k >= 0; k--) {
        c->schedule[k] = (struct tr_schedule){ .purpose = (enum tr_purpose)k, .model = model[k] };
        c->place.model = model[k] ? model[k] : c->place.model;
    }
    c->place.layout = l;
    c->place.matrices_first = opt->fuses;
    c->place.has_states_on_disk = opt->offloads_to_disk;
    c->place.has_values_on_disk = opt->offloads_params_to_disk;
}

/* Resolves what this run holds of each parameter, and which state rows are sharded. */
static void resolve_states(struct tr_compiled *c)
{
    const struct tr_compile_options *o = &c->opt;
    struct tr_states *states = &c->place.states;
    struct tr_state_dtypes d = { o->compute_dtype, o->grad_dtype, o->master_dtype, o->moment_dtype };
    tr_states_of(o->is_inference ? NULL : o->optim, &d, states);
    for (int s = 0; s < states->n; s++) {
        int zero = s == TR_S_GRAD ? tr_grad_zero(&o->layout) : o->layout.zero;
        states->row[s].is_sharded = zero >= states->row[s].zero;
    }
    c->opt.layout.grain = tr_states_grain(states);
    for (int i = 0; i < c->place.model->n_params; i++)
        if (c->place.packed_of[i]) {
            int32_t grain = tr_packed_format((enum tr_packed)c->place.packed_of[i])->grain * TR_GRAINS_ALIGN;
            c->opt.layout.grain = grain > c->opt.layout.grain ? grain : c->opt.layout.grain;
        }
}

static bool is_frozen(const struct tr_compile_options *o, int param)
{
    return o->is_frozen && !o->is_inference && o->is_frozen[param];
}

static enum tr_fate fate_by(const struct tr_optim *o, const struct tr_model *m, int param)
{
    const struct tr_param *p = &m->param[param];
    struct tr_optim_param asked = { p->n_dims, p->n, tr_param_is_table(m, param), tr_param_is_hidden(m, param) };
    return tr_optim_fate(o, &asked);
}

/* Parameters of each fate need buckets of their own; none is frozen in a run that does not train. */
static enum tr_fate fate_of(const struct tr_compile_options *o, const struct tr_model *m, int param)
{
    if (o->packed_of && o->packed_of[param])
        return TR_PACKED;
    if (is_frozen(o, param))
        return TR_FROZEN;
    return o->is_inference ? TR_LEARNS : fate_by(o->optim, m, param);
}

static int count_buckets(const struct tr_compile_options *o, const struct tr_model *m)
{
    int n = 1;
    for (int i = 0; i < m->n_params; i++)
        n = (int)tr_max64(n, fate_of(o, m, i) + 1);
    return n * (m->n_segments + 2);
}

static enum tr_status allocate(struct tr_compiled *c)
{
    struct tr_placement *p = &c->place;
    size_t n_segments = (size_t)p->model->n_segments, n_params = (size_t)p->model->n_params;
    p->n_buckets = count_buckets(&c->opt, p->model);
    p->param = calloc(n_params, sizeof *p->param);
    p->is_frozen = calloc(n_params, sizeof *p->is_frozen);
    p->fate_of = calloc(n_params, sizeof *p->fate_of);
    p->packed_of = calloc(n_params, sizeof *p->packed_of);
    p->group_of = calloc(n_params, sizeof *p->group_of);
    p->is_on_host = calloc((size_t)p->n_buckets, sizeof *p->is_on_host);
    p->is_value_on_host = calloc((size_t)p->n_buckets, sizeof *p->is_value_on_host);
    p->is_grad_on_host = calloc((size_t)p->n_buckets, sizeof *p->is_grad_on_host);
    p->norm_first = calloc(n_params + 1, sizeof *p->norm_first);
    p->stage_of = calloc(n_segments, sizeof *p->stage_of);
    p->bucket = calloc((size_t)p->n_buckets, sizeof *p->bucket);
    c->recompute_of = calloc(n_segments, sizeof *c->recompute_of);
    c->memory.cache = calloc(n_segments, sizeof *c->memory.cache);
    c->memory.bucket = calloc((size_t)p->n_buckets, sizeof *c->memory.bucket);
    bool has_all = p->param && p->is_frozen && p->fate_of && p->packed_of && p->group_of && p->is_on_host &&
                   p->is_value_on_host && p->is_grad_on_host && p->norm_first && p->stage_of && p->bucket &&
                   c->recompute_of && c->memory.cache && c->memory.bucket;
    return has_all ? TR_OK : tr_fail(TR_NOMEM, "plan: out of memory");
}

/* Blocks divide the flattened whole tensor. */
enum tr_status tr_optim_check_blocks(const struct tr_model *m, const struct tr_optim *o, const bool *is_frozen, int tp)
{
    for (int i = 0; i < m->n_params; i++) {
        const struct tr_param *p = &m->param[i];
        if (is_frozen && is_frozen[i])
            continue;
        const struct tr_optim *of = fate_by(o, m, i) == TR_LEARNS ? o : o->rest;
        for (int s = 0; s < of->n_states; s++)
            if (!tr_tp_keeps_blocks(p, tp, of->state[s].block))
                return tr_fail(TR_USAGE,
                               "optim %s: tp %d cuts %s (%" PRId64 " x %" PRId64 ") inside a block of %d elements of "
                               "its %s; use another tp or another optimizer",
                               o->name, tp, p->name, p->rows, p->cols, (int)of->state[s].block, of->state[s].title);
    }
    return TR_OK;
}

/* Refuses an optimizer that cannot run here. A kernel that is not an op exists only on the host. */
static enum tr_status check_optim(const struct tr_compiled *c)
{
    const struct tr_optim *optim = c->opt.optim;
    if (c->opt.is_inference)
        return TR_OK;
    for (const struct tr_optim *o = optim; c->opt.has_own_memory && o; o = o->rest)
        for (int k = 0; k < o->n_phases; k++)
            if (o->phase[k].kernel)
                return tr_fail(TR_USAGE, "optim %s has no kernels for a GPU; use --device cpu", optim->name);
    return tr_optim_check_blocks(c->place.model, optim, c->place.is_frozen, c->opt.layout.size[TR_AXIS_TP]);
}

/* Refuses a packed parameter that the tensor axis cuts inside a grain: a part of a grain cannot be decoded. */
static enum tr_status check_packed(const struct tr_placement *p)
{
    int size = p->layout->size[TR_AXIS_TP];
    for (int i = 0; i < p->model->n_params; i++) {
        const struct tr_param *x = &p->model->param[i];
        if (!p->packed_of[i])
            continue;
        const struct tr_storage_format *f = tr_packed_format((enum tr_packed)p->packed_of[i]);
        if (size > 1 && tr_param_is_in_out(p->model, i))
            return tr_fail(TR_USAGE,
                           "tp %d: %s is a matrix (in, out), which is packed transposed and not split; use --tp 1, or "
                           "hold the base in 16 bits",
                           size, x->name);
        if (!tr_tp_keeps_blocks(x, size, f->grain))
            return tr_fail(TR_USAGE,
                           "tp %d cuts %s (%" PRId64 " x %" PRId64 ") inside a block of %d elements of %s; use another "
                           "tp, or hold the base in 16 bits",
                           size, x->name, x->rows, x->cols, (int)f->grain, f->name);
    }
    return TR_OK;
}

/* Assigns the slots where each parameter's part of the norm is summed. In order, a slot covers a piece that every
 * layout has. */
static void count_norms(struct tr_placement *p, int n_micro)
{
    bool in_order = p->layout->in_order;
    for (int i = 0; i < p->model->n_params; i++) {
        int64_t n_pieces = (p->param[i].tp.n_held + TR_NORM_PIECE - 1) / TR_NORM_PIECE;
        p->norm_first[i + 1] = p->norm_first[i] + (in_order ? (int)n_pieces : 1);
    }
    int odd = tr_odd_part(n_micro);
    while (in_order && odd << p->n_levels < n_micro)
        p->n_levels++;
    p->n_levels += in_order && odd > 1;
}

/* Which rank holds what. */
static enum tr_status place(struct tr_compiled *c)
{
    struct tr_placement *p = &c->place;
    for (int i = 0; i < p->model->n_params; i++) {
        p->group_of[i] = (uint8_t)tr_param_group_of(&c->opt.groups, p->model->param[i].name, p->model->param[i].n_dims);
        p->is_frozen[i] = is_frozen(&c->opt, i);
        p->fate_of[i] = (uint8_t)fate_of(&c->opt, p->model, i);
        p->packed_of[i] = c->opt.packed_of ? c->opt.packed_of[i] : TR_NOT_PACKED;
        TR_BUG_ON(p->packed_of[i] && !p->is_frozen[i] && !c->opt.is_inference);
    }
    resolve_states(c);
    TR_PASS(check_optim(c));
    TR_PASS(check_packed(p));
    TR_PASS(tr_pipeline_stages(c));
    TR_PASS(tr_buckets_measure(p));
    tr_place_writers(p, &c->opt);
    count_norms(p, c->opt.n_micro);
    return TR_OK;
}

static enum tr_status build_with(struct tr_compiled *c)
{
    bool is_fitted = c->opt.recompute == TR_RECOMPUTE_AUTO && c->opt.memory_budget;
    if (!c->opt.is_inference)
        tr_offload_choose(&c->place, &c->opt);
    return is_fitted ? fit_budget(c) : build_as_given(c);
}

/* Without a share of its own the run keeps as much on the device as fits, in steps of 1/16; without a budget nothing.
 */
static enum tr_status build(struct tr_compiled *c)
{
    enum { PARTS = 16 };
    double *const share[] = { &c->opt.offload_share, &c->opt.offload_param_share };
    bool is_free[2] = { *share[0] < 0, *share[1] < 0 };
    enum tr_status st = TR_USAGE;
    int first = (is_free[0] || is_free[1]) && c->opt.memory_budget ? 0 : PARTS;
    for (int i = first; i <= PARTS && st == TR_USAGE; i++) {
        tr_error_clear();
        for (int k = 0; k < 2; k++)
            *share[k] = is_free[k] ? (double)i / PARTS : *share[k];
        st = build_with(c);
    }
    return st;
}

enum tr_status tr_compile(const struct tr_model *const model[TR_PURPOSES], const struct tr_compile_options *opt,
                          struct tr_compiled **out)
{
    enum tr_status st = TR_OK;
    struct tr_compiled *c = calloc(1, sizeof *c);
    if (!c)
        return tr_fail(TR_NOMEM, "plan: out of memory");
    resolve_options(c, model, opt);
    TR_TRY(allocate(c));
    TR_TRY(place(c));
    TR_TRY(build(c));
    for (int k = 0; k < TR_PURPOSES; k++)
        if (c->schedule[k].n_actions <= CHECKED_ACTIONS)
            TR_TRY(tr_schedule_check(&c->schedule[k]));
out:
    if (st == TR_OK)
        *out = c;
    else
        tr_compiled_close(c);
    return st;
}

void tr_compiled_close(struct tr_compiled *c)
{
    if (!c)
        return;
    for (int k = 0; k < TR_PURPOSES; k++)
        tr_schedule_release(&c->schedule[k]);
    tr_pipe_close(c->pipe);
    free(c->recompute_of);
    free(c->place.param);
    free(c->place.is_frozen);
    free(c->place.fate_of);
    free(c->place.packed_of);
    free(c->place.group_of);
    free(c->place.is_on_host);
    free(c->place.is_value_on_host);
    free(c->place.is_grad_on_host);
    free(c->place.norm_first);
    free(c->place.stage_of);
    free(c->place.bucket);
    free(c->memory.cache);
    free(c->memory.bucket);
    free(c->memory.slice);
    free(c);
}
