/* test_events.c - events.jsonl: every line is a JSON object with the promised names; failures never stop the caller. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <fcntl.h>
#include <math.h>
#include <sys/resource.h>
#include <unistd.h>

#include "observe/observe.h"

static char path[64];

static int setup(void **state)
{
    (void)state;
    (void)snprintf(path, sizeof path, "/tmp/trireme-events-%d.jsonl", (int)getpid());
    unlink(path);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    unlink(path);
    return 0;
}

static struct tr_observe *open_log(void)
{
    struct tr_observe_options opt = { .events_path = path, .run = "run \"7\"\n", .term = { .fd = -1, .columns = 80 } };
    struct tr_observe *o = NULL;
    if (tr_observe_open(&opt, &o) != TR_OK)
        fail_msg("%s", tr_error_text());
    return o;
}

static void put(const char *text, const char *mode)
{
    FILE *f = fopen(path, mode);
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

/* Lines of the file as parsed objects; NULL where a line is no JSON. */
static size_t read_lines(cJSON **out, size_t n_max)
{
    char *text = NULL;
    size_t n = 0, n_lines = 0;
    assert_int_equal(tr_file_read(path, 1 << 24, &text, &n), TR_OK);
    assert_true(n == 0 || text[n - 1] == '\n');
    for (char *p = text; p < text + n;) {
        char *end = strchr(p, '\n');
        assert_true(n_lines < n_max);
        out[n_lines] = NULL;
        if (tr_json_parse(p, (size_t)(end - p), "line", &out[n_lines]) != TR_OK)
            out[n_lines] = NULL;
        n_lines++;
        p = end + 1;
    }
    free(text);
    return n_lines;
}

static const cJSON *at(const cJSON *o, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(o, key);
    if (item == NULL)
        fail_msg("no %s", key);
    return item;
}

static void every_event_has_the_promised_names(void **state)
{
    (void)state;
    struct tr_observe *o = open_log();
    struct tr_event_arena arenas[] = { { "params", 10 }, { "a\"b", 20 } };
    struct tr_event_range samples[] = { { 5, 5 }, { 8, 11 } };
    tr_observe_plan(o, &(struct tr_event_plan){ 3, 30, 31, arenas, 2 });
    tr_observe_step(o, &(struct tr_event_step){ 1, 2.5, 0.5, 1e-4, 64, 1000, -1, 0.25, 0, samples, 2, 0 });
    tr_observe_eval(o, &(struct tr_event_eval){ 1, 2.25, 9.5, 128 });
    tr_observe_checkpoint(o, &(struct tr_event_checkpoint){ 1, "out/checkpoint-1", 0.1, 0.2, 77, true });
    tr_observe_fault(o, &(struct tr_event_fault){ 0, "host", "step", "stop", "bad \x1b \xff byte" });
    tr_observe_end(o, &(struct tr_event_end){ "done", 1, 64, 1.5, 0.25, 0.125, true, 0.25, 0.2 });
    tr_observe_close(o);

    static const char *const keys[6][12] = {
        { "plan", "rank", "total_bytes", "reserved_bytes", "arenas" },
        { "step", "step", "loss", "grad_norm", "lr", "tokens", "tokens_per_s", "mfu", "data_wait_s", "comm_exposed_s",
          "samples" },
        { "eval", "step", "loss", "perplexity", "tokens" },
        { "checkpoint", "step", "path", "stall_s", "write_s", "bytes", "verified" },
        { "fault", "rank", "host", "phase", "action", "cause" },
        { "end", "status", "steps", "tokens", "seconds", "data_wait", "comm_wait", "bubble", "bubble_formula" },
    };
    cJSON *line[6];
    assert_int_equal(read_lines(line, 6), 6);
    for (size_t i = 0; i < 6; i++) {
        assert_non_null(line[i]);
        assert_string_equal(at(line[i], "event")->valuestring, keys[i][0]);
        assert_string_equal(at(line[i], "run")->valuestring, "run \"7\"\n");
        assert_true(at(line[i], "schema")->valuedouble == TR_EVENT_SCHEMA);
        assert_true(fabs(at(line[i], "time")->valuedouble - tr_clock_wall()) < 60);
        for (size_t k = 1; keys[i][k] != NULL; k++)
            at(line[i], keys[i][k]);
    }
    assert_true(cJSON_IsNull(at(line[1], "mfu")));
    const cJSON *ids = at(line[1], "samples");
    assert_true(ids->child->valuedouble == 5 && ids->child->next->child->next->valuedouble == 11);
    assert_string_equal(at(line[0], "arenas")->child->next->child->valuestring, "a\"b");
    for (size_t i = 0; i < 6; i++)
        cJSON_Delete(line[i]);
}

