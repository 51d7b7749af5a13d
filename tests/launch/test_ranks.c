/* What ranks are given (environment, cores) and where their output goes (terminal, logs). */
#include "launch/launch_rig.h"
#include <sched.h>

static void every_rank_gets_its_environment(void **state)
{
    (void)state;
    struct rig g;
    rig_init(&g, 8,
             "echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $TR_GENERATION ${MASTER_ADDR-none} $TR_JOB "
             ">$DIR/env-$RANK");
    assert_int_equal(rig_run(&g, 5000), 0);
    char job[64] = "";
    for (int r = 0; r < 8; r++) {
        char name[16], want[64];
        snprintf(name, sizeof name, "env-%d", r);
        snprintf(want, sizeof want, "%d %d 8 8 0 none ", r, r);
        char *text = rig_read(&g, name);
        assert_int_equal(strncmp(text, want, strlen(want)), 0);
        const char *id = text + strlen(want);
        assert_int_equal(strspn(id, "0123456789abcdef"), 32);
        if (r == 0)
            snprintf(job, sizeof job, "%s", id);
        assert_string_equal(id, job);
        free(text);
    }
    rig_release(&g);
}

/* Two cores that this process may use; false: it has only one. */
static bool take_two_cores(cpu_set_t *all)
{
    cpu_set_t two;
    assert_int_equal(sched_getaffinity(0, sizeof *all, all), 0);
    CPU_ZERO(&two);
    for (size_t cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&two) < 2; cpu++)
        if (CPU_ISSET(cpu, all))
            CPU_SET(cpu, &two);
    return CPU_COUNT(&two) == 2 && sched_setaffinity(0, sizeof two, &two) == 0;
}

#define SHOW_CORES                                                                                                     \
    "sed -n 's/^Cpus_allowed_list:.//p' /proc/self/status >$DIR/cores-$RANK; echo ${TRIREME_THREADS-none} "            \
    ">$DIR/threads-$RANK"

static void ranks_share_the_cores_evenly(void **state)
{
    (void)state;
    struct rig g;
    cpu_set_t all;
    if (!take_two_cores(&all))
        skip();
    rig_init(&g, 2, SHOW_CORES);
    assert_int_equal(rig_run(&g, 5000), 0);
    char *a = rig_read(&g, "cores-0"), *b = rig_read(&g, "cores-1");
    assert_string_not_equal(a, b);
    assert_null(strpbrk(a, ",-")); /* one core each */
    assert_null(strpbrk(b, ",-"));
    assert_text(&g, "threads-0", "1\n", 1);
    assert_text(&g, "threads-1", "1\n", 1);
    free(a);
    free(b);
    rig_release(&g);

    rig_init(&g, 8, SHOW_CORES); /* more ranks than cores: all on all, one thread each */
    assert_int_equal(rig_run(&g, 5000), 0);
    a = rig_read(&g, "cores-0");
    b = rig_read(&g, "cores-7");
    assert_string_equal(a, b);
    assert_non_null(strpbrk(a, ",-"));
    assert_text(&g, "threads-7", "1\n", 1);
    free(a);
    free(b);
    rig_release(&g);

    rig_init(&g, 2, SHOW_CORES); /* a number that the user chose is his, and is not squeezed into one core */
    g.l.threads = 2;
    assert_int_equal(rig_run(&g, 5000), 0);
    a = rig_read(&g, "cores-1");
    assert_non_null(strpbrk(a, ",-"));
    assert_text(&g, "threads-1", "none", 1);
    free(a);
    rig_release(&g);
    assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
}

#define TALK "printf 'out %d' $RANK; printf 'err %d\\nhalf' $RANK >&2"

static void without_logs_one_rank_is_shown_and_the_others_complaints(void **state)
{
    (void)state;
    struct rig g;
    rig_init(&g, 3, TALK);
    g.l.log_rank = 1;
    assert_int_equal(rig_run(&g, 5000), 0);
    char *out = rig_read(&g, "stdout");
    assert_string_equal(out, "out 1"); /* byte for byte */
    free(out);
    assert_text(&g, "stderr", "[rank 0] err 0\n", 1);
    assert_text(&g, "stderr", "[rank 0] half\n", 1);
    assert_text(&g, "stderr", "[rank 2] err 2\n", 1);
    assert_text(&g, "stderr", "err 1\nhalf", 1);
    assert_text(&g, "stderr", "[rank 1]", 0);
    rig_release(&g);
}

