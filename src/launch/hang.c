/* hang.c - the watchdog: reads the phase pages of the ranks (base/phase.h) and reports which one hangs, and in what
 * phase.
 *
 * A rank hangs when it waits for no other rank and has not moved within the bound of its phase (tr_phase_bound), or
 * when a signal has stopped it for TR_STOPPED_LAUNCHER_US. Only time in which the launcher itself ran is counted, in
 * looks of at most LOOK_MAX_US, so that a job stopped as a whole, or a host that slept, goes on. Time in which a rank
 * waits for a core is not counted beyond three times the time that it ran, so that a rank without a core is not blamed.
 * A rank that was stopped for less, or took far longer than its p99, is reported and left alone (faults A16, A18). A
 * rank in the phase `end` has done its work and gives back what it holds; other ranks may end before it.
 * Rejected: a query to the ranks (a rank that hangs does not reply).
 */
#include "launch/launch_impl.h"
#include "observe/observe.h"
#include <sys/syscall.h>
#include <unistd.h>

enum {
    SECOND_US = 1000000,
    LOOK_MAX_US = SECOND_US / 5,
    QUIET_US = SECOND_US,       /* from here on, look whether the rank gets a core at all */
    REPORT_US = 10 * SECOND_US, /* at most one line about a slow rank in this time, per rank */
};

struct watched {
    bool has_page;
    uint64_t n_moves;
    int64_t quiet_us, stopped_us; /* time in which it was seen so */
    struct tr_cores_us cores;     /* once it was quiet for QUIET_US */
    int64_t n_slow, reported_us;
    int kind, place; /* the phase in which it was stopped */
};

struct hang {
    struct tr_phase_page page; /* of the rank that is being looked at */
    int64_t looked_us;
    char text[256];            /* describes the rank that hangs */
    struct tr_phase_page hung; /* its page at that time: once woken it may go on */
    struct watched ranks[];
};

enum tr_status tr_hang_open(int n_ranks, struct hang **out)
{
    *out = calloc(1, sizeof **out + (size_t)n_ranks * sizeof(struct watched));
    return *out ? TR_OK : tr_fail(TR_NOMEM, "no memory to watch %d ranks", n_ranks);
}

void tr_hang_close(struct hang *h)
{
    free(h);
}

void tr_hang_clear(struct launch_job *j)
{
    j->hang->looked_us = 0;
    j->hang->text[0] = 0;
    memset(j->hang->ranks, 0, (size_t)j->l->n_ranks * sizeof *j->hang->ranks);
}

/* Reads the page of a rank; false if there is none, or if it is from a process of an older generation. */
static bool read_page(struct launch_job *j, const struct rank *r)
{
    return j->l->output && tr_phase_read(j->l->output, r->rank, &j->hang->page) && j->hang->page.pid == (int)r->pid;
}

static void report_slow(struct launch_job *j, const struct rank *r, int64_t step, const char *where, const char *what)
{
    char cause[320];
    snprintf(cause, sizeof cause, "step %" PRId64 ": %s", step, what);
    tr_report(j, "rank %d (pid %d) is slow: %s", r->rank, (int)r->pid, cause);
    tr_record_event(j, r->rank, where, "goes on", cause);
}

static void look_for_straggler(struct launch_job *j, const struct rank *r, struct watched *w, int64_t was_stopped_us,
                               int64_t now)
{
    char what[192], where[64];
    const struct tr_phase_page *p = &j->hang->page;
    bool is_slow = p->n_slow > w->n_slow;
    if (was_stopped_us >= LOOK_MAX_US / 4)
        snprintf(what, sizeof what, "a signal stopped it for about %.1f s in %s", (double)was_stopped_us * 1e-6,
                 tr_phase_text(w->kind, w->place, where, sizeof where));
    else if (is_slow)
        snprintf(what, sizeof what, "%s took %.2f s, 99 of 100 take %.3f s",
                 tr_phase_text(p->slow_kind, p->slow_place, where, sizeof where), (double)p->slow_us * 1e-6,
                 (double)p->slow_p99_us * 1e-6);
    else
        return;
    w->n_slow = p->n_slow;
    if (w->reported_us && now - w->reported_us < REPORT_US && was_stopped_us < LOOK_MAX_US / 4)
        return;
    w->reported_us = now;
    report_slow(j, r, is_slow ? p->slow_step : p->step, where, what);
}

/* The part of passed_us for which a quiet rank is responsible. */
static int64_t own_time(struct watched *w, int pid, int64_t passed_us)
{
    if (w->quiet_us < QUIET_US)
        return passed_us;
    struct tr_cores_us was = w->cores;
    w->cores = tr_process_cores(pid);
    if (was.ran + was.queued == 0) /* the first time */
        return passed_us;
    int64_t ran = tr_max64(w->cores.ran - was.ran, 0), queued = tr_max64(w->cores.queued - was.queued, 0);
    return tr_min64(passed_us, tr_max64(passed_us - queued, 0) + 3 * ran);
}

