/* test_check.c - what must hold between options. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "config/config.h"

static const struct tr_config *cfg;

static enum tr_status load(const char *words)
{
    char text[256];
    char *argv[32];
    int argc = 0;
    (void)snprintf(text, sizeof text, "%s", words);
    for (char *p = text; *p != '\0' && argc < 32;) {
        argv[argc++] = p;
        p += strcspn(p, " ");
        if (*p != '\0')
            *p++ = '\0';
    }
    tr_config_close(cfg);
    cfg = NULL;
    return tr_config_load(TR_VERB_CONFIG, argc, argv, NULL, &cfg);
}

static int teardown(void **state)
{
    (void)state;
    tr_config_close(cfg);
    return 0;
}

static void any_two_batch_sizes_give_the_third(void **state)
{
    (void)state;
    static const struct {
        const char *words;
        int64_t rows, steps, total; /* 0 = refused */
    } cases[] = {
        { "", 8, 1, 8 },
        { "--per_device_train_batch_size 3 --gradient_accumulation_steps 5", 3, 5, 15 },
        { "--per_device_train_batch_size 3 --train_batch_size 12", 3, 4, 12 },
        { "--gradient_accumulation_steps 4 --train_batch_size 12", 3, 4, 12 },
        { "--gradient_accumulation_steps 4 --train_batch_size 12 --per_device_train_batch_size 3", 3, 4, 12 },
        { "--train_batch_size 512", 8, 64, 512 },
        { "--train_batch_size 4", 4, 1, 4 },
        { "--train_batch_size 11", 1, 11, 11 },
        { "--train_batch_size 12 --dp 2", 6, 1, 12 },
        { "--per_device_train_batch_size 3 --dp 4", 3, 1, 12 },
        { "--train_batch_size 7 --dp 2", 0, 0, 0 },
        { "--per_device_train_batch_size 3 --train_batch_size 13", 0, 0, 0 },
        { "--gradient_accumulation_steps 5 --train_batch_size 12", 0, 0, 0 },
        { "--gradient_accumulation_steps 4 --train_batch_size 13 --per_device_train_batch_size 3", 0, 0, 0 },
    };
    for (size_t i = 0; i < TR_COUNT_OF(cases); i++) {
        enum tr_status st = load(cases[i].words);
        assert_int_equal(st, cases[i].total != 0 ? TR_OK : TR_USAGE);
        if (st != TR_OK)
            continue;
        assert_int_equal(cfg->per_device_train_batch_size, cases[i].rows);
        assert_int_equal(cfg->gradient_accumulation_steps, cases[i].steps);
        assert_int_equal(cfg->train_batch_size, cases[i].total);
    }
    assert_int_equal(load("--train_batch_size 12 --gradient_accumulation_steps 4"), TR_OK);
    assert_false(tr_config_is_set(cfg, "per_device_train_batch_size"));
    assert_string_equal(tr_config_origin(cfg, "per_device_train_batch_size"), "train_batch_size / accumulation / dp");
}

static void steps_are_counts_or_shares(void **state)
{
    (void)state;
    assert_int_equal(load("--warmup_steps 2.5"), TR_USAGE);
    assert_int_equal(load("--warmup_steps 100"), TR_OK);
    assert_int_equal(tr_config_steps(cfg->warmup_steps, 10), 100);
    assert_int_equal(tr_config_steps(0.1, 1001), 101); /* rounded up, as transformers does */
    assert_int_equal(tr_config_steps(0, 1000), 0);
    assert_int_equal(load("--lr_scheduler_type wsd --warmup_steps 60 --decay_steps 0.5 --max_steps 100"), TR_USAGE);
    assert_non_null(strstr(tr_error_text(), "warmup_steps 60 + decay_steps 50 is more than max_steps 100"));
    assert_int_equal(load("--lr_scheduler_type wsd --warmup_steps 50 --decay_steps 0.5 --max_steps 100"), TR_OK);
    assert_int_equal(load("--max_steps 0"), TR_USAGE);
}

static void values_without_effect_are_notices(void **state)
{
    (void)state;
    assert_int_equal(load("--momentum 0.9 --decay_steps 5 --sp"), TR_OK);
    assert_non_null(strstr(tr_config_notices(cfg), "momentum has no effect with optim adamw; it is of sgd\n"));
    assert_non_null(strstr(tr_config_notices(cfg), "decay_steps has no effect with lr_scheduler_type linear\n"));
    assert_non_null(strstr(tr_config_notices(cfg), "sp has no effect with tp 1\n"));
    assert_int_equal(load("--zero 2 --sync last --cp_mode ulysses --pp_schedule gpipe"), TR_OK);
    static const char *const idle[] = { "zero", "sync", "cp_mode", "pp_schedule" };
    for (size_t i = 0; i < TR_COUNT_OF(idle); i++) {
        char text[64];
        (void)snprintf(text, sizeof text, "%s has no effect with ", idle[i]);
        assert_non_null(strstr(tr_config_notices(cfg), text));
    }
    assert_int_equal(load("--zero 0 --sync each --pp_schedule 1f1b"), TR_OK); /* a dump gives every default */
    assert_string_equal(tr_config_notices(cfg), "");
    assert_int_equal(load("--pp_schedule nonsense"), TR_USAGE);
    assert_int_equal(load("--momentum 0.9 --optim sgd"), TR_OK);
    assert_string_equal(tr_config_notices(cfg), "");
}

