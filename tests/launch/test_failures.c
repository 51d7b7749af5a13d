/* How a group ends: who is blamed, what the job's exit code is, and that nobody is left. */
#include "launch/agent.h"
#include "launch/launch_rig.h"
#include <sys/stat.h>

static void the_first_to_fail_is_the_root_cause(void **state)
{
    (void)state;
    struct rig g;
    char output[96], error_file[128];
    rig_init(&g, 4, "if [ $RANK = 2 ]; then sleep 0.1; echo tensor too large >&2; exit 70; fi; sleep 60; exit 1");
    snprintf(output, sizeof output, "%s/run", g.dir);
    snprintf(error_file, sizeof error_file, "TORCHELASTIC_ERROR_FILE=%s/elastic.json", g.dir);
    g.env[3] = error_file;
    g.l.output = output;
    int64_t start = tr_clock_us();
    assert_int_equal(rig_run(&g, 5000), TR_EXIT_BUG);
    assert_true(tr_clock_us() - start < 3000 * MS); /* the others went at SIGTERM, not at SIGKILL after 5 s */
    assert_text(&g, "stderr", "trireme: rank ", 1);
    assert_text(&g, "stderr", "trireme: rank 2 (pid ", 1);
    assert_text(&g, "stderr", "ended with exit code 70", 1);
    assert_text(&g, "stderr", "| tensor too large", 1);

    char path[TR_PATH_MAX];
    cJSON *json = NULL;
    const char *text = NULL;
    int64_t n = -1;
    assert_int_equal(tr_path_join(path, g.dir, "run/errors/rank-0002.json"), TR_OK);
    assert_int_equal(tr_json_load(path, 1 << 20, &json), TR_OK);
    assert_int_equal(tr_json_int(json, "rank", true, 0, 9, &n), TR_OK);
    assert_int_equal(n, 2);
    assert_int_equal(tr_json_int(json, "code", true, 0, 255, &n), TR_OK);
    assert_int_equal(n, 70);
    assert_int_equal(tr_json_str(json, "stderr_tail", true, &text), TR_OK);
    assert_string_equal(text, "tensor too large\n");
    assert_int_equal(tr_json_str(json, "host", true, &text), TR_OK);
    cJSON_Delete(json);
    assert_false(rig_has(&g, "run/errors/rank-0000.json"));
    assert_text(&g, "elastic.json", "rank 2 ended with exit code 70", 1);
    assert_text(&g, "run/logs/rank-0002.log", "tensor too large", 1);
    rig_release(&g);
}

/* Ranks 0 and 1 leave with "retry me" because rank 2 is failing; it takes a moment to say so. */
static void a_rank_that_only_followed_is_not_blamed(void **state)
{
    (void)state;
    struct rig g;
    rig_init(&g, 3, "[ $RANK != 2 ] && exit 75; sleep 0.3; exit 78");
    assert_int_equal(rig_run(&g, 5000), TR_EXIT_STOP);
    assert_text(&g, "stderr", "trireme: rank 2 ", 1);
    assert_text(&g, "stderr", "trireme: rank", 1);
    rig_release(&g);
}

static void the_exit_code_says_what_to_do(void **state)
{
    (void)state;
    static const struct {
        const char *end;
        int code;
        const char *said;
    } cases[] = {
        { "exit 0", 0, "" },
        { "exit 2", 2, "exit code 2" },
        { "exit 70", 70, "exit code 70" },
        { "exit 75", 75, "exit code 75" },
        { "exit 78", 78, "exit code 78" },
        { "exit 1", 1, "exit code 1" }, /* the answer of a verb is no */
        { "kill -SEGV $$", 70, "SIGSEGV" },
        { "kill -KILL $$", 70, "SIGKILL" },
    };
    for (size_t i = 0; i < TR_COUNT_OF(cases); i++) {
        struct rig g;
        char script[64];
        snprintf(script, sizeof script, "ulimit -c 0; [ $RANK = 0 ] || %s", cases[i].end);
        rig_init(&g, 2, script);
        assert_int_equal(rig_run(&g, 5000), cases[i].code);
        assert_text(&g, "stderr", cases[i].said[0] ? cases[i].said : "trireme", cases[i].said[0] != 0);
        rig_release(&g);
    }
}

