/* A pipeline trains the model of one rank: every schedule, ZeRO stage, recompute and accumulation, on models with and
 * without tied embeddings. Without ties a pipeline alone changes no bit; what sums in another order stays within the
 * rounding of that sum. Bugs planted in the schedule are seen. */
#include "comm/ranks.h"
#include "train/train.h"
#include <math.h>

enum { ROWS = 2, LENGTH = 16, N_TOKENS = ROWS * LENGTH, VOCAB = 64, N_STEPS = 3, MAX_MICRO = 8 };

static const char *const configs[] = {
    "{\"model_type\":\"llama\",\"vocab_size\":320,\"hidden_size\":32,\"intermediate_size\":48,\"num_hidden_layers\":4,"
    "\"num_attention_heads\":4,\"num_key_value_heads\":2}",
    "{\"model_type\":\"gpt2\",\"vocab_size\":320,\"n_embd\":32,\"n_layer\":3,\"n_head\":4,\"n_positions\":16}",
    "{\"model_type\":\"qwen3\",\"vocab_size\":64,\"hidden_size\":32,\"intermediate_size\":48,\"num_hidden_layers\":3,"
    "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":8,\"tie_word_embeddings\":true}",
};
enum { LLAMA, GPT2, QWEN, N_MODELS };

struct layout {
    int model, pp, dp, zero, shard; /* shard: ranks that share a copy; 0 = all dp */
    const char *schedule;
    int chunks, n_micro;
    enum tr_recompute recompute;
    enum tr_dtype dtype;
    bool in_order;
};

enum plant { NOTHING, NO_TIE, NO_REDUCE, NO_FOLD, EARLY_RECV };

/* ---- one rank ---- */

struct run {
    struct tr_model *m;
    struct tr_compiled *c;
    struct tr_device dev;
    struct tr_pool *pool;
    struct tr_exec *e;
    int32_t tokens[MAX_MICRO][4][N_TOKENS];
    int64_t sample[MAX_MICRO][N_TOKENS];
    struct tr_batch micro[MAX_MICRO];
    double loss, norm;
};

/* Micro-batch `number` of a step: two documents a row. */
static void fill(struct run *r, int i, int step, int number)
{
    int32_t(*t)[N_TOKENS] = r->tokens[i];
    r->micro[i] = (struct tr_batch){ t[0], t[1], t[2], t[3], r->sample[i] };
    for (int k = 0; k < N_TOKENS; k++) {
        int at = k % LENGTH, begin = at < 9 ? 0 : 9;
        uint32_t x = (uint32_t)(k + N_TOKENS * (number + MAX_MICRO * step)) * 2654435761u;
        t[0][k] = (int32_t)(x >> 16) % VOCAB;
        t[1][k] = at == 8 || at == LENGTH - 1 ? TR_TARGET_NONE : (int32_t)((x >> 8) % VOCAB);
        t[2][k] = at - begin;
        t[3][k] = k / LENGTH * LENGTH + begin;
        r->sample[i][k] = number * ROWS + k / LENGTH;
    }
}

static void open_run(struct run *r, const struct layout *l, const struct tr_compile_options *opt)
{
    cJSON *j = NULL;
    struct tr_model_options mo = { .rows = ROWS, .sequence_length = LENGTH, .dropout = 0.1 };
    CHECK_OK(tr_json_parse(configs[l->model], strlen(configs[l->model]), "config.json", &j));
    CHECK_OK(tr_model_from_json(j, &mo, &r->m));
    CHECK_OK(tr_compile(r->m, NULL, NULL, opt, &r->c));
}

static struct tr_compile_options options(const struct layout *l)
{
    return (struct tr_compile_options){ .compute_dtype = l->dtype,
                                        .grad_dtype = TR_F32,
                                        .master_dtype = TR_F32,
                                        .moment_dtype = TR_F32,
                                        .n_micro = l->n_micro,
                                        .recompute = l->recompute,
                                        .n_threads = 1,
                                        .save_bytes = TR_IO_CHUNK * sizeof(float) };
}

/* Random weights through the store, as `train --from_scratch` does; plain gradient descent: what a gradient is off by,
 * a weight is off by as much, whatever its size. */
static void train(struct run *r, struct tr_mesh *mesh, int first_micro, int n_micro, int n_global)
{
    const struct tr_config cfg = {
        .optim = TR_OPTIM_SGD, .learning_rate = 0.05, .max_grad_norm = 0.5, .lr_scheduler_type = TR_LR_CONSTANT
    };
    int64_t n_targets = (int64_t)n_global * (N_TOKENS - 2 * ROWS);
    float values[TR_STEP_COUNT];
    struct tr_step_result s;
    CHECK_OK(tr_pool_open(1, &r->pool));
    CHECK_OK(tr_device_open("cpu", &r->dev));
    CHECK_OK(tr_exec_open(r->c, &r->dev, r->pool, mesh, 7, &r->e));
    CHECK(r->dev.reserved_bytes == tr_compiled_bytes(r->c));
    struct tr_store store = tr_exec_store(r->e);
    CHECK_OK(tr_load_random(&store, 3, r->pool, (float *)(void *)r->e->base[TR_A_SAVE]));
    for (int step = 0; step < N_STEPS; step++) {
        for (int i = 0; i < n_micro; i++)
            fill(r, i, step, first_micro + i);
        tr_step_values(&cfg, step, N_STEPS, n_targets, values);
        CHECK_OK(tr_exec_step(r->e, &cfg, r->micro, values, &s));
    }
    r->loss = s.loss_sum / (double)n_targets;
    r->norm = s.grad_norm;
}

