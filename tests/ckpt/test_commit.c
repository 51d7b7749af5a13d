/* test_commit.c - the commit protocol under kills and errors at every stage (A9-A13, C1, C6), lock (C12), retention. */
#include "ckpt/checkpoint.h"
#include <dirent.h>
#include <signal.h>
#include <sys/wait.h>

static const char *const points[] = {
#define X(name) name,
    TR_CKPT_FAILPOINTS(X)
#undef X
    /* the atomic writes of manifest (hit 1) and pointer (hit 2), and later pieces of the shard */
    "file.before_fsync",
    "file.after_fsync",
    "file.after_rename",
};

static bool is_before_rename(const char *point, int hit)
{
    static const char *const after[] = { "ckpt.after_rename", "ckpt.before_verify", "ckpt.before_pointer",
                                         "ckpt.after_pointer", "ckpt.prune" };
    for (size_t i = 0; i < TR_COUNT_OF(after); i++)
        if (strcmp(point, after[i]) == 0)
            return false;
    return strncmp(point, "file.", 5) != 0 || hit == 1;
}

static size_t count_temps(const char *dir)
{
    size_t n = 0;
    DIR *d = opendir(dir);
    assert_non_null(d);
    for (const struct dirent *e; (e = readdir(d));)
        n += strstr(e->d_name, ".tmp-") != NULL;
    closedir(d);
    return n;
}

static bool step_exists(const char *dir, int64_t step)
{
    char name[64];
    snprintf(name, sizeof name, "checkpoint-%" PRId64, step);
    return access(in_dir(dir, name), F_OK) == 0;
}

/* Runs toy_save(3) in a child with one failpoint armed; gives its wait status. */
static int save_in_child(const char *dir, const char *point, const char *action, int hit)
{
    char spec[128];
    snprintf(spec, sizeof spec, "%s:%s:%d", point, action, hit);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0)
        _exit(tr_failpoint_setup(spec, 0) != TR_OK ? 9 : toy_save(dir, "run", 3, 1, 2) == TR_OK ? 0 : 1);
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

static int n_hits(const char *point)
{
    return strcmp(point, "ckpt.shard_write") == 0 ? 3 : strncmp(point, "file.", 5) == 0 ? 2 : 1;
}

static void a_kill_at_any_point_leaves_the_previous_or_the_new_one(void **state)
{
    for (size_t i = 0; i < TR_COUNT_OF(points); i++) {
        for (int hit = 1; hit <= n_hits(points[i]); hit++) {
            char dir[TR_PATH_MAX];
            size_t n_removed = 0;
            snprintf(dir, sizeof dir, "%s", in_dir(*state, "out"));
            assert_ok(toy_save(dir, "run", 1, 0, 2));
            assert_ok(toy_save(dir, "run", 2, 0, 2));
            int status = save_in_child(dir, points[i], "kill", hit);
            if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
                fail_msg("%s hit %d was not reached", points[i], hit);
            int64_t newest = toy_newest(dir);
            if (newest != (is_before_rename(points[i], hit) ? 2 : 3))
                fail_msg("%s hit %d: newest good step is %d", points[i], hit, (int)newest);
            assert_ok(tr_ckpt_sweep(dir, &n_removed));
            assert_int_equal(count_temps(dir), 0);
            assert_int_equal(toy_newest(dir), newest);
            assert_ok(toy_save(dir, "run", 3, 2, 2)); /* the next generation does the step again */
            assert_int_equal(toy_newest(dir), 3);
            assert_true(step_exists(dir, 2));
            assert_false(step_exists(dir, 1));
            assert_int_equal(count_temps(dir), 0);
            assert_ok(tr_remove_tree(dir));
        }
    }
}

