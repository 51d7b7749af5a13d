/* test_tables.c - the tables that the compiler, the executor and the planner are driven by. With the argument `print`
 * it writes them down, one row a line, for tests/cli/test_architecture.sh, which compares docs/architecture.md with
 * them.
 */
#include "parallel/parallel_impl.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const struct {
    const char *name, *phase, *failpoint;
    enum tr_stream stream;
} actions[] = {
#define X(id, name, phase, failpoint, stream) { name, #phase, failpoint, TR_STREAM_##stream },
    TR_ACTION_LIST(X)
#undef X
};

enum { N_ACTIONS = (int)TR_COUNT_OF(actions), MAX_NAMES = 64 };

static int level2_names(struct tr_str *list, char *name[MAX_NAMES])
{
    int n = 0;
    tr_level2_list(list);
    for (char *save = NULL, *at = strtok_r(list->p, " ", &save); at && n < MAX_NAMES; at = strtok_r(NULL, " ", &save))
        name[n++] = at;
    return n;
}

static void print_tables(void)
{
    struct tr_str list = { 0 };
    char *name[MAX_NAMES];
    int n = level2_names(&list, name);
    for (size_t i = 0; i < tr_n_passes; i++)
        printf("level1 %s\n", tr_passes[i].name);
    for (int i = 0; i < n; i++)
        printf("level2 %s\n", name[i]);
    for (int i = 0; i < N_ACTIONS; i++)
        printf("action %s %s %s %s\n", actions[i].name, actions[i].phase, actions[i].failpoint,
               tr_stream_name(actions[i].stream));
    tr_str_release(&list);
}

static void no_two_passes_share_a_name(void **state)
{
    (void)state;
    struct tr_str list = { 0 };
    char *name[MAX_NAMES];
    int n = level2_names(&list, name);
    assert_true(n > 0 && tr_n_passes > 0);
    for (size_t i = 0; i < tr_n_passes; i++) {
        for (size_t k = 0; k < i; k++)
            assert_string_not_equal(tr_passes[i].name, tr_passes[k].name);
        for (int k = 0; k < n; k++)
            assert_string_not_equal(tr_passes[i].name, name[k]);
    }
    tr_str_release(&list);
}

static void no_two_actions_share_a_name_or_a_failpoint(void **state)
{
    (void)state;
    for (int i = 0; i < N_ACTIONS; i++) {
        assert_string_equal(actions[i].name, tr_action_name((enum tr_action_kind)i));
        for (int k = 0; k < i; k++) {
            assert_string_not_equal(actions[i].name, actions[k].name);
            assert_string_not_equal(actions[i].failpoint, actions[k].failpoint);
        }
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_two_passes_share_a_name),
        cmocka_unit_test(no_two_actions_share_a_name_or_a_failpoint),
    };
    if (argc == 2 && strcmp(argv[1], "print") == 0) {
        print_tables();
        return 0;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
