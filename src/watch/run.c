/* run.c - one run: its events as columns, as last lines and as a list, and the pages of its ranks (watch.h). */
#include "watch/watch_impl.h"

#include <assert.h>
#include <stdlib.h>

static const char *const once_names[] = { "config", "layout", "data", "start", "end", "system", "experts" };
static_assert(TR_COUNT_OF(once_names) == ONCE_KINDS, "one line a kind");

enum tr_status tr_watch_open(const char *dir, struct tr_watch_run **out)
{
    enum tr_status st = TR_OK;
    struct tr_phase_page page;
    struct tr_watch_run *w = calloc(1, sizeof *w);
    if (!w)
        return tr_fail(TR_NOMEM, "no memory to watch %s", dir);
    w->ranks.holder = -1;
    TR_TRY(tr_format(w->dir, sizeof w->dir, "%s", dir));
    TR_TRY(tr_path_join(w->path, dir, TR_NAME_EVENTS));
    if (!tr_dir_exists(dir))
        TR_TRY(tr_fail(TR_USAGE, "%s: no such directory", dir));
    if (!tr_file_exists(w->path) && !tr_phase_read(dir, 0, &page))
        TR_TRY(tr_fail(TR_USAGE,
                       "%s: no run that can be watched: neither " TR_NAME_EVENTS " nor " TR_NAME_PHASES
                       "/phase-0000 is there",
                       dir));
    (void)tr_watch_refresh(w);
    *out = w;
out:
    if (st != TR_OK)
        free(w);
    return st;
}

/* ---- what is kept of events ---- */

static void notes_drop(struct notes *n)
{
    n->bytes -= strlen(n->line[n->first]);
    free(n->line[n->first]);
    n->first = (n->first + 1) % NOTES_MAX;
    n->n--;
}

static void notes_add(struct notes *n, const char *line, int64_t after)
{
    size_t bytes = strlen(line);
    char *copy = strdup(line);
    if (!copy)
        return; /* a line less to look at */
    while (n->n == NOTES_MAX || (n->n > 0 && n->bytes + bytes > NOTES_BYTES))
        notes_drop(n);
    size_t at = (n->first + n->n++) % NOTES_MAX;
    n->line[at] = copy;
    n->after[at] = after;
    n->bytes += bytes;
}

static void keep(char **slot, const char *line)
{
    free(*slot);
    *slot = strdup(line);
}

static void forget(struct tr_watch_run *w)
{
    tr_events_close(w->events);
    w->events = NULL;
    tr_series_clear(&w->steps);
    for (int i = 0; i < w->n_evals; i++)
        tr_series_clear(&w->eval[i].rows);
    w->n_evals = 0;
    while (w->notes.n > 0)
        notes_drop(&w->notes);
    while (w->samples.n > 0)
        notes_drop(&w->samples);
    for (int i = 0; i < ONCE_KINDS; i++)
        keep(&w->once[i], "");
    for (int i = 0; i < w->n_plans; i++)
        free(w->plan[i]);
    memset(w->plan, 0, sizeof w->plan);
    w->n_plans = 0;
    w->has_ended = false;
    w->total_steps = 0;
}

void tr_watch_close(struct tr_watch_run *w)
{
    if (!w)
        return;
    forget(w);
    for (int i = 0; i < ONCE_KINDS; i++)
        free(w->once[i]);
    tr_series_release(&w->steps);
    for (int i = 0; i < EVAL_SETS_MAX; i++)
        tr_series_release(&w->eval[i].rows);
    tr_ranks_release(&w->ranks);
    tr_heat_release(&w->heat);
    tr_str_release(&w->timeline);
    free(w);
}

static void keep_plan(struct tr_watch_run *w, const struct tr_event *e)
{
    int64_t rank = -1;
    if (tr_json_int(e->json, "rank", true, 0, PLANS_MAX - 1, &rank) != TR_OK || rank > w->n_plans) {
        tr_error_clear();
        return;
    }
    for (int i = 0; rank == 0 && i < w->n_plans; i++) { /* rank 0 comes first: another start of the run */
        free(w->plan[i]);
        w->plan[i] = NULL;
    }
    w->n_plans = rank == 0 ? 1 : (int)tr_max64(w->n_plans, rank + 1);
    keep(&w->plan[rank], e->text);
}

/* The rows of an evaluation's set: those of the set that chooses the best step are the first. NULL: too many sets. */
static struct tr_series *rows_of(struct tr_watch_run *w, const struct tr_event *e)
{
    const char *name = "";
    bool is_other = cJSON_IsFalse(cJSON_GetObjectItemCaseSensitive(e->json, "best_of"));
    if (tr_json_str(e->json, "set", false, &name) != TR_OK)
        tr_error_clear();
    if (w->n_evals == 0) /* the first place is kept for it */
        w->eval[w->n_evals++].name[0] = '\0';
    int i = is_other;
    while (is_other && i < w->n_evals && strncmp(w->eval[i].name, name, EVAL_NAME - 1) != 0)
        i++;
    if (i == EVAL_SETS_MAX)
        return NULL;
    w->n_evals = i < w->n_evals ? w->n_evals : i + 1;
    (void)snprintf(w->eval[i].name, EVAL_NAME, "%s", name);
    return &w->eval[i].rows;
}

