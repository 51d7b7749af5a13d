/* train.c - the training loop: data, steps, evaluation, checkpoints, resume, signals.
 *
 * A run is a function of its configuration, data and seed. A checkpoint holds enough to continue with the same bits:
 * weights, optimizer state and the step number, which gives the sample cursor and every random counter.
 */
#include "train/signals.h"
#include "train/train_impl.h"
#include <stdlib.h>

/* One event for each set; that of the best step's set has the choices. */
static void report_evals(struct tr_trainer *t, int64_t step, const struct tr_eval_result *r)
{
    for (size_t i = 0; i < t->n_evals || (i == 0 && t->choices); i++) {
        struct tr_event_eval e = { .step = step,
                                   .loss = r[i].loss,
                                   .perplexity = r[i].perplexity,
                                   .tokens = r[i].tokens,
                                   .has_no_loss = t->n_evals == 0,
                                   .pairs = r[i].pairs,
                                   .choices = r[i].choices,
                                   .set = t->eval[i].name,
                                   .is_other = i != t->best.i_set };
        tr_observe_eval(t->ob, &e);
    }
}

/* What metric_for_best_model means of an evaluation, as a number of which the least is the best. */
static double score_of(const struct tr_best_rule *best, const struct tr_eval_result *r)
{
    const struct tr_eval_result *own = &r[best->i_set];
    switch (best->of) {
    case TR_BEST_ACC:
        return -own->choices.acc;
    case TR_BEST_ACC_NORM:
        return -own->choices.acc_norm;
    case TR_BEST_ACC_BYTES:
        return -own->choices.acc_bytes;
    case TR_BEST_REWARD_ACCURACY:
        return -own->pairs.rewards_accuracy;
    case TR_BEST_MARGIN:
        return own->pairs.rewards_rejected - own->pairs.rewards_chosen;
    default:
        return own->loss;
    }
}

/* Everything that the options ask of an evaluation. Events are written when all is known, so that a log has all or
 * none; with is_logged it has them. */
static enum tr_status evaluate(struct tr_trainer *t, int64_t step, bool is_logged)
{
    struct tr_eval_result r[TR_EVAL_SETS_MAX] = { 0 };
    void *mem = tr_exec_arena(t->e, TR_A_DATA) + t->s->loader_bytes;
    for (size_t i = 0; i < t->n_evals; i++)
        TR_PASS(tr_evaluate(t->e, t->eval[i].data, t->cfg->per_device_eval_batch_size, mem, NULL, &r[i]));
    if (t->choices)
        TR_PASS(tr_choices_run(t->choices, t->e, mem, &r[t->best.i_set].choices));
    if (t->sampler)
        TR_PASS(tr_sampler_run(t->sampler));
    if (!is_logged)
        report_evals(t, step, r);
    if (!is_logged && t->sampler)
        TR_PASS(tr_sampler_report(t->sampler, t->ob, step));
    t->evaluated_step = step;
    t->state.lacks_eval = false;
    if (step == 0 || (t->n_evals == 0 && t->best.of == TR_BEST_LOSS)) /* eval_on_start: there is no checkpoint of it */
        return TR_OK;
    tr_saving_evaluated(t->saving, step, score_of(&t->best, r));
    tr_due_evaluated(t, step, score_of(&t->best, r));
    return TR_OK;
}

enum tr_status tr_trainer_batch(struct tr_trainer *t, int64_t step, struct tr_step_batch **out, double *wait_s)
{
    int64_t start = tr_clock_us();
    enum tr_status st = TR_TIMEOUT;
    bool may_stop = tr_mesh_is_alone(t->mesh); /* with peers, a rank stops together with them or not at all */
    for (int tries = 0; st == TR_TIMEOUT && tries < 600 && !(may_stop && tr_stop_wanted()); tries++)
        st = tr_loader_next(t->loader, out, 1000000);
    *wait_s = (double)(tr_clock_us() - start) * 1e-6;
    if (st == TR_TIMEOUT && may_stop && tr_stop_wanted())
        return tr_fail(TR_STOPPED, "stopped by a signal while waiting for data");
    TR_BUG_ON(st == TR_OK && (!*out || (*out)->step != (uint64_t)step));
    return st;
}

