/* host.h - what this host allows a process to take: memory, its cgroups, limits of the process, room on a disk. Numbers
 * that cannot be read are UINT64_MAX (no limit): a check against them passes, and the kernel decides later. */
#ifndef TR_BASE_HOST_H
#define TR_BASE_HOST_H

#include "base/status.h"

struct tr_host {
    uint64_t total_bytes;     /* memory of the host, or what its tightest cgroup allows */
    uint64_t available_bytes; /* memory that can be taken now without a kill */
    char limit[320];          /* what sets available_bytes: "the host", "cgroup /a (memory.max 2.00 GiB)" */
    uint64_t address_bytes;   /* what RLIMIT_AS and RLIMIT_DATA leave to this process */
    const char *address_name; /* how a shell calls that limit: "ulimit -v"; NULL: there is none */
    uint64_t file_bytes;      /* the largest file (RLIMIT_FSIZE) */
};

/* root: where /proc and /sys are found; "" = the host itself. Tests give a directory. */
void tr_host_read(const char *root, struct tr_host *out);

/* Processes that the kernel has killed for want of memory in the cgroup of this process, or where that does not count
 * them, on the host. UINT64_MAX: unknown. text (may be NULL) names what is counted. */
uint64_t tr_host_oom_kills(const char *root, char *text, size_t n_text);

/* Bytes that an ordinary user may still write where `path`, or the nearest directory above it that exists, is. */
uint64_t tr_host_disk_room(const char *path);
uint64_t tr_host_disk_size(const char *path); /* all bytes of that file system */

/* So many open files (RLIMIT_NOFILE): raises the limit where that is allowed, else TR_USAGE. */
enum tr_status tr_host_files(uint64_t need);

/* A number that is the same for processes of one host (and container), and hardly for two of them. */
uint64_t tr_host_id(void);

#endif