static void close_run(struct run *r)
{
    tr_exec_close(r->e);
    tr_pool_close(r->pool);
    tr_compiled_close(r->c);
    tr_model_close(r->m);
}

/* ---- compared with one rank ---- */

struct job {
    struct layout l;
    struct run one; /* the same global batch on one rank */
    float *start;   /* its weights before the first step, parameter after parameter */
    bool is_exact;
    enum plant plant;
};

static enum tr_state weights(const struct tr_exec *e)
{
    return tr_exec_has(e, TR_S_MASTER) ? TR_S_MASTER : TR_S_VALUE;
}

/* How far the weights of this rank are from those of one rank, as a share of how far they moved. */
static double distance(const struct job *j, const struct run *r, bool *is_same)
{
    double diff = 0, moved = 0;
    int64_t at = 0;
    *is_same = true;
    for (int i = 0; i < r->m->n_params; at += r->m->param[i++].n) {
        int64_t first = 0, n = 0, all = 0, zero = 0;
        const float *a = (const float *)(void *)tr_exec_at(r->e, weights(r->e), i, &first, &n);
        const float *b = (const float *)(void *)tr_exec_at(j->one.e, weights(j->one.e), i, &zero, &all);
        for (int64_t k = first; k < first + n; k++) {
            double d = (double)a[k] - (double)b[k], m = (double)b[k] - (double)j->start[at + k];
            diff += d * d;
            moved += m * m;
        }
        *is_same = *is_same && (n == 0 || memcmp(a + first, b + first, (size_t)n * sizeof *a) == 0);
    }
    return moved > 0 ? sqrt(diff / moved) : sqrt(diff);
}

/* Sums of the same terms in another order: n terms of relative error 2^-24 each; a step multiplies what the one before
 * left, and the loss is as smooth as a few layers are: a factor of 8 covers both. bf16 rounds every activation alike on
 * all layouts, so that its error is that of the weights it is given, whose last bit may flip: 2^-8 of a weight's move.
 */
static double bound(const struct layout *l)
{
    double terms = (double)l->dp * l->n_micro * N_TOKENS;
    return 8 * N_STEPS * (l->dtype == TR_BF16 ? 0x1p-8 : terms * 0x1p-24);
}

static void plant_bug(struct tr_compiled *c, enum plant plant)
{
    int n = 0;
    static const enum tr_action_kind kinds[] = {
        [NOTHING] = TR_ACTION_KINDS, [NO_TIE] = TR_DO_TIE,           [NO_REDUCE] = TR_DO_REDUCE,
        [NO_FOLD] = TR_DO_FOLD,      [EARLY_RECV] = TR_ACTION_KINDS,
    };
    enum tr_action_kind gone = kinds[plant];
    for (int i = 0; i < c->train.n_actions; i++) {
        c->train.action[n] = c->train.action[i];
        n += c->train.action[i].kind != gone;
    }
    c->train.n_actions = n;
    for (int i = 0; plant == EARLY_RECV && i < n; i++) /* the receiver looks in the wrong place */
        if (c->train.action[i].kind == TR_DO_RECV)
            c->train.action[i].out += 64;
}

static void rank_main(const struct tr_comm_env *env, void *ctx)
{
    struct job *j = ctx;
    const struct layout *l = &j->l;
    struct run *r = calloc(1, sizeof *r);
    CHECK(r);
    struct tr_compile_options opt = options(l);
    int shard = l->zero ? (l->shard ? l->shard : l->dp) : 1;
    int size[TR_AXES] = { l->pp, l->dp / shard, shard, 1, 1 }, coord[TR_AXES];
    tr_mesh_coords(env->rank, size, coord);
    int data_rank = coord[TR_AXIS_DP] * shard + coord[TR_AXIS_SHARD];
    opt.layout = (struct tr_layout){ .data_size = l->dp,
                                     .data_rank = data_rank,
                                     .shard_size = shard,
                                     .shard_rank = coord[TR_AXIS_SHARD],
                                     .zero = l->zero,
                                     .in_order = l->in_order };
    memcpy(opt.layout.size, size, sizeof size);
    memcpy(opt.layout.coord, coord, sizeof coord);
    opt.pp_schedule = l->schedule;
    opt.pp_chunks = l->chunks;
    open_run(r, l, &opt);
    plant_bug(r->c, j->plant);
    struct tr_comm_env with_arena = *env;
    struct tr_mesh *mesh = NULL;
    with_arena.arena_bytes = tr_exec_shared_bytes(r->c);
    CHECK_OK(tr_mesh_open("shm", &with_arena, size, &mesh));
    train(r, mesh, data_rank * l->n_micro, l->n_micro, l->dp * l->n_micro);
    bool is_same = false;
    double d = distance(j, r, &is_same), most = bound(l);
    bool is_near = d <= most && fabs(r->loss - j->one.loss) <= most * j->one.loss &&
                   fabs(r->norm - j->one.norm) <= most * j->one.norm;
    if (j->is_exact)
        is_near = is_same && memcmp(&r->loss, &j->one.loss, sizeof r->loss) == 0 && r->norm == j->one.norm;
    if (!is_near && !j->plant)
        fprintf(stderr, "rank %d: off by %.3g of %.3g, loss %.17g for %.17g, norm %.17g for %.17g\n", env->rank, d,
                most, r->loss, j->one.loss, r->norm, j->one.norm);
    int code = is_near ? 0 : 3;
    close_run(r);
    tr_mesh_close(mesh);
    free(r);
    _exit(code);
}

