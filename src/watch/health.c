/* health.c - the host on which `watch` runs: memory, disk, load, and what the ranks on it hold. */
#include "base/host.h"
#include "watch/watch_impl.h"

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

/* Resident bytes of a process; 0: it is not there. */
static uint64_t resident_bytes(int pid)
{
    char path[64], text[128] = "";
    FILE *f;
    uint64_t pages = 0;
    (void)snprintf(path, sizeof path, "/proc/%d/statm", pid);
    f = pid > 0 ? fopen(path, "re") : NULL;
    if (f && fgets(text, sizeof text, f) && strchr(text, ' '))
        pages = strtoull(strchr(text, ' '), NULL, 10);
    if (f)
        fclose(f);
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

static void add_bytes(struct tr_str *out, const char *key, uint64_t bytes)
{
    if (bytes == UINT64_MAX)
        tr_str_addf(out, ",\"%s\":null", key);
    else
        tr_str_addf(out, ",\"%s\":%" PRIu64, key, bytes);
}

void tr_health_json(const struct tr_watch_run *w, struct tr_str *out)
{
    struct tr_host host;
    double load[3] = { (double)NAN, (double)NAN, (double)NAN };
    char name[65] = "";
    (void)gethostname(name, sizeof name - 1);
    tr_host_read("", &host);
    tr_str_member(out, "{\"host\":", name);
    tr_str_addf(out, ",\"cores\":%ld", sysconf(_SC_NPROCESSORS_ONLN));
    if (getloadavg(load, 3) == 3)
        tr_str_addf(out, ",\"load\":[%.2f,%.2f,%.2f]", load[0], load[1], load[2]);
    add_bytes(out, "memory_bytes", host.total_bytes);
    add_bytes(out, "memory_free_bytes", host.available_bytes);
    add_bytes(out, "disk_bytes", tr_host_disk_size(w->dir));
    add_bytes(out, "disk_free_bytes", tr_host_disk_room(w->dir));
    tr_str_addf(out, ",\"resident_bytes\":[");
    for (int r = 0, n = w->ranks.is_here ? w->ranks.n : 0; r < n && r < PLANS_MAX; r++)
        tr_str_addf(out, "%s%" PRIu64, r ? "," : "",
                    w->ranks.row[r].is_alive ? resident_bytes(w->ranks.row[r].pid) : 0);
    tr_str_addf(out, "]}");
}
