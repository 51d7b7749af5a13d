/* doctor_parts.c - what doctor looks at. Each part reports the value it found; where the value is wrong, it also names
 * the fix that a user can make. A value that the kernel or a driver does not report is left out. Limits and memory are
 * read by base/host.h, as a run reads them before its first step. */
#include "base/host.h"
#include "base/nvml.h"
#include "cli/doctor.h"
#include "ops/ops.h"
#include <dlfcn.h>
#include <ifaddrs.h>
#include <link.h>
#include <net/if.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/timex.h>
#include <time.h>
#include <unistd.h>

#define GIB ((uint64_t)1 << 30)
#define MIB ((uint64_t)1 << 20)
enum { TEXT = 640, DISK_BYTES = 64 << 20, DISK_SLOW_MB_PER_S = 100, FILES_MIN = 1024 };

/* The first line of a file, without its end; false: it cannot be read. */
static bool read_line(const char *root, const char *path, char *out, size_t n)
{
    char full[TR_PATH_MAX];
    (void)snprintf(full, sizeof full, "%s%s", root, path);
    FILE *f = fopen(full, "re");
    bool ok = f && fgets(out, (int)n, f);
    if (ok)
        out[strcspn(out, "\n")] = 0;
    if (f)
        fclose(f);
    return ok;
}

/* ---- processor, memory, limits ---- */

static void cpu_name(const char *root, char *name, size_t n)
{
    char path[TR_PATH_MAX], line[8192];
    (void)snprintf(path, sizeof path, "%s/proc/cpuinfo", root);
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof line, f)) {
        char *colon = strchr(line, ':');
        if (!colon || colon[1] == 0)
            continue;
        colon[strcspn(colon, "\n")] = 0;
        if (strncmp(line, "model name", 10) == 0) {
            (void)snprintf(name, n, "%.100s", colon + 2);
            break;
        }
    }
    if (f)
        fclose(f);
}

void doctor_cpu(struct doctor *d)
{
    char name[128] = "unknown processor", line[128], value[TEXT];
    bool has_avx2 = false, has_avx512 = false;
    cpu_set_t cores;
    double quota = 0, period = 0;
    CPU_ZERO(&cores);
    int n = sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : 1;
    cpu_name(d->root, name, sizeof name);
#if defined(__x86_64__)
    has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    has_avx512 = __builtin_cpu_supports("avx512f");
#endif
    doctor_fact(d, "processor", "%s, %d of %ld cores for this process%s", name, n, sysconf(_SC_NPROCESSORS_ONLN),
                has_avx512 ? ", AVX-512"
                : has_avx2 ? ", AVX2"
                           : "");
#if defined(__x86_64__)
    if (!has_avx2)
        doctor_problem(d, READY_ANY, "processor", "no AVX2 and FMA: only the slow kernels run",
                       "use a processor of 2013 or later, or a virtual machine that passes its flags on");
#endif
    if (read_line(d->root, "/sys/fs/cgroup/cpu.max", line, sizeof line) &&
        sscanf(line, "%lf %lf", &quota, &period) == 2 && period > 0 && quota / period + 0.01 < n) {
        (void)snprintf(value, sizeof value, "the cgroup allows %.2g of %d cores (cpu.max %s)", quota / period, n, line);
        doctor_problem(d, READY_ANY, "cpu.max", value,
                       "raise the limit of the container, or give --threads as many as it allows");
    }
}

