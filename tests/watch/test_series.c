/* Columns of a run: what a point of a curve stands for, what a run that went back leaves, and what its files may not
 * do. */
#include "watch/watch_impl.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

static char dir[64];

static int setup(void **state)
{
    (void)state;
    snprintf(dir, sizeof dir, "/tmp/watch-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    return tr_remove_tree(dir) == TR_OK ? 0 : -1;
}

static void put(const char *name, const char *text, const char *how)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, how);
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static struct tr_event step_of(int64_t step, double loss)
{
    return (struct tr_event){ .kind = TR_EVENT_STEP, .step = step, .loss = loss, .mfu = (double)NAN };
}

static void a_point_is_the_mean_and_the_extremes_of_its_steps(void **state)
{
    (void)state;
    struct tr_series s = { 0 };
    for (int64_t i = 1; i <= 1000; i++) {
        struct tr_event e = step_of(i, i == 777 ? (double)NAN : (double)i);
        assert_int_equal(tr_series_add(&s, &e), TR_OK);
    }
    struct tr_str out = { 0 };
    tr_str_addf(&out, "{");
    tr_series_json(&s, 0, INT64_MAX, 10, &out);
    tr_str_addf(&out, "}");
    cJSON *j = NULL;
    assert_int_equal(tr_json_parse(out.p, out.n, "series", &j), TR_OK);
    const cJSON *loss = cJSON_GetObjectItem(j, "loss");
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(j, "step")), 10);
    assert_true(cJSON_GetObjectItem(j, "rows")->valuedouble == 1000 &&
                cJSON_GetObjectItem(j, "last")->valuedouble == 1000);
    assert_true(cJSON_GetArrayItem(cJSON_GetObjectItem(loss, "mean"), 0)->valuedouble == 50.5);
    assert_true(cJSON_GetArrayItem(cJSON_GetObjectItem(loss, "min"), 9)->valuedouble == 901);
    assert_true(cJSON_GetArrayItem(cJSON_GetObjectItem(loss, "max"), 9)->valuedouble == 1000);
    assert_true(cJSON_GetArrayItem(cJSON_GetObjectItem(loss, "mean"), 7)->valuedouble > 700); /* without the NaN */
    assert_null(cJSON_GetObjectItem(j, "mfu"));                                               /* no step has one */
    cJSON_Delete(j);
    tr_str_release(&out);
    struct tr_series_part p = tr_series_between(&s, 100, 199);
    assert_true(p.first == 99 && p.end == 199);
    tr_series_release(&s);
}

static void a_run_that_goes_back_replaces_its_steps(void **state)
{
    (void)state;
    struct tr_series s = { 0 };
    for (int64_t i = 1; i <= 20; i++) {
        struct tr_event e = step_of(i, 1);
        assert_int_equal(tr_series_add(&s, &e), TR_OK);
    }
    struct tr_event e = step_of(11, 2);
    assert_int_equal(tr_series_add(&s, &e), TR_OK);
    assert_true(s.n == 11 && s.step[10] == 11 && s.column[TR_SERIES_LOSS][10] == 2);
    tr_series_release(&s);
}

static void what_a_run_adds_is_seen_and_a_cut_log_is_read_again(void **state)
{
    (void)state;
    struct tr_watch_run *w = NULL;
    assert_int_equal(tr_watch_open(dir, &w), TR_USAGE); /* no run */
    put("events.jsonl",
        "{\"event\":\"config\",\"total_steps\":9,\"options\":{}}\n{\"event\":\"step\",\"step\":1,\"loss\":4}\n", "w");
    assert_int_equal(tr_watch_open(dir, &w), TR_OK);
    assert_true(w->steps.n == 1 && w->total_steps == 9 && tr_watch_last(w, "config") != NULL);
    assert_false(tr_watch_refresh(w));
    put("events.jsonl",
        "{\"event\":\"step\",\"step\":2,\"loss\":3}\n{\"event\":\"eval\",\"step\":2,\"loss\":5}\n{\"event\":\"fault\","
        "\"cause\":\"x\"}\nno event\n",
        "a");
    assert_true(tr_watch_refresh(w));
    assert_true(w->steps.n == 2 && w->n_evals == 1 && w->eval[0].rows.n == 1 && tr_watch_n_notes(w) == 1);
    put("new", "{\"event\":\"step\",\"step\":1,\"loss\":4}\n", "w");
    char from[128], to[128];
    snprintf(from, sizeof from, "%s/new", dir);
    snprintf(to, sizeof to, "%s/events.jsonl", dir);
    assert_int_equal(rename(from, to), 0);
    assert_true(tr_watch_refresh(w));
    assert_true(w->steps.n == 1 && tr_watch_n_notes(w) == 0 && !tr_watch_last(w, "config"));
    tr_watch_close(w);
}

