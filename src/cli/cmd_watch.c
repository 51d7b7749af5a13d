/* cmd_watch.c - watch: every rank of a run, what it does and for how long, and which rank holds up the others. Reads
 * files of the run only, so it works on a run of another user, running or dead. The number of ranks is what a page
 * says, so a rank costs a row of the table and not a page: one page is in memory at a time. */
#include "cli/cli.h"
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { RANKS_MAX = 1 << 16, REDRAW_US = 500 * 1000 };

struct watch_row { /* of a rank: what of its page is shown */
    int pid, kind, place;
    bool is_ended, is_waiting, is_alive;
    int64_t step, since_us;
    double busy_us;
    uint64_t n_collectives;
    char host[64], site[TR_PHASE_SITE];
};

struct watch {
    const char *run;
    struct watch_row *row;
    double *busy_us; /* sorted */
    int n, holder;   /* the rank that holds up the others; -1: none */
    double median_us;
    bool is_here; /* all ranks run on this host */
};

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median over ranks of the busy time of a step. */
static double median_of(const struct watch *w)
{
    for (int r = 0; r < w->n; r++)
        w->busy_us[r] = w->row[r].busy_us;
    qsort(w->busy_us, (size_t)w->n, sizeof *w->busy_us, by_value);
    return w->busy_us[(w->n - 1) / 2];
}

/* When some ranks wait: the rank that waits for no peer and has not moved for the longest time; a dead rank first. */
static int holder_of(const struct watch *w)
{
    int holder = -1, n_waiting = 0;
    for (int r = 0; r < w->n; r++) {
        const struct watch_row *p = &w->row[r];
        if (p->is_ended)
            continue;
        if (!p->is_alive)
            return r;
        bool is_stopped = w->is_here && tr_process_state(p->pid) == 'T';
        n_waiting += p->is_waiting && !is_stopped;
        if ((!p->is_waiting || is_stopped) && (holder < 0 || p->since_us < w->row[holder].since_us))
            holder = r;
    }
    return n_waiting ? holder : -1;
}

static void read_page(const struct watch *w, int r, struct tr_phase_page *out)
{
    if (!tr_phase_read(w->run, r, out)) /* not there yet, or gone again */
        *out = (struct tr_phase_page){ .rank = r, .place = TR_PLACE_NONE, .is_ended = 1 };
}

static void read_all(struct watch *w)
{
    struct tr_phase_page page;
    char host[64] = "";
    (void)gethostname(host, sizeof host - 1);
    for (int r = 0; r < w->n; r++) {
        struct watch_row *p = &w->row[r];
        read_page(w, r, &page);
        *p = (struct watch_row){ .pid = page.pid,
                                 .kind = page.kind,
                                 .place = page.place,
                                 .is_ended = page.is_ended,
                                 .is_waiting = page.is_waiting,
                                 .step = page.step,
                                 .since_us = page.since_us,
                                 .busy_us = page.busy_us,
                                 .n_collectives = page.n_collectives };
        memcpy(p->host, page.host, sizeof p->host);
        memcpy(p->site, page.site, sizeof p->site);
        bool is_here = strcmp(p->host, host) == 0;
        w->is_here = is_here && (r == 0 || w->is_here);
        /* a process of another host cannot be tested: taken to be alive */
        p->is_alive = !p->is_ended && (!is_here || (p->pid && (kill(p->pid, 0) == 0 || errno == EPERM)));
    }
    w->median_us = median_of(w);
    w->holder = holder_of(w);
}

/* Seconds that a rank has been in its current action; -1: not known (it is dead, or on another host). */
static double seconds_in(const struct watch *w, int r)
{
    return w->is_here && w->row[r].is_alive ? (double)(tr_clock_us() - w->row[r].since_us) * 1e-6 : -1;
}

static const char *state_of(const struct watch *w, int r)
{
    const struct watch_row *p = &w->row[r];
    if (p->is_ended)
        return p->kind == TR_PHASE_END ? "done" : "failed";
    if (!p->is_alive)
        return "dead";
    return w->is_here && tr_process_state(p->pid) == 'T' ? "stopped" : p->is_waiting ? "waits" : "runs";
}

static double score(const struct watch *w, int r)
{
    return w->median_us > 0 ? w->row[r].busy_us / w->median_us : 1;
}

