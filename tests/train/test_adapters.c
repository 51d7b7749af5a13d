/* test_adapters.c - adapters against PEFT: logits, loss, gradients and ten AdamW steps of every case in
 * tests/golden/adapters, on one rank and on meshes. How close is close enough is golden_bounds.h. */
#include "comm/ranks.h"
#include "golden_bounds.h"

enum { MIN_ADAPTERS = 136, N_SHARES = 6 /* a case runs on every sixth layout */ };

typedef void adapter_fn(const char *base, const char *dir, const char *name);

/* Cases are named after their base: "qwen3-dora". TR_ADAPTERS=DIR: those of another directory
 * (tests/peft/roundtrip.py). */
static void for_each_adapter(adapter_fn *fn)
{
    glob_t found;
    char base[TR_PATH_MAX], cases[TR_PATH_MAX];
    const char *other = getenv("TR_ADAPTERS");
    must(tr_format(cases, sizeof cases, "%s/*/golden.safetensors",
                   other ? other : TR_SOURCE_DIR "/tests/golden/adapters"));
    assert_int_equal(glob(cases, 0, NULL, &found), 0);
    assert_true(found.gl_pathc >= (other ? 1 : MIN_ADAPTERS));
    for (size_t i = 0; i < found.gl_pathc; i++) {
        char *dir = found.gl_pathv[i];
        *strrchr(dir, '/') = 0;
        const char *name = strrchr(dir, '/') + 1;
        int n = (int)(strrchr(name, '-') - name);
        must(tr_format(base, sizeof base, TR_SOURCE_DIR "/tests/golden/%.*s", n, name));
        fn(base, dir, name);
    }
    globfree(&found);
}

static struct rig_shape plain(const char *adapter)
{
    return (struct rig_shape){ .n_micro = 1, .n_threads = 1, .recompute = TR_RECOMPUTE_NONE, .adapter = adapter };
}

/* ---- which there are ---- */

static const char *const kinds[] = { "-lora", "-rslora", "-dora", "-saved", "-embedding" };
static const char *family;
static bool has_kind[TR_COUNT_OF(kinds)];

static void note_kind(const char *base, const char *dir, const char *name)
{
    char path[TR_PATH_MAX], key[96], *text = NULL;
    size_t n = 0;
    (void)dir;
    must(tr_format(path, sizeof path, "%s/config.json", base));
    must(tr_format(key, sizeof key, "\"model_type\": \"%s\"", family));
    must(tr_file_read(path, 1 << 20, &text, &n));
    for (size_t k = 0; k < TR_COUNT_OF(kinds); k++)
        if (strstr(text, key) && strcmp(strchr(name, '-'), kinds[k]) == 0)
            has_kind[k] = true;
    free(text);
}

/* Models of text and images train the network of a family of text. */
static void every_family_has_every_kind(void **state)
{
    (void)state;
    struct tr_str list = { 0 };
    char *rest = NULL;
    if (getenv("TR_ADAPTERS"))
        skip();
    tr_arch_list(&list);
    for (family = strtok_r(list.p, " ", &rest); family; family = strtok_r(NULL, " ", &rest)) {
        if (tr_arch_find(family)->wrapper)
            continue;
        memset(has_kind, 0, sizeof has_kind);
        for_each_adapter(note_kind);
        for (size_t k = 0; k < TR_COUNT_OF(kinds); k++)
            if (!has_kind[k])
                fail_msg("%s has no golden adapter of kind %s", family, kinds[k] + 1);
    }
    tr_str_release(&list);
}

/* ---- one rank ---- */

static void compare_outputs(const char *base, const char *dir, const char *name)
{
    struct rig r;
    rig_open(&r, base, plain(dir));
    int64_t n = 0;
    const float *logits = NULL;
    must(tr_exec_logits(r.exec, TR_FOR_EVAL, 0, &r.whole, &logits));
    double *want = golden_read(&r.g, "logits", TR_F64, &n), scale = max_abs(want, n), cap = r.model->hp.final_softcap;
    assert_int_equal(n, r.g.length * r.model->hp.vocab); /* of the first row */
    float *got = malloc((size_t)n * sizeof *got);
    assert_non_null(got);
    for (int64_t i = 0; i < n; i++)
        got[i] = cap > 0 ? (float)(cap * tanh((double)logits[i] / cap)) : logits[i];
    double error = max_diff(got, want, n) / scale, limit = bound(&r, 1);
    double loss = rig_gradients(&r), want_loss = golden_number(&r.g, "loss");
    double loss_error = fabs(loss - want_loss) / want_loss;
    printf("%-30s logits %.1e  loss %.1e  of %.1e\n", name, error, loss_error, limit);
    if (!(error <= limit) || !(loss_error <= limit))
        fail_msg("%s: logits off by %.3g, loss by %.3g, allowed %.3g", name, error, loss_error, limit);
    free(want);
    free(got);
    rig_close(&r);
}

