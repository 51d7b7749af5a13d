/* replay.c - a step of a run is made again: from the newest checkpoint in front of it, with the run's own options, data
 * and values that were set on the way.
 *
 * The steps in between are made as the run made them, so a replay of the same build and layout has the same bits. It is
 * opened by the stages of a training, without those that write. Rejected: a copy of the loop that trains, which would
 * drift away from it.
 */
#include "train/fingerprint.h"
#include "train/replay_impl.h"
#include <math.h>
#include <stdlib.h>

bool tr_replay_same(double a, double b)
{
    return a == b || (!isfinite(a) && !isfinite(b)); /* a log has null for any number that is not finite */
}

/* What the log has of steps (first, last]: opened where they begin, which a brief look finds. */
static enum tr_status open_log(const char *output, int64_t first, struct tr_events **out)
{
    char path[TR_PATH_MAX];
    struct tr_event e;
    uint64_t at = 0;
    TR_PASS(tr_path_join(path, output, TR_NAME_EVENTS));
    TR_PASS(tr_events_open(path, 0, out));
    tr_events_be_brief(*out);
    for (int64_t step = 0; step < first && tr_events_next(*out, &e);)
        if (e.kind == TR_EVENT_STEP) {
            step = e.step;
            at = step <= first ? tr_events_at(*out) : at;
        }
    tr_events_close(*out);
    *out = NULL;
    return tr_events_open_at(path, at, out);
}

static struct tr_replay_numbers next_recorded(struct tr_events *log, int64_t step)
{
    struct tr_event e;
    while (tr_events_next(log, &e))
        if (e.kind == TR_EVENT_STEP && e.step == step)
            return (struct tr_replay_numbers){ true, e.loss, e.grad_norm };
        else if (e.kind == TR_EVENT_STEP && e.step > step)
            break;
    return (struct tr_replay_numbers){ false, NAN, NAN };
}

static struct tr_replay_numbers numbers_of(const struct tr_step_batch *b, const struct tr_step_result *r)
{
    return (struct tr_replay_numbers){ true, b->n_targets ? r->loss_sum / (double)b->n_targets : 0, r->grad_norm };
}

enum tr_status tr_replay_step(struct tr_trainer *t, int64_t step, tr_replay_look *look, void *ctx,
                              struct tr_replay_numbers *out)
{
    struct tr_step_batch *b = NULL;
    struct tr_step_result r = { 0 };
    struct tr_verdict verdict;
    float values[TR_STEP_COUNT];
    double wait_s = 0, kl = 0;
    TR_PASS(tr_trainer_batch(t, step, &b, &wait_s));
    TR_PASS(tr_trainer_values(t, b, values, &kl));
    if (look) { /* gradients are whole before the update; measuring twice changes nothing */
        TR_PASS(tr_exec_measure(t->e, t->cfg, b->micro, values, &r));
        *out = numbers_of(b, &r);
        TR_PASS(look(ctx, t, b));
    }
    if (!look || step + 1 < t->stop) {
        TR_PASS(tr_numbers_step(t->numbers, b, values, &r, &verdict));
        *out = numbers_of(b, &r);
    }
    if (tr_mesh_is_alone(t->mesh) && tr_stop_wanted())
        return tr_fail(TR_STOPPED, "stopped by a signal after step %" PRId64, step + 1);
    return TR_OK;
}

enum tr_status tr_replay_open(const struct tr_config *cfg, int64_t stop, struct tr_trainer *t)
{
    *t = (struct tr_trainer){
        .cfg = cfg, .reserve = -1, .use = TR_TRAINER_REPLAYS, .below = cfg->step, .stop = stop, .lap_us = tr_clock_us()
    };
    tr_stop_soon_on_signals();
    TR_PASS(tr_trainer_open(t));
    if (cfg->step > t->total_steps)
        return tr_fail(TR_USAGE, "step %" PRId64 ": the run has %" PRId64 " steps", cfg->step, t->total_steps);
    t->stop = tr_min64(stop, t->total_steps);
    return TR_OK;
}

static enum tr_status take(void *ctx, struct tr_trainer *t, const struct tr_step_batch *b)
{
    (void)b;
    return tr_fingerprint_take(t->e, ctx);
}

void tr_replay_release(struct tr_replay *r)
{
    tr_fingerprint_release(&r->gradients);
}

enum tr_status tr_replay(const struct tr_config *cfg, struct tr_replay *out)
{
    enum tr_status st = TR_OK;
    struct tr_trainer t;
    struct tr_events *log = NULL;
    *out = (struct tr_replay){ .step = cfg->step, .first_off = -1 };
    TR_TRY(tr_replay_open(cfg, cfg->step, &t));
    TR_TRY(open_log(cfg->output, t.first_step, &log));
    out->from = t.first_step;
    out->is_first = tr_trainer_is_first(&t);
    TR_TRY(tr_fingerprint_open(t.e, &out->gradients));
    for (int64_t step = t.first_step; step < cfg->step; step++) {
        bool is_last = step + 1 == cfg->step;
        TR_TRY(tr_replay_step(&t, step, is_last ? take : NULL, &out->gradients, &out->made));
        out->recorded = next_recorded(log, step + 1);
        bool is_same = !out->recorded.exists || (tr_replay_same(out->made.loss, out->recorded.loss) &&
                                                 tr_replay_same(out->made.grad_norm, out->recorded.grad_norm));
        if (!is_same && out->first_off < 0)
            out->first_off = step + 1;
        if (is_last)
            out->is_equal = is_same && out->recorded.exists;
    }
out:
    tr_events_close(log);
    tr_trainer_close(&t);
    if (st != TR_OK)
        tr_replay_release(out);
    return st;
}