static void sets_of_evaluation_data_have_rows_of_their_own_and_restarts_are_notes(void **state)
{
    (void)state;
    struct tr_watch_run *w = NULL;
    struct tr_str out = { 0 };
    cJSON *j = NULL;
    put("events.jsonl",
        "{\"event\":\"start\"}\n{\"event\":\"step\",\"step\":1,\"loss\":4}\n"
        "{\"event\":\"eval\",\"step\":1,\"set\":\"b\",\"best_of\":false,\"loss\":7,\"acc\":0.5}\n"
        "{\"event\":\"eval\",\"step\":1,\"set\":\"a\",\"best_of\":true,\"loss\":5}\n"
        "{\"event\":\"step\",\"step\":2,\"loss\":3,\"rewards_margin\":0.25}\n {\"event\":\"start\"}\n",
        "w");
    assert_int_equal(tr_watch_open(dir, &w), TR_OK);
    assert_true(w->n_evals == 2 && w->eval[0].rows.n == 1 && tr_series_at(&w->eval[0].rows, TR_SERIES_LOSS, 0) == 5);
    assert_true(strcmp(w->eval[1].name, "b") == 0 && tr_series_at(&w->eval[1].rows, TR_SERIES_ACC, 0) == 0.5);
    assert_true(isnan(tr_series_at(&w->steps, TR_SERIES_REWARDS_MARGIN, 0)) && !w->steps.column[TR_SERIES_ACC]);
    assert_true(tr_series_at(&w->steps, TR_SERIES_REWARDS_MARGIN, 1) == 0.25);
    assert_true(tr_watch_n_notes(w) == 2 && tr_watch_note_after(w, 0) == 0 && tr_watch_note_after(w, 1) == 2);
    assert_int_equal(tr_watch_query(&w, 1, "/api/run?run=0", &out), TR_OK);
    assert_int_equal(tr_json_parse(out.p, out.n, "run", &j), TR_OK);
    const cJSON *note = cJSON_GetArrayItem(cJSON_GetObjectItem(j, "notes"), 1);
    assert_true(cJSON_GetObjectItem(note, "after_step")->valuedouble == 2);
    cJSON_Delete(j);
    tr_str_release(&out);
    put("events.jsonl",
        "{\"event\":\"control\",\"step\":2,\"action\":\"set\",\"key\":\"lr\",\"value\":0.5,\"accepted\":true}\n", "a");
    assert_true(tr_watch_refresh(w));
    tr_screen_draw(w, &(struct tr_screen){ .columns = 80, .rows = 24, .page = TR_SCREEN_EVENTS }, &out);
    assert_non_null(strstr(out.p, "start: from step 2"));
    assert_non_null(strstr(out.p, "request after step 2: set lr=0.5\n"));
    tr_str_release(&out);
    tr_watch_close(w);
}

static void norms_are_summed_by_layer(void **state)
{
    (void)state;
    struct tr_watch_run *w = NULL;
    struct tr_str out = { 0 };
    cJSON *j = NULL;
    put("events.jsonl", "{\"event\":\"step\",\"step\":1,\"loss\":4}\n", "w");
    put("grad_norms.jsonl",
        "{\"step\":2,\"norms\":{\"model.embed_tokens.weight\":2,\"model.layers.0.a.weight\":3,\"model.layers.0.b."
        "bias\":4,\"lm_head.weight\":null}}\n",
        "w");
    assert_int_equal(tr_watch_open(dir, &w), TR_OK);
    assert_int_equal(tr_watch_query(&w, 1, "/api/heat?run=0", &out), TR_OK);
    assert_int_equal(tr_json_parse(out.p, out.n, "heat", &j), TR_OK);
    const cJSON *rows = cJSON_GetObjectItem(j, "rows"), *layer = cJSON_GetArrayItem(rows, 1);
    assert_int_equal(cJSON_GetArraySize(rows), 3);
    assert_string_equal(cJSON_GetObjectItem(layer, "name")->valuestring, "layer 0");
    assert_true(cJSON_GetArrayItem(cJSON_GetObjectItem(layer, "norm"), 0)->valuedouble == 5);
    assert_true(cJSON_IsNull(cJSON_GetArrayItem(cJSON_GetObjectItem(cJSON_GetArrayItem(rows, 2), "norm"), 0)));
    cJSON_Delete(j);
    tr_str_release(&out);
    tr_watch_close(w);
}

