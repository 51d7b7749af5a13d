/* compare.c - a run beside its forecast. A run says in its events what it was asked (`layout`) and what its steps took;
 * the forecast of the same question stands beside it, and the largest difference names the likely reason.
 */
#include "observe/observe.h"
#include "plan/plan.h"
#include <math.h>
#include <stddef.h>
#include <stdlib.h>

/* ---- a question as JSON ---- */

#define FIELD(name)                                                                                                    \
    {                                                                                                                  \
#name, offsetof(struct tr_forecast_query, name)                                                                \
    }
static const struct {
    const char *name;
    size_t at;
} reals[] = { FIELD(seq),        FIELD(micro),       FIELD(global),      FIELD(param_bytes),
              FIELD(grad_bytes), FIELD(state_bytes), FIELD(gather_bytes) },
  ints[] = { FIELD(tp), FIELD(pp), FIELD(chunks), FIELD(cp), FIELD(dp), FIELD(ep), FIELD(zero), FIELD(shard) };
#undef FIELD
#define FIELD(name)                                                                                                    \
    {                                                                                                                  \
#name, offsetof(struct tr_shape_cost, name)                                                                    \
    }
static const struct {
    const char *name;
    size_t at;
} sizes[] = { FIELD(layers), FIELD(hidden), FIELD(heads), FIELD(kv_heads), FIELD(head_dim), FIELD(ffn), FIELD(vocab) };
#undef FIELD

static const char *const schedules[] = { "1f1b", "gpipe", "interleaved", "zb" };

void tr_forecast_query_json(const struct tr_forecast_query *a, struct tr_str *out)
{
    double x;
    int n;
    for (size_t i = 0; i < TR_COUNT_OF(ints); i++) {
        memcpy(&n, (const char *)a + ints[i].at, sizeof n);
        tr_str_addf(out, "\"%s\": %d, ", ints[i].name, n);
    }
    for (size_t i = 0; i < TR_COUNT_OF(reals); i++) {
        memcpy(&x, (const char *)a + reals[i].at, sizeof x);
        tr_str_addf(out, "\"%s\": %.17g, ", reals[i].name, x);
    }
    for (size_t i = 0; i < TR_COUNT_OF(sizes); i++) {
        memcpy(&x, (const char *)&a->shape + sizes[i].at, sizeof x);
        tr_str_addf(out, "\"%s\": %.17g, ", sizes[i].name, x);
    }
    tr_str_addf(
        out, "\"gated\": %s, \"tied\": %s, \"sp\": %s, \"sync_last\": %s, \"number\": %d, \"keep\": %d, \"schedule\": ",
        a->shape.is_gated ? "true" : "false", a->shape.is_tied ? "true" : "false", a->has_sp ? "true" : "false",
        a->sync_last ? "true" : "false", (int)a->precision, (int)a->keep);
    tr_str_json(out, a->schedule ? a->schedule : "1f1b");
}

enum tr_status tr_forecast_query_of_json(const cJSON *o, struct tr_forecast_query *out)
{
    int64_t n = 0;
    double x = 0;
    const char *schedule = "1f1b";
    *out = (struct tr_forecast_query){ .impl = &tr_impl_trireme };
    for (size_t i = 0; i < TR_COUNT_OF(ints); i++) {
        TR_PASS(tr_json_int(o, ints[i].name, true, 0, 1000000, &n));
        memcpy((char *)out + ints[i].at, &(int){ (int)n }, sizeof(int));
    }
    for (size_t i = 0; i < TR_COUNT_OF(reals); i++) {
        TR_PASS(tr_json_real(o, reals[i].name, true, &x));
        memcpy((char *)out + reals[i].at, &x, sizeof x);
    }
    for (size_t i = 0; i < TR_COUNT_OF(sizes); i++) {
        TR_PASS(tr_json_real(o, sizes[i].name, true, &x));
        memcpy((char *)&out->shape + sizes[i].at, &x, sizeof x);
    }
    TR_PASS(tr_json_bool(o, "gated", true, &out->shape.is_gated));
    TR_PASS(tr_json_bool(o, "tied", true, &out->shape.is_tied));
    TR_PASS(tr_json_bool(o, "sp", true, &out->has_sp));
    TR_PASS(tr_json_bool(o, "sync_last", false, &out->sync_last)); /* older runs do not say it */
    TR_PASS(tr_json_int(o, "number", true, 0, TR_PRECISION_COUNT - 1, &n));
    out->precision = (enum tr_precision)n;
    TR_PASS(tr_json_int(o, "keep", true, 0, TR_KEEP_AUTO, &n));
    out->keep = (enum tr_keep)n;
    TR_PASS(tr_json_str(o, "schedule", true, &schedule));
    for (size_t i = 0; i < TR_COUNT_OF(schedules); i++)
        if (strcmp(schedules[i], schedule) == 0)
            out->schedule = schedules[i];
    return TR_OK;
}

