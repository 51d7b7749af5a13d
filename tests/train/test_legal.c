/* test_legal.c - the search takes a layout exactly when the trainer would: over a grid of small requests, the verdict
 * of `plan --search` is that of loading the options, setup and compile together. */
#include "plan/plan.h"
#include "train/train.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

static const char model_config[] =
    "{\"model_type\":\"llama\",\"vocab_size\":64,\"hidden_size\":16,\"intermediate_size\":24,\"num_hidden_layers\":2,"
    "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"max_position_embeddings\":16}";
/* Two ranks and two micro-batches; the second runs one stage's backwards from the last to the first. */
static const char in_order[] = "rank 0: F0 F1 B0 B1\nrank 1: F0 F1 B0 B1\n";
static const char runs_back[] = "rank 0: F0 F1 B1 B0\nrank 1: F0 F1 B1 B0\n";

enum { BATCH = 12 };

struct request {
    int dp, tp, pp, cp, micro, chunks, zero, shard;
    bool sp;
    const char *schedule, *reproducible, *reduce_dtype, *cp_mode;
};

static enum tr_status load(const struct request *r, const struct tr_config **out)
{
    char text[512], *argv[48], *rest = NULL;
    int argc = 0;
    assert_int_equal(
        tr_format(text, sizeof text,
                  "--model model --device cpu --threads 1 --sequence_length 8 --dp %d --tp %d --pp %d --cp %d "
                  "--train_batch_size %d --per_device_train_batch_size %d --pp_chunks %d --zero %d "
                  "--hybrid_shard %d --pp_schedule %s --reproducible %s --reduce_dtype %s --cp_mode %s %s",
                  r->dp, r->tp, r->pp, r->cp, BATCH, r->micro, r->chunks, r->zero, r->shard, r->schedule,
                  r->reproducible, r->reduce_dtype, r->cp_mode, r->sp ? "--sp" : ""),
        TR_OK);
    for (char *p = strtok_r(text, " ", &rest); p; p = strtok_r(NULL, " ", &rest))
        argv[argc++] = p;
    return tr_config_load(TR_VERB_PLAN, argc, argv, NULL, out);
}

static bool trainer_takes(const struct request *r)
{
    const struct tr_config *cfg = NULL;
    struct tr_setup *s = NULL;
    enum tr_status st = load(r, &cfg);
    if (st == TR_OK)
        st = tr_setup_open_rank(cfg, TR_USE_TRAIN, 0, &s);
    if (st != TR_OK && st != TR_USAGE)
        fail_msg("%s", tr_error_text());
    tr_setup_close(s);
    tr_config_close(cfg);
    return st == TR_OK;
}

/* The question is that of a run with the same options and no mesh; the mesh is what a search would try. */
static bool search_takes(const struct request *r, const struct tr_model *m, const struct tr_machine *machine)
{
    struct request one = { 1, 1, 1, 1, 1, 1, 0, 0, false, "1f1b", "config", r->reduce_dtype, r->cp_mode };
    const struct tr_config *cfg = NULL;
    struct tr_search_query *q = calloc(1, sizeof *q);
    assert_non_null(q);
    one.reproducible = r->reproducible;
    if (load(&one, &cfg) != TR_OK || tr_search_query_of(cfg, m, machine, r->dp * r->tp * r->pp * r->cp, q) != TR_OK)
        fail_msg("%s", tr_error_text());
    struct tr_forecast_query a = q->base;
    a.dp = r->dp, a.tp = r->tp, a.pp = r->pp, a.cp = r->cp, a.micro = r->micro, a.chunks = r->chunks, a.zero = r->zero;
    a.shard = r->zero ? r->shard : 0, a.has_sp = r->sp, a.schedule = r->schedule;
    bool is_legal = tr_search_is_legal(q, &a);
    free(q);
    tr_config_close(cfg);
    return is_legal;
}

static int n_legal, n_all;