/* A profile of two steps: the first of them is shown, from its beginning; kernels are not. A machine that is a path is
 * not opened. */
static void the_measured_step_ends_where_the_next_begins(void **state)
{
    (void)state;
    struct tr_watch_run *w = NULL;
    struct tr_str out = { 0 };
    cJSON *j = NULL;
    char path[128];
    snprintf(path, sizeof path, "%s/profile", dir);
    assert_int_equal(tr_mkdirs(path), TR_OK);
    put("events.jsonl", "{\"event\":\"layout\",\"machine\":\"/etc/passwd\"}\n", "w");
    put("profile/rank-0000.json",
        "{\"traceEvents\":[\n"
        "{\"name\":\"forward\",\"ph\":\"X\",\"pid\":0,\"tid\":0,\"ts\":1000,\"dur\":10,\"args\":{\"action\":"
        "\"forward\",\"micro\":3}},\n"
        "{\"name\":\"linear\",\"ph\":\"X\",\"pid\":0,\"tid\":1,\"ts\":1001,\"dur\":5,\"args\":{}},\n"
        "{\"name\":\"recv\",\"ph\":\"X\",\"pid\":0,\"tid\":2,\"ts\":1010,\"dur\":5,\"args\":{}},\n"
        "{\"name\":\"update\",\"ph\":\"X\",\"pid\":0,\"tid\":0,\"ts\":1020,\"dur\":4,\"args\":{}},\n"
        "{\"name\":\"forward\",\"ph\":\"X\",\"pid\":0,\"tid\":0,\"ts\":2000,\"dur\":10,\"args\":{}}\n]}\n",
        "w");
    assert_int_equal(tr_watch_open(dir, &w), TR_OK);
    assert_int_equal(tr_watch_query(&w, 1, "/api/timeline?run=0", &out), TR_OK);
    assert_int_equal(tr_json_parse(out.p, out.n, "timeline", &j), TR_OK);
    const cJSON *all = cJSON_GetObjectItem(j, "measured"), *first = cJSON_GetArrayItem(all, 0);
    assert_int_equal(cJSON_GetArraySize(all), 3);
    assert_true(cJSON_GetArrayItem(first, 1)->valuedouble == 0 && cJSON_GetArrayItem(first, 4)->valuedouble == 3);
    assert_string_equal(cJSON_GetArrayItem(cJSON_GetArrayItem(all, 1), 3)->valuestring, "wait");
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(j, "predicted")), 0);
    cJSON_Delete(j);
    tr_str_release(&out);
    tr_watch_close(w);
}

/* A screen of any size has its lines and no more, each as wide as it at most, whatever the run's files hold. */
static void a_screen_keeps_its_size(void **state)
{
    (void)state;
    struct tr_watch_run *w = NULL;
    char path[128];
    snprintf(path, sizeof path, "%s/logs", dir);
    assert_int_equal(tr_mkdirs(path), TR_OK);
    put("logs/rank-0000.log", "\x1b[2Jclear\n\xff\n", "w");
    put("events.jsonl",
        "{\"event\":\"plan\",\"rank\":0,\"total_bytes\":1e300,\"arenas\":[{\"name\":\"\\u001b\",\"bytes\":-5},{"
        "\"name\":\"params\",\"bytes\":1e300}]}\n"
        "{\"event\":\"fault\",\"rank\":1,\"cause\":\"\\u001b[31m red\"}\n{\"event\":\"step\",\"step\":1,\"loss\":1}\n"
        "{\"event\":\"step\",\"step\":2,\"loss\":2}\n{\"event\":\"config\",\"options\":{\"a\":{\"value\":[1],"
        "\"origin\":\"\\u0007\"},\"b\":3}}\n",
        "w");
    assert_int_equal(tr_watch_open(dir, &w), TR_OK);
    for (int rows = 4; rows < 60; rows += 5)
        for (int columns = 20; columns < 300; columns += 37)
            for (int page = 0; page < TR_SCREEN_PAGES; page++) {
                struct tr_str out = { 0 };
                struct tr_screen v = { columns, rows, (enum tr_screen_page)page, rows % 3, page % 2, false };
                tr_screen_draw(w, &v, &out);
                assert_true(tr_str_ok(&out) && out.n > 0);
                int n_lines = 1, width = 0;
                for (size_t i = 0; i < out.n; i++) {
                    unsigned char c = (unsigned char)out.p[i];
                    assert_true(c >= 0x20 || c == '\n');
                    n_lines += c == '\n';
                    width = c == '\n' ? 0 : width + ((c & 0xc0) != 0x80);
                    assert_true(width <= columns);
                }
                assert_int_equal(n_lines, rows);
                tr_str_release(&out);
            }
    tr_watch_close(w);
}