static void the_log_holds_the_exact_bits_of_the_loss(void **state)
{
    (void)state;
    static const double values[] = { 1.0 / 3, 0.1 + 0.2, 5e-324, 1.7976931348623157e308, 10.999999999999998 };
    struct tr_observe *o = open_log();
    for (size_t i = 0; i < TR_COUNT_OF(values); i++)
        tr_observe_step(o, &(struct tr_event_step){ .step = (int64_t)i, .loss = values[i], .grad_norm = NAN });
    tr_observe_close(o);
    cJSON *line[TR_COUNT_OF(values)];
    assert_int_equal(read_lines(line, TR_COUNT_OF(values)), TR_COUNT_OF(values));
    for (size_t i = 0; i < TR_COUNT_OF(values); i++) {
        double back = at(line[i], "loss")->valuedouble;
        assert_memory_equal(&back, &values[i], sizeof back);
        assert_true(cJSON_IsNull(at(line[i], "grad_norm")));
        cJSON_Delete(line[i]);
    }
}

static void samples_that_do_not_fit_are_counted(void **state)
{
    (void)state;
    enum { N = 20000 };
    static struct tr_event_range samples[N];
    for (int i = 0; i < N; i++)
        samples[i] = (struct tr_event_range){ INT64_MAX - i, INT64_MAX };
    struct tr_observe *o = open_log();
    tr_observe_step(o, &(struct tr_event_step){ .step = 1, .samples = samples, .n_samples = N });
    assert_int_equal(tr_observe_lost(o).n_events, 0);
    tr_observe_close(o);
    cJSON *line[1];
    assert_int_equal(read_lines(line, 1), 1);
    int n_there = cJSON_GetArraySize(at(line[0], "samples"));
    assert_in_range(n_there, 1000, N - 1);
    assert_true(at(line[0], "samples_left_out")->valuedouble == N - n_there);
    cJSON_Delete(line[0]);
}

static void a_torn_line_is_cut_before_the_next(void **state)
{
    (void)state;
    put("{\"event\":\"step\"}\n{\"event\":\"step\",\"st", "w");
    struct tr_observe *o = open_log();
    tr_observe_end(o, &(struct tr_event_end){ .status = "done" });
    tr_observe_end(o, &(struct tr_event_end){ .status = "done" });
    tr_observe_close(o);
    cJSON *line[3];
    assert_int_equal(read_lines(line, 3), 3);
    for (int i = 0; i < 3; i++) {
        assert_non_null(line[i]);
        cJSON_Delete(line[i]);
    }
}

