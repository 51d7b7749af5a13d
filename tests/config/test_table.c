/* test_table.c - the option table itself: frozen, without collisions, and printed in every form. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <cjson/cJSON.h>
#include <unistd.h>

#include "config/config_impl.h"

static void the_option_list_is_frozen(void **state)
{
    (void)state;
    struct tr_str list = { 0 };
    char *frozen = NULL;
    size_t n = 0;
    tr_config_list(&list);
    assert_true(tr_str_ok(&list));
    const char *update = getenv("TR_UPDATE"); /* TR_UPDATE=1: write the new list, then look at the diff */
    const char *path = TR_SOURCE_DIR "/tests/config/options.txt";
    if (update != NULL && update[0] == '1')
        assert_int_equal(tr_file_write_atomic(path, list.p, list.n), TR_OK);
    assert_int_equal(tr_file_read(path, 1 << 20, &frozen, &n), TR_OK);
    size_t at = 0, line = 0;
    while (at < n && list.p[at] == frozen[at])
        if (list.p[at++] == '\n')
            line = at;
    if (at != n || at != list.n)
        print_error("tests/config/options.txt differs from the table at: %.*s\nTR_UPDATE=1 writes it anew\n",
                    (int)strcspn(list.p + line, "\n"), list.p + line);
    assert_true(at == n && at == list.n);
    free(frozen);
    tr_str_release(&list);
}

/* Every way to write a row's name must lead to that row: two rows of one verb never share a name. */
static void no_name_means_two_things(void **state)
{
    (void)state;
    for (int verb = 0; verb < TR_VERB_COUNT; verb++) {
        for (size_t i = 0; i < tr_option_count(); i++) {
            const struct option *opt = &tr_options[i];
            char word[64], key[128];
            if (!tr_option_is_for(opt, (enum tr_verb)verb))
                continue;
            assert_ptr_equal(tr_option_find((enum tr_verb)verb, opt->name), opt);
            assert_null(tr_rewrite_find(opt->name));
            (void)snprintf(key, sizeof key, "%s.%s", opt->group, opt->name);
            assert_ptr_equal(tr_option_find((enum tr_verb)verb, key), opt);
            for (size_t k = 0; tr_word_at(opt->aliases, k, word, sizeof word); k++) {
                assert_ptr_equal(tr_option_find((enum tr_verb)verb, word), opt);
                assert_null(tr_rewrite_find(word));
            }
        }
    }
    for (const struct old_option *r = tr_rewrites; r->name != NULL; r++)
        assert_true(r->target == NULL || tr_option_find(TR_VERB_TRAIN, r->target) != NULL);
}

static void every_row_is_complete(void **state)
{
    (void)state;
    for (size_t i = 0; i < tr_option_count(); i++) {
        const struct option *opt = &tr_options[i];
        bool has_group = false;
        for (const char *const *g = tr_groups; *g != NULL; g++)
            has_group = has_group || strcmp(*g, opt->group) == 0;
        assert_true(has_group);
        assert_true(opt->help != NULL && opt->help[0] != '\0' && opt->verbs != 0);
        assert_true(tr_option_has_words(opt) ? opt->choices != NULL : opt->type == OPTION_BOOL || opt->arg != NULL);
        assert_true(strlen(opt->name) < 64);
        for (const char *p = opt->name; *p != '\0'; p++)
            assert_true((*p >= 'a' && *p <= 'z') || (*p >= '0' && *p <= '9') || *p == '_');
    }
}

static const struct tr_config *load(char *const *argv, int argc)
{
    const struct tr_config *cfg = NULL;
    if (tr_config_load(TR_VERB_CONFIG, argc, argv, NULL, &cfg) != TR_OK)
        fail_msg("%s", tr_error_text());
    return cfg;
}

