/* test_golden.c - Trireme against PyTorch: logits, loss, gradients and ten AdamW steps of every case in tests/golden.
 *
 * The reference was computed in float64, so all error is ours, and all of it is rounding in float32. How much is right?
 * A sum of n products rounds by about u sqrt(n) of its largest term (u = 2^-24; Higham and Mary 2019: independent
 * roundings add as square roots), and a result that passed through k such ops by about u sqrt(k n). Ops amplify what
 * they are given: softmax and norms of spread weights do so by a small factor. GROWTH allows for that, and is the only
 * number here that was chosen: a wrong formula, index or missing term is an error of 1e-3 and more.
 */
#include "golden_rig.h"
#include <glob.h>
#include <math.h>

enum { OPS_PER_BLOCK = 14, OPS_OUTSIDE = 6, STEPS = 10, MIN_CASES = 20 };
static const double UNIT = 0x1p-24, GROWTH = 4;

/* ---- cases ---- */

typedef void case_fn(const char *dir, const char *name);

static void for_each_case(case_fn *fn)
{
    glob_t found;
    assert_int_equal(glob(TR_SOURCE_DIR "/tests/golden/*/golden.safetensors", 0, NULL, &found), 0);
    assert_true(found.gl_pathc >= MIN_CASES);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        char *dir = found.gl_pathv[i];
        *strrchr(dir, '/') = 0;
        fn(dir, strrchr(dir, '/') + 1);
    }
    globfree(&found);
}

static struct rig_shape plain(void)
{
    return (struct rig_shape){ .n_micro = 1, .n_threads = 1, .recompute = TR_RECOMPUTE_NONE };
}

/* ---- bounds ---- */

/* Relative to the largest element of a tensor, after `passes` passes of the network: 1 forward, 3 with backward (the
 * backward has two products for each of the forward). */
static double bound(const struct rig *r, int passes)
{
    const struct tr_hparams *hp = &r->model->hp;
    double ops = passes * (OPS_PER_BLOCK * (double)hp->layers + OPS_OUTSIDE);
    double sizes[] = { (double)hp->hidden, (double)hp->ffn, (double)hp->vocab, (double)(r->g.rows * r->g.length) };
    double longest = 0;
    for (size_t i = 0; i < TR_COUNT_OF(sizes); i++)
        longest = fmax(longest, sizes[i]);
    return GROWTH * UNIT * sqrt(ops * longest);
}

static double max_abs(const double *x, int64_t n)
{
    double most = 0;
    for (int64_t i = 0; i < n; i++)
        most = fmax(most, fabs(x[i]));
    return most;
}

static double max_diff(const float *a, const double *b, int64_t n)
{
    double most = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = fabs((double)a[i] - b[i]);
        most = d > most || isnan(d) ? d : most;
    }
    return most;
}

/* What a gradient's error is measured against. A bias gradient sums the rows that, times the inputs, make its weight's
 * gradient, so it rounds like that one; its own sum may cancel (a key bias moves all scores of a query alike: its true
 * gradient is 0 without rope). */
static double grad_scale(const struct rig *r, int param)
{
    const struct tr_param *p = &r->model->param[param];
    double *g = golden_param(&r->g, "grad", p), scale = max_abs(g, p->n);
    free(g);
    size_t n = strlen(p->name);
    for (int i = 0; n > 5 && strcmp(p->name + n - 5, ".bias") == 0 && i < r->model->n_params; i++) {
        const struct tr_param *w = &r->model->param[i];
        if (strncmp(w->name, p->name, n - 4) != 0 || strcmp(w->name + n - 4, "weight") != 0)
            continue;
        double *gw = golden_param(&r->g, "grad", w);
        scale = fmax(scale, max_abs(gw, w->n));
        free(gw);
    }
    return scale;
}

/* ---- the worst error by kind of tensor, over all cases ---- */

