/* timeline.c - one step of the run as spans: predicted by the plan, measured by a profile. The prediction is made again
 * from the layout that the run has logged; the measurement is read from the traces of --profile, line by line. */
#include "plan/plan.h"
#include "watch/watch_impl.h"

#include <stdlib.h>
#include <sys/stat.h>

enum {
    TRACE_RANKS = 64,
    TRACE_LINE = 1024,      /* bytes of an event in a trace */
    TRACE_BYTES = 16 << 20, /* read of one trace */
    TRACE_SPANS = 4096,     /* of a rank */
    STAGES_MAX = 256,       /* predicted: ranks of a pipeline, and their chunks */
    PREDICTED_SLOTS = 4000,
};

/* ---- measured ---- */

struct trace_span {
    double begin_us, us;
    int micro;
    char name[24];
};
struct step_spans {
    int rank;
    struct trace_span *span;
    int n;
    bool has_update, is_over; /* a step ends where the next begins: a forward, or a receive for one, behind an update */
};

static void take_event(struct step_spans *t, const cJSON *e)
{
    const cJSON *args = cJSON_GetObjectItemCaseSensitive(e, "args");
    const char *name = "", *kind = "";
    double begin = 0, us = 0;
    int64_t process = -1, track = -1, micro = -1;
    if (tr_json_str(e, "name", true, &name) != TR_OK || tr_json_real(e, "ts", true, &begin) != TR_OK ||
        tr_json_real(e, "dur", true, &us) != TR_OK || tr_json_int(e, "tid", true, 0, 1000, &track) != TR_OK ||
        tr_json_int(e, "pid", true, 0, INT32_MAX, &process) != TR_OK || process != t->rank)
        return; /* spans of other processes are the plan's */
    if (args && tr_json_str(args, "action", false, &kind) == TR_OK)
        (void)tr_json_int(args, "micro", false, -1, INT32_MAX, &micro);
    bool is_action = track == 0, is_wait = track == 2; /* rows of exec/trace.c: actions, compute, waiting, ... */
    if (!is_action && !is_wait)
        return;
    if (is_action && (strncmp(name, "forward", 7) == 0 || strcmp(name, "recv") == 0) && t->has_update)
        t->is_over = true;
    if (t->is_over || t->n == TRACE_SPANS)
        return;
    t->has_update |= is_action && strcmp(name, "update") == 0;
    struct trace_span *s = &t->span[t->n++];
    *s = (struct trace_span){ begin, us, (int)micro, "" };
    (void)snprintf(s->name, sizeof s->name, "%s", is_wait ? "wait" : name);
}

/* The first step in the trace of a rank. */
static void read_trace(const struct tr_watch_run *w, int rank, struct step_spans *t)
{
    char path[TR_PATH_MAX], name[64];
    struct tr_tail *tail = NULL;
    enum tr_tail_line found;
    char *line;
    size_t n, n_read = 0;
    (void)snprintf(name, sizeof name, TR_NAME_PROFILE "/" TR_NAME_OF_RANK ".json", rank);
    if (tr_path_join(path, w->dir, name) != TR_OK || !tr_file_exists(path) ||
        tr_tail_open(path, TRACE_LINE, 0, &tail) != TR_OK) {
        tr_error_clear();
        return;
    }
    while (!t->is_over && n_read < TRACE_BYTES && (found = tr_tail_next(tail, &line, &n)) != TR_TAIL_NONE) {
        cJSON *e = NULL;
        n_read += n + 1;
        n -= n > 0 && line[n - 1] == ',';
        bool is_wanted = found == TR_TAIL_LINE && (strstr(line, "\"tid\":0,") || strstr(line, "\"tid\":2,"));
        if (is_wanted && tr_json_parse(line, n, TR_NAME_PROFILE, &e) == TR_OK)
            take_event(t, e);
        tr_error_clear();
        cJSON_Delete(e);
    }
    tr_tail_close(tail);
}

