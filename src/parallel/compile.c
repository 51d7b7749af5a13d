/* compile.c - tr_compile(): model + options -> programs, schedules, an offset for every byte. It also finds the
 * recompute set under a memory budget: the set with the fewest flops that fits. */
#include "parallel/parallel_impl.h"
#include "parallel/pipe.h"
#include <stdlib.h>

enum { CHECKED_ACTIONS = 20000 }; /* checking a longer list would take a noticeable part of a second */

static enum tr_status build_one(struct tr_compiled *c, const struct tr_model *m, bool is_training,
                                struct tr_schedule *out)
{
    tr_schedule_release(out);
    if (!m)
        return TR_OK;
    return tr_schedule_build(c, m, is_training, out);
}

static enum tr_status build(struct tr_compiled *c)
{
    enum tr_status st = TR_OK;
    TR_TRY(build_one(c, c->opt.is_inference ? NULL : c->model, true, &c->train));
    TR_TRY(build_one(c, c->eval_model, false, &c->eval));
    TR_TRY(build_one(c, c->decode_model, false, &c->decode));
    TR_TRY(tr_place_bytes(c));
out:
    return st;
}

static bool fits(const struct tr_compiled *c)
{
    return tr_compiled_bytes_in(c, TR_SPACE_DEVICE) <= c->opt.memory_budget;
}

/* The first n segments recompute by `more`, the others by `less`. The first segments come first because they hold their
 * saved values longest. */
static enum tr_status try_set(struct tr_compiled *c, enum tr_recompute less, enum tr_recompute more, int n)
{
    for (int g = 0; g < c->model->n_segments; g++)
        c->recompute_of[g] = g < n ? more : less;
    return build(c);
}

/* Tries none, op in some segments, op in all, block in some, block in all. Each step costs more flops and fewer bytes.
 */
static enum tr_status fit_budget(struct tr_compiled *c)
{
    static const enum tr_recompute ladder[][2] = { { TR_RECOMPUTE_NONE, TR_RECOMPUTE_OP },
                                                   { TR_RECOMPUTE_OP, TR_RECOMPUTE_BLOCK } };
    enum tr_status st = TR_OK;
    int n = c->model->n_segments;
    for (size_t i = 0; i < TR_COUNT_OF(ladder); i++) {
        TR_TRY(try_set(c, ladder[i][0], ladder[i][1], n));
        if (!fits(c))
            continue;
        int lo = 0, hi = n; /* hi fits; find the smallest number that does */
        while (lo < hi) {
            int mid = (lo + hi) / 2;
            TR_TRY(try_set(c, ladder[i][0], ladder[i][1], mid));
            if (fits(c))
                hi = mid;
            else
                lo = mid + 1;
        }
        TR_TRY(try_set(c, ladder[i][0], ladder[i][1], hi));
        return TR_OK;
    }
    char need[32], have[32];
    st = tr_fail(TR_USAGE,
                 "memory_budget %s: the run needs %s even with every block recomputed; lower "
                 "per_device_train_batch_size or sequence_length",
                 tr_human_bytes(c->opt.memory_budget, have, sizeof have),
                 tr_human_bytes(tr_compiled_bytes_in(c, TR_SPACE_DEVICE), need, sizeof need));
out:
    return st;
}

/* Assigns the slots where each parameter's part of the norm is summed. In order, a slot covers a piece that every
 * layout has. */
static void count_norms(struct tr_compiled *c)
{
    c->norm_first[0] = 0;
    for (int i = 0; i < c->model->n_params; i++) {
        int64_t n_pieces = (c->place[i].tp.n_held + TR_NORM_PIECE - 1) / TR_NORM_PIECE;
        c->norm_first[i + 1] = c->norm_first[i] + (c->opt.layout.in_order ? (int)n_pieces : 1);
    }
    int odd = tr_odd_part(c->opt.n_micro);
    for (c->n_levels = 0; c->opt.layout.in_order && odd << c->n_levels < c->opt.n_micro;)
        c->n_levels++;
    c->n_levels += c->opt.layout.in_order && odd > 1;
}

/* Resolves what this run holds of each parameter, and which state rows are sharded. */
static void resolve_states(struct tr_compiled *c)
{
    const struct tr_compile_options *o = &c->opt;
    struct tr_state_dtypes d = { o->compute_dtype, o->grad_dtype, o->master_dtype, o->moment_dtype };
    TR_BUG_ON(!o->is_inference && !o->optim);
    tr_states_of(o->is_inference ? NULL : o->optim, &d, &c->states);
    for (int s = 0; s < c->states.n; s++) {
        int zero = s == TR_S_GRAD ? tr_grad_zero(&o->layout) : o->layout.zero;
        c->states.row[s].is_sharded = zero >= c->states.row[s].zero;
    }
    c->opt.layout.grain = tr_states_grain(&c->states);
}

/* Refuses an optimizer that cannot run here. Blocks divide the flattened whole tensor, and two tensor ranks cannot
 * share one. A kernel that is not an op exists only on the host. */
