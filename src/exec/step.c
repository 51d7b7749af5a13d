/* step.c - runs a schedule: steps, evaluation and generation are the same loop over actions, on any device.
 *
 * A step is two halves, gradients and update, which a device may replay as one. Nothing is changed before the second.
 */
#include "exec/exec_impl.h"
#include <math.h>

void tr_exec_kernel(struct tr_exec *e, const struct tr_call *c)
{
    int at = tr_trace_op(e->trace, c, 1);
    e->kernel[c->op](c);
    tr_trace_end(e->trace, at);
}

/* No gradient holds anything of this step. */
static void forget_touches(struct tr_exec *e)
{
    memset(e->is_touched, 0, (size_t)e->c->model->n_params * sizeof *e->is_touched);
    memset(e->is_summed, 0, (size_t)e->c->n_buckets * sizeof *e->is_summed);
}

static void begin_step(struct tr_exec *e, const float *values)
{
    forget_touches(e);
    (void)tr_mesh_waited_us(e->mesh, NULL); /* by what was before this step */
    if (values)
        e->dev->ops->upload(e->dev, e->base[TR_A_WORK] + e->c->step, values, TR_STEP_COUNT * sizeof *values);
    if (values)
        tr_exec_amax_send(e);
}

static double read_loss(struct tr_exec *e)
{
    double loss = 0;
    if (tr_exec_has_loss(e))
        e->dev->ops->download(e->dev, &loss, e->base[TR_A_WORK] + e->c->loss, sizeof loss);
    return loss;
}

enum tr_status tr_exec_drain(struct tr_exec *e)
{
    enum tr_status st = TR_OK;
    for (int h = 0; h < e->c->n_buckets && st == TR_OK; h++)
        st = tr_exec_settle(e, h);
    return st;
}

/* The actions in front of the clip: forward, backward, and the sums over ranks. */
static enum tr_status run_gradients(struct tr_exec *e, const struct tr_batch *micro)
{
    const struct tr_schedule *s = &e->c->train;
    enum tr_status st = TR_OK;
    forget_touches(e);
    for (int i = 0; i < s->n_actions && s->action[i].kind != TR_DO_CLIP; i++) {
        TR_TRY(tr_exec_pass(e, &s->action[i]));
        int at = tr_trace_action(e->trace, &s->action[i]);
        TR_TRY(tr_exec_action(e, e->c->model, s, &s->action[i], micro));
        tr_trace_end(e->trace, at);
        tr_exec_poison(e, &s->action[i]);
        if (e->look)
            e->look(e->look_ctx, &s->action[i]);
    }
out:
    return st;
}

static enum tr_status make_gradients(struct tr_exec *e, const struct tr_batch *micro, const float values[TR_STEP_COUNT])
{
    enum tr_status st = TR_OK;
    begin_step(e, values);
    tr_exec_send_batches(e, e->c->model, micro, e->c->opt.n_micro);
    if (tr_exec_replay(e, TR_HALF_GRADIENTS))
        return TR_OK;
    bool is_recording = tr_exec_record(e, TR_HALF_GRADIENTS);
    TR_TRY(run_gradients(e, micro));
    if (is_recording && !tr_exec_recorded(e, TR_HALF_GRADIENTS))
        TR_TRY(run_gradients(e, micro));
    TR_TRY(tr_exec_drain(e));
out:
    return st;
}

enum tr_status tr_exec_gradients(struct tr_exec *e, const struct tr_batch *micro, const float values[TR_STEP_COUNT],
                                 double *loss_sum)
{
    enum tr_status st = TR_OK;
    TR_TRY(make_gradients(e, micro, values));
    TR_TRY(tr_exec_read_losses(e, loss_sum));
    TR_TRY(e->dev->ops->sync(e->dev));
out:
    return st;
}

enum tr_status tr_exec_measure(struct tr_exec *e, const struct tr_config *cfg, const struct tr_batch *micro,
                               const float values[TR_STEP_COUNT], struct tr_step_result *out)
{
    enum tr_status st = TR_OK;
    TR_TRY(make_gradients(e, micro, values));
    TR_TRY(tr_exec_pass(e, &(struct tr_action){ .kind = TR_DO_CLIP }));
    tr_exec_norm(e);
    TR_TRY(tr_exec_read_losses(e, &out->loss_sum));
    TR_TRY(tr_exec_clip(e, cfg->max_grad_norm, (double)values[TR_STEP_LOSS_SCALE], &out->grad_norm));
out:
    return st;
}

