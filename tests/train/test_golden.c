/* test_golden.c - Trireme against PyTorch: logits, loss, gradients and ten AdamW steps of every case in tests/golden.
 * How close is close enough is golden_bounds.h.
 */
#include "golden_bounds.h"
#include "exec/exec_impl.h"

static struct rig_shape plain(void)
{
    return (struct rig_shape){ .n_micro = 1, .n_threads = 1, .recompute = TR_RECOMPUTE_NONE };
}

/* ---- the worst error by kind of tensor, over all cases ---- */

static struct worst {
    const char *kind, *part; /* a name belongs to the first row whose part it contains */
    double grad, after;
} worst[] = {
    { "bias", ".bias", 0, 0 },
    { "norm", "norm", 0, 0 },
    { "norm", ".ln_", 0, 0 },
    { "attention", "attn.", 0, 0 },
    { "mlp", "mlp.", 0, 0 },
    { "mlp", ".fc", 0, 0 },
    { "embedding", "embed", 0, 0 },
    { "embedding", "wte", 0, 0 },
    { "embedding", "wpe", 0, 0 },
    { "head", "lm_head", 0, 0 },
    { "attention", "attention.", 0, 0 },
    { "embedding", "project_", 0, 0 },
};

static struct worst *worst_of(const char *name)
{
    for (size_t i = 0; i < TR_COUNT_OF(worst); i++)
        if (strstr(name, worst[i].part))
            return &worst[i];
    fail_msg("%s is of no known kind", name);
    return NULL;
}

/* ---- the comparisons ---- */

static void compare_outputs(const char *dir, const char *name)
{
    struct rig r;
    rig_open(&r, dir, plain());
    int64_t n = 0;
    const float *logits = NULL;
    must(tr_exec_logits(r.exec, TR_FOR_EVAL, 0, &r.whole, &logits));
    double *want = golden_read(&r.g, "logits", TR_F64, &n), scale = max_abs(want, n), cap = r.model->hp.final_softcap;
    assert_int_equal(n, r.g.rows * r.g.length * r.model->hp.vocab);
    float *got = malloc((size_t)n * sizeof *got);
    assert_non_null(got);
    for (int64_t i = 0; i < n; i++) /* the executor's logits are before the cap; whoever samples applies it */
        got[i] = cap > 0 ? (float)(cap * tanh((double)logits[i] / cap)) : logits[i];
    double error = max_diff(got, want, n) / scale, limit = bound(&r, 1);
    double loss = rig_gradients(&r), want_loss = golden_number(&r.g, "loss");
    double loss_error = fabs(loss - want_loss) / want_loss;
    printf("%-20s logits %.1e  loss %.1e  of %.1e\n", name, error, loss_error, limit);
    if (!(error <= limit) || !(loss_error <= limit))
        fail_msg("%s: logits off by %.3g, loss by %.3g, allowed %.3g", name, error, loss_error, limit);
    free(want);
    free(got);
    rig_close(&r);
}

static void logits_and_loss_are_those_of_transformers(void **state)
{
    (void)state;
    for_each_case(compare_outputs);
}

static void compare_gradients_of(const char *dir, const char *name, struct rig_shape shape)
{
    struct rig r;
    rig_open(&r, dir, shape);
    rig_gradients(&r);
    double limit = grad_bound(&r), most = 0;
    const char *where = "";
    for (int i = 0; i < r.model->n_params; i++) {
        const struct tr_param *p = &r.model->param[i];
        double *want = golden_param(&r.g, "grad", p);
        double error = max_diff(rig_grad(&r, i), want, p->n) / grad_scale(&r, i);
        struct worst *w = worst_of(p->name);
        w->grad = fmax(w->grad, error);
        if (!(error <= limit))
            fail_msg("%s: gradient of %s off by %.3g, allowed %.3g", name, p->name, error, limit);
        where = error > most ? p->name : where;
        most = fmax(most, error);
        free(want);
    }
    printf("%-20s gradients %.1e of %.1e  %s\n", name, most, limit, where);
    rig_close(&r);
}

static void compare_gradients(const char *dir, const char *name)
{
    compare_gradients_of(dir, name, plain());
}

static void gradients_are_those_of_autograd(void **state)
{
    (void)state;
    for_each_case(compare_gradients);
}

