/* test_import.c - files of other trainers: a verdict for every key, whose file it is, what a hostile one may cost, and
 * the page of all keys. Translations to options are in tests/import/golden.py, which runs the binary. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <unistd.h>

#include "import/import.h"

static struct tr_import *im;
static char path[64];

static bool any_option(void *ctx, const char *name)
{
    (void)ctx;
    return strcmp(name, "learning_rate") == 0 || strcmp(name, "max_grad_norm") == 0 || strcmp(name, "zero") == 0 ||
           strcmp(name, "output") == 0;
}

static bool is_list(void *ctx, const char *option)
{
    (void)ctx;
    return strcmp(option, "data") == 0 || strcmp(option, "trainable_token_indices") == 0;
}

static bool any_value(void *ctx, const char *option, const char *value, char *why, size_t n_why)
{
    (void)ctx;
    (void)option;
    (void)why;
    (void)n_why;
    return value != NULL;
}

static const struct tr_import_target target = { NULL, any_option, is_list, any_value };

static enum tr_status open_text(const char *text, size_t n, const char *from)
{
    (void)snprintf(path, sizeof path, "/tmp/trireme-import-%d.yaml", (int)getpid());
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
    tr_import_close(im);
    im = NULL;
    return tr_import_open((const char *const[]){ path }, 1, from, NULL, 0, &target, &im);
}

static int teardown(void **state)
{
    (void)state;
    tr_import_close(im);
    im = NULL;
    unlink(path);
    return 0;
}

/* One line a key: tool, key. */
static void every_key_of(const char *file, int n_least)
{
    FILE *f = fopen(file, "r");
    char line[512];
    int n = 0, n_unknown = 0;
    assert_non_null(f);
    while (fgets(line, sizeof line, f) != NULL) {
        char *space = strchr(line, ' ');
        line[strcspn(line, "\n")] = '\0';
        if (line[0] == '#' || space == NULL)
            continue;
        *space = '\0';
        n++;
        /* a section without keys, and keys of sections */
        if (tr_import_verdict_of(line, space + 1) == TR_IMPORT_UNKNOWN) {
            print_error("%s: no verdict for %s\n", line, space + 1);
            n_unknown++;
        }
    }
    fclose(f);
    assert_true(n >= n_least);
    assert_int_equal(n_unknown, 0);
}

static void every_key_of_the_examples_has_a_verdict(void **state)
{
    (void)state;
    every_key_of(TR_SOURCE_DIR "/tests/import/keys.txt", 900);
}

/* Recorded by names.py from the classes themselves. */
static void every_field_of_the_trainers_has_a_verdict(void **state)
{
    (void)state;
    every_key_of(TR_SOURCE_DIR "/tests/import/names.txt", 250);
}

/* Recorded by schemas.py from the sources of the tools. */
static void every_key_of_the_schemas_has_a_verdict(void **state)
{
    (void)state;
    every_key_of(TR_SOURCE_DIR "/tests/import/schemas.txt", 1100);
}

static void the_page_is_what_the_tables_say(void **state)
{
    (void)state;
    static const char name[] = TR_SOURCE_DIR "/docs/guide/import-keys.md";
    struct tr_str want = { 0 };
    char *text = NULL;
    size_t n = 0;
    tr_import_page(&want);
    assert_true(tr_str_ok(&want));
    if (getenv("UPDATE") != NULL) {
        FILE *f = fopen(name, "w");
        assert_non_null(f);
        assert_int_equal(fwrite(want.p, 1, want.n, f), want.n);
        assert_int_equal(fclose(f), 0);
    }
    assert_int_equal(tr_file_read(name, 1 << 20, &text, &n), TR_OK);
    if (n != want.n || memcmp(text, want.p, n) != 0)
        fail_msg("docs/guide/import-keys.md is not what src/import says; UPDATE=1 writes it");
    free(text);
    tr_str_release(&want);
}