void doctor_memory(struct doctor *d)
{
    struct tr_host h;
    char total[32], left[32], value[TEXT], line[32];
    tr_host_read(d->root, &h);
    (void)tr_human_bytes(h.total_bytes, total, sizeof total);
    (void)tr_human_bytes(h.available_bytes, left, sizeof left);
    doctor_fact(d, "memory", "%s, %s can be taken now (by %s)", total, left, h.limit);
    d->is_tight = h.available_bytes < 256 * MIB;
    if (h.available_bytes < GIB) {
        (void)snprintf(value, sizeof value, "%s can be taken, by %s", left, h.limit);
        bool is_none = h.available_bytes < 64 * MIB;
        doctor_problem(
            d, is_none ? READY_ALL : READY_ANY, "memory", value,
            strncmp(h.limit, "cgroup", 6) == 0
                ? "raise the limit of that cgroup (docker run --memory, the resources of a pod, sbatch --mem)"
                : "end what uses it, or take a larger machine; trireme plan says what a run needs");
    }
    if (!read_line(d->root, "/proc/self/cgroup", line, sizeof line))
        doctor_problem(d, READY_ANY, "/proc",
                       "it is not mounted: limits of cgroups and the load of ranks cannot be seen",
                       "mount -t proc proc /proc (inside the chroot)");
    if (read_line(d->root, "/proc/sys/vm/overcommit_memory", line, sizeof line) && line[0] == '2')
        doctor_problem(d, READY_ANY, "vm.overcommit_memory", "2: the kernel counts reserved addresses as memory",
                       "sysctl vm.overcommit_memory=0, or expect refusals at the plan's full size");
}

static void limit(struct doctor *d, int which, const char *name, uint64_t least, int takes, const char *fix)
{
    struct rlimit r;
    char value[TEXT];
    if (getrlimit((__rlimit_resource_t)which, &r) != 0 || r.rlim_cur == RLIM_INFINITY || r.rlim_cur >= least)
        return;
    (void)snprintf(value, sizeof value, "%llu, hard limit %lld", (unsigned long long)r.rlim_cur,
                   r.rlim_max == RLIM_INFINITY ? -1LL : (long long)r.rlim_max);
    doctor_problem(d, takes, name, value, fix);
}

void doctor_limits(struct doctor *d)
{
    struct tr_host h;
    struct rlimit files;
    char value[TEXT], human[32];
    tr_host_read(d->root, &h);
    if (getrlimit(RLIMIT_NOFILE, &files) == 0)
        doctor_fact(d, "limits", "%llu open files%s%s", (unsigned long long)files.rlim_cur,
                    h.address_name ? ", addresses limited by " : "", h.address_name ? h.address_name : "");
    if (h.address_name && h.address_bytes < 8 * GIB) {
        (void)snprintf(value, sizeof value, "%s leaves %s of addresses", h.address_name,
                       tr_human_bytes(h.address_bytes, human, sizeof human));
        doctor_problem(d, h.address_bytes < 256 * MIB ? READY_ALL : READY_ANY, h.address_name, value,
                       "ulimit -v unlimited; ulimit -d unlimited (limits.conf, or LimitAS of a service)");
    }
    limit(d, RLIMIT_NOFILE, "ulimit -n", FILES_MIN, READY_RANKS,
          "ulimit -n 65536 (limits.conf nofile, or LimitNOFILE of a service)");
    limit(d, RLIMIT_NPROC, "ulimit -u", 256, READY_RANKS,
          "ulimit -u 4096 (limits.conf nproc, or TasksMax of a service)");
    limit(d, RLIMIT_FSIZE, "ulimit -f", 64 * GIB, h.file_bytes < GIB ? READY_CHECKPOINTS : READY_ANY,
          "ulimit -f unlimited: checkpoints are large files");
}

void doctor_shm(struct doctor *d)
{
    struct statvfs fs;
    char path[TR_PATH_MAX], value[TEXT], human[32];
    (void)snprintf(path, sizeof path, "%s/dev/shm", d->root);
    if (statvfs(path, &fs) != 0 || access(path, W_OK) != 0) {
        doctor_problem(
            d, READY_RANKS, "/dev/shm", "it is not there or cannot be written",
            "mount -t tmpfs tmpfs /dev/shm (docker run --shm-size 8g, an emptyDir of medium Memory in a pod)");
        return;
    }
    uint64_t room = (uint64_t)fs.f_bavail * fs.f_frsize;
    (void)tr_human_bytes(room, human, sizeof human);
    doctor_fact(d, "/dev/shm", "%s free", human);
    if (room < GIB) {
        (void)snprintf(value, sizeof value, "%s free; ranks of one host exchange tensors through it", human);
        doctor_problem(
            d, room < 64 * MIB ? READY_RANKS : READY_ANY, "/dev/shm", value,
            "mount -o remount,size=8g /dev/shm (docker run --shm-size 8g, an emptyDir of medium Memory in a pod)");
    }
}

