/* launch.c - a job: generations of ranks until one succeeds, must not be repeated, or no restarts are left. */
#include "base/host.h"
#include "launch/launch_impl.h"
#include "observe/observe.h"
#include <errno.h>
#include <fcntl.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <unistd.h>

enum {
    DRAIN_US = 2 * 1000 * 1000,
    FILES_RANK = 8,
    FILES_OWN = 64
}; /* open files: streams, log, pidfd; own and nodes */

static enum tr_status check(const struct tr_launch *l)
{
    if (l->n_ranks < 1 || l->n_ranks > TR_LAUNCH_RANKS_MAX)
        return tr_fail(TR_USAGE, "%d ranks: the number must be 1 to %d; give --nproc-per-node", l->n_ranks,
                       TR_LAUNCH_RANKS_MAX);
    if (l->log_rank < 0 || (l->n_nodes_max <= 1 && l->log_rank >= l->n_ranks))
        return tr_fail(TR_USAGE, "log rank %d is not a rank of this job; give 0 to %d", l->log_rank, l->n_ranks - 1);
    return TR_OK;
}

static enum tr_status name_job(struct launch_job *j)
{
    unsigned char bits[16];
    if (getrandom(bits, sizeof bits, 0) != (ssize_t)sizeof bits)
        return tr_fail(TR_IO, "no random bytes for the id of the job: %s", strerror(errno));
    for (size_t i = 0; i < sizeof bits; i++)
        snprintf(j->id + 2 * i, 3, "%02x", bits[i]);
    if (gethostname(j->host, sizeof j->host) != 0)
        snprintf(j->host, sizeof j->host, "localhost");
    j->host[sizeof j->host - 1] = 0;
    return TR_OK;
}

/* A directory that the user has named is made before anything starts, so that a bad name ends the launch. */
static enum tr_status place_logs(struct launch_job *j)
{
    j->log_root = j->l->log_dir ? j->l->log_dir : j->l->output;
    j->log_beneath = j->l->log_dir ? "" : TR_NAME_LOGS "/";
    if (!j->l->log_dir)
        return j->l->output ? tr_path_join(j->log_dir, j->l->output, TR_NAME_LOGS) : TR_OK;
    enum tr_status st = tr_format(j->log_dir, sizeof j->log_dir, "%s", j->l->log_dir);
    j->has_log_dir = true;
    return st != TR_OK ? st : tr_mkdirs(j->log_dir);
}

static enum tr_status make_ranks(struct launch_job *j)
{
    size_t n = (size_t)j->l->n_ranks;
    TR_PASS(TR_ALLOC(j->ranks, n, "%d ranks", j->l->n_ranks));
    TR_PASS(TR_ALLOC(j->polls, N_POLLS_FIXED + N_POLLS_RANK * n, "%d ranks", j->l->n_ranks));
    for (int i = 0; i < j->l->n_ranks; i++) {
        struct rank *r = &j->ranks[i];
        r->rank = i;
        r->pidfd = r->out.fd = r->err.fd = r->log.fd = -1;
        r->err.is_err = true;
    }
    return TR_OK;
}

static enum tr_status take_signals(struct launch_job *j)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGHUP);
    sigaddset(&set, SIGUSR1);
    j->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (j->signal_fd < 0)
        return tr_fail(TR_IO, "no signal descriptor: %s", strerror(errno));
    struct sigaction ignore = { .sa_handler = SIG_IGN };
    sigaction(SIGPIPE, &ignore,
              &j->old_pipe); /* a closed output must not end the launcher, because its ranks need it */
    sigprocmask(SIG_BLOCK, &set, &j->old_mask);
    return TR_OK;
}

/* Where the process ends with the job, stop signals stay blocked: a late one must not replace the exit code. */
static void give_signals_back(const struct launch_job *j)
{
    close(j->signal_fd);
    if (!j->l->is_last)
        sigprocmask(SIG_SETMASK, &j->old_mask, NULL);
    sigaction(SIGPIPE, &j->old_pipe, NULL);
}

static int exit_code_of(const struct rank *r)
{
    bool is_known = r->sig == 0 && (r->code == TR_EXIT_NO || r->code == TR_EXIT_USAGE || r->code == TR_EXIT_RETRY ||
                                    r->code == TR_EXIT_STOP || r->code == TR_EXIT_UNSAVED);
    return is_known ? r->code : TR_EXIT_BUG;
}

int tr_stop_exit_code(const struct launch_job *j)
{
    return j->is_unsaved ? TR_EXIT_UNSAVED : TR_EXIT_RETRY;
}