static void an_error_at_any_point_keeps_the_older_and_cleans_up(void **state)
{
    for (size_t i = 0; i < TR_COUNT_OF(points); i++) {
        for (int hit = 1; hit <= n_hits(points[i]); hit++) {
            char dir[TR_PATH_MAX];
            snprintf(dir, sizeof dir, "%s", in_dir(*state, "out"));
            assert_ok(toy_save(dir, "run", 1, 0, 2));
            assert_ok(toy_save(dir, "run", 2, 0, 2));
            int status = save_in_child(dir, points[i], "error", hit);
            if (!WIFEXITED(status) || WEXITSTATUS(status) != 1)
                fail_msg("%s hit %d: the error did not come out", points[i], hit);
            bool is_before = is_before_rename(points[i], hit);
            assert_int_equal(toy_newest(dir), is_before ? 2 : 3);
            assert_true(step_exists(dir, 2));
            if (is_before)
                assert_true(step_exists(dir, 1)); /* nothing old goes for a save that failed */
            assert_int_equal(count_temps(dir), strcmp(points[i], "ckpt.prune") == 0);
            assert_ok(toy_save(dir, "run", 3, 1, 2));
            assert_int_equal(toy_newest(dir), 3);
            assert_int_equal(count_temps(dir), 0); /* the next save removes what the failed removal left */
            assert_ok(tr_remove_tree(dir));
        }
    }
}

static void saving_a_step_again_replaces_it_whole(void **state)
{
    struct tr_ckpt_info info;
    assert_ok(toy_save(*state, "run", 5, 0, 0));
    put_file(in_dir(*state, "checkpoint-5/model.safetensors"), "bad", 3);
    assert_ok(toy_save(*state, "run", 5, 1, 0));
    assert_ok(tr_ckpt_verify(in_dir(*state, "checkpoint-5"), "run", &info));
    assert_int_equal(info.generation, 1);
    assert_int_equal(info.n_files, 3);
    assert_int_equal(count_temps(*state), 0);
}

static void a_commit_that_is_not_finished_leaves_nothing(void **state)
{
    struct tr_commit *c;
    assert_ok(tr_commit_begin(*state, "run", 7, 0, &c));
    assert_ok(toy_files(c, 7));
    assert_int_equal(access(tr_commit_dir(c), F_OK), 0);
    tr_commit_close(c);
    assert_int_equal(count_temps(*state), 0);
    assert_int_equal(toy_newest(*state), -1);
}

static void a_file_told_but_not_there_or_short_stops_the_commit(void **state)
{
    struct tr_commit *c;
    assert_ok(tr_commit_begin(*state, "run", 7, 0, &c));
    assert_ok(toy_files(c, 7));
    assert_ok(tr_commit_add(c, "trireme/optim-0001-of-0002.safetensors", 10, (struct tr_hash128){ 0 }));
    assert_fails_with(tr_commit_finish(c), TR_IO, "optim-0001");
    tr_commit_close(c);

    assert_ok(tr_commit_begin(*state, "run", 7, 0, &c));
    put_file(in_dir(tr_commit_dir(c), "x"), "abc", 3);
    assert_ok(tr_commit_add(c, "x", 4, (struct tr_hash128){ 0 }));
    assert_fails_with(tr_commit_finish(c), TR_IO, "3 bytes on disk, its writer reported 4");
    tr_commit_close(c);

    assert_ok(tr_commit_begin(*state, "run", 7, 0, &c));
    assert_ok(tr_commit_put(c, "x", "abc", 3));
    assert_ok(tr_commit_add(c, "x", 3, tr_hash("abc", 3)));
    assert_fails_with(tr_commit_finish(c), TR_USAGE, "twice");
    tr_commit_close(c);
    assert_int_equal(toy_newest(*state), -1);
}

static void names_that_leave_the_directory_are_refused(void **state)
{
    static const char *const bad[] = { "",
                                       ".",
                                       "..",
                                       "../x",
                                       "/x",
                                       "a/b",
                                       "trireme/../x",
                                       "trireme/",
                                       "trireme",
                                       "trireme/manifest.json",
                                       "trireme/a/b",
                                       "a\nb" };
    struct tr_commit *c;
    assert_ok(tr_commit_begin(*state, "run", 7, 0, &c));
    for (size_t i = 0; i < TR_COUNT_OF(bad); i++) {
        assert_int_equal(tr_commit_add(c, bad[i], 0, (struct tr_hash128){ 0 }), TR_USAGE);
        assert_int_equal(tr_commit_put(c, bad[i], "x", 1), TR_USAGE);
    }
    tr_commit_close(c);
    assert_int_equal(tr_commit_begin(*state, "run", -1, 0, &c), TR_USAGE);
    assert_int_equal(tr_commit_begin(*state, "a b", 1, 0, &c), TR_USAGE);
}

