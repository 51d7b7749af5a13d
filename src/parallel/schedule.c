/* schedule.c - level 2: the programs of one rank and the actions of one optimizer step (or one evaluation batch), in
 * the order that the pipeline pass plays them. */
#include "parallel/pipe.h"
#include "parallel/parallel_impl.h"
#include <assert.h>
#include <stdlib.h>

enum { N_MODES = TR_RECOMPUTE_BLOCK + 1 };

/* One program per (segment program, recompute mode) that occurs; embed and head keep their few values. */
static enum tr_status build_programs(const struct tr_compiled *c, const struct tr_model *m, bool is_training,
                                     struct tr_schedule *s)
{
    enum tr_status st = TR_OK;
    const struct tr_compile_options *opt = &c->opt;
    int n_max = m->n_programs * N_MODES, *index = malloc((size_t)n_max * sizeof *index);
    s->program = calloc((size_t)n_max, sizeof *s->program);
    s->program_of = calloc((size_t)m->n_segments, sizeof *s->program_of);
    if (!index || !s->program || !s->program_of)
        TR_TRY(tr_fail(TR_NOMEM, "schedule: out of memory"));
    for (int i = 0; i < n_max; i++)
        index[i] = -1;
    for (int g = 0; g < m->n_segments; g++) {
        s->program_of[g] = -1;
        if (!tr_segment_is_here(c, g))
            continue;
        enum tr_recompute mode = is_training ? c->recompute_of[g] : TR_RECOMPUTE_NONE;
        int *at = &index[m->segment[g].program * N_MODES + (int)mode];
        if (*at < 0) {
            struct tr_pass_ctx ctx = { .compute_dtype = opt->compute_dtype,
                                       .grad_dtype = opt->grad_dtype,
                                       .is_training = is_training,
                                       .splits_backward = is_training && c->pipe->splits_backward,
                                       .recompute = mode,
                                       .cache_rows = is_training ? 0 : opt->cache_rows,
                                       .n_threads = opt->n_threads,
                                       .layout = opt->layout,
                                       .is_cuda = opt->is_cuda,
                                       .fuses = opt->fuses,
                                       .any_order = opt->any_order,
                                       .fp8 = opt->fp8,
                                       .fp8_e5m2 = opt->fp8_e5m2,
                                       .fp8_history = opt->fp8_history };
            TR_TRY(tr_program_copy(m->program[m->segment[g].program], &s->program[s->n_programs]));
            *at = s->n_programs++;
            TR_TRY(tr_run_passes(s->program[*at], &ctx));
        }
        s->program_of[g] = *at;
    }
out:
    free(index);
    return st;
}

/* Forward ops that the backward runs. */
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

enum tr_status tr_schedule_build(struct tr_compiled *c, const struct tr_model *m, bool is_training,
                                 struct tr_schedule *s)
{
    enum tr_status st = TR_OK;
    int n_micro = is_training ? c->opt.n_micro : 1;
    *s = (struct tr_schedule){ 0 };
    TR_TRY(build_programs(c, m, is_training, s));
    TR_TRY(tr_pass_pipeline(c, m, is_training, s));
    for (int i = 0; i < s->n_programs; i++) {
        s->work_bytes = s->program[i]->work_bytes > s->work_bytes ? s->program[i]->work_bytes : s->work_bytes;
        s->scratch_bytes =
            s->program[i]->scratch_bytes > s->scratch_bytes ? s->program[i]->scratch_bytes : s->scratch_bytes;
    }
    for (int g = 0; g < m->n_segments; g++) {
        if (!tr_segment_is_here(c, g))
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
    *s = (struct tr_schedule){ 0 };
}

static void print_action(const struct tr_compiled *c, const struct tr_action *a, struct tr_str *out)
{
    static const char *const names[] = { "forward",  "backward", "backward-input", "backward-weight",
                                         "clip",     "update",   "gather",         "reduce",
                                         "send",     "recv",     "wait",           "tie",
                                         "tree-add", "reduce-tp" };
    static_assert(TR_COUNT_OF(names) == TR_ACTION_KINDS, "one name per kind");
    const struct tr_schedule *s = &c->train;
    const struct tr_model *m = c->model;
    bool is_shared = a->segment >= m->n_segments;
    const struct tr_program *p = is_shared ? NULL : m->program[m->segment[a->segment].program];
    tr_str_addf(out, a->kind == TR_DO_CLIP ? "%s" : "%-15s", names[a->kind]);
    if (a->kind != TR_DO_CLIP)
        tr_str_addf(out, " %s", is_shared ? (a->segment == m->n_segments ? "shared" : "second-use") : p->name);
    if (a->kind != TR_DO_CLIP && !is_shared && m->segment[a->segment].layer >= 0)
        tr_str_addf(out, ".%d", m->segment[a->segment].layer);
    if (a->kind <= TR_DO_BACKWARD_WEIGHT || a->kind == TR_DO_SEND || a->kind == TR_DO_RECV || a->kind == TR_DO_WAIT)
        tr_str_addf(out, " micro %d", a->micro);
    if (a->kind == TR_DO_SEND || a->kind == TR_DO_RECV)
        tr_str_addf(out, "  %s rank %d, message %d, %zu x %s", a->kind == TR_DO_SEND ? "to" : "from", a->peer,
                    a->message, a->count, tr_dtype_name(a->dtype));
    if (a->kind == TR_DO_WAIT)
        tr_str_addf(out, "  for message %d", a->message);
    if (a->kind == TR_DO_FORWARD && s->program[s->program_of[a->segment]]->saved_bytes)
        tr_str_addf(out, "  saves %zu bytes at %zu", s->program[s->program_of[a->segment]]->saved_bytes, a->saved);
    tr_str_addf(out, "\n");
}

void tr_schedule_print(const struct tr_compiled *c, struct tr_str *out)
{
    int rank = c->opt.layout.coord[TR_AXIS_PP];
    if (c->n_stages > 1 && rank == 0)
        tr_pipe_print(c->pipe, out);
    if (c->n_stages > 1)
        tr_str_addf(out, "# actions of pipeline rank %d\n", rank);
    for (int i = 0; i < c->train.n_actions; i++) {
        tr_str_addf(out, "%5d  ", i);
        print_action(c, &c->train.action[i], out);
    }
}
