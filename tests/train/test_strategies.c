/* test_strategies.c - every strategy, and what they make together, trains the model of one rank: real ranks, on the
 * device that TR_TEST_DEVICE names (cuda: ranks share the GPU and talk by NCCL). One process runs all layouts of its
 * number of ranks, so that a device is started once. "in order" means the same bits; the rest stays within the rounding
 * of sums in another order. Where no device is named other tests do the same at length, and every fourth row runs. */
#include "comm/ranks.h"
#include "parallel/legal.h"
#include "train/train.h"
#include <math.h>
#include <sys/mman.h>

enum { ROWS = 2, LENGTH = 16, N_TOKENS = ROWS * LENGTH, VOCAB = 64, N_STEPS = 3, N_MICRO = 4, MAX_ELEMENTS = 1 << 17 };

static const char *const configs[] = {
    "{\"model_type\":\"llama\",\"vocab_size\":320,\"hidden_size\":32,\"intermediate_size\":64,\"num_hidden_layers\":4,"
    "\"num_attention_heads\":4,\"num_key_value_heads\":2}",
    "{\"model_type\":\"gpt2\",\"vocab_size\":323,\"n_embd\":32,\"n_layer\":4,\"n_head\":4,\"n_positions\":16}",
};
enum { N_MODELS = TR_COUNT_OF(configs) };

enum kind { PLAIN, IN_ORDER, BF16, F16, N_KINDS };
enum { LOSS_SCALE = 1 << 12 }; /* of float16 */

