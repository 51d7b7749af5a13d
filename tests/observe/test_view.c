/* test_view.c - the terminal view: width, plain lines, the curve, and readers that stop or go away. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <fcntl.h>
#include <math.h>
#include <unistd.h>

#include "observe/observe_impl.h"

static int ends[2];
static char seen[1 << 18];

static struct tr_observe *open_view(struct tr_term term, bool quiet, int64_t total)
{
    struct tr_observe_options opt = {
        .run = "r", .term = term, .quiet = quiet, .total_steps = total, .logging_steps = 10
    };
    struct tr_observe *o = NULL;
    assert_int_equal(pipe(ends), 0);
    assert_true(fcntl(ends[1], F_SETPIPE_SZ, 1 << 18) > 0); /* tests read only at the end */
    opt.term.fd = ends[1];
    assert_int_equal(tr_observe_open(&opt, &o), TR_OK);
    return o;
}

static const char *close_view(struct tr_observe *o)
{
    tr_observe_close(o);
    close(ends[1]);
    size_t n = 0;
    for (ssize_t got; (got = read(ends[0], seen + n, sizeof seen - 1 - n)) > 0;)
        n += (size_t)got;
    seen[n] = '\0';
    close(ends[0]);
    return seen;
}

static struct tr_event_step step_at(int64_t step)
{
    return (struct tr_event_step){ .step = step,
                                   .loss = 4.0 / (double)step,
                                   .grad_norm = 1.25,
                                   .lr = 5e-5,
                                   .tokens = 1000,
                                   .tokens_per_s = 2000,
                                   .mfu = 0.42 };
}

/* Character cells of a text: escape sequences are none, a UTF-8 character is one. */
static size_t cells_of(const char *p, const char *end)
{
    size_t n = 0;
    while (p < end) {
        if (*p == '\x1b') {
            while (p < end && (*p < 'A' || *p == '['))
                p++;
            p++;
            continue;
        }
        n += ((unsigned char)*p & 0xc0) != 0x80 && *p != '\r';
        p++;
    }
    return n;
}

static void a_pipe_gets_plain_lines_every_logging_steps(void **state)
{
    (void)state;
    struct tr_observe *o = open_view((struct tr_term){ .columns = 80 }, false, 25);
    for (int i = 1; i <= 25; i++) {
        struct tr_event_step e = step_at(i);
        tr_observe_step(o, &e);
    }
    const char *text = close_view(o);
    assert_null(strchr(text, '\x1b'));
    assert_null(strchr(text, '\r'));
    assert_non_null(strstr(text, "step 1/25  loss 4.0000  gnorm 1.25  lr 5e-05  2.0 K tok/s  mfu 42.0%  eta 12s\n"));
    assert_non_null(strstr(text, "\nstep 10/25  loss 0.4000"));
    assert_non_null(strstr(text, "\nstep 20/25 "));
    assert_non_null(strstr(text, "\nstep 25/25 "));
    int n_lines = 0;
    for (const char *p = text; *p != '\0'; p++)
        n_lines += *p == '\n';
    assert_int_equal(n_lines, 4);
}

static void the_progress_line_never_wraps(void **state)
{
    (void)state;
    static const int widths[] = { 40, 47, 60, 80, 100, 133, 200, 500 };
    for (size_t i = 0; i < TR_COUNT_OF(widths); i++) {
        for (int has_more = 0; has_more < 2; has_more++) {
            struct tr_term term = {
                .columns = widths[i], .is_live = true, .has_color = has_more, .has_unicode = has_more
            };
            struct tr_observe *o = open_view(term, false, 123456789);
            struct tr_event_step e = step_at(98765432);
            e.loss = 1e9;
            tr_observe_step(o, &e);
            const char *text = close_view(o);
            assert_true(text[0] == '\r');
            assert_true(cells_of(text, text + strlen(text)) < (size_t)widths[i]);
            assert_non_null(strstr(text, "98765432/123456789"));
            assert_non_null(strstr(text, "\x1b[K"));
            if (widths[i] >= 133) {
                assert_non_null(strstr(text, has_more ? "\u2501" : "="));
                assert_non_null(strstr(text, " 80%"));
                assert_non_null(strstr(text, "mfu 42.0%"));
                assert_non_null(strstr(text, "eta "));
            }
            if (widths[i] >= 60)
                assert_non_null(strstr(text, has_more ? "\u2501\u2501" : "=="));
            if (!has_more)
                assert_null(strstr(text, "\x1b[3"));
        }
    }
}

