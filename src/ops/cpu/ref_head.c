/* ref_head.c - the definition of the output head with its cross entropy, with and without gradients.
 *
 * The gradient holds d loss / d logit as one (N, V) matrix of doubles: obvious, and the only reference that allocates.
 */
#include "ops/cpu/ref.h"
#include <float.h>
#include <math.h>
#include <stdlib.h>

static double logit(const struct tr_call *c, int64_t n, int64_t v)
{
    double sum = 0;
    for (int64_t i = 0; i < c->in[0].cols; i++)
        sum += tr_ref_get(&c->in[0], n, i) * tr_ref_get(&c->in[1], v, i);
    const struct tr_view *u = &c->in[tr_head_u(c->op)];
    for (int64_t i = 0; u->data && i < u->cols; i++)
        sum += tr_ref_get(u, n, i) * tr_ref_get(u + 1, v, i);
    return tr_ref_softcap(tr_ref_factor(c) * sum + tr_ref_opt(&c->in[2], 0, v), c->attr.softcap);
}

/* Returns the loss of row n and sets *lse to its log-sum-exp. The sum is online, so each logit is computed once. */
static double row_loss(const struct tr_call *c, int64_t n, double *lse)
{
    int64_t target = tr_ref_int(&c->in[3], n);
    double max = -INFINITY, sum = 0, at_target = 0;
    if (target < 0)
        return 0;
    for (int64_t v = 0; v < c->in[1].rows; v++) {
        double l = logit(c, n, v), new_max = fmax(max, l);
        sum = sum * exp(max - new_max) + exp(l - new_max);
        max = new_max;
        if (v == target)
            at_target = l;
    }
    *lse = max + log(sum);
    return *lse - at_target;
}

void tr_ref_HEAD_LOSS(const struct tr_call *c)
{
    double lse;
    TR_BUG_ON(c->out[1].data != NULL);
    for (int64_t n = 0; n < c->in[0].rows; n++)
        tr_ref_put(&c->out[0], n, 0, row_loss(c, n, &lse));
}

/* Row n of d(sum of losses * INV_TOKENS) / d(scale * x.w + bias): (softmax - one at the target) * slope of the cap. */
static void row_dlogits(const struct tr_call *c, int64_t n, double lse, double *dz)
{
    int64_t target = tr_ref_int(&c->in[3], n);
    double inv_tokens = (double)((const float *)c->in[4].data)[TR_STEP_INV_TOKENS];
    if (c->op == TR_OP_HEAD_GRAD && c->in[TR_HEAD_WEIGHT].data)
        inv_tokens *= tr_ref_get(&c->in[TR_HEAD_WEIGHT], n, 0);
    for (int64_t v = 0; v < c->in[1].rows; v++) {
        bool is_kept = c->op == TR_OP_HEAD_GRAD && c->in[6].data;
        double l = target < 0 ? 0 : is_kept ? tr_ref_get(&c->in[6], n, v) : logit(c, n, v);
        double wanted = (double)c->attr.smoothing_each;
        wanted += v + c->attr.first == target ? 1.0 - (double)c->attr.smoothing : 0.0;
        double p = target < 0 ? 0 : exp(l - lse) * (1.0 + 2.0 * (double)c->attr.z_loss * lse) - wanted;
        dz[v] = p * inv_tokens * tr_ref_softcap_slope(l, c->attr.softcap);
    }
}

/* dx of w, or du of B. */
static void head_dx(const struct tr_call *c, const struct tr_view *w, const struct tr_view *dx, const double *dz)
{
    for (int64_t n = 0; n < dx->rows; n++) {
        for (int64_t i = 0; i < dx->cols; i++) {
            double sum = 0;
            for (int64_t v = 0; v < w->rows; v++)
                sum += dz[n * w->rows + v] * tr_ref_get(w, v, i);
            tr_ref_put(dx, n, i, tr_ref_factor(c) * sum);
        }
    }
}

/* dW of x, or dB of u. */
static void head_dw(const struct tr_call *c, const struct tr_view *x, int out, const double *dz)
{
    int64_t n_vocab = c->in[1].rows;
    for (int64_t v = 0; v < n_vocab; v++)
        for (int64_t i = 0; i < x->cols; i++) {
            double sum = 0;
            for (int64_t n = 0; n < x->rows; n++)
                sum += dz[n * n_vocab + v] * tr_ref_get(x, n, i);
            tr_ref_put_acc(c, out, v, i, tr_ref_factor(c) * sum);
        }
}

