/* test_load.c - where values come from, who wins, and what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <sys/stat.h>
#include <unistd.h>

#include "config/config.h"

static const struct tr_config *cfg;

static enum tr_status load_env(enum tr_verb verb, char *const *envp, char *const *argv)
{
    int argc = 0;
    while (argv[argc] != NULL)
        argc++;
    tr_config_close(cfg);
    cfg = NULL;
    tr_error_clear();
    return tr_config_load(verb, argc, argv, envp, &cfg);
}

#define ARGS(...)          ((char *[]){ __VA_ARGS__, NULL })
#define LOAD(verb, ...)    load_env(TR_VERB_##verb, NULL, ARGS(__VA_ARGS__))
#define TRAIN(...)         LOAD(TRAIN, "--model", "m", "--data", "d", "--output", "o", __VA_ARGS__)
#define assert_text(sub)   assert_non_null(strstr(tr_error_text(), sub))
#define assert_refused(st) assert_int_equal(st, TR_USAGE)
#define assert_loads(st)                                                                                               \
    do {                                                                                                               \
        if ((st) != TR_OK)                                                                                             \
            fail_msg("%s", tr_error_text());                                                                           \
    } while (0)

static char file_path[64];

static char *write_file(const char *text)
{
    (void)snprintf(file_path, sizeof file_path, "/tmp/trireme-config-%d.yaml", (int)getpid());
    FILE *f = fopen(file_path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
    return file_path;
}

static int teardown(void **state)
{
    (void)state;
    tr_config_close(cfg);
    cfg = NULL;
    if (file_path[0] != '\0')
        unlink(file_path);
    return 0;
}

static void defaults_are_those_of_transformers(void **state)
{
    (void)state;
    assert_loads(TRAIN("--quiet"));
    assert_int_equal(cfg->per_device_train_batch_size, 8);
    assert_int_equal(cfg->gradient_accumulation_steps, 1);
    assert_int_equal(cfg->train_batch_size, 8);
    assert_int_equal(cfg->max_steps, -1);
    assert_true(cfg->num_train_epochs == 3.0);
    assert_true(cfg->learning_rate == 5e-5);
    assert_true(cfg->adam_beta1 == 0.9 && cfg->adam_beta2 == 0.999 && cfg->adam_epsilon == 1e-8);
    assert_true(cfg->weight_decay == 0 && cfg->max_grad_norm == 1.0);
    assert_int_equal(cfg->lr_scheduler_type, TR_LR_LINEAR);
    assert_int_equal(cfg->optim, TR_OPTIM_ADAMW);
    assert_int_equal(cfg->seed, 42);
    assert_int_equal(cfg->data_seed, 42);
    assert_int_equal(cfg->save_steps, 500);
    assert_int_equal(cfg->logging_steps, 10);
    assert_int_equal(cfg->dtype, TR_F32);
    assert_true(cfg->dropout < 0);
    assert_string_equal(cfg->resume_from_checkpoint, "none");
    assert_true(cfg->quiet && !cfg->json);
    assert_string_equal(tr_config_notices(cfg), "");
}

static void all_four_spellings_of_a_value_agree(void **state)
{
    (void)state;
    assert_loads(TRAIN("--learning_rate", "0.5"));
    assert_true(cfg->learning_rate == 0.5);
    assert_loads(TRAIN("--learning-rate=0.5"));
    assert_true(cfg->learning_rate == 0.5);
    assert_loads(TRAIN("--lr", "0.5"));
    assert_true(cfg->learning_rate == 0.5);
    assert_loads(TRAIN("--set", "optim.lr=0.5"));
    assert_true(cfg->learning_rate == 0.5);
    assert_loads(TRAIN("--set=optim.learning-rate=0.5"));
    assert_true(cfg->learning_rate == 0.5);
    assert_loads(TRAIN("--max-steps", "-1", "--cutoff-len", "77"));
    assert_int_equal(cfg->max_steps, -1);
    assert_int_equal(cfg->sequence_length, 77);
}

static void flags_need_no_value_and_take_every_bool_word(void **state)
{
    (void)state;
    assert_loads(TRAIN("--json", "--from_scratch", "no", "--bf16"));
    assert_true(cfg->json && !cfg->from_scratch);
    assert_int_equal(cfg->dtype, TR_BF16);
    static char *const on[] = { "yes", "on", "true", "True", "1" }, *const off[] = { "no", "off", "false", "0" };
    for (size_t i = 0; i < TR_COUNT_OF(on); i++) {
        assert_loads(TRAIN("--json", on[i]));
        assert_true(cfg->json);
    }
    for (size_t i = 0; i < TR_COUNT_OF(off); i++) {
        assert_loads(TRAIN("--json", off[i], "--fp16", off[i]));
        assert_false(cfg->json);
        assert_int_equal(cfg->dtype, TR_F32);
    }
    assert_refused(TRAIN("--json=maybe"));
    assert_text("--json: \"maybe\"");
}

static void precedence_is_command_set_file_environment_default(void **state)
{
    (void)state;
    char *file = write_file("learning_rate: 0.3\nweight_decay: 0.3\nadam_beta1: 0.3\n");
    char *env[] = { "TRIREME_LEARNING_RATE=0.4",
                    "TRIREME_WEIGHT_DECAY=0.4",
                    "TRIREME_ADAM_BETA1=0.4",
                    "TRIREME_ADAM_BETA2=0.4",
                    "HOME=/root",
                    NULL };
    assert_loads(load_env(TR_VERB_TRAIN, env,
                          ARGS("--set", "learning_rate=0.2", "--model", "m", "--data", "d", "--learning_rate", "0.1",
                               "--set", "weight_decay=0.2", "--config", file, "--output", "o")));
    assert_true(cfg->learning_rate == 0.1);
    assert_true(cfg->weight_decay == 0.2);
    assert_true(cfg->adam_beta1 == 0.3);
    assert_true(cfg->adam_beta2 == 0.4);
    assert_true(cfg->adam_epsilon == 1e-8);
    assert_string_equal(tr_config_origin(cfg, "learning_rate"), "command line --learning_rate");
    assert_string_equal(tr_config_origin(cfg, "weight_decay"), "--set weight_decay");
    assert_non_null(strstr(tr_config_origin(cfg, "adam_beta1"), ".yaml:3:1"));
    assert_string_equal(tr_config_origin(cfg, "adam_beta2"), "environment TRIREME_ADAM_BETA2");
    assert_string_equal(tr_config_origin(cfg, "adam_epsilon"), "default");
    assert_true(tr_config_is_set(cfg, "adam_beta2") && !tr_config_is_set(cfg, "adam_epsilon"));
}

static void a_file_can_be_named_by_the_environment(void **state)
{
    (void)state;
    char env[128];
    (void)snprintf(env, sizeof env, "TRIREME_CONFIG=%s", write_file("seed: 7\n"));
    assert_loads(load_env(TR_VERB_CONFIG, (char *[]){ env, NULL }, ARGS("show")));
    assert_int_equal(cfg->seed, 7);
    assert_int_equal(cfg->args.n, 1);
    assert_string_equal(cfg->args.item[0], "show");
}

static void data_takes_weights_and_repeats(void **state)
{
    (void)state;
    assert_loads(LOAD(TRAIN, "--model", "m", "--output", "o", "--data", "a.jsonl:0.25", "--data", "s3:dir/b.txt",
                      "--data=c:d.txt"));
    assert_int_equal(cfg->data.n, 3);
    assert_string_equal(cfg->data.item[0].path, "a.jsonl");
    assert_true(cfg->data.item[0].weight == 0.25);
    assert_string_equal(cfg->data.item[1].path, "s3:dir/b.txt");
    assert_true(cfg->data.item[1].weight == 1);
    assert_string_equal(cfg->data.item[2].path, "c:d.txt");
    assert_loads(LOAD(TRAIN, "--model", "m", "--output", "o", "--data", "d#train[:5%]", "--data", "d#[10:20]:0.5"));
    assert_string_equal(cfg->data.item[0].path, "d#train[:5%]"); /* the colon of a slice is that of no weight */
    assert_string_equal(cfg->data.item[1].path, "d#[10:20]");
    assert_true(cfg->data.item[1].weight == 0.5);
    static char *const bad[] = { "a:0", "a:-1", "a:1e999", "a:0x1p3", "a:1.5x", ":2", "" };
    for (size_t i = 0; i < TR_COUNT_OF(bad); i++)
        assert_refused(LOAD(TRAIN, "--model", "m", "--output", "o", "--data", bad[i]));
    /* A higher place replaces the whole list, it does not add to it. */
    char *file = write_file("data: [x, y:2]\nmodel: m\noutput_dir: o\n");
    assert_loads(LOAD(TRAIN, "--config", file));
    assert_int_equal(cfg->data.n, 2);
    assert_true(cfg->data.item[1].weight == 2);
    assert_loads(LOAD(TRAIN, "--config", file, "--data", "z"));
    assert_int_equal(cfg->data.n, 1);
    assert_string_equal(cfg->data.item[0].path, "z");
    assert_loads(load_env(TR_VERB_TRAIN, ARGS("TRIREME_DATA=p:3,q"), ARGS("--model", "m", "--output", "o")));
    assert_int_equal(cfg->data.n, 2);
    assert_true(cfg->data.item[0].weight == 3);
}

