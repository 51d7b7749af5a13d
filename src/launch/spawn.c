/* spawn.c - starts one rank: environment, cores, output, and a signal that ends it when the launcher dies.
 *
 * Each rank leads a session of its own: Ctrl-C reaches only the launcher, which passes it on once, and a signal to the
 * group reaches every process that the rank has started. Rejected: posix_spawn (no parent-death signal, no affinity).
 */
#include "launch/launch_impl.h"
#include <errno.h>
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PMI_FD = 3 }; /* the descriptor in a rank */

/* Variables that a rank gets from this launcher or not at all. */
static const char *const own_names[] = {
    "RANK",   "LOCAL_RANK",    "WORLD_SIZE", "LOCAL_WORLD_SIZE",        "MASTER_ADDR", "MASTER_PORT",
    "TR_JOB", "TR_GENERATION", "TR_MEET",    "TORCHELASTIC_ERROR_FILE", "PMI_RANK",    "PMI_SIZE",
    "PMI_FD", "PMI_PORT",      "PMI_ID",     "OMPI_COMM_WORLD_RANK",
};

static bool is_own(const char *entry)
{
    for (size_t i = 0; i < TR_COUNT_OF(own_names); i++) {
        size_t n = strlen(own_names[i]);
        if (strncmp(entry, own_names[i], n) == 0 && entry[n] == '=')
            return true;
    }
    return false;
}

static char *entry_of(const char *name, const char *value)
{
    size_t n = strlen(name) + strlen(value) + 2;
    char *p = malloc(n);
    if (p)
        snprintf(p, n, "%s=%s", name, value);
    return p;
}

enum tr_status tr_launch_env(char *const *envp, const struct tr_launch_place *at, const char *job, int generation,
                             int threads, bool has_mpi, char ***out)
{
    char text[7][16];
    const struct {
        const char *name, *value;
    } added[] = {
        { "RANK", text[0] },
        { "LOCAL_RANK", text[5] },
        { "WORLD_SIZE", text[1] },
        { "TR_JOB", job },
        { "TR_GENERATION", text[2] },
        { "LOCAL_WORLD_SIZE", text[6] },
        { "TRIREME_THREADS", text[3] },
    };
    static const char *const pmi_names[] = { "PMI_FD", "PMI_RANK", "PMI_SIZE" };
    const char *const pmi_values[] = { text[4], text[0], text[1] };
    snprintf(text[0], sizeof text[0], "%d", at->rank);
    snprintf(text[1], sizeof text[1], "%d", at->n_ranks);
    snprintf(text[5], sizeof text[5], "%d", at->local_rank);
    snprintf(text[6], sizeof text[6], "%d", at->n_local);
    snprintf(text[2], sizeof text[2], "%d", generation);
    snprintf(text[3], sizeof text[3], "%d", threads);
    snprintf(text[4], sizeof text[4], "%d", PMI_FD);

    size_t n = 0, n_envp = 0, n_added = TR_COUNT_OF(added) - (threads > 0 ? 0 : 1);
    while (envp && envp[n_envp])
        n_envp++;
    char **env = calloc(n_envp + n_added + TR_COUNT_OF(pmi_names) + 2, sizeof *env);
    bool is_ok = env != NULL;
    for (size_t i = 0; is_ok && i < n_envp; i++)
        if (!is_own(envp[i]) && !(threads > 0 && strncmp(envp[i], "TRIREME_THREADS=", 16) == 0))
            is_ok = (env[n++] = strdup(envp[i])) != NULL;
    for (size_t i = 0; is_ok && i < n_added; i++)
        is_ok = (env[n++] = entry_of(added[i].name, added[i].value)) != NULL;
    if (is_ok && at->secret)
        is_ok = (env[n++] = entry_of("TR_MEET", at->secret)) != NULL;
    for (size_t i = 0; is_ok && has_mpi && i < TR_COUNT_OF(pmi_names); i++)
        is_ok = (env[n++] = entry_of(pmi_names[i], pmi_values[i])) != NULL;
    if (!is_ok) {
        tr_launch_env_free(env);
        return tr_fail(TR_NOMEM, "no memory for the environment of rank %d", at->rank);
    }
    *out = env;
    return TR_OK;
}

void tr_launch_env_free(char **env)
{
    for (size_t i = 0; env && env[i]; i++)
        free(env[i]);
    free(env);
}

void tr_cores_find(struct launch_job *j)
{
    j->n_cores = sched_getaffinity(0, sizeof j->cores, &j->cores) == 0 ? CPU_COUNT(&j->cores) : 0;
}

/* The cores of rank r: a run of all cores, as equal as whole cores allow. Returns 0 where there are fewer cores than
 * ranks: then all ranks share all cores. */
static int share_of(const struct launch_job *j, int r, cpu_set_t *out)
{
    int n = j->l->n_ranks;
    if (j->n_cores < n)
        return 0;
    int first = (int)((int64_t)j->n_cores * r / n), end = (int)((int64_t)j->n_cores * (r + 1) / n);
    int i = 0;
    CPU_ZERO(out);
    for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &j->cores))
            continue;
        if (i >= first && i < end)
            CPU_SET(cpu, out);
        i++;
    }
    return end - first;
}