#define RING    TR_CP_RING
#define ULYSSES TR_CP_ULYSSES
static const struct layout {
    int axis[TR_AXES]; /* pp, dp, shard, cp, tp */
    int zero;
    enum kind kind;
    const char *schedule;
    int chunks;
    bool sp;
    enum tr_cp_mode cp_mode;
    bool sync_last;
    enum tr_recompute recompute;
} layouts[] = {
    /* data parallel, ZeRO 1 to 3, hybrid */
    { { 1, 2, 1, 1, 1 }, .zero = 0 },
    { { 1, 1, 2, 1, 1 }, .zero = 1 },
    { { 1, 1, 2, 1, 1 }, .zero = 2 },
    { { 1, 1, 2, 1, 1 }, .zero = 3, .recompute = TR_RECOMPUTE_BLOCK },
    { { 1, 4, 1, 1, 1 }, .zero = 0 },
    { { 1, 1, 4, 1, 1 }, .zero = 1 },
    { { 1, 1, 4, 1, 1 }, .zero = 2 },
    { { 1, 1, 4, 1, 1 }, .zero = 3 },
    { { 1, 2, 2, 1, 1 }, .zero = 1 },
    { { 1, 2, 2, 1, 1 }, .zero = 3, .recompute = TR_RECOMPUTE_OP },
    { { 1, 1, 2, 1, 1 }, .zero = 2, .sync_last = true },
    { { 1, 1, 2, 1, 1 }, .zero = 3, .sync_last = true },
    { { 1, 2, 2, 1, 1 }, .zero = 3, .sync_last = true },
    /* tensor and sequence parallel */
    { { 1, 1, 1, 1, 2 }, .zero = 0 },
    { { 1, 1, 1, 1, 2 }, .sp = true },
    { { 1, 1, 1, 1, 4 }, .recompute = TR_RECOMPUTE_OP },
    { { 1, 1, 1, 1, 4 }, .sp = true },
    /* pipelines */
    { { 2, 1, 1, 1, 1 }, .schedule = "gpipe" },
    { { 2, 1, 1, 1, 1 }, .schedule = "1f1b" },
    { { 2, 1, 1, 1, 1 }, .schedule = "zb" },
    { { 2, 1, 1, 1, 1 }, .schedule = "interleaved", .chunks = 2 },
    { { 4, 1, 1, 1, 1 }, .schedule = "gpipe" },
    { { 4, 1, 1, 1, 1 }, .schedule = "1f1b", .recompute = TR_RECOMPUTE_BLOCK },
    { { 4, 1, 1, 1, 1 }, .schedule = "zb" },
    /* context parallel */
    { { 1, 1, 1, 2, 1 }, .cp_mode = ULYSSES },
    { { 1, 1, 1, 2, 1 }, .cp_mode = RING },
    { { 1, 1, 1, 4, 1 }, .cp_mode = ULYSSES },
    { { 1, 1, 1, 4, 1 }, .cp_mode = RING, .recompute = TR_RECOMPUTE_BLOCK },
    /* together */
    { { 1, 2, 1, 1, 2 }, .zero = 0 },
    { { 1, 1, 2, 1, 2 }, .zero = 1, .sp = true },
    { { 1, 1, 2, 1, 2 }, .zero = 2 },
    { { 1, 1, 2, 1, 2 }, .zero = 3, .sp = true },
    { { 2, 2, 1, 1, 1 }, .schedule = "1f1b" },
    { { 2, 1, 2, 1, 1 }, .schedule = "zb", .zero = 1 },
    { { 2, 1, 2, 1, 1 }, .schedule = "interleaved", .chunks = 2, .zero = 2 },
    { { 2, 1, 2, 1, 1 }, .schedule = "1f1b", .zero = 3 },
    { { 2, 1, 2, 1, 1 }, .schedule = "zb", .zero = 2, .sync_last = true },
    { { 2, 1, 1, 1, 2 }, .schedule = "1f1b" },
    { { 2, 1, 1, 1, 2 }, .schedule = "zb", .sp = true, .recompute = TR_RECOMPUTE_OP },
    { { 1, 1, 2, 2, 1 }, .zero = 3, .cp_mode = ULYSSES },
    { { 1, 1, 2, 2, 1 }, .zero = 2, .cp_mode = RING },
    { { 1, 1, 1, 2, 2 }, .sp = true, .cp_mode = ULYSSES },
    { { 1, 1, 1, 2, 2 }, .sp = true, .cp_mode = RING },
    { { 2, 1, 1, 2, 1 }, .schedule = "1f1b", .cp_mode = ULYSSES },
    /* bf16 */
    { { 1, 1, 2, 1, 1 }, .zero = 3, .kind = BF16 },
    { { 1, 1, 1, 1, 2 }, .sp = true, .kind = BF16 },
    { { 2, 1, 1, 1, 1 }, .schedule = "1f1b", .kind = BF16 },
    { { 1, 1, 1, 2, 1 }, .cp_mode = RING, .kind = BF16 },
    { { 1, 1, 2, 1, 2 }, .zero = 2, .kind = BF16 },
    { { 2, 1, 2, 1, 1 }, .schedule = "zb", .zero = 1, .kind = BF16 },
    /* float16 */
    { { 1, 1, 2, 1, 1 }, .zero = 3, .kind = F16 },
    { { 1, 1, 1, 1, 2 }, .sp = true, .kind = F16 },
    { { 2, 1, 2, 1, 1 }, .schedule = "1f1b", .zero = 1, .kind = F16 },
    /* the same bits */
    { { 1, 2, 1, 1, 1 }, .kind = IN_ORDER },
    { { 1, 1, 2, 1, 1 }, .zero = 1, .kind = IN_ORDER },
    { { 1, 1, 2, 1, 1 }, .zero = 2, .kind = IN_ORDER },
    { { 1, 1, 2, 1, 1 }, .zero = 3, .kind = IN_ORDER, .recompute = TR_RECOMPUTE_BLOCK },
    { { 2, 1, 1, 1, 1 }, .schedule = "1f1b", .kind = IN_ORDER },
    { { 2, 1, 1, 1, 1 }, .schedule = "interleaved", .chunks = 2, .kind = IN_ORDER },
    { { 1, 4, 1, 1, 1 }, .kind = IN_ORDER },
    { { 1, 1, 4, 1, 1 }, .zero = 2, .kind = IN_ORDER },
    { { 1, 1, 4, 1, 1 }, .zero = 3, .kind = IN_ORDER },
    { { 1, 2, 2, 1, 1 }, .zero = 3, .kind = IN_ORDER },
    { { 4, 1, 1, 1, 1 }, .schedule = "1f1b", .kind = IN_ORDER },
    { { 2, 2, 1, 1, 1 }, .schedule = "gpipe", .kind = IN_ORDER },
    { { 2, 1, 2, 1, 1 }, .schedule = "1f1b", .zero = 1, .kind = IN_ORDER },
};