static void logits_and_loss_are_those_of_peft(void **state)
{
    (void)state;
    for_each_adapter(compare_outputs);
}

static void compare_gradients_of(const char *base, const char *name, struct rig_shape shape)
{
    struct rig r;
    rig_open(&r, base, shape);
    rig_gradients(&r);
    double limit = grad_bound(&r), most = 0;
    const char *where = "";
    for (int i = 0; i < r.model->n_params; i++) {
        const struct tr_param *p = &r.model->param[i];
        if (r.is_frozen[i])
            continue;
        double *want = golden_param(&r.g, "grad", p);
        double error = max_diff(rig_grad(&r, i), want, p->n) / grad_scale(&r, i);
        if (!(error <= limit))
            fail_msg("%s: gradient of %s off by %.3g, allowed %.3g", name, p->name, error, limit);
        where = error > most ? p->name : where;
        most = fmax(most, error);
        free(want);
    }
    printf("%-30s gradients %.1e of %.1e  %s\n", name, most, limit, where);
    rig_close(&r);
}

/* As it is, and in turn with products side by side and ops joined (as for a GPU), with those recomputed, and in two
 * micro-batches. */
static void compare_gradients(const char *base, const char *dir, const char *name)
{
    static int turn;
    struct rig_shape shape = plain(dir);
    compare_gradients_of(base, name, shape);
    shape.fuses = true;
    if (turn % 3 == 1)
        shape.recompute = TR_RECOMPUTE_BLOCK;
    if (turn % 3 == 2) {
        shape.recompute = TR_RECOMPUTE_OP;
        shape.n_micro = 2;
    }
    turn++;
    compare_gradients_of(base, name, shape);
}

static void gradients_are_those_of_peft(void **state)
{
    (void)state;
    for_each_adapter(compare_gradients);
}

#define NEW "{\"peft_type\":\"LORA\",\"r\":4,\"target_modules\":"

/* A new adapter leaves the model as it is, whichever kind, and every B learns from the first step on. A model takes
 * every second kind, the next one the others. */
static void compare_new(const char *dir, const char *name)
{
    static size_t turn;
    static const char *const texts[] = {
        NEW "\"all-linear\"}",
        NEW "\"all-linear\",\"use_dora\":true}",
        NEW "\"all-linear\",\"init_lora_weights\":\"orthogonal\"}",
        NEW "\"all-linear\",\"init_lora_weights\":\"pissa\"}",
        NEW "\"all-linear\",\"init_lora_weights\":\"pissa\",\"use_dora\":true}",
        NEW "\".*(embed_tokens|wte|word_embeddings|embed_in)\",\"init_lora_weights\":\"gaussian\"}",
        NEW "\"all-linear\",\"trainable_token_indices\":[8,3]}",
        NEW "\"all-linear\",\"trainable_token_indices\":{\"lm_head\":[9,0,3]}}",
    };
    for (size_t k = turn++ % 2; k < TR_COUNT_OF(texts); k += 2) {
        struct rig r;
        struct rig_shape shape = plain(NULL);
        shape.new_adapter = texts[k];
        rig_open(&r, dir, shape);
        double want = golden_number(&r.g, "loss"), loss = rig_gradients(&r), limit = bound(&r, 1);
        if (!(fabs(loss - want) <= limit * want))
            fail_msg("%s: loss %.9g with a new adapter, %.9g without: %s", name, loss, want, texts[k]);
        for (int i = 0; i < r.model->n_params; i++)
            if (strstr(r.model->param[i].name, "lora_B"))
                assert_true(rig_grad(&r, i)[0] != 0);
        rig_close(&r);
    }
}

