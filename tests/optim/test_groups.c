/* Groups that code adds stand behind those of a file: the first that matches counts. */
#include "base/base.h"
#include "optim/optim.h"
#include <setjmp.h>
#include <stdarg.h>
#include <unistd.h>
#include <cmocka.h>

static void groups_of_loraplus_take_b_and_vectors(void **state)
{
    (void)state;
    struct tr_param_groups g = { 0 };
    assert_int_equal(tr_groups_add(&g, "*.lora_embedding_*", 0, 0.01), TR_OK);
    assert_int_equal(tr_groups_add(&g, "*.lora_B.*", 0, 16), TR_OK);
    assert_int_equal(tr_groups_add(&g, "*", 1, 16), TR_OK);
    assert_int_equal(g.n, 4);
    assert_int_equal(tr_param_group_of(&g, "model.layers.0.mlp.up_proj.lora_A.weight", 2), 0);
    assert_int_equal(tr_param_group_of(&g, "model.layers.0.mlp.up_proj.lora_B.weight", 2), 2);
    assert_int_equal(tr_param_group_of(&g, "model.layers.0.mlp.up_proj.lora_magnitude_vector", 1), 3);
    assert_int_equal(tr_param_group_of(&g, "model.embed_tokens.lora_embedding_B", 2), 1);
    assert_int_equal(tr_param_group_of(&g, "lm_head.weight", 2), 0);
    float values[TR_STEP_COUNT] = { [TR_STEP_LR] = 0.5f, [TR_STEP_DECAY] = 0.25f }, out[TR_STEP_COUNT];
    tr_group_values(&g, 2, values, out);
    assert_true(out[TR_STEP_LR] == 8.0f && out[TR_STEP_DECAY] == 0.25f);
}

static void too_many_groups_are_refused(void **state)
{
    (void)state;
    struct tr_param_groups g = { 0 };
    for (int i = 1; i < TR_GROUPS_MAX; i++)
        assert_int_equal(tr_groups_add(&g, "*", 0, 1), TR_OK);
    assert_int_equal(tr_groups_add(&g, "*", 0, 1), TR_USAGE);
    tr_error_clear();
}

static void a_group_that_is_no_object_is_refused(void **state)
{
    (void)state;
    static const char *const texts[] = { "[[0]]", "[[[]]]", "[7]", "[null]", "[\"pattern\"]", "[{}]", "{\"a\": [0]}" };
    char path[] = "/tmp/tr-groups-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    for (size_t i = 0; i < TR_COUNT_OF(texts); i++) {
        struct tr_param_groups g;
        assert_int_equal(tr_file_write_atomic(path, texts[i], strlen(texts[i])), TR_OK);
        assert_int_equal(tr_groups_load(path, &g), TR_USAGE);
        assert_non_null(strstr(tr_error_text(), "tr-groups-"));
    }
    tr_error_clear();
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(groups_of_loraplus_take_b_and_vectors),
        cmocka_unit_test(too_many_groups_are_refused),
        cmocka_unit_test(a_group_that_is_no_object_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
