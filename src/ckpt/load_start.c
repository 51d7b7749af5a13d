/* load_start.c - adapters that begin with a part of the base: PiSSA with the largest singular triplets of W, OLoRA with
 * the first columns of its QR factors. A run computes W x - s B0 A0 x + s B A x with A0, B0 frozen, so the base stays
 * what its directory says, and at the first step A = A0 and B = B0.
 *
 * A0 and B0 are rounded to the dtype of compute before A and B are set to them: what is not held of A0 must not be
 * taken for something that A has learnt. Every rank makes the same numbers from the same bytes, whatever part of them
 * it holds, so a start does not depend on the layout.
 *
 * The loss reads the head's matrix tile by tile and has no place for a second pair, so there W is held as W - s B0 A0,
 * in its dtype, which is what PEFT does everywhere.
 */
#include "ckpt/load_impl.h"
#include <math.h>
#include <stdlib.h>

struct starting {
    const struct tr_store *s;
    const struct tr_hf *hf;
    int a, b, start_a, start_b, weight;
    int64_t n_in, n_out, r;
    double scale;
    float *w;            /* (out, in) */
    float *left, *right; /* B (out, r), and A (r, in) or its transpose */
};

static enum tr_status read_weight(struct starting *x, float *buf)
{
    const struct tr_model *m = x->s->model;
    const struct tr_param *w = &m->param[x->weight];
    bool is_turned = tr_param_is_in_out(m, x->weight);
    bool is_packed = tr_store_packed(x->s, x->weight);
    float *scales = NULL;
    enum tr_status st = TR_OK;
    size_t at = 0;
    TR_BUG_ON(!tr_weights_find(x->hf, m, x->weight, &at) || (is_packed && is_turned));
    if (is_packed) /* what is decoded of it, as PEFT has it */
        TR_TRY(tr_load_scales(x->s, x->hf, at, x->weight, buf, &scales));
    for (int64_t first = 0; first < w->n && st == TR_OK; first += TR_LOAD_CHUNK) {
        int64_t n = tr_min64(TR_LOAD_CHUNK, w->n - first);
        st = is_packed ? tr_load_seen(x->s, x->hf, at, x->weight, first, n, scales, buf)
                       : tr_load_floats(x->s, x->hf, at, x->weight, first, n, buf);
        for (int64_t k = 0; k < n && st == TR_OK; k++) {
            int64_t row = (first + k) / w->cols, col = (first + k) % w->cols;
            x->w[is_turned ? col * x->n_in + row : row * x->n_in + col] = buf[k];
        }
    }
out:
    free(scales);
    return st;
}

/* A = sqrt(S / s) V^T, B = U sqrt(S / s) */
static enum tr_status make_pissa(struct starting *x)
{
    enum tr_status st = TR_OK;
    double *s = malloc((size_t)x->r * sizeof *s);
    float *v = malloc((size_t)(x->n_in * x->r) * sizeof *v);
    if (!s || !v)
        TR_TRY(tr_fail(TR_NOMEM, "load: out of memory"));
    TR_TRY(tr_svd_top(x->w, x->n_out, x->n_in, x->r, x->s->pool, x->left, s, v));
    for (int64_t k = 0; k < x->r; k++) {
        double root = sqrt(s[k] / x->scale);
        for (int64_t i = 0; i < x->n_out; i++)
            x->left[i * x->r + k] = (float)((double)x->left[i * x->r + k] * root);
        for (int64_t j = 0; j < x->n_in; j++)
            x->right[k * x->n_in + j] = (float)((double)v[j * x->r + k] * root);
    }
out:
    free(s);
    free(v);
    return st;
}

static enum tr_status put_matrix(const struct tr_store *s, int param, const float *from, float *buf)
{
    enum tr_status st = TR_OK;
    int64_t n_all = s->model->param[param].n;
    for (int64_t first = 0; first < n_all && st == TR_OK; first += TR_LOAD_CHUNK) {
        int64_t n = tr_min64(TR_LOAD_CHUNK, n_all - first);
        memcpy(buf, from + first, (size_t)n * sizeof *buf);
        st = tr_put_weights(s, param, first, n, buf, 0);
    }
    return st;
}

static enum tr_status round_matrix(const struct tr_store *s, float *x, int64_t n)
{
    enum tr_dtype d = s->states.row[TR_S_VALUE].dtype;
    if (d == TR_F32)
        return TR_OK;
    void *narrow = malloc((size_t)n * tr_dtype_bytes(d));
    if (!narrow)
        return tr_fail(TR_NOMEM, "load: out of memory");
    tr_convert(x, TR_F32, narrow, d, (size_t)n);
    tr_convert(narrow, d, x, TR_F32, (size_t)n);
    free(narrow);
    return TR_OK;
}

/* ---- the head ---- */

static bool is_head(const struct starting *x)
{
    return !x->s->model->hp.is_tied && x->weight == tr_model_head(x->s->model);
}

