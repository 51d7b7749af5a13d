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
        cmocka_unit_test(every_planted_bug_is_seen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