/* A file that may not grow behaves like a full disk: short writes, then errors (and a signal that must not kill). */
static void a_full_disk_loses_lines_and_nothing_else(void **state)
{
    (void)state;
    struct rlimit old, limit;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    limit = old;
    limit.rlim_cur = 1000;
    struct tr_observe *o = open_log();
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    for (int i = 1; i <= 50; i++)
        tr_observe_step(o, &(struct tr_event_step){ .step = i, .loss = 1 });
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    uint64_t n_lost = tr_observe_lost(o).n_events;
    tr_observe_step(o, &(struct tr_event_step){ .step = 51, .loss = 1 }); /* there is room again */
    assert_int_equal(tr_observe_lost(o).n_events, n_lost);
    tr_observe_close(o);
    cJSON *line[60];
    size_t n = read_lines(line, 60), n_whole = 0;
    for (size_t i = 0; i < n; i++) {
        n_whole += line[i] != NULL;
        if (i + 1 == n)
            assert_true(at(line[i], "step")->valuedouble == 51);
        cJSON_Delete(line[i]);
    }
    assert_true(n_whole > 1);
    assert_int_equal(n_whole, n); /* the line that was torn is cut */
    assert_int_equal(n_whole + n_lost, 51);
}

static void a_link_or_a_directory_is_refused_at_open(void **state)
{
    (void)state;
    struct tr_observe *o = NULL;
    struct tr_observe_options opt = { .events_path = path, .run = "r", .term = { .fd = -1 } };
    assert_int_equal(symlink("/tmp/trireme-elsewhere", path), 0);
    assert_int_equal(tr_observe_open(&opt, &o), TR_USAGE);
    opt.events_path = "/tmp";
    assert_int_equal(tr_observe_open(&opt, &o), TR_USAGE);
    opt.events_path = "/nonexistent/events.jsonl";
    assert_int_equal(tr_observe_open(&opt, &o), TR_USAGE);
    assert_null(o);
}

static void cutting_back_removes_later_steps_and_torn_lines(void **state)
{
    (void)state;
    static const char kept[] = "{\"event\":\"plan\",\"rank\":0}\n"
                               "{\"event\":\"step\",\"step\":1,\"loss\":0.30000000000000004}\n"
                               "{\"event\":\"step\",\"step\":2}\n"
                               "{\"event\":\"eval\",\"step\":2}\n"
                               "{\"event\":\"checkpoint\",\"step\":2}\n"
                               "{\"event\":\"fault\",\"rank\":1,\"step\":9}\n";
    put(kept, "w");
    put("{\"event\":\"step\",\"step\":3}\n{\"event\":\"eval\",\"step\":3}\n{\"event\":\"checkpoint\",\"step\":4}\n"
        "{\"event\":\"ste\n\n[1]\n{\"event\":\"step\"}\n",
        "a");
    put("{\"event\":\"step\",\"step\":4,\"lo", "a");
    int64_t n_removed = 0;
    char *text = NULL;
    size_t n = 0;
    for (int i = 0; i < 2; i++) { /* the second time there is nothing left to do */
        assert_int_equal(tr_events_truncate(path, 2, &n_removed), TR_OK);
        assert_int_equal(n_removed, i == 0 ? 7 : 0);
        assert_int_equal(tr_file_read(path, 1 << 20, &text, &n), TR_OK);
        assert_string_equal(text, kept);
        free(text);
    }
    put("{\"event\":\"end\"}", "a"); /* whole, only the newline is missing */
    assert_int_equal(tr_events_truncate(path, 0, &n_removed), TR_OK);
    assert_int_equal(tr_file_read(path, 1 << 20, &text, &n), TR_OK);
    assert_string_equal(text, "{\"event\":\"plan\",\"rank\":0}\n{\"event\":\"fault\",\"rank\":1,\"step\":9}\n"
                              "{\"event\":\"end\"}\n");
    free(text);
}

static void cutting_back_skips_lines_longer_than_any_of_ours(void **state)
{
    (void)state;
    enum { LONG = 1000000 };
    char *text = malloc(LONG + 1);
    assert_non_null(text);
    memset(text, 'x', LONG);
    text[LONG] = '\0';
    put("{\"event\":\"step\",\"step\":1}\n", "w");
    put(text, "a");
    put("\n{\"event\":\"step\",\"step\":2}\n", "a");
    free(text);
    int64_t n_removed = 0;
    assert_int_equal(tr_events_truncate(path, 5, &n_removed), TR_OK);
    assert_int_equal(n_removed, 1);
    size_t n = 0;
    assert_int_equal(tr_file_read(path, 1 << 20, &text, &n), TR_OK);
    assert_string_equal(text, "{\"event\":\"step\",\"step\":1}\n{\"event\":\"step\",\"step\":2}\n");
    free(text);
}