/* What JSON says, given back with --set, is the same configuration. */
static void json_given_back_is_the_same_configuration(void **state)
{
    (void)state;
    char *first[] = { "--lr",
                      "0.1",
                      "--data",
                      "a:0.3333333333333333",
                      "--data",
                      "b:5:1",
                      "--dropout",
                      "0.1",
                      "--bf16",
                      "--seed",
                      "9007199254740991",
                      "--model",
                      "dir \"x\"\n",
                      "--warmup_steps",
                      "0.07",
                      "--ignore_config_keys",
                      "p,q" };
    const struct tr_config *a = load(first, (int)TR_COUNT_OF(first));
    struct tr_str json_a = { 0 }, json_b = { 0 };
    tr_config_json(a, false, &json_a);
    cJSON *root = NULL;
    assert_int_equal(tr_json_parse(json_a.p, json_a.n, "json", &root), TR_OK);
    assert_int_equal(cJSON_GetObjectItem(root, "seed")->valuedouble == 9007199254740991.0, 1);

    char *argv[512];
    char words[256][256];
    int argc = 0, n_words = 0;
    for (const cJSON *item = root->child; item != NULL; item = item->next) {
        const cJSON *one = cJSON_IsArray(item) ? item->child : item;
        for (; one != NULL; one = cJSON_IsArray(item) ? one->next : NULL) {
            if (cJSON_IsNull(one))
                continue;
            char number[40];
            (void)snprintf(number, sizeof number, "%.17g", one->valuedouble);
            const char *text = cJSON_IsString(one) ? one->valuestring : cJSON_IsBool(one) ? "true" : number;
            (void)snprintf(words[n_words], sizeof words[0], "%s=%s", item->string, cJSON_IsFalse(one) ? "false" : text);
            argv[argc++] = "--set";
            argv[argc++] = words[n_words++];
        }
    }
    const struct tr_config *b = load(argv, argc);
    tr_config_json(b, false, &json_b);
    assert_string_equal(json_a.p, json_b.p);
    assert_int_equal(b->data.n, 2);
    assert_string_equal(b->data.item[1].path, "b:5");
    cJSON_Delete(root);
    tr_config_close(a);
    tr_config_close(b);
    tr_str_release(&json_a);
    tr_str_release(&json_b);
}

static void dump_and_json_show_the_origin(void **state)
{
    (void)state;
    char *argv[] = { "--lr", "0.1" };
    const struct tr_config *cfg = load(argv, 2);
    struct tr_str dump = { 0 }, json = { 0 };
    tr_config_dump(cfg, &dump);
    assert_non_null(strstr(dump.p, "optim     learning_rate                0.1                  command line --lr\n"));
    assert_non_null(strstr(dump.p, "run       seed                         42                   default\n"));
    tr_config_json(cfg, true, &json);
    assert_non_null(strstr(json.p, "\"learning_rate\":{\"value\":0.1,\"origin\":\"command line --lr\"}"));
    tr_str_release(&dump);
    tr_str_release(&json);
    tr_config_close(cfg);
}

static void help_and_man_name_every_option_of_the_verb(void **state)
{
    (void)state;
    for (int verb = 0; verb < TR_VERB_COUNT; verb++) {
        struct tr_str help = { 0 }, man = { 0 };
        tr_config_help((enum tr_verb)verb, &help);
        tr_config_man((enum tr_verb)verb, &man);
        for (size_t i = 0; i < tr_option_count(); i++) {
            char flag[80];
            (void)snprintf(flag, sizeof flag, "--%s ", tr_options[i].name);
            bool is_there = strstr(help.p, flag) != NULL;
            if (strcmp(tr_options[i].name, "config") != 0)
                assert_int_equal(is_there, tr_option_is_for(&tr_options[i], (enum tr_verb)verb));
            (void)snprintf(flag, sizeof flag, "\\-\\-%s\\fR", tr_options[i].name);
            if (is_there)
                assert_non_null(strstr(man.p, flag));
        }
        tr_str_release(&help);
        tr_str_release(&man);
    }
    struct tr_str bash = { 0 };
    assert_int_equal(tr_config_completion("bash", &bash), TR_OK);
    assert_non_null(strstr(bash.p, "complete -F _trireme trireme"));
    tr_str_release(&bash);
}

static void verbs_parse_back(void **state)
{
    (void)state;
    for (int v = 0; v < TR_VERB_COUNT; v++) {
        enum tr_verb back = TR_VERB_COUNT;
        assert_true(tr_verb_parse(tr_verb_word((enum tr_verb)v), &back));
        assert_int_equal(back, v);
    }
    enum tr_verb unused;
    assert_false(tr_verb_parse("tain", &unused));
    assert_string_equal(tr_config_word("optim", TR_OPTIM_LION), "lion");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_option_list_is_frozen),
        cmocka_unit_test(no_name_means_two_things),
        cmocka_unit_test(every_row_is_complete),
        cmocka_unit_test(json_given_back_is_the_same_configuration),
        cmocka_unit_test(dump_and_json_show_the_origin),
        cmocka_unit_test(help_and_man_name_every_option_of_the_verb),
        cmocka_unit_test(verbs_parse_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