/* A run that was asked to pause makes no step until it is asked to go on, or stopped. */
static void keep_pause(struct tr_watch_run *w, const struct tr_event *e)
{
    const char *action = "";
    if (tr_json_str(e->json, "action", false, &action) != TR_OK)
        tr_error_clear();
    if (!cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(e->json, "accepted")))
        return;
    w->is_paused = strcmp(action, "pause") == 0 || (w->is_paused && strcmp(action, "resume") != 0);
}

/* Steps and evaluations become rows, what a run says once stays as it is, everything else is a note. */
static void take(struct tr_watch_run *w, const struct tr_event *e)
{
    const char *name = "", *status = "";
    if (e->kind == TR_EVENT_STEP || e->kind == TR_EVENT_EVAL) {
        w->has_ended = w->has_ended && e->kind != TR_EVENT_STEP;
        w->is_paused = w->is_paused && e->kind != TR_EVENT_STEP;
        struct tr_series *rows = e->kind == TR_EVENT_STEP ? &w->steps : rows_of(w, e);
        if (rows && tr_series_add(rows, e) != TR_OK)
            tr_error_clear(); /* a row less to look at */
        return;
    }
    (void)tr_json_str(e->json, "event", true, &name);
    if (strcmp(name, "grad_norms") == 0) /* heat.c reads them from their own file */
        return;
    if (strcmp(name, "plan") == 0) {
        keep_plan(w, e);
        return;
    }
    if (e->kind == TR_EVENT_END) {
        w->has_ended = true;
        if (tr_json_str(e->json, "status", false, &status) == TR_OK)
            (void)snprintf(w->status, sizeof w->status, "%s", status);
    } else if (e->kind == TR_EVENT_LAYOUT) {
        w->has_ended = w->is_paused = false;
    } else if (strcmp(name, "control") == 0) {
        keep_pause(w, e);
    }
    for (int i = 0; i < ONCE_KINDS; i++)
        if (strcmp(once_names[i], name) == 0) {
            keep(&w->once[i], e->text);
            if (i == 0)
                (void)tr_json_int(e->json, "total_steps", false, 0, INT64_MAX, &w->total_steps);
            tr_error_clear();
            if (strcmp(name, "start") != 0) /* each of them: all but the first are restarts */
                return;
        }
    tr_error_clear();
    notes_add(strcmp(name, "sample") == 0 ? &w->samples : &w->notes, e->text,
              w->steps.n ? w->steps.step[w->steps.n - 1] : 0);
}

/* ---- reading on ---- */

static bool read_events(struct tr_watch_run *w)
{
    struct tr_event e;
    bool has_changed = false;
    if (w->events && tr_events_was_replaced(w->events)) {
        forget(w);
        has_changed = true;
    }
    if (!w->events) {
        if (!tr_file_exists(w->path) || tr_events_open(w->path, 0, &w->events) != TR_OK) {
            tr_error_clear();
            return has_changed;
        }
        tr_events_follow(w->events);
        tr_events_be_brief(w->events);
    }
    while (tr_events_next(w->events, &e)) {
        take(w, &e);
        has_changed = true;
    }
    return has_changed;
}

/* A group that starts again may have another number of ranks. */
static void read_ranks(struct tr_watch_run *w)
{
    struct tr_phase_page first;
    if (!tr_phase_read(w->dir, 0, &first) || first.world != w->ranks.n) {
        tr_ranks_release(&w->ranks);
        if (tr_ranks_open(w->dir, &w->ranks) != TR_OK)
            tr_error_clear();
    }
    if (w->ranks.n > 0)
        tr_ranks_read(w->dir, &w->ranks);
}

bool tr_watch_refresh(struct tr_watch_run *w)
{
    bool has_changed = read_events(w);
    has_changed |= tr_heat_refresh(&w->heat, w->dir);
    read_ranks(w);
    w->version += has_changed;
    return has_changed;
}

/* ---- what is shown ---- */

const char *tr_watch_state(const struct tr_watch_run *w)
{
    bool is_over = w->ranks.n > 0 && tr_ranks_have_ended(&w->ranks);
    if (w->has_ended && (is_over || w->ranks.n == 0))
        return w->status;
    return w->ranks.n == 0 ? "unknown" : is_over ? "dead" : w->is_paused ? "paused" : "runs";
}

bool tr_watch_is_live(const struct tr_watch_run *w)
{
    const char *state = tr_watch_state(w);
    return strcmp(state, "runs") == 0 || strcmp(state, "paused") == 0;
}

const struct tr_ranks *tr_watch_ranks(const struct tr_watch_run *w)
{
    return &w->ranks;
}

const char *tr_watch_last(const struct tr_watch_run *w, const char *event)
{
    for (int i = 0; i < ONCE_KINDS; i++)
        if (strcmp(once_names[i], event) == 0 && w->once[i] && w->once[i][0])
            return w->once[i];
    return NULL;
}

size_t tr_watch_n_notes(const struct tr_watch_run *w)
{
    return w->notes.n;
}

const char *tr_watch_note(const struct tr_watch_run *w, size_t i)
{
    return w->notes.line[(w->notes.first + i) % NOTES_MAX];
}

int64_t tr_watch_note_after(const struct tr_watch_run *w, size_t i)
{
    return w->notes.after[(w->notes.first + i) % NOTES_MAX];
}

size_t tr_watch_n_samples(const struct tr_watch_run *w)
{
    return w->samples.n;
}

const char *tr_watch_sample(const struct tr_watch_run *w, size_t i)
{
    return w->samples.line[(w->samples.first + i) % NOTES_MAX];
}