struct subtracting {
    const struct starting *x;
    int64_t first; /* row */
    float *buf;
};

static void subtract_row(void *ctx, int64_t task, int worker)
{
    enum { TILE = 1024 };
    const struct subtracting *g = ctx;
    const struct starting *x = g->x;
    const float *left = x->left + (g->first + task) * x->r;
    float *w = g->buf + task * x->n_in, sum[TILE];
    (void)worker;
    for (int64_t at = 0; at < x->n_in; at += TILE) {
        int64_t n = tr_min64(TILE, x->n_in - at);
        memset(sum, 0, sizeof sum);
        for (int64_t k = 0; k < x->r; k++)
            for (int64_t i = 0; i < n; i++)
                sum[i] += left[k] * x->right[k * x->n_in + at + i];
        for (int64_t i = 0; i < n; i++)
            w[at + i] -= (float)x->scale * sum[i];
    }
}

static enum tr_status put_rest(const struct starting *x, float *buf)
{
    const struct tr_store *s = x->s;
    enum tr_status st = TR_OK;
    int64_t most = TR_LOAD_CHUNK / x->n_in;
    size_t at = 0;
    TR_BUG_ON(!tr_weights_find(x->hf, s->model, x->weight, &at) || most == 0);
    for (int64_t row = 0; row < x->n_out && st == TR_OK; row += most) {
        int64_t n = tr_min64(most, x->n_out - row);
        if (!s->wants(s->ctx, TR_S_VALUE, x->weight, row * x->n_in, n * x->n_in))
            continue;
        st = tr_load_floats(s, x->hf, at, x->weight, row * x->n_in, n * x->n_in, buf);
        if (st == TR_OK) {
            tr_pool_run(s->pool, n, subtract_row, &(struct subtracting){ x, row, buf });
            st = tr_put_weights(s, x->weight, row * x->n_in, n * x->n_in, buf, 0);
        }
    }
    return st;
}

static enum tr_status make_start(struct starting *x, bool with_live, float *buf)
{
    enum tr_status st = TR_OK;
    TR_TRY(TR_ALLOC(x->w, (size_t)(x->n_in * x->n_out), "%s", x->s->model->param[x->weight].name));
    TR_TRY(TR_ALLOC(x->left, (size_t)(x->n_out * x->r), "%s", x->s->model->param[x->weight].name));
    TR_TRY(TR_ALLOC(x->right, (size_t)(x->n_in * x->r), "%s", x->s->model->param[x->weight].name));
    TR_TRY(read_weight(x, buf));
    if (x->s->model->param[x->a].init == TR_INIT_PISSA)
        TR_TRY(make_pissa(x));
    else
        TR_TRY(tr_qr_top(x->w, x->n_out, x->n_in, x->r, x->s->pool, x->left, x->right));
    TR_TRY(round_matrix(x->s, x->left, x->n_out * x->r));
    TR_TRY(round_matrix(x->s, x->right, x->n_in * x->r));
    TR_TRY(put_matrix(x->s, x->start_a, x->right, buf));
    TR_TRY(put_matrix(x->s, x->start_b, x->left, buf));
    if (is_head(x))
        TR_TRY(put_rest(x, buf));
    if (with_live) {
        TR_TRY(put_matrix(x->s, x->a, x->right, buf));
        TR_TRY(put_matrix(x->s, x->b, x->left, buf));
    }
out:
    free(x->w);
    free(x->left);
    free(x->right);
    return st;
}

static bool is_held(const struct tr_store *s, int param)
{
    return s->wants(s->ctx, TR_S_VALUE, param, 0, s->model->param[param].n) ||
           (tr_store_holds(s, TR_S_MASTER, param) && s->wants(s->ctx, TR_S_MASTER, param, 0, s->model->param[param].n));
}

static bool is_needed(const struct starting *x)
{
    return is_held(x->s, x->a) || is_held(x->s, x->b) || is_held(x->s, x->start_a) || is_held(x->s, x->start_b) ||
           (is_head(x) && is_held(x->s, x->weight));
}

/* What belongs to parameter a; false: it is no A of a linear with a start. */
static bool find_start(const struct tr_store *s, int a, struct starting *out)
{
    static const char tail[] = ".lora_A.weight";
    const struct tr_model *m = s->model;
    const struct tr_param *p = &m->param[a];
    int n_module = (int)strlen(p->name) - (int)strlen(tail), start_a = tr_adapter_start_of(m, a);
    if (start_a < 0 || n_module < 0 || strcmp(p->name + n_module, tail) != 0)
        return false;
    struct starting x = { .s = s, .a = a, .start_a = start_a, .n_in = p->cols, .r = p->rows };
    x.b = tr_model_sibling(m, p->name, n_module, ".lora_B.weight");
    x.weight = tr_model_sibling(m, p->name, n_module, ".weight");
    TR_BUG_ON(x.b < 0 || x.weight < 0);
    x.start_b = tr_adapter_start_of(m, x.b);
    x.n_out = m->param[x.b].rows;
    x.scale = (double)p->init_std;
    *out = x;
    return true;
}

