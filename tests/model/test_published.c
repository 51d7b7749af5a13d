/* Shapes of published config.json files, entered by hand, load as they are, and their models have as many parameters as
 * transformers counts (published.py made the table). A key that nobody knows is refused by name in each of them. */
#include "base/base.h"
#include "model/model.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

static enum tr_status open_copy(const cJSON *config, const char *odd, struct tr_model **out)
{
    cJSON *copy = cJSON_Duplicate(config, true);
    struct tr_model_options opt = { .rows = 1, .sequence_length = 4, .dropout = -1 };
    assert_non_null(copy);
    if (odd)
        assert_non_null(cJSON_AddNumberToObject(copy, odd, 3));
    enum tr_status st = tr_model_from_json(copy, &opt, out);
    if (st != TR_OK)
        cJSON_Delete(copy);
    return st;
}

static void check_row(const char *line, size_t n)
{
    cJSON *row = NULL;
    struct tr_model *m = NULL;
    const char *name = NULL;
    int64_t want = 0;
    assert_int_equal(tr_json_parse(line, n, "published.jsonl", &row), TR_OK);
    assert_int_equal(tr_json_str(row, "name", true, &name), TR_OK);
    assert_int_equal(tr_json_int(row, "parameters", true, 1, INT64_C(1) << 50, &want), TR_OK);
    const cJSON *config = cJSON_GetObjectItemCaseSensitive(row, "config");
    if (open_copy(config, NULL, &m) != TR_OK)
        fail_msg("%s: %s", name, tr_error_text());
    if (m->n_elements != want)
        fail_msg("%s has %" PRId64 " parameters, transformers counts %" PRId64, name, m->n_elements, want);
    tr_model_close(m);
    assert_int_equal(open_copy(config, "mixture_of_depths", &m), TR_USAGE);
    assert_non_null(strstr(tr_error_text(), "mixture_of_depths"));
    cJSON_Delete(row);
}

static void published_configs_load_and_count_right(void **state)
{
    (void)state;
    char *text = NULL;
    size_t n = 0, n_rows = 0;
    assert_int_equal(tr_file_read(TR_SOURCE_DIR "/tests/model/published.jsonl", 1 << 20, &text, &n), TR_OK);
    for (char *line = text, *end; line < text + n; line = end + 1, n_rows++) {
        end = memchr(line, '\n', (size_t)(text + n - line));
        assert_non_null(end);
        check_row(line, (size_t)(end - line));
    }
    assert_true(n_rows >= 60);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(published_configs_load_and_count_right) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
