/* test_meshes.c - any layout trains the same model: every golden case on every third mesh below that is legal for it,
 * as real ranks over shared memory, against PyTorch's gradients and weights. A sum over ranks is another order of the
 * same terms, so the bounds are those of one rank. test_matrix.c has all meshes, against one rank. */
#include "comm/ranks.h"
#include "golden_bounds.h"

/* Rows of a table: sizes of pp, dp, shard, cp, tp. The golden batch has two rows, so dp x shard x n_micro divides 2.
 * Rows with cp run in every mode. */
static const struct layout {
    int axis[TR_AXES];
    bool sp;
    int zero, n_micro;
    enum tr_recompute recompute;
} layouts[] = {
    { { 1, 1, 1, 1, 2 }, false, 0, 1, TR_RECOMPUTE_NONE },  { { 1, 1, 1, 1, 2 }, true, 0, 1, TR_RECOMPUTE_NONE },
    { { 1, 1, 1, 1, 2 }, false, 0, 2, TR_RECOMPUTE_OP },    { { 1, 1, 1, 1, 2 }, true, 0, 2, TR_RECOMPUTE_OP },
    { { 1, 1, 1, 1, 2 }, false, 0, 1, TR_RECOMPUTE_BLOCK }, { { 1, 1, 1, 1, 2 }, true, 0, 2, TR_RECOMPUTE_BLOCK },
    { { 1, 1, 1, 1, 4 }, false, 0, 1, TR_RECOMPUTE_NONE },  { { 1, 1, 1, 1, 4 }, true, 0, 2, TR_RECOMPUTE_BLOCK },
    { { 1, 2, 1, 1, 2 }, false, 0, 1, TR_RECOMPUTE_NONE },  { { 1, 2, 1, 1, 2 }, true, 0, 1, TR_RECOMPUTE_OP },
    { { 1, 1, 2, 1, 2 }, false, 1, 1, TR_RECOMPUTE_NONE },  { { 1, 1, 2, 1, 2 }, true, 1, 1, TR_RECOMPUTE_NONE },
    { { 1, 1, 2, 1, 2 }, false, 2, 1, TR_RECOMPUTE_BLOCK }, { { 1, 1, 2, 1, 2 }, true, 2, 1, TR_RECOMPUTE_NONE },
    { { 1, 1, 2, 1, 2 }, false, 3, 1, TR_RECOMPUTE_NONE },  { { 1, 1, 2, 1, 2 }, true, 3, 1, TR_RECOMPUTE_BLOCK },
    { { 2, 1, 1, 1, 2 }, false, 0, 2, TR_RECOMPUTE_NONE },  { { 2, 1, 1, 1, 2 }, true, 0, 2, TR_RECOMPUTE_BLOCK },
    { { 2, 2, 1, 1, 2 }, true, 0, 1, TR_RECOMPUTE_NONE },   { { 2, 1, 2, 1, 2 }, false, 3, 1, TR_RECOMPUTE_OP },
    { { 2, 1, 2, 1, 2 }, true, 2, 1, TR_RECOMPUTE_BLOCK },  { { 2, 1, 1, 1, 4 }, true, 0, 2, TR_RECOMPUTE_NONE },
    { { 1, 1, 2, 1, 4 }, true, 3, 1, TR_RECOMPUTE_OP },     { { 1, 1, 1, 2, 1 }, false, 0, 1, TR_RECOMPUTE_NONE },
    { { 1, 1, 1, 2, 1 }, false, 0, 2, TR_RECOMPUTE_BLOCK }, { { 1, 1, 1, 4, 1 }, false, 0, 1, TR_RECOMPUTE_OP },
    { { 1, 2, 1, 2, 1 }, false, 0, 1, TR_RECOMPUTE_NONE },  { { 1, 1, 2, 2, 1 }, false, 1, 1, TR_RECOMPUTE_NONE },
    { { 1, 1, 2, 2, 1 }, false, 2, 1, TR_RECOMPUTE_OP },    { { 1, 1, 2, 2, 1 }, false, 3, 1, TR_RECOMPUTE_BLOCK },
    { { 1, 1, 1, 2, 2 }, true, 0, 2, TR_RECOMPUTE_NONE },   { { 2, 1, 1, 2, 1 }, false, 0, 2, TR_RECOMPUTE_NONE },
};

struct run {
    const struct tr_comm_env *env;
    int n_cases, n_models;
    bool is_broken; /* a planted bug must show */
};
static struct run run;