static struct worst {
    const char *kind, *part; /* a name belongs to the first row whose part it contains */
    double grad, after;
} worst[] = {
    { "bias", ".bias", 0, 0 },      { "norm", "norm", 0, 0 },     { "norm", ".ln_", 0, 0 },
    { "attention", "attn.", 0, 0 }, { "mlp", "mlp.", 0, 0 },      { "mlp", ".fc", 0, 0 },
    { "embedding", "embed", 0, 0 }, { "embedding", "wte", 0, 0 }, { "embedding", "wpe", 0, 0 },
    { "head", "lm_head", 0, 0 },
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
    must(tr_exec_logits(r.exec, false, 0, &r.whole, &logits));
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

static void compare_gradients(const char *dir, const char *name)
{
    struct rig r;
    rig_open(&r, dir, plain());
    rig_gradients(&r);
    double limit = bound(&r, 3), most = 0;
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

static void gradients_are_those_of_autograd(void **state)
{
    (void)state;
    for_each_case(compare_gradients);
}

/* How far a weight may be off after STEPS steps of AdamW. Adam divides the mean gradient by its root mean square, so
 * what counts is the error of a gradient element, d, against that element itself: at step t the update changes by at
 * most lr (1 + C) d / sqrt(v), where C = 1.25 bounds |m| / sqrt(v), and sqrt(v) >= |g_0| / sqrt(t) as v averages the
 * squares of t gradients. Summed over ten steps: lr 2.25 d / |g_0| * 22.5 = 51 lr d / |g_0|. An element no larger than
 * its error may go either way (a key bias without rope is nothing but rounding): two runs part by at most 2 C lr a
 * step. The float32 weight itself rounds twice a step. */
static double after_bound(double weight, double grad, double grad_error, double lr)
{
    double part = fmin(2.5 * STEPS, 51 * grad_error / fmax(fabs(grad), 0x1p-1000));
    return 2 * STEPS * UNIT * fabs(weight) + lr * part;
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
    double norm = 0, want_norm = golden_number(&r.g, "grad_norm"), limit = bound(&r, 3), lr = r.cfg.learning_rate;
    double sum = 0;
    int64_t n_sharp = 0, n_all = 0;
    run_steps(&r, &norm);
    if (!(fabs(norm - want_norm) <= limit * want_norm))
        fail_msg("%s: gradient norm %.9g, expected %.9g", name, norm, want_norm);
    for (int i = 0; i < r.model->n_params; i++) {
        const struct tr_param *p = &r.model->param[i];
        int64_t first, count;
        const float *got = (const float *)(const void *)tr_exec_at(r.exec, TR_S_VALUE, i, &first, &count);
        double *want = golden_param(&r.g, "after", p), *grad = golden_param(&r.g, "grad", p);
        double scale = grad_scale(&r, i);
        struct worst *w = worst_of(p->name);
        for (int64_t k = 0; k < p->n; k++) {
            /* a token that does not occur, or a relu that wakes later: what it gets then is of ordinary size */
            double size = grad[k] == 0 && p->n_dims == 2 ? scale : grad[k];
            double allowed = after_bound(want[k], size, limit * scale, lr);
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
    assert_true(typical < limit);
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

/* ---- what must not change a result ---- */

static void compare_bits(const char *dir, const char *name)
{
    const struct rig_shape shapes[] = { { 1, 1, TR_RECOMPUTE_OP },
                                        { 1, 1, TR_RECOMPUTE_BLOCK },
                                        { 1, 2, TR_RECOMPUTE_NONE } };
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
    if (!(fabs(rig_gradients(&b) - loss) <= 4 * 0x1p-53 * loss * (double)a.g.n_targets)) /* summed in double */
        fail_msg("%s: two micro-batches give another loss", name);
    for (int i = 0; i < a.model->n_params; i++) {
        const struct tr_param *p = &a.model->param[i];
        double off = 0;
        for (int64_t k = 0; k < p->n; k++)
            off = fmax(off, fabs((double)rig_grad(&a, i)[k] - (double)rig_grad(&b, i)[k]));
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

/* The first 7 tokens of a golden's continuation are its prompt; greedy decoding must give the rest. */
static void compare_generated(const char *dir, const char *name)
{
    struct rig r;
    struct tr_generator *g = NULL;
    const float *logits = NULL;
    int64_t n = 0;
    rig_open(&r, dir, plain());
    int32_t *want = golden_read(&r.g, "generated", TR_I32, &n);
    struct tr_config cfg = { .model = dir, .threads = 2, .repetition_penalty = 1 };
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_and_loss_are_those_of_transformers),
        cmocka_unit_test(gradients_are_those_of_autograd),
        cmocka_unit_test(weights_after_ten_adamw_steps_are_those_of_torch),
        cmocka_unit_test(recompute_and_threads_keep_every_bit),
        cmocka_unit_test(micro_batches_add_up_to_the_batch),
        cmocka_unit_test(greedy_generation_is_that_of_transformers),
    };
    return cmocka_run_group_tests_name("golden", tests, NULL, NULL);
}
