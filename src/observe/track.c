/* track.c - the thread that hands events of the log to the sinks (track.h), and the table of sinks.
 *
 * Invariant: the thread reads events.jsonl and writes files of sinks, nothing else; the training thread never waits for
 * it, but at the end, for a bounded time. What the thread has to tell (a sample of the machine for the log, a sink that
 * failed) lies in a mailbox that the training thread empties between steps, because the log has one writer. Rejected: a
 * queue of events beside the log, which would fill up behind a slow disk and hold other numbers than the log after a
 * crash.
 */
#include "observe/system.h"
#include "observe/track_impl.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* A look at the log costs about a millisecond of files, however few events there are. */
enum { POLL_MS = 1000, FIRST_SAMPLE_US = 1000 * 1000, SAMPLE_US = 15 * 1000 * 1000, CLOSE_WAIT_S = 10, NICE = 10 };

/* One sink = one row. */
static const struct tr_sink_row *const table[] = { &tr_sink_tensorboard, &tr_sink_wandb, &tr_sink_trackio };
enum { N_TABLE = TR_COUNT_OF(table), N_SINKS_MAX = N_TABLE + 1 };

struct open_sink {
    const struct tr_sink_row *row;
    void *sink; /* NULL: closed */
    int64_t from;
    bool has_begun; /* an event of step `from` has passed */
};

struct tr_track {
    struct tr_track_run run;
    char *text[5]; /* the strings of run */
    char events_path[TR_PATH_MAX];
    struct open_sink sink[N_SINKS_MAX];
    size_t n_sinks;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool is_stopping, is_done; /* under lock */
    atomic_bool has_mail;
    struct tr_track_mail mail; /* under lock */
};

/* ---- which sinks ---- */

static bool is_chosen(const struct tr_track_options *opt, const char *name)
{
    for (size_t i = 0; i < opt->n_sinks; i++)
        if (strcmp(opt->sinks[i], name) == 0 || strcmp(opt->sinks[i], "all") == 0)
            return true;
    return false;
}

static size_t choose(const struct tr_track_options *opt, struct open_sink out[N_SINKS_MAX])
{
    size_t n = 0;
    for (size_t i = 0; i < N_TABLE; i++)
        if (is_chosen(opt, table[i]->name))
            out[n++].row = table[i];
    if (opt->metrics_file)
        out[n++].row = &tr_sink_prometheus;
    return n;
}

static enum tr_status check_name(const char *name)
{
    struct tr_str list = { 0 };
    if (strcmp(name, "none") == 0 || strcmp(name, "all") == 0)
        return TR_OK;
    for (size_t i = 0; i < N_TABLE; i++)
        if (strcmp(table[i]->name, name) == 0)
            return TR_OK;
    for (size_t i = 0; i < N_TABLE; i++)
        tr_str_addf(&list, ", %s", table[i]->name);
    enum tr_status st =
        tr_fail(TR_USAGE, "report_to %s: no such tracker; there are none, all%s", name, tr_str_ok(&list) ? list.p : "");
    tr_str_release(&list);
    return st;
}

enum tr_status tr_track_check(const struct tr_track_options *opt)
{
    struct open_sink chosen[N_SINKS_MAX] = { { 0 } };
    for (size_t i = 0; i < opt->n_sinks; i++) {
        TR_PASS(check_name(opt->sinks[i]));
        if (strcmp(opt->sinks[i], "none") == 0 && opt->n_sinks > 1)
            return tr_fail(TR_USAGE, "report_to none stands beside others; write it alone or leave it out");
    }
    if (opt->run_name && !tr_name_is_plain(opt->run_name))
        return tr_fail(TR_USAGE, "run_name \"%.80s\": it names a directory; without / and control characters",
                       opt->run_name);
    for (size_t i = 0, n = choose(opt, chosen); i < n; i++)
        if (chosen[i].row->check)
            TR_PASS(chosen[i].row->check());
    return TR_OK;
}

/* ---- the mailbox ---- */

static void say(struct tr_track *t, const char *text)
{
    pthread_mutex_lock(&t->lock);
    size_t n = strlen(t->mail.text);
    (void)snprintf(t->mail.text + n, sizeof t->mail.text - n, "%s%s", n ? "\n" : "", text);
    pthread_mutex_unlock(&t->lock);
    atomic_store(&t->has_mail, true);
}

bool tr_track_take(struct tr_track *t, struct tr_track_mail *out)
{
    if (!t || !atomic_load(&t->has_mail))
        return false;
    pthread_mutex_lock(&t->lock);
    *out = t->mail;
    t->mail.text[0] = t->mail.system[0] = 0;
    atomic_store(&t->has_mail, false);
    pthread_mutex_unlock(&t->lock);
    return true;
}