static void a_new_adapter_leaves_the_model_as_it_is(void **state)
{
    (void)state;
    for_each_case(compare_new);
}

/* ---- ten steps, on one rank or on a mesh ---- */

/* The worst error of this rank's elements of a state, as a share of what is allowed. */
static double worst_of(struct rig *r, enum tr_state what)
{
    double most = 0, limit = grad_bound(r);
    must(tr_exec_drain(r->exec));
    for (int i = 0; i < r->model->n_params; i++) {
        const struct tr_param *p = &r->model->param[i];
        if (r->is_frozen[i])
            continue;
        bool is_grad = what == TR_S_GRAD;
        double *want = golden_param(&r->g, is_grad ? "grad" : "after", p), *grad = golden_param(&r->g, "grad", p);
        double scale = grad_scale(r, i);
        int64_t first, n, local, len;
        const float *held = (const float *)(const void *)tr_exec_at(r->exec, what, i, &first, &n);
        if (is_grad) { /* the sum is its owner's */
            first = r->compiled->place.param[i].first;
            n = r->compiled->place.param[i].n;
        }
        float *got = malloc((size_t)n * sizeof *got + 1);
        assert_non_null(got);
        tr_device_copy_now(&r->dev, got, held + first, (size_t)n * sizeof *got);
        must(tr_device_sync(&r->dev, TR_STREAM_COMPUTE));
        for (int64_t at = 0; at < p->n && (len = tr_tp_run(&r->compiled->place.param[i].tp, &at, p->n, &local)) > 0;
             at += len)
            for (int64_t k = 0; k < len; k++) {
                if (local + k < first || local + k >= first + n)
                    continue;
                double off = fabs((double)got[local + k - first] - want[at + k]);
                double size = grad[at + k] == 0 && p->n_dims == 2 ? scale : grad[at + k];
                double share = off / (is_grad ? limit * scale : after_bound(r, want[at + k], size, limit * scale));
                most = share > most || isnan(share) ? share : most;
            }
        free(got);
        free(want);
        free(grad);
    }
    return most;
}

static double run_steps(const char *base, struct rig_shape shape)
{
    struct rig r;
    rig_open(&r, base, shape);
    double want = golden_number(&r.g, "loss"), limit = bound(&r, 3), norm = 0;
    double most = fabs(rig_gradients(&r) - want) / want / limit;
    most = fmax(most, worst_of(&r, TR_S_GRAD));
    for (int step = 0; step < STEPS; step++) {
        float values[TR_STEP_COUNT];
        struct tr_step_result out;
        tr_step_values(&r.cfg, step, STEPS, r.g.n_targets, values);
        must(tr_exec_step(r.exec, &r.cfg, r.micro, values, &out));
        norm = step == 0 ? out.grad_norm : norm;
    }
    want = golden_number(&r.g, "grad_norm");
    most = fmax(most, fabs(norm - want) / want / grad_bound(&r));
    most = fmax(most, worst_of(&r, TR_S_VALUE));
    rig_close(&r);
    return most;
}

static void compare_training(const char *base, const char *dir, const char *name)
{
    double share = run_steps(base, plain(dir));
    printf("%-30s after ten steps %.2f of what is allowed\n", name, share);
    if (!(share <= 1))
        fail_msg("%s: off by %.3g of what is allowed after ten steps", name, share);
}

static void weights_after_ten_adamw_steps_are_those_of_peft(void **state)
{
    (void)state;
    for_each_adapter(compare_training);
}

/* ---- meshes ---- */