static void other_lines_go_above_the_progress_line(void **state)
{
    (void)state;
    struct tr_observe *o = open_view((struct tr_term){ .columns = 80, .is_live = true }, false, 5);
    struct tr_event_step e = step_at(1);
    tr_observe_step(o, &e);
    tr_observe_eval(o, &(struct tr_event_eval){ 1, 2, 7.389, 100 });
    tr_observe_checkpoint(o, &(struct tr_event_checkpoint){ 1, "o/checkpoint-1", 0.1, 1.5, 1 << 20, true });
    const char *text = close_view(o);
    assert_non_null(strstr(text, "\r\x1b[Keval at step 1: loss 2.0000 perplexity 7.389 over 100 tokens\n"
                                 "saved o/checkpoint-1: 1.00 MiB in 1.50 s, stalled 0.100 s, verified\n"));
}

static void quiet_shows_faults_and_the_end_only(void **state)
{
    (void)state;
    struct tr_observe *o = open_view((struct tr_term){ .columns = 80 }, true, 5);
    for (int i = 1; i <= 5; i++) {
        struct tr_event_step e = step_at(i);
        tr_observe_step(o, &e);
    }
    tr_observe_eval(o, &(struct tr_event_eval){ .step = 1 });
    tr_observe_fault(o, &(struct tr_event_fault){ 2, "h", "forward", "resume", "killed \x1b[2J" });
    tr_observe_end(o, &(struct tr_event_end){ "done", 5, 5000, 3725, 0.0025, -1, false, 0, 0 });
    assert_string_equal(close_view(o), "fault: rank 2 on h in forward: killed \\x1b[2J; resume\n"
                                       "done: 5 steps, 5.0 K tokens, 1h02m, 0.25 % of it waiting for data\n");
}

static void the_end_draws_the_curve_within_the_width(void **state)
{
    (void)state;
    for (int unicode = 0; unicode < 2; unicode++) {
        struct tr_observe *o = open_view((struct tr_term){ .columns = 60, .has_unicode = unicode }, false, 0);
        for (int i = 1; i <= 5000; i++) {
            struct tr_event_step e = step_at(i);
            e.loss = i == 100 ? (double)NAN : 2 + 8 * exp(-i / 800.0);
            tr_observe_step(o, &e);
        }
        tr_observe_end(o, &(struct tr_event_end){ "done", 5000, 5000000, 10, 0, -1, false, 0, 0 });
        const char *text = close_view(o);
        const char *end = strstr(text, "done: ");
        assert_non_null(end);
        int n_rows = 0;
        for (const char *p = strstr(text, unicode ? "\u2524" : " |"); p != NULL && p < end; p = strchr(p, '\n') + 1) {
            assert_true(cells_of(p, strchr(p, '\n')) <= 60);
            n_rows++;
        }
        assert_int_equal(n_rows, 11);
        assert_non_null(strstr(text, "step 1 "));
        assert_non_null(strstr(text, "5000\n"));
        assert_non_null(strstr(text, unicode ? "\u28c0" : "*"));
    }
}

static void the_curve_falls_when_the_loss_falls(void **state)
{
    (void)state;
    double y[20];
    struct tr_str out = { 0 };
    for (int i = 0; i < 20; i++)
        y[i] = 20 - i;
    tr_curve_draw(y, 20, 1, 20, 31, 10, false, &out);
    const char *row = out.p;
    int last = -1;
    for (int r = 0; r < 10; r++, row = strchr(row, '\n') + 1) {
        const char *star = strchr(strchr(row, '|'), '*');
        assert_true(star != NULL && star < strchr(row, '\n'));
        assert_true(star - row > last);
        last = (int)(star - row);
    }
    tr_str_release(&out);
    double odd[] = { NAN, INFINITY };
    tr_curve_draw(odd, 2, 1, 2, 80, 10, true, &out); /* nothing finite: nothing drawn */
    assert_int_equal(out.n, 0);
    double flat[] = { 1, 1, NAN, 1 };
    tr_curve_draw(flat, 4, 1, 4, 80, 10, true, &out);
    assert_true(out.n > 0);
    tr_str_release(&out);
}

static void the_labels_of_a_curve_differ(void **state)
{
    (void)state;
    static const struct {
        double lo, hi;
        const char *top, *bottom;
    } rows[] = { { 10910, 75432, "    75432 |", "    10910 |" },     { 75401, 75403, "    75403 |", "    75401 |" },
                 { 2.00001, 2.00004, "  2.00004 |", "  2.00001 |" }, { 1.5, 3.25, "     3.25 |", "      1.5 |" },
                 { 1e9, 2e9, "    2e+09 |", "    1e+09 |" },         { 12000, 12000, "    12000 |", "    12000 |" } };
    for (size_t i = 0; i < TR_COUNT_OF(rows); i++) {
        struct tr_str out = { 0 };
        tr_curve_draw((const double[]){ rows[i].hi, rows[i].lo }, 2, 1, 2, 40, 9, false, &out);
        assert_int_equal(strncmp(out.p, rows[i].top, 11), 0);
        assert_non_null(strstr(out.p, rows[i].bottom));
        tr_str_release(&out);
    }
}