enum tr_status tr_trainer_values(struct tr_trainer *t, const struct tr_step_batch *b, float values[TR_STEP_COUNT],
                                 double *kl)
{
    const struct tr_scaler *scaler = &t->state.scaler;
    int64_t step = (int64_t)b->step;
    const struct tr_config *cfg = tr_trainer_options(t, step);
    tr_step_values(cfg, step, t->total_steps, b->n_targets, values);
    TR_PASS(tr_measure_kl(t->e, t->data, b->first_sample, b->first_sample + b->n_samples,
                          t->cfg->per_device_eval_batch_size, tr_exec_arena(t->e, TR_A_DATA) + t->s->loader_bytes, kl));
    values[TR_STEP_KL] = (float)*kl;
    char *mem = tr_exec_arena(t->e, TR_A_DATA) + t->s->loader_bytes;
    TR_PASS(tr_match_step(t->e, t->data, b, t->cfg->per_device_eval_batch_size, &t->s->loader, mem,
                          mem + t->s->eval_batch_bytes + t->s->text_batch_bytes));
    if (scaler->scale > 0)
        tr_step_scale(cfg, step, scaler->scale, scaler->n_skipped, values);
    return TR_OK;
}

enum { STILL_STEPS = 10, LOG_TAIL_BYTES = 1 << 20 };

static enum tr_status one_step(struct tr_trainer *t, int64_t step)
{
    enum tr_status st = TR_OK;
    struct tr_step_batch *b = NULL;
    struct tr_step_result r;
    struct tr_verdict verdict;
    float values[TR_STEP_COUNT];
    double wait_s = 0, kl;
    int64_t start = tr_clock_us();
    tr_phase_step(step + 1);
    tr_phase_enter(TR_PHASE_DATA, TR_PLACE_NONE, 0);
    TR_TRY(tr_failpoint("train.data"));
    TR_TRY(tr_trainer_batch(t, step, &b, &wait_s));
    if (b->n_targets == 0)
        TR_TRY(tr_fail(TR_USAGE,
                       "step %" PRId64 ", samples %" PRIu64 "..%" PRIu64
                       ": no token of this batch has a loss, so nothing can be learnt from it; `trireme data show "
                       "%s --step %" PRId64 "` shows it",
                       step + 1, b->first_sample, b->first_sample + b->n_samples - 1, t->cfg->output, step + 1));
    const struct tr_scaler scaler = t->state.scaler; /* the scale of this step, before it changes */
    TR_TRY(tr_trainer_values(t, b, values, &kl));
    int64_t begin = tr_clock_us();
    TR_TRY(tr_trace_before(t->trace, step + 1));
    st = tr_numbers_step(t->numbers, b, values, &r, &verdict);
    if (verdict.is_odd)
        tr_trainer_report_odd(t, step + 1, b, &verdict);
    if (verdict.is_overflow)
        tr_trainer_report_overflow(t, step + 1);
    if (st != TR_OK)
        return tr_fail_at(st, "step %" PRId64 ", samples %" PRIu64 "..%" PRIu64 ": ", step + 1, b->first_sample,
                          b->first_sample + b->n_samples - 1);
    double seconds = (double)(tr_clock_us() - start) * 1e-6;
    TR_TRY(tr_trainer_report_profile(t, step + 1, (double)(tr_clock_us() - begin) * 1e-6, r.exposed_s));
    if (step > t->first_step) {
        t->stage_wait_s += r.wait_s;
        t->comm_wait_s += r.exposed_s;
        t->warm_s += (double)(tr_clock_us() - begin) * 1e-6;
    }
    int64_t tokens = (int64_t)b->n_samples * t->s->sequence_length;
    int64_t n_read = tokens; /* without padding */
    if (tr_trainer_is_first(t))
        TR_TRY(tr_data_tokens(t->data, b->first_sample, (int64_t)b->n_samples, t->total_samples, &n_read));
    t->tokens_done += tokens;
    t->wait_s += wait_s;
    t->step_s += seconds;
    t->steps_done = step + 1;
    struct tr_event_range range = { (int64_t)b->first_sample, (int64_t)(b->first_sample + b->n_samples) - 1 };
    struct tr_event_step e = { .step = step + 1,
                               .loss = b->n_targets ? r.loss_sum / (double)b->n_targets : 0,
                               .grad_norm = r.grad_norm,
                               .loss_scale = scaler.scale,
                               .lr = (double)values[TR_STEP_LR],
                               .tokens = tokens,
                               .tokens_per_s = (double)n_read / seconds,
                               .data_wait_s = wait_s,
                               .comm_exposed_s = r.exposed_s,
                               .samples = &range,
                               .n_samples = 1 };
    if (t->s->model->n_losses > 1)
        e.pairs = tr_pairs_of(&t->s->model->pair, r.sum, b->n_targets, kl);
    double flops = (double)tokens / seconds * t->flops_per_token / t->s->env.size; /* of one rank, per second */
    if (t->peak_flops > 0 && t->peak_flops < flops)
        t->peak_flops = flops; /* the CPU was busy when its peak was measured */
    e.mfu = t->peak_flops > 0 ? flops / t->peak_flops : -1;
    tr_observe_step(t->ob, &e);
    t->n_still = r.grad_norm == 0 ? t->n_still + 1 : 0;
    if (t->n_still == STILL_STEPS)
        tr_trainer_report_still(t, step + 1);
    tr_trainer_report_losses(t);
    if (step == t->first_step)
        tr_trainer_report_start(t);
out:
    return st;
}