enum tr_status tr_load_starts(const struct tr_store *s, const char *base, bool with_live, float *buf)
{
    struct tr_hf *hf = NULL;
    enum tr_status st = TR_OK;
    for (int i = 0; i < s->model->n_params; i++) {
        struct starting x;
        if (!find_start(s, i, &x) || !is_needed(&x))
            continue;
        if (!hf)
            TR_TRY(tr_hf_open(base, &hf));
        x.hf = hf;
        TR_TRY(make_start(&x, with_live, buf));
    }
out:
    tr_hf_close(hf);
    return st;
}

/* ---- both halves in a file ---- */

static enum tr_status load_half(const struct tr_store *s, const struct tr_hf *hf, size_t at, int64_t from, int param,
                                float *buf)
{
    enum tr_status st = TR_OK;
    int64_t n_all = s->model->param[param].n;
    for (int64_t first = 0; first < n_all && st == TR_OK; first += TR_LOAD_CHUNK) {
        int64_t n = tr_min64(TR_LOAD_CHUNK, n_all - first);
        st = tr_load_floats(s, hf, at, param, from + first, n, buf);
        if (st == TR_OK)
            st = tr_put_weights(s, param, first, n, buf, 0);
    }
    return st;
}

static enum tr_status put_half(const struct tr_store *s, int param, const float *from, int64_t row, int64_t n_rows,
                               float sign, float *buf)
{
    int64_t r = s->model->param[param].cols;
    for (int64_t i = 0; i < n_rows; i++)
        for (int64_t k = 0; k < r; k++)
            buf[i * r + k] = from[i * 2 * r + k] * sign;
    return tr_put_weights(s, param, row * r, n_rows * r, buf, 0);
}

enum tr_status tr_load_joined(const struct tr_store *s, const struct tr_hf *hf, size_t at, int param, int start,
                              float *buf)
{
    enum tr_status st = TR_OK;
    const struct tr_param *p = &s->model->param[param];
    float *both = NULL;
    if (!tr_adapter_joins_columns(p->name)) {
        TR_TRY(load_half(s, hf, at, 0, param, buf));
        return load_half(s, hf, at, p->n, start, buf);
    }
    int64_t most = tr_max64(1, TR_LOAD_CHUNK / (2 * p->cols));
    TR_TRY(TR_ALLOC(both, (size_t)(most * 2 * p->cols), "a load"));
    for (int64_t row = 0; row < p->rows; row += most) {
        int64_t n = tr_min64(most, p->rows - row);
        TR_TRY(tr_load_floats(s, hf, at, param, row * 2 * p->cols, n * 2 * p->cols, both));
        TR_TRY(put_half(s, param, both, row, n, 1, buf));
        TR_TRY(put_half(s, start, both + p->cols, row, n, -1, buf));
    }
out:
    free(both);
    return st;
}

enum tr_status tr_load_head_rest(const struct tr_store *s, const char *base, const struct tr_hf *adapter, float *buf)
{
    struct tr_hf *hf = NULL;
    struct starting x = { .s = NULL };
    enum tr_status st = TR_OK;
    size_t at_a = 0, at_b = 0;
    float *both = NULL;
    for (int i = 0; i < s->model->n_params && !(x.s && is_head(&x)); i++)
        (void)find_start(s, i, &x);
    if (!x.s || !is_head(&x))
        return TR_OK;
    TR_BUG_ON(!tr_adapter_find(adapter, s->model, x.a, &at_a) || !tr_adapter_find(adapter, s->model, x.b, &at_b));
    TR_TRY(tr_hf_open(base, &hf));
    x.hf = hf;
    TR_TRY(TR_ALLOC(x.right, (size_t)(x.r * x.n_in), "a load"));
    TR_TRY(TR_ALLOC(x.left, (size_t)(x.n_out * x.r), "a load"));
    TR_TRY(TR_ALLOC(both, (size_t)(2 * x.r), "a load"));
    TR_TRY(tr_hf_read(adapter, at_a, (uint64_t)(x.r * x.n_in), (size_t)(x.r * x.n_in), x.right, TR_F32));
    for (int64_t row = 0; row < x.n_out; row++) {
        TR_TRY(tr_hf_read(adapter, at_b, (uint64_t)(row * 2 * x.r), (size_t)(2 * x.r), both, TR_F32));
        for (int64_t k = 0; k < x.r; k++)
            x.left[row * x.r + k] = -both[x.r + k];
    }
    TR_TRY(put_rest(&x, buf));
out:
    free(both);
    free(x.left);
    free(x.right);
    tr_hf_close(hf);
    return st;
}