static void copies_are_registered_with_their_hash(void **state)
{
    char *big = malloc(200000);
    struct tr_commit *c;
    memset(big, 'x', 200000);
    put_file(in_dir(*state, "tokenizer.json"), big, 200000);
    assert_ok(tr_commit_begin(in_dir(*state, "out"), "run", 1, 0, &c));
    assert_ok(tr_commit_copy(c, "tokenizer.json", in_dir(*state, "tokenizer.json")));
    assert_ok(tr_commit_finish(c));
    tr_commit_close(c);
    struct tr_ckpt_info info;
    assert_ok(tr_ckpt_verify(in_dir(*state, "out/checkpoint-1/"), NULL, &info));
    assert_int_equal(info.n_bytes, 200000);
    free(big);
}

static void retention_keeps_the_newest_and_the_protected(void **state)
{
    size_t n_removed = 0;
    for (int64_t step = 1; step <= 6; step++)
        assert_ok(toy_save(*state, "run", step, 0, 0)); /* 0: all stay */
    assert_ok(tr_ckpt_retain(*state, 5, 0, &(struct tr_ckpt_keep){ 2, 0, true }, NULL, &n_removed));
    assert_int_equal(n_removed, 2); /* 3 and 2: 5 + 4 are kept, 1 is the best, 6 is newer */
    assert_true(step_exists(*state, 6) && step_exists(*state, 5) && step_exists(*state, 4) && step_exists(*state, 1));
    assert_false(step_exists(*state, 3) || step_exists(*state, 2));
    assert_ok(tr_ckpt_retain(*state, 6, 0, &(struct tr_ckpt_keep){ 1, 0, false }, NULL, &n_removed));
    assert_int_equal(n_removed, 3);
    assert_int_equal(toy_newest(*state), 6);
}

static void retention_keeps_every_nth_and_what_is_read(void **state)
{
    size_t n_removed = 0, n_aside = 0;
    struct tr_ckpt_lease lease;
    for (int64_t step = 1; step <= 8; step++)
        assert_ok(toy_save(*state, "run", step, 0, 0));
    assert_ok(tr_ckpt_lease(in_dir(*state, "checkpoint-2"), &lease)); /* C17 */
    assert_ok(tr_ckpt_retain(*state, 8, 0, &(struct tr_ckpt_keep){ 2, 3, true }, NULL, &n_removed));
    assert_int_equal(n_removed, 2); /* 5 and 4; 8 + 7 are kept, 6 and 3 are every third, 2 is read, 1 is the best */
    assert_true(step_exists(*state, 6) && step_exists(*state, 3) && step_exists(*state, 2) && step_exists(*state, 1));
    tr_ckpt_release(&lease);
    assert_ok(tr_ckpt_retain(*state, 8, 0, &(struct tr_ckpt_keep){ 2, 3, true }, NULL, &n_removed));
    assert_int_equal(n_removed, 1);
    assert_ok(tr_ckpt_set_aside(*state, 6, 1, &n_aside));
    assert_int_equal(n_aside, 2);
    assert_int_equal(toy_newest(*state), 6);
    assert_ok(tr_ckpt_verify(in_dir(*state, "checkpoint-8.aside-1"), NULL, NULL)); /* nothing is lost */
}

static void retention_removes_nothing_when_the_new_one_is_bad(void **state)
{
    assert_ok(toy_save(*state, "run", 1, 0, 0));
    assert_ok(toy_save(*state, "run", 2, 0, 0));
    assert_int_equal(truncate(in_dir(*state, "checkpoint-2/model.safetensors"), 100), 0);
    assert_fails_with(tr_ckpt_retain(*state, 2, 0, &(struct tr_ckpt_keep){ 1, 0, false }, NULL, NULL), TR_IO,
                      "model.safetensors");
    assert_true(step_exists(*state, 1));
    assert_int_equal(toy_newest(*state), 1);
}

