/* The forecast: published memory tables to their rounding, bubbles as the closed forms, machines by name and by file,
 * and sizes that cannot be refused with what can. */
#include "plan/plan.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

static void near(double got, double want, double bound, const char *what)
{
    if (!(fabs(got - want) <= bound))
        fail_msg("%s: %.9g is not %.9g +- %.3g", what, got, want, bound);
}

static void zero_table_1_to_its_printed_rounding(void **state)
{
    static const double dp[] = { 1, 4, 16, 64, 256, 1024 }, params[] = { 7.5, 128, 1000 };
    static const double cell[6][3][3] = { /* dp, model, stage; GB */
                                          { { 120, 120, 120 }, { 2048, 2048, 2048 }, { 16000, 16000, 16000 } },
                                          { { 52.5, 41.3, 30 }, { 896, 704, 512 }, { 7000, 5500, 4000 } },
                                          { { 35.6, 21.6, 7.5 }, { 608, 368, 128 }, { 4750, 2875, 1000 } },
                                          { { 31.4, 16.6, 1.88 }, { 536, 284, 32 }, { 4187, 2218, 250 } },
                                          { { 30.4, 15.4, 0.47 }, { 518, 263, 8 }, { 4046, 2054, 62.5 } },
                                          { { 30.1, 15.1, 0.12 }, { 513, 257, 2 }, { 4011, 2013, 15.6 } }
    };
    (void)state;
    for (int d = 0; d < 6; d++)
        for (int m = 0; m < 3; m++)
            for (int z = 0; z < 3; z++) {
                double got = tr_zero_bytes(z + 1, dp[d]) * params[m], want = cell[d][m][z];
                /* printed with one decimal below 100 (two below 2), whole above; the paper cuts some and rounds others
                 */
                double unit = want < 2 ? 0.01 : want < 100 ? 0.1 : 1;
                near(got, want, unit, "cell");
            }
}

static struct tr_forecast_query gpt(double layers, double hidden, double heads, int pp, int chunks, enum tr_keep keep,
                                    bool sp)
{
    static struct tr_machine m;
    assert_int_equal(tr_machine_find("A100-80GB@selene", &m), TR_OK);
    return (struct tr_forecast_query){ .shape = { .layers = layers,
                                                  .hidden = hidden,
                                                  .heads = heads,
                                                  .kv_heads = heads,
                                                  .head_dim = hidden / heads,
                                                  .ffn = 4 * hidden,
                                                  .vocab = 51200,
                                                  .is_tied = true },
                                       .machine = &m,
                                       .impl = &tr_impl_trireme,
                                       .tp = 8,
                                       .pp = pp,
                                       .chunks = chunks,
                                       .cp = 1,
                                       .dp = 1,
                                       .ep = 1,
                                       .has_sp = sp,
                                       .seq = 2048,
                                       .micro = pp == 1 ? 4 : 1,
                                       .global = pp == 1 ? 4 : 8 * pp,
                                       .precision = TR_PRECISION_16,
                                       .param_bytes = 2,
                                       .grad_bytes = 4,
                                       .state_bytes = 12,
                                       .keep = keep };
}

static void korthikanti_figure_1_exactly(void **state)
{
    static const struct {
        double layers, hidden, heads;
        int pp, chunks;
        double all, selective; /* GiB */
    } rows[] = { { 48, 6144, 64, 1, 1, 59.25, 9.5625 },
                 { 96, 12288, 96, 8, 3, 66.84375, 12.3515625 },
                 { 105, 20480, 128, 35, 3, 114.0234375, 23.076171875 },
                 { 128, 25600, 160, 64, 1, 131.25, 26.5625 } };
    (void)state;
    for (size_t i = 0; i < TR_COUNT_OF(rows); i++) {
        struct tr_forecast_query a =
            gpt(rows[i].layers, rows[i].hidden, rows[i].heads, rows[i].pp, rows[i].chunks, TR_KEEP_ALL, false);
        near(tr_korthikanti_bytes(&a) / 1073741824.0, rows[i].all, 1e-6, "all kept");
        a.keep = TR_KEEP_CORE;
        a.has_sp = true;
        near(tr_korthikanti_bytes(&a) / 1073741824.0, rows[i].selective, 1e-6, "selective with sequence parallel");
    }
}

