/* test_config.c - adapter_config.json and options: what is read, what is refused and with which words, what is written.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "adapter/adapter_impl.h"

static const char llama[] = TR_SOURCE_DIR "/tests/golden/llama_mha";

static struct tr_model *open_model(const char *path)
{
    struct tr_model_options opt = { .rows = 1, .sequence_length = 8, .dropout = -1 };
    struct tr_model *m = NULL;
    if (tr_model_open(path, &opt, &m) != TR_OK)
        fail_msg("%s", tr_error_text());
    return m;
}

/* Parses, and where that works chooses for the model. */
static enum tr_status try_text(const char *text, const struct tr_model *m)
{
    struct tr_adapter *a = NULL;
    struct tr_adapter_choice c = { 0 };
    enum tr_status st = tr_adapter_parse(text, strlen(text), "a.json", &a);
    if (st == TR_OK)
        st = tr_adapter_choose(a, m, &c);
    free(c.module);
    tr_adapter_close(a);
    return st;
}

static void a_bad_file_is_refused_with_its_fix(void **state)
{
    (void)state;
    static const struct {
        const char *text, *words;
    } rows[] = {
        { "[]", "a.json: not a JSON object" },
        { "{\"r\":8}", "\"peft_type\" is missing" },
        { "{\"peft_type\":\"IA3\"}", "peft_type \"IA3\" is not implemented; only LORA" },
        { "{\"peft_type\":\"LORA\",\"task_type\":\"SEQ_CLS\"}", "only CAUSAL_LM" },
        { "{\"peft_type\":\"LORA\",\"use_qalora\":true}", "use_qalora: QALoRA is not implemented; merge" },
        { "{\"peft_type\":\"LORA\",\"target_parameters\":[\"experts.up\"]}", "target_parameters" },
        { "{\"peft_type\":\"LORA\",\"layer_replication\":[[0,1]]}", "layer_replication" },
        { "{\"peft_type\":\"LORA\",\"alora_invocation_tokens\":[1]}", "alora_invocation_tokens" },
        { "{\"peft_type\":\"LORA\",\"init_lora_weights\":\"loftq\"}", "init_lora_weights \"loftq\"" },
        { "{\"peft_type\":\"LORA\",\"init_lora_weights\":\"pissa_niter_0\"}",
          "use true, false, gaussian, orthogonal, pissa or olora" },
        { "{\"peft_type\":\"LORA\",\"init_lora_weights\":\"olora\",\"lora_alpha\":0}",
          "needs an alpha above 0, not 0" },
        { "{\"peft_type\":\"LORA\",\"init_lora_weights\":\"orthogonal\",\"r\":3}", "an even rank, not r 3" },
        { "{\"peft_type\":\"LORA\",\"r\":0}", "\"r\" is 0, outside 1 to" },
        { "{\"peft_type\":\"LORA\",\"r\":2.5}", "\"r\" is not a whole number" },
        { "{\"peft_type\":\"LORA\",\"lora_dropout\":1}", "outside 0 to 1" },
        { "{\"peft_type\":\"LORA\",\"bias\":\"some\"}", "bias \"some\" is none of none, all, lora_only" },
        { "{\"peft_type\":\"LORA\",\"target_modules\":[]}", "empty list" },
        { "{\"peft_type\":\"LORA\",\"target_modules\":[3]}", "item 1 is not a name" },
        { "{\"peft_type\":\"LORA\",\"target_modules\":7}", "not a string or a list of strings" },
        { "{\"peft_type\":\"LORA\",\"target_modules\":\"(q\"}", "the pattern \"(q\" is not accepted" },
        { "{\"peft_type\":\"LORA\",\"target_modules\":\"\\\\Qq\\\\E\"}", "uses \\Q, which is not supported" },
        { "{\"peft_type\":\"LORA\",\"target_modules\":\"(?R)q\"}", "a group of a kind" },
        { "{\"peft_type\":\"LORA\",\"target_modules\":\"([a-z]+)*([a-z._]+)*[0-9]{3}\"}", "gave up on the name" },
        { "{\"peft_type\":\"LORA\",\"target_modules\":[\"q_porj\"]}", "did you mean q_proj?" },
        { "{\"peft_type\":\"LORA\",\"target_modules\":[\"zzz\"]}", "The model has embed_tokens, q_proj" },
        { "{\"peft_type\":\"LORA\",\"target_modules\":\"q_proj\"}", "must match a whole name like model." },
        { "{\"peft_type\":\"LORA\",\"target_modules\":[\"self_attn\"]}", "model.layers.0.self_attn, which is neither" },
        { "{\"peft_type\":\"LORA\",\"target_modules\":[\"act_fn\"]}", "model.layers.0.mlp.act_fn, which is neither" },
        { "{\"peft_type\":\"LORA\",\"target_modules\":[\"norm\"]}", "model.norm, which is neither a linear nor" },
        { "{\"peft_type\":\"LORA\",\"r\":64,\"init_lora_weights\":\"pissa\"}",
          "rank 64 of model.layers.0.self_attn.q_proj is above its smaller side" },
        { "{\"peft_type\":\"LORA\",\"rank_pattern\":{\"q_proj\":1.5}}", "rank_pattern q_proj: 1.5 is not a rank" },
        { "{\"peft_type\":\"LORA\",\"rank_pattern\":{\"q_proj\":\"a\"}}", "\"rank_pattern\": q_proj is not a number" },
        { "{\"peft_type\":\"LORA\",\"modules_to_save\":[\"lm_haed\"]}", "did you mean lm_head?" },
        { "{\"peft_type\":\"LORA\",\"modules_to_save\":[\"layers\"]}", "the whole list model.layers" },
        { "{\"peft_type\":\"LORA\",\"exclude_modules\":[\"q_proj\",\"v_proj\"]}", "no module is targeted" },
        { "{\"peft_type\":\"LORA\",\"layers_pattern\":\"layers\"}", "needs layers_to_transform" },
        { "{\"peft_type\":\"LORA\",\"layers_to_transform\":0,\"target_modules\":\".*q\"}", "works with a list" },
        { "{\"peft_type\":\"LORA\",\"layers_to_transform\":[-1]}", "item 1 is not a whole number from 0 on" },
        { "{\"peft_type\":\"LORA\",\"lora_bias\":true,\"use_dora\":true}", "do not go together" },
        { "{\"peft_type\":\"LORA\",\"trainable_token_indices\":[99999]}", "token 99999 is outside the vocabulary" },
        { "{\"peft_type\":\"LORA\",\"trainable_token_indices\":[1,1]}", "token 1 is there twice" },
        { "{\"peft_type\":\"LORA\",\"trainable_token_indices\":[]}", "is an empty list" },
        { "{\"peft_type\":\"LORA\",\"trainable_token_indices\":{\"lm_haed\":[1]}}", "lm_haed is no embedding" },
        { "{\"peft_type\":\"LORA\",\"trainable_token_indices\":{\"\":[1]}}", "a module without a name" },
        { "{\"peft_type\":\"LORA\",\"trainable_token_indices\":{\"q_proj\":[1]}}", "q_proj is neither an embedding" },
        { "{\"peft_type\":\"LORA\",\"trainable_token_indices\":{\"lm_head\":[1],\"head\":[2]}}", "two lists are for" },
        { "{\"peft_type\":\"LORA\",\"trainable_token_indices\":[1],\"modules_to_save\":[\"embed_tokens\"]}",
          "embed_tokens is trained whole" },
        { "{\"peft_type\":\"LORA\",\"trainable_token_indices\":[1],\"target_modules\":[\"embed_tokens\"]}",
          "embed_tokens has an adapter" },
    };
    struct tr_model *m = open_model(llama);
    for (size_t i = 0; i < TR_COUNT_OF(rows); i++) {
        enum tr_status st = try_text(rows[i].text, m);
        if (st != TR_USAGE || !strstr(tr_error_text(), rows[i].words) || strchr(tr_error_text(), '\n'))
            fail_msg("%s: %s", rows[i].text, st == TR_OK ? "accepted" : tr_error_text());
    }
    tr_model_close(m);
}

