/* The search misses nothing that counting everything finds and remembers schedules without changing a bit, failures
 * follow Daly, a question survives its event, and a layout is compiled with the options that are shown. */
#include "plan/plan.h"
#include "plan/forecast_impl.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

static struct tr_model *model_of(const char *name)
{
    char path[TR_PATH_MAX];
    struct tr_model *m = NULL;
    struct tr_model_options opt = { .rows = 1, .sequence_length = 4096 };
    assert_int_equal(tr_format(path, sizeof path, "%s/bench/models/%s.json", TR_SOURCE_DIR, name), TR_OK);
    assert_int_equal(tr_model_open(path, &opt, &m), TR_OK);
    return m;
}

static struct tr_search_query query_of(const struct tr_model *m, const struct tr_machine *machine, int gpus,
                                       double rows)
{
    struct tr_search_query q = { .model = m, .gpus = gpus, .room_bytes = 0.96 * machine->chip.memory_bytes };
    q.base = tr_forecast_query_of_one(machine);
    q.base.seq = 4096;
    q.base.global = rows;
    tr_shape_of_model(m, &q.base.shape);
    tr_pins_clear(&q.pins);
    return q;
}

/* Every layout of a mesh, nothing pruned. */
static double best_of_mesh(const struct tr_search_query *q, struct tr_forecast_query a)
{
    static const struct {
        const char *name;
        int chunks;
    } orders[] = { { "1f1b", 1 }, { "zb", 1 }, { "interleaved", 2 }, { "interleaved", 4 } };
    static const enum tr_keep keeps[] = { TR_KEEP_ALL, TR_KEEP_OP, TR_KEEP_INPUT };
    double best = INFINITY;
    struct tr_forecast f;
    for (a.micro = 1; a.micro <= 64; a.micro++)
        for (int sp = 0; sp <= (a.tp > 1); sp++)
            for (int z = 0; z <= (a.dp > 1 ? 7 : 0); z++)
                for (size_t k = 0; k < TR_COUNT_OF(keeps); k++)
                    for (size_t o = 0; o < (a.pp > 1 ? TR_COUNT_OF(orders) : 1); o++) {
                        a.has_sp = sp;
                        a.zero = z % 4;
                        a.sync_last = z > 3;
                        a.shard = a.zero ? a.dp : 0;
                        a.keep = keeps[k];
                        a.schedule = orders[o].name;
                        a.chunks = orders[o].chunks;
                        if (tr_search_is_legal(q, &a) && tr_forecast(&a, &f) == TR_OK && f.total_bytes <= q->room_bytes)
                            best = fmin(best, f.step_s);
                    }
    return best;
}

static void pruning_loses_nothing(void **state)
{
    struct tr_model *m = model_of("llama-8b");
    struct tr_machine machine;
    struct tr_search *s = malloc(sizeof *s);
    (void)state;
    assert_non_null(s);
    assert_int_equal(tr_machine_find("H100-80GB", &machine), TR_OK);
    struct tr_search_query q = query_of(m, &machine, 8, 16);
    double best = INFINITY;
    struct tr_forecast_query a = q.base;
    for (a.tp = 1; a.tp <= 8; a.tp *= 2)
        for (a.pp = 1; a.tp * a.pp <= 8; a.pp *= 2)
            for (a.cp = 1; a.tp * a.pp * a.cp <= 8; a.cp *= 2) {
                a.dp = 8 / (a.tp * a.pp * a.cp);
                best = fmin(best, best_of_mesh(&q, a));
            }
    assert_int_equal(tr_search_run(&q, s), TR_OK);
    assert_true(s->n > 1);
    assert_true(isfinite(best));
    assert_true(s->top[0].f.step_s <= best * (1 + 1e-12)); /* hybrid shards may only make it better */
    for (int i = 0; i < s->n; i++) {
        assert_true(i == 0 || s->top[i].f.step_s >= s->top[i - 1].f.step_s);
        assert_true(s->top[i].f.total_bytes <= q.room_bytes);
        assert_true(tr_search_is_legal(&q, &s->top[i].query));
        for (int k = 0; k < i; k++)
            assert_false(s->top[k].query.tp == s->top[i].query.tp && s->top[k].query.pp == s->top[i].query.pp &&
                         s->top[k].query.cp == s->top[i].query.cp);
    }
    free(s);
    tr_model_close(m);
}