/* What one rank made of each model: shared with the ranks that are compared with it. */
struct reference {
    double loss, norm;
    float start[MAX_ELEMENTS], end[MAX_ELEMENTS];
};
static struct reference (*references)[N_KINDS];
static int only_model = -1;

struct run {
    const struct tr_comm_env *env; /* NULL: alone */
    struct tr_model *m;
    struct tr_compiled *c;
    struct tr_device dev;
    struct tr_pool *pool;
    struct tr_mesh *mesh;
    struct tr_exec *e;
    int32_t tokens[N_MICRO][4][N_TOKENS];
    int64_t sample[N_MICRO][N_TOKENS];
    struct tr_batch micro[N_MICRO];
    double loss, norm;
};

static const char *device_name(void)
{
    const char *name = getenv("TR_TEST_DEVICE");
    return name ? name : "cpu";
}

static bool is_cuda(void)
{
    return strcmp(device_name(), "cuda") == 0;
}

/* Micro-batch `number` of a step: two documents a row. */
static void fill(struct run *r, int i, int step, int number)
{
    int32_t(*t)[N_TOKENS] = r->tokens[i];
    r->micro[i] = (struct tr_batch){ t[0], t[1], t[2], t[3], r->sample[i] };
    for (int k = 0; k < N_TOKENS; k++) {
        int at = k % LENGTH, begin = at < 9 ? 0 : 9;
        uint32_t x = (uint32_t)(k + N_TOKENS * (number + N_MICRO * step)) * 2654435761u;
        t[0][k] = (int32_t)(x >> 16) % VOCAB;
        t[1][k] = at == 8 || at == LENGTH - 1 ? TR_TARGET_NONE : (int32_t)((x >> 8) % VOCAB);
        t[2][k] = at - begin;
        t[3][k] = k / LENGTH * LENGTH + begin;
        r->sample[i][k] = number * ROWS + k / LENGTH;
    }
}

static struct tr_layout layout_of(const struct layout *l, int rank)
{
    struct tr_layout x = { .cp_mode = l->cp_mode, .sp = l->sp, .zero = l->zero };
    x.in_order = l->kind == IN_ORDER;
    x.sync_last = l->sync_last;
    memcpy(x.size, l->axis, sizeof x.size);
    tr_mesh_coords(rank, l->axis, x.coord);
    x.shard_size = x.size[TR_AXIS_SHARD];
    x.shard_rank = x.coord[TR_AXIS_SHARD];
    x.data_size = x.size[TR_AXIS_DP] * x.shard_size;
    x.data_rank = x.coord[TR_AXIS_DP] * x.shard_size + x.shard_rank;
    return x;
}

/* Gradient descent without momentum. */
static const struct tr_optim plain_sgd = { .name = "sgd", .n_phases = 1, .phase = { { .op = TR_OP_SGD } } };

