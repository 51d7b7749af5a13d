/* steer.c - what all ranks agree on between two steps: stop signals, and a request that rank 0 has read (control.h).
 *
 * One small sum over all ranks a step carries both. Only rank 0 adds the request to it, so that every rank gets its
 * exact value. A value that is set is in OUTPUT/control.json before the ranks hear of it: a kill at any instant leaves
 * a run that either never saw the request, or makes it again at the same step.
 */
#include "train/signals.h"
#include "train/train_impl.h"

#include <time.h>

enum { STOP, NO_TIME, ACTION, KEY, VALUE, N_WORDS };
enum { PAUSE_US = 50 * 1000 }; /* between two looks at the mailbox of a paused run; less than what is called slow */

/* All ranks take over rank 0's ledger: it may see the file of a shared directory earlier than others. */
static enum tr_status share_ledger(struct tr_trainer *t, struct tr_ledger *l)
{
    enum { N = 1 + 3 * TR_LEDGER_MAX };
    double x[N] = { 0 };
    bool is_first = tr_trainer_is_first(t);
    x[0] = is_first ? l->n : 0;
    for (int i = 0; is_first && i < l->n; i++) {
        x[1 + 3 * i] = (double)l->entry[i].step;
        x[2 + 3 * i] = l->entry[i].key;
        x[3 + 3 * i] = l->entry[i].value;
    }
    enum tr_status st = tr_exec_total_ranks(t->e, "values that were set", x, N);
    l->n = (int)x[0];
    for (int i = 0; st == TR_OK && i < l->n; i++)
        l->entry[i] = (struct tr_ledger_entry){ (int64_t)x[1 + 3 * i], (int)x[2 + 3 * i], x[3 + 3 * i] };
    return st;
}

enum tr_status tr_trainer_control_open(struct tr_trainer *t)
{
    bool is_first = tr_trainer_is_first(t), is_new = strcmp(t->cfg->resume_from_checkpoint, "none") == 0;
    if (is_first && is_new)
        TR_PASS(tr_out_remove(t->cfg->output, TR_NAME_CONTROL)); /* of another run */
    if (is_first && tr_control_open(t->cfg->output, &t->control) != TR_OK) {
        tr_observe_message(t->ob, tr_error_text());
        tr_error_clear(); /* the run goes on without requests */
    }
    return TR_OK;
}

enum tr_status tr_trainer_ledger_open(struct tr_trainer *t)
{
    struct tr_ledger *l = &t->state.ledger, file = { 0 };
    char text[160];
    t->now = *t->cfg;
    t->evaluated_step = -1;
    if (tr_trainer_is_first(t))
        TR_PASS(tr_ledger_load(t->cfg->output, &file));
    tr_ledger_merge(l, &file);
    TR_PASS(share_ledger(t, l));
    for (int i = 0; i < l->n; i++) {
        TR_PASS(tr_format(text, sizeof text, "%s is %g from step %" PRId64 " on, as a request has set it",
                          tr_control_key_name(l->entry[i].key), l->entry[i].value, l->entry[i].step + 1));
        tr_observe_message(t->ob, text);
    }
    return TR_OK;
}

const struct tr_config *tr_trainer_options(struct tr_trainer *t, int64_t step)
{
    tr_ledger_apply(&t->state.ledger, step, &t->now);
    return &t->now;
}

