/* step.c - runs a schedule: steps, evaluation and generation are the same loop over actions, on any device.
 *
 * Before an action the loop waits for the actions that the schedule lists, and for nothing else. A step runs in parts,
 * because between measure and update the caller decides whether the parameters change.
 */
#include "exec/exec_impl.h"
#include <assert.h>
#include <math.h>

void tr_exec_kernel(struct tr_exec *e, const struct tr_call *c)
{
    int at = tr_trace_op(e->trace, c, 1);
    tr_op_launch(e->dev, e->kernel[c->op], c);
    tr_trace_end(e->trace, at);
}

static enum tr_status (*const run_kind[])(struct tr_run *r, const struct tr_action *a) = {
#define X(id, name, phase, failpoint, stream) tr_run_##id,
    TR_ACTION_LIST(X)
#undef X
};
static_assert(TR_COUNT_OF(run_kind) == TR_ACTION_KINDS, "one function a kind");

enum tr_status tr_exec_run(struct tr_exec *e, struct tr_comm *comm, const struct tr_coll *c)
{
    return e->checked && (c->kind == TR_ALL_REDUCE || c->kind == TR_REDUCE_SCATTER)
               ? tr_comm_run_checked(comm, c, e->checked)
               : tr_comm_run(comm, c);
}

enum tr_status tr_exec_post(struct tr_run *r, const struct tr_action *a, struct tr_comm *comm, const struct tr_coll *c)
{
    struct tr_exec *e = r->e;
    struct tr_posted *p = &e->posted[a - r->s->action];
    bool is_in_place =
        a->stream != TR_STREAM_COMM || (e->checked && (c->kind == TR_ALL_REDUCE || c->kind == TR_REDUCE_SCATTER));
    if (is_in_place)
        return tr_exec_run(e, comm, c);
    TR_BUG_ON(p->comm); /* the schedule must wait for an action before it repeats it */
    enum tr_status st = tr_comm_post(comm, c, &p->ticket);
    if (st == TR_OK) {
        p->comm = comm;
        e->n_posted++;
    }
    return st;
}

/* Holds a stream until a posted action is over. An action that was not posted, or that was already waited for, needs no
 * wait. */
static enum tr_status wait_for(struct tr_exec *e, int action, enum tr_stream stream)
{
    struct tr_posted *p = &e->posted[action];
    struct tr_comm *comm = p->comm;
    if (p->disk)
        TR_PASS(tr_exec_spill_finish(e, action));
    if (p->is_copy) {
        tr_stream_wait(e->dev, stream, e->copied[action]);
        p->is_copy = false;
        e->n_posted--;
    }
    p->comm = NULL;
    e->n_posted -= comm != NULL;
    return comm ? tr_comm_wait(comm, p->ticket) : TR_OK;
}

static enum tr_status wait_for_all(struct tr_exec *e)
{
    for (int i = 0; e->n_posted > 0; i++)
        TR_PASS(wait_for(e, i, TR_STREAM_HOST));
    return tr_exec_spill_drain(e);
}

/* Which actions of a range run. Updates of the step before run where that step left them. */
enum which { RUN_ALL, RUN_DEFERRED };

static bool is_left_out(const struct tr_exec *e, const struct tr_action *a, enum which which)
{
    return tr_action_is_deferred(a) ? !e->is_pending : which == RUN_DEFERRED;
}

/* The one loop over actions. */
static enum tr_status run_actions(struct tr_run *r, int first, int end, enum which which)
{
    struct tr_exec *e = r->e;
    enum tr_status st = TR_OK;
    e->is_running = true;
    for (int i = first; i < end; i++) {
        const struct tr_action *a = &r->s->action[i];
        if (is_left_out(e, a, which))
            continue;
        TR_TRY(tr_exec_announce(r, a));
        int at = tr_trace_action(e->trace, a);
        for (int k = 0; k < a->n_waits; k++)
            TR_TRY(wait_for(e, r->s->wait[a->first_wait + k].action,
                            a->stream == TR_STREAM_COMM ? TR_STREAM_COMPUTE : a->stream));
        TR_TRY(run_kind[a->kind](r, a));
        tr_trace_end(e->trace, at);
        if (r->s->purpose == TR_FOR_TRAIN && a->part == TR_PART_GRADIENTS) {
            tr_exec_poison(e, a);
            if (e->look)
                e->look(e->look_ctx, a);
        }
    }
out:
    e->is_running = false;
    return st;
}

static enum tr_status run_part(struct tr_run *r, enum tr_step_part part)
{
    return run_actions(r, r->s->part_first[part], r->s->part_first[part + 1], RUN_ALL);
}

