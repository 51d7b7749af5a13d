/* golden_bounds.h - how far a result may be from a golden one.
 *
 * The reference was computed in float64, so all error is ours, and all of it is rounding in float32. How much is right?
 * A sum of n products rounds by about u sqrt(n) of its largest term (u = 2^-24; Higham and Mary 2019: independent
 * roundings add as square roots), and a result that passed through k such ops by about u sqrt(k n). Ops amplify what
 * they are given: softmax and norms of spread weights do so by a small factor. GROWTH allows for that, and is the only
 * number here that was chosen: a wrong formula, index or missing term is an error of 1e-3 and more.
 *
 * Some networks amplify more, and for those the file says how much. "spread" holds how far the reference, in float64,
 * moves when every weight is rounded once: its gradients, relative to their tensors, and its weights after ten steps,
 * as a share of the way (make_golden.py). A run in float32 rounds the operands of each product, forward and twice
 * backward, so it may be GROWTH times as far off. Ten steps amplify most: an element whose gradient is no larger than
 * its rounding goes either way, by lr a step, and the gradients of the others follow. Of a model with two such elements
 * (OLMo 2, gradients of 5e-7 and 1e-5 of the largest) all weights were 6e-5 of the way off, where 2e-5 is usual;
 * float32 in PyTorch is 1.1e-4 off there, and the reference with rounded weights 1e-5 to 1.2e-4. An adapter that
 * sharpens all scores (phi3-rslora, a factor of 5) has gradients off by 2.2e-5, of PyTorch in float32 by 3.4e-5, of the
 * reference with rounded weights by 0.9e-5 to 1.6e-5, where 1e-6 is usual. Files without "spread" need none.
 */
#ifndef TR_TESTS_TRAIN_GOLDEN_BOUNDS_H
#define TR_TESTS_TRAIN_GOLDEN_BOUNDS_H

#include "golden_rig.h"
#include <glob.h>
#include <math.h>

enum { OPS_PER_BLOCK = 14, OPS_OUTSIDE = 6, STEPS = 10, MIN_CASES = 20 };
static const double UNIT = 0x1p-24, GROWTH = 4;

typedef void case_fn(const char *dir, const char *name);

static inline void for_each_case(case_fn *fn)
{
    glob_t found;
    const char *root = getenv("TR_GOLDEN"); /* other cases than the committed ones: random_families.py */
    char pattern[TR_PATH_MAX];
    must(tr_format(pattern, sizeof pattern, "%s/*/golden.safetensors", root ? root : TR_SOURCE_DIR "/tests/golden"));
    assert_int_equal(glob(pattern, 0, NULL, &found), 0);
    assert_true(root || found.gl_pathc >= MIN_CASES);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        char *dir = found.gl_pathv[i];
        *strrchr(dir, '/') = 0;
        fn(dir, strrchr(dir, '/') + 1);
    }
    globfree(&found);
}

/* Relative to the largest element of a tensor, after `passes` passes of the network: 1 forward, 3 with backward (the
 * backward has two products for each of the forward). */
static inline double bound(const struct rig *r, int passes)
{
    const struct tr_hparams *hp = &r->model->hp;
    double ops = passes * (OPS_PER_BLOCK * (double)hp->layers + OPS_OUTSIDE);
    double sizes[] = { (double)hp->hidden, (double)hp->ffn, (double)hp->vocab, (double)(r->g.rows * r->g.length) };
    double longest = 0;
    for (size_t i = 0; i < TR_COUNT_OF(sizes); i++)
        longest = fmax(longest, sizes[i]);
    return GROWTH * UNIT * sqrt(ops * longest);
}

static inline double grad_bound(const struct rig *r)
{
    return fmax(bound(r, 3), GROWTH * r->g.spread[SPREAD_GRAD]);
}

static inline double max_abs(const double *x, int64_t n)
{
    double most = 0;
    for (int64_t i = 0; i < n; i++)
        most = fmax(most, fabs(x[i]));
    return most;
}

static inline double max_diff(const float *a, const double *b, int64_t n)
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
static inline double grad_scale(const struct rig *r, int param)
{
    const struct tr_param *p = &r->model->param[param];
    double *g = golden_param(&r->g, "grad", p), scale = max_abs(g, p->n);
    free(g);
    size_t n = strlen(p->name);
    for (int i = 0; n > 5 && strcmp(p->name + n - 5, ".bias") == 0 && i < r->model->n_params; i++) {
        const struct tr_param *w = &r->model->param[i];
        if (strncmp(w->name, p->name, n - 4) != 0 || strcmp(w->name + n - 4, "weight") != 0 || r->is_frozen[i])
            continue;
        double *gw = golden_param(&r->g, "grad", w);
        scale = fmax(scale, max_abs(gw, w->n));
        free(gw);
    }
    return scale;
}

/* How far a weight may be off after STEPS steps of AdamW. Adam divides the mean gradient by its root mean square, so
 * what counts is the error of a gradient element, d, against that element itself: at step t the update changes by at
 * most lr (1 + C) d / sqrt(v), where C = 1.25 bounds |m| / sqrt(v), and sqrt(v) >= |g_0| / sqrt(t) as v averages the
 * squares of t gradients. Summed over ten steps: lr 2.25 d / |g_0| * 22.5 = 51 lr d / |g_0|. An element no larger than
 * its error may go either way (a key bias without rope is nothing but rounding): two runs part by at most 2 C lr a
 * step. What that does to the others is in the spread. The float32 weight itself rounds twice a step. */
static inline double after_bound(const struct rig *r, double weight, double grad, double grad_error)
{
    double part = 51 * grad_error / fmax(fabs(grad), 0x1p-1000) + STEPS * GROWTH * r->g.spread[SPREAD_AFTER];
    return 2 * STEPS * UNIT * fabs(weight) + r->cfg.learning_rate * fmin(2.5 * STEPS, part);
}

#endif