/* Files of any version: few keys, keys that nobody knows, what has no effect. */
static void what_other_versions_wrote_is_read(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "{\"peft_type\":\"LORA\"}",
        "{\"peft_type\":\"LORA\",\"enable_lora\":null,\"merge_weights\":false,\"fan_in_fan_out\":false}",
        "{\"peft_type\":\"LORA\",\"loftq_config\":{},\"megatron_config\":null,\"use_qalora\":false}",
        "{\"peft_type\":\"LORA\",\"init_lora_weights\":\"eva\",\"eva_config\":{\"rho\":2.0}}",
        "{\"peft_type\":\"LORA\",\"layers_to_transform\":1,\"target_modules\":[\"q_proj\",\"of_another_model\"]}",
        "{\"peft_type\":\"LORA\",\"rank_pattern\":null,\"of_the_future\":{\"a\":[1,2.5,\"\\u00e9\"]}}",
        "{\"peft_type\":\"LORA\",\"target_modules\":\"ALL-LINEAR\",\"trainable_token_indices\":{\"embed_tokens\":[1]}}",
        "{\"peft_type\":\"LORA\",\"trainable_token_indices\":{\"lm_head\":[1],\"embed_tokens\":[5,2]}}",
    };
    struct tr_model *m = open_model(llama);
    for (size_t i = 0; i < TR_COUNT_OF(texts); i++)
        if (try_text(texts[i], m) != TR_OK)
            fail_msg("%s: %s", texts[i], tr_error_text());
    tr_model_close(m);
}

