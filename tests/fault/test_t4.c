/* test_t4.c - T4, error injection: the i-th call of each libc function that a save, a load and an export make fails,
 * once or from then on, for every i until a run passes untouched. Expected: no crash, no leak of memory or descriptors,
 * an error that says something or none at all, the checkpoint before still good, a save that reported success loads,
 * and the next undisturbed save works. usage: fault_t4 [SHORT]; 0 tries every i, n > 0 every n-th (default 3).
 *
 * This program's own functions stand before libc's; they count, and one of them fails. */
#include "fault/save_rig.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <sys/wait.h>

enum call {
    OPEN,
    OPENAT,
    WRITE,
    PREAD,
    READ,
    FSYNC,
    RENAME,
    MKDIR,
    UNLINKAT,
    CLOSE,
    LSTAT,
    FSTAT,
    OPENDIR,
    MALLOC,
    CALLOC,
    REALLOC,
    STRDUP,
    THREAD,
    CALLS
};
static const char *const names[CALLS] = { "open",    "openat", "write",    "pread",   "read",   "fsync",
                                          "rename",  "mkdir",  "unlinkat", "close",   "lstat",  "fstat",
                                          "opendir", "malloc", "calloc",   "realloc", "strdup", "thread" };
/* What each can fail with; 0 ends a row. SHORT: half of what was asked for is done. */
enum { SHORT = -1 };
static const int errors[CALLS][6] = {
    [OPEN] = { EIO, EMFILE, ENOSPC, EACCES },
    [OPENAT] = { EIO, EMFILE, ENOSPC, EACCES },
    [WRITE] = { ENOSPC, EIO, EINTR, EDQUOT, SHORT },
    [PREAD] = { EIO, EINTR, SHORT },
    [READ] = { EIO, EINTR },
    [FSYNC] = { EIO, ENOSPC },
    [RENAME] = { EIO, ENOSPC },
    [MKDIR] = { ENOSPC, EIO },
    [UNLINKAT] = { EIO },
    [CLOSE] = { EIO, EINTR },
    [LSTAT] = { EIO },
    [FSTAT] = { EIO },
    [OPENDIR] = { EMFILE, EIO },
    [MALLOC] = { ENOMEM },
    [CALLOC] = { ENOMEM },
    [REALLOC] = { ENOMEM },
    [STRDUP] = { ENOMEM },
    [THREAD] = { EAGAIN },
};

static struct {
    atomic_bool is_on;
    enum call call;
    int error;
    bool is_sticky;
    atomic_int n_left; /* calls until the one that fails */
    atomic_int n_live; /* blocks of memory taken and not given back, while on */
    atomic_int n_hits;
} inj;

static bool fails(enum call call)
{
    if (!inj.is_on || inj.call != call)
        return false;
    int left = atomic_fetch_sub(&inj.n_left, 1);
    bool now = left == 1 || (left < 1 && inj.is_sticky);
    if (!now)
        return false;
    atomic_fetch_add(&inj.n_hits, 1);
    if (inj.error != SHORT)
        errno = inj.error;
    return true;
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);
void __libc_free(void *p);

void *malloc(size_t n)
{
    return fails(MALLOC) ? NULL : __libc_malloc(n);
}
void *calloc(size_t n, size_t size)
{
    return fails(CALLOC) ? NULL : __libc_calloc(n, size);
}
void *realloc(void *p, size_t n)
{
    return fails(REALLOC) ? NULL : __libc_realloc(p, n);
}
char *strdup(const char *s)
{
    size_t n = strlen(s) + 1;
    char *p = fails(STRDUP) ? NULL : __libc_malloc(n);
    return p ? memcpy(p, s, n) : NULL;
}
#define CAN_COUNT 1
#else
#define CAN_COUNT 0
#endif