static void old_names_are_accepted_with_a_notice(void **state)
{
    (void)state;
    assert_loads(TRAIN("--warmup_ratio", "0.25", "--overwrite_output_dir", "--gradient_checkpointing", "true"));
    assert_true(cfg->warmup_steps == 0.25);
    assert_int_equal(cfg->recompute, TR_RECOMPUTE_BLOCK);
    assert_non_null(strstr(tr_config_notices(cfg), "--warmup_ratio: an old name"));
    assert_non_null(strstr(tr_config_notices(cfg), "--overwrite_output_dir: ignored"));
    assert_refused(TRAIN("--warmup_ratio", "1"));
    assert_refused(TRAIN("--warmup_ratio", "-0.1"));
    assert_loads(TRAIN("--tensor-model-parallel-size", "2", "--context_parallel_degree=4", "--micro_batch_size", "3"));
    assert_true(cfg->tp == 2 && cfg->cp == 4 && cfg->per_device_train_batch_size == 3);
    assert_loads(TRAIN("--optim", "adamw_torch_fused", "--lr_scheduler_type", "warmup_stable_decay"));
    assert_int_equal(cfg->optim, TR_OPTIM_ADAMW);
    assert_int_equal(cfg->lr_scheduler_type, TR_LR_STABLE_DECAY);
}

