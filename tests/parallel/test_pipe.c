/* Pipeline orders: every named schedule is complete and runs to its end, holds as many micro-batches as theory says,
 * idles as long as its formula says, and sends and receives without a circle; a file is refused with its line. */
#include "base/base.h"
#include "parallel/pipe.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

static struct tr_pipe *open_order(const char *name, int p, int v, int m)
{
    struct tr_pipe *o = NULL;
    if (tr_pipe_open(name, p, v, m, &o) != TR_OK)
        fail_msg("%s p %d v %d m %d: %s", name, p, v, m, tr_error_text());
    return o;
}

/* Every send of one rank to another is received there, in the same order, and every message is waited for once. */
static void check_messages(const struct tr_pipe *o)
{
    struct tr_pipe_steps s[8] = { 0 };
    int window = 0;
    assert_int_equal(tr_pipe_window(o, &window), TR_OK);
    for (int r = 0; r < o->n_ranks; r++)
        assert_int_equal(tr_pipe_steps(o, r, window, &s[r]), TR_OK);
    for (int from = 0; from < o->n_ranks; from++)
        for (int to = 0; to < o->n_ranks; to++) {
            int at = 0, n_waits[2] = { 0 }, n = 0;
            for (int i = 0; i < s[from].n; i++) {
                const struct tr_pipe_step *x = &s[from].step[i];
                n_waits[0] += x->kind == TR_STEP_WAIT_SEND && x->peer == to;
                if (x->kind != TR_STEP_SEND || x->peer != to)
                    continue;
                n++;
                while (at < s[to].n && (s[to].step[at].kind != TR_STEP_RECV || s[to].step[at].peer != from))
                    at++;
                assert_true(at < s[to].n);
                assert_int_equal(s[to].step[at++].slot, x->slot);
            }
            for (; at < s[to].n; at++)
                assert_false(s[to].step[at].kind == TR_STEP_RECV && s[to].step[at].peer == from);
            for (int i = 0; i < s[to].n; i++)
                n_waits[1] += s[to].step[i].kind == TR_STEP_WAIT_RECV && s[to].step[i].peer == from;
            assert_int_equal(n_waits[0], n);
            assert_int_equal(n_waits[1], n);
        }
    for (int r = 0; r < o->n_ranks; r++)
        tr_pipe_steps_release(&s[r]);
}

static bool needs(const struct tr_pipe *o, int slot, int other)
{
    return slot >= 0 &&
           (slot == other || needs(o, o->slot[slot].need[0], other) || needs(o, o->slot[slot].need[1], other));
}

/* While a slot runs, no receive is posted whose result needs that slot. */
static void check_causes(const struct tr_pipe *o)
{
    for (int r = 0, window = 0; r < o->n_ranks; r++) {
        struct tr_pipe_steps s = { 0 };
        bool is_posted[256] = { false };
        assert_int_equal(tr_pipe_window(o, &window), TR_OK);
        assert_int_equal(tr_pipe_steps(o, r, window, &s), TR_OK);
        for (int i = 0; i < s.n; i++) {
            const struct tr_pipe_step *x = &s.step[i];
            if (x->kind == TR_STEP_RECV || x->kind == TR_STEP_WAIT_RECV)
                is_posted[x->slot] = x->kind == TR_STEP_RECV;
            for (int k = 0; x->kind == TR_STEP_SLOT && k < o->first[o->n_ranks]; k++)
                if (is_posted[k] && needs(o, k, x->slot))
                    fail_msg("rank %d posts the receive of slot %d ahead of slot %d, which it needs", r, k, x->slot);
        }
        tr_pipe_steps_release(&s);
    }
}

static int least(int a, int b)
{
    return a < b ? a : b;
}