static bool is_hanging(struct launch_job *j, const struct rank *r, struct watched *w, int64_t passed_us, int64_t now)
{
    struct hang *h = j->hang;
    bool is_stopped = tr_process_state((int)r->pid) == 'T'; /* not 't': a stop by a debugger is no failure */
    int64_t was_stopped_us = is_stopped ? 0 : w->stopped_us;
    char where[64];
    w->stopped_us = is_stopped ? w->stopped_us + passed_us : 0;
    if (!read_page(j, r)) { /* it has not begun its first phase */
        if (w->stopped_us < TR_STOPPED_LAUNCHER_US)
            return false;
        h->page = (struct tr_phase_page){ 0 };
        snprintf(h->text, sizeof h->text, "hangs: stopped by a signal for %.1f s before its first phase",
                 (double)w->stopped_us * 1e-6);
        return true;
    }
    const struct tr_phase_page *p = &h->page;
    bool is_same = w->has_page && w->n_moves == p->n_moves && !p->is_waiting && !p->is_ended;
    if (!w->has_page)
        w->n_slow = p->n_slow;
    w->has_page = true;
    w->n_moves = p->n_moves;
    if (!is_same)
        w->cores = (struct tr_cores_us){ 0 };
    w->quiet_us = is_same ? w->quiet_us + own_time(w, (int)r->pid, passed_us) : 0;
    if (is_stopped) {
        w->kind = p->kind;
        w->place = p->place;
    }
    look_for_straggler(j, r, w, was_stopped_us, now);
    /* When a rank has failed because of this one, it has waited long enough already. */
    int64_t most_us = tr_group_has_failure(j) ? SECOND_US : INT64_MAX;
    tr_phase_text(p->kind, p->place, where, sizeof where);
    if (w->stopped_us >= tr_min64(TR_STOPPED_LAUNCHER_US, most_us))
        snprintf(h->text, sizeof h->text, "hangs: stopped by a signal for %.1f s in %s, step %" PRId64 "%s%s",
                 (double)w->stopped_us * 1e-6, where, p->step, p->is_waiting ? ", in collective " : "",
                 p->is_waiting ? p->site : "");
    else if (w->quiet_us >= tr_min64(tr_phase_bound(p), most_us))
        snprintf(h->text, sizeof h->text, "hangs: %.1f s in %s, step %" PRId64 ", where 99 of 100 take %.3f s",
                 (double)w->quiet_us * 1e-6, where, p->step, (double)tr_phase_p99(p, p->kind) * 1e-6);
    else
        return false;
    return true;
}

const struct rank *tr_hang_look(struct launch_job *j, int64_t now)
{
    struct hang *h = j->hang;
    int64_t passed_us = h->looked_us ? tr_min64(now - h->looked_us, LOOK_MAX_US) : 0;
    if (!j->l->output || (h->looked_us && passed_us < TR_LOOK_US / 2))
        return NULL;
    h->looked_us = now;
    for (int i = 0; i < j->l->n_ranks; i++) {
        const struct rank *r = &j->ranks[i];
        if (r->pidfd < 0 || !is_hanging(j, r, &h->ranks[i], passed_us, now))
            continue;
        /* SIGUSR2 writes its stack to errors/rank-NNNN.stack; the main thread is the one that the page describes. */
        h->hung = h->page;
        (void)syscall(SYS_tgkill, (int)r->pid, (int)r->pid, SIGUSR2);
        return r;
    }
    return NULL;
}

bool tr_hang_is_work_done(struct launch_job *j)
{
    for (int i = 0; i < j->l->n_ranks; i++) {
        const struct rank *r = &j->ranks[i];
        if (r->pidfd >= 0 && (!read_page(j, r) || j->hang->page.kind != TR_PHASE_END))
            return false;
    }
    return true;
}

/* A rank that stopped on a signal or a request has reached its last phase, and says so with its exit code too. One that
 * was named as hung and ended by the launcher's own signal looks the same, and is a fault. */
bool tr_hang_is_stop(struct launch_job *j, const struct rank *r)
{
    bool is_hung = r == j->root && j->hang->text[0];
    return !is_hung && r->sig == 0 && (r->code == TR_EXIT_RETRY || r->code == TR_EXIT_STOP) && read_page(j, r) &&
           j->hang->page.kind == TR_PHASE_END;
}

const char *tr_hang_text(const struct launch_job *j)
{
    return j->hang->text[0] ? j->hang->text : NULL;
}

int64_t tr_hang_step(struct launch_job *j, const struct rank *r)
{
    return r->pidfd >= 0 && read_page(j, r) ? j->hang->page.step : -1;
}

void tr_hang_where(struct launch_job *j, const struct rank *r, struct tr_str *out)
{
    char where[64];
    bool is_hung = r == j->root && j->hang->text[0];
    if (!is_hung && !read_page(j, r)) {
        tr_str_addf(out, "\"phase\": \"run\", \"step\": null, \"collective\": null");
        return;
    }
    const struct tr_phase_page *p = is_hung ? &j->hang->hung : &j->hang->page;
    tr_str_addf(out, "\"phase\": \"%s\", \"step\": %" PRId64 ", \"collective\": ",
                tr_phase_text(p->kind, p->place, where, sizeof where), p->step);
    tr_str_json(out, p->site);
}

void tr_hang_flight(struct launch_job *j, struct tr_str *out)
{
    for (int i = 0; i < j->l->n_ranks; i++)
        if (read_page(j, &j->ranks[i])) {
            tr_phase_json(&j->hang->page, out);
            tr_str_addf(out, "\n");
        }
}