/* Past the first MiB only the tail is read: what is not removed keeps its bytes, also lines that are no events. */
static void cutting_back_a_long_log_keeps_what_is_before_its_tail(void **state)
{
    (void)state;
    enum { STEPS = 20000, AGAIN = 3 };
    struct tr_str log = { 0 };
    size_t n_kept = 0;
    for (int i = 1; i <= STEPS; i++) {
        tr_str_addf(&log, "{\"event\":\"step\",\"step\":%d,\"text\":\"%0100d\"}\n%s", i, i, i == 10 ? "torn\n" : "");
        n_kept = i == STEPS - 5 ? log.n : n_kept;
    }
    assert_true(tr_str_ok(&log));
    for (int way = 0; way < AGAIN; way++) { /* lines at the end, lines among others, none */
        put(log.p, "w");
        put(way == 1 ? "{\"event\":\"checkpoint\",\"step\":4}\n" : "", "a");
        int64_t n_removed = -1, step = way == 2 ? STEPS : STEPS - 5;
        char *text = NULL;
        size_t n = 0, n_want = way == 2 ? log.n : n_kept;
        assert_int_equal(tr_events_truncate(path, step, &n_removed), TR_OK);
        assert_int_equal(n_removed, way == 2 ? 0 : 5);
        assert_int_equal(tr_file_read(path, 1 << 24, &text, &n), TR_OK);
        assert_true(n >= n_want && memcmp(text, log.p, n_want) == 0);
        assert_string_equal(text + n_want, way == 1 ? "{\"event\":\"checkpoint\",\"step\":4}\n" : "");
        free(text);
    }
    tr_str_release(&log);
}

static void cutting_back_an_absent_file_is_fine(void **state)
{
    (void)state;
    assert_int_equal(tr_events_truncate(path, 5, NULL), TR_OK);
    assert_false(tr_file_exists(path));
}

static void events_are_read_as_they_were_written(void **state)
{
    (void)state;
    struct tr_observe *o = open_log();
    const struct tr_event_range samples[] = { { 8, 15 }, { 7, 7 } };
    tr_observe_step(o,
                    &(struct tr_event_step){
                        .step = 1, .loss = 0.1, .grad_norm = NAN, .tokens = 32, .samples = samples, .n_samples = 2 });
    tr_observe_step(o, &(struct tr_event_step){ .step = 2, .samples = samples + 1, .n_samples = 1 });
    tr_observe_eval(o, &(struct tr_event_eval){ .step = 2, .loss = 3 });
    tr_observe_end(o, &(struct tr_event_end){ .status = "done", .comm_wait = -1, .has_bubble = true, .bubble = 0.25 });
    tr_observe_close(o);
    put("{\"event\":\"step\",\"step\":3", "a");
    struct tr_events *r = NULL;
    struct tr_event e[4], none;
    assert_int_equal(tr_events_open(path, 0, &r), TR_OK);
    for (int i = 0; i < 4; i++)
        assert_true(tr_events_next(r, &e[i]));
    assert_false(tr_events_next(r, &none));
    assert_true(tr_events_skipped(r) == 1 && tr_events_failed(r) == TR_OK);
    assert_true(e[0].kind == TR_EVENT_STEP && e[0].step == 1 && e[0].loss == 0.1 && e[0].grad_norm != e[0].grad_norm);
    assert_true(e[0].tokens == 32 && e[0].first_sample == 8 && e[0].last_sample == 15);
    assert_true(e[1].step == 2 && e[1].has_samples && e[1].first_sample == 7 && e[1].last_sample == 7);
    assert_true(e[2].kind == TR_EVENT_EVAL && e[2].step == 2 && e[2].loss == 3 && !e[2].has_samples);
    assert_true(e[3].kind == TR_EVENT_END && e[3].step == -1 && e[3].bubble == 0.25);
    tr_events_close(r);
    assert_int_equal(tr_events_open(path, 40, &r), TR_OK); /* from inside the last whole line */
    assert_false(tr_events_next(r, &none));
    assert_int_equal(tr_events_skipped(r), 2);
    tr_events_close(r);
    assert_false(tr_events_next(NULL, &none));
}