/* The module of the fastest device that has one. */
static struct tr_module *gpu_module(void)
{
    size_t i = 0;
    while (!tr_device_module(tr_column_at(i)->device)) /* devices with a module have a column */
        i++;
    return tr_device_module(tr_column_at(i)->device);
}

/* ---- GPUs and libraries ---- */

void doctor_gpus(struct doctor *d)
{
    char value[TEXT], human[32], path[TR_PATH_MAX];
    struct tr_nvml *n = tr_nvml_open();
    struct tr_gpu g;
    (void)snprintf(path, sizeof path, "%s/dev/nvidiactl", d->root);
    /* a library that is there and does not answer is that of another driver */
    bool has_driver = access(path, F_OK) == 0 ||
                      (tr_nvml_why(n)[0] && !strstr(tr_nvml_why(n), "cannot open shared object file: No such file"));
    for (int i = 0; i < tr_nvml_count(n); i++)
        if (tr_nvml_read(n, i, &g))
            doctor_fact(d, "GPU", "%d: %s, %s, driver %s", i, g.name,
                        tr_human_bytes((uint64_t)g.memory_total_bytes, human, sizeof human), tr_nvml_driver(n));
    if (tr_nvml_count(n) == 0 && has_driver) {
        (void)snprintf(value, sizeof value, "it does not answer: %s", tr_nvml_why(n));
        doctor_problem(d, READY_GPU, "GPU driver library", value,
                       "libnvidia-ml.so.1 must be that of the loaded driver (cat /proc/driver/nvidia/version): "
                       "reinstall the driver or reboot; in a container start it with --gpus all");
    } else if (tr_nvml_count(n) == 0) {
        (void)snprintf(value, sizeof value, "none: %s",
                       tr_nvml_why(n)[0] ? tr_nvml_why(n) : "the driver reports no GPU");
        doctor_problem(
            d, READY_GPU, "GPU", value,
            "for GPUs install NVIDIA's driver, or start the container with --gpus all; the CPU needs neither");
    } else if (tr_device_best()->is_host) {
        const struct tr_module *m = gpu_module();
        doctor_problem(d, READY_GPU, "GPU", "the driver lists GPUs, but this program cannot use one",
                       m->why[0] ? m->why
                                 : "see CUDA_VISIBLE_DEVICES, and whether the driver is as new as the CUDA version of "
                                   "libtrireme_cuda.so");
    }
    tr_nvml_close(n);
}

/* Where a library was found; "": it was not. NVIDIA's are looked for where the CUDA module looks. */
static void find_library(const char *const *names, bool is_nvidia, char *out, size_t n)
{
    struct link_map *map = NULL;
    void *lib = is_nvidia ? tr_library_nvidia(names) : NULL;
    for (; !is_nvidia && *names && !lib; names++)
        lib = dlopen(*names, RTLD_LAZY | RTLD_LOCAL | RTLD_NODELETE);
    bool is_found = lib && dlinfo(lib, RTLD_DI_LINKMAP, &map) == 0 && map;
    (void)snprintf(out, n, "%s", is_found ? map->l_name : "");
}