static void open_run(struct run *r, int model, const struct layout *l, struct tr_comm_env *env)
{
    cJSON *j = NULL;
    struct tr_layout layout = layout_of(l, env ? env->rank : 0);
    struct tr_model_options mo = { .rows = ROWS, .sequence_length = LENGTH, .dropout = 0.1 };
    struct tr_compile_options opt = { .compute_dtype = l->kind == BF16  ? TR_BF16
                                                       : l->kind == F16 ? TR_F16
                                                                        : TR_F32,
                                      .grad_dtype = TR_F32,
                                      .master_dtype = TR_F32,
                                      .optim = &plain_sgd,
                                      .layout = layout,
                                      .pp_schedule = l->schedule ? l->schedule : "1f1b",
                                      .pp_chunks = l->chunks ? l->chunks : 1,
                                      .n_micro = N_MICRO / layout.data_size,
                                      .recompute = l->recompute,
                                      .n_threads = 1,
                                      .column = tr_column_of(device_name()),
                                      .has_own_memory = is_cuda(),
                                      .fuses = true,
                                      .batch_bytes = is_cuda() ? tr_batch_bytes(N_TOKENS) : 0,
                                      .save_bytes = TR_IO_CHUNK * sizeof(float) };
    CHECK_OK(tr_json_parse(configs[model], strlen(configs[model]), "config.json", &j));
    CHECK_OK(tr_model_from_json(j, &mo, &r->m));
    CHECK(r->m->n_elements <= MAX_ELEMENTS);
    CHECK_OK(tr_compile((const struct tr_model *[TR_PURPOSES]){ r->m }, &opt, &r->c));
    CHECK_OK(tr_device_open(device_name(), &r->dev));
    if (env) {
        struct tr_comm_env here = *env;
        here.arena_bytes = tr_exec_shared_bytes(r->c);
        here.device = &r->dev;
        env->generation++; /* a meeting place of its own */
        CHECK_OK(tr_mesh_open("shm", &here, l->axis, &r->mesh));
    }
    CHECK_OK(tr_pool_open(1, &r->pool));
    CHECK_OK(tr_exec_open(r->c, &r->dev, r->pool, r->mesh, 7, &r->e));
    CHECK(r->dev.reserved_bytes == tr_compiled_bytes(r->c));
}

static void close_run(struct run *r)
{
    tr_exec_close(r->e);
    tr_mesh_close(r->mesh);
    tr_device_close(&r->dev);
    tr_pool_close(r->pool);
    tr_compiled_close(r->c);
    tr_model_close(r->m);
    *r = (struct run){ 0 };
}

/* Plain gradient descent: what a gradient is off by, a weight is off by as much. */
static void train(struct run *r)
{
    const struct tr_config cfg = {
        .optim = TR_OPTIM_SGD, .learning_rate = 0.05, .max_grad_norm = 0.5, .lr_scheduler_type = TR_LR_CONSTANT
    };
    const int64_t n_targets = (int64_t)N_MICRO * (N_TOKENS - 2 * ROWS);
    int n_micro = r->c->opt.n_micro, first = r->c->opt.layout.data_rank * n_micro;
    struct tr_store store = tr_exec_store(r->e);
    struct tr_step_result s;
    CHECK_OK(tr_load_random(&store, 3, r->pool, (float *)(void *)tr_exec_arena(r->e, TR_A_SAVE)));
    for (int step = 0; step < N_STEPS; step++) {
        float values[TR_STEP_COUNT];
        for (int i = 0; i < n_micro; i++)
            fill(r, i, step, first + i);
        tr_step_values(&cfg, step, N_STEPS, n_targets, values);
        if (r->c->opt.compute_dtype == TR_F16)
            tr_step_scale(&cfg, step, LOSS_SCALE, 0, values);
        CHECK_OK(tr_exec_step(r->e, &cfg, r->micro, values, &s));
    }
    r->loss = s.loss_sum / (double)n_targets;
    r->norm = s.grad_norm;
}

/* This rank's elements [*first, *first + *n) of a parameter's weights, in host memory. */
static float *weights_of(struct run *r, int param, int64_t *first, int64_t *n)
{
    enum tr_state what = tr_exec_has(r->e, TR_S_MASTER) ? TR_S_MASTER : TR_S_VALUE;
    CHECK_OK(tr_exec_drain(r->e));
    const char *at = tr_exec_at(r->e, what, param, first, n);
    float *copy = calloc((size_t)*n + 1, sizeof *copy);
    CHECK(copy);
    if (*n)
        tr_device_copy_now(&r->dev, copy, at + (size_t)*first * sizeof *copy, (size_t)*n * sizeof *copy);
    CHECK_OK(tr_device_sync(&r->dev, TR_STREAM_COMPUTE));
    return copy;
}

