/* due.c - when a run evaluates, saves and ends early: the habits of transformers' Trainer.
 *
 * The answers depend on the step, the options and the state that checkpoints keep, so a resumed run gives the same.
 */
#include "train/train_impl.h"
#include <math.h>

static bool is_every(int64_t step, int64_t every)
{
    return every > 0 && step % every == 0;
}

/* Does an epoch end in this step? The last rows of an epoch may share a step with the first of the next. */
static bool ends_epoch(const struct tr_trainer *t, int64_t step)
{
    uint64_t rows = tr_data_rows(t->data), batch = (uint64_t)t->cfg->train_batch_size;
    uint64_t end = (uint64_t)step * batch, begin = end - batch;
    return rows > 0 && end / rows > begin / rows;
}

/* Epochs after this step. */
static double epochs(const struct tr_trainer *t, int64_t step)
{
    uint64_t rows = tr_data_rows(t->data); /* 0: a stream, which has one epoch for all that is known */
    return rows ? (double)step * (double)t->cfg->train_batch_size / (double)rows : 0;
}

bool tr_due_eval(const struct tr_trainer *t, int64_t step)
{
    const struct tr_config *c = t->cfg;
    bool is_epoch = c->eval_strategy == TR_WHEN_EPOCH;
    if (!tr_trainer_evaluates(t) || c->eval_strategy == TR_WHEN_NEVER)
        return false;
    if (step == t->total_steps)
        return true;
    if (is_epoch ? epochs(t, step) < c->eval_delay : (double)step < c->eval_delay)
        return false;
    return is_epoch ? ends_epoch(t, step) : is_every(step, tr_config_steps(c->eval_steps, t->total_steps));
}

bool tr_due_save(const struct tr_trainer *t, int64_t step)
{
    const struct tr_config *c = t->cfg;
    switch (c->save_strategy) {
    case TR_WHEN_STEPS:
        return is_every(step, tr_config_steps(c->save_steps, t->total_steps));
    case TR_WHEN_EPOCH:
        return ends_epoch(t, step);
    case TR_WHEN_BEST:
        return t->state.patience.best_step == step;
    default:
        return false;
    }
}

/* transformers' EarlyStoppingCallback: an evaluation counts as better when it is by more than the threshold. */
void tr_due_evaluated(struct tr_trainer *t, int64_t step, double loss)
{
    struct tr_run_patience *p = &t->state.patience;
    bool is_better = isfinite(loss) && (!p->exists || p->best - loss > t->cfg->early_stopping_threshold);
    p->n_worse = is_better ? 0 : p->n_worse + 1;
    if (isfinite(loss) && (!p->exists || loss < p->best))
        *p = (struct tr_run_patience){ true, loss, step, p->n_worse };
}

bool tr_due_end(const struct tr_trainer *t)
{
    return t->cfg->early_stopping_patience > 0 && t->state.patience.n_worse >= t->cfg->early_stopping_patience;
}