static enum tr_status check_optim(const struct tr_compiled *c)
{
    int size = c->opt.layout.size[TR_AXIS_TP];
    for (int k = 0; c->opt.has_own_memory && c->opt.optim && k < c->opt.optim->n_phases; k++)
        if (c->opt.optim->phase[k].kernel)
            return tr_fail(TR_USAGE, "optim %s has no kernels for a GPU; use --device cpu", c->opt.optim->name);
    for (int s = 0; s < c->states.n; s++)
        for (int i = 0; i < c->model->n_params; i++)
            if (!tr_tp_keeps_blocks(&c->model->param[i], size, c->states.row[s].block))
                return tr_fail(TR_USAGE,
                               "optim %s: tp %d cuts %s (%" PRId64 " x %" PRId64 ") inside a block of %d elements of "
                               "its %s; use another tp or another optimizer",
                               c->opt.optim->name, size, c->model->param[i].name, c->model->param[i].rows,
                               c->model->param[i].cols, (int)c->states.row[s].block, c->states.row[s].title);
    return TR_OK;
}

enum tr_status tr_compile(const struct tr_model *m, const struct tr_model *eval_model,
                          const struct tr_model *decode_model, const struct tr_compile_options *opt,
                          struct tr_compiled **out)
{
    enum tr_status st = TR_OK;
    struct tr_compiled *c = calloc(1, sizeof *c);
    if (!c)
        return tr_fail(TR_NOMEM, "plan: out of memory");
    c->opt = *opt;
    c->opt.column = opt->column ? opt->column : tr_column_of("cpu");
    c->model = m;
    c->eval_model = eval_model;
    c->decode_model = decode_model;
    c->cache = calloc((size_t)m->n_segments, sizeof *c->cache);
    c->recompute_of = calloc((size_t)m->n_segments, sizeof *c->recompute_of);
    c->place = calloc((size_t)m->n_params, sizeof *c->place);
    c->group_of = calloc((size_t)m->n_params, sizeof *c->group_of);
    for (int i = 0; c->group_of && i < m->n_params; i++)
        c->group_of[i] = (uint8_t)tr_param_group_of(&opt->groups, m->param[i].name);
    c->is_frozen = calloc((size_t)m->n_params, sizeof *c->is_frozen);
    c->n_buckets = m->n_segments + 2;
    for (int i = 0; opt->is_frozen && !opt->is_inference && c->is_frozen && i < m->n_params; i++) {
        c->is_frozen[i] = opt->is_frozen[i];
        if (opt->is_frozen[i])
            c->n_buckets = tr_frozen_bucket(m, m->n_segments) + 1;
    }
    c->bucket = calloc((size_t)c->n_buckets, sizeof *c->bucket);
    c->stage_of = calloc((size_t)m->n_segments, sizeof *c->stage_of);
    c->norm_first = calloc((size_t)m->n_params + 1, sizeof *c->norm_first);
    if (c->opt.layout.data_size == 0) /* one rank */
        c->opt.layout = (struct tr_layout){ .data_size = 1, .shard_size = 1 };
    for (int a = 0; a < TR_AXES; a++)
        c->opt.layout.size[a] = c->opt.layout.size[a] ? c->opt.layout.size[a] : 1;
    if (c->opt.layout.shard_size == 1) /* one shard: there is nothing to divide */
        c->opt.layout.zero = 0;
    if (!c->recompute_of || !c->place || !c->is_frozen || !c->group_of || !c->cache || !c->bucket || !c->stage_of ||
        !c->norm_first)
        TR_TRY(tr_fail(TR_NOMEM, "plan: out of memory"));
    resolve_states(c);
    TR_TRY(check_optim(c));
    TR_TRY(tr_pipeline_stages(c));
    TR_TRY(tr_buckets_measure(c));
    tr_place_writers(c);
    count_norms(c);
    const struct tr_layout *l = &c->opt.layout;
    c->has_wire = tr_dtype_bytes(c->opt.reduce_dtype) < tr_dtype_bytes(c->opt.grad_dtype) && !l->in_order &&
                  l->data_size * l->size[TR_AXIS_CP] > 1 && !c->opt.is_inference;
    if (opt->recompute == TR_RECOMPUTE_AUTO && opt->memory_budget) {
        TR_TRY(fit_budget(c));
    } else {
        bool is_auto = opt->recompute == TR_RECOMPUTE_AUTO; /* without a budget nothing is recomputed */
        TR_TRY(try_set(c, TR_RECOMPUTE_NONE, is_auto ? TR_RECOMPUTE_NONE : opt->recompute, m->n_segments));
        char need[32], have[32];
        if (opt->memory_budget && !fits(c))
            st = tr_fail(TR_USAGE, "memory_budget %s: the run needs %s; try --recompute auto",
                         tr_human_bytes(opt->memory_budget, have, sizeof have),
                         tr_human_bytes(tr_compiled_bytes_in(c, TR_SPACE_DEVICE), need, sizeof need));
    }
    const struct tr_schedule *all[] = { &c->train, &c->eval, &c->decode };
    for (size_t i = 0; i < TR_COUNT_OF(all) && st == TR_OK; i++)
        if (all[i]->n_actions <= CHECKED_ACTIONS)
            st = tr_schedule_check(all[i]);
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
    tr_schedule_release(&c->train);
    tr_schedule_release(&c->eval);
    tr_schedule_release(&c->decode);
    free(c->cache);
    free(c->recompute_of);
    free(c->place);
    free(c->is_frozen);
    free(c->group_of);
    free(c->bucket);
    free(c->stage_of);
    free(c->norm_first);
    tr_pipe_close(c->pipe);
    free(c->slice);
    free(c);
}
