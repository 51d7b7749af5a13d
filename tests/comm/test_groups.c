/* Groups and order: splits, several communicators in flight, rings of sends, more posts than the queue holds; ranks as
 * processes, and as threads of one process, where TSan sees both ends of every exchange. */
#include "comm/group_checks.h"

static void a_grid_of_2x2x2_splits_in_its_axes(void **state)
{
    (void)state;
    run_ranks(8, split_grid, NULL);
}

static void closed_communicators_are_used_again(void **state)
{
    (void)state;
    run_ranks(4, split_often, NULL);
}

static void a_split_that_finds_other_ranks_is_refused_everywhere(void **state)
{
    (void)state;
    run_ranks(3, wrong_split, NULL);
}

static void what_is_moved_elsewhere_is_compared_here(void **state)
{
    (void)state;
    run_ranks(3, elsewhere, NULL);
}

static void rings_of_sends_do_not_deadlock(void **state)
{
    (void)state;
    for (int size = 2; size <= 4; size++)
        run_ranks(size, ring, NULL);
}

static void posts_may_run_ahead_of_waits(void **state)
{
    (void)state;
    run_ranks(3, post_many, NULL);
}

static void a_posted_collective_completes_while_its_rank_is_busy(void **state)
{
    (void)state;
    run_ranks(2, overlap, NULL);
}

static void ranks_may_be_threads_of_one_process(void **state)
{
    (void)state;
    run_threads(4, ring, NULL);
    run_threads(3, post_many, NULL);
    run_threads(8, split_grid, NULL);
    run_threads(4, split_often, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_grid_of_2x2x2_splits_in_its_axes),
        cmocka_unit_test(closed_communicators_are_used_again),
        cmocka_unit_test(a_split_that_finds_other_ranks_is_refused_everywhere),
        cmocka_unit_test(what_is_moved_elsewhere_is_compared_here),
        cmocka_unit_test(rings_of_sends_do_not_deadlock),
        cmocka_unit_test(posts_may_run_ahead_of_waits),
        cmocka_unit_test(a_posted_collective_completes_while_its_rank_is_busy),
        cmocka_unit_test(ranks_may_be_threads_of_one_process),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
