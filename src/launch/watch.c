/* watch.c - one generation of ranks: started together, watched by pidfd, ended together.
 *
 * Invariant: tr_group_run returns only when every rank that it started is dead and reaped. Each wait on the way has a
 * bound, except the one for healthy ranks. A rank that exits with "retry me" (75) usually follows the failure of
 * another rank, so such an exit becomes the root cause only when no better one appears within SETTLE_US.
 */
#include "base/host.h"
#include "launch/launch_impl.h"
#include <errno.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SECOND = 1000000, SETTLE_US = SECOND, GIVE_UP_US = 10 * SECOND, LOOK_US = SECOND, STOP_S = 300 };

static int64_t grace(int64_t us, int64_t seconds)
{
    return us > 0 ? us : seconds * SECOND;
}

static void signal_all(struct launch_job *j, int sig)
{
    for (int i = 0; i < j->l->n_ranks; i++)
        tr_rank_signal(&j->ranks[i], sig);
}

/* SIGCONT lets stopped ranks handle the signal too. */
static void request_stop(struct launch_job *j, int sig)
{
    signal_all(j, sig);
    signal_all(j, SIGCONT);
}

/* A stop request is idempotent: the first signal counts, and others change nothing, because a scheduler and a person
 * may both send one. Only Ctrl-C twice at a terminal, which the kernel sends (kill has another code), ends the ranks
 * now. */
static void on_signal(struct launch_job *j, int sig, bool is_ctrl_c)
{
    int64_t now = tr_clock_us();
    j->n_ctrl_c += is_ctrl_c;
    if (j->n_ctrl_c > 1)
        j->kill_us = now;
    if (j->n_signals++ > 0)
        return;
    j->stop_sig = sig == SIGINT ? SIGINT : SIGTERM;
    tr_report(j, "SIG%s: the ranks save and stop; Ctrl-C twice at a terminal, or SIGKILL, ends them without a save",
              sigabbrev_np(sig));
    if (j->root) /* the ranks are being stopped already */
        return;
    request_stop(j, j->stop_sig);
    j->kill_us = now + grace(sig == SIGINT ? 0 : j->l->stop_grace_us, STOP_S);
}

bool tr_signals_take(struct launch_job *j, int64_t wait_us)
{
    struct signalfd_siginfo si;
    struct pollfd p[2] = { { .fd = j->signal_fd, .events = POLLIN }, { .fd = tr_probe_fd(j), .events = POLLIN } };
    for (int64_t until = tr_clock_us() + wait_us; wait_us > 0; wait_us = until - tr_clock_us()) {
        int n = poll(p, 2, (int)((wait_us + 999) / 1000));
        tr_probe_serve(j);
        if (n < 0 || p[0].revents)
            break;
    }
    while (read(j->signal_fd, &si, sizeof si) == (ssize_t)sizeof si)
        on_signal(j, (int)si.ssi_signo, si.ssi_signo == SIGINT && si.ssi_code == SI_KERNEL);
    return j->n_signals > 0;
}

/* Of two ranks that end by SIGKILL, one of them by hand, the first is taken for the kernel's victim. */
static bool is_oom_kill(struct launch_job *j, const struct rank *r)
{
    if (r->sig != SIGKILL || r->is_killed || j->n_oom_kills == UINT64_MAX)
        return false;
    uint64_t now = tr_host_oom_kills("", NULL, 0);
    bool is_new = now != UINT64_MAX && now > j->n_oom_kills;
    j->n_oom_kills += is_new;
    return is_new;
}

/* As process 1 of a container the launcher is the parent of what a rank left behind. That is killed already; a tenth of
 * a second is the most that its end is waited for. */
static void reap_orphans(pid_t group)
{
    for (int i = 0; i < 100 && waitpid(-group, NULL, WNOHANG) >= 0; i++)
        usleep(1000);
}

static void reap(struct launch_job *j, struct rank *r)
{
    (void)tr_failpoint("launch.before_reap");
    kill(-r->pid, SIGKILL); /* processes that it left behind; safe because the pid cannot be reused before the wait */
    siginfo_t si = { 0 };
    while (waitid(P_PID, (id_t)r->pid, &si, WEXITED) != 0 && errno == EINTR)
        ;
    reap_orphans(r->pid);
    r->code = si.si_code == CLD_EXITED ? si.si_status : 0;
    r->sig = si.si_code == CLD_EXITED ? 0 : si.si_status;
    r->is_oom = is_oom_kill(j, r);
    r->order = ++j->n_ended;
    close(r->pidfd);
    r->pidfd = -1;
    j->n_running--;
    tr_tap_finish(j, r, &r->out);
    tr_tap_finish(j, r, &r->err);
    if (r->code == 0 && r->sig == 0 && !j->early_us)
        j->early_us = tr_clock_us() + grace(j->l->exit_grace_us, 5);
}

