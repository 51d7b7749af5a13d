/* schedule.c - level 2: the actions of one rank for one optimizer step, and where activations live between them.
 *
 * Gradient accumulation is the pipeline with one stage: micro-batch after micro-batch, forward through the segments and
 * back. Activations between segments, their gradients, and saved slabs are blocks with a first and a last action; a
 * played first-fit allocator turns lifetimes into offsets.
 */
#include "parallel/parallel_impl.h"
#include <stdlib.h>

enum { N_MODES = TR_RECOMPUTE_BLOCK + 1 };

static bool reads(const struct tr_program *p, tr_val v, bool is_forward)
{
    for (int i = 0; v != TR_NONE && i < p->n_nodes; i++)
        if ((p->node[i].phase == TR_FORWARD) == is_forward)
            for (int k = 0; k < TR_MAX_IN; k++)
                if (p->node[i].in[k] != TR_NONE && tr_value_root(p, p->node[i].in[k]) == v)
                    return true;
    return false;
}

/* One program per (segment program, recompute mode) that occurs; embed and head keep their few values. */
static enum tr_status build_programs(const struct tr_model *m, const struct tr_compile_options *opt, bool is_training,
                                     const enum tr_recompute *recompute_of, struct tr_schedule *s)
{
    enum tr_status st = TR_OK;
    int n_max = m->n_programs * N_MODES, *index = malloc((size_t)n_max * sizeof *index);
    s->program = calloc((size_t)n_max, sizeof *s->program);
    s->program_of = calloc((size_t)m->n_segments, sizeof *s->program_of);
    if (!index || !s->program || !s->program_of)
        TR_TRY(tr_fail(TR_NOMEM, "schedule: out of memory"));
    for (int i = 0; i < n_max; i++)
        index[i] = -1;
    for (int g = 0; g < m->n_segments; g++) {
        enum tr_recompute mode = is_training ? recompute_of[g] : TR_RECOMPUTE_NONE;
        int *at = &index[m->segment[g].program * N_MODES + (int)mode];
        if (*at < 0) {
            struct tr_pass_ctx ctx = { .compute_dtype = opt->compute_dtype,
                                       .grad_dtype = opt->grad_dtype,
                                       .is_training = is_training,
                                       .recompute = mode,
                                       .cache_rows = is_training ? 0 : opt->cache_rows,
                                       .n_threads = opt->n_threads,
                                       .layout = opt->layout };
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

struct player {
    const struct tr_model *m;
    struct tr_schedule *s;
    struct tr_sim sim;
    size_t *out, *saved, *dout; /* by segment, of the micro-batch at hand */
};

static struct tr_action *add_action(struct tr_schedule *s, enum tr_action_kind kind, int segment, int micro)
{
    struct tr_action *a = &s->action[s->n_actions++];
    *a = (struct tr_action){ .kind = kind, .segment = segment, .micro = micro };
    return a;
}

static void play_forward(struct player *pl, int g, int micro, bool is_training)
{
    struct tr_schedule *s = pl->s;
    const struct tr_program *p = s->program[s->program_of[g]];
    struct tr_action *a = add_action(s, TR_DO_FORWARD, g, micro);
    a->in = g > 0 ? pl->out[g - 1] : 0;
    if (p->out != TR_NONE)
        a->out = pl->out[g] = tr_sim_alloc(&pl->sim, tr_value_bytes(p, p->out));
    if (p->saved_bytes)
        a->saved = pl->saved[g] = tr_sim_alloc(&pl->sim, p->saved_bytes);
    /* The input stays while this segment's backward, or the one that made it, still reads it. */
    if (g > 0) {
        const struct tr_program *before = s->program[s->program_of[g - 1]];
        if (!is_training || (!reads(p, p->in, false) && !reads(before, before->out, false))) {
            tr_sim_free(&pl->sim, pl->out[g - 1]);
            pl->out[g - 1] = SIZE_MAX;
        }
    }
}

static void play_backward(struct player *pl, int g, int micro)
{
    struct tr_schedule *s = pl->s;
    const struct tr_program *p = s->program[s->program_of[g]];
    struct tr_action *a = add_action(s, TR_DO_BACKWARD, g, micro);
    a->in = g > 0 ? pl->out[g - 1] : 0;
    a->out = p->out != TR_NONE ? pl->out[g] : 0;
    a->saved = pl->saved[g];
    a->dout = pl->dout[g];
    if (p->din != TR_NONE)
        a->din = pl->dout[g - 1] = tr_sim_alloc(&pl->sim, tr_value_bytes(p, p->din));
    if (p->out != TR_NONE) {
        if (pl->out[g] != SIZE_MAX)
            tr_sim_free(&pl->sim, pl->out[g]);
        tr_sim_free(&pl->sim, pl->dout[g]);
    }
    if (p->saved_bytes)
        tr_sim_free(&pl->sim, pl->saved[g]);
}

static enum tr_status play(const struct tr_model *m, int n_micro, bool is_training, struct tr_schedule *s)
{
    enum tr_status st = TR_OK;
    int n = m->n_segments;
    struct player pl = { .m = m, .s = s };
    size_t *mem = calloc(3 * (size_t)n, sizeof *mem);
    s->action = calloc((size_t)n * (is_training ? 2 * (size_t)n_micro + 1 : 1) + 1, sizeof *s->action);
    if (!mem || !s->action)
        TR_TRY(tr_fail(TR_NOMEM, "schedule: out of memory"));
    pl.out = mem;
    pl.saved = mem + n;
    pl.dout = mem + 2 * n;
    for (int micro = 0; micro < (is_training ? n_micro : 1); micro++) {
        for (int g = 0; g < n; g++)
            play_forward(&pl, g, micro, is_training);
        for (int g = n - 1; is_training && g >= 0; g--)
            play_backward(&pl, g, micro);
    }
    if (is_training) {
        add_action(s, TR_DO_CLIP, 0, 0);
        for (int g = 0; g < n; g++)
            add_action(s, TR_DO_UPDATE, g, 0);
    }
    s->acts_bytes = pl.sim.peak;
    st = pl.sim.failed;
out:
    tr_sim_release(&pl.sim);
    free(mem);
    return st;
}

enum tr_status tr_schedule_build(const struct tr_model *m, const struct tr_compile_options *opt, bool is_training,
                                 const enum tr_recompute *recompute_of, struct tr_schedule *s)
{
    enum tr_status st = TR_OK;
    *s = (struct tr_schedule){ 0 };
    TR_TRY(build_programs(m, opt, is_training, recompute_of, s));
    TR_TRY(play(m, opt->n_micro, is_training, s));
    for (int i = 0; i < s->n_programs; i++) {
        s->work_bytes = s->program[i]->work_bytes > s->work_bytes ? s->program[i]->work_bytes : s->work_bytes;
        s->scratch_bytes =
            s->program[i]->scratch_bytes > s->scratch_bytes ? s->program[i]->scratch_bytes : s->scratch_bytes;
    }
    for (int g = 0; g < m->n_segments; g++) {
        const struct tr_program *p = s->program[s->program_of[g]];
        double all = tr_program_flops(p, TR_FORWARD) + tr_program_flops(p, TR_BACKWARD_INPUT) +
                     tr_program_flops(p, TR_BACKWARD_WEIGHT);
        s->flops += all * (is_training ? opt->n_micro : 1);
    }
    if (is_training)
        s->recompute_flops = s->flops - tr_model_flops_per_token(m) * (double)m->n_tokens * opt->n_micro;
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

void tr_schedule_print(const struct tr_schedule *s, const struct tr_model *m, struct tr_str *out)
{
    static const char *const names[TR_ACTION_KINDS] = { "forward", "backward", "clip", "update", "gather", "reduce" };
    for (int i = 0; i < s->n_actions; i++) {
        const struct tr_action *a = &s->action[i];
        const struct tr_program *p = s->program[s->program_of[a->segment]];
        tr_str_addf(out, "%5d  %-8s", i, names[a->kind]);
        if (a->kind != TR_DO_CLIP) {
            tr_str_addf(out, " %s", p->name);
            if (m->segment[a->segment].layer >= 0)
                tr_str_addf(out, ".%d", m->segment[a->segment].layer);
        }
        if (a->kind == TR_DO_FORWARD || a->kind == TR_DO_BACKWARD)
            tr_str_addf(out, " micro %d", a->micro);
        if (a->kind == TR_DO_FORWARD && p->saved_bytes)
            tr_str_addf(out, "  saves %zu bytes at %zu", p->saved_bytes, a->saved);
        tr_str_addf(out, "\n");
    }
}