/* Spans of all ranks from the first of them on, as [rank, begin, seconds, name, micro-batch]. */
static void add_measured(const struct tr_watch_run *w, struct tr_str *out)
{
    struct step_spans *all = calloc(TRACE_RANKS, sizeof *all);
    double first_us = 0;
    bool has_any = false;
    for (int r = 0; all && r < TRACE_RANKS; r++) {
        all[r].span = malloc(TRACE_SPANS * sizeof *all[r].span);
        all[r].rank = r;
        if (all[r].span)
            read_trace(w, r, &all[r]);
        for (int i = 0; i < all[r].n; i++) {
            first_us = has_any && first_us < all[r].span[i].begin_us ? first_us : all[r].span[i].begin_us;
            has_any = true;
        }
        if (all[r].n == 0 && r > 0)
            break;
    }
    for (int r = 0, n = 0; all && r < TRACE_RANKS; r++)
        for (int i = 0; i < all[r].n; i++) {
            const struct trace_span *s = &all[r].span[i];
            tr_str_addf(out, "%s[%d,%.9g,%.9g,", n++ ? "," : "", r, (s->begin_us - first_us) * 1e-6, s->us * 1e-6);
            tr_str_json(out, s->name);
            tr_str_addf(out, ",%d]", s->micro);
        }
    for (int r = 0; all && r < TRACE_RANKS; r++)
        free(all[r].span);
    free(all);
}

/* ---- predicted ---- */

/* A name of the table, never a file: the layout of a run may say anything. */
static bool is_machine_name(const char *name)
{
    return name[0] && !strchr(name, '/') && !tr_file_exists(name);
}

/* As [rank, begin, seconds, name, micro-batch]. */
static void add_span(void *context, const struct tr_timeline_span *s)
{
    struct tr_str *out = context;
    tr_str_addf(out, "%s[%d,%.9g,%.9g,\"%s\",%d]", out->n ? "," : "", s->rank, s->begin_s, s->s, s->name, s->micro);
}

static enum tr_status add_predicted(const cJSON *layout, struct tr_str *out, double *step_s)
{
    struct tr_forecast_query a;
    struct tr_machine machine;
    const char *name = "";
    TR_PASS(tr_json_str(layout, "machine", true, &name));
    TR_PASS(tr_forecast_query_of_json(layout, &a));
    if (!is_machine_name(name) || a.pp < 1 || a.chunks < 1 || a.dp < 1 || a.tp < 1 || a.cp < 1 || a.pp > STAGES_MAX ||
        a.chunks > STAGES_MAX || a.pp * a.chunks > STAGES_MAX)
        return tr_fail(TR_USAGE, "no machine to predict with");
    TR_PASS(tr_machine_open(name, &machine));
    a.machine = &machine;
    return tr_timeline_each(&a, PREDICTED_SLOTS, step_s, add_span, out);
}

static void make(const struct tr_watch_run *w, struct tr_str *out)
{
    struct tr_str predicted = { 0 };
    const char *line = tr_watch_last(w, "layout");
    cJSON *layout = NULL;
    double step_s = 0;
    tr_str_addf(out, "{\"measured\":[");
    add_measured(w, out);
    if (line && tr_json_parse(line, strlen(line), "layout", &layout) == TR_OK &&
        add_predicted(layout, &predicted, &step_s) == TR_OK && tr_str_ok(&predicted) && predicted.n > 0)
        tr_str_addf(out, "],\"predicted\":[%s],\"step_s\":%.9g}", predicted.p, step_s);
    else
        tr_str_addf(out, "],\"predicted\":[],\"step_s\":null}");
    tr_error_clear();
    cJSON_Delete(layout);
    tr_str_release(&predicted);
}

/* Made once for a profile and a layout; steps change neither. */
void tr_timeline_panel(struct tr_watch_run *w, struct tr_str *out)
{
    char path[TR_PATH_MAX];
    struct stat info;
    const char *line = tr_watch_last(w, "layout");
    bool has_profile = tr_path_join(path, w->dir, TR_NAME_PROFILE) == TR_OK && stat(path, &info) == 0;
    int64_t time = has_profile ? (int64_t)info.st_mtim.tv_sec * 1000000000 + info.st_mtim.tv_nsec : 0;
    uint64_t version = line ? tr_hash(line, strlen(line)).lo : 0;
    if (w->timeline.n == 0 || w->timeline_time != time || w->timeline_version != version) {
        tr_str_clear(&w->timeline);
        make(w, &w->timeline);
        w->timeline_time = time;
        w->timeline_version = version;
    }
    if (tr_str_ok(&w->timeline))
        tr_str_add(out, w->timeline.p, w->timeline.n);
    else
        tr_str_addf(out, "{\"measured\":[],\"predicted\":[],\"step_s\":null}");
}
