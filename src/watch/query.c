/* query.c - what the page asks for: a fixed table of paths, whose parameters are whole numbers. No name of a file comes
 * from a request. */
#include "watch/watch_impl.h"

#include <math.h>

struct query {
    struct tr_watch_run *const *runs;
    size_t n_runs;
    struct tr_watch_run *w; /* the run that is asked about */
    int64_t from, to, n, which;
};

/* ---- parameters ---- */

static bool is_key(const char *p, size_t n, const char *key)
{
    return strlen(key) == n && memcmp(p, key, n) == 0;
}

/* Of "a=1&b=2"; a name that is not known, or a value that is no number, is an error. */
static enum tr_status read_parameters(const char *p, struct query *q)
{
    int64_t run = 0, value;
    *q = (struct query){ .runs = q->runs, .n_runs = q->n_runs, .to = INT64_MAX, .n = 500 };
    while (*p) {
        char number[24];
        size_t n = strcspn(p, "&"), n_key = strcspn(p, "=");
        if (n_key >= n || n - n_key - 1 >= sizeof number)
            return tr_fail(TR_USAGE, "a parameter is NAME=NUMBER");
        memcpy(number, p + n_key + 1, n - n_key - 1);
        number[n - n_key - 1] = '\0';
        if (tr_parse_int(number, 0, INT64_MAX, &value) != TR_OK)
            return TR_USAGE;
        int64_t *to = is_key(p, n_key, "run")     ? &run
                      : is_key(p, n_key, "from")  ? &q->from
                      : is_key(p, n_key, "to")    ? &q->to
                      : is_key(p, n_key, "n")     ? &q->n
                      : is_key(p, n_key, "which") ? &q->which
                                                  : NULL;
        if (!to)
            return tr_fail(TR_USAGE, "no such parameter; run, from, to, n and which are");
        *to = value;
        p += n + (p[n] == '&');
    }
    if (run >= (int64_t)q->n_runs)
        return tr_fail(TR_USAGE, "run %" PRId64 ": there are %zu", run, q->n_runs);
    q->w = q->runs[run];
    return TR_OK;
}

/* ---- answers ---- */

enum { SHOWN_RANKS = 1024, SHOWN_NOTES = 1000, SHOWN_SAMPLES = 200 };

static void add_real(struct tr_str *out, const char *key, double x)
{
    if (isfinite(x))
        tr_str_addf(out, ",\"%s\":%.9g", key, x);
    else
        tr_str_addf(out, ",\"%s\":null", key);
}

static void answer_runs(const struct query *q, struct tr_str *out)
{
    tr_str_addf(out, "[");
    for (size_t i = 0; i < q->n_runs; i++) {
        const struct tr_watch_run *w = q->runs[i];
        tr_str_addf(out, "%s{\"dir\":", i ? "," : "");
        tr_str_json(out, w->dir);
        tr_str_member(out, ",\"state\":", tr_watch_state(w));
        tr_str_addf(out, ",\"version\":%" PRIu64 "}", w->version);
    }
    tr_str_addf(out, "]");
}

static void answer_series(const struct query *q, struct tr_str *out)
{
    tr_str_addf(out, "{");
    tr_series_json(&q->w->steps, q->from, q->to, (size_t)tr_min64(q->n, TR_SERIES_MAX_POINTS), out);
    tr_str_addf(out, ",\"evals\":[");
    for (int i = 0; i < q->w->n_evals; i++) {
        tr_str_member(out, i ? ",{\"set\":" : "{\"set\":", q->w->eval[i].name);
        tr_str_addf(out, ",");
        tr_series_json(&q->w->eval[i].rows, q->from, q->to, (size_t)tr_min64(q->n, TR_SERIES_MAX_POINTS), out);
        tr_str_addf(out, "}");
    }
    tr_str_addf(out, "]}");
}

/* The last row of the steps: exact enough to be read as numbers. */
static void add_last_step(const struct tr_series *s, struct tr_str *out)
{
    double tokens = 0, first = s->n ? s->time[0] : (double)NAN, last = s->n ? s->time[s->n - 1] : (double)NAN;
    for (size_t i = 0; i < s->n; i++)
        tokens += fmax(0, tr_series_at(s, TR_SERIES_TOKENS, i)); /* fmax: 0 where there is none */
    tr_str_addf(out, ",\"step\":%" PRId64 ",\"tokens_seen\":%.0f", s->n ? s->step[s->n - 1] : 0, tokens);
    if (isfinite(first) && isfinite(last))
        tr_str_addf(out, ",\"first_time\":%.3f,\"last_time\":%.3f", first, last);
    tr_str_addf(out, ",\"last\":{\"step\":%" PRId64, s->n ? s->step[s->n - 1] : 0);
    for (int c = 0; c < TR_SERIES_COLUMNS && s->n > 0; c++)
        add_real(out, tr_series_name((enum tr_series_column)c), tr_series_at(s, (enum tr_series_column)c, s->n - 1));
    /* the pace of the last steps, which the time that is left is reckoned with */
    size_t n = s->n < 50 ? s->n : 50;
    double seconds = n > 1 ? s->time[s->n - 1] - s->time[s->n - n] : (double)NAN;
    tr_str_addf(out, "}");
    add_real(out, "step_s", seconds / (double)(n > 1 ? n - 1 : 1));
}