/* The passes side and fuse, on kernels that do one op at a time: weights side by side, and ops joined. */
static void compare_fused(const char *dir, const char *name)
{
    struct rig_shape shape = plain();
    shape.fuses = true;
    compare_gradients_of(dir, name, shape);
    shape.recompute = TR_RECOMPUTE_BLOCK;
    compare_gradients_of(dir, name, shape);
}

static void gradients_of_fused_programs_are_those_of_autograd(void **state)
{
    (void)state;
    for_each_case(compare_fused);
}

static void run_steps(struct rig *r, double *first_norm)
{
    for (int step = 0; step < STEPS; step++) {
        float values[TR_STEP_COUNT];
        struct tr_step_result out;
        tr_step_values(&r->cfg, step, STEPS, r->g.n_targets, values);
        must(tr_exec_step(r->exec, &r->cfg, r->micro, values, &out));
        if (step == 0)
            *first_norm = out.grad_norm;
    }
}

static void compare_training(const char *dir, const char *name)
{
    struct rig r;
    rig_open(&r, dir, plain());
    double norm = 0, want_norm = golden_number(&r.g, "grad_norm"), limit = grad_bound(&r), lr = r.cfg.learning_rate;
    double sum = 0;
    int64_t n_sharp = 0, n_all = 0;
    run_steps(&r, &norm);
    if (!(fabs(norm - want_norm) <= limit * want_norm))
        fail_msg("%s: gradient norm %.9g, expected %.9g", name, norm, want_norm);
    for (int i = 0; i < r.model->n_params; i++) {
        const struct tr_param *p = &r.model->param[i];
        const float *got = rig_state(&r, TR_S_VALUE, i);
        double *want = golden_param(&r.g, "after", p), *grad = golden_param(&r.g, "grad", p);
        double scale = grad_scale(&r, i);
        struct worst *w = worst_of(p->name);
        for (int64_t k = 0; k < p->n; k++) {
            /* a token that does not occur, or a relu that wakes later: what it gets then is of ordinary size */
            double size = grad[k] == 0 && p->n_dims == 2 ? scale : grad[k];
            double allowed = after_bound(&r, want[k], size, limit * scale);
            double off = fabs((double)got[k] - want[k]);
            if (!(off <= allowed))
                fail_msg("%s: %s[%" PRId64 "] is %.9g after %d steps, expected %.9g, allowed %.3g", name, p->name, k,
                         (double)got[k], STEPS, want[k], allowed);
            bool is_sharp = allowed <= 0.1 * STEPS * lr;
            n_sharp += is_sharp;
            n_all++;
            sum += is_sharp ? off * off : 0;
            if (is_sharp)
                w->after = fmax(w->after, off / (STEPS * lr));
        }
        free(want);
        free(grad);
    }
    /* Most elements must be held tightly, or the bound would hide an error. */
    double typical = sqrt(sum / (double)n_sharp) / (STEPS * lr), share = (double)n_sharp / (double)n_all;
    printf("%-20s after %d steps: %.1e of the way, rms; %.0f%% held within a tenth\n", name, STEPS, typical,
           100 * share);
    assert_true(share > 0.8);
    assert_true(typical < fmax(limit, GROWTH * r.g.spread[SPREAD_AFTER]));
    rig_close(&r);
}

static void weights_after_ten_adamw_steps_are_those_of_torch(void **state)
{
    (void)state;
    for_each_case(compare_training);
    for (size_t i = 0; i < TR_COUNT_OF(worst); i++)
        if (worst[i].grad > 0)
            printf("worst of %-10s %-8s gradient %.1e, of the way after %d steps %.1e\n", worst[i].kind, worst[i].part,
                   worst[i].grad, STEPS, worst[i].after);
}

/* ---- other losses of tokens ---- */

/* One line of dft.txt and its kin: of the loss, or of a parameter's gradient. A sum of n elements, each off by at most
 * `limit` of the largest, is off by sqrt(n) of that; their root mean square by no more than one of them. */