/* Sizes of pp, dp, shard, cp, tp. The golden batch has two rows. */
static const struct layout {
    int axis[TR_AXES];
    bool sp;
    int zero, n_micro;
    enum tr_recompute recompute;
    enum tr_cp_mode cp_mode;
} layouts[] = {
    { { 1, 1, 1, 1, 2 }, false, 0, 1, TR_RECOMPUTE_NONE, TR_CP_RING },
    { { 1, 1, 1, 1, 2 }, true, 0, 2, TR_RECOMPUTE_BLOCK, TR_CP_RING },
    { { 1, 1, 2, 1, 1 }, false, 3, 1, TR_RECOMPUTE_OP, TR_CP_RING },
    { { 2, 1, 1, 1, 1 }, false, 0, 2, TR_RECOMPUTE_NONE, TR_CP_RING },
    { { 1, 1, 1, 2, 1 }, false, 0, 1, TR_RECOMPUTE_NONE, TR_CP_RING },
    { { 1, 1, 1, 2, 1 }, false, 0, 1, TR_RECOMPUTE_NONE, TR_CP_ULYSSES },
    { { 1, 1, 2, 1, 2 }, true, 3, 1, TR_RECOMPUTE_NONE, TR_CP_RING },
    { { 2, 1, 1, 1, 2 }, true, 0, 2, TR_RECOMPUTE_OP, TR_CP_RING },
    { { 1, 1, 1, 2, 2 }, false, 0, 2, TR_RECOMPUTE_BLOCK, TR_CP_ULYSSES },
    { { 2, 1, 2, 1, 1 }, false, 2, 1, TR_RECOMPUTE_NONE, TR_CP_RING },
};

static const struct tr_comm_env *mesh_env;
static int n_runs, n_cases;

static bool is_legal(const char *dir, const struct layout *l)
{
    struct tr_model *m = NULL;
    struct tr_model_options opt = { .rows = 1, .sequence_length = 4, .dropout = -1 };
    struct golden g;
    golden_open(&g, dir);
    opt.sequence_length = g.length;
    golden_close(&g);
    must(tr_model_open(dir, &opt, &m));
    struct tr_legal_query q = tr_legal_mesh(m, l->axis);
    q.sp = l->sp, q.cp_mode = l->cp_mode, q.n_micro = l->n_micro;
    bool is_good = tr_legal_check(&q) == TR_OK;
    tr_error_clear();
    tr_model_close(m);
    return is_good;
}

static void each_layout(const char *base, const char *dir, const char *name)
{
    struct tr_comm_env env = *mesh_env;
    for (size_t i = (size_t)(n_cases++ % N_SHARES); i < TR_COUNT_OF(layouts); i += N_SHARES) {
        const struct layout *l = &layouts[i];
        int n = 1;
        for (int a = 0; a < TR_AXES; a++)
            n *= l->axis[a];
        if (n != env.size || !is_legal(base, l))
            continue;
        struct rig_shape s = { .n_micro = l->n_micro,
                               .n_threads = 1,
                               .recompute = l->recompute,
                               .env = &env,
                               .zero = l->zero,
                               .sp = l->sp,
                               .cp_mode = l->cp_mode,
                               .adapter = dir };
        memcpy(s.axis, l->axis, sizeof s.axis);
        env.generation = ++n_runs; /* a meeting place of its own */
        double share = run_steps(base, s);
        if (!(share <= 1))
            fprintf(stderr, "%s: layout %zu: off by %.3g of what is allowed\n", name, i, share);
        CHECK(share <= 1);
    }
}

static void as_rank(const struct tr_comm_env *env, void *ctx)
{
    (void)ctx;
    is_rank = true;
    alarm(600); /* for all of them */
    mesh_env = env;
    for_each_adapter(each_layout);
    if (env->rank == 0)
        printf("%d runs on %d ranks agree with PEFT\n", n_runs, env->size);
    fflush(stdout);
}

/* Ranks are forked, which a process that uses a GPU cannot be; train/test_strategies starts programs. */
static void skip_on_a_gpu(void)
{
    if (!tr_device_row(rig_device())->is_host)
        skip();
}

static void every_adapter_trains_alike_on_two_ranks(void **state)
{
    (void)state;
    skip_on_a_gpu();
    run_ranks(2, as_rank, NULL);
}

static void every_adapter_trains_alike_on_four_ranks(void **state)
{
    (void)state;
    skip_on_a_gpu();
    run_ranks(4, as_rank, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_family_has_every_kind),
        cmocka_unit_test(logits_and_loss_are_those_of_peft),
        cmocka_unit_test(gradients_are_those_of_peft),
        cmocka_unit_test(a_new_adapter_leaves_the_model_as_it_is),
        cmocka_unit_test(weights_after_ten_adamw_steps_are_those_of_peft),
        cmocka_unit_test(every_adapter_trains_alike_on_two_ranks),
        cmocka_unit_test(every_adapter_trains_alike_on_four_ranks),
    };
    return cmocka_run_group_tests_name("adapters", tests, NULL, NULL);
}