static void files_show_whose_they_are(void **state)
{
    (void)state;
    static const struct {
        const char *tool, *text;
    } files[] = {
        { "deepspeed", "{\"zero_optimization\": {\"stage\": 2}}" },
        { "deepspeed", "{\t\"train_micro_batch_size_per_gpu\":\t4}" },
        { "accelerate", "distributed_type: FSDP\nnum_processes: 2\n" },
        { "axolotl", "base_model: m\ndatasets:\n  - path: a.jsonl\n" },
        { "axolotl", "base_model: m\nmicro_batch_size: 2\noptimizer: adamw_torch\n" },
        { "llamafactory", "stage: sft\nfinetuning_type: full\nmodel_name_or_path: m\n" },
        { "torchtune", "optimizer:\n  _component_: torch.optim.AdamW\n" },
        { "trl", "model_name_or_path: m\ndataset_name: d\nlearning_rate: 1e-4\n" },
        { "hf", "output_dir: o\nlearning_rate: 1e-4\nreport_to: none\n" },
        { NULL, "learning_rate: 1e-4\n" },
        { NULL, "learning_rat: 1e-4\n" },
    };
    for (size_t i = 0; i < TR_COUNT_OF(files); i++) {
        const char *tool = "none";
        assert_int_equal(tr_import_detect("x", files[i].text, strlen(files[i].text), &target, &tool), TR_OK);
        if (files[i].tool == NULL)
            assert_null(tool);
        else
            assert_string_equal(tool, files[i].tool);
    }
}

static const struct tr_import_item *item(const char *key)
{
    for (size_t i = 0; i < tr_import_count(im); i++)
        if (strcmp(tr_import_at(im, i)->key, key) == 0)
            return tr_import_at(im, i);
    fail_msg("no item %s", key);
    return NULL;
}

static void items_have_lines_and_verdicts(void **state)
{
    (void)state;
    static const char text[] =
        "{\n \"zero_optimization\": {\n  \"stage\": 3,\n  \"overlap_comm\": true,\n"
        "  \"zero_quantized_weights\": true,\n  \"overlap_com\": 1},\n \"gradient_clipping\": \"auto\"\n}";
    assert_int_equal(open_text(text, sizeof text - 1, NULL), TR_OK);
    assert_int_equal(item("zero_optimization.stage")->line, 3);
    assert_int_equal(item("zero_optimization.stage")->verdict, TR_IMPORT_TAKEN);
    assert_string_equal(item("zero_optimization.stage")->set, "3");
    assert_int_equal(item("zero_optimization.overlap_comm")->verdict, TR_IMPORT_DECIDED);
    assert_int_equal(item("zero_optimization.zero_quantized_weights")->verdict, TR_IMPORT_CANNOT);
    assert_int_equal(item("zero_optimization.overlap_com")->verdict, TR_IMPORT_UNKNOWN);
    assert_string_equal(item("zero_optimization.overlap_com")->why, "did you mean zero_optimization.overlap_comm?");
    assert_null(item("gradient_clipping")->set);
    assert_string_equal(item("gradient_clipping")->option, "max_grad_norm");
    assert_false(tr_import_is_done(im));
}

static void a_key_may_be_skipped(void **state)
{
    (void)state;
    static const char *const skip[] = { "zero_optimization.zero_q*" };
    static const char text[] = "{\"zero_optimization\": {\"zero_quantized_weights\": true}}";
    assert_int_equal(open_text(text, sizeof text - 1, NULL), TR_OK);
    assert_false(tr_import_is_done(im));
    tr_import_close(im);
    im = NULL;
    assert_int_equal(tr_import_open((const char *const[]){ path }, 1, NULL, skip, 1, &target, &im), TR_OK);
    assert_true(tr_import_is_done(im));
}

static void an_option_that_is_not_here_cannot_be_had(void **state)
{
    (void)state;
    static const char text[] = "{\"zero_optimization\": {\"stage\": 1}, \"train_batch_size\": 5}";
    assert_int_equal(open_text(text, sizeof text - 1, NULL), TR_OK);
    assert_int_equal(item("train_batch_size")->verdict, TR_IMPORT_CANNOT);
    assert_string_equal(item("train_batch_size")->why, "there is no option train_batch_size here");
}

static void anchors_are_written_out(void **state)
{
    (void)state;
    static const char text[] = "zero_optimization: &z\n  stage: 2\nx: &n 5\nother:\n  <<: *z\n  overlap_comm: true\n"
                               "gradient_clipping: *n\n";
    assert_int_equal(open_text(text, sizeof text - 1, NULL), TR_OK);
    assert_string_equal(item("other.stage")->value, "2");
    assert_string_equal(item("gradient_clipping")->set, "5");
}

