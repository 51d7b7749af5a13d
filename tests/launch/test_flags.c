/* The flags of `trireme launch`: torchrun's names, PET_ defaults, refusals by name. */
#include "launch/launch.h"
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static struct tr_launch_flags parsed;

/* Words are separated by one blank. */
static enum tr_status parse(const char *words, const char *env)
{
    static char text[512];
    char *argv[32], *envp[2] = { (char *)(uintptr_t)env, NULL };
    int argc = 0;
    snprintf(text, sizeof text, "%s", words);
    for (char *p = text; p && *p;) {
        argv[argc++] = p;
        p = strchr(p, ' ');
        if (p)
            *p++ = 0;
    }
    tr_launch_flags_release(&parsed);
    parsed = (struct tr_launch_flags){ 0 };
    return tr_launch_flags_init(argc, argv, envp, &parsed);
}

static void refused(const char *words, const char *env, const char *because)
{
    assert_int_equal(parse(words, env), TR_USAGE);
    if (!strstr(tr_error_text(), because))
        fail_msg("\"%s\" does not say \"%s\"", tr_error_text(), because);
}

static void flags_end_where_the_verb_begins(void **state)
{
    (void)state;
    assert_int_equal(parse("--nproc-per-node 4 --max_restarts=2 --log-dir d train --nproc 9 --x", NULL), TR_OK);
    assert_int_equal(parsed.n_ranks, 4);
    assert_int_equal(parsed.max_restarts, 2);
    assert_string_equal(parsed.log_dir, "d");
    assert_int_equal(parsed.n_words, 5);
    assert_int_equal(parse("train --nproc_per_node 9", NULL), TR_OK);
    assert_int_equal(parsed.n_ranks, 1);
    assert_int_equal(parsed.n_words, 0);
    assert_int_equal(parse("--nproc 3 -- train", NULL), TR_OK);
    assert_int_equal(parsed.n_words, 3);
}

static void gpu_and_auto_are_the_visible_gpus(void **state)
{
    (void)state;
    const struct {
        const char *visible;
        int n;
    } rows[] = { { "0", 1 }, { "0,1,2,3", 4 }, { "GPU-5a,GPU-7b", 2 }, { "3,", 1 } };
    for (size_t i = 0; i < TR_COUNT_OF(rows); i++) {
        setenv("CUDA_VISIBLE_DEVICES", rows[i].visible, 1);
        assert_int_equal(parse("--nproc-per-node gpu train", NULL), TR_OK);
        assert_int_equal(parsed.n_ranks, rows[i].n);
        assert_int_equal(parse("--nproc-per-node auto train", NULL), TR_OK);
        assert_int_equal(parsed.n_ranks, rows[i].n);
    }
    unsetenv("CUDA_VISIBLE_DEVICES");
}

static void auto_and_cpu_are_the_cores_of_this_process(void **state)
{
    (void)state;
    cpu_set_t set;
    assert_int_equal(sched_getaffinity(0, sizeof set, &set), 0);
    setenv("CUDA_VISIBLE_DEVICES", "", 1); /* none, whatever the driver has */
    assert_int_equal(parse("--nproc-per-node auto train", NULL), TR_OK);
    assert_int_equal(parsed.n_ranks, CPU_COUNT(&set));
    assert_int_equal(parse("--nproc_per_node=cpu train", NULL), TR_OK);
    assert_int_equal(parsed.n_ranks, CPU_COUNT(&set));
    unsetenv("CUDA_VISIBLE_DEVICES");
}

static void pet_variables_are_defaults(void **state)
{
    (void)state;
    assert_int_equal(parse("train", "PET_NPROC_PER_NODE=3"), TR_OK);
    assert_int_equal(parsed.n_ranks, 3);
    assert_int_equal(parse("--nproc-per-node 2 train", "PET_NPROC_PER_NODE=3"), TR_OK);
    assert_int_equal(parsed.n_ranks, 2);
    assert_int_equal(parse("train", "PET_RDZV_ENDPOINT=host:1"), TR_OK);
    assert_int_equal(parse("train", "PET_NPROC_PER_NODE="), TR_OK);
    refused("train", "PET_NNODES=x", "PET_NNODES");
    assert_int_equal(parse("--master-addr a --master-port 7 train", "PET_NNODES=2"), TR_OK);
    assert_int_equal(parsed.n_nodes_max, 2);
    assert_string_equal(parsed.endpoint, "a:7");
}