static void sample(struct tr_track *t, struct tr_usage *before, const struct tr_nvml *nvml)
{
    struct tr_usage now;
    struct tr_str fields = { 0 };
    tr_usage_read("", &now);
    tr_system_fields(before, &now, nvml, t->run.output, &fields);
    *before = now;
    pthread_mutex_lock(&t->lock);
    if (tr_str_ok(&fields) && fields.n < sizeof t->mail.system)
        memcpy(t->mail.system, fields.p, fields.n + 1);
    pthread_mutex_unlock(&t->lock);
    atomic_store(&t->has_mail, true);
    tr_str_release(&fields);
}

/* ---- the thread ---- */

static void lose(struct tr_track *t, struct open_sink *s)
{
    char text[640], shown[400];
    (void)snprintf(text, sizeof text, "%s: %s; this tracker is off from here on, training goes on", s->row->name,
                   tr_escape(tr_error_text(), shown, sizeof shown));
    if (s->sink)
        (void)s->row->close(s->sink, false);
    s->sink = NULL;
    tr_error_clear();
    say(t, text);
}

static void open_sinks(struct tr_track *t)
{
    for (size_t i = 0; i < t->n_sinks; i++) {
        struct open_sink *s = &t->sink[i];
        struct tr_str place = { 0 }, text = { 0 };
        if (s->row->open(&t->run, &s->sink, &s->from, &place) != TR_OK)
            lose(t, s);
        for (const char *p = s->row->note; s->sink && *p; p++)
            if (p[0] == '%' && p[1] == 's') {
                tr_str_shell(&text, place.p ? place.p : "");
                p++;
            } else {
                tr_str_add(&text, p, 1);
            }
        if (s->sink && text.p) {
            char line[TR_PATH_MAX];
            (void)snprintf(line, sizeof line, "%s: %s", s->row->name, text.p);
            say(t, line);
        }
        tr_str_release(&place);
        tr_str_release(&text);
    }
}

static void hand_out(struct tr_track *t, const struct tr_track_event *e)
{
    for (size_t i = 0; i < t->n_sinks; i++) {
        struct open_sink *s = &t->sink[i];
        s->has_begun = s->has_begun || s->from <= 0 || e->event->step >= s->from;
        if (s->sink && s->has_begun && s->row->event(s->sink, e) != TR_OK)
            lose(t, s);
    }
}

/* All events that are there now. */
static void follow(struct tr_track *t, struct tr_events *log, struct tr_metrics *m)
{
    struct tr_event e;
    struct tr_track_event out;
    while (tr_events_next(log, &e)) {
        if (!tr_metrics_of(m, &e, &out))
            continue; /* no memory for this one */
        out.is_end = e.kind == TR_EVENT_END && out.time >= t->run.start_time;
        hand_out(t, &out);
    }
    for (size_t i = 0; i < t->n_sinks; i++)
        if (t->sink[i].sink && t->sink[i].row->flush(t->sink[i].sink) != TR_OK)
            lose(t, &t->sink[i]);
}

/* Waits for the next look at the log. False: the run is over. */
static bool wait_next(struct tr_track *t)
{
    int64_t until_us = tr_clock_us() + POLL_MS * 1000;
    pthread_mutex_lock(&t->lock);
    while (!t->is_stopping && tr_cond_wait_until(&t->changed, &t->lock, until_us) == 0) {
    }
    bool goes_on = !t->is_stopping;
    pthread_mutex_unlock(&t->lock);
    return goes_on;
}

static void work(struct tr_track *t, struct tr_events *log)
{
    struct tr_metrics metrics = { 0 };
    struct tr_usage usage;
    struct tr_nvml *nvml = tr_nvml_open();
    int64_t next_us = tr_clock_us() + FIRST_SAMPLE_US;
    bool goes_on;
    tr_usage_read("", &usage);
    open_sinks(t);
    follow(t, log, &metrics);
    do { /* the log is read once more after the end was announced */
        goes_on = wait_next(t);
        follow(t, log, &metrics);
        if (tr_clock_us() >= next_us) {
            sample(t, &usage, nvml);
            next_us = tr_clock_us() + SAMPLE_US;
        }
    } while (goes_on);
    for (size_t i = 0; i < t->n_sinks; i++) {
        struct open_sink *s = &t->sink[i];
        if (s->sink && s->row->close(s->sink, true) != TR_OK) {
            s->sink = NULL;
            lose(t, s);
        }
        s->sink = NULL;
    }
    tr_metrics_release(&metrics);
    tr_nvml_close(nvml);
}

