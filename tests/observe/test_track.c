/* test_track.c - trackers: checksums and protobuf against known bytes; files of all sinks after a run, after a resume,
 * and after a cut at every byte; names that are refused. What is in the files is read by tests/trackers
 * (test_trackers.sh). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "observe/track_impl.h"

static char dir[64], log_path[128], prom[128];

static int setup(void **state)
{
    (void)state;
    (void)snprintf(dir, sizeof dir, "/tmp/trireme-track-%d", (int)getpid());
    (void)snprintf(log_path, sizeof log_path, "%s/events.jsonl", dir);
    (void)snprintf(prom, sizeof prom, "%s/metrics.prom", dir);
    assert_int_equal(tr_remove_tree(dir), TR_OK);
    assert_int_equal(mkdir(dir, 0700), 0);
    setenv("TRACKIO_DIR", dir, 1);
    unsetenv("WANDB_MODE");
    unsetenv("WANDB_DIR");
    unsetenv("WANDB_DISABLED");
    unsetenv("WANDB_RUN_ID");
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    return tr_remove_tree(dir) == TR_OK ? 0 : 1;
}

static void checksums_and_fields_are_those_of_the_formats(void **state)
{
    (void)state;
    struct tr_str s = { 0 };
    struct tr_pb_field f;
    assert_int_equal(tr_crc(TR_CRC32, 0, "123456789", 9), 0xCBF43926u);
    assert_int_equal(tr_crc(TR_CRC32C, 0, "123456789", 9), 0xE3069283u);
    assert_int_equal(tr_crc(TR_CRC32, tr_crc(TR_CRC32, 0, "1234", 4), "56789", 5), 0xCBF43926u);
    tr_pb_int(&s, 1, 150);
    tr_pb_text(&s, 2, "testing");
    tr_pb_int(&s, 3, -1);
    assert_memory_equal(s.p, "\x08\x96\x01\x12\x07testing\x18\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 23);
    const unsigned char *p = (const unsigned char *)s.p, *end = p + s.n;
    assert_true(tr_pb_next(&p, end, &f) && f.field == 1 && f.value == 150);
    assert_true(tr_pb_next(&p, end, &f) && f.field == 2 && f.n == 7);
    assert_true(tr_pb_next(&p, end, &f) && f.field == 3 && (int64_t)f.value == -1);
    assert_false(tr_pb_next(&p, end, &f));
    for (size_t n = 0; n < s.n; n++) /* cut anywhere: no read beyond the end */
        for (p = (const unsigned char *)s.p; tr_pb_next(&p, (const unsigned char *)s.p + n, &f);) {
        }
    tr_str_release(&s);
}

/* A start of the run: steps after `from` up to `to`. */
static void run(int64_t from, int64_t to, const char *const *sinks, size_t n_sinks)
{
    static const char *const names[] = { "model.a", "model.b" };
    const double norms[] = { 0.5, 2.5 };
    struct tr_observe *o = NULL;
    struct tr_observe_options opt = { .events_path = log_path,
                                      .run = "0123456789abcdef",
                                      .term = { .fd = -1, .columns = 80 },
                                      .track = { .sinks = sinks,
                                                 .n_sinks = n_sinks,
                                                 .metrics_file = prom,
                                                 .output = dir,
                                                 .config = "{\"a\":1,\"b\":\"c\",\"d\":[1,2],\"e\":true}",
                                                 .first_step = from } };
    assert_int_equal(tr_track_check(&opt.track), TR_OK);
    assert_int_equal(tr_events_truncate(log_path, from, NULL), TR_OK);
    assert_int_equal(tr_observe_open(&opt, &o), TR_OK);
    for (int64_t s = from + 1; s <= to; s++) {
        tr_observe_step(o, &(struct tr_event_step){ .step = s, .loss = 1.0 / (double)s, .tokens = 10, .mfu = -1 });
        tr_observe_norms(o, s, names, norms, 2);
    }
    tr_observe_eval(o, &(struct tr_event_eval){ .step = to, .loss = 2 });
    tr_observe_eval(o, &(struct tr_event_eval){ .step = to, .loss = 3, .set = "a-b" });
    tr_observe_eval(o, &(struct tr_event_eval){ .step = to, .loss = 4, .set = "a_b" });
    tr_observe_fault(o, &(struct tr_event_fault){ .host = "h", .phase = "p", .action = "a", .cause = "c\n\"" });
    tr_observe_end(o, &(struct tr_event_end){ .status = "stopped", .steps = to });
    tr_observe_close(o);
}