static void compare(const struct request *r, const struct tr_model *m, const struct tr_machine *machine)
{
    bool trains = trainer_takes(r);
    char why[512];
    (void)snprintf(why, sizeof why, "%s", trains ? "" : tr_error_text());
    tr_error_clear();
    if (search_takes(r, m, machine) != trains)
        fail_msg(
            "dp %d tp %d pp %d cp %d micro %d chunks %d zero %d shard %d sp %d schedule %s reproducible %s reduce %s "
            "%s: the trainer %s, the search does not agree: %s",
            r->dp, r->tp, r->pp, r->cp, r->micro, r->chunks, r->zero, r->shard, r->sp, r->schedule, r->reproducible,
            r->reduce_dtype, r->cp_mode, trains ? "takes it" : "refuses", why);
    n_legal += trains;
    n_all++;
}

static void write_file(const char *name, const char *text)
{
    FILE *f = fopen(name, "we");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0 && fclose(f) == 0);
}

static void the_search_takes_what_the_trainer_takes(void **state)
{
    static const struct {
        const char *schedule;
        int chunks;
    } schedules[] = { { "1f1b", 1 },        { "gpipe", 2 },    { "interleaved", 2 },
                      { "interleaved", 5 }, { "in_order", 1 }, { "runs_back", 1 } };
    static const struct {
        const char *reproducible, *reduce_dtype;
    } orders[] = { { "config", "float32" }, { "layout", "float32" }, { "layout", "bfloat16" } };
    static const struct {
        int zero, shard;
    } shards[] = { { 0, 0 }, { 2, 2 } };
    static const char *const modes[] = { "ring", "ulysses" };
    struct tr_model *m = NULL;
    struct tr_machine machine;
    struct tr_model_options opt = { .rows = 1, .sequence_length = 8 };
    (void)state;
    assert_int_equal(tr_model_open("model", &opt, &m), TR_OK);
    assert_int_equal(tr_machine_find("H100-80GB", &machine), TR_OK);
    struct request r = { .micro = 1 };
    for (size_t o = 0; o < TR_COUNT_OF(orders); o++)
        for (size_t s = 0; s < TR_COUNT_OF(schedules); s++)
            for (size_t z = 0; z < TR_COUNT_OF(shards); z++)
                for (r.dp = 1; r.dp <= 6; r.dp++)
                    for (r.pp = 1; r.pp <= 3; r.pp++)
                        for (r.tp = 1; r.tp <= 3; r.tp++)
                            for (r.cp = 1; r.cp <= 2; r.cp++) {
                                r.reproducible = orders[o].reproducible, r.reduce_dtype = orders[o].reduce_dtype;
                                r.schedule = schedules[s].schedule, r.chunks = schedules[s].chunks;
                                r.zero = shards[z].zero, r.shard = shards[z].shard;
                                r.cp_mode = modes[r.tp % 2], r.sp = r.tp > 1;
                                r.micro = 1 + (r.dp + r.tp + r.cp) % 3;
                                compare(&r, m, &machine);
                            }
    print_message("%d of %d requests are legal\n", n_legal, n_all);
    assert_true(n_legal > 100 && n_all - n_legal > 100);
    tr_model_close(m);
}

int main(void)
{
    char dir[] = "/tmp/tr-legal-XXXXXX";
    if (!mkdtemp(dir) || chdir(dir) != 0 || tr_mkdirs("model") != TR_OK)
        return 1;
    write_file("model/config.json", model_config);
    write_file("in_order", in_order);
    write_file("runs_back", runs_back);
    const struct CMUnitTest tests[] = { cmocka_unit_test(the_search_takes_what_the_trainer_takes) };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    for (const char *const *name = (const char *const[]){ "model/config.json", "in_order", "runs_back", NULL }; *name;
         name++)
        (void)unlink(*name);
    return rmdir("model") | chdir("/") | rmdir(dir) | failed;
}