static bool is_failure(const struct launch_job *j, const struct rank *r)
{
    if (r->order == 0 || r->is_killed || (j->is_ordered && r->code != TR_EXIT_USAGE && r->code != TR_EXIT_STOP))
        return false;
    if (j->stop_sig && (r->code == TR_EXIT_RETRY || r->code == TR_EXIT_UNSAVED || r->sig == j->stop_sig))
        return false;
    return r->code != 0 || r->sig != 0;
}

static bool is_echo(const struct rank *r)
{
    return r->sig == 0 && r->code == TR_EXIT_RETRY;
}

/* The rank that failed first; ranks that only followed another failure come last. */
static const struct rank *first_failure(const struct launch_job *j)
{
    const struct rank *best = NULL;
    for (int i = 0; i < j->l->n_ranks; i++) {
        const struct rank *r = &j->ranks[i];
        if (!is_failure(j, r))
            continue;
        if (!best || is_echo(best) > is_echo(r) || (is_echo(best) == is_echo(r) && r->order < best->order))
            best = r;
    }
    return best;
}

bool tr_group_has_failure(const struct launch_job *j)
{
    return first_failure(j) != NULL;
}

static const struct rank *first_done(const struct launch_job *j)
{
    const struct rank *best = NULL;
    for (int i = 0; i < j->l->n_ranks; i++) {
        const struct rank *r = &j->ranks[i];
        if (r->order && r->code == 0 && r->sig == 0 && (!best || r->order < best->order))
            best = r;
    }
    return best;
}

static void report_root(struct launch_job *j)
{
    char how[256], log[TR_PATH_MAX + 64] = "";
    const struct rank *r = j->root;
    if (tr_hang_is_stop(j, r)) /* it has said so itself */
        return;
    if (r->log.fd >= 0 || (j->log_dir[0] && r->code != TR_EXIT_USAGE)) /* a run that was refused may leave no log */
        snprintf(log, sizeof log, "; its output is in %s/" TR_NAME_OF_RANK ".log", j->log_dir, r->rank);
    tr_report(j, "rank %d (pid %d) %s%s", r->rank, (int)r->pid, tr_ended_how(j, r, how, sizeof how), log);
    if (r->err.sink) /* its last lines were shown already */
        return;
    char line[1024];
    for (const char *p = tr_tail(r); *p;) {
        size_t n = strcspn(p, "\n");
        snprintf(line, sizeof line, "%.*s", (int)tr_min64((int64_t)n, 1000), p);
        tr_report(j, "  | %s", line);
        p += n + (p[n] == '\n');
    }
}

static void blame(struct launch_job *j, const struct rank *r)
{
    j->root = r;
    j->blamed_us = tr_clock_us();
    report_root(j);
    tr_nodes_failed(j);
    if (j->n_running == 0)
        return;
    request_stop(j, SIGTERM);
    j->kill_us = tr_clock_us() + grace(j->l->kill_grace_us, 2);
}

/* Carries out an order of the coordinator to end this generation. */
static void follow_order(struct launch_job *j, int64_t now)
{
    bool may_save = j->order == ORDER_SAVE;
    j->order = ORDER_NONE;
    if (j->root || ((j->is_ordered || j->stop_sig) && may_save)) /* the ranks save and stop already */
        return;
    j->is_ordered = true;
    request_stop(j, SIGTERM);
    j->kill_us = now + (may_save ? grace(j->l->stop_grace_us, STOP_S) : grace(j->l->kill_grace_us, 2));
}

/* Does what is due at this time. */
static void decide(struct launch_job *j, int64_t now)
{
    if (j->order != ORDER_NONE)
        follow_order(j, now);
    const struct rank *hung = j->root || j->stop_sig || j->is_ordered ? NULL : tr_hang_look(j, now);
    if (hung)
        blame(j, hung);
    if (!j->root) {
        const struct rank *r = first_failure(j);
        if (r && is_echo(r) && !j->settle_us)
            j->settle_us = now + SETTLE_US;
        if (r && (!is_echo(r) || now >= j->settle_us || j->n_running == 0)) {
            blame(j, r);
        } else if (!r && !j->stop_sig && j->n_running > 0 && j->early_us && now >= j->early_us) {
            j->is_early = !tr_hang_is_work_done(j);
            if (j->is_early)
                blame(j, first_done(j));
            else
                j->early_us = now + TR_LOOK_US;
        }
    }
    if (!j->kill_us || now < j->kill_us || j->n_running == 0 || j->give_up_us)
        return;
    for (int i = 0; i < j->l->n_ranks; i++)
        j->ranks[i].is_killed = j->ranks[i].pidfd >= 0;
    tr_report(j, "killing %d ranks that did not stop in time", j->n_running);
    signal_all(j, SIGKILL);
    j->give_up_us = now + GIVE_UP_US;
}