/* Sums of the same terms in another order: n terms of relative error 2^-24 each, over tokens or over the columns of a
 * product; a step multiplies what the one before left, and the loss is as smooth as a few layers are: a factor of 8
 * covers both. bf16 rounds activations, and partial sums of ranks once more: 2^-8 of a weight's move; float16 2^-11. */
static double bound(const struct layout *l)
{
    double rounding = l->kind == BF16 ? 0x1p-8 : l->kind == F16 ? 0x1p-11 : (double)N_MICRO * N_TOKENS * 0x1p-24;
    return 8 * N_STEPS * rounding;
}

/* ---- one rank alone ---- */

static void make_reference(struct run *r, int model, enum kind kind)
{
    struct layout alone = { .axis = { 1, 1, 1, 1, 1 }, .kind = kind };
    struct reference *ref = &references[model][kind];
    open_run(r, model, &alone, NULL);
    train(r);
    ref->loss = r->loss;
    ref->norm = r->norm;
    int64_t at = 0, first, n;
    for (int i = 0; i < r->m->n_params; at += r->m->param[i++].n) {
        float *w = weights_of(r, i, &first, &n);
        CHECK(first == 0 && n == r->m->param[i].n);
        memcpy(ref->end + at, w, (size_t)n * sizeof *w);
        tr_model_init_param(r->m, i, 3, 0, n, NULL, ref->start + at);
        free(w);
    }
    close_run(r);
}

static void as_one(const struct tr_comm_env *env, void *ctx)
{
    static struct run r;
    (void)env;
    (void)ctx;
    for (int model = 0; model < N_MODELS; model++)
        for (int kind = 0; kind < N_KINDS; kind++)
            make_reference(&r, model, (enum kind)kind);
    for (int model = 0; model < N_MODELS; model++)
        for (int kind = IN_ORDER; kind < N_KINDS; kind++) { /* what they are compared with is right itself */
            struct layout l = { .kind = (enum kind)kind };
            double plain = references[model][PLAIN].norm, norm = references[model][kind].norm;
            CHECK(fabs(norm - plain) <= bound(&l) * plain);
        }
}

/* ---- ranks ---- */

static double distance(struct run *r, const struct reference *ref, bool *is_same)
{
    double diff = 0, moved = 0;
    int64_t at = 0, first, n, local, len;
    *is_same = true;
    for (int i = 0; i < r->m->n_params; at += r->m->param[i++].n) {
        float *w = weights_of(r, i, &first, &n);
        for (int64_t k = 0; n > 0 && k < r->m->param[i].n &&
                            (len = tr_tp_run(&r->c->place.param[i].tp, &k, r->m->param[i].n, &local)) > 0;
             k += len)
            for (int64_t x = 0; x < len; x++) {
                if (local + x < first || local + x >= first + n)
                    continue;
                float got = w[local + x - first], want = ref->end[at + k + x];
                double d = (double)got - (double)want, m = (double)want - (double)ref->start[at + k + x];
                diff += d * d;
                moved += m * m;
                *is_same = *is_same && memcmp(&got, &want, sizeof got) == 0;
            }
        free(w);
    }
    return moved > 0 ? sqrt(diff / moved) : sqrt(diff);
}