static void exit_0_before_the_others_is_a_failure(void **state)
{
    (void)state;
    struct rig g;
    rig_init(&g, 3, "[ $RANK = 1 ] && exit 0; sleep 60");
    g.l.exit_grace_us = 200 * MS;
    assert_int_equal(rig_run(&g, 5000), TR_EXIT_BUG);
    assert_text(&g, "stderr", "trireme: rank 1 ", 1);
    assert_text(&g, "stderr", "while other ranks still ran", 1);
    rig_release(&g);

    rig_init(&g, 3, "[ $RANK = 1 ] && exit 0; sleep 0.3"); /* within the grace it is none */
    assert_int_equal(rig_run(&g, 5000), 0);
    rig_release(&g);
}

static void a_rank_that_does_not_stop_is_killed(void **state)
{
    (void)state;
    struct rig g;
    rig_init(&g, 3,
             "case $RANK in 0) trap '' TERM; while :; do sleep 1; done;; "
             "1) trap 'kill -STOP $$' TERM CONT; echo $$ >$DIR/pid; kill -STOP $$; while :; do sleep 1; done;; "
             "2) while [ ! -e $DIR/pid ]; do sleep 0.02; done; sleep 0.1; exit 70;; esac");
    g.l.kill_grace_us = 300 * MS;
    assert_int_equal(rig_run(&g, 4000), TR_EXIT_BUG);
    assert_text(&g, "stderr", "trireme: rank 2 ", 1);
    assert_text(&g, "stderr", "killing 2 ranks that did not stop in time", 1);
    rig_release(&g);
}

/* Waits for every orphan that came to us; how many there were, or -1 when one still lives after max_ms. */
static int collect_orphans(int max_ms)
{
    int n = 0;
    for (int ms = 0; ms < max_ms; ms += 5) {
        pid_t pid = waitpid(-1, NULL, WNOHANG);
        if (pid < 0)
            return n;
        if (pid > 0)
            n++;
        else
            nap_ms(5);
    }
    return -1;
}

static void kill_9_of_the_launcher_leaves_nobody(void **state)
{
    (void)state;
    struct rig g;
    assert_true(collect_orphans(1000) >= 0); /* of tests before */
    rig_init(&g, 8, "trap '' TERM HUP INT; echo $$ >$DIR/pid-$RANK; exec sleep 60");
    pid_t pid = rig_start(&g);
    for (int r = 0; r < 8; r++) {
        char name[16];
        snprintf(name, sizeof name, "pid-%d", r);
        rig_await(&g, name);
    }
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    assert_int_equal(collect_orphans(1000), 8);
    rig_release(&g);

    rig_init(&g, 8, "exec sleep 60"); /* at once: some are not even started */
    pid = rig_start(&g);
    nap_ms(3);
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    assert_true(collect_orphans(1000) >= 0);
    rig_release(&g);
}

static void what_a_rank_started_ends_with_it(void **state)
{
    (void)state;
    struct rig g;
    rig_init(&g, 2, "sleep 60 & sleep 60 & [ $RANK = 0 ] || exit 70; wait");
    assert_int_equal(rig_run(&g, 5000), TR_EXIT_BUG);
    assert_true(collect_orphans(1000) >= 0);
    rig_release(&g);
}

static void a_stop_is_passed_on_once_and_means_retry(void **state)
{
    (void)state;
    static const int sent[] = { SIGINT, SIGTERM, SIGHUP };
    static const char *const got[] = { "INT", "TERM", "TERM" };
    for (size_t i = 0; i < TR_COUNT_OF(sent); i++) {
        struct rig g;
        rig_init(&g, 3,
                 "for s in INT TERM HUP; do trap \"echo $s >>$DIR/got-$RANK; stop=1\" $s; done\n"
                 "echo >$DIR/up-$RANK; while [ -z \"$stop\" ]; do sleep 0.05; done; sleep 0.1; exit 75");
        g.l.max_restarts = 5; /* not for this */
        pid_t pid = rig_start(&g);
        rig_await(&g, "up-0");
        rig_await(&g, "up-1");
        rig_await(&g, "up-2");
        kill(pid, sent[i]);
        assert_int_equal(rig_wait(pid, 5000), TR_EXIT_RETRY);
        for (int r = 0; r < 3; r++) {
            char name[16];
            snprintf(name, sizeof name, "got-%d", r);
            assert_text(&g, name, got[i], 1);
            assert_text(&g, name, "\n", 1);
        }
        assert_text(&g, "stderr", "trireme: rank", 0); /* nobody failed */
        rig_release(&g);
    }
}

