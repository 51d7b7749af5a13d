/* cmd_watch.c - watch: every rank of a run, what it does and for how long, and which rank holds up the others. Reads
 * files of the run only, so it works on a run of another user, running or dead. */
#include "cli/cli.h"
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { RANKS_MAX = 1 << 16, REDRAW_US = 500 * 1000 };

struct watch {
    const char *run;
    struct tr_phase_page *page;
    bool *is_alive;
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
        w->busy_us[r] = w->page[r].busy_us;
    qsort(w->busy_us, (size_t)w->n, sizeof *w->busy_us, by_value);
    return w->busy_us[(w->n - 1) / 2];
}

/* When some ranks wait: the rank that waits for no peer and has not moved for the longest time; a dead rank first. */
static int holder_of(const struct watch *w)
{
    int holder = -1, n_waiting = 0;
    for (int r = 0; r < w->n; r++) {
        const struct tr_phase_page *p = &w->page[r];
        if (p->is_ended)
            continue;
        if (!w->is_alive[r])
            return r;
        bool is_stopped = w->is_here && tr_process_state(p->pid) == 'T';
        n_waiting += p->is_waiting && !is_stopped;
        if ((!p->is_waiting || is_stopped) && (holder < 0 || p->since_us < w->page[holder].since_us))
            holder = r;
    }
    return n_waiting ? holder : -1;
}

static enum tr_status read_all(struct watch *w)
{
    char host[64] = "";
    (void)gethostname(host, sizeof host - 1);
    for (int r = 0; r < w->n; r++) {
        struct tr_phase_page *p = &w->page[r];
        if (!tr_phase_read(w->run, r, p)) /* not there yet, or gone again */
            *p = (struct tr_phase_page){ .rank = r, .place = TR_PLACE_NONE, .is_ended = 1 };
        w->is_here = r == 0 ? strcmp(p->host, host) == 0 : w->is_here && strcmp(p->host, host) == 0;
        w->is_alive[r] = p->pid && !p->is_ended && (kill(p->pid, 0) == 0 || errno == EPERM);
        w->is_alive[r] = w->is_alive[r] ||
                         (!p->is_ended && strcmp(p->host, host) !=
                                              0); /* a process of another host cannot be tested: taken to be alive */
    }
    w->median_us = median_of(w);
    w->holder = holder_of(w);
    return TR_OK;
}

/* Seconds that a rank has been in its current action; -1: not known (it is dead, or on another host). */
static double seconds_in(const struct watch *w, int r)
{
    return w->is_here && w->is_alive[r] ? (double)(tr_clock_us() - w->page[r].since_us) * 1e-6 : -1;
}

static const char *state_of(const struct watch *w, int r)
{
    const struct tr_phase_page *p = &w->page[r];
    if (p->is_ended)
        return p->kind == TR_PHASE_END ? "done" : "failed";
    if (!w->is_alive[r])
        return "dead";
    return w->is_here && tr_process_state(p->pid) == 'T' ? "stopped" : p->is_waiting ? "waits" : "runs";
}

static double score(const struct watch *w, int r)
{
    return w->median_us > 0 ? w->page[r].busy_us / w->median_us : 1;
}

static void add_text(const struct watch *w, struct tr_str *out)
{
    char where[64], host[128], site[2 * TR_PHASE_SITE];
    tr_str_addf(out, "%5s %8s %10s  %-7s %9s %6s  %s\n", "rank", "pid", "step", "state", "seconds", "score", "action");
    for (int r = 0; r < w->n; r++) {
        const struct tr_phase_page *p = &w->page[r];
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
                    tr_phase_text(w->page[w->holder].kind, w->page[w->holder].place, where, sizeof where));
}

static void add_json(const struct watch *w, struct tr_str *out)
{
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
        tr_phase_json(&w->page[r], out);
        tr_str_addf(out, "}");
    }
    tr_str_addf(out, "]}\n");
}

static bool has_ended(const struct watch *w)
{
    for (int r = 0; r < w->n; r++)
        if (w->is_alive[r])
            return false;
    return true;
}

static enum tr_status show(struct watch *w, bool is_json)
{
    enum tr_status st = TR_OK;
    bool is_live = !is_json && tr_term_detect(STDOUT_FILENO).is_live;
    do {
        struct tr_str out = { 0 };
        TR_TRY(read_all(w));
        if (is_live)
            cli_clear();
        (is_json ? add_json : add_text)(w, &out);
        if (tr_str_ok(&out))
            cli_print(out.p);
        tr_str_release(&out);
        if (is_live && !has_ended(w))
            usleep(REDRAW_US);
    } while (is_live && !has_ended(w));
out:
    return st;
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
    size_t n = (size_t)first.world;
    w.page = calloc(n, sizeof *w.page);
    w.is_alive = calloc(n, sizeof *w.is_alive);
    w.busy_us = calloc(n, sizeof *w.busy_us);
    st =
        w.page && w.is_alive && w.busy_us ? show(&w, cfg->json) : tr_fail(TR_NOMEM, "no memory to watch %d ranks", w.n);
    free(w.page);
    free(w.is_alive);
    free(w.busy_us);
    return st;
}