static void unknown_keys_and_the_order_of_patterns_are_kept(void **state)
{
    (void)state;
    static const char text[] = "{\"zebra\": {\"b\": 1, \"a\": [0.5, 1e-7, null]}, \"peft_type\": \"LORA\", "
                               "\"base_model_name_or_path\": \"caf\\u00e9\", \"runtime_config\": {}, "
                               "\"rank_pattern\": {\"v_proj\": 4, \"q_proj\": 2}}";
    struct tr_model *m = open_model(llama);
    struct tr_adapter *a = NULL;
    struct tr_str out = { 0 };
    assert_int_equal(tr_adapter_parse(text, sizeof text - 1, "a.json", &a), TR_OK);
    assert_int_equal(tr_adapter_print(a, m, &out), TR_OK);
    assert_non_null(strstr(out.p, "\"rank_pattern\": {\n    \"v_proj\": 4,\n    \"q_proj\": 2\n  }"));
    assert_non_null(
        strstr(out.p, "\"zebra\": {\n    \"a\": [\n      0.5,\n      1e-07,\n      null\n    ],\n    \"b\": 1\n  }"));
    assert_non_null(strstr(out.p, "\"base_model_name_or_path\": \"caf\\u00e9\""));
    assert_non_null(strstr(out.p, "\"lora_dropout\": 0.0,"));
    assert_non_null(strstr(out.p, "\"target_modules\": [\n    \"q_proj\",\n    \"v_proj\"\n  ]"));
    assert_null(strstr(out.p, "runtime_config"));
    tr_str_release(&out);
    tr_adapter_close(a);
    tr_model_close(m);
}

/* ---- options ---- */

static enum tr_status open_options(const char *words, const struct tr_config **cfg, struct tr_adapter **out)
{
    char text[1024], *argv[48], *rest = NULL;
    int argc = 0;
    assert_int_equal(tr_format(text, sizeof text, "%s", words), TR_OK);
    for (char *w = strtok_r(text, " ", &rest); w; w = strtok_r(NULL, " ", &rest))
        argv[argc++] = w;
    *out = NULL;
    *cfg = NULL;
    enum tr_status st = tr_config_load(TR_VERB_PLAN, argc, argv, NULL, cfg);
    return st == TR_OK ? tr_adapter_open(*cfg, out) : st;
}

