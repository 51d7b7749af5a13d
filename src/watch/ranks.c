/* ranks.c - every rank of a run, what it does and for how long, and which rank holds up the others (ranks.h). */
#include "watch/watch.h"
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

enum tr_status tr_ranks_open(const char *run, struct tr_ranks *out)
{
    struct tr_phase_page first;
    struct tr_ranks w = { .holder = -1 };
    if (!tr_dir_exists(run))
        return tr_fail(TR_USAGE, "%s: no such directory", run);
    if (!tr_phase_read(run, 0, &first))
        return tr_fail(TR_USAGE, "%s: no run that can be watched: " TR_NAME_PHASES "/" TR_NAME_OF_PHASE " is not there",
                       run, 0);
    if (first.world < 1 || first.world > TR_RANKS_MAX)
        return tr_fail(TR_USAGE, "%s/" TR_NAME_PHASES "/" TR_NAME_OF_PHASE ": %d ranks", run, 0, first.world);
    w.n = first.world;
    w.row = calloc((size_t)w.n, sizeof *w.row);
    w.sorted = calloc((size_t)w.n, sizeof *w.sorted);
    if (!w.row || !w.sorted) {
        tr_ranks_release(&w);
        return tr_fail(TR_NOMEM, "no memory to watch %d ranks", first.world);
    }
    *out = w;
    return TR_OK;
}

void tr_ranks_release(struct tr_ranks *w)
{
    free(w->row);
    free(w->sorted);
    *w = (struct tr_ranks){ .holder = -1 };
}

/* The median over ranks of the busy time of a step. */
static double median_of(const struct tr_ranks *w)
{
    for (int r = 0; r < w->n; r++)
        w->sorted[r] = w->row[r].busy_us;
    qsort(w->sorted, (size_t)w->n, sizeof *w->sorted, tr_by_double);
    return w->sorted[(w->n - 1) / 2];
}

/* When some ranks wait: the rank that waits for no peer and has not moved for the longest time; a dead rank first. */
static int holder_of(const struct tr_ranks *w)
{
    int holder = -1, n_waiting = 0;
    for (int r = 0; r < w->n; r++) {
        const struct tr_rank_row *p = &w->row[r];
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

static void read_page(const char *run, int r, struct tr_phase_page *out)
{
    if (!tr_phase_read(run, r, out)) /* not there yet, or gone again */
        *out = (struct tr_phase_page){ .rank = r, .place = TR_PLACE_NONE, .is_ended = 1 };
}

void tr_ranks_read(const char *run, struct tr_ranks *w)
{
    struct tr_phase_page page;
    char host[64] = "";
    (void)gethostname(host, sizeof host - 1);
    for (int r = 0; r < w->n; r++) {
        struct tr_rank_row *p = &w->row[r];
        read_page(run, r, &page);
        w->generation = r == 0 ? page.generation : w->generation;
        *p = (struct tr_rank_row){ .pid = page.pid,
                                   .kind = page.kind,
                                   .place = page.place,
                                   .is_ended = page.is_ended,
                                   .is_waiting = page.is_waiting,
                                   .step = page.step,
                                   .since_us = page.since_us,
                                   .n_slow = page.n_slow,
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

double tr_rank_seconds(const struct tr_ranks *w, int r)
{
    return w->is_here && w->row[r].is_alive ? (double)(tr_clock_us() - w->row[r].since_us) * 1e-6 : -1;
}

const char *tr_rank_state(const struct tr_ranks *w, int r)
{
    const struct tr_rank_row *p = &w->row[r];
    if (p->is_ended)
        return p->kind == TR_PHASE_END ? "done" : "failed";
    if (!p->is_alive)
        return "dead";
    return w->is_here && tr_process_state(p->pid) == 'T' ? "stopped" : p->is_waiting ? "waits" : "runs";
}

double tr_rank_score(const struct tr_ranks *w, int r)
{
    return w->median_us > 0 ? w->row[r].busy_us / w->median_us : 1;
}

bool tr_ranks_have_ended(const struct tr_ranks *w)
{
    for (int r = 0; r < w->n; r++)
        if (w->row[r].is_alive)
            return false;
    return true;
}
