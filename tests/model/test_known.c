/* Models without a directory: published shapes have the published number of parameters, derived ones the size that was
 * asked for, and every row says where it is from. */
#include "model/model_impl.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

static const struct tr_model_options by_name = { .rows = 1, .sequence_length = 16, .dropout = -1, .takes_names = true };

static int64_t parameters_of(const char *name)
{
    struct tr_model *m = NULL;
    if (tr_model_open(name, &by_name, &m) != TR_OK)
        fail_msg("%s: %s", name, tr_error_text());
    int64_t n = m->n_elements;
    tr_model_close(m);
    return n;
}

static void published_shapes_have_the_published_parameters(void **state)
{
    size_t n = 0;
    (void)state;
    for (size_t i = 0; i < tr_n_known_files; i++) {
        cJSON *file = NULL;
        assert_int_equal(tr_json_parse(tr_known_files[i].text, tr_known_files[i].n, "known", &file), TR_OK);
        for (const cJSON *row = file->child; row; row = row->next, n++) {
            int64_t parameters = 0;
            const char *source = "", *date = "";
            assert_int_equal(tr_json_int(row, "parameters", true, 1, INT64_C(1) << 53, &parameters), TR_OK);
            assert_int_equal(tr_json_str(row, "source", true, &source), TR_OK);
            assert_int_equal(tr_json_str(row, "date", true, &date), TR_OK);
            assert_true(strchr(source, '/') != NULL && strlen(date) == strlen("2026-11-18"));
            if (parameters_of(row->string) != parameters)
                fail_msg("%s has %" PRId64 " parameters", row->string, parameters_of(row->string));
        }
        cJSON_Delete(file);
    }
    assert_true(n > 50);
}

/* Whoever publishes it, and tuned or not; another version may be another shape. */
static void names_of_siblings_are_known(void **state)
{
    static const struct {
        const char *name, *row;
    } same[] = {
        { "meta-llama/Meta-Llama-3.1-8B-Instruct", "llama-3.1-8b" },
        { "someone/Meta-Llama-3.1-8B", "llama-3.1-8b" },
        { "google/gemma-3-27b-it", "gemma-3-27b" },
        { "Llama-2-7b-chat-hf", "llama-2-7b" },
        { "allenai/OLMo-2-1124-7B-Instruct", "olmo-2-7b" },
        { "microsoft/phi-4", "phi-4" },
    };
    static const char *const others[] = { "mistralai/Mistral-7B-Instruct-v0.9", "a/b/llama-3.1-8b", "./llama-3.1-8b",
                                          "llama-3.1-8bit", "org/llama-3.1-8b-" };
    struct tr_model *m = NULL;
    (void)state;
    for (size_t i = 0; i < TR_COUNT_OF(same); i++)
        assert_int_equal(parameters_of(same[i].name), parameters_of(same[i].row));
    for (size_t i = 0; i < TR_COUNT_OF(others); i++)
        if (tr_model_open(others[i], &by_name, &m) == TR_OK)
            fail_msg("%s is known", others[i]);
}

static void a_derived_shape_has_the_size_within_a_hundredth(void **state)
{
    (void)state;
    for (double size = 20e6; size < 5e12; size *= 1.31) {
        char name[32];
        assert_int_equal(tr_format(name, sizeof name, "%.0fM", size / 1e6), TR_OK);
        double ratio = (double)parameters_of(name) / (round(size / 1e6) * 1e6);
        if (!(fabs(ratio - 1) < 0.01))
            fail_msg("%s: %g of the size", name, ratio);
    }
}

/* Tensor ranks of a node share the heads, and large models have stages of equal depth. */
static void large_derived_shapes_split_evenly(void **state)
{
    static const char *const names[] = { "7B", "8b", "13B", "34B", "70B", "175B", "405B", "1T", "6.7B", "0.007T" };
    (void)state;
    for (size_t i = 0; i < TR_COUNT_OF(names); i++) {
        struct tr_model *m = NULL;
        assert_int_equal(tr_model_open(names[i], &by_name, &m), TR_OK);
        assert_int_equal(m->hp.n_heads_q % 8, 0);
        assert_int_equal(m->hp.n_heads_kv, 8);
        assert_int_equal(m->hp.layers % 4, 0);
        assert_int_equal(m->hp.ffn % 128, 0);
        tr_model_close(m);
    }
}

static void names_of_the_hub_and_of_tuned_siblings_are_found(void **state)
{
    static const char *const same[] = { "llama-3.1-8b", "Llama-3.1-8B", "meta-llama/Llama-3.1-8B",
                                        "meta-llama/Llama-3.1-8B-Instruct" };
    (void)state;
    for (size_t i = 0; i < TR_COUNT_OF(same); i++)
        assert_int_equal(parameters_of(same[i]), INT64_C(8030261248));
    assert_int_equal(parameters_of("mistral-7b"), INT64_C(7241732096)); /* and not the longer mistral-7b-v0.3 */
    assert_int_equal(parameters_of("mistral-7b-v0.3"), INT64_C(7248023552));
}

static void what_is_neither_is_refused_with_the_nearest(void **state)
{
    static const char *const rows[][2] = { { "lama-3-8b", "llama-3-8b" }, { "9M", "10M to 10T" },
                                           { "11T", "10M to 10T" },       { "7X", "a size like 7B" },
                                           { "B", "a size like 7B" },     { "1e9B", "a size like 7B" },
                                           { "-7B", "a size like 7B" },   { "", "a size like 7B" },
                                           { "7.5.1B", "a size like 7B" } };
    struct tr_model *m = NULL;
    struct tr_model_options paths_only = by_name;
    (void)state;
    for (size_t i = 0; i < TR_COUNT_OF(rows); i++) {
        assert_int_equal(tr_model_open(rows[i][0], &by_name, &m), TR_USAGE);
        if (!strstr(tr_error_text(), rows[i][1]))
            fail_msg("\"%s\": %s", rows[i][0], tr_error_text());
    }
    paths_only.takes_names = false; /* a run needs weights */
    assert_int_equal(tr_model_open("7B", &paths_only, &m), TR_USAGE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_shapes_have_the_published_parameters),
        cmocka_unit_test(names_of_siblings_are_known),
        cmocka_unit_test(a_derived_shape_has_the_size_within_a_hundredth),
        cmocka_unit_test(large_derived_shapes_split_evenly),
        cmocka_unit_test(names_of_the_hub_and_of_tuned_siblings_are_found),
        cmocka_unit_test(what_is_neither_is_refused_with_the_nearest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
