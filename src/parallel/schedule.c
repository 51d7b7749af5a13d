/* schedule.c - level 2: the programs of one rank, the table of passes that make its list of actions, and the list as
 * text. */
#include "parallel/pipe.h"
#include "parallel/parallel_impl.h"
#include <stdlib.h>

/* Generation reads few tokens at a time, so that no axis can split them. */
static struct tr_layout layout_of(const struct tr_compiled *c, enum tr_purpose purpose)
{
    struct tr_layout l = c->opt.layout;
    if (tr_purpose_has_cache(purpose)) {
        l.size[TR_AXIS_CP] = 1;
        l.coord[TR_AXIS_CP] = 0;
        l.sp = false;
    }
    return l;
}

const struct tr_action *tr_schedule_head(const struct tr_schedule *s)
{
    const struct tr_action *found = NULL;
    for (int i = 0; i < s->n_actions; i++)
        if (s->action[i].kind == TR_DO_FORWARD && s->action[i].segment == s->model->n_segments - 1)
            found = &s->action[i];
    return found;
}

/* Builds one program for each (segment program, recompute mode) that occurs; equal segments share it. */
static enum tr_status build_programs(const struct tr_compiled *c, struct tr_schedule *s)
{
    const struct tr_model *m = s->model;
    bool is_training = s->purpose == TR_FOR_TRAIN;
    const struct tr_compile_options *opt = &c->opt;
    TR_PASS(TR_ALLOC(s->program, (size_t)m->n_segments, "a schedule"));
    TR_PASS(TR_ALLOC(s->program_of, (size_t)m->n_segments, "a schedule"));
    for (int g = 0; g < m->n_segments; g++) {
        s->program_of[g] = -1;
        if (!tr_segment_is_here(&c->place, g))
            continue;
        enum tr_recompute mode = is_training ? c->recompute_of[g] : TR_RECOMPUTE_NONE;
        for (int k = 0; k < g && s->program_of[g] < 0; k++) /* reuses the program of the first equal segment */
            if (s->program_of[k] >= 0 && (!is_training || c->recompute_of[k] == mode) &&
                tr_segments_are_alike(&c->place, k, g))
                s->program_of[g] = s->program_of[k];
        if (s->program_of[g] < 0) {
            struct tr_pass_ctx ctx = { .compute_dtype = opt->compute_dtype,
                                       .grad_dtype = opt->grad_dtype,
                                       .is_training = is_training,
                                       .splits_backward = is_training && c->pipe->splits_backward,
                                       .recompute = mode,
                                       .cache_rows = tr_purpose_has_cache(s->purpose) ? opt->cache_rows : 0,
                                       .n_threads = opt->n_threads,
                                       .layout = layout_of(c, s->purpose),
                                       .column = opt->column,
                                       .fuses = opt->fuses,
                                       .any_order = opt->any_order,
                                       .fp8 = opt->fp8,
                                       .fp8_e5m2 = opt->fp8_e5m2,
                                       .fp8_history = opt->fp8_history };
            tr_segment_ctx(&c->place, g, &ctx);
            TR_PASS(tr_program_copy(m->program[m->segment[g].program], &s->program[s->n_programs]));
            s->program_of[g] = s->n_programs++;
            tr_program_freeze(&c->place, g, s->program[s->program_of[g]]);
            TR_PASS(tr_run_passes(s->program[s->program_of[g]], &ctx));
        }
    }
    return TR_OK;
}

/* Flops of the forward ops that run in the backward. */
static double recompute_flops(const struct tr_program *p)
{
    double sum = 0;
    for (int i = 0; i < p->n_nodes; i++) {
        enum tr_opcode op = p->node[i].op;
        struct tr_call c;
        tr_node_call(p, &p->node[i], &c);
        bool is_forward = op == TR_OP_LINEAR || op == TR_OP_ATTENTION || op == TR_OP_RING_ATTENTION;
        sum += is_forward && p->node[i].phase != TR_FORWARD ? tr_op_flops(&c) : 0;
    }
    return sum;
}

static const struct {
    const char *name;
    tr_level2_fn *run;
} passes[] = { { "pipeline", tr_pass_pipeline }, { "shard", tr_pass_shard },     { "reduce", tr_pass_reduce },
               { "update", tr_pass_update },     { "offload", tr_pass_offload }, { "stow", tr_pass_stow },
               { "overlap", tr_pass_overlap },   { "memory", tr_pass_memory } };

void tr_level2_list(struct tr_str *out)
{
    for (size_t i = 0; i < TR_COUNT_OF(passes); i++)
        tr_str_addf(out, "%s%s", i ? " " : "", passes[i].name);
}

/* Adds the buffers that exist for the whole run, in front of the slots. */
static enum tr_status add_fixed_buffers(const struct tr_compiled *c, struct tr_schedule *s)
{
    struct tr_emit e = { .c = c, .s = s };
    for (int r = TR_BUF_VALUE; r <= TR_BUF_LEVELS; r++)
        for (int b = 0; b < c->place.n_buckets; b++)
            (void)tr_slot_add(&e, (enum tr_region)r, b, 0);
    for (int r = TR_BUF_STAGING; r < TR_REGIONS; r++)
        (void)tr_slot_add(&e, (enum tr_region)r, -1, 0);
    return e.st;
}

static void find_parts(struct tr_schedule *s)
{
    int i = 0;
    for (int part = 0; part < TR_STEP_PARTS; part++) {
        s->part_first[part] = i;
        while (i < s->n_actions && (int)s->action[i].part == part)
            i++;
    }
    s->part_first[TR_STEP_PARTS] = i;
    TR_BUG_ON(i != s->n_actions);
}