static void compare_loss_line(struct rig *r, const char *name, double loss, const char *what, char *at)
{
    double limit = grad_bound(r), first = strtod(at, &at), second = strtod(at, &at), most = 0, sum = 0, squares = 0;
    if (strcmp(what, "loss") == 0) {
        if (!(fabs(loss - first) <= bound(r, 1) * first))
            fail_msg("%s: loss %.9g, by the definition %.9g", name, loss, first);
        return;
    }
    int i = 0;
    while (i < r->model->n_params && strcmp(r->model->param[i].name, what) != 0)
        i++;
    assert_true(i < r->model->n_params);
    const float *grad = rig_grad(r, i);
    double n = (double)r->model->param[i].n;
    for (int64_t k = 0; k < r->model->param[i].n; k++) {
        sum += (double)grad[k];
        squares += (double)grad[k] * (double)grad[k];
        most = fmax(most, fabs((double)grad[k]));
    }
    if (!(fabs(sqrt(squares / n) - first) <= limit * most) || !(fabs(sum - second) <= limit * most * sqrt(n)))
        fail_msg("%s: gradient of %s has size %.9g and sum %.9g, by the definition %.9g and %.9g", name, what,
                 sqrt(squares / n), sum, first, second);
}

/* shape: that of the loss; file: what its definition says. */
static void compare_token_loss(struct rig_shape shape, const char *file)
{
    FILE *f = fopen(file, "r");
    char line[256], name[64] = "", dir[TR_PATH_MAX];
    struct rig r;
    double loss = 0;
    int n = 0;
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        char *what = strchr(line, ' '), *numbers = what ? strchr(what + 1, ' ') : NULL;
        assert_non_null(numbers);
        *what++ = *numbers++ = 0;
        if (strcmp(line, name) != 0) { /* the lines of a case follow each other */
            if (n > 0)
                rig_close(&r);
            must(tr_format(name, sizeof name, "%s", line));
            must(tr_format(dir, sizeof dir, TR_SOURCE_DIR "/tests/golden/%s", name));
            rig_open(&r, dir, shape);
            loss = rig_gradients(&r);
        }
        compare_loss_line(&r, name, loss, what, numbers);
        n++;
    }
    assert_true(n > 80);
    rig_close(&r);
    fclose(f);
}

static void losses_of_tokens_are_their_definitions(void **state)
{
    struct rig_shape dft = plain(), smoothing = plain(), z_loss = plain();
    (void)state;
    dft.is_dft = true;
    smoothing.label_smoothing = 0.1;
    z_loss.label_smoothing = 0.2;
    z_loss.z_loss = 0.01;
    compare_token_loss(dft, TR_SOURCE_DIR "/tests/golden/dft.txt");
    compare_token_loss(smoothing, TR_SOURCE_DIR "/tests/golden/smoothing.txt");
    compare_token_loss(z_loss, TR_SOURCE_DIR "/tests/golden/z_loss.txt");
}

/* ---- what must not change a result ---- */

static void compare_bits(const char *dir, const char *name)
{
    const struct rig_shape shapes[] = { { .n_micro = 1, .n_threads = 1, .recompute = TR_RECOMPUTE_OP },
                                        { .n_micro = 1, .n_threads = 1, .recompute = TR_RECOMPUTE_BLOCK },
                                        { .n_micro = 1, .n_threads = 2, .recompute = TR_RECOMPUTE_NONE } };
    struct rig a;
    rig_open(&a, dir, plain());
    double loss = rig_gradients(&a);
    for (size_t s = 0; s < TR_COUNT_OF(shapes); s++) {
        struct rig b;
        rig_open(&b, dir, shapes[s]);
        if (rig_gradients(&b) != loss)
            fail_msg("%s: recompute %d, %d threads: another loss", name, (int)shapes[s].recompute, shapes[s].n_threads);
        for (int i = 0; i < a.model->n_params; i++)
            if (memcmp(rig_grad(&a, i), rig_grad(&b, i), (size_t)a.model->param[i].n * sizeof(float)) != 0)
                fail_msg("%s: recompute %d, %d threads: other bits in the gradient of %s", name,
                         (int)shapes[s].recompute, shapes[s].n_threads, a.model->param[i].name);
        rig_close(&b);
    }
    rig_close(&a);
}

static void recompute_and_threads_keep_every_bit(void **state)
{
    (void)state;
    for_each_case(compare_bits);
}