static bool is_due(int64_t step, int64_t every)
{
    return every > 0 && step % every == 0;
}

/* Is there time for a save before the deadline that a signal set? */
static bool can_save(const struct tr_trainer *t)
{
    return (double)tr_stop_left_us() >= 1.5e6 * tr_saving_seconds(t->saving);
}

/* After a signal: saves the state if there is time. Returns TR_STOPPED only when a checkpoint holds all steps. */
static enum tr_status stop_after(struct tr_trainer *t, int64_t done, bool has_time)
{
    if (!has_time && tr_saving_last(t->saving) != done)
        return tr_fail(TR_UNSAVED,
                       "stopped by a signal after step %" PRId64 "; the last save took %.1f s, which does not fit the "
                       "rest of preempt_grace %g s: step %" PRId64 " is the last saved; continue with --resume",
                       done, tr_saving_seconds(t->saving), t->cfg->preempt_grace,
                       tr_max64(0, tr_saving_last(t->saving)));
    enum tr_status st = done > t->first_step ? tr_saving_finish(t->saving, done, t->tokens_done) : TR_OK;
    if (st == TR_OK && done > t->first_step && !tr_saving_is_saved(t->saving, done))
        st = tr_fail(TR_UNSAVED,
                     "stopped by a signal after step %" PRId64 ", whose checkpoint could not be written (see the lines "
                     "above); free the disk, then continue with --resume from the checkpoint before",
                     done);
    return st != TR_OK
               ? st
               : tr_fail(TR_STOPPED, "stopped by a signal after step %" PRId64 "; continue with --resume", done);
}

/* After a signal that cut short what lies between two steps: the ranks agree whether there is time for a save. */
static enum tr_status stop_between(struct tr_trainer *t, int64_t done)
{
    double n_late = !can_save(t);
    enum tr_status st = tr_exec_total_ranks(t->e, "time to save?", &n_late, 1);
    return st == TR_OK ? stop_after(t, done, n_late == 0) : st;
}

/* Does the log, which ends with this step, already hold its evaluation? */
static bool is_evaluated(const struct tr_trainer *t, int64_t step)
{
    struct tr_events *events = NULL;
    struct tr_event e;
    bool found = false;
    if (tr_events_open(t->events_path, LOG_TAIL_BYTES, &events) != TR_OK)
        tr_error_clear();
    while (!found && tr_events_next(events, &e))
        found = (e.kind == TR_EVENT_EVAL || e.kind == TR_EVENT_SAMPLE) && e.step == step;
    tr_events_close(events);
    return found;
}

/* A signal may have interrupted the evaluation of the step we resume after. Its line belongs in the log, so it is made
 * now; so is the one before the first step. Where the log has the line of a start that was killed before it saved
 * again, the checkpoint still lacks what it says of the best step. */
static enum tr_status evaluate_missed(struct tr_trainer *t)
{
    bool is_logged = false;
    if (t->first_step == 0 ? !t->cfg->eval_on_start : !tr_due_eval(t, t->first_step))
        return TR_OK;
    if (tr_trainer_is_first(t))
        is_logged = is_evaluated(t, t->first_step);
    double n_missing = tr_trainer_is_first(t) && (!is_logged || t->state.lacks_eval);
    enum tr_status st = tr_exec_total_ranks(t->e, "evaluation missing?", &n_missing, 1);
    return st == TR_OK && n_missing > 0 ? evaluate(t, t->first_step, is_logged) : st;
}

