/* host.c - reads /proc, cgroups of both versions, and the limits of the process.
 *
 * A process may take what the host has available and what every cgroup above it leaves, the tightest of them. Page
 * cache counts as free, because the kernel gives it up before it kills. Where a container shows a cgroup as the root of
 * its mount, paths are taken below that mount. Rejected: the limits of the own cgroup alone; schedulers set them one or
 * two levels higher.
 */
#include "base/host.h"
#include "base/base.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/sysinfo.h>
#include <unistd.h>

enum { LINE = 4096, LINES_MAX = 65536 };

/* False: it was truncated. The error text of the thread stays: these functions are called while one is under way. */
static bool print(char *out, size_t n, const char *fmt, ...) TR_PRINTF(3, 4);
static bool print(char *out, size_t n, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    int len = vsnprintf(out, n, fmt, args);
    va_end(args);
    return len >= 0 && (size_t)len < n;
}

static FILE *open_at(const char *root, const char *dir, const char *name)
{
    char path[TR_PATH_MAX];
    return print(path, sizeof path, "%s%s/%s", root, dir, name) ? fopen(path, "re") : NULL;
}

/* The number after `key` in lines "key N"; key "" = the first number of the file. "max" is no limit. */
static uint64_t number_in(const char *root, const char *dir, const char *name, const char *key)
{
    char line[LINE];
    uint64_t found = UINT64_MAX;
    size_t n = strlen(key);
    FILE *f = open_at(root, dir, name);
    for (int i = 0; f && i < LINES_MAX && fgets(line, sizeof line, f); i++) {
        if (strncmp(line, key, n) != 0 || (n && line[n] != ' ' && line[n] != ':'))
            continue;
        const char *p = line + n + (n > 0);
        char *end = NULL;
        unsigned long long x = strtoull(p, &end, 10);
        found = end > p ? (uint64_t)x : UINT64_MAX;
        break;
    }
    if (f)
        fclose(f);
    return found;
}

static uint64_t known(uint64_t x)
{
    return x == UINT64_MAX ? 0 : x;
}

/* ---- cgroups ---- */

struct cgroup { /* the hierarchy that counts memory */
    bool is_v2;
    char mount[1024]; /* where it is mounted */
    char path[2048];  /* of this process below the mount; "" = the mount itself */
};

/* The names of the same numbers in both versions. */
struct cgroup_files {
    const char *limit, *used, *cache[2], *kills, *kills_file;
};
static const struct cgroup_files files[2] = {
    { "memory.limit_in_bytes",
      "memory.usage_in_bytes",
      { "total_inactive_file", "total_active_file" },
      "oom_kill",
      "memory.oom_control" },
    { "memory.max", "memory.current", { "inactive_file", "active_file" }, "oom_kill", "memory.events" },
};

/* "ID:controllers:path" of /proc/self/cgroup: the line of `memory` (v1), or that without controllers (v2). */
static bool path_of_self(const char *root, bool is_v2, char *out, size_t n_out)
{
    char line[LINE];
    bool found = false;
    FILE *f = open_at(root, "/proc/self", "cgroup");
    for (int i = 0; f && !found && i < LINES_MAX && fgets(line, sizeof line, f); i++) {
        char *controllers = strchr(line, ':'), *path = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!path)
            continue;
        *controllers++ = *path++ = 0;
        path[strcspn(path, "\n")] = 0;
        bool is_memory = false;
        for (const char *p = controllers; *p && !is_memory; p += strcspn(p, ","), p += *p == ',')
            is_memory = strncmp(p, "memory", 6) == 0 && (p[6] == ',' || p[6] == 0);
        found = (is_v2 ? !*controllers : is_memory) && print(out, n_out, "%s", path);
    }
    if (f)
        fclose(f);
    return found;
}

/* The words of a line, cut at spaces; returns how many. */
static int words_of(char *line, char *word[], int n_max)
{
    int n = 0;
    char *save = NULL;
    for (char *w = strtok_r(line, " \n", &save); w && n < n_max; w = strtok_r(NULL, " \n", &save))
        word[n++] = w;
    return n;
}

static bool has_option(const char *options, const char *name)
{
    size_t n = strlen(name);
    for (const char *p = options; p; p = strchr(p, ',') ? strchr(p, ',') + 1 : NULL)
        if (strncmp(p, name, n) == 0 && (p[n] == ',' || p[n] == 0))
            return true;
    return false;
}