/* A scheduler signals the launcher and its ranks, and again, and with another signal: each rank is asked once and has
 * the time it needs. */
static void a_repeated_stop_changes_nothing(void **state)
{
    (void)state;
    static const int again[] = { SIGTERM, SIGTERM, SIGINT, SIGINT, SIGHUP, SIGUSR1 };
    struct rig g;
    rig_init(&g, 2,
             "for s in INT TERM HUP USR1; do trap \"echo $s >>$DIR/got-$RANK\" $s; done\n"
             "echo >$DIR/up-$RANK; until [ -e $DIR/may-end ]; do sleep 0.05; done; exit 75");
    g.l.stop_grace_us = 60000 * MS;
    pid_t pid = rig_start(&g);
    rig_await(&g, "up-0");
    rig_await(&g, "up-1");
    for (size_t i = 0; i < TR_COUNT_OF(again); i++) {
        kill(pid, again[i]);
        rig_await(&g, "got-0");
        rig_await(&g, "got-1");
        nap_ms(50);
    }
    assert_int_equal(kill(pid, 0), 0);
    close(rig_file(&g, "may-end"));
    assert_int_equal(rig_wait(pid, 10000), TR_EXIT_RETRY);
    assert_text(&g, "got-0", "\n", 1);
    assert_text(&g, "got-1", "\n", 1);
    assert_text(&g, "stderr", "killing", 0);
    rig_release(&g);
}

/* Ranks that save nothing before the launcher kills them: 75 would promise a checkpoint that is not there. */
static void a_stop_without_a_checkpoint_does_not_say_saved(void **state)
{
    (void)state;
    for (int saved = 4; saved <= 6; saved += 2) {
        struct rig g;
        char output[96], script[256];
        snprintf(script, sizeof script,
                 "trap '' TERM; mkdir -p $DIR/run/checkpoint-%d; echo '{\"event\":\"step\",\"step\":6}' "
                 ">$DIR/run/events.jsonl; echo >$DIR/up-$RANK; while :; do sleep 1; done",
                 saved);
        rig_init(&g, 1, script);
        snprintf(output, sizeof output, "%s/run", g.dir);
        g.l.output = output;
        g.l.stop_grace_us = 200 * MS;
        pid_t pid = rig_start(&g);
        rig_await(&g, "up-0");
        kill(pid, SIGTERM);
        assert_int_equal(rig_wait(pid, 5000), saved == 6 ? TR_EXIT_RETRY : TR_EXIT_UNSAVED);
        rig_release(&g);
    }
}

static void a_stop_has_an_end(void **state)
{
    (void)state;
    struct rig g;
    rig_init(&g, 2, "trap '' TERM; echo >$DIR/up-$RANK; while :; do sleep 1; done");
    g.l.stop_grace_us = 200 * MS;
    pid_t pid = rig_start(&g);
    rig_await(&g, "up-0");
    rig_await(&g, "up-1");
    kill(pid, SIGTERM);
    assert_int_equal(rig_wait(pid, 2000), TR_EXIT_RETRY);
    rig_release(&g);
}