static void options_describe_an_adapter(void **state)
{
    (void)state;
    const struct tr_config *cfg = NULL;
    struct tr_adapter *a = NULL;
    assert_int_equal(open_options("--model base", &cfg, &a), TR_OK);
    assert_null(a);
    tr_config_close(cfg);

    assert_int_equal(open_options("--model base --lora_rank 4", &cfg, &a), TR_OK);
    assert_true(a && a->r == 4 && a->alpha == 8 && a->is_all_linear && a->loraplus_ratio == 1 && !a->config);
    assert_string_equal(a->base, "base");
    tr_adapter_close(a);
    tr_config_close(cfg);

    assert_int_equal(
        open_options("--model base --adapter qlora --lora_alpha 3 --target_modules q_proj,v_proj "
                     "--rank_pattern q_proj=2,.*v_proj=3 --layers_to_transform 0,2 --use_rslora "
                     "--lora_modules_to_save lm_head --exclude_modules .*0.* --init_lora_weights pissa_niter_4",
                     &cfg, &a),
        TR_OK);
    assert_true(a && a->r == 8 && a->alpha == 3 && a->target.n == 2 && !a->is_regex && a->exclude_is_regex);
    assert_true(a->n_rank_patterns == 2 && a->rank_pattern[1].value == 3 && a->n_layers == 2 && a->layer[1] == 2);
    assert_string_equal(a->rank_pattern[1].key, ".*v_proj");
    assert_true(a->use_rslora && a->saved.n == 1 && a->init == TR_ADAPTER_PISSA && a->pissa_iterations == 4);
    tr_adapter_close(a);
    tr_config_close(cfg);

    assert_int_equal(open_options("--model base --use_peft --lora_target model\\.(a{1,2}|b)", &cfg, &a), TR_OK);
    assert_true(a && a->is_regex && a->target.n == 1);
    assert_string_equal(a->target.item[0], "model\\.(a{1,2}|b)");
    tr_adapter_close(a);
    tr_config_close(cfg);

    assert_int_equal(open_options("--model base --use_peft --lora_target auto", &cfg, &a), TR_OK);
    assert_true(a && !a->is_all_linear && a->target.n == 0);
    tr_adapter_close(a);
    tr_config_close(cfg);
}

static void options_that_contradict_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *words, *message;
    } rows[] = {
        { "--lora_r 4 --finetuning_type full", "lora_r has no effect with finetuning_type full" },
        { "--lora_r 4 --trainable *norm*", "lora_modules_to_save names what else is trained" },
        { "--finetuning_type freeze", "finetuning_type freeze needs trainable or frozen" },
        { "--lora_r 0", "--lora_r: 0 is outside 1" },
        { "--lora_bias true", "\"true\" is none of none, all, lora_only" },
        { "--rank_pattern q_proj", "rank_pattern: \"q_proj\" is not NAME=NUMBER" },
        { "--rank_pattern q_proj=0", "0 is not a rank" },
        { "--layers_to_transform a --target_modules q_proj", "layers_to_transform: " },
        { "--layers_to_transform 1", "layers_to_transform works with a list of target_modules, not with all-linear" },
        { "--trainable_token_indices lm_head=3,4", "\"4\": give either ids, or NAME=ID for each of them" },
        { "--trainable_token_indices =3", "\"=3\": give either ids, or NAME=ID for each of them" },
        { "--trainable_token_indices lm_head=x", "trainable_token_indices: " },
        { "--trainable_token_indices a=1,b=1,c=1,d=1,e=1,f=1,g=1,h=1,i=1", "names more than 8 modules" },
        { "--init_lora_weights eva", "init_lora_weights \"eva\" is not implemented" },
        { "--lora_model_dir x", "write model ADAPTER_DIR" },
    };
    for (size_t i = 0; i < TR_COUNT_OF(rows); i++) {
        const struct tr_config *cfg = NULL;
        struct tr_adapter *a = NULL;
        char words[256];
        assert_int_equal(tr_format(words, sizeof words, "--model base %s", rows[i].words), TR_OK);
        enum tr_status st = open_options(words, &cfg, &a);
        if (st != TR_USAGE || !strstr(tr_error_text(), rows[i].message))
            fail_msg("%s: %s", rows[i].words, st == TR_OK ? "accepted" : tr_error_text());
        tr_config_close(cfg);
    }
}

/* A start that changes the base is written as an adapter of twice the rank with the same scales, and read back as what
 * it was. */
