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
    assert_int_equal(
        parse("--nproc-per-node 4 --max_restarts=2 --log-dir d --metrics-port [::1]:9 train --nproc 9 --x", NULL),
        TR_OK);
    assert_int_equal(parsed.n_ranks, 4);
    assert_string_equal(parsed.metrics_port, "[::1]:9");
    assert_int_equal(parsed.max_restarts, 2);
    assert_string_equal(parsed.log_dir, "d");
    assert_int_equal(parsed.n_words, 7);
    assert_int_equal(parse("train --nproc_per_node 9", NULL), TR_OK);
    assert_int_equal(parsed.n_ranks, 1);
    assert_int_equal(parsed.n_words, 0);
    assert_int_equal(parse("--nproc 3 -- train", NULL), TR_OK);
    assert_int_equal(parsed.n_words, 3);
}

/* Variables are separated by ';'. */
static enum tr_status parse_in(const char *words, const char *variables)
{
    static char text[512], env[1024], *argv[32], *envp[16];
    char *at = NULL;
    int argc = 0, n = 0;
    snprintf(text, sizeof text, "%s", words);
    snprintf(env, sizeof env, "%s", variables);
    for (char *p = strtok_r(text, " ", &at); p; p = strtok_r(NULL, " ", &at))
        argv[argc++] = p;
    for (char *p = strtok_r(env, ";", &at); p; p = strtok_r(NULL, ";", &at))
        envp[n++] = p;
    envp[n] = NULL;
    tr_launch_flags_release(&parsed);
    parsed = (struct tr_launch_flags){ 0 };
    return tr_launch_flags_init(argc, argv, envp, &parsed);
}

static void schedulers_say_which_node_this_is(void **state)
{
    (void)state;
    static const struct {
        const char *env, *words;
        int n_nodes, node, n_ranks;
        const char *endpoint, *where;
    } rows[] = {
        { "SKYPILOT_NODE_RANK=1;SKYPILOT_NUM_NODES=4;SKYPILOT_NODE_IPS=10.0.0.1\n10.0.0.2;SKYPILOT_NUM_GPUS_PER_NODE=8",
          "train", 4, 1, 8, "10.0.0.1:29500", "SkyPilot" },
        { "SKYPILOT_NODE_RANK=0;SKYPILOT_NUM_NODES=2;SKYPILOT_NODE_IPS=h;SKYPILOT_NUM_GPUS_PER_NODE=0",
          "--nproc-per-node 3 train", 2, 0, 3, "h:29500", "SkyPilot" },
        { "DSTACK_NODE_RANK=2;DSTACK_NODES_NUM=3;DSTACK_MASTER_NODE_IP=m;DSTACK_GPUS_PER_NODE=2", "train", 3, 2, 2,
          "m:29500", "dstack" },
        { "LWS_LEADER_ADDRESS=lead.svc;LWS_GROUP_SIZE=2;LWS_WORKER_INDEX=1", "train", 2, 1, 1, "lead.svc:29500",
          "LeaderWorkerSet" },
        { "VC_TASK_INDEX=1;WORLD_SIZE=2;RANK=1;MASTER_ADDR=v-0;MASTER_PORT=23456", "train", 2, 1, 1, "v-0:23456",
          "Volcano" },
        { "SLURM_STEP_NUM_NODES=2;SLURM_STEP_NUM_TASKS=2;SLURM_NODEID=1;SLURM_STEP_NODELIST=n[07-9,12],m1;SLURM_JOB_ID="
          "5",
          "train", 2, 1, 1, "n07:29500", "Slurm" },
        { "SLURM_STEP_NUM_NODES=2;SLURM_STEP_NUM_TASKS=8;SLURM_NODEID=1", "train", 1, -1, 1, "",
          NULL },                                                             /* 4 tasks a node */
        { "RANK=3;WORLD_SIZE=8;MASTER_ADDR=x", "train", 1, -1, 1, "", NULL }, /* ranks of torchrun, not nodes */
        { "JOB_COMPLETION_INDEX=1", "--nnodes 2 --rdzv a:1 train", 2, 1, 1, "", "Kubernetes" },
        { "JOB_COMPLETION_INDEX=5", "train", 1, -1, 1, "", "Kubernetes" }, /* a job of single nodes */
        { "SKYPILOT_NODE_RANK=1;SKYPILOT_NUM_NODES=2;SKYPILOT_NODE_IPS=h", "--nnodes 1 train", 1, -1, 1, "",
          "SkyPilot" },
        { "SKYPILOT_NODE_RANK=1;SKYPILOT_NUM_NODES=2;SKYPILOT_NODE_IPS=h;PET_NNODES=3", "train", 3, 1, 1, "h:29500",
          "SkyPilot" },
    };
    for (size_t i = 0; i < TR_COUNT_OF(rows); i++) {
        if (parse_in(rows[i].words, rows[i].env) != TR_OK)
            fail_msg("row %zu: %s", i, tr_error_text());
        assert_int_equal(parsed.n_nodes_max, rows[i].n_nodes);
        assert_int_equal(parsed.node_rank, rows[i].node);
        assert_int_equal(parsed.n_ranks, rows[i].n_ranks);
        assert_string_equal(parsed.endpoint, rows[i].endpoint);
        assert_int_equal(parsed.where != NULL, rows[i].where != NULL);
        if (rows[i].where)
            assert_string_equal(parsed.where, rows[i].where);
    }
    assert_int_equal(parse_in("train", "SKYPILOT_NODE_RANK=x;SKYPILOT_NUM_NODES=2"), TR_USAGE);
    assert_non_null(strstr(tr_error_text(), "environment SKYPILOT_NODE_RANK"));
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
        cmocka_unit_test(schedulers_say_which_node_this_is),
        cmocka_unit_test(pet_variables_are_defaults),
        cmocka_unit_test(flags_without_a_meaning_here_are_noticed),
        cmocka_unit_test(mistakes_are_refused_by_name),
        cmocka_unit_test(help_names_every_flag_that_does_something),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