/* Sums the waits over all ranks. For a pipeline the result stands beside the bubble of its schedule. */
static enum tr_status measure_waits(struct tr_trainer *t)
{
    double x[] = { t->stage_wait_s, t->comm_wait_s, t->warm_s };
    enum tr_status st = tr_exec_total_ranks(t->e, "waits", x, TR_COUNT_OF(x));
    t->end.comm_wait = !tr_mesh_is_alone(t->mesh) && x[2] > 0 ? x[1] / x[2] : -1;
    t->end.has_bubble = t->s->compiled->place.n_stages > 1 && x[2] > 0;
    t->end.bubble = t->end.has_bubble ? x[0] / x[2] : 0;
    t->end.bubble_formula = t->s->compiled->pipe->bubble;
    return st;
}

/* load_best_model_at_end: the weights of the best checkpoint take the place of the last ones. */
static enum tr_status load_best(struct tr_trainer *t, int64_t last)
{
    const struct tr_run_best *best = &t->state.best;
    char fields[64], text[160];
    if (t->cfg->early_stopping_patience > 0 && last < t->total_steps) {
        (void)tr_format(text, sizeof text,
                        "ends after step %" PRId64 " of %" PRId64 ": %" PRId64 " evaluations in a row were no better",
                        last, t->total_steps, t->state.patience.n_worse);
        (void)tr_format(fields, sizeof fields, "\"step\":%" PRId64, last);
        tr_observe_note(t->ob, "early_stop", fields, text);
    }
    if (!t->cfg->load_best_model_at_end || !best->exists || best->step == last)
        return TR_OK;
    bool is_loss = t->best.of == TR_BEST_LOSS;
    double value = is_loss ? best->loss : -best->loss;
    (void)tr_format(text, sizeof text, "the model is that of checkpoint-%" PRId64 ", the best, with %s of %.6g",
                    best->step, is_loss ? "a loss" : t->cfg->metric_for_best_model, value);
    (void)tr_format(fields, sizeof fields, "\"step\":%" PRId64 ",\"%s\":%.9g", best->step, is_loss ? "loss" : "metric",
                    value);
    tr_observe_note(t->ob, "best_model", fields, text);
    return tr_trainer_load_step(t, best->step);
}

/* Does what a request wants, after step `done`. TR_ENDED: the run ends here, saved. */
static enum tr_status obey(struct tr_trainer *t, int64_t done, enum tr_control_action action)
{
    enum tr_status st = TR_OK;
    switch (action) {
    case TR_CONTROL_SAVE:
        if (tr_saving_last(t->saving) != done && done < t->total_steps)
            st = tr_saving_step(t->saving, true, done, t->tokens_done);
        break;
    case TR_CONTROL_EVAL:
        if (t->evaluated_step != done) {
            const struct tr_run_patience patience = t->state.patience;
            st = evaluate(t, done, false);
            t->state.patience = patience; /* a look does not bring an early end nearer */
        }
        break;
    case TR_CONTROL_SAMPLE:
        st = tr_sampler_run(t->sampler);
        if (st == TR_OK)
            st = tr_sampler_report(t->sampler, t->ob, done);
        break;
    case TR_CONTROL_STOP:
        st = tr_saving_finish(t->saving, done, t->tokens_done);
        if (st == TR_OK && !tr_saving_is_saved(t->saving, done))
            st = tr_fail(TR_UNSAVED,
                         "stopped by a request after step %" PRId64 ", whose checkpoint could not be written (see the "
                         "lines above); free the disk, then continue with --resume from the checkpoint before",
                         done);
        else if (st == TR_OK)
            st = tr_fail(TR_ENDED, "stopped by a request after step %" PRId64 "; continue with --resume", done);
        break;
    default:
        break;
    }
    return st;
}