/* F, B and W of any size, the same on every stage: what idles is what the papers say. Zero-bubble H1 says F + B - W a
 * stage (Qi 2023, table 1) where weights take no longer than the other two; the first stage cannot wait less than B for
 * its first gradient, nor the last less than F for its first input. */
static double closed_form(const char *name, int p, int v, double F, double B, double W)
{
    if (strcmp(name, "zb") == 0)
        return (p - 1) * fmax(F + B - W, fmax(F, B));
    return (p - 1) * (F + B + W) / v;
}

static void bubbles_are_the_closed_forms(void **state)
{
    static const struct {
        const char *name;
        int p, v, m;
    } cases[] = { { "gpipe", 4, 1, 8 },        { "1f1b", 4, 1, 8 }, { "1f1b", 8, 1, 32 }, { "interleaved", 4, 3, 8 },
                  { "interleaved", 8, 2, 16 }, { "zb", 4, 1, 12 },  { "zb", 8, 1, 24 },   { "zb", 2, 1, 5 } };
    static const double costs_of[][3] = { { 1.25, 1.25, 1.25 }, { 1, 1.5, 0.75 }, { 1, 1, 0.5 },
                                          { 2, 1, 0.9 },        { 1, 1.2, 1 },    { 0.7, 1, 1.3 } };
    (void)state;
    for (size_t n = 0; n < TR_COUNT_OF(cases) * TR_COUNT_OF(costs_of); n++) {
        size_t i = n % TR_COUNT_OF(cases);
        const double *c = costs_of[n / TR_COUNT_OF(cases)];
        int p = cases[i].p, v = cases[i].v, m = cases[i].m;
        double F = c[0], B = c[1], W = c[2];
        struct tr_pipe *o = NULL;
        struct tr_pipe_times t;
        double(*slot)[4] = calloc((size_t)(p * v), sizeof *slot);
        assert_non_null(slot);
        for (int k = 0; k < p * v; k++) {
            slot[k][TR_DO_FORWARD] = F / v;
            slot[k][TR_DO_BACKWARD] = (B + W) / v;
            slot[k][TR_DO_BACKWARD_INPUT] = B / v;
            slot[k][TR_DO_BACKWARD_WEIGHT] = W / v;
        }
        struct tr_pipe_costs costs = { .slot = (const double(*)[4])slot };
        assert_int_equal(tr_pipe_open(cases[i].name, p, v, m, &o), TR_OK);
        assert_int_equal(tr_pipe_play_costs(o, &costs, &t, NULL, NULL), TR_OK);
        near(t.length, m * (F + B + W) + closed_form(cases[i].name, p, v, F, B, W), 1e-9, cases[i].name);
        tr_pipe_close(o);
        free(slot);
    }
}

/* A long run of micro-batches is played only at its ends: the rest must go on in a straight line. */
static void many_micro_batches_cost_the_busiest_rank_each(void **state)
{
    struct tr_forecast a, b;
    struct tr_forecast_query query = gpt(96, 12288, 96, 8, 1, TR_KEEP_CORE, true);
    (void)state;
    query.global = 200;
    assert_int_equal(tr_forecast(&query, &a), TR_OK);
    query.global = 400;
    assert_int_equal(tr_forecast(&query, &b), TR_OK);
    near(b.bubble_s / a.bubble_s, 1, 0.5, "the bubble does not grow with micro-batches but for the last stage's head");
    assert_true(b.step_s > 1.8 * a.step_s && b.step_s < 2 * a.step_s);
}

