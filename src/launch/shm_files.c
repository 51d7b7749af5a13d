/* shm_files.c - removes files that MPICH and UCX leave in /dev/shm when a rank is killed while MPI starts.
 *
 * Their ranks make files there, map them, exchange their names, and unlink them; a kill in between leaves the file.
 * They have no option that moves the files elsewhere, and the names do not contain the job. Invariant: a file is
 * removed only if it has such a name, belongs to this user, was made since this generation began, and no process has it
 * open or mapped; in doubt it stays. The directory is read before the processes: a process that made a file seen there
 * has it open or mapped, or is dead.
 */
#include "launch/launch_impl.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

enum { MAX_FILES = 64 };

struct left {
    char name[64];
    dev_t dev;
    ino_t ino;
    bool is_used;
};

static bool is_of_mpi(const char *name)
{
    static const char *const starts[] = { "mpich_shar_tmp", "mpich_s_shar_tmp", "ucx_shm_posix_" };
    for (size_t i = 0; i < TR_COUNT_OF(starts); i++)
        if (strncmp(name, starts[i], strlen(starts[i])) == 0)
            return true;
    return false;
}

static bool is_since(struct timespec t, struct timespec since)
{
    return t.tv_sec > since.tv_sec || (t.tv_sec == since.tv_sec && t.tv_nsec >= since.tv_nsec);
}

static int find(DIR *d, struct timespec since, struct left *out)
{
    int n = 0;
    for (const struct dirent *e; n < MAX_FILES && (e = readdir(d));) {
        struct stat s;
        if (is_of_mpi(e->d_name) && strlen(e->d_name) < sizeof out->name &&
            fstatat(dirfd(d), e->d_name, &s, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(s.st_mode) && s.st_uid == geteuid() &&
            is_since(s.st_ctim, since)) {
            out[n] = (struct left){ .dev = s.st_dev, .ino = s.st_ino };
            (void)snprintf(out[n++].name, sizeof out->name, "%s", e->d_name);
        }
    }
    return n;
}

static void mark(struct left *f, int n, dev_t dev, ino_t ino)
{
    for (int i = 0; i < n; i++)
        f[i].is_used = f[i].is_used || (f[i].dev == dev && f[i].ino == ino);
}

/* Marks the files that the process has open; false: it lives, and this user may not see them. */
static bool look_at_open(const char *proc, struct left *f, int n)
{
    char path[64];
    struct stat s;
    (void)snprintf(path, sizeof path, "%s/fd", proc);
    DIR *d = opendir(path);
    if (!d)
        return errno == ENOENT || errno == ESRCH;
    bool is_known = true;
    for (const struct dirent *e; is_known && (e = readdir(d));) {
        if (fstatat(dirfd(d), e->d_name, &s, 0) == 0)
            mark(f, n, s.st_dev, s.st_ino);
        else
            is_known = errno == ENOENT;
    }
    closedir(d);
    return is_known;
}

/* The same for files that it has mapped: "from-to rwxp offset major:minor inode path". */
static bool look_at_mapped(const char *proc, struct left *f, int n)
{
    char path[64], *line = NULL;
    size_t n_line = 0;
    unsigned major, minor;
    unsigned long long ino;
    (void)snprintf(path, sizeof path, "%s/maps", proc);
    FILE *file = fopen(path, "re");
    if (!file)
        return errno == ENOENT || errno == ESRCH;
    while (getline(&line, &n_line, file) > 0)
        if (sscanf(line, "%*s %*s %*s %x:%x %llu", &major, &minor, &ino) == 3)
            mark(f, n, makedev(major, minor), (ino_t)ino);
    bool is_whole = !ferror(file) || errno == ESRCH;
    free(line);
    (void)fclose(file);
    return is_whole;
}

/* Looks at all processes of this user: no other user can open a file of mode 0600. Init is never a rank, and often may
 * not be looked at. */
static bool look_at_all(struct left *f, int n)
{
    DIR *d = opendir("/proc");
    bool is_known = d != NULL;
    for (const struct dirent *e; is_known && (e = readdir(d));) {
        char proc[32];
        struct stat s;
        if (strspn(e->d_name, "0123456789") != strlen(e->d_name) || strcmp(e->d_name, "1") == 0 ||
            fstatat(dirfd(d), e->d_name, &s, 0) != 0 || s.st_uid != geteuid())
            continue;
        (void)snprintf(proc, sizeof proc, "/proc/%.20s", e->d_name);
        is_known = look_at_open(proc, f, n) && look_at_mapped(proc, f, n);
    }
    if (d)
        closedir(d);
    return is_known;
}

int tr_shm_sweep(const char *dir, struct timespec since)
{
    struct left f[MAX_FILES];
    int n_gone = 0;
    DIR *d = opendir(dir);
    if (!d)
        return 0;
    int n = find(d, since, f);
    if (n > 0 && look_at_all(f, n))
        for (int i = 0; i < n; i++)
            n_gone += !f[i].is_used && tr_out_unlink(dir, f[i].name) == 0;
    closedir(d);
    return n_gone;
}