/* Runs a part that the device may replay as one recording (graph.c). */
static enum tr_status run_recorded(struct tr_run *r, enum tr_step_part part)
{
    if (tr_exec_replay(r->e, part))
        return TR_OK;
    bool is_recording = tr_exec_record(r->e, part);
    TR_PASS(run_part(r, part));
    if (is_recording && !tr_exec_recorded(r->e, part))
        TR_PASS(run_part(r, part));
    return TR_OK;
}

static struct tr_run training(struct tr_exec *e)
{
    return (struct tr_run){ .e = e, .s = &e->c->schedule[TR_FOR_TRAIN] };
}

/* An update that failed has changed some of the parameters: it is not run again, and what is there is not saved. Who
 * asks later gets the same failure, also where the first who met it went on (a checkpoint that failed costs no run). */
static enum tr_status keep_failure(struct tr_exec *e, enum tr_status st)
{
    if (st != TR_OK && e->failed == TR_OK) {
        e->failed = st;
        (void)snprintf(e->cause, sizeof e->cause, "%s", tr_error_text());
    }
    return st;
}

static enum tr_status check_whole(const struct tr_exec *e)
{
    return e->failed == TR_OK ? TR_OK : tr_fail(e->failed, "an update of the parameters failed: %s", e->cause);
}

enum tr_status tr_exec_drain(struct tr_exec *e)
{
    struct tr_run r = training(e);
    TR_PASS(check_whole(e));
    if (e->is_pending)
        TR_PASS(keep_failure(e, run_actions(&r, 0, r.s->n_actions, RUN_DEFERRED)));
    e->is_pending = false;
    return keep_failure(e, wait_for_all(e));
}

static enum tr_status make_gradients(struct tr_run *r, const float values[TR_STEP_COUNT])
{
    struct tr_exec *e = r->e;
    TR_PASS(check_whole(e));
    (void)tr_mesh_waited_us(e->mesh, NULL); /* resets the counter: drops the waits before this step */
    tr_exec_send_step(e, values);
    TR_PASS(run_part(r, TR_PART_BEGIN));
    tr_exec_send_batches(e, r->s->model, r->micro, e->c->opt.n_micro);
    enum tr_status st = run_recorded(r, TR_PART_GRADIENTS);
    if (e->is_pending) /* updates of the step before ran among them */
        TR_PASS(keep_failure(e, st));
    e->is_pending = false;
    return st;
}

enum tr_status tr_exec_gradients(struct tr_exec *e, const struct tr_batch *micro, const float values[TR_STEP_COUNT],
                                 double *loss_sum)
{
    struct tr_run r = training(e);
    r.micro = micro;
    TR_PASS(make_gradients(&r, values));
    TR_PASS(tr_exec_drain(e));
    double sum[TR_METRICS];
    TR_PASS(tr_exec_read_losses(e, sum));
    *loss_sum = sum[TR_METRIC_LOSS];
    return tr_device_sync(e->dev, TR_STREAM_COMPUTE);
}

enum tr_status tr_exec_measure(struct tr_exec *e, const struct tr_config *cfg, const struct tr_batch *micro,
                               const float values[TR_STEP_COUNT], struct tr_step_result *out)
{
    struct tr_run r = training(e);
    r.micro = micro;
    r.cfg = cfg;
    r.loss_scale = (double)values[TR_STEP_LOSS_SCALE];
    r.out = out;
    TR_PASS(make_gradients(&r, values));
    return run_part(&r, TR_PART_MEASURE);
}

enum tr_status tr_run_NORM(struct tr_run *r, const struct tr_action *a)
{
    if (a->of >= 0)
        tr_exec_norm_of(r->e, a->of, r->e->base[TR_A_GRADS] + a->grad[0]);
    else
        tr_exec_norm(r->e);
    return TR_OK;
}

enum tr_status tr_run_LOSS(struct tr_run *r, const struct tr_action *a)
{
    (void)a;
    enum tr_status st = tr_exec_read_losses(r->e, r->out->sum);
    r->out->loss_sum = r->out->sum[TR_METRIC_LOSS];
    return st;
}

enum tr_status tr_run_CLIP(struct tr_run *r, const struct tr_action *a)
{
    (void)a;
    return tr_exec_clip(r->e, r->cfg->max_grad_norm, r->loss_scale, &r->out->grad_norm);
}

enum tr_status tr_run_UPDATE(struct tr_run *r, const struct tr_action *a)
{
    return tr_exec_update_bucket(r->e, a);
}

static enum tr_status update(struct tr_exec *e, struct tr_step_result *out)
{
    struct tr_run r = training(e);
    r.out = out;
    TR_BUG_ON(e->is_pending);
    TR_PASS(run_recorded(&r, TR_PART_UPDATE));
    if (e->defers)
        tr_exec_keep_step(e);
    TR_PASS(tr_device_sync(e->dev, TR_STREAM_COMPUTE));
    e->is_pending = e->defers;
    TR_PASS(run_part(&r, TR_PART_END));
    int64_t stages_us = 0;
    out->exposed_s = (double)tr_mesh_waited_us(e->mesh, &stages_us) * 1e-6;
    out->wait_s = (double)stages_us * 1e-6;
    return TR_OK;
}