/* One rank, all micro-batches; `start` gets its weights before the first step. */
static void train_one(struct job *j)
{
    struct layout l = j->l;
    l.n_micro *= l.dp;
    l.recompute = TR_RECOMPUTE_NONE;
    struct tr_compile_options opt = options(&l);
    opt.layout = (struct tr_layout){ .data_size = 1, .shard_size = 1, .in_order = l.in_order };
    open_run(&j->one, &l, &opt);
    j->start = calloc((size_t)j->one.m->n_elements, sizeof *j->start);
    assert_non_null(j->start);
    int64_t at = 0;
    for (int i = 0; i < j->one.m->n_params; at += j->one.m->param[i++].n)
        tr_model_init_param(j->one.m, i, 3, 0, j->one.m->param[i].n, NULL, j->start + at);
    train(&j->one, NULL, 0, l.n_micro, l.n_micro);
}

static int n_layouts;

/* 0: all ranks agree with one rank; 3: some do not. */
static int run_layout(struct layout l, bool is_exact, enum plant plant)
{
    static struct job j;
    char job[64];
    pid_t pids[N_RANKS_MAX];
    int worst = 0, size = l.pp * l.dp;
    j = (struct job){ .l = l, .is_exact = is_exact, .plant = plant };
    train_one(&j);
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
    close_run(&j.one);
    free(j.start);
    n_layouts++;
    return worst;
}

static void expect_same(struct layout l, bool is_exact)
{
    l.dp = l.dp ? l.dp : 1;
    l.chunks = l.chunks ? l.chunks : 1;
    if (run_layout(l, is_exact, NOTHING) != 0)
        fail_msg("%s pp %d %s chunks %d dp %d zero %d, %d micro-batches, recompute %d, %s", configs[l.model], l.pp,
                 l.schedule, l.chunks, l.dp, l.zero, l.n_micro, (int)l.recompute, tr_dtype_name(l.dtype));
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
        { .dp = 3, .pp = 1, .n_micro = 2, .zero = 3 }, /* a tree of 6 */
        { .dp = 5, .pp = 1, .n_micro = 1 },
        { .dp = 1, .pp = 4, .n_micro = 7 },
        { .dp = 2, .pp = 2, .n_micro = 4, .zero = 1, .schedule = "interleaved", .chunks = 2 },
        { .dp = 4, .pp = 2, .n_micro = 2, .zero = 2, .schedule = "gpipe", .dtype = TR_BF16 },
    };
    for (size_t i = 0; i < TR_COUNT_OF(rows); i++)
        for (int model = LLAMA; model <= (i % 2 ? GPT2 : QWEN); model++) {
            struct layout l = rows[i];
            l.model = model;
            l.in_order = true;
            l.schedule = l.schedule ? l.schedule : "1f1b";
            expect_same(l, true);
        }
    struct layout l = {
        .model = GPT2, .pp = 1, .dp = 2, .schedule = "1f1b", .chunks = 1, .n_micro = 2, .in_order = true
    };
    assert_int_equal(run_layout(l, true, NO_REDUCE), 3);
    assert_int_equal(run_layout(l, true, NO_FOLD), 3);
}

static void planted_bugs_are_seen(void **state)
{
    (void)state;
    struct layout l = { .model = GPT2, .pp = 2, .dp = 1, .schedule = "1f1b", .chunks = 1, .n_micro = 2 };
    assert_int_equal(run_layout(l, false, NO_TIE), 3);
    assert_int_equal(run_layout(l, false, EARLY_RECV), 3);
    l.dp = 2;
    assert_int_equal(run_layout(l, false, NO_REDUCE), 3);
    assert_int_equal(run_layout(l, false, NOTHING), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_pipeline_alone_changes_no_bit),
        cmocka_unit_test(tied_embeddings_live_on_two_stages),
        cmocka_unit_test(zero_and_replicas_work_inside_stages),
        cmocka_unit_test(in_order_no_layout_changes_a_bit),
        cmocka_unit_test(planted_bugs_are_seen),
    };
    int code = cmocka_run_group_tests(tests, NULL, NULL);
    printf("%d layouts compared with one rank\n", n_layouts);
    return code;
}