static struct rig_shape shape_of(const struct layout *l, enum tr_cp_mode mode, struct tr_comm_env *env)
{
    struct rig_shape s = { .n_micro = l->n_micro, .n_threads = 1, .recompute = l->recompute, .env = env };
    memcpy(s.axis, l->axis, sizeof s.axis);
    s.sp = l->sp;
    s.cp_mode = mode;
    s.zero = l->zero;
    env->generation++; /* a meeting place of its own */
    return s;
}

static int ranks_of(const struct layout *l)
{
    int n = 1;
    for (int a = 0; a < TR_AXES; a++)
        n *= l->axis[a];
    return n;
}

static int64_t row_tokens(const char *dir)
{
    char path[TR_PATH_MAX];
    struct tr_st *st = NULL;
    size_t i = 0;
    must(tr_path_join(path, dir, "golden.safetensors"));
    must(tr_st_open(path, &st));
    CHECK(tr_st_find(st, "tokens", &i));
    int64_t n = tr_st_tensor(st, i)->dims[1];
    tr_st_close(st);
    return n;
}

static bool is_legal(const char *dir, const struct layout *l, enum tr_cp_mode mode)
{
    struct tr_model *m = NULL;
    struct tr_model_options opt = { .rows = 1, .sequence_length = row_tokens(dir), .dropout = -1 };
    must(tr_model_open(dir, &opt, &m));
    struct tr_legal_query q = tr_legal_mesh(m, l->axis);
    q.sp = l->sp, q.cp_mode = mode, q.n_micro = l->n_micro;
    bool is_good = tr_legal_check(&q) == TR_OK;
    tr_error_clear();
    tr_model_close(m);
    return is_good;
}

/* The worst error of this rank's elements of a state, as a share of what is allowed. */
typedef double allowed_fn(const struct rig *r, double want, double grad, double scale, bool is_matrix);

static double allowed_grad(const struct rig *r, double want, double grad, double scale, bool is_matrix)
{
    (void)want;
    (void)grad;
    (void)is_matrix;
    return grad_bound(r) * scale;
}

static double allowed_after(const struct rig *r, double want, double grad, double scale, bool is_matrix)
{
    return after_bound(r, want, grad == 0 && is_matrix ? scale : grad, grad_bound(r) * scale);
}

static double worst_of(const struct rig *r, enum tr_state what, const char *golden, allowed_fn *allowed)
{
    double most = 0;
    for (int i = 0; i < r->model->n_params; i++) {
        const struct tr_param *p = &r->model->param[i];
        double *want = golden_param(&r->g, golden, p), *grad = golden_param(&r->g, "grad", p), scale = grad_scale(r, i);
        int64_t first, n, local, len;
        must(tr_exec_drain(r->exec));
        const float *got = (const float *)(const void *)tr_exec_at(r->exec, what, i, &first, &n);
        if (what == TR_S_GRAD) { /* the sum is its owner's */
            first = r->compiled->place.param[i].first;
            n = r->compiled->place.param[i].n;
        }
        for (int64_t at = 0; at < p->n && (len = tr_tp_run(&r->compiled->place.param[i].tp, &at, p->n, &local)) > 0;
             at += len)
            for (int64_t k = 0; k < len; k++) {
                if (local + k < first || local + k >= first + n)
                    continue;
                double off = fabs((double)got[local + k] - want[at + k]);
                double share = off / allowed(r, want[at + k], grad[at + k], scale, p->n_dims == 2);
                most = share > most || isnan(share) ? share : most;
            }
        free(want);
        free(grad);
    }
    return most;
}

static double run_layout(const char *dir, struct rig_shape shape)
{
    struct rig r;
    rig_open(&r, dir, shape);
    double want = golden_number(&r.g, "loss"), limit = bound(&r, 3), norm = 0;
    double most = fabs(rig_gradients(&r) - want) / want / limit;
    most = fmax(most, worst_of(&r, TR_S_GRAD, "grad", allowed_grad));
    CHECK(r.dev.reserved_bytes == tr_compiled_bytes(r.compiled));
    for (int step = 0; step < STEPS; step++) {
        float values[TR_STEP_COUNT];
        struct tr_step_result out;
        tr_step_values(&r.cfg, step, STEPS, r.g.n_targets, values);
        must(tr_exec_step(r.exec, &r.cfg, r.micro, values, &out));
        norm = step == 0 ? out.grad_norm : norm;
    }
    want = golden_number(&r.g, "grad_norm");
    most = fmax(most, fabs(norm - want) / want / limit);
    most = fmax(most, worst_of(&r, TR_S_VALUE, "after", allowed_after));
    rig_close(&r);
    return most;
}