static void history_keeps_true_means_however_long_the_run(void **state)
{
    (void)state;
    static struct history h;
    static double y[N_BINS];
    double sum = 0;
    for (int64_t i = 0; i < 1000000; i++)
        tr_history_add(&h, 7 + i, (double)i);
    size_t n = tr_history_get(&h, y);
    assert_in_range(n, N_BINS / 2, N_BINS);
    assert_int_equal(h.first_step, 7);
    assert_int_equal(h.last_step, 1000006);
    for (size_t i = 0; i < n; i++) {
        sum += h.sum[i];
        assert_true(i == 0 || y[i] > y[i - 1]);
    }
    assert_true(sum == 499999500000.0); /* integers below 2^53: exact */
}

static void a_reader_that_went_away_does_not_kill_the_run(void **state)
{
    (void)state;
    struct tr_observe *o = open_view((struct tr_term){ .columns = 80 }, false, 100);
    close(ends[0]);
    for (int i = 1; i <= 100; i++) {
        struct tr_event_step e = step_at(i);
        tr_observe_step(o, &e); /* SIGPIPE would end this program */
    }
    assert_true(tr_observe_lost(o).n_view >= 11);
    tr_observe_close(o);
    close(ends[1]);
}

static void a_reader_that_stopped_costs_one_bounded_wait(void **state)
{
    (void)state;
    struct tr_observe *o = open_view((struct tr_term){ .columns = 80 }, false, 0);
    static char block[4096];
    memset(block, 'x', sizeof block);
    assert_int_equal(fcntl(ends[1], F_SETFL, O_NONBLOCK), 0);
    while (write(ends[1], block, sizeof block) > 0) {
    }
    assert_int_equal(fcntl(ends[1], F_SETFL, 0), 0);
    int64_t start = tr_clock_us();
    for (int i = 1; i <= 1000; i++) {
        struct tr_event_step e = step_at(i);
        tr_observe_step(o, &e);
    }
    assert_true(tr_clock_us() - start < 3000000); /* one wait of a second, not a hundred */
    assert_int_equal(tr_observe_lost(o).n_view, 101);
    assert_true(read(ends[0], seen, 65536) > 0); /* the reader is back */
    tr_observe_message(o, "hello again");
    assert_int_equal(tr_observe_lost(o).n_view, 101);
    assert_non_null(strstr(close_view(o), "hello again\n"));
}

static void the_environment_decides_what_the_terminal_can_do(void **state)
{
    (void)state;
    assert_int_equal(setenv("COLUMNS", "123", 1), 0);
    assert_int_equal(setenv("LC_ALL", "en_US.UTF-8", 1), 0);
    int master = posix_openpt(O_RDWR | O_NOCTTY);
    if (master < 0 || grantpt(master) != 0 || unlockpt(master) != 0)
        skip();
    int tty = open(ptsname(master), O_RDWR | O_NOCTTY);
    assert_true(tty >= 0);
    assert_int_equal(setenv("TERM", "xterm", 1), 0);
    assert_int_equal(unsetenv("NO_COLOR"), 0);
    struct tr_term t = tr_term_detect(tty);
    assert_true(t.is_live && t.has_color && t.has_unicode && t.columns == 123);
    assert_int_equal(setenv("NO_COLOR", "1", 1), 0);
    t = tr_term_detect(tty);
    assert_true(t.is_live && !t.has_color);
    assert_int_equal(setenv("TERM", "dumb", 1), 0);
    assert_int_equal(setenv("LC_ALL", "C", 1), 0);
    assert_int_equal(setenv("COLUMNS", "junk", 1), 0);
    t = tr_term_detect(tty);
    assert_true(!t.is_live && !t.has_unicode && t.columns == 80);
    assert_int_equal(setenv("COLUMNS", "3", 1), 0);
    assert_int_equal(tr_term_detect(tty).columns, 40);
    assert_int_equal(setenv("TERM", "xterm", 1), 0);
    int fd = open("/dev/null", O_WRONLY);
    assert_false(tr_term_detect(fd).is_live);
    close(fd);
    close(tty);
    close(master);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_pipe_gets_plain_lines_every_logging_steps),
        cmocka_unit_test(the_progress_line_never_wraps),
        cmocka_unit_test(other_lines_go_above_the_progress_line),
        cmocka_unit_test(quiet_shows_faults_and_the_end_only),
        cmocka_unit_test(the_end_draws_the_curve_within_the_width),
        cmocka_unit_test(the_curve_falls_when_the_loss_falls),
        cmocka_unit_test(the_labels_of_a_curve_differ),
        cmocka_unit_test(history_keeps_true_means_however_long_the_run),
        cmocka_unit_test(a_reader_that_went_away_does_not_kill_the_run),
        cmocka_unit_test(a_reader_that_stopped_costs_one_bounded_wait),
        cmocka_unit_test(the_environment_decides_what_the_terminal_can_do),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