/* No rank failed: the job is done, or was stopped on request. */
int tr_quiet_exit_code(const struct launch_job *j)
{
    for (int i = 0; i < j->l->n_ranks; i++)
        if (j->ranks[i].code != 0 || j->ranks[i].sig != 0)
            return tr_stop_exit_code(j);
    return 0;
}

/* Judges the end of a generation; true: another one follows. */
static bool is_repeated(struct launch_job *j, struct policy *p, struct tr_launch_end *end)
{
    const struct tr_launch *l = j->l;
    struct progress now = tr_progress_of(l->output);
    bool is_oom = j->root && j->root->is_oom; /* its own failure: the same again needs the same memory again */
    struct verdict v = tr_policy_judge(p, end->exit_code, is_oom ? 0 : end->sig, l->output != NULL, now);
    end->exit_code = v.exit_code;
    if (v.is_crash_loop)
        tr_report(j, "%d restarts without progress after step %" PRId64 ": not restarted again; do not requeue the job",
                  p->n_stuck, tr_max64(now.step, 0));
    if (!v.restart)
        return false;
    tr_report(j, "restart %d of at most %d, %.2f s after the failure; step %" PRId64 ", checkpoint %" PRId64,
              p->n_restarts, l->max_restarts, (double)(tr_clock_us() - j->blamed_us) * 1e-6, tr_max64(now.step, 0),
              tr_max64(now.checkpoint, 0));
    if (j->n_signals == 0 && !tr_signals_take(j, v.wait_us))
        return true;
    end->exit_code = tr_stop_exit_code(j);
    return false;
}

static enum tr_status run_generations(struct launch_job *j, struct tr_launch_end *end)
{
    struct policy policy;
    tr_policy_init(&policy, j->l->max_restarts, tr_progress_of(j->l->output));
    for (;; j->generation++) {
        TR_PASS(tr_failpoint("launch.before_start"));
        TR_PASS(tr_group_run(j));
        TR_PASS(tr_failpoint("launch.after_end"));
        end->n_restarts = policy.n_restarts;
        end->rank = j->root ? j->root->rank : -1;
        end->code = j->root ? j->root->code : 0;
        end->sig = j->root ? j->root->sig : 0;
        end->exit_code = j->root ? exit_code_of(j->root) : tr_quiet_exit_code(j);
        if (j->root && tr_hang_text(j))
            end->exit_code = TR_EXIT_RETRY;
        if (!j->root)
            break;
        tr_record_root(j, end->exit_code);
        if (!is_repeated(j, &policy, end))
            break;
        end->n_restarts = policy.n_restarts;
    }
    return TR_OK;
}

static struct text_sink sink_of(int fd)
{
    return (struct text_sink){ .fd = fd, .is_term = isatty(fd) == 1, .has_bars = tr_term_detect(fd).is_live };
}

enum tr_status tr_launch_run(const struct tr_launch *l, struct tr_launch_end *end)
{
    enum tr_status st = check(l);
    if (st != TR_OK)
        return st;
    struct tr_launch_end how = { .exit_code = TR_EXIT_BUG, .rank = -1 };
    struct launch_job j = { .l = l, .n_world = l->n_ranks, .out = sink_of(l->out_fd), .err = sink_of(l->err_fd) };
    TR_TRY(tr_host_files((uint64_t)l->n_ranks * FILES_RANK + FILES_OWN));
    TR_TRY(name_job(&j));
    TR_TRY(place_logs(&j));
    TR_TRY(make_ranks(&j));
    TR_TRY(tr_hang_open(l->n_ranks, &j.hang));
    tr_cores_find(&j);
    if (l->has_mpi || l->n_nodes_max > 1)
        TR_TRY(tr_pmi_open(l->n_ranks, j.id, &j.pmi));
    TR_TRY(tr_probe_open(&j));
    TR_TRY(take_signals(&j));
    st = l->n_nodes_max > 1 ? tr_nodes_open(&j) : TR_OK;
    if (st == TR_OK)
        st = j.nodes ? tr_nodes_run(&j, &how) : run_generations(&j, &how);
    tr_logs_close(&j, how.exit_code != TR_EXIT_USAGE);
    tr_sink_drain(&j.out, DRAIN_US);
    tr_sink_drain(&j.err, DRAIN_US);
    give_signals_back(&j);
    how.has_lost_output = j.out.has_lost;
    if (st == TR_OK)
        *end = how;
out:
    tr_str_release(&j.out.held);
    tr_str_release(&j.err.held);
    tr_nodes_close(&j);
    tr_probe_close(&j);
    tr_pmi_close(j.pmi);
    tr_hang_close(j.hang);
    free(j.ranks);
    free(j.polls);
    return st;
}