/* A gradient over all rows is one sum; over micro-batches it is a sum of sums: two orders of the same terms. */
static void compare_micro(const char *dir, const char *name)
{
    struct rig a, b;
    rig_open(&a, dir, plain());
    rig_open(&b, dir, (struct rig_shape){ .n_micro = 2, .n_threads = 1, .recompute = TR_RECOMPUTE_NONE });
    double loss = rig_gradients(&a), limit = bound(&a, 1);
    /* Summed in double. A GPU's products may take another way for other numbers of rows, so there losses round anew. */
    double slack = strcmp(rig_device(), "cpu") == 0 ? 4 * 0x1p-53 * (double)a.g.n_targets : limit;
    if (!(fabs(rig_gradients(&b) - loss) <= slack * loss))
        fail_msg("%s: two micro-batches give another loss", name);
    for (int i = 0; i < a.model->n_params; i++) {
        const struct tr_param *p = &a.model->param[i];
        const float *one = rig_grad(&a, i), *two = rig_grad(&b, i);
        double off = 0;
        for (int64_t k = 0; k < p->n; k++)
            off = fmax(off, fabs((double)one[k] - (double)two[k]));
        if (!(off <= limit * grad_scale(&a, i)))
            fail_msg("%s: two micro-batches change the gradient of %s by %.3g", name, p->name, off);
    }
    rig_close(&a);
    rig_close(&b);
}

static void micro_batches_add_up_to_the_batch(void **state)
{
    (void)state;
    for_each_case(compare_micro);
}

/* Whether the norm is one sum over the arena (one GPU) or one per parameter, a log of norms by parameter shows the
 * same; asking for it leaves the norm of the step as it was. */
/* The host sums squares in double. A GPU adds up to four of them in float first, each rounded to 2^-24. */
static double norm_bound(const struct rig *r)
{
    return r->dev.row->is_host ? 1e-12 : 0x1p-22;
}

static void compare_norms(const char *dir, const char *name)
{
    struct rig r;
    rig_open(&r, dir, plain());
    double *norms = calloc((size_t)r.model->n_params, sizeof *norms), scale = 1024;
    assert_non_null(norms);
    for (int one = 0; one < 2; one++) {
        float values[TR_STEP_COUNT];
        struct tr_step_result step, after;
        double sum = 0;
        r.exec->has_one_norm = one;
        tr_step_values(&r.cfg, 0, 1, r.g.n_targets, values);
        values[TR_STEP_LOSS_SCALE] = (float)scale;
        must(tr_exec_measure(r.exec, &r.cfg, r.micro, values, &step));
        tr_exec_param_norms(r.exec, norms);
        for (int i = 0; i < r.model->n_params; i++) {
            const float *grad = rig_grad(&r, i); /* with the loss scale */
            double want = 0;
            for (int64_t k = 0; k < r.model->param[i].n; k++)
                want += (double)grad[k] / scale * ((double)grad[k] / scale);
            sum += want;
            if (!(fabs(norms[i] - sqrt(want)) <= norm_bound(&r) * sqrt(want)))
                fail_msg("%s: norm %.9g of %s, its gradient has %.9g", name, norms[i], r.model->param[i].name,
                         sqrt(want));
        }
        assert_true(fabs(step.grad_norm - sqrt(sum)) <= norm_bound(&r) * step.grad_norm);
        must(tr_exec_measure(r.exec, &r.cfg, r.micro, values, &after));
        assert_memory_equal(&step.grad_norm, &after.grad_norm, sizeof step.grad_norm);
    }
    free(norms);
    rig_close(&r);
}

static void norms_of_parameters_are_those_of_their_gradients(void **state)
{
    (void)state;
    for_each_case(compare_norms);
}

enum { N_PROMPT = 640 };

