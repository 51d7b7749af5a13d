/* What a host allows: cgroups of both versions with their ancestors, containers, the host itself; files of a test
 * directory stand in for /proc and /sys. */
#include "base/host.h"
#include "base/base.h"
#include <setjmp.h>
#include <stdarg.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

static char root[256];

static void put(const char *name, const char *text)
{
    char path[TR_PATH_MAX], dir[TR_PATH_MAX];
    assert_int_equal(tr_format(path, sizeof path, "%s%s", root, name), TR_OK);
    assert_int_equal(tr_format(dir, sizeof dir, "%s", path), TR_OK);
    *strrchr(dir, '/') = 0;
    assert_int_equal(tr_mkdirs(dir), TR_OK);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static int make_root(void **state)
{
    (void)state;
    const char *tmp = getenv("TMPDIR");
    if (tr_format(root, sizeof root, "%s/tr-host-XXXXXX", tmp ? tmp : "/tmp") != TR_OK || !mkdtemp(root))
        return -1;
    put("/proc/meminfo", "MemTotal:       16777216 kB\nMemFree: 1 kB\nMemAvailable:    8388608 kB\nSwapFree: 0 kB\n");
    return 0;
}

static int drop_root(void **state)
{
    (void)state;
    return tr_remove_tree(root) == TR_OK ? 0 : -1;
}

#define GIB ((uint64_t)1 << 30)

static void without_cgroups_the_host_decides(void **state)
{
    (void)state;
    struct tr_host h;
    assert_int_equal(tr_fail(TR_IO, "under way"), TR_IO);
    tr_host_read(root, &h);
    assert_string_equal(tr_error_text(), "under way");
    assert_int_equal(h.total_bytes, 16 * GIB);
    assert_int_equal(h.available_bytes, 8 * GIB);
    assert_string_equal(h.limit, "the host");
    put("/proc/vmstat", "nr_free_pages 5\noom_kill 7\n");
    char text[64];
    assert_int_equal(tr_host_oom_kills(root, text, sizeof text), 7);
    assert_string_equal(text, "the host");
}

static void a_v2_cgroup_counts_with_all_above_it(void **state)
{
    (void)state;
    struct tr_host h;
    char text[64];
    put("/proc/self/cgroup", "0::/slurm/job_7/step_0\n");
    put("/proc/self/mountinfo", "29 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n");
    put("/sys/fs/cgroup/slurm/job_7/step_0/memory.max", "max\n");
    put("/sys/fs/cgroup/slurm/job_7/step_0/memory.events", "low 0\noom 3\noom_kill 2\noom_group_kill 0\n");
    put("/sys/fs/cgroup/slurm/job_7/memory.max", "3221225472\n");
    put("/sys/fs/cgroup/slurm/job_7/memory.current", "2147483648\n");
    put("/sys/fs/cgroup/slurm/job_7/memory.stat", "anon 1\nfile 9\ninactive_file 536870912\nactive_file 536870912\n");
    put("/sys/fs/cgroup/slurm/memory.max", "6442450944\n");
    tr_host_read(root, &h);
    assert_int_equal(h.total_bytes, 3 * GIB);
    assert_int_equal(h.available_bytes, 2 * GIB); /* 3 less what is held; page cache is given up */
    assert_string_equal(h.limit, "cgroup /slurm/job_7 (memory.max 3.00 GiB)");
    assert_int_equal(tr_host_oom_kills(root, text, sizeof text), 2);
    assert_string_equal(text, "cgroup /slurm/job_7/step_0");
}

static void a_v1_cgroup_is_found_among_its_controllers(void **state)
{
    (void)state;
    struct tr_host h;
    put("/proc/self/cgroup", "9:name=systemd:/\n4:hugetlb,memory:/a/b\n1:cpu:/x\n0::/\n");
    put("/proc/self/mountinfo", "30 25 0:27 / /cg/cpu rw - cgroup cgroup rw,cpu\n"
                                "31 25 0:28 / /cg/memory rw - cgroup cgroup rw,hugetlb,memory\n"
                                "32 25 0:29 / /cg/unified rw - cgroup2 cgroup2 rw\n");
    put("/cg/memory/memory.limit_in_bytes", "9223372036854771712\n");
    put("/cg/memory/a/memory.limit_in_bytes", "1073741824\n");
    put("/cg/memory/a/memory.usage_in_bytes", "1073741824\n");
    put("/cg/memory/a/b/memory.limit_in_bytes", "9223372036854771712\n");
    put("/cg/memory/a/b/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n");
    tr_host_read(root, &h);
    assert_int_equal(h.total_bytes, GIB);
    assert_int_equal(h.available_bytes, 0);
    assert_int_equal(tr_host_oom_kills(root, NULL, 0), 5);
}

static void a_container_sees_its_cgroup_as_the_root_of_the_mount(void **state)
{
    (void)state;
    struct tr_host h;
    put("/proc/self/cgroup", "0::/docker/abc/inner\n");
    put("/proc/self/mountinfo", "29 23 0:26 /docker/abc /sys/box rw - cgroup2 cgroup2 rw\n");
    put("/sys/box/memory.max", "5368709120\n");
    put("/sys/box/memory.current", "1073741824\n");
    tr_host_read(root, &h);
    assert_int_equal(h.total_bytes, 5 * GIB);
    assert_int_equal(h.available_bytes, 4 * GIB);
    assert_string_equal(h.limit, "cgroup / (memory.max 5.00 GiB)");
    put("/proc/self/cgroup", "0::/../other\n"); /* outside of what the mount shows */
    tr_host_read(root, &h);
    assert_int_equal(h.available_bytes, 4 * GIB);
}

static void damaged_files_are_no_limit(void **state)
{
    (void)state;
    struct tr_host h;
    put("/proc/self/cgroup", "0::\n\n:::\nx\n");
    put("/proc/self/mountinfo", "- - -\ncgroup2\n1 2 3 4 5 6 7 8 9 -\n");
    put("/proc/meminfo", "MemTotal:\nMemAvailable: lots\n");
    put("/proc/vmstat", "oom_kill\n");
    tr_host_read(root, &h);
    assert_true(h.available_bytes == UINT64_MAX && h.total_bytes == UINT64_MAX);
    assert_true(tr_host_oom_kills(root, NULL, 0) == UINT64_MAX);
}

static void limits_of_the_process_are_read(void **state)
{
    (void)state;
    struct tr_host h;
    struct rlimit was, now;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &was), 0);
    now = was;
    now.rlim_cur = 12345678;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &now), 0);
    tr_host_read("", &h);
    assert_int_equal(h.file_bytes, 12345678);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &was), 0);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &was), 0);
    now = (struct rlimit){ .rlim_cur = 40, .rlim_max = was.rlim_max };
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &now), 0);
    assert_int_equal(tr_host_files(64), TR_OK); /* the soft limit follows */
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &now), 0);
    assert_int_equal(now.rlim_cur, 64);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &was), 0);
    assert_true(h.available_bytes > 0 && h.available_bytes <= h.total_bytes + (UINT64_C(1) << 50));
}

static void room_of_a_directory_that_is_not_there_is_that_above_it(void **state)
{
    (void)state;
    char path[TR_PATH_MAX];
    assert_int_equal(tr_format(path, sizeof path, "%s/not/there/yet", root), TR_OK);
    uint64_t room = tr_host_disk_room(path);
    assert_true(room > 0 && room != UINT64_MAX);
    assert_true(tr_host_disk_room("nowhere-at-all") != UINT64_MAX);
    assert_true(tr_host_disk_room("/nowhere-at-all") != UINT64_MAX);
    assert_int_equal(tr_host_id(), tr_host_id());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_cgroups_the_host_decides),
        cmocka_unit_test(a_v2_cgroup_counts_with_all_above_it),
        cmocka_unit_test(a_v1_cgroup_is_found_among_its_controllers),
        cmocka_unit_test(a_container_sees_its_cgroup_as_the_root_of_the_mount),
        cmocka_unit_test(room_of_a_directory_that_is_not_there_is_that_above_it),
        cmocka_unit_test(limits_of_the_process_are_read),
        cmocka_unit_test(damaged_files_are_no_limit),
    };
    return cmocka_run_group_tests(tests, make_root, drop_root);
}