static void machines_are_found_by_name_and_misspelt_ones_named(void **state)
{
    static const char *const there[] = { "A100-80GB@selene",
                                         "A100-80GB@jeanzay-opa",
                                         "A100-40GB@mosaic-roce1600",
                                         "H100-80GB@nv-ndr",
                                         "H100-96GB-500W@grandteton",
                                         "H200-141GB@cx7-400",
                                         "H800-80GB@ib50",
                                         "B200-180GB@dgx",
                                         "B300@dgx",
                                         "GB200@nvl72",
                                         "GB300@nvl72",
                                         "V100-32GB@dgx2",
                                         "H100",
                                         "RTX4090-24GB",
                                         "MI300X-192GB",
                                         "L40S-48GB" };
    struct tr_machine m;
    (void)state;
    for (size_t i = 0; i < TR_COUNT_OF(there); i++)
        if (tr_machine_find(there[i], &m) != TR_OK)
            fail_msg("%s: %s", there[i], tr_error_text());
    assert_int_equal(tr_machine_find("H100-80GB@nv-ndt", &m), TR_USAGE);
    assert_non_null(strstr(tr_error_text(), "nv-ndr"));
    assert_int_equal(tr_machine_find("A100-8GB", &m), TR_USAGE);
    assert_non_null(strstr(tr_error_text(), "A100-80GB"));
    assert_int_equal(tr_machine_find("", &m), TR_USAGE);
    assert_int_equal(tr_machine_find("@selene", &m), TR_USAGE);
}

/* Two cores of 100 and 300 Gflop/s together at small and large products; a core of its own does 80 and 150. */
static void ranks_with_a_core_each_go_by_what_one_core_does(void **state)
{
    struct tr_chip c = { .n_units = 2, .memory_rate = 20 };
    (void)state;
    c.all.gemm = (struct tr_curve){ .n = 2, .at = { 1e6, 1e9 }, .rate = { 100e9, 300e9 } };
    c.all.op_s[TR_COST_ADD] = 1e-9;
    struct tr_chip halved = tr_chip_part(&c, 2); /* nothing of one core is known */
    assert_true(fabs(tr_cost_gemm(&halved, TR_PRECISION_FP32, 1, 100, 50, 100) - 1e6 / 50e9) < 1e-12);
    assert_true(fabs(halved.all.op_s[TR_COST_ADD] - 2e-9) < 1e-15);
    c.one.gemm = (struct tr_curve){ .n = 2, .at = { 1e6, 1e9 }, .rate = { 80e9, 150e9 } };
    c.one.op_s[TR_COST_ADD] = 1.2e-9;
    struct tr_chip alone = tr_chip_part(&c, 1), two = tr_chip_part(&c, 2), four = tr_chip_part(&c, 4);
    assert_true(fabs(tr_cost_gemm(&alone, TR_PRECISION_FP32, 1, 100, 50, 100) - 1e6 / 100e9) < 1e-12);
    assert_true(fabs(tr_cost_gemm(&two, TR_PRECISION_FP32, 1, 100, 50, 100) - 1e6 / 80e9) < 1e-12);
    assert_true(fabs(tr_cost_gemm(&four, TR_PRECISION_FP32, 1, 100, 50, 100) - 2 * 1e6 / 80e9) < 1e-12);
    assert_true(fabs(two.all.op_s[TR_COST_ADD] - 1.2e-9) < 1e-15);
    c.n_units = 4; /* two ranks of two cores each: between a rank with all and ranks with one */
    struct tr_chip pair = tr_chip_part(&c, 2);
    double half = tr_cost_gemm(&pair, TR_PRECISION_FP32, 1, 100, 50, 100);
    assert_true(fabs(half - 1e6 / sqrt(100e9 * 80e9)) < 1e-12);
}

static void a_machine_written_is_the_machine_read(void **state)
{
    struct tr_machine a, b;
    struct tr_str one = { 0 }, two = { 0 };
    (void)state;
    assert_int_equal(tr_machine_find("H100-80GB@nv-ndr", &a), TR_OK);
    a.chip.all.gemm = a.chip.one.gemm = (struct tr_curve){ .n = 2, .at = { 1e6, 1e9 }, .rate = { 1e11, 4e11 } };
    tr_machine_write(&a, &one);
    assert_int_equal(tr_machine_read("file", one.p, &b), TR_OK);
    tr_machine_write(&b, &two);
    assert_string_equal(one.p, two.p);
    tr_str_release(&one);
    tr_str_release(&two);
}