static void add_text(const struct watch *w, struct tr_str *out)
{
    char where[64], host[128], site[2 * TR_PHASE_SITE];
    tr_str_addf(out, "%5s %8s %10s  %-7s %9s %6s  %s\n", "rank", "pid", "step", "state", "seconds", "score", "action");
    for (int r = 0; r < w->n; r++) {
        const struct watch_row *p = &w->row[r];
        double s = seconds_in(w, r);
        tr_str_addf(out, "%5d %8d %10" PRId64 "  %-7s ", r, p->pid, p->step, state_of(w, r));
        if (s < 0)
            tr_str_addf(out, "%9s", "");
        else
            tr_str_addf(out, "%9.2f", s);
        tr_str_addf(out, " %6.2f  %s", score(w, r), tr_phase_text(p->kind, p->place, where, sizeof where));
        if (p->is_waiting)
            tr_str_addf(out, ", collective %" PRIu64 " %s", p->n_collectives, tr_escape(p->site, site, sizeof site));
        if (!w->is_here)
            tr_str_addf(out, " on %s", tr_escape(p->host, host, sizeof host));
        tr_str_addf(out, "\n");
    }
    if (w->holder >= 0)
        tr_str_addf(out, "rank %d holds the others: %s\n", w->holder,
                    tr_phase_text(w->row[w->holder].kind, w->row[w->holder].place, where, sizeof where));
}

static void add_json(const struct watch *w, struct tr_str *out)
{
    struct tr_phase_page page;
    tr_str_addf(out, "{\"run\": ");
    tr_str_json(out, w->run);
    tr_str_addf(out, ", \"holder\": %d, \"ranks\": [", w->holder);
    for (int r = 0; r < w->n; r++) {
        double s = seconds_in(w, r);
        tr_str_addf(out, "%s{\"state\": \"%s\", \"score\": %.3f, \"seconds\": ", r ? ", " : "", state_of(w, r),
                    score(w, r));
        if (s < 0)
            tr_str_addf(out, "null");
        else
            tr_str_addf(out, "%.3f", s);
        tr_str_addf(out, ", \"at\": ");
        read_page(w, r, &page);
        tr_phase_json(&page, out);
        tr_str_addf(out, "}");
    }
    tr_str_addf(out, "]}\n");
}

static bool has_ended(const struct watch *w)
{
    for (int r = 0; r < w->n; r++)
        if (w->row[r].is_alive)
            return false;
    return true;
}

static void show(struct watch *w, bool is_json)
{
    bool is_live = !is_json && tr_term_detect(STDOUT_FILENO).is_live;
    do {
        struct tr_str out = { 0 };
        read_all(w);
        if (is_live)
            cli_clear();
        (is_json ? add_json : add_text)(w, &out);
        if (tr_str_ok(&out))
            cli_print(out.p);
        tr_str_release(&out);
        if (is_live && !has_ended(w))
            usleep(REDRAW_US);
    } while (is_live && !has_ended(w));
}

enum tr_status cmd_watch(const struct tr_config *cfg)
{
    enum tr_status st = TR_OK;
    struct watch w = { .run = cfg->args.n == 1 ? cfg->args.item[0] : cfg->output };
    struct tr_phase_page first;
    if (!w.run || cfg->args.n > 1)
        return tr_verb_misused(TR_VERB_WATCH);
    if (!tr_phase_read(w.run, 0, &first))
        return tr_fail(TR_USAGE, "%s: no run that can be watched: " TR_NAME_PHASES "/" TR_NAME_OF_PHASE " is not there",
                       w.run, 0);
    if (first.world < 1 || first.world > RANKS_MAX)
        return tr_fail(TR_USAGE, "%s/" TR_NAME_PHASES "/" TR_NAME_OF_PHASE ": %d ranks", w.run, 0, first.world);
    w.n = first.world;
    w.row = calloc((size_t)w.n, sizeof *w.row);
    w.busy_us = calloc((size_t)w.n, sizeof *w.busy_us);
    if (w.row && w.busy_us)
        show(&w, cfg->json);
    else
        st = tr_fail(TR_NOMEM, "no memory to watch %d ranks", w.n);
    free(w.row);
    free(w.busy_us);
    return st;
}
