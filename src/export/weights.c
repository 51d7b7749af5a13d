/* weights.c - the data of a GGUF file: written row by row from a model's directory, and read back as a store of
 * weights, which is how the file is proven before it gets its name.
 *
 * Writing holds a chunk of rows; a matrix that is stored the other way round (GPT-2) is held whole. Reading holds one
 * tensor. */
#include "export/weights.h"
#include <math.h>
#include <stdlib.h>

enum { CHUNK = 1 << 20 }; /* elements, or one row */

struct writing {
    struct tr_gguf_weights *w;
    const struct tr_hf *hf;
    int fd;
    const char *what;
    float *x, *whole; /* a chunk; a matrix that is turned */
    uint8_t *bytes;
    size_t tensor;      /* the tensor that is written, */
    enum tr_ggml type;  /* its type, */
    int64_t rows, cols; /* and its shape; the rows of a vector whose elements change places are its elements */
};

static void encode_row(void *ctx, int64_t row, int worker)
{
    const struct writing *k = ctx;
    (void)worker;
    tr_ggml_encode(k->type, k->x + row * k->cols, k->cols, k->bytes + (size_t)row * tr_ggml_bytes(k->type, k->cols));
}

/* Rows [first, first + n) of the file, from tensor `at` of the directory. */
static enum tr_status read_rows(struct writing *k, size_t at, int64_t first, int64_t n)
{
    const struct tr_gguf_slot *s = &k->w->slot[k->tensor];
    enum tr_status st = TR_OK;
    int64_t cols = k->cols;
    if (s->order == TR_GGUF_AS_IS)
        st = tr_hf_read(k->hf, at, (uint64_t)(first * cols), (size_t)(n * cols), k->x, TR_F32);
    for (int64_t r = 0; r < n && st == TR_OK && s->order != TR_GGUF_AS_IS; r++) {
        if (s->order == TR_GGUF_TRANSPOSED)
            for (int64_t c = 0; c < cols; c++)
                k->x[r * cols + c] = k->whole[c * k->rows + first + r];
        else
            st = tr_hf_read(k->hf, at, (uint64_t)(tr_gguf_row(k->w->model, s->order, first + r) * cols), (size_t)cols,
                            k->x + r * cols, TR_F32);
    }
    for (int64_t i = 0; i < n * cols && st == TR_OK; i++) {
        if (!isfinite(k->x[i]))
            return tr_fail(TR_USAGE, "gguf: %s has an element that is not finite", k->w->model->param[s->param].name);
        k->x[i] += (float)s->offset;
    }
    return st;
}

static enum tr_status read_whole(struct writing *k, size_t at)
{
    const struct tr_param *p = &k->w->model->param[k->w->slot[k->tensor].param];
    free(k->whole);
    k->whole = malloc((size_t)p->n * sizeof *k->whole);
    return k->whole ? tr_hf_read(k->hf, at, 0, (size_t)p->n, k->whole, TR_F32)
                    : tr_fail(TR_NOMEM, "gguf: no memory for %s", p->name);
}

static enum tr_status write_tensor(struct writing *k)
{
    static const char zeros[TR_GGUF_ALIGN];
    const struct tr_gguf_slot *s = &k->w->slot[k->tensor];
    const struct tr_gguf_tensor *t = &k->w->tensor[k->tensor];
    size_t at = 0, n_bytes = tr_gguf_tensor_bytes(t);
    bool is_turned_vector = t->n_dims == 1 && s->order != TR_GGUF_AS_IS;
    k->type = t->type;
    k->cols = is_turned_vector ? 1 : t->dims[0];
    k->rows = is_turned_vector ? t->dims[0] : t->n_dims == 2 ? t->dims[1] : 1;
    if (s->param >= 0)
        TR_BUG_ON(!tr_weights_find(k->hf, k->w->model, s->param, &at)); /* the caller has checked the directory */
    if (s->order == TR_GGUF_TRANSPOSED)
        TR_PASS(read_whole(k, at));
    int64_t most = tr_max64(1, CHUNK / k->cols);
    for (int64_t first = 0; first < k->rows; first += most) {
        int64_t n = tr_min64(most, k->rows - first);
        if (s->param < 0)
            memcpy(k->x, s->factor, (size_t)k->cols * sizeof *k->x);
        else
            TR_PASS(read_rows(k, at, first, n));
        tr_pool_run(k->w->pool, n, encode_row, k);
        TR_PASS(tr_write_all(k->fd, k->what, k->bytes, (size_t)n * tr_ggml_bytes(k->type, k->cols)));
    }
    return tr_write_all(k->fd, k->what, zeros, (TR_GGUF_ALIGN - n_bytes % TR_GGUF_ALIGN) % TR_GGUF_ALIGN);
}