/* More schedules than are kept, each asked for several times with costs that repeat and costs that do not. */
static void remembered_schedules_give_the_same_forecast_above_its_bound(void **state)
{
    static const struct {
        const char *name;
        int chunks;
    } orders[] = { { "1f1b", 1 }, { "zb", 1 }, { "gpipe", 1 }, { "interleaved", 2 } };
    struct tr_model *m = model_of("llama-8b");
    struct tr_machine machine;
    struct tr_pipes *remembered = NULL;
    int n = 0, n_tight = 0;
    (void)state;
    assert_int_equal(tr_machine_find("H100-80GB", &machine), TR_OK);
    assert_int_equal(tr_pipes_open(&remembered), TR_OK);
    struct tr_forecast_query a = query_of(m, &machine, 64, 0).base;
    for (int i = 0; i < 3000; i++) {
        struct tr_forecast f, g;
        size_t o = (size_t)i % TR_COUNT_OF(orders);
        a.schedule = orders[o].name;
        a.chunks = orders[o].chunks;
        a.pp = 2 << i / 4 % 4;
        a.zero = i / 16 % 3; /* costs that repeat */
        a.dp = a.zero ? 2 : 1;
        a.keep = i / 48 % 2 ? TR_KEEP_ALL : TR_KEEP_INPUT; /* and that do not */
        a.global = a.dp * a.pp * (1 + i / 96 % 16);
        assert_int_equal(tr_forecast(&a, &f), TR_OK);
        assert_int_equal(tr_forecast_again(&a, remembered, &g), TR_OK);
        assert_true(f.step_s == g.step_s && f.bubble_s == g.bubble_s && f.total_bytes == g.total_bytes);
        n += f.bubble_s > 0;
        a.is_bound = true;
        assert_int_equal(tr_forecast(&a, &g), TR_OK);
        a.is_bound = false;
        assert_true(g.step_s <= f.step_s * (1 + 1e-12) && g.total_bytes == f.total_bytes);
        n_tight += g.step_s > 0.999 * f.step_s;
    }
    assert_true(n > 2000);
    assert_true(n_tight > 1000); /* else a search plays what it could have ruled out */
    tr_pipes_close(remembered);
    tr_model_close(m);
}

/* Cards that take 2 s for the gradients: they travel once where there is room for whole ones, else often. */
static void gradients_travel_once_where_there_is_room(void **state)
{
    struct tr_model *m = model_of("llama-8b");
    struct tr_machine machine;
    struct tr_search *s = malloc(sizeof *s);
    (void)state;
    assert_non_null(s);
    assert_int_equal(tr_machine_find("H100-80GB@ethernet100", &machine), TR_OK);
    struct tr_search_query q = query_of(m, &machine, 64, 1024);
    q.pins.keep = TR_KEEP_ALL, q.pins.zero = 3, q.pins.tp = q.pins.pp = q.pins.cp = q.pins.micro = 1;
    assert_int_equal(tr_search_run(&q, s), TR_OK);
    assert_true(s->n == 1 && s->top[0].query.sync_last);
    double whole = s->top[0].f.bytes[TR_BYTES_GRADS], step = s->top[0].f.step_s;
    assert_true(whole > 8e9 * q.base.grad_bytes);
    q.room_bytes -= whole;
    assert_int_equal(tr_search_run(&q, s), TR_OK);
    assert_true(s->n == 1 && !s->top[0].query.sync_last && s->top[0].f.step_s > 1.2 * step);
    q.room_bytes += whole;
    q.pins.sync = 0;
    assert_int_equal(tr_search_run(&q, s), TR_OK);
    assert_true(s->n == 1 && !s->top[0].query.sync_last);
    free(s);
    tr_model_close(m);
}

/* The interval that the formula names is where the exact share has its maximum, within the series' error. */
static void dalys_interval_is_the_best(void **state)
{
    (void)state;
    for (double cost = 1; cost <= 1000; cost *= 10) {
        double between = 10000, at = tr_daly_interval(cost, between), best = tr_daly_share(at, cost, 300, between);
        for (double t = 0.02 * at; t < 20 * at; t *= 1.05)
            assert_true(tr_daly_share(t, cost, 300, between) <= best * 1.001);
    }
    assert_true(fabs(tr_daly_interval(1, 1e6) / sqrt(2e6) - 1) < 0.01); /* Young */
}

static void tokens_are_counted_in_thousands(void **state)
{
    double x = 0;
    (void)state;
    assert_int_equal(tr_tokens_parse("15T", &x), TR_OK);
    assert_true(x == 15e12);
    assert_int_equal(tr_tokens_parse("1.5B", &x), TR_OK);
    assert_true(x == 1.5e9);
    static const char *const bad[] = { "", "T", "15TB", "-3", "nan", "1e30", "0" };
    for (size_t i = 0; i < TR_COUNT_OF(bad); i++)
        assert_int_equal(tr_tokens_parse(bad[i], &x), TR_USAGE);
}

