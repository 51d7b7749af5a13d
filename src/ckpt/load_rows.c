/* load_rows.c - rows of a table that learn by themselves (PEFT's trainable tokens). A run computes
 * E[i] - pick[i] E0 + pick[i] E1, where the rows of pick are zero but for the tokens that learn, E0 are their rows of
 * the base and E1 those that learn. E0 is what the run holds of the base, so the first two terms cancel exactly. */
#include "ckpt/load_impl.h"

/* The rows of the base, each times `sign`. */
static enum tr_status put_rows(const struct tr_store *s, const struct tr_hf *hf, const struct tr_model_rows *r,
                               int param, float sign, float *buf)
{
    const struct tr_model *m = s->model;
    int64_t cols = m->param[param].cols;
    enum tr_status st = TR_OK;
    size_t at = 0;
    TR_BUG_ON(!tr_weights_find(hf, m, r->table, &at) || cols > TR_LOAD_CHUNK);
    for (int64_t row = 0; row < r->n && st == TR_OK; row++) {
        st = tr_load_floats(s, hf, at, r->table, r->id[row] * cols, cols, buf);
        for (int64_t k = 0; k < cols && st == TR_OK; k++)
            buf[k] *= sign;
        if (st == TR_OK)
            st = tr_put_weights(s, param, row * cols, cols, buf, 0);
    }
    return st;
}

static enum tr_status put_pick(const struct tr_store *s, int param, float *buf)
{
    int64_t n_all = s->model->param[param].n;
    enum tr_status st = TR_OK;
    for (int64_t first = 0; first < n_all && st == TR_OK; first += TR_LOAD_CHUNK) {
        int64_t n = tr_min64(TR_LOAD_CHUNK, n_all - first);
        if (!s->wants(s->ctx, TR_S_VALUE, param, first, n))
            continue;
        st = tr_model_init_param(s->model, param, 0, first, n, s->pool, buf);
        if (st == TR_OK)
            st = tr_put_weights(s, param, first, n, buf, 0);
    }
    return st;
}

enum tr_status tr_load_rows(const struct tr_store *s, const struct tr_hf *hf, bool with_live, float *buf)
{
    enum tr_status st = TR_OK;
    for (int i = 0; i < s->model->n_params && st == TR_OK; i++) {
        const struct tr_model_rows *r = tr_model_rows_of(s->model, i);
        enum tr_init init = s->model->param[i].init;
        if (!r || (init == TR_INIT_ROWS && !with_live))
            continue;
        st = init == TR_INIT_ROWS_PICK ? put_pick(s, i, buf)
                                       : put_rows(s, hf, r, i, init == TR_INIT_ROWS_MINUS ? -1.0f : 1.0f, buf);
    }
    return st;
}

enum tr_status tr_load_new_rows(const struct tr_store *s, const char *base, float *buf)
{
    struct tr_hf *hf = NULL;
    enum tr_status st = s->model->n_rows > 0 ? tr_hf_open(base, &hf) : TR_OK;
    if (hf)
        st = tr_load_rows(s, hf, true, buf);
    tr_hf_close(hf);
    return st;
}
