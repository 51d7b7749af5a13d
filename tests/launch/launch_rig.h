/* launch_rig.h - runs a launcher in a process of its own, with /bin/sh as the ranks and files as the terminal. */
#ifndef TR_TESTS_LAUNCH_RIG_H
#define TR_TESTS_LAUNCH_RIG_H

#include "launch/launch.h"
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

enum { RIG_ZOMBIE = 98, RIG_ERROR = 99, RIG_LATE = -1 };
#define MS INT64_C(1000)

struct rig {
    char dir[64], out[96], err[96];
    char *argv[8], *env[8];
    struct tr_launch l;
    bool is_process_1; /* the launcher's, as in a container: orphans are its children */
};

static inline void nap_ms(int ms)
{
    struct timespec t = { .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L };
    nanosleep(&t, NULL);
}

/* Text below the rig's directory, "" when there is none; caller frees. */
static inline char *rig_read(const struct rig *g, const char *name)
{
    char path[TR_PATH_MAX], *text = NULL;
    size_t n = 0;
    assert_int_equal(tr_path_join(path, g->dir, name), TR_OK);
    if (tr_file_read(path, 1 << 24, &text, &n) != TR_OK)
        return strdup("");
    return text;
}

static inline bool rig_has(const struct rig *g, const char *name)
{
    char path[TR_PATH_MAX];
    assert_int_equal(tr_path_join(path, g->dir, name), TR_OK);
    return access(path, F_OK) == 0;
}

static inline int count_of(const char *text, const char *word)
{
    int n = 0;
    for (const char *p = text; (p = strstr(p, word)) != NULL; p++)
        n++;
    return n;
}

static inline void assert_text(const struct rig *g, const char *name, const char *word, int n)
{
    char *text = rig_read(g, name);
    if (count_of(text, word) != n)
        fail_msg("%s has \"%s\" %d times, want %d:\n%s", name, word, count_of(text, word), n, text);
    free(text);
}

/* Ranks run `script` with $DIR in their environment; orphans become ours. */
static inline void rig_init(struct rig *g, int n_ranks, const char *script)
{
    *g = (struct rig){ .dir = "/tmp/launch-XXXXXX" };
    assert_non_null(mkdtemp(g->dir));
    snprintf(g->out, sizeof g->out, "DIR=%s", g->dir);
    g->env[0] = g->out;
    g->env[1] = "PATH=/usr/bin:/bin";
    g->env[2] = "MASTER_ADDR=elsewhere";
    g->argv[0] = "/bin/sh";
    g->argv[1] = "-c";
    g->argv[2] = (char *)(uintptr_t)script;
    g->l = (struct tr_launch){ .program = "/bin/sh", .argv = g->argv, .envp = g->env, .n_ranks = n_ranks };
    prctl(PR_SET_CHILD_SUBREAPER, 1);
}

static inline void rig_release(struct rig *g)
{
    assert_int_equal(tr_remove_tree(g->dir), TR_OK);
}

static inline int rig_file(const struct rig *g, const char *name)
{
    char path[TR_PATH_MAX];
    assert_int_equal(tr_path_join(path, g->dir, name), TR_OK);
    return open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
}

/* Starts the launcher; its exit code is the job's, RIG_ZOMBIE when it left a child, RIG_ERROR when it was refused. */
static inline pid_t rig_start(struct rig *g)
{
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid > 0)
        return pid;
    struct tr_launch_end end = { 0 };
    if (g->is_process_1)
        prctl(PR_SET_CHILD_SUBREAPER, 1);
    if (g->l.out_fd == 0)
        g->l.out_fd = rig_file(g, "stdout");
    if (g->l.err_fd == 0)
        g->l.err_fd = rig_file(g, "stderr");
    enum tr_status st = tr_launch_run(&g->l, &end);
    if (st != TR_OK)
        dprintf(g->l.err_fd, "refused: %s\n", tr_error_text());
    bool has_child = waitpid(-1, NULL, WNOHANG) != -1 || errno != ECHILD;
    _exit(st != TR_OK ? RIG_ERROR : has_child ? RIG_ZOMBIE : end.exit_code);
}

/* RIG_LATE: it did not end in time, and was killed. */
static inline int rig_wait(pid_t pid, int max_ms)
{
    int status = 0;
    for (int ms = 0; ms < max_ms; ms += 5) {
        if (waitpid(pid, &status, WNOHANG) == pid)
            return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        nap_ms(5);
    }
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    return RIG_LATE;
}

static inline int rig_run(struct rig *g, int max_ms)
{
    return rig_wait(rig_start(g), max_ms);
}

/* Waits until `name` exists below the rig's directory. */
static inline void rig_await(const struct rig *g, const char *name)
{
    for (int ms = 0; !rig_has(g, name); ms += 5) {
        assert_true(ms < 5000);
        nap_ms(5);
    }
}

#endif