static void refused_with(const char *text, size_t n, const char *cause)
{
    assert_int_equal(open_text(text, n, "deepspeed"), TR_USAGE);
    if (strstr(tr_error_text(), cause) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", tr_error_text(), cause);
}

static void hostile_files_are_refused(void **state)
{
    (void)state;
    static char deep[4096], bomb[4096];
    memset(deep, '[', sizeof deep);
    refused_with("a: 1\na: 2\n", 10, ":2: a is there twice, first in line 1");
    refused_with("[1, 2]", 6, "expected a mapping");
    refused_with("a: *b\n", 6, "an alias without its anchor");
    refused_with("a: 1\n---\nb: 1\n", 14, "a second document");
    memcpy(deep, "a: ", 3);
    refused_with(deep, sizeof deep, "nested too deeply");
    /* each level has eight times the leaves of the one before: 8^12 without a bound */
    size_t n = (size_t)snprintf(bomb, sizeof bomb, "l0: &l0 {a: 1, b: 1, c: 1, d: 1, e: 1, f: 1, g: 1, h: 1}\n");
    for (int i = 1; i < 12; i++) {
        n += (size_t)snprintf(bomb + n, sizeof bomb - n, "l%d: &l%d {", i, i);
        for (int k = 0; k < 8; k++)
            n += (size_t)snprintf(bomb + n, sizeof bomb - n, "%c: *l%d%s", 'a' + k, i - 1, k < 7 ? ", " : "}\n");
    }
    refused_with(bomb, n, "more than 8,192 values");
    refused_with("a: \"x\\0y\"\n", 10, "a NUL byte");
    /* items of a list count too: each was reported with the text of the whole list */
    static char list[20100] = "optimizer: {params: {lr: [0";
    for (n = strlen(list); n + 8 < sizeof list; n += 2)
        memcpy(list + n, ",0", 2);
    memcpy(list + n, "]}}", 4);
    refused_with(list, n + 3, "more than 8,192 values");
}

static void an_item_of_a_list_is_reported_by_itself(void **state)
{
    (void)state;
    static const char text[] = "optimizer: {type: AdamW, params: {lr: [1e-4, 1e-4]}}\n";
    assert_int_equal(open_text(text, sizeof text - 1, "deepspeed"), TR_OK);
    assert_string_equal(item("optimizer.params.lr")->value, "1e-4");
}

static void a_map_of_names_becomes_items(void **state)
{
    (void)state;
    static const char text[] = "base_model: m\nadapter: lora\nmicro_batch_size: 1\npeft_trainable_token_indices:\n"
                               "  embed_tokens: [7, 9]\n  lm_head: 5\nlora_rank_pattern: {layers.0.q_proj: 2}\n";
    static const char *const sets[] = { "embed_tokens=7", "embed_tokens=9", "lm_head=5" };
    size_t n = 0;
    assert_int_equal(open_text(text, sizeof text - 1, "axolotl"), TR_OK);
    for (size_t i = 0; i < tr_import_count(im); i++) {
        const struct tr_import_item *it = tr_import_at(im, i);
        if (it->option && strcmp(it->option, "trainable_token_indices") == 0) {
            assert_true(n < 3 && it->is_given && it->verdict == TR_IMPORT_TAKEN);
            assert_string_equal(it->set, sets[n++]);
        }
    }
    assert_int_equal(n, 3);
    assert_string_equal(item("lora_rank_pattern.layers.0.q_proj")->set, "layers.0.q_proj=2");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(every_key_of_the_examples_has_a_verdict, teardown),
        cmocka_unit_test_teardown(every_field_of_the_trainers_has_a_verdict, teardown),
        cmocka_unit_test_teardown(every_key_of_the_schemas_has_a_verdict, teardown),
        cmocka_unit_test_teardown(the_page_is_what_the_tables_say, teardown),
        cmocka_unit_test_teardown(files_show_whose_they_are, teardown),
        cmocka_unit_test_teardown(items_have_lines_and_verdicts, teardown),
        cmocka_unit_test_teardown(a_key_may_be_skipped, teardown),
        cmocka_unit_test_teardown(an_option_that_is_not_here_cannot_be_had, teardown),
        cmocka_unit_test_teardown(anchors_are_written_out, teardown),
        cmocka_unit_test_teardown(hostile_files_are_refused, teardown),
        cmocka_unit_test_teardown(an_item_of_a_list_is_reported_by_itself, teardown),
        cmocka_unit_test_teardown(a_map_of_names_becomes_items, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
