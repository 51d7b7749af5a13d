/* usage.c - /proc/stat, /proc/meminfo, /proc/diskstats, /proc/net/dev and /proc/self. */
#include "base/usage.h"
#include "base/base.h"
#include <math.h>
#include <unistd.h>

enum { LINE = 1024, LINES_MAX = 4096, SECTOR = 512 /* of diskstats, whatever the disk's */ };

static FILE *open_proc(const char *root, const char *path)
{
    char full[TR_PATH_MAX];
    int n = snprintf(full, sizeof full, "%s%s", root, path);
    return n > 0 && (size_t)n < sizeof full ? fopen(full, "re") : NULL;
}

/* Numbers of a line, at most n_max; how many there were. */
static int numbers_of(const char *p, double *out, int n_max)
{
    int n = 0;
    for (; n < n_max; n++) {
        char *end = NULL;
        out[n] = strtod(p, &end);
        if (end == p)
            break;
        p = end;
    }
    return n;
}

static void read_cpu(const char *root, struct tr_usage *u)
{
    enum { IDLE = 3, IOWAIT = 4, STEAL = 7, N = 8 }; /* guest time is part of user time */
    char line[LINE];
    double x[N] = { 0 }, ticks = (double)sysconf(_SC_CLK_TCK);
    FILE *f = open_proc(root, "/proc/stat");
    if (f && fgets(line, sizeof line, f) && strncmp(line, "cpu ", 4) == 0 && numbers_of(line + 4, x, N) > IOWAIT) {
        double all = 0;
        for (int i = 0; i <= STEAL; i++)
            all += x[i] / ticks;
        u->cpu_all_s = all;
        u->cpu_busy_s = all - (x[IDLE] + x[IOWAIT]) / ticks;
    }
    if (f)
        fclose(f);
}

static void read_memory(const char *root, struct tr_usage *u)
{
    char line[LINE];
    double total = (double)NAN, available = (double)NAN;
    FILE *f = open_proc(root, "/proc/meminfo");
    for (int i = 0; f && i < LINES_MAX && fgets(line, sizeof line, f); i++) {
        if (strncmp(line, "MemTotal:", 9) == 0)
            (void)numbers_of(line + 9, &total, 1);
        if (strncmp(line, "MemAvailable:", 13) == 0)
            (void)numbers_of(line + 13, &available, 1);
    }
    if (f)
        fclose(f);
    u->memory_total_bytes = total * 1024;
    u->memory_used_bytes = (total - available) * 1024;
}

/* A whole disk has a device of its own under /sys/block, and no other disks beneath it (md, dm, loop repeat theirs). */
static bool is_disk(const char *root, const char *name)
{
    char path[TR_PATH_MAX];
    int n = snprintf(path, sizeof path, "%s/sys/block/%s/device", root, name);
    return n > 0 && (size_t)n < sizeof path && access(path, F_OK) == 0;
}

static void read_disks(const char *root, struct tr_usage *u)
{
    enum { READ = 2, WRITTEN = 6, N = 8 }; /* fields after the name, from 0 */
    char line[LINE], name[64];
    int skip = 0;
    FILE *f = open_proc(root, "/proc/diskstats");
    if (!f)
        return;
    u->disk_read_bytes = u->disk_written_bytes = 0;
    for (int i = 0; i < LINES_MAX && fgets(line, sizeof line, f); i++) {
        double x[N] = { 0 };
        if (sscanf(line, " %*u %*u %63s%n", name, &skip) != 1 || !is_disk(root, name) ||
            numbers_of(line + skip, x, N) <= WRITTEN)
            continue;
        u->disk_read_bytes += x[READ] * SECTOR;
        u->disk_written_bytes += x[WRITTEN] * SECTOR;
    }
    fclose(f);
}

static void read_network(const char *root, struct tr_usage *u)
{
    enum { RECEIVED = 0, SENT = 8, N = 9 };
    char line[LINE];
    FILE *f = open_proc(root, "/proc/net/dev");
    if (!f)
        return;
    u->network_received_bytes = u->network_sent_bytes = 0;
    for (int i = 0; i < LINES_MAX && fgets(line, sizeof line, f); i++) {
        double x[N] = { 0 };
        char *colon = strchr(line, ':');
        const char *name = line + strspn(line, " ");
        if (!colon || strncmp(name, "lo:", 3) == 0 || numbers_of(colon + 1, x, N) <= SENT)
            continue;
        u->network_received_bytes += x[RECEIVED];
        u->network_sent_bytes += x[SENT];
    }
    fclose(f);
}

static void read_self(const char *root, struct tr_usage *u)
{
    double pages[2] = { 0 };
    char line[LINE];
    FILE *f = open_proc(root, "/proc/self/statm");
    if (f && fgets(line, sizeof line, f) && numbers_of(line, pages, 2) == 2)
        u->rss_bytes = pages[1] * (double)sysconf(_SC_PAGESIZE);
    if (f)
        fclose(f);
    u->process_cpu_s = (double)tr_process_cores((int)getpid()).ran * 1e-6;
}

void tr_usage_read(const char *root, struct tr_usage *out)
{
    const double none = (double)NAN;
    *out =
        (struct tr_usage){ (double)tr_clock_us() * 1e-6, none, none, none, none, none, none, none, none, none, none };
    read_cpu(root, out);
    read_memory(root, out);
    read_disks(root, out);
    read_network(root, out);
    read_self(root, out);
}