void doctor_libraries(struct doctor *d)
{
    static const struct {
        const char *what, *names[5];
        bool for_gpus;
        const char *fix;
    } rows[] = {
        { "cuBLASLt",
          { "libcublasLt.so.13", "libcublasLt.so.12" },
          true,
          "install libcublas of CUDA 12 or 13, or put its directory into LD_LIBRARY_PATH" },
        { "cuDNN",
          { "libcudnn.so.9", "libcudnn_graph.so.9" },
          true,
          "install cuDNN 9 (attention is slower without it)" },
        { "NCCL", { "libnccl.so.2" }, true, "install libnccl2 for several GPUs (docs/guide/nccl.md)" },
        { "oneDNN", { "libdnnl.so.2", "libdnnl.so.3", "libdnnl.so" }, false, NULL },
        { "OpenBLAS", { "libopenblas.so.0" }, false, NULL },
        { "SQLite", { "libsqlite3.so.0" }, false, NULL },
    };
    if (d->is_tight) {
        doctor_fact(d, "libraries", "not looked at: loading them takes memory");
        return;
    }
    struct tr_nvml *n = tr_nvml_open();
    bool has_gpus = tr_nvml_count(n) > 0;
    tr_nvml_close(n);
    for (size_t i = 0; i < TR_COUNT_OF(rows); i++) {
        char path[TR_PATH_MAX];
        find_library(rows[i].names, rows[i].for_gpus, path, sizeof path);
        doctor_fact(d, rows[i].what, "%s", path[0] ? path : "not found");
        if (!path[0] && rows[i].for_gpus && has_gpus)
            doctor_problem(d, i == 0 ? READY_GPU : READY_ANY, rows[i].what, "not found", rows[i].fix);
    }
}

/* ---- modules and other hosts ---- */

void doctor_modules(struct doctor *d)
{
    char found[2 * TR_PATH_MAX] = "", path[TR_PATH_MAX];
    doctor_fact(d, "GPU module", "%s", tr_module_find(gpu_module(), path) ? path : "none");
    for (size_t i = 0; i < TR_COMM_MODULES; i++)
        if (tr_module_find(&tr_comm_modules[i], path))
            (void)snprintf(found + strlen(found), sizeof found - strlen(found), "%s%s", found[0] ? ", " : "", path);
    doctor_fact(d, "MPI modules", "%s", found[0] ? found : "none");
    if (!found[0])
        doctor_problem(d, READY_HOSTS, "MPI", "no module; one host needs none", tr_comm_modules[0].why);
}

void doctor_network(struct doctor *d)
{
    struct ifaddrs *all = NULL;
    struct tr_str list = { 0 };
    char path[TR_PATH_MAX], speed[32], last[IF_NAMESIZE] = "";
    int n = 0;
    if (getifaddrs(&all) != 0)
        return;
    for (const struct ifaddrs *a = all; a; a = a->ifa_next) {
        bool is_up = (a->ifa_flags & IFF_UP) && !(a->ifa_flags & IFF_LOOPBACK);
        if (!is_up || !a->ifa_addr || a->ifa_addr->sa_family != AF_INET || strcmp(a->ifa_name, last) == 0)
            continue;
        (void)snprintf(last, sizeof last, "%s", a->ifa_name);
        (void)snprintf(path, sizeof path, "/sys/class/net/%s/speed", a->ifa_name);
        bool has_speed = read_line(d->root, path, speed, sizeof speed) && strtol(speed, NULL, 10) > 0;
        tr_str_addf(&list, "%s%s%s%s%s", n++ ? ", " : "", a->ifa_name, has_speed ? " " : "", has_speed ? speed : "",
                    has_speed ? " Mbit/s" : "");
    }
    freeifaddrs(all);
    (void)snprintf(path, sizeof path, "%s/sys/class/infiniband", d->root);
    doctor_fact(d, "network", "%s%s", n && tr_str_ok(&list) ? list.p : "loopback only",
                access(path, F_OK) == 0 ? ", InfiniBand" : "");
    if (!n)
        doctor_problem(d, READY_HOSTS, "network", "only loopback is up",
                       "bring an interface up; in a container, --network host");
    tr_str_release(&list);
}