/* ---- what a run measured ---- */

struct reading {
    double *step;
    size_t n, n_cap;
    double wait, comm, stall;
};

static double number_or_0(double x)
{
    return isfinite(x) ? x : 0;
}

static enum tr_status read_step(const struct tr_event *e, struct reading *r, struct tr_measured *m)
{
    if (!(e->tokens > 0 && e->tokens_per_s > 0))
        return TR_OK;
    TR_PASS(TR_ROOM(r->step, r->n + 1, &r->n_cap, "a comparison"));
    r->step[r->n++] = e->tokens / e->tokens_per_s;
    m->tokens = e->tokens;
    r->wait += r->n > 1 ? number_or_0(e->data_wait_s) : 0;
    r->comm += r->n > 1 ? number_or_0(e->comm_exposed_s) : 0;
    return TR_OK;
}

/* The question of a run. A resumed run asks again: the last start counts. */
static enum tr_status read_layout(const struct tr_event *e, struct reading *r, struct tr_measured *m)
{
    const char *machine = "";
    (void)tr_json_str(e->json, "machine", false, &machine);
    r->n = 0;
    r->wait = r->comm = r->stall = 0;
    m->predicted_s = 0;
    (void)tr_json_real(e->json, "step_s", false, &m->predicted_s);
    (void)tr_format(m->machine, sizeof m->machine, "%s", machine);
    return tr_forecast_query_of_json(e->json, &m->query);
}

static enum tr_status read_event(const struct tr_event *e, struct reading *r, struct tr_measured *m, bool *has_layout)
{
    if (e->kind == TR_EVENT_STEP)
        return read_step(e, r, m);
    if (e->kind == TR_EVENT_CHECKPOINT)
        r->stall += number_or_0(e->stall_s);
    if (e->kind == TR_EVENT_END && isfinite(e->bubble))
        m->bubble = e->bubble;
    if (e->kind != TR_EVENT_LAYOUT)
        return TR_OK;
    *has_layout = true;
    return read_layout(e, r, m);
}

enum tr_status tr_measured_read(const char *dir, struct tr_measured *out)
{
    enum tr_status st = TR_OK;
    char path[TR_PATH_MAX];
    struct reading r = { 0 };
    struct tr_events *events = NULL;
    struct tr_event e;
    bool has_layout = false;
    *out = (struct tr_measured){ .bubble = -1 };
    TR_TRY(tr_path_join(path, dir, TR_NAME_EVENTS));
    if (tr_events_open(path, 0, &events) != TR_OK)
        TR_TRY(tr_fail(TR_USAGE, "compare %s: no " TR_NAME_EVENTS "; name the --output of a run", dir));
    while (tr_events_next(events, &e))
        TR_TRY(read_event(&e, &r, out, &has_layout));
    if (!has_layout || r.n < 2)
        TR_TRY(tr_fail(TR_USAGE, "compare %s: %s", path,
                       has_layout ? "fewer than two steps; the first is always cold"
                                  : "no layout event; the run is of an older trireme"));
    qsort(r.step + 1, r.n - 1, sizeof *r.step, tr_by_double);
    out->n_steps = (int64_t)r.n - 1;
    out->step_s = r.step[1 + (r.n - 1) / 2 - ((r.n - 1) / 2 == r.n - 1)];
    out->slow_step_s = r.step[1 + (size_t)(0.9 * (double)(r.n - 2))];
    out->data_wait_s = r.wait / (double)(r.n - 1);
    out->comm_exposed_s = r.comm / (double)(r.n - 1);
    out->stall_s = r.stall / (double)(r.n - 1);
out:
    tr_events_close(events);
    free(r.step);
    return st;
}

/* ---- side by side ---- */

static double exposed(const struct tr_forecast *f)
{
    double sum = 0;
    for (int k = 0; k < TR_TIME_AXES; k++)
        sum += f->exposed_s[k];
    return sum;
}

