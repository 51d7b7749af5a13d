/* load_grown.c - tables of the vocabulary with rows for tokens that their file does not have. The mean of the rows that
 * are there gives a new token the probability of an average one, where random rows would give it most of it (Hewitt
 * 2021). */
#include "ckpt/load_impl.h"
#include <stdlib.h>

bool tr_is_grown(const struct tr_model *m, int param, const struct tr_hf *hf, size_t at)
{
    const struct tr_param *p = &m->param[param];
    uint64_t cols = p->n_dims == 2 ? (uint64_t)p->dim[1] : 1;
    return m->vocab_was > 0 && p->dim[0] == m->hp.vocab &&
           (uint64_t)tr_hf_tensor(hf, at)->n_elems == (uint64_t)m->vocab_was * cols;
}

static enum tr_status find_mean(const struct tr_store *s, const struct tr_hf *hf, size_t at, int param, int64_t cols,
                                float *buf, double *mean)
{
    int64_t n_file = s->model->vocab_was * cols;
    for (int64_t first = 0; first < n_file; first += TR_LOAD_CHUNK) {
        int64_t n = tr_min64(TR_LOAD_CHUNK, n_file - first);
        TR_PASS(tr_load_floats(s, hf, at, param, first, n, buf));
        for (int64_t k = 0; k < n; k++)
            mean[(first + k) % cols] += (double)buf[k];
    }
    for (int64_t c = 0; c < cols; c++)
        mean[c] /= (double)s->model->vocab_was;
    return TR_OK;
}

static enum tr_status put_chunk(const struct tr_store *s, const struct tr_hf *hf, size_t at, int param, int64_t cols,
                                int64_t first, int64_t n, const double *mean, float *buf)
{
    int64_t n_file = s->model->vocab_was * cols, n_old = tr_max64(0, tr_min64(n, n_file - first));
    if (n_old > 0)
        TR_PASS(tr_load_floats(s, hf, at, param, first, n_old, buf));
    for (int64_t k = n_old; k < n; k++)
        buf[k] = (float)mean[(first + k) % cols];
    return tr_put_weights(s, param, first, n, buf, 0);
}

enum tr_status tr_load_grown(const struct tr_store *s, const struct tr_hf *hf, size_t at, int param, float *buf)
{
    const struct tr_param *p = &s->model->param[param];
    int64_t cols = p->n / p->dim[0];
    double *mean = NULL;
    enum tr_status st = TR_OK;
    if (tr_store_packed(s, param))
        TR_TRY(tr_fail(TR_USAGE, "resize_vocab: %s is packed, and a packed table does not grow; leave load_in_4bit out",
                       p->name));
    TR_TRY(TR_ALLOC(mean, (size_t)cols, "the mean of %s", p->name));
    TR_TRY(find_mean(s, hf, at, param, cols, buf, mean));
    for (int64_t first = 0; first < p->n; first += TR_LOAD_CHUNK) {
        int64_t n = tr_min64(TR_LOAD_CHUNK, p->n - first);
        if (tr_load_wants(s, TR_S_MASTER, param, first, n))
            TR_TRY(put_chunk(s, hf, at, param, cols, first, n, mean, buf));
    }
out:
    free(mean);
    return st;
}
