/* train_report.c - what a run reports beside its steps: plan, layout, odd steps, profile. */
#include "plan/plan.h"
#include "train/train_impl.h"
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { PLANNED_SPANS = 4096 };
struct planned_spans {
    struct tr_planned_span *span;
    int n;
};

static void take_span(void *context, const struct tr_timeline_span *s)
{
    struct planned_spans *p = context;
    if (p->n < PLANNED_SPANS)
        p->span[p->n++] = (struct tr_planned_span){ s->rank, s->micro, s->is_traffic, s->name, s->begin_s, s->s };
}

/* Gives the profile what the plan says, for a column of its table and for its timeline. */
static enum tr_status show_plan(struct tr_trainer *t, const struct tr_machine *machine,
                                const struct tr_forecast_query *query)
{
    struct planned_spans p = { calloc(PLANNED_SPANS, sizeof *p.span), 0 };
    double planned_s[TR_OP_COUNT], step_s = 0;
    enum tr_status st = p.span ? TR_OK : tr_fail(TR_NOMEM, "profile: no memory for the planned step");
    if (st == TR_OK)
        st = tr_timeline_each(query, PLANNED_SPANS / 4, &step_s, take_span, &p);
    if (st != TR_OK) {
        free(p.span);
        return st;
    }
    tr_price_kernels(t->s->compiled, machine, planned_s);
    tr_trace_plan(t->trace, planned_s, p.span, p.n);
    return TR_OK;
}

/* Reports the layout in a line and as an event that plan --compare reads. With a machine it also reports what a better
 * layout would take. */
enum tr_status tr_trainer_report_layout(struct tr_trainer *t)
{
    enum tr_status st = TR_OK;
    const struct tr_compiled *c = t->s->compiled;
    struct tr_str fields = { 0 }, text = { 0 }, advice = { 0 };
    struct tr_machine machine;
    struct tr_search_query q;
    struct tr_forecast f = { 0 };
    struct tr_forecast_query query;
    bool has_machine = t->cfg->machine != NULL;
    if (!tr_trainer_is_first(t))
        return TR_OK;
    if (has_machine)
        TR_TRY(tr_machine_open(t->cfg->machine, &machine));
    tr_forecast_query_of_compiled(c, has_machine ? &machine : NULL, &query);
    /* one stage: the schedule itself is simulated; this rank does not have the schedules of other stages */
    if (has_machine && query.pp == 1 && c->opt.has_own_memory == !machine.is_shared)
        TR_TRY(tr_play_compiled(&c, 1, &machine, &f));
    else if (has_machine)
        TR_TRY(tr_forecast(&query, &f));
    if (has_machine && t->trace)
        TR_TRY(show_plan(t, &machine, &query));
    tr_forecast_query_json(&query, &fields);
    tr_str_member(&fields, ", \"machine\": ", has_machine ? t->cfg->machine : "");
    tr_str_addf(&fields, ", \"step_s\": %.9g", f.step_s);
    tr_chosen_text(&query, tr_compiled_bytes(c), f.step_s, &text);
    if (tr_str_ok(&fields) && tr_str_ok(&text))
        tr_observe_note(t->ob, "layout", fields.p, text.p);
    if (has_machine) {
        TR_TRY(tr_search_query_of(t->cfg, t->s->model, &machine, query.tp * query.pp * query.cp * query.dp, &q));
        tr_pins_clear(&q.pins);
    }
    TR_TRY(tr_advice_text(has_machine ? &q : NULL, &query, &advice));
    if (advice.n && tr_str_ok(&advice))
        tr_observe_message(t->ob, advice.p);
out:
    tr_str_release(&fields);
    tr_str_release(&text);
    tr_str_release(&advice);
    return st;
}

/* Every option with its origin, for those who look at the run or compare it with another. A configuration that does not
 * fit an event (long lists of files) is left out. */
enum tr_status tr_trainer_report_config(struct tr_trainer *t)
{
    enum tr_status st = TR_OK;
    struct tr_str fields = { 0 }, options = { 0 };
    if (!tr_trainer_is_first(t))
        return TR_OK;
    tr_config_json(t->cfg, true, &options);
    tr_str_addf(&fields,
                "\"total_steps\":%" PRId64 ",\"first_step\":%" PRId64 ",\"model_type\":\"%s\",\"parameters\":%" PRId64
                ",\"world\":%d,\"is_streamed\":%s",
                t->total_steps, t->first_step, t->s->model->arch->model_type, (int64_t)t->s->model->n_elements,
                t->mesh->world, tr_data_rows(t->data) == 0 ? "true" : "false");
    char directory[TR_PATH_MAX];
    bool is_short = tr_str_ok(&options) && options.n < TR_EVENT_MAX_BYTES - 4096;
    if (getcwd(directory, sizeof directory)) /* where relative paths of the options begin */
        tr_str_member(&fields, ",\"directory\":", directory);
    tr_str_addf(&fields, ",\"options\":%s", is_short ? options.p : "null");
    if (tr_str_ok(&fields))
        tr_observe_note(t->ob, "config", fields.p, NULL);
    else
        st = tr_fail(TR_NOMEM, "config event: out of memory");
    tr_str_release(&fields);
    tr_str_release(&options);
    return st;
}

/* Names of modules that this model does not have. */
enum tr_status tr_trainer_report_passed(struct tr_trainer *t)
{
    enum tr_status st = TR_OK;
    struct tr_str text = { 0 }, fields = { 0 };
    if (!tr_trainer_is_first(t) || !t->s->from.adapter)
        return TR_OK;
    TR_TRY(tr_adapter_passed(t->s->from.adapter, t->s->model, &text));
    if (text.n) {
        tr_str_member(&fields, "\"text\":", text.p);
        TR_TRY(tr_str_check(&fields, "an event"));
        tr_observe_note(t->ob, "passed_over", fields.p, text.p);
    }
out:
    tr_str_release(&text);
    tr_str_release(&fields);
    return st;
}