static const char *const all[] = { "all" };

/* The one .wandb file. */
static void find_wandb(char out[TR_PATH_MAX])
{
    char sub[TR_PATH_MAX];
    struct dirent *e;
    (void)snprintf(sub, sizeof sub, "%s/wandb", dir);
    DIR *d = opendir(sub);
    int n = 0;
    assert_non_null(d);
    while ((e = readdir(d)) != NULL)
        if (e->d_name[0] != '.') {
            (void)snprintf(out, TR_PATH_MAX, "%s/wandb/%.100s/run-01234567.wandb", dir, e->d_name);
            n++;
        }
    closedir(d);
    assert_int_equal(n, 1);
}

static void a_resumed_run_continues_its_files(void **state)
{
    (void)state;
    char path[TR_PATH_MAX], *text = NULL;
    size_t n = 0;
    run(0, 40, all, 1);
    run(20, 45, all, 1);
    find_wandb(path);
    assert_true(tr_file_exists(path));
    assert_int_equal(tr_file_read(prom, 1 << 20, &text, &n), TR_OK);
    assert_non_null(strstr(text, "\ntrireme_step 45\n"));
    assert_non_null(strstr(text, "\ntrireme_tokens_total 450\n"));
    assert_non_null(strstr(text, "trireme_parameter_grad_norm{parameter=\"model.b\"} 2.5\n"));
    assert_non_null(strstr(text, "\ntrireme_eval_loss 2\n"));
    assert_non_null(strstr(text, "trireme_eval_loss{set=\"a-b\"} 3\n"));
    assert_non_null(strstr(text, "trireme_eval_loss{set=\"a_b\"} 4\n"));
    free(text);
}

/* Whatever byte a crash leaves as the last one, the next start opens the file and continues it. */
static void a_file_that_is_cut_anywhere_is_continued(void **state)
{
    (void)state;
    static const char *const wandb[] = { "wandb" };
    char path[TR_PATH_MAX];
    struct stat whole;
    run(0, 6, wandb, 1);
    find_wandb(path);
    assert_int_equal(stat(path, &whole), 0);
    for (off_t n = whole.st_size; n >= 0; n -= 1 + whole.st_size / 40) {
        assert_int_equal(truncate(path, n), 0);
        run(3, 6, wandb, 1);
        struct stat now;
        assert_int_equal(stat(path, &now), 0);
        assert_true(now.st_size >= whole.st_size / 2);
    }
}

static void what_cannot_be_is_refused(void **state)
{
    (void)state;
    const char *const unknown[] = { "mlflow" }, *const two[] = { "none", "wandb" };
    assert_int_equal(tr_track_check(&(struct tr_track_options){ .sinks = unknown, .n_sinks = 1, .output = dir }),
                     TR_USAGE);
    assert_int_equal(tr_track_check(&(struct tr_track_options){ .sinks = two, .n_sinks = 2, .output = dir }), TR_USAGE);
    assert_int_equal(tr_track_check(&(struct tr_track_options){ .run_name = "a/b", .output = dir }), TR_USAGE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(checksums_and_fields_are_those_of_the_formats),
        cmocka_unit_test_setup_teardown(a_resumed_run_continues_its_files, setup, teardown),
        cmocka_unit_test_setup_teardown(a_file_that_is_cut_anywhere_is_continued, setup, teardown),
        cmocka_unit_test_setup_teardown(what_cannot_be_is_refused, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
