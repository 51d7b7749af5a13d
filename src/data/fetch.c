/* fetch.c - see fetch.h.
 *
 * Rejected: a shell (an address is text of others, and would be part of a command line), and an HTTP client of our own
 * (keys, proxies and certificates are the business of programs that people have already set up).
 */
#include "data/fetch.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WORDS_MAX = 64, SAID_MAX = 400, NAME_TAIL = 80 };

bool tr_fetch_is_address(const char *path)
{
    size_t n = strspn(path, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+-.");
    return n > 0 && strncmp(path + n, "://", 3) == 0 && path[n + 3];
}

/* ---- the command ---- */

struct words {
    struct tr_str text[WORDS_MAX];
    size_t n;
};

static void release_words(struct words *w)
{
    for (size_t i = 0; i < w->n; i++)
        tr_str_release(&w->text[i]);
}

/* Blanks divide words; quotes keep blanks, and a backslash the next byte. */
static enum tr_status split(const char *p, struct words *w)
{
    for (; p += strspn(p, " \t\n"), *p;) {
        if (w->n == WORDS_MAX)
            return tr_fail(TR_USAGE, "fetch_command has more than %d words", WORDS_MAX);
        struct tr_str *word = &w->text[w->n++];
        tr_str_add(word, "", 0);
        for (char quote = 0; *p && (quote || !strchr(" \t\n", *p)); p++) {
            if (quote ? *p == quote : *p == '\'' || *p == '"')
                quote = quote ? 0 : *p;
            else if (*p == '\\' && quote != '\'' && p[1])
                tr_str_add(word, ++p, 1);
            else
                tr_str_add(word, p, 1);
            if (!p[1] && quote)
                return tr_fail(TR_USAGE, "fetch_command has a quote that is not closed");
        }
    }
    return w->n ? TR_OK : tr_fail(TR_USAGE, "fetch_command is empty");
}

/* Replaces {url} and {path} in a word; *n_found counts them. */
static void fill(struct tr_str *word, const char *const names[2], const char *const values[2], int n_found[2])
{
    struct tr_str filled = { 0 };
    const char *p = word->p ? word->p : "";
    tr_str_add(&filled, "", 0);
    while (*p) {
        int k = 0;
        while (k < 2 && strncmp(p, names[k], strlen(names[k])) != 0)
            k++;
        if (k == 2) {
            tr_str_add(&filled, p++, 1);
            continue;
        }
        tr_str_addf(&filled, "%s", values[k]);
        n_found[k]++;
        p += strlen(names[k]);
    }
    tr_str_release(word);
    *word = filled;
}

static enum tr_status make_words(const char *command, const char *url, const char *path, struct words *w)
{
    static const char *const names[2] = { "{url}", "{path}" };
    const char *const values[2] = { url, path };
    int n_found[2] = { 0 };
    enum tr_status st = split(command, w);
    for (size_t i = 0; i < w->n && st == TR_OK; i++) {
        fill(&w->text[i], names, values, n_found);
        if (!tr_str_ok(&w->text[i]))
            st = tr_fail(TR_NOMEM, "no memory for fetch_command");
    }
    if (st == TR_OK && (n_found[0] == 0 || n_found[1] == 0))
        st = tr_fail(TR_USAGE, "fetch_command \"%s\" lacks %s; write it like: aws s3 cp {url} {path}", command,
                     names[n_found[0] ? 1 : 0]);
    return st;
}

/* ---- the process ---- */

struct child {
    pid_t pid;
    int fd; /* what it says */
    char said[SAID_MAX + 1];
    size_t n_said;
};

/* Keeps the end of what the command says, in bounded memory. */
static void listen_to(struct child *c)
{
    char buf[4096];
    ssize_t n;
    while ((n = read(c->fd, buf, sizeof buf)) > 0) {
        size_t k = (size_t)n < SAID_MAX ? (size_t)n : SAID_MAX;
        size_t keep = c->n_said + k > SAID_MAX ? SAID_MAX - k : c->n_said;
        memmove(c->said, c->said + c->n_said - keep, keep);
        memcpy(c->said + keep, buf + n - k, k);
        c->n_said = keep + k;
    }
    c->said[c->n_said] = 0;
}

/* What is between fork and exec calls async-signal-safe functions only. */
struct command {
    char *const *argv;
    pid_t parent;
    int said, failed; /* pipes: its output; why it could not be started */
    uint64_t most;    /* bytes of a file that it writes */
};

static TR_NORETURN void become(const struct command *c)
{
    struct rlimit file = { .rlim_cur = c->most, .rlim_max = c->most };
    int none = open("/dev/null", O_RDONLY);
    signal(SIGPIPE, SIG_DFL);
    (void)setrlimit(RLIMIT_FSIZE, &file);
    if (none >= 0 && dup2(none, 0) >= 0 && dup2(c->said, 1) >= 0 && dup2(c->said, 2) >= 0)
        execvp(c->argv[0], c->argv);
    int err = errno;
    ssize_t n = write(c->failed, &err, sizeof err);
    _exit(n == sizeof err ? 127 : 126);
}

static void end_group(int sig)
{
    (void)sig;
    (void)kill(0, SIGKILL);
}

/* Stands between us and the command, and leads its process group: when we are gone, however that came, the kernel tells
 * it, and it ends the group. The command alone could be told, but not what it has started. */
static TR_NORETURN void guard(const struct command *c)
{
    int status = 0;
    sigset_t none;
    (void)setpgid(0, 0);
    signal(SIGTERM, end_group);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != c->parent)
        _exit(1);
    pid_t pid = fork();
    if (pid == 0)
        become(c);
    if (pid < 0)
        _exit(126);
    (void)close_range(0, UINT_MAX, 0); /* our locks are not its own */
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    if (WIFSIGNALED(status)) {
        signal(WTERMSIG(status), SIG_DFL);
        (void)raise(WTERMSIG(status));
    }
    _exit(WEXITSTATUS(status));
}