static void flags_without_a_meaning_here_are_noticed(void **state)
{
    (void)state;
    assert_int_equal(parse("--standalone --rdzv-backend c10d --tee 3 train", NULL), TR_OK);
    assert_int_equal(parsed.n_words, 5);
    assert_null(strstr(parsed.notices.p, "--standalone"));
    assert_non_null(strstr(parsed.notices.p, "--rdzv-backend has no effect"));
    assert_non_null(strstr(parsed.notices.p, "--tee has no effect"));
}

static void mistakes_are_refused_by_name(void **state)
{
    (void)state;
    refused("--nnodes 2 train", NULL, "--rdzv HOST:PORT");
    refused("--nnodes 4:1 --rdzv a:1 train", NULL, "--nnodes");
    refused("--nnodes 65 --rdzv a:1 train", NULL, "--nnodes");
    refused("--nnodes 2 --rdzv a:1 --node-rank 2 train", NULL, "is not one of the nodes 0 to 1");
    refused("--rdzv-conf join_timeout=0 train", NULL, "--rdzv-conf");
    refused("--node-rank 1 train", NULL, "--node-rank");
    refused("--nproc-per-node 0 train", NULL, "--nproc-per-node");
    refused("--nproc-per-node 1025 train", NULL, "--nproc-per-node");
    setenv("CUDA_VISIBLE_DEVICES", "-1", 1);
    refused("--nproc-per-node gpu train", NULL, "no GPU is visible");
    unsetenv("CUDA_VISIBLE_DEVICES");
    refused("--nproc-per-node", NULL, "a value is missing");
    refused("--max-restarts -1 train", NULL, "--max-restarts");
    refused("--nproc-per-nod 2 train", NULL, "did you mean --nproc-per-node");
    refused("--nproc 2 --log-rank 2 train", NULL, "--log-rank 2");
    refused("-m train", NULL, "-m");
    refused("--module x", NULL, "--module");
    refused("--standalone=1 train", NULL, "takes no value");
    assert_int_equal(parse("--nnodes 1 --node-rank 0 train", NULL), TR_OK);
    assert_int_equal(parse("--nnodes=1:1 train", NULL), TR_OK);
    assert_int_equal(parse("--nnodes 1:4 --rdzv-endpoint h:1 --rdzv-conf is_host=1,join_timeout=9 train", NULL), TR_OK);
    assert_int_equal(parsed.n_nodes_min, 1);
    assert_int_equal(parsed.n_nodes_max, 4);
    assert_int_equal(parsed.join_s, 9);
}

static void help_names_every_flag_that_does_something(void **state)
{
    (void)state;
    struct tr_str s = { 0 };
    assert_int_equal(parse("--nproc 2 --help", NULL), TR_OK);
    assert_true(parsed.help);
    tr_launch_help(&s);
    assert_true(tr_str_ok(&s));
    for (const char *const *name = (const char *const[]){ "--nproc-per-node", "--nnodes", "--node-rank",
                                                          "--max-restarts", "--log-dir", "--log-rank", NULL };
         *name; name++)
        assert_non_null(strstr(s.p, *name));
    tr_str_release(&s);
    tr_launch_flags_release(&parsed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(flags_end_where_the_verb_begins),
        cmocka_unit_test(auto_and_cpu_are_the_cores_of_this_process),
        cmocka_unit_test(gpu_and_auto_are_the_visible_gpus),
        cmocka_unit_test(pet_variables_are_defaults),
        cmocka_unit_test(flags_without_a_meaning_here_are_noticed),
        cmocka_unit_test(mistakes_are_refused_by_name),
        cmocka_unit_test(help_names_every_flag_that_does_something),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
