/* test_fp16.c - float16 with a loss scale: it follows float32, layouts agree, an overflow changes no parameter and
 * halves the scale, and what no scale is to blame for is judged as ever. */
#include "layout_agree.h"
#include "train/numbers.h"

/* ---- the scale itself ---- */

static void the_scale_moves_as_torch_moves_it(void **state)
{
    (void)state;
    struct tr_scaler s = tr_scaler_of(TR_F16), none = tr_scaler_of(TR_BF16);
    assert_true(s.scale == 65536);
    for (int i = 0; i < 1999; i++)
        tr_scaler_count(&s, false);
    assert_true(s.scale == 65536);
    tr_scaler_count(&s, false);
    assert_true(s.scale == 131072 && s.n_good == 0);
    tr_scaler_count(&s, false);
    tr_scaler_count(&s, true);
    assert_true(s.scale == 65536 && s.n_good == 0 && s.n_skipped == 1);
    for (int i = 0; i < 40; i++)
        tr_scaler_count(&s, true);
    assert_true(s.scale == TR_SCALE_LEAST);
    for (int i = 0; i < 2000 * 40; i++)
        tr_scaler_count(&s, false);
    assert_true(s.scale == TR_SCALE_MOST);
    tr_scaler_count(&none, true);
    assert_true(none.scale == 0 && none.n_skipped == 0);
}

static void only_the_gradients_are_blamed_on_it(void **state)
{
    (void)state;
    struct tr_scaler s = tr_scaler_of(TR_F16), least = { .scale = TR_SCALE_LEAST }, none = { 0 };
    struct tr_step_result over = { .loss_sum = 1, .grad_norm = (double)INFINITY },
                          fine = { .loss_sum = 1, .grad_norm = 1 },
                          lost = { .loss_sum = (double)NAN, .grad_norm = (double)NAN };
    assert_true(tr_scaler_overflows(&s, &over));
    assert_false(tr_scaler_overflows(&s, &fine));
    assert_false(tr_scaler_overflows(&s, &lost));
    assert_false(tr_scaler_overflows(&least, &over));
    assert_false(tr_scaler_overflows(&none, &over));
}

/* ---- training ---- */

static void open_float16(struct run *r, struct layout *l)
{
    fill_ones(l);
    struct tr_compile_options opt = options(l);
    opt.layout = layout_of(l, 0);
    open_run(r, l, &opt);
}

/* A rounding to 11 bits is off by 2^-12 of a number in the root mean square. A gradient passes some 12 of them in each
 * of 6 layers, forward and back: sqrt(2 * 12 * 6) * 2^-12 = 0.3 % of its size; three steps add theirs. Twice that is
 * 2 %, and bfloat16, of 8 bits, must be further off than float16: else nothing was rounded to it. */
static void training_follows_float32(void **state)
{
    (void)state;
    const double most = 0.02;
    double off[TR_DTYPE_COUNT] = { 0 };
    for (int model = 0; model < N_MODELS; model++) {
        struct reference *ref = calloc(1, sizeof *ref);
        struct run *r = calloc(1, sizeof *r);
        assert_true(ref && r);
        train_one(ref, &(struct layout){ .model = model, .n_micro = 2 });
        static const enum tr_dtype dtypes[] = { TR_F16, TR_BF16 };
        for (size_t d = 0; d < TR_COUNT_OF(dtypes); d++) {
            struct layout l = { .model = model, .n_micro = 2, .dtype = dtypes[d] };
            bool is_same;
            open_float16(r, &l);
            train(r, &l, NULL, 0, l.n_micro, l.n_micro);
            off[dtypes[d]] = distance(ref, r, &is_same);
            assert_false(is_same);
            if (dtypes[d] == TR_F16 && !(fabs(r->norm - ref->run.norm) <= most * ref->run.norm))
                fail_msg("model %d: gradient norm %g, in float32 %g: the scale is still in it", model, r->norm,
                         ref->run.norm);
            close_run(r);
        }
        if (!(off[TR_F16] <= most && off[TR_F16] < off[TR_BF16]))
            fail_msg("model %d: float16 is off by %.3g of the way, bfloat16 by %.3g", model, off[TR_F16], off[TR_BF16]);
        close_reference(ref);
        free(ref);
        free(r);
    }
}

struct
try {
    struct layout l;
    struct reference ref;
};

static void one_rank(const struct tr_comm_env *env, void *ctx)
{
    struct try *t = ctx;
    CHECK(agrees(&t->l, env, &t->ref, false, NOTHING));
}