static void sweep_takes_only_our_temps(void **state)
{
    static const char *const ours[] = { "checkpoint-5.tmp-0", "checkpoint-500.tmp-12" };
    static const char *const others[] = { "checkpoint-5.tmp-x",
                                          "checkpoint-5.tmp-",
                                          "checkpoint-.tmp-1",
                                          "my.tmp-1",
                                          "checkpoint-05.tmp-1",
                                          "checkpoint-5",
                                          "runs" };
    size_t n_removed = 0;
    for (size_t i = 0; i < TR_COUNT_OF(ours); i++)
        assert_int_equal(mkdir(in_dir(*state, ours[i]), 0777), 0);
    for (size_t i = 0; i < TR_COUNT_OF(others); i++)
        assert_int_equal(mkdir(in_dir(*state, others[i]), 0777), 0);
    put_file(in_dir(*state, "latest.tmp-123"), "x", 1);
    put_file(in_dir(*state, "checkpoint-9.tmp-1"), "a file", 6);
    assert_int_equal(symlink("/tmp", in_dir(*state, "checkpoint-8.tmp-1")), 0);
    assert_ok(tr_ckpt_sweep(*state, &n_removed));
    assert_int_equal(n_removed, 5);
    assert_int_equal(access("/tmp", F_OK), 0); /* of a link the name goes, nothing else */
    for (size_t i = 0; i < TR_COUNT_OF(others); i++)
        assert_int_equal(access(in_dir(*state, others[i]), F_OK), 0);
    assert_ok(tr_ckpt_sweep(in_dir(*state, "absent"), &n_removed));
    assert_int_equal(n_removed, 0);
}

static void a_second_writer_is_refused_and_told_who(void **state)
{
    struct tr_ckpt_lock *a, *b;
    char pid[32];
    const char *out = in_dir(*state, "new/out");
    snprintf(pid, sizeof pid, "pid %d ", (int)getpid());
    assert_ok(tr_ckpt_lock(out, "run-a", 3, &a));
    assert_fails_with(tr_ckpt_lock(out, "run-b", 0, &b), TR_USAGE, "run run-a generation 3");
    assert_non_null(strstr(tr_error_text(), pid));
    tr_ckpt_unlock(a);
    assert_ok(tr_ckpt_lock(out, "run-b", 0, &b));
    tr_ckpt_unlock(b);
}

static void the_lock_of_a_killed_process_is_free(void **state)
{
    int pipe_fd[2];
    char byte;
    assert_int_equal(pipe(pipe_fd), 0);
    pid_t pid = fork();
    if (pid == 0) {
        struct tr_ckpt_lock *l;
        if (tr_ckpt_lock(*state, "dead", 0, &l) != TR_OK || write(pipe_fd[1], "x", 1) != 1)
            _exit(1);
        pause();
    }
    struct tr_ckpt_lock *l;
    assert_int_equal(read(pipe_fd[0], &byte, 1), 1);
    assert_fails_with(tr_ckpt_lock(*state, "alive", 0, &l), TR_USAGE, "run dead");
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    assert_ok(tr_ckpt_lock(*state, "alive", 0, &l));
    tr_ckpt_unlock(l);
    close(pipe_fd[0]);
    close(pipe_fd[1]);
}

static void an_output_dir_that_cannot_be_written_is_refused_at_once(void **state)
{
    struct tr_ckpt_lock *l;
    put_file(in_dir(*state, "file"), "x", 1);
    assert_int_not_equal(tr_ckpt_lock(in_dir(*state, "file"), "run", 0, &l), TR_OK);
    assert_int_not_equal(tr_ckpt_lock("/proc/none", "run", 0, &l), TR_OK);
    assert_int_equal(symlink(in_dir(*state, "file"), in_dir(*state, ".trireme.lock")), 0);
    assert_fails_with(tr_ckpt_lock(*state, "run", 0, &l), TR_USAGE, "not writable");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        dir_test(a_kill_at_any_point_leaves_the_previous_or_the_new_one),
        dir_test(an_error_at_any_point_keeps_the_older_and_cleans_up),
        dir_test(saving_a_step_again_replaces_it_whole),
        dir_test(a_commit_that_is_not_finished_leaves_nothing),
        dir_test(a_file_told_but_not_there_or_short_stops_the_commit),
        dir_test(names_that_leave_the_directory_are_refused),
        dir_test(copies_are_registered_with_their_hash),
        dir_test(retention_keeps_the_newest_and_the_protected),
        dir_test(retention_keeps_every_nth_and_what_is_read),
        dir_test(retention_removes_nothing_when_the_new_one_is_bad),
        dir_test(sweep_takes_only_our_temps),
        dir_test(a_second_writer_is_refused_and_told_who),
        dir_test(the_lock_of_a_killed_process_is_free),
        dir_test(an_output_dir_that_cannot_be_written_is_refused_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