static void a_log_that_grows_is_read_as_it_grows(void **state)
{
    (void)state;
    struct tr_events *r = NULL;
    struct tr_event e;
    put("{\"event\":\"step\",\"step\":1,\"loss\":2.5}\n{\"event\":\"st", "w");
    assert_int_equal(tr_events_open(path, 0, &r), TR_OK);
    tr_events_follow(r);
    assert_true(tr_events_next(r, &e) && e.step == 1 && e.loss == 2.5);
    assert_false(tr_events_next(r, &e)); /* half a line is not skipped, it is not there yet */
    put("ep\",\"step\":2,\"loss\":1.5}\n", "a");
    assert_true(tr_events_next(r, &e) && e.step == 2 && e.loss == 1.5);
    assert_false(tr_events_next(r, &e));
    assert_true(tr_events_skipped(r) == 0 && !tr_events_was_replaced(r));
    put("{\"event\":\"torn", "a"); /* its writer cuts that off again and writes another line */
    assert_false(tr_events_next(r, &e));
    assert_int_equal(tr_events_truncate(path, 2, NULL), TR_OK);
    assert_true(tr_events_was_replaced(r));
    tr_events_close(r);
}

/* Every way in which a number is written is read the same with and without a tree, to a unit in the last place; lines
 * that are no step of ours are left to the parser. */