static void resume_alone_means_auto(void **state)
{
    (void)state;
    assert_loads(TRAIN("--resume", "--json"));
    assert_string_equal(cfg->resume_from_checkpoint, "auto");
    assert_loads(TRAIN("--json", "--resume_from_checkpoint"));
    assert_string_equal(cfg->resume_from_checkpoint, "auto");
    assert_loads(TRAIN("--resume", "out/checkpoint-5"));
    assert_string_equal(cfg->resume_from_checkpoint, "out/checkpoint-5");
    assert_loads(TRAIN("--resume", "false"));
    assert_string_equal(cfg->resume_from_checkpoint, "none");
}

static void config_is_the_models_for_init_and_the_runs_elsewhere(void **state)
{
    (void)state;
    assert_loads(LOAD(INIT, "--config", "config.json", "--seed", "1", "--out", "dir"));
    assert_string_equal(cfg->model_config, "config.json");
    assert_null(cfg->config);
    assert_string_equal(cfg->output, "dir");
    assert_refused(LOAD(TRAIN, "--config", "/nonexistent/run.yaml"));
    assert_text("/nonexistent/run.yaml");
}

static void unknown_names_are_errors_with_the_nearest_match(void **state)
{
    (void)state;
    assert_refused(TRAIN("--learning_rte", "1"));
    assert_text("--learning_rte: unknown option; did you mean learning_rate?");
    assert_refused(TRAIN("--set", "optim.learnin_rate=1"));
    assert_text("did you mean learning_rate?");
    assert_refused(TRAIN("--set", "mesh.learning_rate=1"));
    assert_refused(TRAIN("--config", write_file("seed: 1\nmax_step: 2\n")));
    assert_text(".yaml:2:1: max_step: unknown option; did you mean max_steps?");
    assert_refused(load_env(TR_VERB_CONFIG, ARGS("TRIREME_SEEED=1"), ARGS("show")));
    assert_text("environment TRIREME_SEEED: unknown option; did you mean seed?");
    assert_refused(TRAIN("--xyzzyxyzzy"));
    assert_text("see trireme train --help");
    assert_refused(TRAIN("stray"));
    assert_text("\"stray\" is no option");
    assert_refused(TRAIN("-lr", "1"));
}

