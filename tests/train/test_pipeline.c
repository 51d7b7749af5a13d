/* A pipeline trains the model of one rank: every schedule, ZeRO stage, recompute and accumulation, on models with and
 * without tied embeddings. Without ties a pipeline alone changes no bit; what sums in another order stays within the
 * rounding of that sum. Bugs planted in the schedule are seen. */
#include "layout_agree.h"

struct job {
    struct layout l;
    struct reference one;
    bool is_exact;
    enum plant plant;
};

static void rank_main(const struct tr_comm_env *env, void *ctx)
{
    struct job *j = ctx;
    _exit(agrees(&j->l, env, &j->one, j->is_exact, j->plant) ? 0 : 3);
}

static int n_layouts;

/* 0: all ranks agree with one rank; 3: some do not. */
static int run_layout(struct layout l, bool is_exact, enum plant plant)
{
    struct job j = { .l = l, .is_exact = is_exact, .plant = plant };
    char job[64];
    pid_t pids[N_RANKS_MAX];
    int worst = 0, size = ranks_of(&l);
    train_one(&j.one, &l);
    for (int r = 0; r < size; r++) {
        struct tr_comm_env env = env_of(r, size, job, sizeof job);
        pids[r] = start_rank(&env, rank_main, &j);
        assert_true(pids[r] > 0);
    }
    for (int r = 0; r < size; r++) {
        int status;
        assert_int_equal(waitpid(pids[r], &status, 0), pids[r]);
        int code = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
        worst = code > worst ? code : worst;
    }
    close_reference(&j.one);
    n_layouts++;
    return worst;
}

static void expect_same(struct layout l, bool is_exact)
{
    static int n;
    char text[256];
    if (n++ % (IS_SLOW ? 3 : 1) != 0)
        return;
    fill_ones(&l);
    if (run_layout(l, is_exact, NOTHING) != 0)
        fail_msg("%s", layout_text(&l, text, sizeof text));
}

static void a_pipeline_alone_changes_no_bit(void **state)
{
    (void)state;
    static const char *const names[] = { "gpipe", "1f1b", "zb" };
    for (int pp = 2; pp <= 4; pp += 2)
        for (size_t s = 0; s < TR_COUNT_OF(names); s++)
            for (int m = 1; m <= 5; m += 2)
                expect_same((struct layout){ .model = LLAMA,
                                             .pp = pp,
                                             .schedule = names[s],
                                             .n_micro = m,
                                             .recompute = (enum tr_recompute)(m / 2),
                                             .dtype = pp == 2 ? TR_F32 : TR_BF16 },
                            true);
    for (int pp = 2; pp <= 3; pp++)
        for (int m = pp; m <= 2 * pp; m += pp)
            expect_same(
                (struct layout){ .model = LLAMA, .pp = pp, .schedule = "interleaved", .chunks = 2, .n_micro = m },
                true);
}

static void tied_embeddings_live_on_two_stages(void **state)
{
    (void)state;
    static const char *const names[] = { "gpipe", "1f1b", "zb" };
    for (int model = GPT2; model <= QWEN; model++)
        for (int pp = 2; pp <= 4; pp += 2)
            for (size_t s = 0; s < TR_COUNT_OF(names); s++)
                expect_same((struct layout){ .model = model,
                                             .pp = pp,
                                             .schedule = names[s],
                                             .n_micro = 3,
                                             .recompute = (enum tr_recompute)s },
                            false);
    expect_same((struct layout){ .model = QWEN, .pp = 2, .schedule = "interleaved", .chunks = 2, .n_micro = 4 }, false);
}

static void zero_and_replicas_work_inside_stages(void **state)
{
    (void)state;
    for (int zero = 0; zero <= 3; zero++) {
        expect_same(
            (struct layout){
                .model = zero % N_MODELS, .pp = 2, .dp = 2, .zero = zero, .schedule = "1f1b", .n_micro = 3 },
            false);
        expect_same((struct layout){ .model = GPT2, .pp = 2, .dp = 2, .zero = zero, .schedule = "zb", .n_micro = 4 },
                    false);
        expect_same((struct layout){ .model = QWEN,
                                     .pp = 4,
                                     .dp = 2,
                                     .zero = zero,
                                     .schedule = "gpipe",
                                     .n_micro = 2,
                                     .recompute = TR_RECOMPUTE_BLOCK },
                    false);
        expect_same((struct layout){ .model = GPT2,
                                     .pp = 2,
                                     .dp = 2,
                                     .zero = zero,
                                     .schedule = "interleaved",
                                     .chunks = 2,
                                     .n_micro = 2,
                                     .dtype = TR_BF16 },
                    false);
    }
    expect_same(
        (struct layout){ .model = GPT2, .pp = 2, .dp = 4, .zero = 3, .shard = 2, .schedule = "1f1b", .n_micro = 2 },
        false);
}