static void a_start_of_the_base_is_written_converted(void **state)
{
    (void)state;
    struct tr_model *m = open_model(llama);
    for (int rslora = 0; rslora < 2; rslora++) {
        const struct tr_config *cfg = NULL;
        struct tr_adapter *a = NULL, *again = NULL;
        struct tr_adapter_choice was, is;
        struct tr_str text = { 0 };
        assert_int_equal(open_options(rslora ? "--model base --lora_r 3 --lora_alpha 5 --init_lora_weights olora "
                                               "--rank_pattern q_proj=1,o_proj=2 --alpha_pattern k_proj=7 --use_rslora"
                                             : "--model base --lora_r 3 --lora_alpha 5 --init_lora_weights pissa "
                                               "--rank_pattern q_proj=1,o_proj=2 --alpha_pattern k_proj=7",
                                      &cfg, &a),
                         TR_OK);
        assert_int_equal(tr_adapter_print(a, m, &text), TR_OK);
        assert_int_equal(tr_adapter_parse(text.p, text.n, "text", &again), TR_OK);
        assert_true(again->init == TR_ADAPTER_KAIMING && !tr_adapter_start_name(again));
        assert_int_equal(tr_adapter_choose(a, m, &was), TR_OK);
        for (int half = 0; half < 2; half++) {
            assert_int_equal(tr_adapter_choose(again, m, &is), TR_OK);
            for (size_t i = 0; i < was.n; i++) {
                const struct tr_adapter_target *x = &was.module[i].target, *y = &is.module[i].target;
                assert_true(x->is_target == y->is_target && y->r == (half ? 1 : 2) * x->r);
                assert_true(fabs(x->scale - y->scale) <= 1e-12 * fabs(x->scale));
            }
            free(is.module);
            if (!half)
                assert_int_equal(tr_adapter_halve(again, tr_adapter_start_name(a)), TR_OK);
        }
        assert_int_equal(again->init, a->init);
        assert_int_equal(tr_adapter_halve(again, "pissa"), TR_USAGE); /* 3 has no half */
        free(was.module);
        tr_str_release(&text);
        tr_adapter_close(again);
        tr_adapter_close(a);
        tr_config_close(cfg);
    }
    tr_model_close(m);
}

/* Tokens of tables that are named. */
static void tokens_of_two_tables_read_back(void **state)
{
    (void)state;
    struct tr_model *m = open_model(llama);
    const struct tr_config *cfg = NULL;
    struct tr_adapter *a = NULL, *again = NULL;
    struct tr_str text = { 0 };
    assert_int_equal(
        open_options("--model base --trainable_token_indices lm_head=9,embed_tokens=4,lm_head=2", &cfg, &a), TR_OK);
    assert_int_equal(tr_adapter_print(a, m, &text), TR_OK);
    assert_int_equal(tr_adapter_parse(text.p, text.n, "text", &again), TR_OK);
    assert_int_equal(again->n_tokens, 2);
    assert_string_equal(again->tokens[1].module, "lm_head"); /* keys are sorted, as PEFT writes them */
    assert_true(again->tokens[1].n == 2 && again->tokens[1].id[0] == 9 && again->tokens[1].id[1] == 2);
    assert_true(again->tokens[0].n == 1 && again->tokens[0].id[0] == 4);
    tr_str_release(&text);
    tr_adapter_close(a);
    tr_adapter_close(again);
    tr_config_close(cfg);
    tr_model_close(m);
}

/* What options ask for reads back from the file that is written for it. */
static void what_is_written_reads_back(void **state)
{
    (void)state;
    struct tr_model *m = open_model(llama);
    const struct tr_config *cfg = NULL;
    struct tr_adapter *a = NULL, *again = NULL;
    struct tr_str text = { 0 }, line = { 0 };
    assert_int_equal(
        open_options("--model base --lora_r 2 --lora_alpha 0.3 --lora_dropout 0.05 --use_rslora --lora_bias all "
                     "--lora_target q_proj,mlp.up_proj,o_proj --layers_to_transform 0,2 --layers_pattern layers "
                     "--rank_pattern o_proj=3,q_proj=1 --alpha_pattern q_proj=2.5 --modules_to_save norm "
                     "--trainable_token_indices 3,1 --ensure_weight_tying --init_lora_weights gaussian",
                     &cfg, &a),
        TR_OK);
    assert_int_equal(tr_adapter_print(a, m, &text), TR_OK);
    assert_int_equal(tr_adapter_parse(text.p, text.n, "text", &again), TR_OK);
    assert_true(again->r == a->r && again->alpha == a->alpha && again->dropout == a->dropout && again->use_rslora);
    assert_true(again->bias == a->bias && again->init == a->init && again->n_layers == 2 && again->ensures_tying);
    assert_true(again->n_rank_patterns == 2 && strcmp(again->rank_pattern[0].key, "o_proj") == 0);
    assert_true(again->alpha_pattern[0].value == 2.5 && again->tokens->n == 2 && again->tokens->id[0] == 3);
    assert_non_null(strstr(text.p, "\"lora_alpha\": 0.3,"));
    assert_non_null(strstr(text.p, "\"base_model_name_or_path\": \"base\","));
    assert_int_equal(tr_adapter_summary(a, m, &line), TR_OK);
    assert_string_equal(line.p, "rank-stabilised LoRA r 1 to 3 alpha 0.3 on 6 modules, 7 modules whole, 2 tokens of "
                                "model.embed_tokens: 560 parameters");
    tr_str_release(&text);
    tr_str_release(&line);
    tr_adapter_close(a);
    tr_adapter_close(again);
    tr_config_close(cfg);
    tr_model_close(m);
}