static void a_question_survives_its_event(void **state)
{
    struct tr_model *m = model_of("llama-70b");
    struct tr_machine machine;
    struct tr_str text = { 0 };
    struct tr_forecast_query back;
    struct tr_forecast f, g;
    cJSON *o = NULL;
    (void)state;
    assert_int_equal(tr_machine_find("H100-80GB", &machine), TR_OK);
    struct tr_search_query q = query_of(m, &machine, 128, 256);
    struct tr_forecast_query a = q.base;
    a.tp = 8, a.pp = 4, a.dp = 4, a.zero = 2, a.shard = 2, a.has_sp = true, a.sync_last = true, a.keep = TR_KEEP_OP,
    a.schedule = "zb";
    tr_str_addf(&text, "{");
    tr_forecast_query_json(&a, &text);
    tr_str_addf(&text, "}");
    assert_int_equal(tr_json_parse(text.p, text.n, "event", &o), TR_OK);
    assert_int_equal(tr_forecast_query_of_json(o, &back), TR_OK);
    back.machine = &machine;
    assert_int_equal(tr_forecast(&a, &f), TR_OK);
    assert_int_equal(tr_forecast(&back, &g), TR_OK);
    assert_true(f.step_s == g.step_s && f.total_bytes == g.total_bytes);
    cJSON_Delete(o);
    tr_str_release(&text);
    tr_model_close(m);
}

/* Every option of the configuration that a layout's text gives, as JSON. */
static void read_back(const struct tr_forecast_query *a, struct tr_str *out)
{
    struct tr_str text = { 0 };
    char *argv[32] = { "--model", "m" };
    int argc = 2;
    const struct tr_config *cfg = NULL;
    tr_layout_options(a, &text);
    assert_true(tr_str_ok(&text));
    for (char *rest = NULL, *word = strtok_r(text.p, " ", &rest); word; word = strtok_r(NULL, " ", &rest))
        argv[argc++] = word;
    assert_int_equal(tr_config_load(TR_VERB_PLAN, argc, argv, NULL, &cfg), TR_OK);
    tr_config_json(cfg, false, out);
    tr_config_close(cfg);
    tr_str_release(&text);
}

/* What the search compiles is what it shows. */
static void a_layout_has_the_fields_of_its_options(void **state)
{
    static const struct tr_forecast_query asks[] = {
        { .tp = 1, .pp = 1, .cp = 1, .dp = 1, .chunks = 1, .micro = 8, .global = 64 },
        { .tp = 8,
          .has_sp = true,
          .pp = 4,
          .cp = 2,
          .dp = 16,
          .chunks = 2,
          .schedule = "interleaved",
          .zero = 3,
          .shard = 8,
          .sync_last = true,
          .micro = 2,
          .global = 256,
          .keep = TR_KEEP_OP },
        { .tp = 1,
          .has_sp = true,
          .pp = 2,
          .cp = 1,
          .dp = 8,
          .chunks = 1,
          .zero = 1,
          .shard = 8,
          .sync_last = true,
          .micro = 1,
          .global = 8,
          .keep = TR_KEEP_INPUT },
        { .tp = 2, .pp = 1, .cp = 1, .dp = 4, .schedule = "zb", .zero = 2, .micro = 1, .global = 64 },
        { .tp = 1,
          .pp = 8,
          .cp = 1,
          .dp = 3,
          .chunks = 1,
          .schedule = "zb",
          .zero = 0,
          .shard = 3,
          .micro = 4,
          .global = 96 },
    };
    char *argv[] = { "--model", "m" };
    const struct tr_config *defaults = NULL;
    (void)state;
    assert_int_equal(tr_config_load(TR_VERB_PLAN, 2, argv, NULL, &defaults), TR_OK);
    for (size_t i = 0; i < TR_COUNT_OF(asks); i++) {
        struct tr_str shown = { 0 }, compiled = { 0 };
        struct tr_config run = *defaults;
        read_back(&asks[i], &shown);
        tr_layout_configure(&asks[i], &run);
        tr_config_json(&run, false, &compiled);
        assert_string_equal(shown.p, compiled.p);
        tr_str_release(&shown);
        tr_str_release(&compiled);
    }
    tr_config_close(defaults);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pruning_loses_nothing),
        cmocka_unit_test(gradients_travel_once_where_there_is_room),
        cmocka_unit_test(dalys_interval_is_the_best),
        cmocka_unit_test(tokens_are_counted_in_thousands),
        cmocka_unit_test(a_question_survives_its_event),
        cmocka_unit_test(remembered_schedules_give_the_same_forecast_above_its_bound),
        cmocka_unit_test(a_layout_has_the_fields_of_its_options),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