/* "36 35 0:30 ROOT MOUNT rw ... - cgroup2 cgroup2 rw" of /proc/self/mountinfo. */
static bool find_mount(const char *root, bool is_v2, char *mount_root, size_t n_root, char *mount, size_t n_mount)
{
    enum { WORDS = 32 };
    char line[LINE], *word[WORDS];
    bool found = false;
    FILE *f = open_at(root, "/proc/self", "mountinfo");
    for (int i = 0; f && !found && i < LINES_MAX && fgets(line, sizeof line, f); i++) {
        int n = words_of(line, word, WORDS), k = 6;
        while (k < n && strcmp(word[k], "-") != 0)
            k++;
        if (n < 10 || k + 3 >= n)
            continue;
        bool is_it = is_v2 ? strcmp(word[k + 1], "cgroup2") == 0
                           : strcmp(word[k + 1], "cgroup") == 0 && has_option(word[k + 3], "memory");
        found = is_it && print(mount_root, n_root, "%s", word[3]) && print(mount, n_mount, "%s", word[4]);
    }
    if (f)
        fclose(f);
    return found;
}

static bool find_cgroup(const char *root, struct cgroup *out)
{
    char mount_root[1024], path[2048];
    for (int v2 = 0; v2 < 2; v2++) { /* where both are mounted, memory is counted by v1, or v1 has no `memory` */
        out->is_v2 = v2;
        if (!find_mount(root, v2, mount_root, sizeof mount_root, out->mount, sizeof out->mount) ||
            !path_of_self(root, v2, path, sizeof path))
            continue;
        size_t n = strcmp(mount_root, "/") == 0 ? 0 : strlen(mount_root);
        bool is_below = strncmp(path, mount_root, n) == 0 && (path[n] == '/' || !path[n]) && !strstr(path, "/..");
        const char *below = is_below ? path + n : "";
        if (print(out->path, sizeof out->path, "%s", strcmp(below, "/") == 0 ? "" : below))
            return true;
    }
    return false;
}

static void read_cgroups(const char *root, struct tr_host *h)
{
    struct cgroup g;
    char dir[3200], human[32];
    if (!find_cgroup(root, &g))
        return;
    for (;;) {
        const struct cgroup_files *f = &files[g.is_v2];
        if (!print(dir, sizeof dir, "%s%s", g.mount, g.path))
            break;
        uint64_t limit = number_in(root, dir, f->limit, ""), used = known(number_in(root, dir, f->used, ""));
        uint64_t cache = known(number_in(root, dir, "memory.stat", f->cache[0])) +
                         known(number_in(root, dir, "memory.stat", f->cache[1]));
        if (limit < UINT64_C(1) << 60) { /* v1 writes no limit as the largest multiple of a page */
            uint64_t held = used > cache ? used - cache : 0, left = limit > held ? limit - held : 0;
            h->total_bytes = limit < h->total_bytes ? limit : h->total_bytes;
            if (left < h->available_bytes) {
                h->available_bytes = left;
                (void)print(h->limit, sizeof h->limit, "cgroup %.200s (%s %s)", g.path[0] ? g.path : "/", f->limit,
                            tr_human_bytes(limit, human, sizeof human));
            }
        }
        char *slash = strrchr(g.path, '/');
        if (!slash)
            break;
        *slash = 0;
    }
}

uint64_t tr_host_oom_kills(const char *root, char *text, size_t n_text)
{
    struct cgroup g;
    char dir[3200];
    uint64_t n = UINT64_MAX;
    if (find_cgroup(root, &g) && print(dir, sizeof dir, "%s%s", g.mount, g.path))
        n = number_in(root, dir, files[g.is_v2].kills_file, files[g.is_v2].kills);
    if (n != UINT64_MAX && text)
        (void)snprintf(text, n_text, "cgroup %.200s", g.path[0] ? g.path : "/");
    if (n == UINT64_MAX) {
        n = number_in(root, "/proc", "vmstat", "oom_kill");
        if (text)
            (void)snprintf(text, n_text, "the host");
    }
    return n;
}

/* ---- the host and the process ---- */

static uint64_t rlimit_of(int which)
{
    struct rlimit r;
    return getrlimit((unsigned)which, &r) == 0 && r.rlim_cur != RLIM_INFINITY ? (uint64_t)r.rlim_cur : UINT64_MAX;
}