/* The actions behind the clip. */
static enum tr_status run_updates(struct tr_exec *e, const struct tr_config *cfg)
{
    const struct tr_schedule *s = &e->c->train;
    enum tr_status st = TR_OK;
    int i = 0;
    while (s->action[i].kind != TR_DO_CLIP)
        i++;
    for (i++; i < s->n_actions; i++) {
        TR_TRY(tr_exec_pass(e, &s->action[i]));
        int at = tr_trace_action(e->trace, &s->action[i]);
        if (s->action[i].kind == TR_DO_UPDATE)
            tr_exec_update_bucket(e, cfg->optim, s->action[i].segment);
        else
            TR_TRY(tr_exec_action(e, e->c->model, s, &s->action[i], NULL));
        tr_trace_end(e->trace, at);
    }
out:
    return st;
}

enum tr_status tr_exec_update(struct tr_exec *e, const struct tr_config *cfg, struct tr_step_result *out)
{
    enum tr_status st = TR_OK;
    if (!tr_exec_replay(e, TR_HALF_UPDATE)) {
        bool is_recording = tr_exec_record(e, TR_HALF_UPDATE);
        TR_TRY(run_updates(e, cfg));
        if (is_recording && !tr_exec_recorded(e, TR_HALF_UPDATE))
            TR_TRY(run_updates(e, cfg));
    }
    TR_TRY(tr_exec_drain(e));
    TR_TRY(e->dev->ops->sync(e->dev));
    TR_TRY(tr_exec_amax_learn(e));
    int64_t stages_us = 0;
    out->exposed_s = (double)tr_mesh_waited_us(e->mesh, &stages_us) * 1e-6;
    out->wait_s = (double)stages_us * 1e-6;
out:
    return st;
}

enum tr_status tr_exec_step(struct tr_exec *e, const struct tr_config *cfg, const struct tr_batch *micro,
                            const float values[TR_STEP_COUNT], struct tr_step_result *out)
{
    enum tr_status st = TR_OK;
    TR_TRY(tr_exec_measure(e, cfg, micro, values, out));
    if (!isfinite(out->loss_sum) || !isfinite(out->grad_norm))
        TR_TRY(tr_fail(TR_NUMBERS, "loss %g and gradient norm %g are not finite; no parameter was changed",
                       out->loss_sum, out->grad_norm));
    TR_TRY(tr_exec_update(e, cfg, out));
out:
    return st;
}

enum tr_status tr_exec_eval(struct tr_exec *e, const struct tr_batch *batch, double *loss_sum)
{
    const struct tr_schedule *s = &e->c->eval;
    enum tr_status st = TR_OK;
    begin_step(e, NULL);
    tr_exec_send_batches(e, e->c->eval_model, batch, 1);
    for (int i = 0; i < s->n_actions; i++) {
        tr_phase_enter(TR_PHASE_EVAL, tr_exec_place(e->c->eval_model, s->action[i].segment), 0);
        TR_TRY(tr_exec_action(e, e->c->eval_model, s, &s->action[i], batch));
    }
    *loss_sum = read_loss(e);
    TR_TRY(e->dev->ops->sync(e->dev));
out:
    return st;
}

enum tr_status tr_exec_logits(struct tr_exec *e, bool is_decode, int64_t first_position, const struct tr_batch *batch,
                              const float **logits)
{
    const struct tr_schedule *s = is_decode ? &e->c->decode : &e->c->eval;
    enum tr_status st = TR_OK;
    TR_BUG_ON(s->n_actions == 0);
    const struct tr_model *m = is_decode ? e->c->decode_model : e->c->eval_model;
    e->cache_row = first_position;
    tr_exec_send_batches(e, m, batch, 1);
    for (int i = 0; i < s->n_actions; i++)
        TR_TRY(tr_exec_action(e, m, s, &s->action[i], batch));
    char *at = e->base[TR_A_ACTS] + s->action[s->n_actions - 1].out;
    if (!e->dev->ops->is_host) {
        char *copy = e->base[TR_A_SAVE] + e->c->logits;
        e->dev->ops->download(e->dev, copy, at, (size_t)(m->n_tokens * m->hp.vocab) * sizeof(float));
        at = copy;
    }
    *logits = (const float *)(const void *)at;
    TR_TRY(e->dev->ops->sync(e->dev));
out:
    return st;
}