static enum tr_status start(struct words *w, uint64_t most, struct child *c)
{
    enum tr_status st = TR_OK;
    char *argv[WORDS_MAX + 1] = { 0 };
    int said[2] = { -1, -1 }, failed[2] = { -1, -1 }, err = 0;
    for (size_t i = 0; i < w->n; i++)
        argv[i] = w->text[i].p;
    if (pipe2(said, O_CLOEXEC) != 0 || pipe2(failed, O_CLOEXEC) != 0 || fcntl(said[0], F_SETFL, O_NONBLOCK) != 0)
        TR_TRY(tr_fail(TR_IO, "no pipe for fetch_command: %s", strerror(errno)));
    const struct command command = { argv, getpid(), said[1], failed[1], most };
    c->pid = fork();
    if (c->pid == 0)
        guard(&command);
    if (c->pid < 0)
        TR_TRY(tr_fail(TR_IO, "fetch_command: no process for it: %s", strerror(errno)));
    close(failed[1]);
    failed[1] = -1;
    if (read(failed[0], &err, sizeof err) == sizeof err) {
        (void)waitpid(c->pid, NULL, 0);
        TR_TRY(tr_fail(TR_USAGE, "fetch_command: %s cannot be started: %s", argv[0], strerror(err)));
    }
    c->fd = said[0];
    said[0] = -1;
out:
    for (int i = 0; i < 2; i++) {
        if (said[i] >= 0)
            close(said[i]);
        if (failed[i] >= 0)
            close(failed[i]);
    }
    return st;
}

/* The whole group ends with the command, before its number is free for others: what it has left running would write on
 * into the copy. */
static enum tr_status await(struct child *c, int64_t limit_us, int *status)
{
    enum { POLL_MS = 50 };
    int64_t start_us = tr_clock_us();
    bool is_late = false;
    siginfo_t ended = { 0 };
    while (!is_late && ended.si_pid != c->pid) {
        if (waitid(P_PID, (id_t)c->pid, &ended, WEXITED | WNOHANG | WNOWAIT) != 0 && errno != EINTR)
            return tr_fail(TR_IO, "fetch_command was lost: %s", strerror(errno));
        is_late = tr_clock_us() - start_us > limit_us;
        if (ended.si_pid != c->pid)
            (void)poll(&(struct pollfd){ .fd = c->fd, .events = POLLIN }, 1, POLL_MS);
        listen_to(c);
    }
    (void)kill(-c->pid, SIGKILL);
    (void)waitpid(c->pid, status, 0);
    return is_late && ended.si_pid != c->pid
               ? tr_fail(TR_TIMEOUT, "fetch_command ran longer than %" PRId64 " s", limit_us / 1000000)
               : TR_OK;
}

/* A copy may take nine tenths of what is free where it goes: an address may have no end. */
static uint64_t most_bytes(const char *path)
{
    char dir[TR_PATH_MAX];
    const char *name;
    struct statvfs v;
    if (tr_path_split(path, dir, &name) == TR_OK && statvfs(dir, &v) == 0)
        return (uint64_t)v.f_bavail * v.f_frsize / 10 * 9;
    tr_error_clear();
    return INT64_MAX;
}

