/* T7: agents in a simulated world. usage: launch_agent_sim [SEEDS [FIRST]]; "replay SEED" shows one run line by line.
 * Without arguments: some seeds, and planted bugs that must be seen. */
#include "launch/agent_sim.h"
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static struct world world;

static void no_seed_splits_or_loses_a_commit(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 300; seed++)
        if (!simulate(&world, seed, PLANT_NONE, false))
            fail_msg("%s; launch_agent_sim replay %" PRIu64, world.failed, seed);
}

/* Seed 111950: a node comes again, the job ends, and only then the node's slow disk answers for the first time. */
static void a_node_that_comes_as_the_job_ends_ends_with_it(void **state)
{
    (void)state;
    if (!simulate(&world, 111950, PLANT_NONE, false))
        fail_msg("%s", world.failed);
}

/* Carries out what the coordinator orders but for messages; returns how often it starts its ranks, and its reports. */
static int obey_alone(struct agent *a, int64_t now, char *said, size_t n_said)
{
    int n_spawned = 0;
    while (a->n_acts > 0) {
        struct act x = a->acts[0];
        memmove(a->acts, a->acts + 1, (size_t)--a->n_acts * sizeof x);
        if (x.kind == ACT_CLAIM)
            tr_agent_claimed(a, now, x.msg.generation, true);
        else if (x.kind == ACT_READ)
            tr_agent_disk(a, now, &(struct disk_view){ .progress = { -1, -1 } });
        else if (x.kind == ACT_REPORT)
            snprintf(said + strlen(said), n_said - strlen(said), "%s\n", x.msg.text);
        n_spawned += x.kind == ACT_SPAWN;
    }
    return n_spawned;
}

/* How a rank of another node ended is said in that node's words; a kill for want of memory counts as its own failure,
 * so that the third at the same place ends the job, where one from outside would be tried ten times. */
static void a_kill_for_want_of_memory_on_another_node_is_named_and_counts(void **state)
{
    (void)state;
    static struct agent a;
    char said[4096] = "";
    int n_generations = 0;
    const struct agent_options o = { .id = 1,
                                     .job = 1,
                                     .n_min = 2,
                                     .n_max = 2,
                                     .n_local = 1,
                                     .max_restarts = 20,
                                     .has_output = true,
                                     .join_us = 60000000 };
    struct msg join = { .kind = MSG_JOIN, .order = 1, .n_local = 1, .id = 2, .text = "far" },
               beat = { .kind = MSG_BEAT };
    int64_t now = 1000000;
    tr_agent_init(&a, &o, now);
    for (bool is_joined = false; a.role != ROLE_OVER && now < 600000000; now += 100000) {
        tr_agent_tick(&a, now);
        int n_spawned = obey_alone(&a, now, said, sizeof said);
        n_generations += n_spawned;
        if (!is_joined && a.role == ROLE_LEAD) {
            tr_agent_message(&a, now, 7, &join);
            is_joined = true;
        } else if (n_spawned) {
            struct msg end = { .kind = MSG_FAILED, .generation = a.group_generation, .rank = 1, .sig = 9, .is_oom = 1 };
            snprintf(end.text, sizeof end.text, "was killed by the kernel because memory ran out in cgroup /job");
            tr_agent_message(&a, now, 7, &end);
            end.kind = MSG_ENDED;
            tr_agent_message(&a, now, 7, &end);
            tr_agent_ended(&a, now, &(struct group_end){ .rank = -1, .code = TR_EXIT_RETRY, .how = "" });
        } else if (is_joined) {
            tr_agent_message(&a, now, 7, &beat);
        }
        n_generations += obey_alone(&a, now, said, sizeof said);
    }
    assert_non_null(strstr(said, "rank 1 (far) was killed by the kernel because memory ran out in cgroup /job"));
    assert_int_equal(a.exit_code, TR_EXIT_STOP);
    assert_in_range(n_generations, 3, 4);
}

/* An oracle that cannot turn red proves nothing. */
static void every_planted_bug_is_seen(void **state)
{
    (void)state;
    for (int plant = PLANT_NONE + 1; plant < PLANTS; plant++) {
        uint64_t seed = 1;
        while (seed <= 600 && simulate(&world, seed, (enum plant)plant, false))
            seed++;
        if (seed > 600)
            fail_msg("planted bug %d is not seen in 600 seeds", plant);
        printf("planted bug %d: %s\n", plant, world.failed);
    }
}

static int campaign(uint64_t n, uint64_t first)
{
    uint64_t n_failed = 0, n_faults = 0, n_claims = 0, n_commits = 0;
    for (uint64_t seed = first; seed < first + n; seed++) {
        if (!simulate(&world, seed, PLANT_NONE, false)) {
            n_failed++;
            printf("FAILED %s\n", world.failed);
        }
        n_faults += (uint64_t)world.n_faults;
        n_claims += (uint64_t)world.n_claims;
        n_commits += (uint64_t)world.n_commits;
        if ((seed - first + 1) % 10000 == 0) {
            printf("T7 so far: %" PRIu64 " seeds, %" PRIu64 " failed\n", seed - first + 1, n_failed);
            fflush(stdout);
        }
    }
    printf("T7 seeds %" PRIu64 "..%" PRIu64 ": %" PRIu64 " faults, %" PRIu64 " generations, %" PRIu64
           " commits; %" PRIu64 " seeds failed\n",
           first, first + n - 1, n_faults, n_claims, n_commits, n_failed);
    return n_failed ? 1 : 0;
}

int main(int argc, char **argv)
{
    int64_t n = 0, first = 1;
    if (argc == 3 && strcmp(argv[1], "replay") == 0 && tr_parse_int(argv[2], 1, INT64_MAX, &n) == TR_OK) {
        bool is_ok = simulate(&world, (uint64_t)n, PLANT_NONE, true);
        printf("%s\n", is_ok ? "ends well" : world.failed);
        return is_ok ? 0 : 1;
    }
    if (argc > 1) {
        if (tr_parse_int(argv[1], 1, INT64_MAX / 2, &n) != TR_OK ||
            (argc > 2 && tr_parse_int(argv[2], 1, INT64_MAX / 2, &first) != TR_OK))
            return 2;
        return campaign((uint64_t)n, (uint64_t)first);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_seed_splits_or_loses_a_commit),
        cmocka_unit_test(a_node_that_comes_as_the_job_ends_ends_with_it),
        cmocka_unit_test(a_kill_for_want_of_memory_on_another_node_is_named_and_counts),
        cmocka_unit_test(every_planted_bug_is_seen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