static void a_restart_is_a_new_generation_of_all(void **state)
{
    (void)state;
    struct rig g;
    char *again[] = {
        "/bin/sh", "-c",
        "echo again $TR_GENERATION $TR_JOB >>$DIR/ran-$RANK; [ $TR_GENERATION = 2 ] && exit 0; "
        "[ $RANK = 0 ] && exec sleep 60; until grep -q again $DIR/ran-0; do sleep 0.02; done; kill -KILL $$",
        NULL
    };
    rig_init(&g, 2,
             "echo first $TR_GENERATION $TR_JOB >>$DIR/ran-$RANK; [ $RANK = 0 ] && exec sleep 60; "
             "until [ -s $DIR/ran-0 ]; do sleep 0.02; done; exit 70");
    g.l.restart_argv = again;
    g.l.max_restarts = 3;
    assert_int_equal(rig_run(&g, 5000), 0);
    for (int r = 0; r < 2; r++) {
        char *text = rig_read(&g, r ? "ran-1" : "ran-0");
        assert_int_equal(count_of(text, "\n"), 3);
        assert_int_equal(count_of(text, "first 0 "), 1);
        assert_int_equal(count_of(text, "again 1 "), 1);
        assert_int_equal(count_of(text, "again 2 "), 1);
        text[40] = 0; /* "first 0 " and the 32 digits of the job, which all generations share */
        char *whole = rig_read(&g, "ran-1");
        assert_int_equal(count_of(whole, text + 8), 3);
        free(whole);
        free(text);
    }
    assert_text(&g, "stderr", "trireme: restart ", 2);
    rig_release(&g);
}

static void what_cannot_succeed_is_not_restarted(void **state)
{
    (void)state;
    for (int code = 2; code <= 78; code += 76) {
        struct rig g;
        char script[64];
        snprintf(script, sizeof script, "echo x >>$DIR/ran; exit %d", code);
        rig_init(&g, 1, script);
        g.l.max_restarts = 3;
        assert_int_equal(rig_run(&g, 5000), code);
        assert_text(&g, "ran", "x\n", 1);
        rig_release(&g);
    }
}

/* Two ranks killed from outside, then one own failure at the same step: no loop of the program's yet. */
static void kills_from_outside_are_no_crash_loop(void **state)
{
    struct policy p;
    struct progress same = { 3, 5 };
    (void)state;
    tr_policy_init(&p, 100, same);
    for (int i = 0; i < 6; i++)
        assert_true(tr_policy_judge(&p, TR_EXIT_BUG, SIGKILL, true, same).restart);
    for (int i = 0; i < 3; i++)
        assert_true(tr_policy_judge(&p, TR_EXIT_BUG, 0, true, same).restart);
    struct verdict v = tr_policy_judge(&p, TR_EXIT_BUG, 0, true, same);
    assert_true(!v.restart && v.is_crash_loop && v.exit_code == TR_EXIT_STOP);
}

static void a_crash_loop_ends_with_do_not_requeue(void **state)
{
    (void)state;
    struct rig g;
    char output[96];
    rig_init(&g, 1, "mkdir -p $DIR/run/checkpoint-5; echo x >>$DIR/ran; exit 70");
    snprintf(output, sizeof output, "%s/run", g.dir);
    g.l.output = output;
    g.l.max_restarts = 100;
    assert_int_equal(rig_run(&g, 5000), TR_EXIT_STOP);
    assert_text(&g, "ran", "x\n", 4); /* the checkpoint came in the first; three restarts brought no other */
    rig_release(&g);

    rig_init(&g, 1, "mkdir -p $DIR/run/checkpoint-$TR_GENERATION; echo x >>$DIR/ran; exit 70");
    snprintf(output, sizeof output, "%s/run", g.dir);
    g.l.output = output;
    g.l.max_restarts = 4;
    assert_int_equal(rig_run(&g, 8000), TR_EXIT_BUG); /* it moved each time: only the count ends it */
    assert_text(&g, "ran", "x\n", 5);
    rig_release(&g);
}

static void a_fault_goes_into_the_log_that_the_run_began(void **state)
{
    (void)state;
    struct rig g;
    char output[96];
    rig_init(
        &g, 2,
        "mkdir -p $DIR/run; echo '{\"event\":\"step\"}' >$DIR/run/events.jsonl; [ $RANK = 0 ] || exit 70; sleep 9");
    snprintf(output, sizeof output, "%s/run", g.dir);
    g.l.output = output;
    assert_int_equal(rig_run(&g, 5000), TR_EXIT_BUG);
    assert_text(&g, "run/events.jsonl", "\"event\":\"fault\"", 1);
    assert_text(&g, "run/events.jsonl", "\"rank\":1", 1);
    rig_release(&g);
}

