/* test_yaml.c - run files: nesting, places in messages, and texts that must be refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <unistd.h>

#include "config/config.h"

static const struct tr_config *cfg;
static char path[64];

static enum tr_status load_bytes(const char *text, size_t n)
{
    (void)snprintf(path, sizeof path, "/tmp/trireme-yaml-%d.yaml", (int)getpid());
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
    tr_config_close(cfg);
    cfg = NULL;
    tr_error_clear();
    return tr_config_load(TR_VERB_CONFIG, 3, (char *[]){ "show", "--config", path }, NULL, &cfg);
}

static enum tr_status load(const char *text)
{
    return load_bytes(text, strlen(text));
}

static int teardown(void **state)
{
    (void)state;
    tr_config_close(cfg);
    unlink(path);
    return 0;
}

static void refused_with(const char *text, const char *cause)
{
    assert_int_equal(load(text), TR_USAGE);
    if (strstr(tr_error_text(), cause) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", tr_error_text(), cause);
}

static void groups_may_be_nested_or_left_out(void **state)
{
    (void)state;
    assert_int_equal(load("optim:\n  lr: 0.5\n  name: lion\n  schedule: cosine\nmax-steps: 9\n"
                          "data:\n  train:\n    - a.jsonl\n    - b.jsonl:2\n  eval: c.jsonl\n  seq_len: 128\n"
                          "precision: {bf16: true, fp16: false}\nmesh: {tensor_parallel_degree: 2}\n"
                          "eval_steps: 10\nrun: {seed: '7'}\n"),
                     TR_OK);
    assert_true(cfg->learning_rate == 0.5);
    assert_int_equal(cfg->optim, TR_OPTIM_LION);
    assert_int_equal(cfg->lr_scheduler_type, TR_LR_COSINE);
    assert_int_equal(cfg->max_steps, 9);
    assert_int_equal(cfg->data.n, 2);
    assert_int_equal(cfg->eval_data.n, 1);
    assert_int_equal(cfg->sequence_length, 128);
    assert_int_equal(cfg->dtype, TR_BF16);
    assert_int_equal(cfg->tp, 2);
    assert_int_equal(cfg->seed, 7);
}

static void hf_style_files_are_read_as_they_are(void **state)
{
    (void)state;
    assert_int_equal(load("# comment\nmodel_name_or_path: m\noutput_dir: o\noverwrite_output_dir: true\n"
                          "per_device_train_batch_size: 2\ngradient_accumulation_steps: 4\nlearning_rate: 1.0e-4\n"
                          "num_train_epochs: 3.0\nlr_scheduler_type: cosine\nwarmup_ratio: 0.1\nbf16: true\n"
                          "resume_from_checkpoint: null\ngradient_checkpointing: True\ncutoff_len: 2048\n"),
                     TR_OK);
    assert_int_equal(cfg->train_batch_size, 8);
    assert_true(cfg->warmup_steps == 0.1);
    assert_int_equal(cfg->recompute, TR_RECOMPUTE_BLOCK);
    assert_string_equal(cfg->resume_from_checkpoint, "none");
    assert_non_null(strstr(tr_config_notices(cfg), ":10:1: warmup_ratio: an old name"));
}

static void a_source_may_be_a_map(void **state)
{
    (void)state;
    assert_int_equal(load("data:\n- a.jsonl\n- path: b.jsonl\n  weight: 2\n  columns: {messages: dialog, input: null}\n"
                          "  roles:\n    assistant: [bot, 'yes']\n  prompt_format: \"q\\n{x}\"\n- {path: c.jsonl}\n"
                          "- {path: d.jsonl, split: 'train[:5%]'}\n"),
                     TR_OK);
    assert_int_equal(cfg->data.n, 4);
    assert_string_equal(cfg->data.item[3].path, "d.jsonl#train[:5%]");
    assert_string_equal(cfg->data.item[1].path, "b.jsonl");
    assert_true(cfg->data.item[1].weight == 2);
    assert_null(cfg->data.item[0].map);
    assert_string_equal(cfg->data.item[1].map,
                        "{\"columns\":{\"messages\":\"dialog\",\"input\":null},\"roles\":{\"assistant\":[\"bot\","
                        "\"yes\"]},\"prompt_format\":\"q\\n{x}\"}");
    assert_null(cfg->data.item[2].map);
    assert_int_equal(load("data:\n  chat_template_kwargs: {enable_thinking: false, n: [1, x]}\n"), TR_OK);
    assert_string_equal(cfg->chat_template_kwargs, "{\"enable_thinking\":false,\"n\":[1,\"x\"]}");
    refused_with("chat_template_kwargs: [1]\n", "chat_template_kwargs takes one value, not a list");
    refused_with("chat_template_kwargs: '[1]'\n", "not a JSON object");
    refused_with("data:\n- weight: 1\n", "\"path\"");
    refused_with("data:\n- {path: a, weight: -1}\n", "weight -1 is not a number above 0");
    refused_with("data:\n- {path: ''}\n", "no path is given");
    refused_with("lora_target_modules:\n- {path: a}\n", "items of lora_target_modules are plain values");
}

static void names_and_values_may_be_a_map(void **state)
{
    (void)state;
    assert_int_equal(load("rank_pattern: {q_proj: 2, 'mlp.*': 3}\nadapter:\n  trainable_token_indices:\n"
                          "    embed_tokens: [7, 9]\n    lm_head: 5\nalpha_pattern: [q_proj=4]\n"),
                     TR_OK);
    assert_int_equal(cfg->rank_pattern.n, 2);
    assert_string_equal(cfg->rank_pattern.item[1], "mlp.*=3");
    assert_int_equal(cfg->trainable_token_indices.n, 3);
    assert_string_equal(cfg->trainable_token_indices.item[1], "embed_tokens=9");
    assert_string_equal(cfg->trainable_token_indices.item[2], "lm_head=5");
    assert_string_equal(cfg->alpha_pattern.item[0], "q_proj=4");
    assert_int_equal(load("rank_pattern: {}\n"), TR_OK);
    refused_with("rank_pattern: {q_proj: {a: 1}}\n", ":1:24: values of rank_pattern are plain values or lists of them");
    refused_with("rank_pattern: {q_proj: [[1]]}\n", "values of rank_pattern are plain values or lists of them");
    refused_with("rank_pattern: {q_proj: 1}\nrank_pattern: {v_proj: 1}\n", "rank_pattern was already given");
    refused_with("rank_pattern: {[a]: 1}\n", "a key must be a plain name");
    refused_with("rank_pattern: {'': 1}\n", "a key must be a plain name");
    refused_with("layers_pattern: {a: 1}\n", "layers_pattern is not a group");
}

static void an_empty_file_changes_nothing(void **state)
{
    (void)state;
    assert_int_equal(load(""), TR_OK);
    assert_int_equal(load("# only a comment\n"), TR_OK);
    assert_int_equal(load("{}\n"), TR_OK);
    assert_int_equal(cfg->seed, 42);
}

static void duplicates_are_refused_with_both_names(void **state)
{
    (void)state;
    refused_with("seed: 1\nseed: 1\n", ":2:1: seed: seed was already given as seed");
    refused_with("lr: 1\noptim: {learning_rate: 1}\n", "learning_rate was already given as lr");
    refused_with("optim: {lr: 1}\noptim: {beta1: 0.5}\n", "group optim is there twice");
    refused_with("bf16: true\nfp16: true\n", ":2:1: fp16: dtype was already given as bf16");
    refused_with("data: [a]\ndata: [b]\n", "data was already given as data");
}

static void wrong_shapes_are_refused_with_their_place(void **state)
{
    (void)state;
    refused_with("- a\n", ":1:1: expected a mapping");
    refused_with("text\n", ":1:1: expected a mapping");
    refused_with("seed: [1, 2]\n", ":1:7: seed takes one value");
    refused_with("seed: {a: 1}\n", "seed is not a group; groups are run, model");
    refused_with("optim: {lr: {a: 1}}\n", "lr is not a group");
    refused_with("data: [[a]]\n", ":1:8: items of data are plain values");
    refused_with("seed:\n", "seed: a value is missing");
    refused_with("? [a, b]\n: 1\n", "a key must be a plain name");
    refused_with("config: other.yaml\n", "config: belongs on the command line");
    refused_with("a: 1\n---\nb: 2\n", "a second document");
    refused_with("seed: 'x", ":");
    refused_with("seed: 1\n  bad: indent\n", ":2:");
}

static void nothing_can_expand(void **state)
{
    (void)state;
    refused_with("seed: &a 1\n", "anchors and aliases are refused");
    refused_with("a: &a [1]\nb: *a\n", "anchors and aliases are refused");
    refused_with("optim: &o {lr: 1}\n", "anchors and aliases are refused");
    refused_with("seed: !!python/object:os.system 1\n", "tags are refused");
    refused_with("<<: {seed: 1}\n", "<< is not a group");
    static char deep[200001];
    memset(deep, '[', sizeof deep - 1);
    refused_with(deep, "expected a mapping");
    memcpy(deep, "data: ", 6);
    assert_int_equal(load(deep), TR_USAGE);
    static char wide[(1 << 20) + 100];
    memset(wide, 'a', sizeof wide);
    assert_int_equal(load_bytes(wide, sizeof wide), TR_USAGE);
    assert_int_equal(load_bytes("seed: \"a\\0b\"\n", 13), TR_USAGE);
    assert_int_equal(load_bytes("se\0ed: 1\n", 9), TR_USAGE);
    assert_int_equal(load_bytes("seed: \xff\xfe\n", 9), TR_USAGE);
}

static void a_long_list_is_cut_off_not_followed(void **state)
{
    (void)state;
    static char text[100000];
    size_t n = (size_t)snprintf(text, sizeof text, "data:\n");
    for (int i = 0; i < 5000; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "- a\n");
    refused_with(text, "more than 4096 sources");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(groups_may_be_nested_or_left_out),
        cmocka_unit_test(hf_style_files_are_read_as_they_are),
        cmocka_unit_test(a_source_may_be_a_map),
        cmocka_unit_test(names_and_values_may_be_a_map),
        cmocka_unit_test(an_empty_file_changes_nothing),
        cmocka_unit_test(duplicates_are_refused_with_both_names),
        cmocka_unit_test(wrong_shapes_are_refused_with_their_place),
        cmocka_unit_test(nothing_can_expand),
        cmocka_unit_test(a_long_list_is_cut_off_not_followed),
    };
    return cmocka_run_group_tests(tests, NULL, teardown);
}