enum tr_status tr_gguf_weights_write(struct tr_gguf_weights *w, const char *dir, int fd, const char *what)
{
    enum tr_status st = TR_OK;
    struct writing k = { .w = w, .fd = fd, .what = what };
    struct tr_hf *hf = NULL;
    int64_t most = CHUNK;
    for (size_t i = 0; i < w->n; i++)
        most = tr_max64(most, w->tensor[i].dims[0]);
    TR_TRY(tr_hf_open(dir, &hf));
    k.hf = hf;
    k.x = malloc((size_t)most * sizeof *k.x);
    k.bytes = malloc((size_t)most * sizeof *k.x); /* no type has more bytes than F32 */
    if (!k.x || !k.bytes)
        TR_TRY(tr_fail(TR_NOMEM, "gguf: no memory for rows of %" PRId64 " elements", most));
    for (k.tensor = 0; k.tensor < w->n; k.tensor++)
        TR_TRY(write_tensor(&k));
out:
    free(k.x);
    free(k.whole);
    free(k.bytes);
    tr_hf_close(hf);
    return st;
}

/* ---- reading back ---- */

/* One tensor in the order of the model. */
static void restore(const struct tr_gguf_weights *w, size_t i, const float *x, float *out)
{
    const struct tr_gguf_slot *s = &w->slot[i];
    const struct tr_param *p = &w->model->param[s->param];
    bool is_turned = s->order == TR_GGUF_TRANSPOSED;
    for (int64_t r = 0; r < p->rows && p->n_dims == 2; r++) {
        int64_t to = is_turned ? r : tr_gguf_row(w->model, s->order, r);
        for (int64_t c = 0; c < p->cols; c++)
            out[to * p->cols + c] = x[is_turned ? c * p->rows + r : r * p->cols + c] - (float)s->offset;
    }
    for (int64_t c = 0; c < p->n && p->n_dims == 1; c++)
        out[tr_gguf_row(w->model, s->order, c)] = x[c] - (float)s->offset;
}

static enum tr_status decode_param(struct tr_gguf_weights *w, int param)
{
    enum tr_status st = TR_OK;
    size_t i = 0;
    while (w->slot[i].param != param)
        i++;
    const struct tr_gguf_tensor *t = &w->tensor[i];
    size_t n_bytes = tr_gguf_tensor_bytes(t), n = (size_t)w->model->param[param].n;
    uint8_t *bytes = malloc(n_bytes);
    float *x = malloc(n * sizeof *x);
    free(w->value);
    w->value = malloc(n * sizeof *w->value);
    w->param = -1;
    if (!bytes || !x || !w->value)
        TR_TRY(tr_fail(TR_NOMEM, "gguf: no memory for %s", t->name));
    TR_TRY(tr_pread_all(w->fd, t->name, bytes, n_bytes, w->data_at + t->at));
    tr_ggml_decode(t->type, bytes, (int64_t)n, x);
    restore(w, i, x, w->value);
    w->param = param;
out:
    free(bytes);
    free(x);
    return st;
}

static enum tr_status get(void *ctx, enum tr_state what, int param, int64_t first, int64_t n, const void **out)
{
    struct tr_gguf_weights *w = ctx;
    (void)what;
    (void)n;
    TR_PASS(w->param == param ? TR_OK : decode_param(w, param));
    *out = w->value + first;
    return TR_OK;
}

struct tr_store tr_gguf_weights_store(struct tr_gguf_weights *w)
{
    struct tr_store s = { .ctx = w, .model = w->model, .pool = w->pool, .get = get, .whole = get };
    tr_states_of(NULL, &(struct tr_state_dtypes){ TR_F32, TR_F32, TR_F32, TR_F32 }, &s.states);
    return s;
}