/* Rank 0: may this request be obeyed? Else its reason is written. */
static void judge(struct tr_trainer *t, int64_t done, struct tr_control_request *r)
{
    struct tr_ledger with = t->state.ledger;
    const struct tr_ledger_entry e = { .step = done, .key = r->key, .value = r->value };
    bool is_look = r->action == TR_CONTROL_SAVE || r->action == TR_CONTROL_EVAL || r->action == TR_CONTROL_SAMPLE;
    if (done >= t->total_steps && !is_look)
        (void)snprintf(r->why, sizeof r->why, "the last step is done");
    else if (r->action == TR_CONTROL_EVAL && !tr_trainer_evaluates(t))
        (void)snprintf(r->why, sizeof r->why,
                       "there is nothing to evaluate on: the run has no eval_data, eval_choices or sample_prompts");
    else if (r->action == TR_CONTROL_SAMPLE && !t->sampler)
        (void)snprintf(r->why, sizeof r->why,
                       "the run has no sample_prompts; --prompt TEXT continues a text with a checkpoint of it");
    else if (r->action == TR_CONTROL_SET && with.n == TR_LEDGER_MAX)
        (void)snprintf(r->why, sizeof r->why, "%d values were set already", TR_LEDGER_MAX);
    else if (r->action == TR_CONTROL_SET) {
        tr_ledger_put(&with, &e);
        if (tr_ledger_save(t->cfg->output, &with) != TR_OK)
            (void)snprintf(r->why, sizeof r->why, "it cannot be kept for a resume: %s", tr_error_text());
        tr_error_clear();
    }
    if (r->why[0])
        r->action = TR_CONTROL_NONE;
}

static void report(struct tr_trainer *t, int64_t done, const struct tr_control_request *r, enum tr_control_action asked)
{
    struct tr_str fields = { 0 }, text = { 0 };
    tr_str_member(&fields, "\"request\":", r->id);
    tr_str_addf(&fields, ",\"action\":\"%s\",\"step\":%" PRId64 ",\"accepted\":%s", tr_control_word(asked), done,
                r->why[0] ? "false" : "true");
    tr_str_addf(&text, "request after step %" PRId64 ": %s", done, tr_control_word(asked));
    if (asked == TR_CONTROL_SET) {
        tr_str_addf(&fields, ",\"key\":\"%s\",\"value\":%.17g", tr_control_key_name(r->key), r->value);
        tr_str_addf(&text, " %s %g", tr_control_key_name(r->key), r->value);
    }
    if (r->why[0]) {
        tr_str_member(&fields, ",\"why\":", r->why);
        tr_str_addf(&text, ": refused: %s", r->why);
    }
    if (tr_str_ok(&fields) && tr_str_ok(&text))
        tr_observe_note(t->ob, "control", fields.p, text.p);
    tr_str_release(&fields);
    tr_str_release(&text);
}

enum tr_status tr_trainer_steer(struct tr_trainer *t, int64_t done, bool can_save, struct tr_steer *out)
{
    struct tr_control_request r = { .action = TR_CONTROL_NONE };
    double x[N_WORDS] = { [STOP] = tr_stop_wanted(), [NO_TIME] = !can_save };
    if (t->is_paused) { /* a move, so that a paused run is no hang */
        tr_phase_enter(TR_PHASE_BETWEEN, TR_PLACE_NONE, 0);
        if (tr_trainer_is_first(t))
            (void)nanosleep(&(struct timespec){ .tv_nsec = PAUSE_US * 1000L }, NULL);
    }
    if (tr_control_poll(t->control, &r)) {
        enum tr_control_action asked = r.action;
        if (r.action != TR_CONTROL_NONE)
            judge(t, done, &r);
        report(t, done, &r, asked);
        x[ACTION] = r.action;
        x[KEY] = r.action == TR_CONTROL_SET ? r.key : 0;
        x[VALUE] = r.action == TR_CONTROL_SET ? r.value : 0;
    }
    enum tr_status st = tr_exec_total_ranks(t->e, "stop?", x, N_WORDS);
    *out = (struct tr_steer){ .is_stop = x[STOP] > 0,
                              .has_time = x[NO_TIME] == 0,
                              .action = (enum tr_control_action)(int)x[ACTION] };
    if (st == TR_OK && out->action == TR_CONTROL_SET)
        tr_ledger_put(&t->state.ledger,
                      &(struct tr_ledger_entry){ .step = done, .key = (int)x[KEY], .value = x[VALUE] });
    t->is_paused = out->action == TR_CONTROL_PAUSE || (t->is_paused && out->action != TR_CONTROL_RESUME);
    return st;
}