static bool is_legal(int model, const struct layout *l)
{
    struct tr_model *m = NULL;
    cJSON *j = NULL;
    struct tr_model_options mo = { .rows = ROWS, .sequence_length = LENGTH, .dropout = -1 };
    CHECK_OK(tr_json_parse(configs[model], strlen(configs[model]), "config.json", &j));
    CHECK_OK(tr_model_from_json(j, &mo, &m));
    struct tr_legal_query q = tr_legal_mesh(m, l->axis);
    q.sp = l->sp, q.cp_mode = l->cp_mode, q.pp_chunks = l->chunks ? l->chunks : 1;
    q.n_micro = N_MICRO / l->axis[TR_AXIS_DP] / l->axis[TR_AXIS_SHARD];
    bool is_good = tr_legal_check(&q) == TR_OK;
    tr_error_clear();
    tr_model_close(m);
    return is_good;
}

static bool one_layout(struct run *r, int model, const struct layout *l, struct tr_comm_env *env)
{
    const struct reference *ref = &references[model][l->kind];
    bool is_same = false;
    open_run(r, model, l, env);
    train(r);
    double d = distance(r, ref, &is_same), most = bound(l);
    bool is_near =
        d <= most && fabs(r->loss - ref->loss) <= most * ref->loss && fabs(r->norm - ref->norm) <= most * ref->norm;
    if (l->kind == IN_ORDER)
        is_near = is_same && memcmp(&r->loss, &ref->loss, sizeof r->loss) == 0 && r->norm == ref->norm;
    if (!is_near || getenv("TR_TEST_VERBOSE"))
        fprintf(stderr,
                "rank %d, model %d: pp %d %s dp %d shard %d zero %d cp %d tp %d%s%s: off by %.3g of %.3g, loss %.17g "
                "for %.17g, norm %.17g for %.17g%s\n",
                env->rank, model, l->axis[0], l->schedule ? l->schedule : "", l->axis[1], l->axis[2], l->zero,
                l->axis[3], l->axis[4], l->sp ? " sp" : "", l->kind == IN_ORDER ? " in order" : "", d, most, r->loss,
                ref->loss, r->norm, ref->norm, is_near ? "" : " FAILED");
    close_run(r);
    return is_near;
}

static void as_rank(const struct tr_comm_env *env, void *ctx)
{
    static struct run r;
    struct tr_comm_env here = *env;
    int n = 0, n_exact = 0, n_bad = 0;
    (void)ctx;
    for (int model = 0; model < N_MODELS; model++)
        for (size_t i = 0; i < TR_COUNT_OF(layouts); i++) {
            const struct layout *l = &layouts[i];
            int ranks = 1;
            for (int a = 0; a < TR_AXES; a++)
                ranks *= l->axis[a];
            if (ranks != env->size || (only_model >= 0 && model != only_model) ||
                (!getenv("TR_TEST_DEVICE") && (i + (size_t)model) % 4 != 0) || !is_legal(model, l))
                continue;
            n++;
            n_exact += l->kind == IN_ORDER;
            n_bad += !one_layout(&r, model, l, &here);
        }
    if (env->rank == 0)
        printf("%s: %d layouts of %d ranks train as one rank does, %d of them bit for bit; %d do not\n", device_name(),
               n - n_bad, env->size, n_exact, n_bad);
    fflush(stdout);
    CHECK(n > 0 && n_bad == 0);
}

static void two_ranks_train_as_one(void **state)
{
    (void)state;
    run_ranks(2, as_rank, NULL);
}

static void four_ranks_train_as_one(void **state)
{
    (void)state;
    run_ranks(4, as_rank, NULL);
}

/* test_strategies [RANKS [MODEL]]: a part of it. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_ranks_train_as_one),
        cmocka_unit_test(four_ranks_train_as_one),
    };
    references = mmap(NULL, N_MODELS * sizeof *references, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (references == MAP_FAILED)
        return 1;
    run_ranks(1, as_one, NULL); /* in a process of its own: a GPU does not survive a fork */
    if (argc > 2)
        only_model = (int)strtol(argv[2], NULL, 10);
    if (argc > 1) {
        run_ranks((int)strtol(argv[1], NULL, 10), as_rank, NULL);
        return 0;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
