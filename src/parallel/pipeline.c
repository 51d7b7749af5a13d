/* pipeline.c - level-2 pass: segments are grouped into stages, and the slots of one rank become forwards, backwards and
 * messages.
 *
 * Gradient accumulation is the pipeline with one stage; there is no other path. Activations between segments, their
 * gradients, and the saved and split-saved slabs are slots of memory that live until their last user: a segment of this
 * rank, or a message.
 */
#include "parallel/pipe.h"
#include "parallel/parallel_impl.h"
#include <math.h>
#include <stdlib.h>

static bool stage_is_here(const struct tr_layout *l, int stage)
{
    return stage % l->size[TR_AXIS_PP] == l->coord[TR_AXIS_PP];
}

bool tr_segment_is_here(const struct tr_placement *p, int segment)
{
    return stage_is_here(p->layout, p->stage_of[segment]);
}

bool tr_param_is_first(const struct tr_placement *p, int param)
{
    return stage_is_here(p->layout, p->param[param].stage);
}

bool tr_param_is_counted(const struct tr_placement *p, int param)
{
    bool is_first = p->param[param].tp.is_split || p->layout->coord[TR_AXIS_TP] == 0;
    return p->param[param].n > 0 && !p->is_frozen[param] && is_first && tr_param_is_first(p, param);
}

/* ---- stages ---- */

struct stage_cut {
    double worst, squares; /* cost of the stages so far */
    int begin;             /* first segment of the last stage */
};

static bool is_better(const struct stage_cut *a, const struct stage_cut *b)
{
    return a->worst < b->worst || (a->worst <= b->worst && a->squares < b->squares);
}

/* Groups the segments into runs such that the most expensive run is as cheap as possible; among those groupings it
 * takes the most even one. Cost is flops, so the head counts fully. Every stage has a segment. */
static enum tr_status find_stages(struct tr_placement *p, int n_stages)
{
    const struct tr_model *m = p->model;
    int n = m->n_segments;
    struct stage_cut *best = calloc(((size_t)n_stages + 1) * ((size_t)n + 1), sizeof *best);
    double *sum = calloc((size_t)n + 1, sizeof *sum);
    if (!best || !sum) {
        free(best);
        free(sum);
        return tr_fail(TR_NOMEM, "pipeline: out of memory");
    }
    for (int g = 0; g < n; g++)
        sum[g + 1] = sum[g] + tr_program_flops(m->program[m->segment[g].program], TR_FORWARD);
    for (int k = 0; k <= n_stages; k++)                 /* the first k stages hold the first g segments */
        for (int g = 0; g <= n - (n_stages - k); g++) { /* each later stage has one at least */
            struct stage_cut *to = &best[k * (n + 1) + g];
            *to = (struct stage_cut){ .worst = k == 0 && g == 0 ? 0 : INFINITY };
            for (int begin = k - 1; k > 0 && begin < g; begin++) {
                const struct stage_cut *from = &best[(k - 1) * (n + 1) + begin];
                double cost = sum[g] - sum[begin];
                struct stage_cut now = { fmax(from->worst, cost), from->squares + cost * cost, begin };
                if (is_better(&now, to))
                    *to = now;
            }
        }
    for (int k = n_stages, end = n; k > 0; k--) {
        int begin = best[k * (n + 1) + end].begin;
        for (int g = begin; g < end; g++)
            p->stage_of[g] = k - 1;
        end = begin;
    }
    p->n_stages = n_stages;
    free(best);
    free(sum);
    return TR_OK;
}

enum tr_status tr_pipeline_stages(struct tr_compiled *c)
{
    int n_ranks = c->opt.layout.size[TR_AXIS_PP], n_chunks = c->opt.pp_chunks > 1 ? c->opt.pp_chunks : 1;
    struct tr_legal_query q = { .pp = n_ranks,
                                .dp = c->opt.layout.data_size,
                                .cp = 1,
                                .tp = 1,
                                .pp_chunks = n_chunks,
                                .n_micro = c->opt.n_micro,
                                .pp_schedule = c->opt.pp_schedule,
                                .in_order = c->opt.layout.in_order,
                                .model.n_segments = c->place.model->n_segments };
    TR_PASS(tr_legal_check(&q));
    TR_PASS(find_stages(&c->place, n_ranks * n_chunks));
    if (c->opt.is_inference)
        return TR_OK;
    TR_PASS(
        tr_pipe_open(c->opt.pp_schedule ? c->opt.pp_schedule : "1f1b", n_ranks, n_chunks, c->opt.n_micro, &c->pipe));
    q.runs_back = q.in_order && !tr_pipe_is_in_order(c->pipe); /* compares all pairs: only where a rule asks */
    return tr_legal_check(&q);
}

