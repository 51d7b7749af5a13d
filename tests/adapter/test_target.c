/* test_target.c - which modules an adapter changes, with which rank and scale: a table that PEFT itself filled
 * (tests/peft/targets.py). TR_TARGETS=FILE: another table. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <glob.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "adapter/adapter_impl.h"

static struct tr_model *open_model(const char *name)
{
    struct tr_model_options opt = { .rows = 1, .sequence_length = 8, .dropout = -1 };
    struct tr_model *m = NULL;
    char path[TR_PATH_MAX];
    assert_int_equal(tr_format(path, sizeof path, TR_SOURCE_DIR "/tests/golden/%s", name), TR_OK);
    if (tr_model_open(path, &opt, &m) != TR_OK)
        fail_msg("%s", tr_error_text());
    return m;
}

static const cJSON *get(const cJSON *row, const char *key)
{
    return cJSON_GetObjectItemCaseSensitive(row, key);
}

static int n_passed; /* rows in which a name that no model has was passed over */

/* The targets of a row and ours are the same set, with the same ranks and scales. */
static bool same_targets(const cJSON *row, const struct tr_adapter_choice *c)
{
    const cJSON *targets = get(row, "targets");
    bool is_same = c->n_targets == (size_t)cJSON_GetArraySize(targets);
    for (size_t i = 0; i < c->n; i++) {
        const struct tr_adapter_target *t = &c->module[i].target;
        const cJSON *want = get(targets, t->module);
        double r = want ? want->child->valuedouble : 0, scale = want ? want->child->next->valuedouble : 0;
        if (t->is_target == (want != NULL) && (!want || ((double)t->r == r && fabs(t->scale - scale) <= 1e-12 * scale)))
            continue;
        print_error("%s: r %d scale %g; PEFT: r %g scale %g\n", t->module, (int)t->r, t->scale, r, scale);
        is_same = false;
    }
    return is_same;
}

/* What is written is what PEFT writes: its target_modules, and in some rows the whole text. */
static bool same_text(const cJSON *row, const struct tr_adapter *a, const struct tr_model *m)
{
    struct tr_str text = { 0 };
    cJSON *tree = NULL;
    assert_int_equal(tr_adapter_print(a, m, &text), TR_OK);
    assert_int_equal(tr_json_parse(text.p, text.n, "text", &tree), TR_OK);
    bool is_same = cJSON_Compare(get(tree, "target_modules"), get(row, "target_modules"), true) &&
                   cJSON_Compare(get(tree, "fan_in_fan_out"), get(row, "fan_in_fan_out"), true);
    char *want = cJSON_PrintUnformatted(get(row, "target_modules"));
    if (!is_same)
        print_error("PEFT writes target_modules %s; here: %s\n", want, text.p);
    if (get(row, "text") && strcmp(get(row, "text")->valuestring, text.p) != 0) {
        print_error("PEFT writes\n%s\nhere:\n%s\n", get(row, "text")->valuestring, text.p);
        is_same = false;
    }
    cJSON_free(want);
    cJSON_Delete(tree);
    tr_str_release(&text);
    return is_same;
}

/* The same as a file of another trainer gives it: names of no module are passed over as PEFT passes over them, and
 * said. */
static bool as_options(const cJSON *row, struct tr_adapter *a, const struct tr_model *m)
{
    struct tr_adapter_choice c = { 0 };
    struct tr_str passed = { 0 };
    cJSON *config = a->config;
    a->config = NULL;
    a->is_lenient = true;
    bool is_same = tr_adapter_choose(a, m, &c) == TR_OK && tr_adapter_passed(a, m, &passed) == TR_OK;
    if (!is_same)
        print_error("as options: %s\n", tr_error_text());
    is_same = is_same && same_targets(row, &c);
    if (strstr(passed.n ? passed.p : "", "Wqkv"))
        n_passed++;
    free(c.module);
    tr_str_release(&passed);
    a->config = config;
    return is_same;
}