/* The first 7 tokens of a golden's continuation are its prompt; greedy decoding must give the rest. */
static void compare_generated(const char *dir, const char *name)
{
    struct rig r;
    struct tr_generator *g = NULL;
    const float *logits = NULL;
    int64_t n = 0;
    rig_open(&r, dir, plain());
    int32_t *want = golden_read(&r.g, "generated", TR_I32, &n);
    struct tr_config cfg = { .model = dir, .threads = 2, .repetition_penalty = 1, .dp = 1, .tp = 1, .pp = 1, .cp = 1 };
    must(tr_generator_open(&cfg, n, NULL, &g));
    must(tr_generator_feed(g, want, 7, &logits));
    for (int64_t i = 7; i < n; i++) {
        int32_t id = tr_generator_pick(g, logits, want, (size_t)i);
        if (id != want[i])
            fail_msg("%s: token %" PRId64 " is %d, transformers has %d", name, i, id, want[i]);
        if (i + 1 < n)
            must(tr_generator_feed(g, &id, 1, &logits));
    }
    tr_generator_close(g);
    free(want);
    rig_close(&r);
}

static void greedy_generation_is_that_of_transformers(void **state)
{
    (void)state;
    for_each_case(compare_generated);
}

/* Feeds tokens [from, to), each a function of its place, `most` at a time; returns the logits of the last. */
static const float *feed(struct tr_generator *g, int64_t vocab, int64_t from, int64_t to, int64_t most)
{
    const float *logits = NULL;
    int32_t ids[N_PROMPT];
    for (int64_t at = from, n; at < to; at += n) {
        n = tr_min64(most, to - at);
        for (int64_t i = 0; i < n; i++)
            ids[i] = (int32_t)((at + i) * 7 % vocab);
        must(tr_generator_feed(g, ids, (size_t)n, &logits));
    }
    return logits;
}

/* A prompt at once, in the chunks of a conversation that was taken back, and token by token: three ways to one result,
 * within what two results may each be from the exact one. N_PROMPT tokens take large and small chunks and padding. */
static void compare_prompts(const char *dir, const char *name)
{
    struct rig r;
    struct tr_generator *g[3] = { 0 };
    const float *logits[3];
    rig_open(&r, dir, plain());
    const struct tr_hparams *hp = &r.model->hp;
    bool is_learned = hp->rope[TR_C_ROPE].type == TR_ROPE_NONE;
    int64_t n = is_learned ? tr_min64(hp->max_positions, N_PROMPT) : N_PROMPT, half = n / 2 + 1;
    struct tr_config cfg = { .model = dir, .threads = 2, .repetition_penalty = 1, .dp = 1, .tp = 1, .pp = 1, .cp = 1 };
    for (int i = 0; i < 3; i++)
        must(tr_generator_open(&cfg, n, NULL, &g[i]));
    logits[0] = feed(g[0], hp->vocab, 0, n, n);
    (void)feed(g[1], hp->vocab, 0, n - 1, n);
    tr_generator_rewind(g[1], half);
    logits[1] = feed(g[1], hp->vocab, half, n, n);
    logits[2] = feed(g[2], hp->vocab, 0, n, 1);
    double top = 0, most = 2 * bound(&r, 1);
    for (int64_t i = 0; i < hp->vocab; i++)
        top = fmax(top, fabs((double)logits[2][i]));
    for (int k = 0; k < 2; k++)
        for (int64_t i = 0; i < hp->vocab; i++) {
            double d = fabs((double)logits[k][i] - (double)logits[2][i]) / top;
            if (!(d <= most))
                fail_msg("%s: logit %" PRId64 " of way %d is %g off, allowed %g", name, i, k, d, most);
        }
    for (int i = 0; i < 3; i++)
        tr_generator_close(g[i]);
    rig_close(&r);
}

static void a_prompt_gives_the_logits_of_its_tokens_one_by_one(void **state)
{
    (void)state;
    for_each_case(compare_prompts);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_and_loss_are_those_of_transformers),
        cmocka_unit_test(gradients_are_those_of_autograd),
        cmocka_unit_test(gradients_of_fused_programs_are_those_of_autograd),
        cmocka_unit_test(weights_after_ten_adamw_steps_are_those_of_torch),
        cmocka_unit_test(losses_of_tokens_are_their_definitions),
        cmocka_unit_test(recompute_and_threads_keep_every_bit),
        cmocka_unit_test(micro_batches_add_up_to_the_batch),
        cmocka_unit_test(norms_of_parameters_are_those_of_their_gradients),
        cmocka_unit_test(greedy_generation_is_that_of_transformers),
        cmocka_unit_test(a_prompt_gives_the_logits_of_its_tokens_one_by_one),
    };
    return cmocka_run_group_tests_name("golden", tests, NULL, NULL);
}