void doctor_clock(struct doctor *d)
{
    enum { YEAR_2024 = 1704067200 };
    struct timex t = { 0 };
    time_t now = time(NULL);
    struct tm utc = { 0 };
    char text[64];
    (void)gmtime_r(&now, &utc);
    (void)strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S UTC", &utc);
    int state = adjtimex(&t);
    bool is_synced = state != -1 && state != TIME_ERROR && !(t.status & STA_UNSYNC);
    doctor_fact(d, "clock", "%s%s", text, is_synced ? ", synchronised" : "");
    if (now < YEAR_2024)
        doctor_problem(d, READY_ANY, "clock", text,
                       "set the clock (timedatectl set-ntp true): times of logs and W&B runs come from it");
    else if (!is_synced)
        doctor_problem(
            d, READY_ANY, "clock", "the kernel does not know it to be synchronised",
            "timedatectl set-ntp true, or chronyd: logs of several hosts are compared by it; one host does not care");
}

/* ---- the disk ---- */

/* A run makes its output directory and those above it: the nearest that is there is looked at. */
static const char *nearest_dir(const char *dir, char out[TR_PATH_MAX])
{
    (void)snprintf(out, TR_PATH_MAX, "%s", dir);
    while (!tr_dir_exists(out) && !tr_file_exists(out)) {
        char *slash = strrchr(out, '/');
        if (slash && slash[1] == '\0' && slash != out)
            *slash = '\0'; /* "a/" is "a" */
        else if (!slash || slash == out)
            return slash ? "/" : ".";
        else
            *slash = '\0';
    }
    return out;
}

void doctor_disk(struct doctor *d)
{
    struct statvfs fs;
    char room[32], value[TEXT];
    char at[TR_PATH_MAX];
    const char *dir = nearest_dir(d->dir, at);
    double seconds = 0;
    uint64_t left = tr_host_disk_room(dir);
    (void)tr_human_bytes(left, room, sizeof room);
    if (!tr_dir_exists(dir)) {
        (void)snprintf(value, sizeof value, "%.400s: it is a file", dir);
        doctor_problem(d, READY_CHECKPOINTS, "output", value, "move it away, or name another --output");
        return;
    }
    int64_t bytes = d->is_tight ? DISK_BYTES / 16 : DISK_BYTES; /* pages that wait for the disk are memory too */
    enum tr_status st = left < 2 * (uint64_t)DISK_BYTES ? TR_IO : cli_disk_rate(dir, bytes, &seconds, NULL);
    double speed = seconds > 0 ? (double)bytes / seconds * 1e-6 : 0;
    if (st == TR_OK)
        doctor_fact(d, "disk", "%.400s: %s free, written and synced at %.0f MB/s", dir, room, speed);
    if (left < 2 * (uint64_t)DISK_BYTES) {
        (void)snprintf(value, sizeof value, "%.400s: %s free", dir, room);
        doctor_problem(d, READY_CHECKPOINTS, "disk", value,
                       "free it, or name an --output on another disk; trireme plan says what a run writes");
    } else if (st != TR_OK) {
        doctor_problem(d, READY_CHECKPOINTS, "disk", tr_error_text(),
                       "see permissions, quota (quota -s) and mount options, or name another --output");
    } else if (left < 10 * GIB) {
        (void)snprintf(value, sizeof value, "%.400s: %s free: few checkpoints fit", dir, room);
        doctor_problem(d, READY_ANY, "disk", value, "free it, or keep few with --save_total_limit");
    } else if (speed < DISK_SLOW_MB_PER_S) {
        (void)snprintf(value, sizeof value, "%.400s: %.0f MB/s", dir, speed);
        doctor_problem(d, READY_ANY, "disk speed", value,
                       "saves will take long: a local disk for --output, or a larger --save_steps");
    }
    if (statvfs(dir, &fs) == 0 && fs.f_files > 0 && fs.f_favail < 1000) {
        (void)snprintf(value, sizeof value, "%.400s: %llu files left", dir, (unsigned long long)fs.f_favail);
        doctor_problem(d, READY_CHECKPOINTS, "inodes", value, "remove small files there, or name another --output");
    }
    tr_error_clear();
}