/* Gradients that travel in bf16: near, and not the same. */
static void gradients_may_travel_narrow(void **state)
{
    (void)state;
    for (int zero = 0; zero <= 3; zero++) {
        struct layout l = { .model = zero % N_MODELS, .dp = 4, .zero = zero, .n_micro = 2, .reduce_dtype = TR_BF16 };
        l.shard = zero == 3 ? 2 : 0;
        expect_same(l, false);
    }
}

/* Micro-batches of 8 on one rank, shared out over ranks, stages and shards: the same bits. */
static void in_order_no_layout_changes_a_bit(void **state)
{
    (void)state;
    static const struct layout rows[] = {
        { .dp = 1, .pp = 2, .n_micro = 8 },
        { .dp = 2, .pp = 1, .n_micro = 4 },
        { .dp = 2, .pp = 1, .n_micro = 4, .zero = 1 },
        { .dp = 2, .pp = 2, .n_micro = 4, .zero = 2 },
        { .dp = 4, .pp = 1, .n_micro = 2 },
        { .dp = 4, .pp = 1, .n_micro = 2, .zero = 2 },
        { .dp = 4, .pp = 2, .n_micro = 2, .zero = 3, .recompute = TR_RECOMPUTE_BLOCK },
        { .dp = 4, .pp = 1, .n_micro = 2, .zero = 3, .shard = 2 },
        { .dp = 8, .pp = 1, .n_micro = 1, .zero = 1 },
        { .dp = 8, .pp = 1, .n_micro = 1, .zero = 3, .shard = 4 },
        { .dp = 2, .pp = 1, .n_micro = 3, .zero = 3 }, /* a tree of 2 x 3 */
        { .dp = 2, .pp = 2, .n_micro = 3, .zero = 1, .schedule = "zb" },
        { .dp = 1, .pp = 4, .n_micro = 6, .schedule = "zb" },
        { .dp = 2, .pp = 2, .n_micro = 4, .zero = 2, .schedule = "zb" },
        { .dp = 1, .pp = 4, .n_micro = 7 },
        { .dp = 2, .pp = 2, .n_micro = 4, .zero = 1, .schedule = "interleaved", .chunks = 2 },
        { .dp = 4, .pp = 2, .n_micro = 2, .zero = 2, .schedule = "gpipe", .dtype = TR_BF16 },
    };
    for (size_t i = 0; i < TR_COUNT_OF(rows); i++)
        for (int model = LLAMA; model <= (i % 2 ? GPT2 : QWEN); model++) {
            struct layout l = rows[i];
            l.model = model;
            l.in_order = true;
            expect_same(l, true);
        }
    struct layout l = {
        .model = GPT2, .pp = 1, .dp = 2, .schedule = "1f1b", .chunks = 1, .n_micro = 2, .in_order = true
    };
    fill_ones(&l);
    assert_int_equal(run_layout(l, true, NO_REDUCE), 3);
    assert_int_equal(run_layout(l, true, NO_TREE_ADD), 3);
}

static void planted_bugs_are_seen(void **state)
{
    (void)state;
    struct layout l = { .model = GPT2, .pp = 2, .dp = 1, .schedule = "1f1b", .chunks = 1, .n_micro = 2 };
    fill_ones(&l);
    assert_int_equal(run_layout(l, false, NO_TIE), 3);
    assert_int_equal(run_layout(l, false, EARLY_RECV), 3);
    l.dp = 2;
    assert_int_equal(run_layout(l, false, NO_REDUCE), 3);
    assert_int_equal(run_layout(l, false, NOTHING), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_pipeline_alone_changes_no_bit),      cmocka_unit_test(tied_embeddings_live_on_two_stages),
        cmocka_unit_test(zero_and_replicas_work_inside_stages), cmocka_unit_test(gradients_may_travel_narrow),
        cmocka_unit_test(in_order_no_layout_changes_a_bit),     cmocka_unit_test(planted_bugs_are_seen),
    };
    int code = cmocka_run_group_tests(tests, NULL, NULL);
    printf("%d layouts compared with one rank\n", n_layouts);
    return code;
}