static enum tr_status loop(struct tr_trainer *t)
{
    enum tr_status st = TR_OK;
    tr_stop_at_once(false);
    TR_TRY(evaluate_missed(t));
    int64_t last = t->first_step;
    for (int64_t step = t->first_step; step < t->total_steps && !tr_due_end(t); step++) {
        TR_TRY(tr_failpoint("train.before_step"));
        st = one_step(t, step);
        if (st == TR_STOPPED)
            return stop_between(t, step);
        TR_TRY(st);
        tr_phase_enter(TR_PHASE_BETWEEN, TR_PLACE_NONE, 0);
        int64_t done = last = step + 1;
        TR_TRY(tr_failpoint("train.after_step"));
        t->state.lacks_eval = tr_due_eval(t, done);
        if (t->state.lacks_eval)
            st = evaluate(t, done, false);
        if (st == TR_STOPPED)
            return stop_between(t, done);
        TR_TRY(st);
        if (is_due(done, t->cfg->replica_check_steps))
            tr_phase_enter(TR_PHASE_CHECK, TR_PLACE_NONE, 0);
        if (is_due(done, t->cfg->replica_check_steps)) /* checked before a save, so that a bad replica is not saved */
            TR_TRY(tr_debug_replicas(t->debug, done));
        if (is_due(done, t->cfg->grad_norm_steps) && tr_trainer_is_first(t))
            tr_debug_norms(t->debug, t->cfg->output, t->ob, done);
        t->state.skipped = tr_numbers_skipped(t->numbers);
        TR_TRY(tr_saving_step(t->saving, tr_due_save(t, done) && done < t->total_steps, done, t->tokens_done));
        struct tr_steer steer = { .has_time = true };
        do {
            TR_TRY(tr_trainer_steer(t, done, can_save(t), &steer));
            if (steer.is_stop && done < t->total_steps)
                return stop_after(t, done, steer.has_time);
            if (steer.action != TR_CONTROL_NONE)
                st = obey(t, done, steer.action);
            if (st == TR_STOPPED)
                return stop_between(t, done);
            TR_TRY(st);
        } while (t->is_paused && done < t->total_steps);
    }
    TR_TRY(measure_waits(t));
    TR_TRY(tr_saving_finish(t->saving, last, t->tokens_done));
    TR_TRY(load_best(t, last));
    TR_TRY(tr_failpoint("train.before_model"));
    tr_disk_release(&t->reserve); /* before any rank writes: they meet first */
    TR_TRY(tr_saving_model(t->saving));
    TR_TRY(tr_failpoint("train.after_model"));
    TR_TRY(tr_trainer_meet(t, "the model is written")); /* no rank leaves before the model is written */
    if (tr_trainer_is_first(t) && tr_ckpt_sweep(t->cfg->output, NULL) != TR_OK)
        tr_error_clear(); /* what a failed removal left; the run is done all the same */
    if (!tr_saving_is_saved(t->saving, last))
        st = tr_fail(TR_IO,
                     "the model is written, but the checkpoint of the last step %" PRId64
                     " is not (see the lines above): free the disk, and --resume saves it",
                     last);
out:
    return st;
}

static enum tr_status train(struct tr_trainer *t)
{
    int64_t start = t->lap_us;
    enum tr_status st = tr_trainer_open(t);
    if (st == TR_OK) {
        st = tr_trainer_report_plan(t);
        if (st == TR_OK)
            st = tr_trainer_report_layout(t);
        if (st == TR_OK)
            st = tr_trainer_report_config(t);
        if (st == TR_OK)
            st = tr_trainer_report_passed(t);
        if (st == TR_OK)
            st = loop(t);
        bool is_stopped = st == TR_STOPPED || st == TR_ENDED || st == TR_UNSAVED;
        if (st == TR_OK || st == TR_STOPPED || st == TR_ENDED)
            tr_stop_is_settled();
        t->end.status = st == TR_OK ? "done" : is_stopped ? "stopped" : "failed";
        t->end.steps = t->steps_done;
        t->end.tokens = t->tokens_done;
        t->end.seconds = (double)(tr_clock_us() - start) * 1e-6;
        t->end.data_wait = t->step_s > 0 ? t->wait_s / t->step_s : 0;
        if (st == TR_OK)
            tr_phase_enter(TR_PHASE_END, TR_PLACE_NONE, 0);
        tr_observe_end(t->ob, &t->end);
    }
    if (st == TR_OK)
        st = tr_failpoint("train.before_close");
    tr_trainer_close(t);
    (void)tr_failpoint("train.closed");
    return st;
}

enum tr_status tr_train(const struct tr_config *cfg)
{
    struct tr_trainer *t = calloc(1, sizeof *t);
    if (!t)
        return tr_fail(TR_NOMEM, "no memory for a training");
    *t = (struct tr_trainer){ .cfg = cfg, .reserve = -1, .end.comm_wait = -1, .lap_us = tr_clock_us() };
    tr_stop_at_once(true);
    tr_stop_on_signals(cfg->preempt_grace);
    enum tr_status st = train(t);
    tr_phase_close(st == TR_OK || st == TR_STOPPED || st == TR_ENDED);
    if (!t->save_hangs)
        free(t);
    return st;
}