static void with_logs_every_rank_has_its_file(void **state)
{
    (void)state;
    struct rig g;
    char logs[96];
    rig_init(&g, 3, TALK);
    snprintf(logs, sizeof logs, "%s/a/b", g.dir);
    g.l.log_dir = logs;
    assert_int_equal(rig_run(&g, 5000), 0);
    assert_text(&g, "stdout", "out 0", 1);
    assert_text(&g, "stderr", "err 0\nhalf", 1);
    assert_text(&g, "stderr", "rank", 0);
    for (int r = 0; r < 3; r++) {
        char name[32], word[16];
        snprintf(name, sizeof name, "a/b/rank-%04d.log", r);
        snprintf(word, sizeof word, "out %d", r);
        assert_text(&g, name, word, 1);
        snprintf(word, sizeof word, "err %d\nhalf", r);
        assert_text(&g, name, word, 1);
    }
    rig_release(&g);
}

static void logs_wait_for_the_output_directory(void **state)
{
    (void)state;
    struct rig g;
    char output[96];
    rig_init(&g, 2, "echo early; [ $RANK = 1 ] || mkdir -p $DIR/run; sleep 0.2; echo late; exit ${CODE:-0}");
    snprintf(output, sizeof output, "%s/run", g.dir);
    g.l.output = output;
    assert_int_equal(rig_run(&g, 5000), 0);
    assert_text(&g, "run/logs/rank-0001.log", "early\nlate\n", 1);
    rig_release(&g);

    rig_init(&g, 2, "[ $RANK = 0 ] || sleep 0.2; echo bad input >&2; exit 2"); /* refused: nothing written */
    snprintf(output, sizeof output, "%s/run", g.dir);
    g.l.output = output;
    assert_int_equal(rig_run(&g, 5000), 2);
    assert_false(rig_has(&g, "run"));
    assert_text(&g, "stderr", "bad input", 1); /* rank 0 showed it, so it is not repeated */
    rig_release(&g);
}

/* A rank that writes a lot into a pipe that nobody reads waits; the launcher does not. */
static void a_terminal_that_does_not_read_never_holds_the_launcher(void **state)
{
    (void)state;
    struct rig g;
    int p[2];
    assert_int_equal(pipe2(p, O_CLOEXEC), 0);
    rig_init(&g, 2, "[ $RANK = 1 ] || { echo $$ >$DIR/pid; head -c 1000000 /dev/zero; echo >$DIR/done; }; sleep 60");
    g.l.out_fd = p[1];
    pid_t pid = rig_start(&g);
    rig_await(&g, "pid");
    nap_ms(200);
    assert_false(rig_has(&g, "done"));
    kill(pid, SIGTERM);
    assert_int_equal(rig_wait(pid, 4000), TR_EXIT_RETRY);
    close(p[0]);
    close(p[1]);
    rig_release(&g);
}

static void a_reader_that_left_does_not_end_the_job(void **state)
{
    (void)state;
    struct rig g;
    char logs[96];
    int p[2];
    assert_int_equal(pipe2(p, O_CLOEXEC), 0);
    close(p[0]);
    rig_init(&g, 2, "head -c 300000 /dev/zero | tr '\\0' x; echo end");
    snprintf(logs, sizeof logs, "%s/logs", g.dir);
    g.l.log_dir = logs;
    g.l.out_fd = p[1];
    assert_int_equal(rig_run(&g, 5000), 0);
    close(p[1]);
    char *text = rig_read(&g, "logs/rank-0000.log");
    assert_true(strlen(text) > 300000);
    assert_non_null(strstr(text, "xend\n"));
    free(text);
    rig_release(&g);
}

static void a_program_that_is_not_there_is_named(void **state)
{
    (void)state;
    struct rig g;
    rig_init(&g, 1, "");
    g.l.program = "/no/such/program";
    assert_int_equal(rig_run(&g, 5000), TR_EXIT_BUG);
    assert_text(&g, "stderr", "cannot run /no/such/program: No such file", 1);
    rig_release(&g);
}

static void process_1_reaps_what_its_ranks_leave_behind(void **state)
{
    (void)state;
    struct rig g;
    rig_init(&g, 2, "sleep 100 & (sleep 100 &) ; exit 0");
    g.is_process_1 = true;
    assert_int_equal(rig_run(&g, 5000), 0);
    rig_release(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_rank_gets_its_environment),
        cmocka_unit_test(ranks_share_the_cores_evenly),
        cmocka_unit_test(without_logs_one_rank_is_shown_and_the_others_complaints),
        cmocka_unit_test(with_logs_every_rank_has_its_file),
        cmocka_unit_test(logs_wait_for_the_output_directory),
        cmocka_unit_test(a_terminal_that_does_not_read_never_holds_the_launcher),
        cmocka_unit_test(a_reader_that_left_does_not_end_the_job),
        cmocka_unit_test(a_program_that_is_not_there_is_named),
        cmocka_unit_test(process_1_reaps_what_its_ranks_leave_behind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