/* ---- slots of memory ---- */

struct block {
    int buffer;
    int n_uses; /* uses left; at 0 the slot is freed */
};

struct pipeline_pass {
    struct tr_emit e;
    const struct tr_pipe *pipe;
    int *first;               /* segment of each stage, and one past the last */
    int *message;             /* by slot of the pipeline */
    struct block *out, *dout; /* by (segment, micro-batch): the output, and its gradient */
    int *saved, *split_saved; /* by the same: buffers */
};

static const struct tr_program *program_of(const struct pipeline_pass *pl, int g)
{
    return pl->e.s->program[pl->e.s->program_of[g]];
}

static size_t cell(const struct pipeline_pass *pl, int g, int micro)
{
    return (size_t)g * (size_t)pl->pipe->n_micro + (size_t)micro;
}

static int reads(const struct tr_program *p, tr_val v, enum tr_phase phase)
{
    for (int i = 0; v != TR_NONE && i < p->n_nodes; i++)
        if (p->node[i].phase == phase)
            for (int k = 0; k < TR_MAX_IN; k++)
                if (p->node[i].in[k] != TR_NONE && tr_value_root(p, p->node[i].in[k]) == v)
                    return 1;
    return 0;
}

static int reads_back(const struct tr_program *p, tr_val v)
{
    return reads(p, v, TR_BACKWARD_INPUT) + reads(p, v, TR_BACKWARD_WEIGHT);
}

/* Takes a new slot of memory, which the action fills. */
static int take(struct pipeline_pass *pl, struct tr_action *a, enum tr_role role, size_t bytes)
{
    int buffer = tr_slot_add(&pl->e, TR_BUF_ACTS, -1, bytes);
    tr_use_add(a, buffer, role, true)->takes = true;
    return buffer;
}

static void hold(struct pipeline_pass *pl, struct tr_action *a, enum tr_role role, struct block *b, size_t bytes,
                 int n_uses)
{
    *b = (struct block){ take(pl, a, role, bytes), n_uses };
}

static void let_go(struct tr_action *a, struct block *b, int n_uses)
{
    if (n_uses == 0)
        return;
    b->n_uses -= n_uses;
    TR_BUG_ON(b->n_uses < 0);
    if (b->n_uses == 0)
        tr_use_free(a, b->buffer);
}

/* ---- slots of the pipeline ---- */

/* Does this rank hold the segment, if there is one? */
static bool is_here(const struct pipeline_pass *pl, int g)
{
    return g >= 0 && g < pl->e.s->model->n_segments && tr_segment_is_here(&pl->e.c->place, g);
}

static struct tr_action *add_action(struct pipeline_pass *pl, enum tr_action_kind kind, int segment, int micro)
{
    return tr_emit_new(&pl->e, kind, TR_PART_GRADIENTS, segment, micro);
}

static void play_forward(struct pipeline_pass *pl, int g, int micro)
{
    const struct tr_program *p = program_of(pl, g);
    struct block *in = g > 0 ? &pl->out[cell(pl, g - 1, micro)] : NULL, *out = &pl->out[cell(pl, g, micro)];
    struct tr_action *a = add_action(pl, TR_DO_FORWARD, g, micro);
    if (in)
        (void)tr_use_add(a, in->buffer, TR_AS_IN, false);
    if (p->out != TR_NONE) {
        int n_uses = 1 + reads_back(p, p->out); /* 1 for this action itself */
        if (g + 1 < pl->e.s->model->n_segments)
            n_uses++; /* the next segment's forward, or the send */
        if (is_here(pl, g + 1))
            n_uses += reads_back(program_of(pl, g + 1), program_of(pl, g + 1)->in);
        hold(pl, a, TR_AS_OUT, out, tr_value_bytes(p, p->out), n_uses);
    }
    if (p->saved_bytes)
        pl->saved[cell(pl, g, micro)] = take(pl, a, TR_AS_SAVED, p->saved_bytes);
    if (in)
        let_go(a, in, 1);
    if (p->out != TR_NONE)
        let_go(a, out, 1);
}