/* Runs in the child. Ends in another program or in _exit. */
static TR_NORETURN void become_rank(const struct launch_job *j, pid_t parent, const int fds[3], int pmi, char **env,
                                    const cpu_set_t *cores)
{
    const struct tr_launch *l = j->l;
    char *const *argv = (j->generation > 0 || j->nodes) && l->restart_argv ? l->restart_argv : l->argv;
    setsid();
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) /* the launcher died before the line above */
        _exit(TR_EXIT_BUG);
    for (int i = 0; i < 3; i++)
        if (dup2(fds[i], i) < 0)
            _exit(TR_EXIT_BUG);
    if (pmi >= 0 &&
        (dup2(pmi, PMI_FD) < 0 || fcntl(PMI_FD, F_SETFD, 0) != 0)) /* dup2 of the same number leaves it close-on-exec */
        _exit(TR_EXIT_BUG);
    if (cores)
        sched_setaffinity(0, sizeof *cores, cores); /* if this fails the rank is slower, not wrong */
    sigaction(SIGPIPE, &j->old_pipe, NULL);
    sigprocmask(SIG_SETMASK, &j->old_mask, NULL);
    execve(l->program, argv, env);
    dprintf(2, "trireme: cannot run %s: %s\n", l->program, strerror(errno));
    _exit(TR_EXIT_BUG);
}

/* Forks; tries again after a while when the machine has no free process. */
static pid_t fork_patiently(void)
{
    enum { TRIES = 6 };
    pid_t pid = -1;
    for (int i = 0; i < TRIES; i++) {
        pid = fork();
        if (pid >= 0 || errno != EAGAIN)
            break;
        struct timespec t = { .tv_nsec = 20000000L << i };
        nanosleep(&t, NULL);
    }
    return pid;
}

static void close_if_open(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

static enum tr_status fail_start(const struct rank *r, const char *what)
{
    return tr_fail(TR_IO, "rank %d: %s: %s%s", r->rank, what, strerror(errno),
                   errno == EMFILE ? "; raise the limit of open files (ulimit -n)" : "");
}

/* Once a generation. */
static enum tr_status draw_secret(struct launch_job *j)
{
    unsigned char bits[16];
    if (j->secret_of == j->generation + 1)
        return TR_OK;
    if (getrandom(bits, sizeof bits, 0) != (ssize_t)sizeof bits)
        return tr_fail(TR_IO, "no random bytes for the meeting place of the ranks: %s", strerror(errno));
    for (size_t i = 0; i < sizeof bits; i++)
        snprintf(j->secret + 2 * i, 3, "%02x", bits[i]);
    j->secret_of = j->generation + 1;
    return TR_OK;
}

enum tr_status tr_rank_spawn(struct launch_job *j, struct rank *r)
{
    enum tr_status st = TR_OK;
    int in = -1, out[2] = { -1, -1 }, err[2] = { -1, -1 }, pmi = -1;
    char **env = NULL;
    cpu_set_t cores;
    int local = (int)(r - j->ranks);
    int n_cores = share_of(j, local, &cores);
    const struct tr_launch_place at = { r->rank, j->n_world, local, j->l->n_ranks, j->secret };
    int threads = j->l->threads > 0 ? 0 : n_cores > 0 ? n_cores : 1;
    bool is_pinned = n_cores > 0 && j->l->threads <= n_cores; /* with more threads than cores, the user has decided */
    TR_TRY(draw_secret(j));
    TR_TRY(tr_launch_env(j->l->envp, &at, j->id, j->generation, threads, j->pmi != NULL, &env));
    in = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (in < 0 || pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0) {
        st = fail_start(r, "cannot make a pipe for its output");
        goto out;
    }
    if (j->pmi && (pmi = tr_pmi_connect(j->pmi, local)) < 0) {
        st = fail_start(r, "cannot make a socket for PMI");
        goto out;
    }
    fcntl(out[0], F_SETFL, O_NONBLOCK);
    fcntl(err[0], F_SETFL, O_NONBLOCK);

    pid_t parent = getpid(), pid = fork_patiently();
    if (pid < 0) {
        st = fail_start(r, "cannot start a process");
        goto out;
    }
    if (pid == 0)
        become_rank(j, parent, (const int[3]){ in, out[1], err[1] }, pmi, env, is_pinned ? &cores : NULL);
    r->pid = pid;
    r->pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (r->pidfd < 0) {
        st = fail_start(r, "cannot open a pidfd");
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
        goto out;
    }
    r->out.fd = out[0];
    r->err.fd = err[0];
    out[0] = err[0] = -1;
    r->code = r->sig = r->order = 0;
    r->is_killed = false;
    j->n_running++;
    tr_logs_begin(j, r);
out:
    close_if_open(&in);
    close_if_open(&pmi);
    for (int i = 0; i < 2; i++) {
        close_if_open(&out[i]);
        close_if_open(&err[i]);
    }
    tr_launch_env_free(env);
    return st;
}

/* Signals the rank and all processes that it has started. Its pid cannot be reused until waitid reaps it. */
void tr_rank_signal(const struct rank *r, int sig)
{
    if (r->pidfd >= 0 && kill(-r->pid, sig) != 0) /* it has not made its session yet */
        kill(r->pid, sig);
}