/* Time until the next thing that is due, in ms for poll; -1: nothing is due. */
static int poll_ms(const struct launch_job *j, int64_t now)
{
    int64_t until = INT64_MAX;
    const int64_t due[] = { j->root ? 0 : j->settle_us,
                            j->root || j->stop_sig ? 0 : j->early_us,
                            j->give_up_us ? 0 : j->kill_us,
                            j->give_up_us,
                            j->log_dir[0] && !j->has_log_dir ? now + LOOK_US : 0,
                            j->l->output && !j->root && !j->stop_sig ? now + TR_LOOK_US : 0,
                            tr_nodes_due_us(j) };
    for (size_t i = 0; i < TR_COUNT_OF(due); i++)
        if (due[i])
            until = tr_min64(until, due[i]);
    return until == INT64_MAX ? -1 : (int)tr_max64(0, (until - now + 999) / 1000);
}

static void wait_for_events(struct launch_job *j)
{
    int n = N_POLLS_FIXED;
    struct pollfd *p = j->polls;
    p[0] = (struct pollfd){ .fd = j->signal_fd, .events = POLLIN };
    p[1] = (struct pollfd){ .fd = j->out.held.n ? j->out.fd : -1, .events = POLLOUT };
    p[2] = (struct pollfd){ .fd = j->err.held.n ? j->err.fd : -1, .events = POLLOUT };
    p[3] = (struct pollfd){ .fd = tr_nodes_fd(j), .events = POLLIN };
    p[4] = (struct pollfd){ .fd = tr_probe_fd(j), .events = POLLIN };
    for (int i = 0; i < j->l->n_ranks; i++) {
        const struct rank *r = &j->ranks[i];
        p[n++] = (struct pollfd){ .fd = r->pidfd, .events = POLLIN };
        p[n++] = (struct pollfd){ .fd = tr_tap_is_open(&r->out) ? r->out.fd : -1, .events = POLLIN };
        p[n++] = (struct pollfd){ .fd = tr_tap_is_open(&r->err) ? r->err.fd : -1, .events = POLLIN };
        p[n++] = (struct pollfd){ .fd = tr_pmi_fd(j->pmi, i), .events = POLLIN };
    }
    if (poll(p, (nfds_t)n, poll_ms(j, tr_clock_us())) <= 0)
        return;
    tr_signals_take(j, 0);
    for (int i = 0; i < j->l->n_ranks; i++) {
        struct rank *r = &j->ranks[i];
        const struct pollfd *q = &p[N_POLLS_FIXED + i * N_POLLS_RANK];
        if (q[1].revents)
            tr_tap_read(j, r, &r->out);
        if (q[2].revents)
            tr_tap_read(j, r, &r->err);
        if (q[3].revents)
            tr_pmi_serve(j->pmi, i);
        if (q[0].revents)
            reap(j, r);
    }
    tr_sink_flush(&j->out);
    tr_sink_flush(&j->err);
}

/* Ends the ranks of a group that could not be started completely. */
static void end_all_now(struct launch_job *j)
{
    for (int i = 0; i < j->l->n_ranks; i++) {
        tr_rank_signal(&j->ranks[i], SIGKILL);
        j->ranks[i].is_killed = true;
        if (j->ranks[i].pidfd >= 0)
            reap(j, &j->ranks[i]);
    }
}

enum tr_status tr_group_run(struct launch_job *j)
{
    struct timespec begin = { 0 };
    clock_gettime(CLOCK_REALTIME_COARSE, &begin); /* the clock of file systems */
    j->root = NULL;
    j->is_early = j->is_ordered = false;
    j->order = ORDER_NONE;
    j->n_ended = 0;
    j->n_oom_kills = tr_host_oom_kills("", NULL, 0);
    j->settle_us = j->early_us = j->kill_us = j->give_up_us = 0;
    for (int i = 0; i < j->l->n_ranks; i++) {
        j->ranks[i].order = 0;
        tr_logs_place(j, &j->ranks[i], j->first_rank + i);
    }
    tr_hang_clear(j);
    if (j->pmi)
        tr_pmi_clear(j->pmi);
    for (int i = 0; i < j->l->n_ranks; i++) {
        enum tr_status st = tr_rank_spawn(j, &j->ranks[i]);
        st = st == TR_OK ? tr_failpoint("launch.spawned") : st;
        if (st != TR_OK) {
            end_all_now(j);
            return st;
        }
    }
    while (j->n_running > 0) {
        wait_for_events(j);
        tr_nodes_pump(j);
        tr_probe_serve(j);
        tr_logs_retry(j);
        int64_t now = tr_clock_us();
        decide(j, now);
        if (j->give_up_us && now >= j->give_up_us && j->n_running > 0)
            return tr_fail(TR_TIMEOUT,
                           "%d ranks survive SIGKILL: the kernel holds them, most likely in a call to a disk or "
                           "device that does not return; look at them with ps",
                           j->n_running);
    }
    if (j->pmi && j->root)
        (void)tr_shm_sweep("/dev/shm", begin);
    /* The files decide whether anything was lost, not the ranks: those that could tell may have been killed. */
    struct progress now = tr_progress_of(j->l->output);
    j->is_unsaved = now.step > now.checkpoint;
    return TR_OK;
}