static void a_bad_machine_file_is_refused_with_its_line(void **state)
{
    static const struct {
        const char *text, *says;
    } rows[] = {
        { "base: H100\nmemory_gbbs: 1\n", "file:2: no key \"memory_gbbs\"; did you mean memory_gbps" },
        { "base: H100\nslow: infiniband\n", "file:2: no key \"slow\"; did you mean slow_gbps" },
        { "base: H100\nlink: nvlink9\n", "file:2: no key \"link\"; did you mean chips_per_link" },
        { "base: H100\ncolour: red\n", "file:2: no key \"colour\"; some are tflops" },
        { "chip:\n  tflops: 1\n", "file:1: no key \"chip\"" },
        { "base: H100\nmemory_gib: -3\n", "file:2: memory_gib \"-3\" is not a number from 0.001 to 1000000000" },
        { "base: H100\nmemory_gib: 1e30\n", "memory_gib \"1e30\" is not a number from" },
        { "base: H100\nmemory_gib: nan\n", "memory_gib \"nan\" is not a number from" },
        { "base: H100\nmemory_gib: 80GB\n", "memory_gib \"80GB\" is not a number from" },
        { "base: H100\nmemory_gib:\n", "memory_gib \"\" is not a number from" },
        { "base: H100\nslow_gbps: inf\n", "slow_gbps \"inf\" is not a number from 1e-06 to" },
        { "base: H100\ngemm_share: 1.7\n", "gemm_share \"1.7\" is not a number from 0.001 to 1.5" },
        { "base: H100\ntflops: 1e400\n", "file:2: tflops \"1e400\" is not a number from" },
        { "base: H100\nunits: 1.5\n", "units \"1.5\" is not a whole number from 1 to 100000" },
        { "base: H100\nchips_per_link: 0\n", "chips_per_link \"0\" is not a whole number from 1 to 1000000" },
        { "base: H100\nranks_share_a_chip: yes\n", "ranks_share_a_chip \"yes\" is neither true nor false" },
        { "base: H100\nprice: 2\n\nprice: 3\n", "file:4: price is in line 2 too" },
        { "base: H100\ngemm_flop: [1, 2\n", "file:2: gemm_flop \"[1, 2\" is not a list of 1 to 12 ascending" },
        { "base: H100\ngemm_flop: [2, 1]\n", "gemm_flop \"[2, 1]\" is not a list" },
        { "base: H100\ngemm_flop: [1, x]\n", "gemm_flop \"[1, x]\" is not a list" },
        { "base: H100\ngemm_flop: [1, 2]\ngemm_gflops: [1]\n", "file:3: gemm_gflops \"[1]\" is not a list" },
        { "base: H100\ngemm_flop: [1,2,3,4,5,6,7,8,9,10,11,12,13]\n", "is not a list of 1 to 12" },
        { "base: H100\ngemm_flop: [1, 2]\n", "go together" },
        { "base: H1\n", "file:1: base: no chip \"H1\"" },
        { "base: H100@nv-ndx\n", "file:1: base: no cluster \"nv-ndx\"; did you mean nv-ndr" },
        { "tflops: 1\nbase: H100\n", "file:2: base \"H100\" must be the first line" },
        { "nonsense\n", "file:1: line \"nonsense\" is not `key: value` from its first column" },
        { "a: 1\n b: 2\n", "file:1: no key \"a\"" },
        { "base: H100\n  price: 2\n", "file:2: line \"  price: 2\" is not `key: value`" },
        { "price: 3\n", "no tflops; needs base" },
        { "tflops: 3\nmemory_gib: 3\n", "no memory_gbps; needs base" },
        { "", "needs base" },
    };
    struct tr_machine m;
    (void)state;
    for (size_t i = 0; i < TR_COUNT_OF(rows); i++) {
        assert_int_equal(tr_machine_read("file", rows[i].text, &m), TR_USAGE);
        if (!strstr(tr_error_text(), rows[i].says))
            fail_msg("\"%s\" does not say \"%s\"", tr_error_text(), rows[i].says);
    }
}

/* As others write YAML: a document's start, a byte order mark, lines of Windows. */
static void a_machine_file_may_look_like_yaml(void **state)
{
    struct tr_machine a, b;
    (void)state;
    assert_int_equal(tr_machine_find("H100", &a), TR_OK);
    assert_int_equal(tr_machine_read("file", "\xef\xbb\xbf---\r\nbase: H100 # ours\r\n\r\nprice: 2\r\n", &b), TR_OK);
    assert_true(b.chip.price == 2 && b.chip.memory_bytes == a.chip.memory_bytes);
}