enum tr_status tr_exec_update(struct tr_exec *e, struct tr_step_result *out)
{
    TR_PASS(check_whole(e));
    return keep_failure(e, update(e, out));
}

enum tr_status tr_exec_step(struct tr_exec *e, const struct tr_config *cfg, const struct tr_batch *micro,
                            const float values[TR_STEP_COUNT], struct tr_step_result *out)
{
    TR_PASS(tr_exec_measure(e, cfg, micro, values, out));
    if (!isfinite(out->loss_sum) || !isfinite(out->grad_norm))
        return tr_fail(TR_NUMBERS, "loss %g and gradient norm %g are not finite; no parameter was changed",
                       out->loss_sum, out->grad_norm);
    TR_PASS(tr_exec_update(e, out));
    return TR_OK;
}

/* Runs a schedule without gradients on one batch. */
static enum tr_status run_forward(struct tr_exec *e, enum tr_purpose purpose, const struct tr_batch *batch)
{
    struct tr_run r = { .e = e, .s = &e->c->schedule[purpose], .micro = batch };
    TR_BUG_ON(r.s->n_actions == 0);
    TR_PASS(tr_exec_drain(e));
    tr_exec_send_batches(e, r.s->model, batch, 1);
    TR_PASS(run_actions(&r, 0, r.s->n_actions, RUN_ALL));
    return tr_exec_drain(e);
}

enum tr_status tr_exec_eval(struct tr_exec *e, const struct tr_batch *batch, double sum[TR_METRICS])
{
    memset(sum, 0, TR_METRICS * sizeof *sum);
    TR_PASS(run_forward(e, TR_FOR_EVAL, batch));
    if (tr_exec_has_loss(e))
        tr_device_copy_now(e->dev, sum, e->base[TR_A_WORK] + e->c->memory.loss,
                           (size_t)e->c->place.model->n_losses * sizeof *sum);
    TR_PASS(tr_device_sync(e->dev, TR_STREAM_COMPUTE));
    return TR_OK;
}

enum tr_status tr_exec_documents(struct tr_exec *e, const struct tr_batch *batch, float *sums)
{
    const struct tr_schedule *s = &e->c->schedule[TR_FOR_EVAL];
    const struct tr_action *head = tr_schedule_head(s);
    size_t bytes = (size_t)(s->model->n_tokens * tr_doc_sums(&s->model->pair)) * sizeof *sums;
    memset(sums, 0, bytes);
    TR_PASS(run_forward(e, TR_FOR_EVAL, batch));
    if (head)
        tr_device_copy_now(e->dev, sums, e->base[TR_A_ACTS] + head->out, bytes);
    TR_PASS(tr_device_sync(e->dev, TR_STREAM_COMPUTE));
    return TR_OK;
}

/* The logits as the host reads them: rows of the whole vocabulary. Those of tensor ranks lie one part below the other.
 */
static const float *logits_for_host(struct tr_exec *e, const struct tr_schedule *s, char *from)
{
    int n_parts = e->c->opt.layout.size[TR_AXIS_TP];
    size_t vocab = (size_t)s->model->hp.vocab, widest, first, n;
    float *to = (float *)(void *)(e->base[TR_A_SAVE] + e->c->memory.logits);
    if (e->dev->row->is_host && n_parts == 1)
        return (const float *)(void *)from;
    tr_shard(vocab, n_parts, 0, &first, &widest);
    size_t n_rows = tr_head_bytes(s) / sizeof(float) / widest / (size_t)n_parts;
    for (size_t row = 0; row < n_rows * (size_t)n_parts; row++) {
        tr_shard(vocab, n_parts, (int)(row / n_rows), &first, &n);
        tr_device_copy(e->dev, TR_STREAM_COMPUTE, to + row % n_rows * vocab + first,
                       from + row * widest * sizeof(float), n * sizeof(float));
    }
    return to;
}

enum tr_status tr_exec_logits(struct tr_exec *e, enum tr_purpose purpose, int64_t sequence,
                              const struct tr_batch *batch, const float **logits)
{
    const struct tr_schedule *s = &e->c->schedule[purpose];
    const struct tr_action *head = tr_schedule_head(s);
    e->sequence = sequence;
    TR_PASS(run_forward(e, purpose, batch));
    *logits = head ? logits_for_host(e, s, e->base[TR_A_ACTS] + head->out) : NULL;
    return tr_device_sync(e->dev, TR_STREAM_COMPUTE);
}