static void layouts_agree(void **state)
{
    (void)state;
    static const struct layout layouts[] = {
        { .model = GPT2, .dp = 2, .zero = 3, .n_micro = 1 },
        { .model = LLAMA, .tp = 2, .sp = true, .n_micro = 1 },
        { .model = LLAMA, .tp = 2, .n_micro = 1 },
        { .model = QWEN, .pp = 2, .n_micro = 2 },
        { .model = LLAMA, .cp = 2, .cp_mode = TR_CP_RING, .n_micro = 1 },
    };
    for (size_t i = 0; i < TR_COUNT_OF(layouts); i++) {
        struct try *t = calloc(1, sizeof *t);
        assert_non_null(t);
        t->l = layouts[i];
        t->l.dtype = TR_F16;
        fill_ones(&t->l);
        train_one(&t->ref, &t->l);
        run_ranks(ranks_of(&t->l), one_rank, t);
        close_reference(&t->ref);
        free(t);
    }
}

/* ---- a step that overflows ---- */

static struct tr_verdict judged_step(struct run *r, struct tr_numbers *n, const struct tr_scaler *s, int step,
                                     struct tr_step_result *out)
{
    static const struct tr_config cfg = {
        .optim = TR_OPTIM_SGD, .learning_rate = 0.05, .max_grad_norm = 0.5, .lr_scheduler_type = TR_LR_CONSTANT
    };
    float values[TR_STEP_COUNT];
    struct tr_verdict v;
    fill(r, 0, step, 0);
    struct tr_step_batch b = { .micro = r->micro, .n_targets = N_TOKENS - 2 * ROWS };
    tr_step_values(&cfg, step, N_STEPS, (int64_t)b.n_targets, values);
    tr_step_scale(&cfg, step, s->scale, s->n_skipped, values);
    if (tr_numbers_step(n, &b, values, out, &v) != TR_OK)
        fail_msg("step %d at scale %g: %s", step, s->scale, tr_error_text());
    return v;
}

/* The largest scale there is makes gradients of 2^24 / 28 tokens, which float16 does not hold: halved until it does. */
static void an_overflow_changes_nothing_but_the_scale(void **state)
{
    (void)state;
    static const struct tr_config cfg = { .optim = TR_OPTIM_SGD, .max_grad_norm = 0.5, .nonfinite = TR_NONFINITE_STOP };
    struct run *r = calloc(1, sizeof *r);
    struct layout l = { .model = LLAMA, .n_micro = 1, .dtype = TR_F16 };
    struct tr_scaler scaler = { .scale = TR_SCALE_MOST };
    struct tr_numbers *n = NULL;
    struct tr_step_result s;
    assert_non_null(r);
    open_float16(r, &l);
    CHECK_OK(tr_pool_open(1, &r->pool));
    CHECK_OK(tr_device_open("cpu", &r->dev));
    CHECK_OK(tr_exec_open(r->c, &r->dev, r->pool, NULL, 7, &r->e));
    struct tr_store store = tr_exec_store(r->e);
    CHECK_OK(tr_load_random(&store, 3, r->pool, (float *)(void *)tr_exec_arena(r->e, TR_A_SAVE)));
    CHECK_OK(tr_numbers_open(r->e, &cfg, 0, &scaler, &n));
    size_t bytes = r->c->memory.bytes[TR_A_OPTIM];
    char *masters = malloc(bytes);
    assert_non_null(masters);
    memcpy(masters, tr_exec_arena(r->e, TR_A_OPTIM), bytes);
    int step = 0;
    double before = scaler.scale;
    while (judged_step(r, n, &scaler, step, &s).is_overflow) {
        assert_true(scaler.scale == before / 2 && scaler.n_skipped == ++step && isfinite(s.loss_sum));
        assert_memory_equal(masters, tr_exec_arena(r->e, TR_A_OPTIM), bytes);
        before = scaler.scale;
    }
    assert_true(step > 2 && step < 24 && scaler.n_good == 1 && scaler.scale == before);
    assert_true(isfinite(s.grad_norm) && memcmp(masters, tr_exec_arena(r->e, TR_A_OPTIM), bytes) != 0);
    assert_int_equal(tr_numbers_skipped(n), 0);
    free(masters);
    tr_numbers_close(n);
    close_run(r);
    free(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_scale_moves_as_torch_moves_it),
        cmocka_unit_test(only_the_gradients_are_blamed_on_it),
        cmocka_unit_test(training_follows_float32),
        cmocka_unit_test(layouts_agree),
        cmocka_unit_test(an_overflow_changes_nothing_but_the_scale),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