/* Deep nests, long lines, endless braces, keys of all bytes: one line each, no crash. */
static void hostile_machine_files_are_refused(void **state)
{
    static const char *const nests[] = { "{a: ", "a:\n", "- ", "  a:\n", "[[", "&a *a ", "? " };
    char text[4096], byte[2] = "";
    struct tr_machine m;
    (void)state;
    for (int kind = 1; kind < 256 + (int)TR_COUNT_OF(nests); kind++) {
        byte[0] = (char)kind;
        const char *with = kind < 256 ? byte : nests[kind - 256];
        for (size_t n = 0; n < sizeof text; n++)
            text[n] = n + 1 < sizeof text ? with[n % strlen(with)] : '\0';
        assert_int_equal(tr_machine_read("file", text, &m), TR_USAGE);
        assert_null(strchr(tr_error_text(), '\n'));
    }
}

static void sizes_that_cannot_be_are_refused_with_what_can(void **state)
{
    static const struct {
        struct {
            int tp, pp, chunks, cp, dp, ep;
            double micro, global, layers, experts;
        } x; /* 0: as it stands */
        const char *why;
    } rows[] = { { { .tp = 7 }, "tp 7: tp divides num_attention_heads, which is 96; try 4 or 8" },
                 { { .ep = 3, .experts = 8 }, "which is 8; try 2 or 4" },
                 { { .pp = 500 }, "which is 98; try 98" },
                 { { .pp = 40, .chunks = 3 }, "which is 32; try 32" },
                 { { .chunks = 99 }, "this model has 98" },
                 { { .cp = 3 }, "cp 3: cp divides sequence_length, which is 2048; try 2 or 4" },
                 { { .dp = 5 }, "train_batch_size 64 is not a multiple of dp 5; try 60" },
                 { { .dp = 32, .micro = 4 }, "per_device_train_batch_size 4 is more than the 2 rows" },
                 { { .experts = NAN }, "experts nan" },
                 { { .layers = 1e300 }, "layers 1e+300 is outside 1 to 10000" },
                 { { .layers = NAN }, "layers nan" } };
    (void)state;
    for (size_t i = 0; i < TR_COUNT_OF(rows); i++) {
        struct tr_forecast f;
        struct tr_forecast_query a = gpt(96, 12288, 96, 8, 1, TR_KEEP_CORE, true);
        assert_int_equal(tr_forecast(&a, &f), TR_OK);
#define SET(to, name) (to) = rows[i].x.name != 0 ? rows[i].x.name : (to)
        SET(a.tp, tp), SET(a.pp, pp), SET(a.chunks, chunks), SET(a.cp, cp), SET(a.dp, dp), SET(a.ep, ep);
        SET(a.micro, micro), SET(a.global, global), SET(a.shape.layers, layers), SET(a.shape.experts, experts);
#undef SET
        assert_int_equal(tr_forecast(&a, &f), TR_USAGE);
        if (!strstr(tr_error_text(), rows[i].why))
            fail_msg("\"%s\" does not say \"%s\"", tr_error_text(), rows[i].why);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(zero_table_1_to_its_printed_rounding),
        cmocka_unit_test(korthikanti_figure_1_exactly),
        cmocka_unit_test(bubbles_are_the_closed_forms),
        cmocka_unit_test(many_micro_batches_cost_the_busiest_rank_each),
        cmocka_unit_test(machines_are_found_by_name_and_misspelt_ones_named),
        cmocka_unit_test(ranks_with_a_core_each_go_by_what_one_core_does),
        cmocka_unit_test(a_machine_written_is_the_machine_read),
        cmocka_unit_test(a_bad_machine_file_is_refused_with_its_line),
        cmocka_unit_test(a_machine_file_may_look_like_yaml),
        cmocka_unit_test(hostile_machine_files_are_refused),
        cmocka_unit_test(sizes_that_cannot_be_are_refused_with_what_can),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