static void add_reason(const struct tr_measured *m, const struct tr_forecast *f, struct tr_str *out)
{
    double gap = m->step_s - f->step_s, bubble = m->bubble >= 0 ? m->bubble * m->step_s - f->bubble_s : 0;
    double wait = m->data_wait_s, comm = m->comm_exposed_s - exposed(f), most = fmax(wait, fmax(bubble, comm));
    if (fabs(gap) <= 0.15 * f->step_s)
        tr_str_addf(out, "as planned: within 15 %%");
    else if (gap < 0)
        tr_str_addf(
            out, "faster than planned: the machine's description is too modest; measure it with trireme bench machine");
    else if (most < 0.25 * gap && m->slow_step_s > 1.3 * m->step_s)
        tr_str_addf(out, "steps vary (one in ten takes %.2f x the median): other load on the hosts, or a slow rank",
                    m->slow_step_s / m->step_s);
    else if (most < 0.25 * gap)
        tr_str_addf(out, "kernels: slower than the machine's description says; threads, clocks, or other load");
    else if (most == wait)
        tr_str_addf(out, "data: %.3g s of a step wait for the loader; tokenize first (trireme data tokenize)", wait);
    else if (most == bubble)
        tr_str_addf(out,
                    "pipeline: stages wait %.3g s longer than the order needs; one stage is slower than the others",
                    bubble);
    else
        tr_str_addf(out, "traffic: %.3g s more than the links should take; look at them with trireme check", comm);
    if (m->stall_s > 0.05 * m->step_s)
        tr_str_addf(out, "; checkpoints add %.3g s to each step: raise --save_steps", m->stall_s);
}

void tr_compare_text(const struct tr_measured *m, const struct tr_forecast *f, struct tr_str *out)
{
    const struct {
        const char *what;
        double predicted, measured;
    } rows[] = { { "step, s", f->step_s, m->step_s },
                 { "tokens/s", f->tokens_per_s, m->tokens / m->step_s },
                 { "traffic not hidden, s", exposed(f), m->comm_exposed_s },
                 { "bubble, s", f->bubble_s, m->bubble >= 0 ? m->bubble * m->step_s : 0 },
                 { "waiting for data, s", 0, m->data_wait_s },
                 { "checkpoints, s a step", 0, m->stall_s } };
    tr_layout_words(&m->query, out);
    tr_str_addf(out, "; %" PRId64 " steps\n\n  %-22s %12s %12s\n", m->n_steps, "", "predicted", "measured");
    for (size_t i = 0; i < TR_COUNT_OF(rows); i++) {
        if (rows[i].predicted <= 0 && rows[i].measured <= 0)
            continue;
        tr_str_addf(out, "  %-22s %12.4g %12.4g", rows[i].what, rows[i].predicted, rows[i].measured);
        if (i < 2)
            tr_str_addf(out, "  %+.1f %%", 100 * (rows[i].measured / rows[i].predicted - 1));
        tr_str_addf(out, "\n");
    }
    tr_str_addf(out, "\n");
    add_reason(m, f, out);
    tr_str_addf(out, "\n");
}

void tr_compare_json(const struct tr_measured *m, const struct tr_forecast *f, struct tr_str *out)
{
    struct tr_str why = { 0 };
    add_reason(m, f, &why);
    tr_str_addf(out,
                "{\"steps\": %" PRId64
                ", \"predicted\": {\"step_s\": %.9g, \"tokens_per_s\": %.9g, \"bubble_s\": %.9g, "
                "\"comm_exposed_s\": %.9g}, \"measured\": {\"step_s\": %.9g, \"slow_step_s\": %.9g, \"tokens_per_s\": "
                "%.9g, \"comm_exposed_s\": %.9g, \"data_wait_s\": %.9g, \"checkpoint_s\": %.9g",
                m->n_steps, f->step_s, f->tokens_per_s, f->bubble_s, exposed(f), m->step_s, m->slow_step_s,
                m->tokens / m->step_s, m->comm_exposed_s, m->data_wait_s, m->stall_s);
    if (m->bubble >= 0)
        tr_str_addf(out, ", \"bubble\": %.9g", m->bubble);
    tr_str_member(out, "}, \"why\": ", why.p ? why.p : "");
    tr_str_addf(out, "}\n");
    tr_str_release(&why);
}