static void one_layout(const char *dir, const char *name, const struct layout *l, enum tr_cp_mode mode,
                       struct tr_comm_env *env)
{
    if (ranks_of(l) != env->size || !is_legal(dir, l, mode))
        return;
    double share = run_layout(dir, shape_of(l, mode, env));
    run.n_cases++;
    if (!(share <= 1))
        fprintf(stderr,
                "%s: pp %d dp %d shard %d cp %d (%s) tp %d%s zero %d micro %d recompute %d: off by %.3g of what is "
                "allowed\n",
                name, l->axis[0], l->axis[1], l->axis[2], l->axis[3], mode == TR_CP_RING ? "ring" : "ulysses",
                l->axis[4], l->sp ? " sp" : "", l->zero, l->n_micro, (int)l->recompute, share);
    CHECK(share <= 1);
}

static void each_layout(const char *dir, const char *name)
{
    struct tr_comm_env env = *run.env;
    env.generation = run.n_cases + 1;
    run.n_models++;
    enum { SHARES = IS_SLOW ? 8 : 3 };
    for (size_t i = (size_t)run.n_models % SHARES; i < TR_COUNT_OF(layouts); i += SHARES) {
        one_layout(dir, name, &layouts[i], TR_CP_ULYSSES, &env);
        if (layouts[i].axis[TR_AXIS_CP] > 1)
            one_layout(dir, name, &layouts[i], TR_CP_RING, &env);
    }
}

static void as_rank(const struct tr_comm_env *env, void *ctx)
{
    (void)ctx;
    is_rank = true;
    run.env = env;
    for_each_case(each_layout);
    if (env->rank == 0)
        printf("%d runs on %d ranks agree with PyTorch\n", run.n_cases, env->size);
    fflush(stdout);
}

static void every_golden_case_trains_alike_on_two_ranks(void **state)
{
    (void)state;
    run_ranks(2, as_rank, NULL);
}

static void every_golden_case_trains_alike_on_four_ranks(void **state)
{
    (void)state;
    run_ranks(4, as_rank, NULL);
}

static void every_golden_case_trains_alike_on_eight_ranks(void **state)
{
    (void)state;
    run_ranks(8, as_rank, NULL);
}

/* One reduction in thousands is not taken: forward, backward or of a gradient, whichever hit it is; an exchange, a
 * block. */
struct broken {
    const char *fail;
    struct layout layout;
    enum tr_cp_mode mode;
};

static void as_broken_rank(const struct tr_comm_env *env, void *ctx)
{
    const char *dir = TR_SOURCE_DIR "/tests/golden/qwen3";
    const struct broken *b = ctx;
    is_rank = true;
    CHECK_OK(tr_failpoint_setup(b->fail, env->rank));
    struct tr_comm_env e = *env;
    double share = run_layout(dir, shape_of(&b->layout, b->mode, &e));
    CHECK(!(share <= 1));
}

static void a_skipped_collective_is_seen(void **state)
{
    static const struct layout tp2 = { { 1, 1, 1, 1, 2 }, false, 0, 1, TR_RECOMPUTE_NONE },
                               cp2 = { { 1, 1, 1, 2, 1 }, false, 0, 1, TR_RECOMPUTE_NONE };
    struct broken hits[] = {
        { "tp.skip_reduce:error:1", tp2, 0 },
        { "tp.skip_reduce:error:4", tp2, 0 },
        { "tp.skip_reduce:error:8", tp2, 0 },
        { "tp.skip_reduce:error:11", tp2, 0 },
        { "cp.skip_exchange:error:1", cp2, TR_CP_ULYSSES },
        { "cp.skip_exchange:error:4", cp2, TR_CP_ULYSSES },
        { "cp.skip_exchange:error:9", cp2, TR_CP_ULYSSES },
        { "cp.skip_block:error:2", cp2, TR_CP_RING },
        { "cp.skip_block:error:6", cp2, TR_CP_RING },
    };
    (void)state;
    for (size_t i = 0; i < TR_COUNT_OF(hits); i++)
        run_ranks(2, as_broken_rank, &hits[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_golden_case_trains_alike_on_two_ranks),
        cmocka_unit_test(every_golden_case_trains_alike_on_four_ranks),
        cmocka_unit_test(every_golden_case_trains_alike_on_eight_ranks),
        cmocka_unit_test(a_skipped_collective_is_seen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