static void *run_thread(void *ctx)
{
    struct tr_track *t = ctx;
    struct tr_events *log = NULL;
    /* a step goes first where both want a core; of this thread only, which Linux allows */
    (void)setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), NICE);
    if (tr_events_open(t->events_path, 0, &log) == TR_OK) {
        tr_events_follow(log);
        work(t, log);
    } else {
        say(t, tr_error_text());
    }
    tr_events_close(log);
    tr_error_clear();
    pthread_mutex_lock(&t->lock);
    t->is_done = true;
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
    return NULL;
}

/* ---- open and close ---- */

static void release(struct tr_track *t)
{
    for (size_t i = 0; i < TR_COUNT_OF(t->text); i++)
        free(t->text[i]);
    pthread_cond_destroy(&t->changed);
    pthread_mutex_destroy(&t->lock);
    free(t);
}

static bool copy(struct tr_track *t, int i, const char *text, const char **out)
{
    t->text[i] = text ? strdup(text) : NULL;
    *out = t->text[i];
    return !text || t->text[i];
}

static const char *last_part(const char *path)
{
    const char *end = path + strlen(path);
    while (end > path && end[-1] == '/')
        end--;
    const char *from = end;
    while (from > path && from[-1] != '/')
        from--;
    return from;
}

/* The name of a run that the user has not named: the last part of its output directory. */
static void default_name(const char *output, char out[256])
{
    (void)snprintf(out, 256, "%s", last_part(output));
    for (size_t n = strlen(out); n > 0 && out[n - 1] == '/'; n--)
        out[n - 1] = 0;
    if (!tr_name_is_plain(out))
        (void)snprintf(out, 256, "run");
}

enum tr_status tr_track_open(const struct tr_track_options *opt, const char *events_path, const char *run_id,
                             int64_t total_steps, struct tr_track **out)
{
    enum tr_status st = TR_OK;
    sigset_t all, before;
    char name[256];
    struct tr_track *t = calloc(1, sizeof *t);
    *out = NULL;
    if (!t)
        return tr_fail(TR_NOMEM, "no memory for trackers");
    pthread_mutex_init(&t->lock, NULL);
    tr_cond_init(&t->changed);
    t->n_sinks = choose(opt, t->sink);
    if (t->n_sinks == 0) {
        release(t);
        return TR_OK;
    }
    default_name(opt->output, name);
    TR_TRY(tr_format(t->events_path, sizeof t->events_path, "%s", events_path));
    if (!copy(t, 0, run_id, &t->run.id) || !copy(t, 1, opt->run_name ? opt->run_name : name, &t->run.name) ||
        !copy(t, 2, opt->output, &t->run.output) || !copy(t, 3, opt->config, &t->run.config) ||
        !copy(t, 4, opt->metrics_file, &t->run.metrics_file))
        TR_TRY(tr_fail(TR_NOMEM, "no memory for trackers"));
    t->run.has_name = opt->run_name != NULL;
    t->run.first_step = opt->first_step;
    t->run.total_steps = total_steps;
    t->run.start_time = tr_clock_wall();
    sigfillset(&all); /* signals are the training thread's */
    pthread_sigmask(SIG_BLOCK, &all, &before);
    int err = pthread_create(&t->thread, NULL, run_thread, t);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (err)
        TR_TRY(tr_fail(TR_NOMEM, "no thread for trackers: %s", strerror(err)));
    *out = t;
out:
    if (st != TR_OK)
        release(t);
    return st;
}

bool tr_track_close(struct tr_track *t, struct tr_track_mail *last)
{
    int64_t until_us = tr_clock_us() + CLOSE_WAIT_S * INT64_C(1000000);
    int err = 0;
    if (!t)
        return true;
    pthread_mutex_lock(&t->lock);
    t->is_stopping = true;
    pthread_cond_broadcast(&t->changed);
    while (!t->is_done && err != ETIMEDOUT)
        err = tr_cond_wait_until(&t->changed, &t->lock, until_us);
    bool is_done = t->is_done;
    pthread_mutex_unlock(&t->lock);
    *last = (struct tr_track_mail){ .text = "" };
    (void)tr_track_take(t, last);
    if (!is_done) { /* a disk that does not answer; the thread ends with the process and may still use t */
        (void)pthread_detach(t->thread);
        return false;
    }
    (void)pthread_join(t->thread, NULL);
    release(t);
    return true;
}