enum tr_status tr_schedule_build(const struct tr_compiled *c, struct tr_schedule *s)
{
    enum tr_status st = TR_OK;
    int n_micro = s->purpose == TR_FOR_TRAIN ? c->opt.n_micro : 1;
    tr_schedule_release(s);
    TR_TRY(build_programs(c, s));
    TR_TRY(add_fixed_buffers(c, s));
    for (size_t i = 0; i < TR_COUNT_OF(passes); i++) {
        st = passes[i].run(c, s);
        if (st != TR_OK)
            TR_TRY(tr_fail_at(st, "pass %s: ", passes[i].name));
    }
    find_parts(s);
    for (int i = 0; i < s->n_programs; i++)
        s->work_bytes = s->program[i]->work_bytes > s->work_bytes ? s->program[i]->work_bytes : s->work_bytes;
    for (int g = 0; g < s->model->n_segments; g++) {
        if (!tr_segment_is_here(&c->place, g))
            continue;
        const struct tr_program *p = s->program[s->program_of[g]];
        double all = tr_program_flops(p, TR_FORWARD) + tr_program_flops(p, TR_BACKWARD_INPUT) +
                     tr_program_flops(p, TR_BACKWARD_WEIGHT);
        s->flops += all * n_micro;
        s->recompute_flops += recompute_flops(p) * n_micro;
    }
out:
    if (st != TR_OK)
        tr_schedule_release(s);
    return st;
}

void tr_schedule_release(struct tr_schedule *s)
{
    for (int i = 0; s->program && i < s->n_programs; i++)
        tr_program_close(s->program[i]);
    free(s->program);
    free(s->program_of);
    free(s->action);
    free(s->buffer);
    free(s->wait);
    *s = (struct tr_schedule){ .purpose = s->purpose, .model = s->model };
}

const char *tr_bucket_name(const struct tr_model *m, int bucket, char *buf, size_t n)
{
    int g = tr_bucket_segment(m, bucket);
    const struct tr_segment *seg = g < m->n_segments ? &m->segment[g] : NULL;
    static const char *const ends[TR_FATES] = { "", " apart", " frozen", " packed" };
    const char *end = ends[tr_bucket_fate(m, bucket)];
    if (seg && seg->layer >= 0)
        (void)tr_format(buf, n, "%s.%d%s", m->program[seg->program]->name, seg->layer, end);
    else
        (void)tr_format(buf, n, "%s%s",
                        seg                  ? m->program[seg->program]->name
                        : g == m->n_segments ? "shared"
                                             : "second-use",
                        end);
    return buf;
}

static void print_axes(tr_axes axes, struct tr_str *out)
{
    const char *join = "";
    for (int a = 0; a < TR_AXES; a++)
        if (axes >> a & 1) {
            tr_str_addf(out, "%s%s", join, tr_axis_name((enum tr_axis)a));
            join = "+";
        }
}

static void print_action(const struct tr_placement *p, const struct tr_schedule *s, const struct tr_action *a,
                         struct tr_str *out)
{
    char name[48];
    bool is_message = a->kind == TR_DO_SEND || a->kind == TR_DO_RECV, has_segment = a->segment >= 0;
    tr_str_addf(out, a->of < 0 && !has_segment ? "%s" : "%-15s", tr_action_name(a->kind));
    if (a->of >= 0 || has_segment)
        tr_str_addf(out, " %s", tr_bucket_name(s->model, a->of >= 0 ? a->of : a->segment, name, sizeof name));
    if (has_segment && a->of < 0)
        tr_str_addf(out, " micro %d", a->micro);
    if (is_message)
        tr_str_addf(out, "  %s rank %d, message %d, %zu x %s", a->kind == TR_DO_SEND ? "to" : "from", a->peer,
                    a->message, a->count, tr_dtype_name(a->dtype));
    if (a->kind == TR_DO_WAIT)
        tr_str_addf(out, "  for message %d", a->message);
    if (a->kind == TR_DO_REDUCE) {
        const struct tr_hop *h = &p->bucket[a->of].hop[a->hop];
        tr_str_addf(out, "  %s over ", h->is_scatter ? "scatter" : "sum");
        print_axes(h->axes, out);
    }
    if (a->kind == TR_DO_FORWARD && s->program[s->program_of[a->segment]]->saved_bytes)
        tr_str_addf(out, "  saves %zu bytes at %zu", s->program[s->program_of[a->segment]]->saved_bytes, a->saved);
    if (tr_action_is_posted(a))
        tr_str_addf(out, "  [%s]", tr_stream_name(a->stream));
    for (int i = 0; i < a->n_waits; i++) {
        const struct tr_wait *w = &s->wait[a->first_wait + i];
        tr_str_addf(out, "%s%d%s", i ? ", " : "  after ", w->action, w->lag ? " of the step before" : "");
    }
    tr_str_addf(out, "\n");
}

void tr_schedule_print(const struct tr_compiled *c, struct tr_str *out)
{
    const struct tr_schedule *s = &c->schedule[TR_FOR_TRAIN];
    int rank = c->opt.layout.coord[TR_AXIS_PP];
    if (c->place.n_stages > 1 && rank == 0)
        tr_pipe_print(c->pipe, out);
    if (c->place.n_stages > 1)
        tr_str_addf(out, "# actions of pipeline rank %d\n", rank);
    for (int i = 0; i < s->n_actions; i++) {
        tr_str_addf(out, "%5d  ", i);
        print_action(&c->place, s, &s->action[i], out);
    }
}