static bool check_row(const cJSON *row, const struct tr_model *m)
{
    struct tr_adapter *a = NULL;
    struct tr_adapter_choice c = { 0 };
    char *text = cJSON_PrintUnformatted(get(row, "config"));
    bool is_refused = get(row, "error") != NULL, is_same = true;
    enum tr_status st = tr_adapter_parse(text, strlen(text), "config", &a);
    if (st == TR_OK)
        st = tr_adapter_choose(a, m, &c);
    if ((st == TR_OK) == is_refused) {
        print_error("PEFT: %s; here: %s\n", is_refused ? get(row, "error")->valuestring : "ok",
                    st == TR_OK ? "ok" : tr_error_text());
        is_same = false;
    } else if (st == TR_OK) {
        is_same = same_targets(row, &c);
        is_same = same_text(row, a, m) && is_same;
        if ((double)c.n_trained != get(row, "trained")->valuedouble) {
            print_error("%lld elements are trained; PEFT: %.0f\n", (long long)c.n_trained,
                        get(row, "trained")->valuedouble);
            is_same = false;
        }
    } else {
        assert_int_equal(st, TR_USAGE);
    }
    if (a && !is_refused && !as_options(row, a, m))
        is_same = false;
    if (!is_same)
        print_error("%s %s\n\n", get(row, "model")->valuestring, text);
    free(c.module);
    tr_adapter_close(a);
    cJSON_free(text);
    return is_same;
}

static void targets_are_those_of_peft(void **state)
{
    (void)state;
    const char *path = getenv("TR_TARGETS") ? getenv("TR_TARGETS") : TR_SOURCE_DIR "/tests/adapter/targets.json";
    cJSON *table = NULL;
    struct tr_model *m = NULL;
    char name[TR_NAME_MAX] = "";
    int n = 0, n_bad = 0;
    if (tr_json_load(path, 64 << 20, &table) != TR_OK)
        fail_msg("%s", tr_error_text());
    for (const cJSON *row = table->child; row; row = row->next, n++) {
        if (strcmp(name, get(row, "model")->valuestring) != 0) {
            assert_int_equal(tr_format(name, sizeof name, "%s", get(row, "model")->valuestring), TR_OK);
            tr_model_close(m);
            m = open_model(name);
        }
        n_bad += !check_row(row, m);
    }
    tr_model_close(m);
    cJSON_Delete(table);
    print_message("%d configurations, %d differ; %d name Wqkv\n", n, n_bad, n_passed);
    assert_true(n > 0 && n_bad == 0 && n_passed > 0);
}

/* ---- names of other families ---- */

static const char *leaf_of(const char *name)
{
    const char *dot = strrchr(name, '.');
    return dot ? dot + 1 : name;
}

/* By the end of its name, with the module that holds it, and whole. */
static void each_matrix_is_known(const struct tr_model *m)
{
    struct module_list l;
    assert_int_equal(tr_adapter_list(m, &l), TR_OK);
    for (size_t i = 0; i < l.n; i++) {
        const char *name = l.module[i].target.module;
        if (l.module[i].kind != TR_MODULE_NORM && strcmp(leaf_of(name), "wpe") != 0 &&
            strcmp(leaf_of(name), "embed_positions") != 0 && strncmp(leaf_of(name), "project_", 8) != 0 &&
            (!tr_arch_has_module(name) || !tr_arch_has_module(leaf_of(name))))
            fail_msg("no family has %s", name);
        if (l.module[i].kind == TR_MODULE_NORM && tr_arch_has_module(leaf_of(name)))
            fail_msg("%s is a norm, and no name of a matrix", name);
    }
    tr_adapter_list_release(&l);
}

static void matrices_of_all_families_are_known(void **state)
{
    (void)state;
    glob_t found;
    assert_int_equal(glob(TR_SOURCE_DIR "/tests/golden/*/config.json", 0, NULL, &found), 0);
    assert_true(found.gl_pathc > 30);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        char *end = strrchr(found.gl_pathv[i], '/');
        *end = 0;
        struct tr_model *m = open_model(strrchr(found.gl_pathv[i], '/') + 1);
        each_matrix_is_known(m);
        tr_model_close(m);
    }
    globfree(&found);
    static const char *const unknown[] = { "q_porj", "mlp", "self_attn", "proj", "_proj", "norm", "", "layers.0" };
    for (size_t i = 0; i < TR_COUNT_OF(unknown); i++)
        if (tr_arch_has_module(unknown[i]))
            fail_msg("\"%s\" is not a module of any family", unknown[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(targets_are_those_of_peft),
                                        cmocka_unit_test(matrices_of_all_families_are_known) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