static void an_option_without_its_partner_is_a_notice(void **state)
{
    /* what has no effect | beside which it has one */
    static const char *const pairs[][2] = {
        { "--sdc_check", "--tp 2" },
        { "--replica_check_steps 5", "--dp 2" },
        { "--comm shm", "--pp 2" },
        { "--muon_momentum 0.5", "--optim muon" },
        { "--adafactor_relative_step", "--optim adafactor" },
        { "--adam_beta1 0.5 --optim sgd", "--optim lion" },
        { "--adam_epsilon 1e-3 --optim lion", "--optim adamw_8bit" },
        { "--warmup_type cosine", "--warmup_steps 3" },
        { "--bnb_4bit_quant_type fp4", "--load_in_4bit --lora_r 4" },
        { "--offload_share 0.5", "--offload_optimizer cpu" },
        { "--offload_activations", "--recompute block" },
        { "--profile_steps 3", "--profile 2" },
        { "--run_name x", "--report_to tensorboard" },
        { "--temperature 1", "--sample_prompts p.txt" },
        { "--max_new_tokens 5", "--sample_prompts p.txt" },
        { "--max_eval_samples 3", "--eval_data e.jsonl" },
        { "--eval_delay 1", "--eval_split 0.1" },
        { "--sample_prompts p.txt --eval_strategy no", "--eval_strategy steps" },
        { "--early_stopping_threshold 0.1", "--early_stopping_patience 2 --eval_data e.jsonl --eval_steps 1" },
        { "--save_keep_every 5", "--save_total_limit 2" },
        { "--nonfinite_budget 7 --nonfinite stop", "--nonfinite skip" },
        { "--fetch_command x", "--data s3://b/a.jsonl" },
    };
    char text[256];
    (void)state;
    for (size_t i = 0; i < TR_COUNT_OF(pairs); i++) {
        (void)snprintf(text, sizeof text, "%.*s has no effect ", (int)strcspn(pairs[i][0] + 2, " "), pairs[i][0] + 2);
        assert_int_equal(load(pairs[i][0]), TR_OK);
        if (!strstr(tr_config_notices(cfg), text))
            fail_msg("%s: no \"%s\" in \"%s\"", pairs[i][0], text, tr_config_notices(cfg));
        char both[256];
        const char *more = strstr(pairs[i][0] + 2, " --"); /* takes the effect away, so it goes */
        size_t n = more ? (size_t)(more - pairs[i][0]) : strlen(pairs[i][0]);
        (void)snprintf(both, sizeof both, "%.*s %s", (int)n, pairs[i][0], pairs[i][1]);
        if (load(both) != TR_OK)
            fail_msg("%s: %s", both, tr_error_text());
        if (strstr(tr_config_notices(cfg), text))
            fail_msg("%s: %s", both, tr_config_notices(cfg));
    }
}

static void the_mesh_must_be_possible(void **state)
{
    (void)state;
    assert_int_equal(load("--dp 4 --hybrid_shard 3"), TR_USAGE);
    assert_int_equal(load("--dp 4 --hybrid_shard 2"), TR_OK);
    assert_int_equal(load("--pp 2 --pp_chunks 2"), TR_USAGE);
    assert_int_equal(load("--pp 2 --pp_chunks 2 --pp_schedule interleaved"), TR_OK);
}

static void data_seed_follows_seed_until_it_is_given(void **state)
{
    (void)state;
    assert_int_equal(load("--seed 5"), TR_OK);
    assert_int_equal(cfg->data_seed, 5);
    assert_int_equal(load("--seed 5 --data_seed 0"), TR_OK);
    assert_int_equal(cfg->data_seed, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_two_batch_sizes_give_the_third),
        cmocka_unit_test(steps_are_counts_or_shares),
        cmocka_unit_test(values_without_effect_are_notices),
        cmocka_unit_test(an_option_without_its_partner_is_a_notice),
        cmocka_unit_test(the_mesh_must_be_possible),
        cmocka_unit_test(data_seed_follows_seed_until_it_is_given),
    };
    return cmocka_run_group_tests(tests, NULL, teardown);
}