static void a_name_of_the_options_must_match(void **state)
{
    (void)state;
    struct tr_model *m = open_model(llama);
    const struct tr_config *cfg = NULL;
    struct tr_adapter *a = NULL;
    struct tr_adapter_choice c = { 0 };
    assert_int_equal(open_options("--model base --target_modules q_proj,self_attn.k_porj", &cfg, &a), TR_OK);
    assert_int_equal(tr_adapter_choose(a, m, &c), TR_USAGE);
    assert_non_null(strstr(tr_error_text(), "lora_target_modules self_attn.k_porj: no module"));
    assert_non_null(strstr(tr_error_text(), "did you mean self_attn.k_proj?"));
    tr_adapter_close(a);
    tr_config_close(cfg);
    assert_int_equal(open_options("--model base --target_modules q_proj --rank_pattern q_proj=2,v_proj=4", &cfg, &a),
                     TR_OK);
    assert_int_equal(tr_adapter_choose(a, m, &c), TR_USAGE);
    assert_non_null(strstr(tr_error_text(), "rank_pattern v_proj: no module that gets an adapter has this name"));
    tr_adapter_close(a);
    tr_config_close(cfg);
    tr_model_close(m);
}

static void a_directory_is_continued_as_it_says(void **state)
{
    (void)state;
    char dir[] = "/tmp/tr_adapter_XXXXXX", path[TR_PATH_MAX], words[512];
    static const char text[] = "{\"peft_type\":\"LORA\",\"r\":2,\"base_model_name_or_path\":\"org/no-such-base\"}";
    const struct tr_config *cfg = NULL;
    struct tr_adapter *a = NULL;
    assert_non_null(mkdtemp(dir));
    assert_int_equal(tr_path_join(path, dir, "adapter_config.json"), TR_OK);
    assert_int_equal(tr_file_write_atomic(path, text, sizeof text - 1), TR_OK);
    assert_int_equal(tr_format(words, sizeof words, "--model %s --lora_dropout 0.5", dir), TR_OK);
    assert_int_equal(open_options(words, &cfg, &a), TR_OK);
    assert_true(a && a->r == 2 && a->dropout == 0.5 && a->config);
    tr_adapter_close(a);
    tr_config_close(cfg);

    assert_int_equal(tr_format(words, sizeof words, "--model %s --model_base %s", dir, llama), TR_OK);
    assert_int_equal(open_options(words, &cfg, &a), TR_OK);
    tr_adapter_close(a);
    tr_config_close(cfg);

    assert_int_equal(tr_format(words, sizeof words, "--model %s --lora_r 4", dir), TR_OK);
    assert_int_equal(open_options(words, &cfg, &a), TR_USAGE);
    assert_non_null(strstr(tr_error_text(), "lora_r: the adapter in"));
    tr_config_close(cfg);
    assert_int_equal(tr_format(words, sizeof words, "--model %s --finetuning_type full", dir), TR_OK);
    assert_int_equal(open_options(words, &cfg, &a), TR_USAGE);
    assert_non_null(strstr(tr_error_text(), "is an adapter; merge it first"));
    tr_config_close(cfg);
    assert_int_equal(tr_remove_tree(dir), TR_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_bad_file_is_refused_with_its_fix),
        cmocka_unit_test(what_other_versions_wrote_is_read),
        cmocka_unit_test(unknown_keys_and_the_order_of_patterns_are_kept),
        cmocka_unit_test(options_describe_an_adapter),
        cmocka_unit_test(options_that_contradict_are_refused),
        cmocka_unit_test(a_start_of_the_base_is_written_converted),
        cmocka_unit_test(what_is_written_reads_back),
        cmocka_unit_test(a_name_of_the_options_must_match),
        cmocka_unit_test(tokens_of_two_tables_read_back),
        cmocka_unit_test(a_directory_is_continued_as_it_says),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