enum tr_status tr_trainer_report_plan(struct tr_trainer *t)
{
    enum { N = TR_A_COUNT + 2 };
    enum tr_status st = TR_OK;
    const struct tr_compiled *c = t->s->compiled;
    int n = t->mesh->world, rank = t->mesh->rank;
    int64_t(*all)[N] = calloc((size_t)n, sizeof *all);
    if (!all)
        return tr_fail(TR_NOMEM, "plan: out of memory");
    for (int i = 0; i < TR_A_COUNT; i++)
        all[rank][i] = (int64_t)c->memory.bytes[i];
    all[rank][TR_A_COUNT] = (int64_t)tr_compiled_bytes(c);
    all[rank][TR_A_COUNT + 1] = (int64_t)t->dev.reserved_bytes;
    struct tr_coll g = { .kind = TR_ALL_GATHER,
                         .dtype = TR_I64,
                         .in = all[rank],
                         .out = all,
                         .count = (size_t)n * N,
                         .site = "plans of all ranks" };
    TR_TRY(tr_comm_run(t->mesh->all, &g));
    for (int r = 0; r < n; r++) {
        struct tr_event_arena arenas[TR_A_COUNT];
        for (int i = 0; i < TR_A_COUNT; i++)
            arenas[i] = (struct tr_event_arena){ tr_arena_row((enum tr_arena_id)i)->name, (uint64_t)all[r][i] };
        struct tr_event_plan e = { .rank = r,
                                   .total_bytes = (uint64_t)all[r][TR_A_COUNT],
                                   .reserved_bytes = (uint64_t)all[r][TR_A_COUNT + 1],
                                   .arenas = arenas,
                                   .n_arenas = TR_A_COUNT };
        tr_observe_plan(t->ob, &e);
    }
out:
    free(all);
    return st;
}

void tr_trainer_lap(struct tr_trainer *t, const char *phase)
{
    int64_t now = tr_clock_us();
    size_t n = strlen(t->start);
    (void)snprintf(t->start + n, sizeof t->start - n, "%s\"%s_s\":%.3f", n ? "," : "", phase,
                   (double)(now - t->lap_us) * 1e-6);
    t->lap_us = now;
}

void tr_trainer_report_start(struct tr_trainer *t)
{
    tr_trainer_lap(t, "first_step");
    tr_observe_note(t->ob, "start", t->start, NULL);
}

void tr_trainer_report_odd(struct tr_trainer *t, int64_t step, const struct tr_step_batch *b,
                           const struct tr_verdict *v)
{
    char cause[sizeof v->cause + 128];
    (void)snprintf(cause, sizeof cause, "step %" PRId64 " of samples %" PRIu64 "..%" PRIu64 ": %s", step,
                   b->first_sample, b->first_sample + b->n_samples - 1, v->cause);
    struct tr_event_fault f = {
        .rank = v->rank, .host = "", .phase = "step", .action = v->is_skipped ? "skipped" : "judged", .cause = cause
    };
    tr_observe_fault(t->ob, &f);
}

void tr_trainer_report_still(struct tr_trainer *t, int64_t step)
{
    char text[256], fields[48];
    (void)snprintf(fields, sizeof fields, "\"step\":%" PRId64, step);
    (void)snprintf(text, sizeof text,
                   "step %" PRId64 ": the gradient norm has been exactly 0 for %" PRId64
                   " steps: nothing is learned; do the rows have targets, and do weights get no gradient through a "
                   "layer of zeros?",
                   step, t->n_still);
    tr_observe_note(t->ob, "no_gradient", fields, text);
}

/* The records that a stream lost since the last step: what could be read before the run is in its data summary. */
void tr_trainer_report_losses(struct tr_trainer *t)
{
    struct tr_str text = { 0 }, fields = { 0 };
    struct tr_data_news x;
    if (!tr_trainer_is_first(t) || !tr_data_take_news(t->data, &x))
        return;
    tr_str_addf(&fields, "\"step\":%" PRId64 ",\"skipped\":%" PRIu64 ",\"cut\":%" PRIu64 ",\"dropped\":%" PRIu64,
                t->steps_done, x.n_skipped, x.n_cut, x.n_dropped);
    tr_str_member(&fields, ",\"first\":", x.first);
    tr_str_addf(&text,
                "data that was tokenised meanwhile: %" PRIu64 " records skipped, %" PRIu64
                " documents truncated, %" PRIu64 " left out%s%s",
                x.n_skipped, x.n_cut, x.n_dropped, x.first[0] ? "; the first: " : "", x.first);
    if (tr_str_ok(&fields) && tr_str_ok(&text))
        tr_observe_note(t->ob, "data_lost", fields.p, text.p);
    tr_str_release(&fields);
    tr_str_release(&text);
}

void tr_trainer_report_overflow(struct tr_trainer *t, int64_t step)
{
    char text[128];
    (void)snprintf(text, sizeof text, "step %" PRId64 ": gradients overflow float16: no update, loss scale now %.0f",
                   step, t->state.scaler.scale);
    tr_observe_message(t->ob, text);
}

enum tr_status tr_trainer_report_profile(struct tr_trainer *t, int64_t step, double step_s, double exposed_s)
{
    const char *table = NULL;
    enum tr_status st = tr_trace_after(t->trace, step, step_s, exposed_s, step == t->total_steps, &table);
    if (table)
        tr_observe_message(t->ob, table);
    return st;
}
