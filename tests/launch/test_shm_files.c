/* What MPI left in /dev/shm goes when it is this generation's and nobody uses it; everything else stays. */
#include "launch/launch_impl.h"
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>
#include "base/banned.h"

static char dir[64];

static const char *in_dir(const char *name)
{
    static char path[128];
    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

static int make(const char *name)
{
    int fd = open(in_dir(name), O_RDWR | O_CREAT | O_EXCL, 0600);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, 4096), 0);
    return fd;
}

static bool is_there(const char *name)
{
    return access(in_dir(name), F_OK) == 0;
}

static struct timespec now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME_COARSE, &t);
    return t;
}

/* A process that has the file open, or only mapped, until its end of the pipe closes. */
static pid_t user_of(const char *name, bool is_mapped, int *out_pipe)
{
    int ready[2], over[2];
    char byte;
    assert_int_equal(pipe(ready) | pipe(over), 0);
    pid_t pid = fork();
    if (pid == 0) {
        int fd = make(name);
        close(over[1]);
        if (is_mapped && mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED)
            _exit(1);
        if (is_mapped)
            close(fd);
        (void)!write(ready[1], "x", 1);
        (void)!read(over[0], &byte, 1);
        _exit(0);
    }
    assert_int_equal(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    close(ready[1]);
    close(over[0]);
    *out_pipe = over[1];
    return pid;
}

static void what_a_dead_rank_left_goes_and_nothing_else(void **state)
{
    (void)state;
    int end[2];
    close(make("mpich_shar_tmpOlder1"));
    usleep(20 * 1000); /* more than a tick of the clock of files */
    struct timespec begin = now();
    close(make("mpich_shar_tmpXzUnyu"));
    close(make("ucx_shm_posix_32073a9f"));
    close(make("somebody_elses"));
    assert_int_equal(symlink("somebody_elses", in_dir("ucx_shm_posix_link")), 0);
    pid_t opens = user_of("mpich_shar_tmpOpened", false, &end[0]),
          maps = user_of("ucx_shm_posix_mapped", true, &end[1]);
    assert_int_equal(tr_shm_sweep(dir, begin), 2);
    assert_false(is_there("mpich_shar_tmpXzUnyu") || is_there("ucx_shm_posix_32073a9f"));
    assert_true(is_there("mpich_shar_tmpOlder1") && is_there("somebody_elses") && is_there("ucx_shm_posix_link"));
    assert_true(is_there("mpich_shar_tmpOpened") && is_there("ucx_shm_posix_mapped"));
    close(end[0]);
    close(end[1]);
    assert_true(waitpid(opens, NULL, 0) == opens && waitpid(maps, NULL, 0) == maps);
    assert_int_equal(tr_shm_sweep(dir, begin), 2); /* now that they are dead */
    assert_int_equal(tr_shm_sweep("/no/such/directory", begin), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(what_a_dead_rank_left_goes_and_nothing_else) };
    (void)snprintf(dir, sizeof dir, "%s/trireme-sweep-XXXXXX", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    if (!mkdtemp(dir))
        return 1;
    int n_failed = cmocka_run_group_tests(tests, NULL, NULL);
    return tr_remove_tree(dir) == TR_OK ? n_failed : 1;
}