static void an_option_of_another_verb_is_refused_on_the_command_line_only(void **state)
{
    (void)state;
    assert_refused(LOAD(EVAL, "--model", "m", "--data", "d", "--max_steps", "3"));
    assert_text("--max_steps: not an option of eval");
    char *file = write_file("model: m\ndata: d\nmax_steps: 3\noptim: {lr: 1}\n");
    assert_loads(load_env(TR_VERB_EVAL, ARGS("TRIREME_SAVE_STEPS=3"), ARGS("--config", file)));
    assert_string_equal(cfg->model, "m");
}

static void every_error_is_reported_at_once(void **state)
{
    (void)state;
    assert_refused(LOAD(TRAIN, "--sede", "1", "--adam_beta1", "1", "--max_steps=x", "--set", "oops", "--config",
                        write_file("seed: -3\nseed: 4\n"), "--eval_steps", "5"));
    assert_text("--sede: unknown");
    assert_text("--adam_beta1: 1 is outside 0 to 1");
    assert_text("--max_steps: \"x\"");
    assert_text("--set oops: write group.name=value");
    assert_text("seed: -3 is outside");
    assert_text("seed was already given");
    assert_text("eval_steps 5 needs eval_data");
    assert_text("--model is required");
    assert_text("--data is required");
    assert_text("--output is required");
    int n_lines = 1;
    for (const char *p = tr_error_text(); *p != '\0'; p++)
        n_lines += *p == '\n';
    assert_int_equal(n_lines, 10);
}

static void a_flood_of_errors_keeps_whole_lines_and_counts_the_rest(void **state)
{
    (void)state;
    char *argv[1201];
    for (size_t i = 0; i < 1200; i++)
        argv[i] = "--unknown_number_of_something=1";
    argv[1200] = NULL;
    assert_refused(load_env(TR_VERB_CONFIG, NULL, argv));
    const char *more = strstr(tr_error_text(), "\n... and ");
    assert_non_null(more);
    int n_lines = 0, n_more = 0;
    for (const char *p = tr_error_text(); p < more; p++)
        n_lines += *p == '\n';
    assert_int_equal(sscanf(more, "\n... and %d more", &n_more), 1);
    assert_int_equal(n_lines + 1 + n_more, 1200);
}

static void numbers_are_strict(void **state)
{
    (void)state;
    static char *const bad_int[] = { "",   " 1", "1 ", "0x10", "1.0", "1e3",     "9223372036854775808",
                                     "-1", "+-", "0",  "nan",  "1k",  "1000001", "--" };
    for (size_t i = 0; i < TR_COUNT_OF(bad_int); i++)
        assert_refused(TRAIN("--per_device_train_batch_size", bad_int[i]));
    static char *const bad_real[] = { "", "nan", "inf", "1e999", "0x1p3", "1,5", "1.5.", "-1e-9", "1e4", "1 " };
    for (size_t i = 0; i < TR_COUNT_OF(bad_real); i++)
        assert_refused(TRAIN("--learning_rate", bad_real[i]));
    static char *const bad_bytes[] = { "-1", "1.5Q", "GiB", "1e999" };
    for (size_t i = 0; i < TR_COUNT_OF(bad_bytes); i++)
        assert_refused(TRAIN("--memory_budget", bad_bytes[i]));
    assert_loads(TRAIN("--memory_budget", "1.5GiB", "--dropout", "0.1"));
    assert_int_equal(cfg->memory_budget, 3LL << 29);
    assert_true(cfg->dropout == 0.1);
    assert_refused(TRAIN("--dropout", "1"));
    assert_refused(TRAIN("--zero", "4"));
    assert_refused(TRAIN("--dtype", "int8"));
    assert_text("\"int8\" is none of float32, bfloat16, float16");
    assert_refused(TRAIN("--max_steps"));
    assert_text("--max_steps: a value is missing");
}

static void the_same_option_under_two_names_is_refused(void **state)
{
    (void)state;
    assert_refused(TRAIN("--lr", "1", "--learning_rate", "2"));
    assert_text("already given as lr");
    assert_refused(TRAIN("--bf16", "--fp16"));
    assert_loads(TRAIN("--lr", "1", "--lr", "2"));
    assert_true(cfg->learning_rate == 2);
}