static bool put_text(const char *dir, const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "w");
    bool is_put = f && fputs(text, f) >= 0;
    return f && fclose(f) == 0 && is_put;
}

/* A memory cgroup of 64 MB; false: this host does not let us make one. */
static bool make_cgroup(char *dir, size_t n)
{
    static const char *const places[][2] = { { "/sys/fs/cgroup/memory", "memory.limit_in_bytes" },
                                             { "/sys/fs/cgroup", "memory.max" } };
    for (size_t i = 0; i < TR_COUNT_OF(places); i++) {
        snprintf(dir, n, "%s/trireme-launch-%d", places[i][0], (int)getpid());
        if (access(places[i][0], W_OK) == 0 && mkdir(dir, 0755) == 0) {
            if (put_text(dir, places[i][1], "67108864"))
                return true;
            rmdir(dir);
        }
    }
    return false;
}

/* The launcher and its ranks in that cgroup; its exit code. */
static int run_in_cgroup(struct rig *g, const char *dir)
{
    pid_t pid = fork();
    if (pid == 0)
        _exit(put_text(dir, "cgroup.procs", "0") ? rig_run(g, 8000) : RIG_ERROR);
    return rig_wait(pid, 10000);
}

static void a_kill_for_want_of_memory_is_named_and_is_the_ranks_own_failure(void **state)
{
    (void)state;
    struct rig g;
    char dir[128], output[96];
    if (!make_cgroup(dir, sizeof dir))
        skip();
    rig_init(&g, 2, "[ $RANK = 1 ] && exec tail /dev/zero; sleep 9"); /* tail keeps a line that has no end */
    assert_int_equal(run_in_cgroup(&g, dir), TR_EXIT_BUG);
    assert_text(&g, "stderr", "was killed by the kernel because memory ran out in cgroup /trireme-launch-", 1);
    rig_release(&g);

    rig_init(&g, 2, "[ $RANK = 1 ] && kill -KILL $$; sleep 9"); /* by a person, after the kernel's */
    assert_int_equal(run_in_cgroup(&g, dir), TR_EXIT_BUG);
    assert_text(&g, "stderr", "was ended by SIGKILL", 1);
    rig_release(&g);

    rig_init(&g, 1, "echo x >>$DIR/ran; exec tail /dev/zero"); /* the same again: not for ever */
    snprintf(output, sizeof output, "%s/run", g.dir);
    g.l.output = output;
    g.l.max_restarts = 20;
    assert_int_equal(run_in_cgroup(&g, dir), TR_EXIT_STOP);
    assert_text(&g, "ran", "x\n", 4);
    assert_text(&g, "run/errors/rank-0000.json", "memory ran out", 1);
    rig_release(&g);
    rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_to_fail_is_the_root_cause),
        cmocka_unit_test(a_rank_that_only_followed_is_not_blamed),
        cmocka_unit_test(the_exit_code_says_what_to_do),
        cmocka_unit_test(exit_0_before_the_others_is_a_failure),
        cmocka_unit_test(a_rank_that_does_not_stop_is_killed),
        cmocka_unit_test(kill_9_of_the_launcher_leaves_nobody),
        cmocka_unit_test(what_a_rank_started_ends_with_it),
        cmocka_unit_test(a_stop_is_passed_on_once_and_means_retry),
        cmocka_unit_test(a_repeated_stop_changes_nothing),
        cmocka_unit_test(a_stop_without_a_checkpoint_does_not_say_saved),
        cmocka_unit_test(a_stop_has_an_end),
        cmocka_unit_test(a_restart_is_a_new_generation_of_all),
        cmocka_unit_test(what_cannot_succeed_is_not_restarted),
        cmocka_unit_test(a_crash_loop_ends_with_do_not_requeue),
        cmocka_unit_test(kills_from_outside_are_no_crash_loop),
        cmocka_unit_test(a_fault_goes_into_the_log_that_the_run_began),
        cmocka_unit_test(a_kill_for_want_of_memory_is_named_and_is_the_ranks_own_failure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