/* Frees what a part of the backward of g reads for the last time. */
static void end_part(struct pipeline_pass *pl, struct tr_action *a, int g, int micro, enum tr_phase phase)
{
    const struct tr_program *p = program_of(pl, g);
    bool is_weight = phase == TR_BACKWARD_WEIGHT;
    if (g > 0)
        let_go(a, &pl->out[cell(pl, g - 1, micro)], reads(p, p->in, phase));
    if (p->din != TR_NONE) /* the input part has made it */
        let_go(a, &pl->dout[cell(pl, g - 1, micro)], is_weight ? reads(p, p->din, phase) : 1);
    if (p->out != TR_NONE)
        let_go(a, &pl->out[cell(pl, g, micro)], reads(p, p->out, phase));
    if (p->dout != TR_NONE)
        let_go(a, &pl->dout[cell(pl, g, micro)], is_weight ? reads(p, p->dout, phase) : 1);
    if (is_weight && p->split_saved_bytes)
        tr_use_free(a, pl->split_saved[cell(pl, g, micro)]);
    if (is_weight && p->saved_bytes)
        tr_use_free(a, pl->saved[cell(pl, g, micro)]);
}

/* Adds a use of (segment, micro-batch) only where the backward really reads it: the slot may already be freed. */
static void use_block(struct tr_action *a, const struct tr_program *p, tr_val v, const struct block *b,
                      enum tr_role role)
{
    bool is_read = (a->kind != TR_DO_BACKWARD_WEIGHT && reads(p, v, TR_BACKWARD_INPUT)) ||
                   (a->kind != TR_DO_BACKWARD_INPUT && reads(p, v, TR_BACKWARD_WEIGHT));
    if (is_read)
        (void)tr_use_add(a, b->buffer, role, false);
}

/* Nothing up to this segment learns, and no message waits for it: it has no backward. */
static bool is_forward_only(const struct tr_program *p)
{
    bool has_nodes = false;
    for (int i = 0; i < p->n_nodes; i++)
        has_nodes |= p->node[i].phase != TR_FORWARD;
    return !has_nodes && p->dout == TR_NONE && p->din == TR_NONE;
}

static void play_backward(struct pipeline_pass *pl, enum tr_action_kind kind, int g, int micro)
{
    const struct tr_program *p = program_of(pl, g);
    if (is_forward_only(p))
        return;
    size_t at = cell(pl, g, micro);
    bool is_weight = kind == TR_DO_BACKWARD_WEIGHT;
    struct tr_action *a = add_action(pl, kind, g, micro);
    if (g > 0)
        use_block(a, p, p->in, &pl->out[cell(pl, g - 1, micro)], TR_AS_IN);
    if (p->out != TR_NONE)
        use_block(a, p, p->out, &pl->out[at], TR_AS_OUT);
    if (p->dout != TR_NONE)
        use_block(a, p, p->dout, &pl->dout[at], TR_AS_DOUT);
    if (p->saved_bytes)
        (void)tr_use_add(a, pl->saved[at], TR_AS_SAVED, false);
    if (!is_weight && p->din != TR_NONE) {
        /* uses: this part itself, the segment before or the send, and the weight part */
        const struct tr_program *before = is_here(pl, g - 1) ? program_of(pl, g - 1) : NULL;
        int n_uses =
            2 + reads(p, p->din, TR_BACKWARD_WEIGHT) + (before ? reads(before, before->dout, TR_BACKWARD_WEIGHT) : 0);
        hold(pl, a, TR_AS_DIN, &pl->dout[cell(pl, g - 1, micro)], tr_value_bytes(p, p->din), n_uses);
    } else if (is_weight && p->din != TR_NONE) {
        use_block(a, p, p->din, &pl->dout[cell(pl, g - 1, micro)], TR_AS_DIN);
    }
    if (p->split_saved_bytes && is_weight)
        (void)tr_use_add(a, pl->split_saved[at], TR_AS_SPLIT_SAVED, false);
    else if (p->split_saved_bytes)
        pl->split_saved[at] = take(pl, a, TR_AS_SPLIT_SAVED, p->split_saved_bytes);
    if (!is_weight)
        end_part(pl, a, g, micro, TR_BACKWARD_INPUT);
    if (kind != TR_DO_BACKWARD_INPUT)
        end_part(pl, a, g, micro, TR_BACKWARD_WEIGHT);
}

static void play_slot(struct pipeline_pass *pl, const struct tr_pipe_slot *t)
{
    int first = pl->first[t->stage], end = pl->first[t->stage + 1];
    if (t->kind == TR_DO_FORWARD)
        for (int g = first; g < end; g++)
            play_forward(pl, g, t->micro);
    else
        for (int g = end - 1; g >= first; g--)
            play_backward(pl, t->kind, g, t->micro);
}