static void head_db(const struct tr_call *c, int out, const double *dz)
{
    int64_t n_vocab = c->in[1].rows;
    for (int64_t v = 0; v < n_vocab; v++) {
        double sum = 0;
        for (int64_t n = 0; n < c->in[0].rows; n++)
            sum += dz[n * n_vocab + v];
        tr_ref_put_acc(c, out, 0, v, sum);
    }
}

/* out: that of dx; dW, db, du and dB follow. */
static void head_grads(const struct tr_call *c, int out, const double *dz)
{
    const struct tr_view *u = &c->in[tr_head_u(c->op)];
    head_dx(c, &c->in[1], &c->out[out], dz);
    head_dw(c, &c->in[0], out + 1, dz);
    head_db(c, out + 2, dz);
    if (!u->data)
        return;
    head_dx(c, u + 1, &c->out[out + 3], dz);
    head_dw(c, u, out + 4, dz);
}

void tr_ref_HEAD_LOSS_GRAD(const struct tr_call *c)
{
    int64_t n_rows = c->in[0].rows, n_vocab = c->in[1].rows;
    double *dz = calloc((size_t)(n_rows * n_vocab), sizeof *dz);
    TR_BUG_ON(dz == NULL);
    for (int64_t n = 0; n < n_rows; n++) {
        double lse = 0;
        tr_ref_put(&c->out[0], n, 0, row_loss(c, n, &lse));
        row_dlogits(c, n, lse, dz + n * n_vocab);
    }
    head_grads(c, 1, dz);
    free(dz);
}

/* ---- the same when each rank has a shard of the vocabulary ---- */

void tr_ref_HEAD_STATS(const struct tr_call *c)
{
    for (int64_t n = 0; n < c->in[0].rows; n++) {
        int64_t target = tr_ref_int(&c->in[3], n);
        double sum = 0, squares = 0, at_target = 0;
        for (int64_t v = 0; v < c->in[1].rows && target >= 0; v++) {
            double l = logit(c, n, v);
            sum += exp(l);
            squares += exp(2 * l);
            at_target += (double)c->attr.smoothing_each * l;
            at_target += v + c->attr.first == target ? (1.0 - (double)c->attr.smoothing) * l : 0;
            if (c->out[1].data)
                tr_ref_put(&c->out[1], n, v, l);
        }
        tr_ref_put(&c->out[0], n, 0, target < 0 ? (double)-FLT_MAX : log(sum));
        tr_ref_put(&c->out[0], n, 1, at_target);
        if (c->out[0].cols > 2)
            tr_ref_put(&c->out[0], n, 2, target < 0 ? (double)-FLT_MAX : log(squares));
    }
}

void tr_ref_HEAD_COMBINE(const struct tr_call *c)
{
    int64_t n_rows = c->out[0].rows;
    for (int64_t n = 0; n < n_rows; n++) {
        double sum = 0, squares = 0, at_target = 0;
        for (int64_t i = n; i < c->in[0].rows; i += n_rows) {
            sum += exp(tr_ref_get(&c->in[0], i, 0)); /* 0 where the token has no target */
            at_target += tr_ref_get(&c->in[0], i, 1);
            squares += c->out[2].data ? exp(tr_ref_get(&c->in[0], i, 2)) : 0;
        }
        double lse = sum > 0 ? log(sum) : 0;
        tr_ref_put(&c->out[0], n, 0, sum > 0 ? lse - at_target + (double)c->attr.z_loss * lse * lse : 0);
        tr_ref_put(&c->out[1], n, 0, lse);
        if (c->out[2].data)
            tr_ref_put(&c->out[2], n, 0, sum > 0 ? log(squares) - 2 * lse : 0);
    }
}

void tr_ref_HEAD_GRAD(const struct tr_call *c)
{
    int64_t n_rows = c->in[0].rows, n_vocab = c->in[1].rows;
    double *dz = calloc((size_t)(n_rows * n_vocab), sizeof *dz);
    TR_BUG_ON(dz == NULL);
    for (int64_t n = 0; n < n_rows; n++)
        row_dlogits(c, n, tr_ref_get(&c->in[5], n, 0), dz + n * n_vocab);
    head_grads(c, 0, dz);
    free(dz);
}