static void check_order(const char *name, int p, int v, int m)
{
    struct tr_pipe *o = open_order(name, p, v, m);
    struct tr_pipe_times t;
    int peak[8];
    assert_int_equal(tr_pipe_play(o, &t, peak), TR_OK);
    check_messages(o);
    check_causes(o);
    for (int r = 0; r < p; r++) {
        if (strcmp(name, "gpipe") == 0)
            assert_int_equal(peak[r], m);
        else if (strcmp(name, "zb") == 0) /* on every rank what 1f1b holds on the first */
            assert_int_equal(peak[r], least(p, m));
        else if (v == 1)
            assert_int_equal(peak[r], least(p - r, m));
        else
            assert_true(peak[r] <= least(2 * (p - r - 1) + (v - 1) * p + 1, m * v));
    }
    /* Forward, input part and weight part take 1 each. A pipeline idles for the forward and backward of the other ranks
     * once; zero-bubble with enough micro-batches only for what of it the weight parts do not fill. */
    double work = 3.0 * m * v, idle = 3.0 * (p - 1);
    if (strcmp(name, "zb") == 0)
        idle = m >= p ? p - 1 : 2.0 * p + 2 * m - 1 - work;
    assert_true(fabs(t.bubble - idle / (work + idle)) < 1e-12);
    tr_pipe_close(o);
}

static void every_order_is_complete_and_as_good_as_its_formula(void **state)
{
    (void)state;
    for (int p = 2; p <= 4; p++)
        for (int m = 1; m <= 8; m++) {
            check_order("gpipe", p, 1, m);
            check_order("1f1b", p, 1, m);
            check_order("interleaved", p, 1, m);
            check_order("zb", p, 1, m);
            if (m % p == 0)
                check_order("interleaved", p, 2, m);
            struct tr_pipe *forward = open_order(NULL, p, 2, 1);
            check_messages(forward);
            tr_pipe_close(forward);
        }
}

static void one_rank_goes_micro_batch_by_micro_batch(void **state)
{
    (void)state;
    static const char *const names[] = { "gpipe", "1f1b", "zb", "interleaved" };
    for (size_t i = 0; i < TR_COUNT_OF(names); i++) {
        struct tr_pipe *o = open_order(names[i], 1, 1, 3);
        assert_int_equal(o->first[1], 6);
        for (int k = 0; k < 6; k++) {
            assert_int_equal(o->slot[k].kind, k % 2 ? TR_DO_BACKWARD : TR_DO_FORWARD);
            assert_int_equal(o->slot[k].micro, k / 2);
        }
        tr_pipe_close(o);
    }
}

static void an_order_printed_reads_as_itself(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int p, v, m;
    } rows[] = { { "gpipe", 2, 1, 3 }, { "1f1b", 4, 1, 6 }, { "interleaved", 2, 2, 4 }, { "zb", 3, 1, 5 } };
    for (size_t i = 0; i < TR_COUNT_OF(rows); i++) {
        struct tr_pipe *a = open_order(rows[i].name, rows[i].p, rows[i].v, rows[i].m), *b = NULL;
        struct tr_str text = { 0 }, again = { 0 };
        tr_pipe_print(a, &text);
        assert_int_equal(tr_pipe_read("x", text.p, rows[i].p, rows[i].v, rows[i].m, &b), TR_OK);
        tr_pipe_print(b, &again);
        assert_string_equal(text.p, again.p);
        tr_str_release(&text);
        tr_str_release(&again);
        tr_pipe_close(a);
        tr_pipe_close(b);
    }
}