/* ---- messages ---- */

static void play_message(struct pipeline_pass *pl, const struct tr_pipe_step *step)
{
    const struct tr_pipe_slot *t = &pl->pipe->slot[step->slot];
    bool is_forward = t->kind == TR_DO_FORWARD, is_send = step->kind == TR_STEP_SEND || step->kind == TR_STEP_WAIT_SEND;
    int border = is_forward ? pl->first[t->stage + 1] : pl->first[t->stage]; /* the first segment behind it */
    int g = is_send == is_forward ? border - 1 : border;                     /* this rank's segment at the border */
    const struct tr_program *p = program_of(pl, g);
    tr_val v = is_send ? (is_forward ? p->out : p->din) : is_forward ? p->in : p->dout;
    struct block *b = (is_forward ? pl->out : pl->dout) + cell(pl, border - 1, t->micro);
    bool is_posted = step->kind == TR_STEP_SEND || step->kind == TR_STEP_RECV;
    struct tr_action *a = add_action(pl, !is_posted ? TR_DO_WAIT : is_send ? TR_DO_SEND : TR_DO_RECV, g, t->micro);
    a->peer = step->peer;
    if (!is_posted) {
        a->message = pl->message[step->slot];
        if (is_send)
            let_go(a, b, 1);
        return;
    }
    if (is_send)
        (void)tr_use_add(a, b->buffer, TR_AS_IN, false);
    else /* uses: the forward or the input part, and the later readers */
        hold(pl, a, TR_AS_OUT, b, tr_value_bytes(p, v),
             1 + (is_forward ? reads_back(p, v) : reads(p, v, TR_BACKWARD_WEIGHT)));
    a->dtype = p->value[v].dtype;
    a->count = (size_t)(p->value[v].rows * p->value[v].cols);
    a->message = pl->message[step->slot] = pl->e.s->n_messages++;
}

static enum tr_status play(struct pipeline_pass *pl)
{
    struct tr_pipe_steps steps = { 0 };
    int window = 1;
    enum tr_status st = TR_OK;
    TR_TRY(tr_pipe_window(pl->pipe, &window));
    TR_TRY(tr_pipe_steps(pl->pipe, pl->e.c->opt.layout.coord[TR_AXIS_PP], window, &steps));
    for (int i = 0; i < steps.n; i++)
        if (steps.step[i].kind == TR_STEP_SLOT)
            play_slot(pl, &pl->pipe->slot[steps.step[i].slot]);
        else
            play_message(pl, &steps.step[i]);
out:
    tr_pipe_steps_release(&steps);
    return st;
}

enum tr_status tr_pass_pipeline(const struct tr_compiled *c, struct tr_schedule *s)
{
    enum tr_status st = TR_OK;
    struct tr_pipe *forward = NULL;
    struct pipeline_pass pl = { .pipe = c->pipe };
    int n_ranks = c->opt.layout.size[TR_AXIS_PP], n_segments = s->model->n_segments, n_stages = c->place.n_stages;
    tr_emit_begin(&pl.e, c, s);
    if (s->purpose != TR_FOR_TRAIN) {
        TR_TRY(tr_pipe_open(NULL, n_ranks, n_stages / n_ranks, 1, &forward));
        pl.pipe = forward;
    }
    size_t n = (size_t)n_segments * (size_t)pl.pipe->n_micro;
    struct block *blocks = calloc(2 * n, sizeof *blocks);
    int *slabs = calloc(2 * n, sizeof *slabs);
    pl.first = calloc((size_t)n_stages + 1, sizeof *pl.first);
    pl.message = calloc((size_t)pl.pipe->first[n_ranks], sizeof *pl.message);
    if (blocks && slabs && pl.first && pl.message) {
        pl.out = blocks;
        pl.dout = blocks + n;
        pl.saved = slabs;
        pl.split_saved = slabs + n;
        for (int g = n_segments - 1; g >= 0; g--)
            pl.first[c->place.stage_of[g]] = g;
        pl.first[n_stages] = n_segments;
        st = play(&pl);
    } else {
        st = tr_fail(TR_NOMEM, "schedule: out of memory");
    }
    free(blocks);
    free(slabs);
    free(pl.first);
    free(pl.message);
out:
    tr_pipe_close(forward);
    enum tr_status emitted = tr_emit_end(&pl.e);
    return st != TR_OK ? st : emitted;
}