static void steps_read_in_brief_are_those_of_the_parser(void **state)
{
    (void)state;
    static const char *const numbers[] = { "0",
                                           "-0.0",
                                           "1794961785.192636",
                                           "5.5925504486076534",
                                           "0.0010000000474974513",
                                           "1.4e-05",
                                           "9007199254740993",
                                           "123456789012345678901234567890",
                                           "1e300",
                                           "4.9406564584124654e-324",
                                           "-3.25E+2",
                                           "2.2250738585072014e-308" };
    static const char *const odd[] = { "{\"event\":\"step\",\"step\":3,\"loss\":01}",
                                       "{\"event\":\"step\",\"step\":3,\"loss\":1,\"loss\":2}",
                                       "{\"event\":\"step\",\"step\":3,\"loss\":1.}",
                                       "{\"event\":\"step\",\"step\":3,\"loss\":1e}",
                                       "{\"event\":\"step\",\"step\":-3,\"loss\":1}",
                                       "{\"event\":\"step\",\"step\":3.5,\"loss\":1}",
                                       "{\"event\":\"step\",\"loss\":1}",
                                       "{\"event\":\"step\",\"step\":3,\"loss\":1}}",
                                       "{\"event\":\"step\",\"step\":3,\"samples\":[1,[2]]x}",
                                       "{\"event\":\"step\",\"step\":3" };
    char line[256];
    size_t n_spans = 0;
    for (int n_digits = 1; n_digits <= 24; n_digits++) /* digits are read eight at a time, up to 19 of them */
        for (int point = 1; point <= n_digits; point++, n_spans++) {
            static const char digits[] = "907360149825573604918273";
            snprintf(line, sizeof line, "{\"event\":\"step\",\"time\":7,\"step\":5,\"loss\":%.*s%s%.*s,\"lr\":null}\n",
                     point, digits, point < n_digits ? "." : "", n_digits - point, digits + point);
            put(line, "a");
        }
    for (size_t i = 0; i < TR_COUNT_OF(numbers); i++) {
        snprintf(line, sizeof line,
                 "{\"event\":\"step\",\"time\":7,\"run\":\"x\",\"step\":%zu,\"loss\":%s,\"lr\":null,\"samples\":[[0,15]"
                 ",7]}\n",
                 i, numbers[i]);
        put(line, "a");
    }
    for (size_t i = 0; i < TR_COUNT_OF(odd); i++) {
        put(odd[i], "a");
        put("\n", "a");
    }
    put("{\"event\":\"step\", \"step\": 77, \"loss\": 1, \"more\": {\"x\": [\"\\u00e9\"]}}\n",
        "a"); /* not as we write it */
    struct tr_events *brief = NULL, *whole = NULL;
    struct tr_event a, b;
    assert_int_equal(tr_events_open(path, 0, &brief), TR_OK);
    assert_int_equal(tr_events_open(path, 0, &whole), TR_OK);
    tr_events_be_brief(brief);
    size_t n = 0;
    while (tr_events_next(whole, &a)) {
        assert_true(tr_events_next(brief, &b));
        assert_true(a.step == b.step && (a.time == b.time || a.step == 77) && isnan(a.lr) == isnan(b.lr));
        assert_true(a.loss == b.loss || nextafter(a.loss, b.loss) == b.loss);
        assert_true((b.json == NULL) == (a.step != 77));
        n++;
    }
    assert_false(tr_events_next(brief, &b));
    assert_int_equal(n, n_spans + TR_COUNT_OF(numbers) + 1);
    assert_int_equal(tr_events_skipped(brief), tr_events_skipped(whole));
    assert_int_equal(tr_events_skipped(brief), TR_COUNT_OF(odd));
    tr_events_close(brief);
    tr_events_close(whole);
}

/* The point of it all: crash after step 7, resume at 4, and the loss log is the undisturbed one. */
static void a_resumed_log_equals_an_undisturbed_one(void **state)
{
    (void)state;
    struct tr_observe *o = open_log();
    for (int i = 1; i <= 7; i++)
        tr_observe_step(o, &(struct tr_event_step){ .step = i, .loss = 1.0 / i });
    tr_observe_close(o);
    put("{\"event\":\"step\",\"time\":1", "a");
    assert_int_equal(tr_events_truncate(path, 4, NULL), TR_OK);
    o = open_log();
    for (int i = 5; i <= 9; i++)
        tr_observe_step(o, &(struct tr_event_step){ .step = i, .loss = 1.0 / i });
    tr_observe_close(o);
    cJSON *line[9];
    assert_int_equal(read_lines(line, 9), 9);
    for (int i = 1; i <= 9; i++) {
        assert_true(at(line[i - 1], "step")->valuedouble == i);
        assert_true(at(line[i - 1], "loss")->valuedouble == 1.0 / i);
        cJSON_Delete(line[i - 1]);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(every_event_has_the_promised_names),
        TEST(the_log_holds_the_exact_bits_of_the_loss),
        TEST(samples_that_do_not_fit_are_counted),
        TEST(a_torn_line_is_cut_before_the_next),
        TEST(a_full_disk_loses_lines_and_nothing_else),
        TEST(a_link_or_a_directory_is_refused_at_open),
        TEST(cutting_back_removes_later_steps_and_torn_lines),
        TEST(cutting_back_skips_lines_longer_than_any_of_ours),
        TEST(cutting_back_a_long_log_keeps_what_is_before_its_tail),
        TEST(cutting_back_an_absent_file_is_fine),
        TEST(events_are_read_as_they_were_written),
        TEST(a_log_that_grows_is_read_as_it_grows),
        TEST(steps_read_in_brief_are_those_of_the_parser),
        TEST(a_resumed_log_equals_an_undisturbed_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