static void files_that_cannot_run_are_refused_by_line(void **state)
{
    (void)state;
    static const struct {
        const char *text, *error;
    } rows[] = {
        { "rank 0: F0 F1 B0 B1\nrank 1: F0 B0 F1", "pipeline rank 1: backward of stage 1, micro-batch 1 is missing" },
        { "rank 0: F0 F1 B0 B1\n\nrank 1: F0 B0 F1 B1 F1",
          "line 3: pipeline rank 1: forward of stage 1, micro-batch 1 is there twice" },
        { "rank 0: F0 F1 B0 B1\nrank 1: B0 F0 F1 B1",
          "line 2: pipeline rank 1: backward of stage 1, micro-batch 0 waits" },
        { "rank 0: F0 B0 F1 B1\nrank 1: F0 F1 B0 B1",
          "line 1: pipeline rank 0: backward of stage 0, micro-batch 0 waits" },
        { "rank 0: F0 F1 B0 B1\nrank 1: F0 I0 F1 B1", "backward-weight of stage 1, micro-batch 0 is missing" },
        { "rank 0: F0 F1 B0 B1\nrank 1: F0 W0 I0 F1 B1",
          "line 2: pipeline rank 1: backward-weight of stage 1, micro-batch 0 waits" },
        { "rank 0: F0 F1 B0 B2\nrank 1: F0 B0 F1 B1", "x:1: \"B2\": no such micro-batch" },
        { "rank 0: F0 F1 B0 B1.1\nrank 1: F0 B0 F1 B1", "x:1: \"B1.1\": no such chunk" },
        { "rank 0: F0\nrank 2: F0", "x:2: \"rank\": no such rank" },
        { "rank 0: F0 X1", "x:1: \"X1\": a slot is" },
        { "rank 0: F0 F1x", "x:1: \"F1x\": a slot is" },
        { "# a comment\nstage 0: F0", "x:2: \"stage\": a line is" },
        { "rank 0: F99999999999999999999", "x:1: \"F999999999999999\": no such micro-batch" },
        { "", "pipeline rank 0: forward of stage 0, micro-batch 0 is missing" },
    };
    for (size_t i = 0; i < TR_COUNT_OF(rows); i++) {
        struct tr_pipe *o = NULL;
        assert_int_equal(tr_pipe_read("x", rows[i].text, 2, 1, 2, &o), TR_USAGE);
        if (!strstr(tr_error_text(), rows[i].error))
            fail_msg("row %zu: \"%s\" does not say \"%s\"", i, tr_error_text(), rows[i].error);
    }
}

/* Rank 1 wants its activations only after all of rank 0's forwards were sent: one message on its way is not enough when
 * the receives are asked for one slot ahead. */
static void a_strange_order_gets_the_window_it_needs(void **state)
{
    (void)state;
    static const char text[] =
        "rank 0: F0.0 F1.0 F2.0 F3.0 F0.1 F1.1 F2.1 F3.1 B0.1 B1.1 B2.1 B3.1 B0.0 B1.0 B2.0 B3.0\n"
        "rank 1: F0.0 F1.0 F2.0 F3.0 F0.1 B0.1 F1.1 B1.1 F2.1 B2.1 F3.1 B3.1 B0.0 B1.0 B2.0 B3.0\n";
    struct tr_pipe *o = NULL;
    if (tr_pipe_read("x", text, 2, 2, 4, &o) != TR_OK)
        fail_msg("%s", tr_error_text());
    check_messages(o);
    tr_pipe_close(o);
}

/* The rule is the table's (config/legal.c); a schedule that broke it would leave a group of micro-batches half done. */
static void interleaved_needs_whole_groups(void **state)
{
    (void)state;
    struct tr_pipe *o = NULL;
    assert_int_equal(tr_pipe_open("interleaved", 4, 2, 6, &o), TR_USAGE);
    assert_null(o);
    assert_string_equal(
        tr_error_text(),
        "pp_chunks 2: interleaved needs gradient_accumulation_steps that pp 4 divides, and there are 6; try "
        "--gradient_accumulation_steps 8 or --pp_chunks 1");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_order_is_complete_and_as_good_as_its_formula),
        cmocka_unit_test(one_rank_goes_micro_batch_by_micro_batch),
        cmocka_unit_test(an_order_printed_reads_as_itself),
        cmocka_unit_test(files_that_cannot_run_are_refused_by_line),
        cmocka_unit_test(a_strange_order_gets_the_window_it_needs),
        cmocka_unit_test(interleaved_needs_whole_groups),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