static enum tr_status run(const char *command, const char *url, const char *path, int64_t limit_us)
{
    enum tr_status st = TR_OK;
    struct words w = { 0 };
    struct child c = { .fd = -1 };
    int status = 0;
    char shown[2 * SAID_MAX], human[32];
    struct stat info;
    uint64_t most = most_bytes(path);
    TR_TRY(make_words(command, url, path, &w));
    TR_TRY(start(&w, most, &c));
    TR_TRY(await(&c, limit_us, &status));
    if (status != 0 && lstat(path, &info) == 0 && (uint64_t)info.st_size >= most)
        TR_TRY(tr_fail(TR_IO,
                       "fetch_command was ended: its copy has %s, nine tenths of what was free in %.*s; make room, or "
                       "fetch less",
                       tr_human_bytes(most, human, sizeof human), (int)(strrchr(path, '/') - path), path));
    if (WIFSIGNALED(status))
        TR_TRY(tr_fail(TR_IO, "fetch_command \"%s\" was killed by signal %d", command, WTERMSIG(status)));
    if (WEXITSTATUS(status) != 0)
        TR_TRY(tr_fail(TR_IO, "fetch_command \"%s\" ended with exit code %d: %s", command, WEXITSTATUS(status),
                       tr_escape(c.said, shown, sizeof shown)));
out:
    if (c.fd >= 0)
        close(c.fd);
    release_words(&w);
    return st;
}

/* ---- the copy ---- */

/* A name for the copy: a hash of the address, and its last part, of which the end says what the file holds. */
static void name_copy(const char *url, char out[128])
{
    char hex[33], tail[NAME_TAIL + 1];
    size_t n = strcspn(url, "?#"), begin = n, k = 0;
    while (begin > 0 && url[begin - 1] != '/')
        begin--;
    begin = n - begin > NAME_TAIL ? n - NAME_TAIL : begin;
    for (; begin < n; begin++) {
        bool is_plain = strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-", url[begin]) != NULL;
        tail[k++] = is_plain ? url[begin] : '_';
    }
    tail[k] = 0;
    tr_hash_hex(tr_hash(url, strlen(url)), hex);
    (void)snprintf(out, 128, "fetched/%s-%s", hex, tail);
}

enum tr_status tr_fetch(const char *command, const char *url, const char *cache_dir, int64_t limit_us,
                        char out[TR_PATH_MAX])
{
    enum tr_status st = TR_OK;
    char name[128], temporary[160], path[TR_PATH_MAX], shown[256];
    struct tr_out_at dir, from, to;
    struct stat info;
    tr_escape(url, shown, sizeof shown);
    name_copy(url, name);
    TR_TRY(tr_path_join(out, cache_dir, name));
    if (tr_file_exists(out))
        return TR_OK;
    if (!command)
        TR_TRY(tr_fail(TR_USAGE, "name the program that fetches it: --fetch_command 'aws s3 cp {url} {path}', or "
                                 "'curl -fsSLo {path} {url}'"));
    TR_TRY(tr_format(temporary, sizeof temporary, "%s.tmp-fetch", name));
    TR_TRY(tr_path_join(path, cache_dir, temporary));
    TR_TRY(tr_out_beneath(cache_dir, "fetched", &dir));
    TR_TRY(tr_out_beneath(cache_dir, temporary, &from));
    TR_TRY(tr_out_beneath(cache_dir, name, &to));
    TR_TRY(tr_out_mkdir(dir.dir, dir.name));
    TR_TRY(tr_out_remove(from.dir, from.name)); /* of a fetch that was interrupted */
    st = run(command, url, path, limit_us);
    if (st == TR_OK && (lstat(path, &info) != 0 || !S_ISREG(info.st_mode)))
        st = tr_fail(TR_IO, "fetch_command \"%s\" ended well but wrote no file to {path}", command);
    int error = st == TR_OK ? tr_out_move(from.dir, from.name, to.name, TR_OUT_RENAME) : 0;
    if (error)
        st = tr_fail(TR_IO, "%s cannot be renamed: %s", path, strerror(error));
    if (st != TR_OK) {
        struct tr_str kept = { 0 };
        tr_str_addf(&kept, "%s", tr_error_text());
        (void)tr_out_remove(from.dir, from.name); /* its own failure would hide the cause */
        st = tr_fail(st, "%s", tr_str_ok(&kept) ? kept.p : "");
        tr_str_release(&kept);
    }
out:
    return st == TR_OK ? TR_OK : tr_fail_at(st, "data %s: ", shown);
}