static void take_address_limit(struct tr_host *h, uint64_t limit, uint64_t used, const char *name)
{
    uint64_t left = limit > used ? limit - used : 0;
    if (limit == UINT64_MAX || left >= h->address_bytes)
        return;
    h->address_bytes = left;
    h->address_name = name;
}

static uint64_t kib(uint64_t x)
{
    return x > UINT64_MAX / 1024 ? UINT64_MAX : x * 1024;
}

/* Where /proc is not mounted, as in a bare chroot, the kernel still says what is free, page cache not included. */
static void ask_kernel(uint64_t *total, uint64_t *available)
{
    struct sysinfo s;
    if (*total != UINT64_MAX || sysinfo(&s) != 0)
        return;
    *total = (uint64_t)s.totalram * s.mem_unit;
    *available = ((uint64_t)s.freeram + s.bufferram) * s.mem_unit;
}

void tr_host_read(const char *root, struct tr_host *out)
{
    uint64_t total = kib(number_in(root, "/proc", "meminfo", "MemTotal"));
    uint64_t available = kib(number_in(root, "/proc", "meminfo", "MemAvailable"));
    if (!root[0])
        ask_kernel(&total, &available);
    uint64_t swap = known(kib(number_in(root, "/proc", "meminfo", "SwapFree")));
    *out = (struct tr_host){ .total_bytes = total,
                             .available_bytes = available == UINT64_MAX ? available : available + swap,
                             .address_bytes = UINT64_MAX,
                             .file_bytes = rlimit_of(RLIMIT_FSIZE) };
    (void)print(out->limit, sizeof out->limit, "the host");
    read_cgroups(root, out);
    take_address_limit(out, rlimit_of(RLIMIT_AS), known(kib(number_in("", "/proc/self", "status", "VmSize"))),
                       "ulimit -v");
    take_address_limit(out, rlimit_of(RLIMIT_DATA), known(kib(number_in("", "/proc/self", "status", "VmData"))),
                       "ulimit -d");
}

/* ---- disk ---- */

/* The file system of `path`, or of the nearest directory above it that exists. */
static bool find_disk(const char *path, struct statvfs *fs)
{
    char at[TR_PATH_MAX];
    if (!print(at, sizeof at, "%s", path)) {
        return false;
    }
    while (statvfs(at, fs) != 0) { /* the run will make it */
        char *slash = strrchr(at, '/');
        if (strcmp(at, ".") == 0 || strcmp(at, "/") == 0)
            return false;
        if (slash && slash != at)
            *slash = 0;
        else
            (void)snprintf(at, sizeof at, slash ? "/" : ".");
    }
    return true;
}

static uint64_t blocks_of(const struct statvfs *fs, uint64_t n)
{
    uint64_t block = fs->f_frsize ? fs->f_frsize : fs->f_bsize;
    return n > UINT64_MAX / (block ? block : 1) ? UINT64_MAX : n * block;
}

uint64_t tr_host_disk_room(const char *path)
{
    struct statvfs fs;
    return find_disk(path, &fs) ? blocks_of(&fs, fs.f_bavail) : UINT64_MAX;
}

uint64_t tr_host_disk_size(const char *path)
{
    struct statvfs fs;
    return find_disk(path, &fs) ? blocks_of(&fs, fs.f_blocks) : UINT64_MAX;
}

uint64_t tr_host_id(void)
{
    char text[512] = "", host[64] = "", line[64] = "";
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");
    (void)gethostname(host, sizeof host - 1);
    if (f && !fgets(line, sizeof line, f))
        line[0] = 0;
    if (f)
        fclose(f);
    (void)snprintf(text, sizeof text, "%s %s", host, line);
    return tr_hash(text, strlen(text)).lo;
}

enum tr_status tr_host_files(uint64_t need)
{
    struct rlimit r;
    if (getrlimit(RLIMIT_NOFILE, &r) != 0 || r.rlim_cur == RLIM_INFINITY || r.rlim_cur >= need)
        return TR_OK;
    r.rlim_cur = need; /* as far as the hard limit allows */
    if ((r.rlim_max == RLIM_INFINITY || r.rlim_max >= need) && setrlimit(RLIMIT_NOFILE, &r) == 0)
        return TR_OK;
    return tr_fail(TR_USAGE,
                   "does not fit: ulimit -n allows %" PRIu64 " open files, and this process needs %" PRIu64
                   "; raise it with ulimit -n",
                   (uint64_t)r.rlim_max, need);
}