/* The last events of a list as an array; notes say after which step they came. */
static void add_notes(const struct tr_watch_run *w, struct tr_str *out)
{
    size_t n = tr_watch_n_notes(w), first = n > SHOWN_NOTES ? n - SHOWN_NOTES : 0;
    tr_str_addf(out, ",\"notes\":[");
    for (size_t i = first; i < n; i++)
        tr_str_addf(out, "%s{\"after_step\":%" PRId64 ",%s", i > first ? "," : "", tr_watch_note_after(w, i),
                    strchr(tr_watch_note(w, i), '{') + 1);
    tr_str_addf(out, "]");
}

static void add_samples(const struct tr_watch_run *w, struct tr_str *out)
{
    size_t n = tr_watch_n_samples(w), first = n > SHOWN_SAMPLES ? n - SHOWN_SAMPLES : 0;
    tr_str_addf(out, ",\"samples\":[");
    for (size_t i = first; i < n; i++)
        tr_str_addf(out, "%s%s", i > first ? "," : "", tr_watch_sample(w, i));
    tr_str_addf(out, "]");
}

static void answer_run(const struct query *q, struct tr_str *out)
{
    static const char *const once[] = { "config", "layout", "data", "start", "end", "system", "experts" };
    const struct tr_watch_run *w = q->w;
    tr_str_member(out, "{\"dir\":", w->dir);
    tr_str_member(out, ",\"state\":", tr_watch_state(w));
    tr_str_addf(out, ",\"version\":%" PRIu64 ",\"now\":%.3f,\"total_steps\":%" PRId64 ",\"skipped_lines\":%" PRId64,
                w->version, tr_clock_wall(), w->total_steps, w->events ? tr_events_skipped(w->events) : 0);
    add_last_step(&w->steps, out);
    for (size_t i = 0; i < TR_COUNT_OF(once); i++) {
        const char *line = tr_watch_last(w, once[i]);
        tr_str_addf(out, ",\"%s\":%s", once[i], line ? line : "null");
    }
    tr_str_addf(out, ",\"plans\":[");
    for (int r = 0, n = 0; r < w->n_plans; r++)
        if (w->plan[r])
            tr_str_addf(out, "%s%s", n++ ? "," : "", w->plan[r]);
    tr_str_addf(out, "]");
    add_notes(w, out);
    add_samples(w, out);
    tr_str_addf(out, "}");
}

static void answer_ranks(const struct query *q, struct tr_str *out)
{
    const struct tr_ranks *k = tr_watch_ranks(q->w);
    char where[64];
    tr_str_addf(out, "{\"n\":%d,\"holder\":%d,\"generation\":%" PRId64 ",\"here\":%s", k->n, k->holder, k->generation,
                k->is_here ? "true" : "false");
    add_real(out, "median_s", k->median_us * 1e-6);
    tr_str_addf(out, ",\"ranks\":[");
    for (int r = 0; r < k->n && r < SHOWN_RANKS; r++) {
        const struct tr_rank_row *p = &k->row[r];
        double seconds = tr_rank_seconds(k, r);
        tr_str_addf(out, "%s{\"rank\":%d,\"pid\":%d,\"step\":%" PRId64 ",\"state\":\"%s\",\"slow\":%" PRId64,
                    r ? "," : "", r, p->pid, p->step, tr_rank_state(k, r), p->n_slow);
        add_real(out, "score", tr_rank_score(k, r));
        add_real(out, "busy_s", p->busy_us * 1e-6);
        add_real(out, "seconds", seconds < 0 ? (double)NAN : seconds);
        tr_str_addf(out, ",\"action\":\"%s\",\"host\":", tr_phase_text(p->kind, p->place, where, sizeof where));
        tr_str_json(out, p->host);
        tr_str_member(out, ",\"site\":", p->is_waiting ? p->site : "");
        tr_str_addf(out, "}");
    }
    tr_str_addf(out, "]}");
}

static void answer_heat(const struct query *q, struct tr_str *out)
{
    tr_heat_json(&q->w->heat, out);
}

static void answer_log(const struct query *q, struct tr_str *out)
{
    tr_log_json(q->w, q->which, out);
}

static void answer_health(const struct query *q, struct tr_str *out)
{
    tr_health_json(q->w, out);
}

static void answer_timeline(const struct query *q, struct tr_str *out)
{
    tr_timeline_panel(q->w, out);
}

static const struct {
    const char *path;
    void (*answer)(const struct query *q, struct tr_str *out);
} routes[] = {
    { "/api/runs", answer_runs },     { "/api/series", answer_series },     { "/api/run", answer_run },
    { "/api/ranks", answer_ranks },   { "/api/heat", answer_heat },         { "/api/log", answer_log },
    { "/api/health", answer_health }, { "/api/timeline", answer_timeline },
};

enum tr_status tr_watch_query(struct tr_watch_run *const *runs, size_t n_runs, const char *path, struct tr_str *out)
{
    struct query q = { .runs = runs, .n_runs = n_runs };
    size_t n_path = strcspn(path, "?");
    for (size_t i = 0; i < TR_COUNT_OF(routes); i++)
        if (is_key(path, n_path, routes[i].path)) {
            enum tr_status st = read_parameters(path + n_path + (path[n_path] == '?'), &q);
            if (st == TR_OK)
                routes[i].answer(&q, out);
            return st == TR_OK && !tr_str_ok(out) ? tr_fail(TR_NOMEM, "no memory for an answer") : st;
        }
    return tr_fail(TR_USAGE, "there is nothing of this name here");
}