static void a_bad_value_is_refused_even_when_overridden(void **state)
{
    (void)state;
    assert_refused(TRAIN("--lr", "1", "--config", write_file("learning_rate: fast\n")));
    assert_text(".yaml:1:1: learning_rate: \"fast\"");
}

static void control_bytes_never_reach_the_message(void **state)
{
    (void)state;
    assert_refused(TRAIN("--\x1b[31m", "\x1b"));
    assert_null(strchr(tr_error_text(), '\x1b'));
    assert_refused(TRAIN("--max_steps", "\x1b[2J", "--set", "\x1b=1", "--dtype", "\x1b", "--json=\x1b"));
    assert_null(strchr(tr_error_text(), '\x1b'));
}

static void help_asks_for_nothing(void **state)
{
    (void)state;
    assert_loads(LOAD(TRAIN, "--help"));
    assert_true(cfg->help);
    assert_loads(LOAD(TRAIN, "-h", "--nonsense"));
    assert_true(cfg->help);
}

static void hub_names_are_directories_of_the_cache(void **state)
{
    (void)state;
    char root[64], path[192], env[96], want[192];
    (void)snprintf(root, sizeof root, "/tmp/trireme-hub-%d", (int)getpid());
    (void)snprintf(env, sizeof env, "HF_HUB_CACHE=%s", root);
    static const char *const dirs[] = { "", "/models--org--m", "/models--org--m/refs", "/models--org--m/snapshots",
                                        "/models--org--m/snapshots/c1" };
    for (size_t i = 0; i < TR_COUNT_OF(dirs); i++) {
        (void)snprintf(path, sizeof path, "%s%s", root, dirs[i]);
        assert_int_equal(mkdir(path, 0700), 0);
    }
    (void)snprintf(path, sizeof path, "%s/models--org--m/refs/main", root);
    static const char *const commits[] = { "c1", "../../..", "", "nowhere" };
    for (size_t i = 0; i < TR_COUNT_OF(commits); i++) {
        FILE *f = fopen(path, "w");
        assert_non_null(f);
        assert_true(fputs(commits[i], f) >= 0);
        assert_int_equal(fclose(f), 0);
        assert_loads(load_env(TR_VERB_TRAIN, (char *[]){ env, NULL },
                              ARGS("--model", "org/m", "--data", "d", "--data", "../m", "--output", "o")));
        (void)snprintf(want, sizeof want, "%s/models--org--m/snapshots/c1", root);
        assert_string_equal(cfg->model, i == 0 ? want : "org/m");
        assert_string_equal(cfg->data.item[1].path, "../m");
    }
    assert_int_equal(unlink(path), 0);
    for (size_t i = TR_COUNT_OF(dirs); i-- > 0;) {
        (void)snprintf(path, sizeof path, "%s%s", root, dirs[i]);
        assert_int_equal(rmdir(path), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_are_those_of_transformers),
        cmocka_unit_test(hub_names_are_directories_of_the_cache),
        cmocka_unit_test(all_four_spellings_of_a_value_agree),
        cmocka_unit_test(flags_need_no_value_and_take_every_bool_word),
        cmocka_unit_test(precedence_is_command_set_file_environment_default),
        cmocka_unit_test(a_file_can_be_named_by_the_environment),
        cmocka_unit_test(data_takes_weights_and_repeats),
        cmocka_unit_test(old_names_are_accepted_with_a_notice),
        cmocka_unit_test(resume_alone_means_auto),
        cmocka_unit_test(config_is_the_models_for_init_and_the_runs_elsewhere),
        cmocka_unit_test(unknown_names_are_errors_with_the_nearest_match),
        cmocka_unit_test(an_option_of_another_verb_is_refused_on_the_command_line_only),
        cmocka_unit_test(every_error_is_reported_at_once),
        cmocka_unit_test(a_flood_of_errors_keeps_whole_lines_and_counts_the_rest),
        cmocka_unit_test(numbers_are_strict),
        cmocka_unit_test(the_same_option_under_two_names_is_refused),
        cmocka_unit_test(a_bad_value_is_refused_even_when_overridden),
        cmocka_unit_test(control_bytes_never_reach_the_message),
        cmocka_unit_test(help_asks_for_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, teardown);
}