/* Every answer is JSON, whatever the run's files hold; paths and parameters that are not in the table are refused. */
static void answers_are_json_and_paths_are_fixed(void **state)
{
    (void)state;
    static const char *const good[] = { "/api/runs",         "/api/run?run=0",     "/api/series?run=0&n=5&from=1&to=9",
                                        "/api/ranks?run=0",  "/api/heat?run=0",    "/api/log?run=0&which=3",
                                        "/api/health?run=0", "/api/timeline?run=0" };
    static const char *const bad[] = { "/api/run?run=1",
                                       "/api/run?run=-1",
                                       "/api/run?run=0&x=1",
                                       "/api/run?run=0x",
                                       "/api/run?run",
                                       "/api/series?n=99999999999999999999",
                                       "/api",
                                       "/",
                                       "/api/../events.jsonl",
                                       "/api/log?which=../../etc/passwd",
                                       "/api/log?name=logs" };
    struct tr_watch_run *w = NULL;
    put("events.jsonl",
        "{\"event\":\"data\",\"x\":\"\\u202e<script>\"}\n{\"event\":\"plan\",\"rank\":0,\"arenas\":[]}\n{\"event\":"
        "\"plan\",\"rank\":99999999}\n{\"event\":\"step\",\"step\":1,\"loss\":null}\n{\"event\":\"end\",\"status\":\"a "
        "very long status that nobody writes \\\" < \"}\n",
        "w");
    assert_int_equal(tr_watch_open(dir, &w), TR_OK);
    for (size_t i = 0; i < TR_COUNT_OF(good); i++) {
        struct tr_str out = { 0 };
        cJSON *j = NULL;
        assert_int_equal(tr_watch_query(&w, 1, good[i], &out), TR_OK);
        if (tr_json_parse(out.p, out.n, good[i], &j) != TR_OK)
            fail_msg("%s: %s", tr_error_text(), out.p);
        cJSON_Delete(j);
        tr_str_release(&out);
    }
    for (size_t i = 0; i < TR_COUNT_OF(bad); i++) {
        struct tr_str out = { 0 };
        if (tr_watch_query(&w, 1, bad[i], &out) != TR_USAGE)
            fail_msg("%s was answered", bad[i]);
        tr_str_release(&out);
    }
    struct tr_str page = { 0 };
    assert_int_equal(tr_watch_html(&w, 1, &page), TR_OK);
    assert_null(strstr(page.p, "<script>\"")); /* the run's text does not begin an element */
    assert_non_null(strstr(page.p, "\\u003cscript>"));
    assert_null(strstr(page.p, "src=\"")); /* nothing is left to be fetched */
    tr_str_release(&page);
    tr_watch_close(w);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_point_is_the_mean_and_the_extremes_of_its_steps),
        TEST(a_run_that_goes_back_replaces_its_steps),
        TEST(what_a_run_adds_is_seen_and_a_cut_log_is_read_again),
        TEST(sets_of_evaluation_data_have_rows_of_their_own_and_restarts_are_notes),
        TEST(norms_are_summed_by_layer),
        TEST(the_measured_step_ends_where_the_next_begins),
        TEST(a_screen_keeps_its_size),
        TEST(answers_are_json_and_paths_are_fixed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