int open(const char *path, int flags, ...)
{
    va_list ap;
    va_start(ap, flags);
    int mode = flags & O_CREAT ? va_arg(ap, int) : 0;
    va_end(ap);
    return fails(OPEN) ? -1 : (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}
int openat(int dir, const char *path, int flags, ...)
{
    va_list ap;
    va_start(ap, flags);
    int mode = flags & O_CREAT ? va_arg(ap, int) : 0;
    va_end(ap);
    return fails(OPENAT) ? -1 : (int)syscall(SYS_openat, dir, path, flags, mode);
}
ssize_t write(int fd, const void *p, size_t n)
{
    if (fails(WRITE)) {
        if (inj.error != SHORT)
            return -1;
        n = (n + 1) / 2;
    }
    return syscall(SYS_write, fd, p, n);
}
ssize_t pread(int fd, void *p, size_t n, off_t at)
{
    if (fails(PREAD)) {
        if (inj.error != SHORT)
            return -1;
        n = (n + 1) / 2;
    }
    return syscall(SYS_pread64, fd, p, n, at);
}
ssize_t read(int fd, void *p, size_t n)
{
    return fails(READ) ? -1 : syscall(SYS_read, fd, p, n);
}
int fsync(int fd)
{
    (void)fd;
    return fails(FSYNC) ? -1 : 0;
}
int renameat2(int a, const char *from, int b, const char *to, unsigned flags)
{
    return fails(RENAME) ? -1 : (int)syscall(SYS_renameat2, a, from, b, to, flags);
}
int renameat(int a, const char *from, int b, const char *to)
{
    return renameat2(a, from, b, to, 0);
}
int rename(const char *from, const char *to)
{
    return renameat2(AT_FDCWD, from, AT_FDCWD, to, 0);
}
int mkdirat(int dir, const char *path, mode_t mode)
{
    return fails(MKDIR) ? -1 : (int)syscall(SYS_mkdirat, dir, path, mode);
}
int mkdir(const char *path, mode_t mode)
{
    return mkdirat(AT_FDCWD, path, mode);
}
int unlinkat(int dir, const char *path, int flags)
{
    return fails(UNLINKAT) ? -1 : (int)syscall(SYS_unlinkat, dir, path, flags);
}
int close(int fd)
{
    bool bad = fails(CLOSE); /* after an error the descriptor is gone all the same */
    int rc = (int)syscall(SYS_close, fd);
    if (bad)
        errno = inj.error;
    return bad ? -1 : rc;
}
int lstat(const char *restrict path, struct stat *restrict info)
{
    return fails(LSTAT) ? -1 : (int)syscall(SYS_newfstatat, AT_FDCWD, path, info, AT_SYMLINK_NOFOLLOW);
}
int fstat(int fd, struct stat *info)
{
    return fails(FSTAT) ? -1 : (int)syscall(SYS_newfstatat, fd, "", info, AT_EMPTY_PATH);
}

static int n_fds(void)
{
    int n = 0;
    for (int fd = 0; fd < 256; fd++)
        n += syscall(SYS_fcntl, fd, F_GETFD) >= 0;
    return n;
}

static size_t n_used(void)
{
    struct mallinfo2 m = mallinfo2();
    return m.uordblks + m.hblkhd;
}

/* ---- the three things that are disturbed ---- */

static struct save_rig rig;
static struct {
    int64_t n_runs, n_errors, n_calls;
} sum;

static enum tr_status do_save(void)
{
    return rig_save(&rig, 2, 0);
}

static enum tr_status do_load(void)
{
    int64_t step = 0;
    enum tr_status st = rig_load(&rig, &step);
    MUST(st != TR_OK || step == 1);
    return st;
}

static enum tr_status do_export(void)
{
    char dir[TR_PATH_MAX];
    struct tr_saver *sv = NULL;
    struct tr_saver_options opt = { .dtype = TR_F32 };
    enum tr_status st = tr_path_join(dir, rig.dir, "model");
    rig_fill(&rig, 1);
    if (st == TR_OK)
        st = tr_saver_open(&rig.store, &opt, &sv);
    if (st == TR_OK)
        st = tr_saver_model(sv, dir);
    tr_saver_close(sv);
    return st;
}

/* Planted bugs: what must turn this campaign red. */
static enum tr_status do_leak(void)
{
    MUST(syscall(SYS_openat, AT_FDCWD, "/dev/null", O_RDONLY, 0) >= 0);
    return TR_OK;
}

static enum tr_status do_lose(void)
{
    char path[TR_PATH_MAX];
    MUST(tr_path_join(path, rig.out, "checkpoint-1") == TR_OK);
    return tr_remove_tree(path);
}

enum { N_ACTIONS = 3, LEAK = N_ACTIONS, LOSE };
static const struct {
    const char *name;
    enum tr_status (*run)(void);
} actions[] = {
    { "save", do_save }, { "load", do_load }, { "export", do_export }, { "leak", do_leak }, { "lose", do_lose }
};

/* The world before each run: one good checkpoint. */
static void reset(void)
{
    char path[TR_PATH_MAX];
    size_t n = 0;
    MUST(tr_path_join(path, rig.dir, "model") == TR_OK && tr_remove_tree(path) == TR_OK);
    MUST(tr_path_join(path, rig.out, "checkpoint-2") == TR_OK && tr_remove_tree(path) == TR_OK);
    MUST(tr_ckpt_sweep(rig.out, &n) == TR_OK);
}

/* What must hold after it, whatever failed. */
static void judge(size_t a, enum tr_status st, const char *what)
{
    struct tr_ckpt_info info;
    bool is_found = false;
    if (tr_ckpt_scan(rig.out, "run", &is_found, &info, NULL) != TR_OK || !is_found ||
        (st == TR_OK && a == 0 && info.step != 2)) {
        fprintf(stderr, "T4: %s: the newest good checkpoint is %d; %s\n", what, is_found ? (int)info.step : -1,
                tr_error_text());
        exit(1);
    }
    if (st == TR_OK && a == 2) {
        char dir[TR_PATH_MAX];
        MUST(tr_path_join(dir, rig.dir, "model") == TR_OK);
        MUST(tr_load_weights(&rig.store, dir, rig.buf, NULL) == TR_OK);
    }
}

/* One run with one fault; false when the call was never made. */
static bool one(size_t a, enum call call, int error, bool is_sticky, int i)
{
    char what[96], text[256] = "";
    snprintf(what, sizeof what, "%s, %s call %d fails with %d%s", actions[a].name, names[call], i, error,
             is_sticky ? " and all after it" : "");
    reset();
    size_t used = n_used();
    int fds = n_fds();
    inj.call = call;
    inj.error = error;
    inj.is_sticky = is_sticky;
    inj.n_left = i;
    inj.n_hits = 0;
    tr_error_clear();
    inj.is_on = true;
    enum tr_status st = actions[a].run();
    inj.is_on = false;
    snprintf(text, sizeof text, "%s", tr_error_text());
    sum.n_runs++;
    sum.n_errors += st != TR_OK;
    if (st != TR_OK && !text[0]) {
        fprintf(stderr, "T4: %s: an error without a word\n", what);
        exit(1);
    }
    if (n_fds() != fds || (CAN_COUNT && n_used() > used + 4096)) { /* libc keeps a little */
        fprintf(stderr, "T4: %s: leaks: %d descriptors, %zu bytes\n", what, n_fds() - fds, n_used() - used);
        exit(1);
    }
    judge(a, st, what);
    if (sum.n_runs % 16 == 0) {
        reset();
        MUST(rig_save(&rig, 2, 0) == TR_OK); /* undisturbed, the next one works */
    }
    return inj.n_hits > 0;
}

static bool is_red(size_t planted)
{
    int status = 0;
    pid_t pid = fork();
    MUST(pid >= 0);
    if (pid == 0) {
        (void)!freopen("/dev/null", "w", stderr);
        (void)one(planted, OPEN, EIO, false, INT_MAX);
        _exit(0);
    }
    return waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 1;
}

int main(int argc, char **argv)
{
    (void)mallopt(M_ARENA_MAX, 1); /* mallinfo counts the main arena: what threads hold must be in it too */
    int64_t stride = rig_argument(argc, argv, 1, 3), n_points = 0;
    rig_open(&rig);
    MUST(rig_save(&rig, 1, 0) == TR_OK);
    for (int warm = 0; warm < 3; warm++) /* what libc keeps for good */
        for (size_t a = 0; a < N_ACTIONS; a++) {
            reset();
            MUST(actions[a].run() == TR_OK);
        }
    for (size_t a = 0; a < N_ACTIONS; a++)
        for (int call = 0; call < CALLS; call++)
            for (const int *e = errors[call]; *e; e++)
                for (int is_sticky = 0; is_sticky < 2; is_sticky++) {
                    int i = 1;
                    if (is_sticky && (*e == EINTR || *e == SHORT))
                        continue; /* a call that is interrupted for ever is not a disk's doing */
                    while (one(a, (enum call)call, *e, is_sticky, i))
                        i += stride > 0 ? (int)stride : 1;
                    n_points += i - 1;
                }
    printf("T4: %d runs, %d points, %d of them ended in an error; 0 crashes, 0 leaks, 0 checkpoints lost\n",
           (int)sum.n_runs, (int)n_points, (int)sum.n_errors);
    MUST(is_red(LEAK) && is_red(LOSE));
    rig_close(&rig);
    return 0;
}
