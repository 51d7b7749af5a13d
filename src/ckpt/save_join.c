/* save_join.c - tensors of PiSSA and OLoRA. The run has a base without s B0 A0; the file is for the base as it is, so
 * it holds both pairs: A over A0 and, beside B, minus B0. That is the conversion that PEFT makes of such adapters. */
#include "ckpt/save_impl.h"
#include <stdlib.h>

enum { JOIN = 1 << 16 }; /* elements of a chunk of both halves */

int tr_save_join_dim(const struct tr_saver *sv, int param)
{
    return tr_adapter_joins_columns(sv->s.model->param[param].name) ? 1 : 0;
}

static int64_t chunk_of(const struct tr_saver *sv)
{
    int64_t most = JOIN;
    for (size_t i = 0; i < sv->n_entries; i++)
        if (sv->start_of[i] >= 0 && tr_save_join_dim(sv, sv->param_of[i]) == 1)
            most = tr_max64(most, 2 * sv->s.model->param[sv->param_of[i]].cols);
    return most;
}

/* Room for a chunk in the dtype of what is saved, and for the same as float. */
enum tr_status tr_save_join_open(struct tr_saver *sv)
{
    bool has_halves = false;
    for (size_t i = 0; i < sv->n_entries; i++)
        has_halves = has_halves || sv->start_of[i] >= 0;
    if (!has_halves)
        return TR_OK;
    sv->join = malloc((size_t)chunk_of(sv) * 2 * sizeof(double));
    return sv->join ? TR_OK : tr_fail(TR_NOMEM, "save: out of memory");
}

struct joining {
    struct tr_save_sink *k;
    bool is_writer;
    enum tr_dtype dtype; /* of both halves in the file's order */
    float *wide;
    char *to;
};

/* Elements [first, first + n) of a half, times sign, in rows of `width` that lie `stride` apart. */
static enum tr_status fetch(const struct joining *j, int param, float sign, int64_t first, int64_t n, int64_t width,
                            int64_t stride, char *to)
{
    const struct tr_store *s = &j->k->sv->s;
    enum tr_state what = tr_store_weights(s, param);
    size_t size = tr_dtype_bytes(j->dtype);
    const void *src = NULL;
    enum tr_status st = s->whole(s->ctx, what, param, first, n, &src);
    if (st != TR_OK || !j->is_writer)
        return st;
    tr_convert(src, s->states.row[what].dtype, j->wide, TR_F32, (size_t)n);
    for (int64_t i = 0; i < n; i++)
        j->wide[i] *= sign;
    for (int64_t row = 0; row * width < n; row++)
        tr_convert(j->wide + row * width, TR_F32, to + (size_t)(row * stride) * size, j->dtype,
                   (size_t)tr_min64(width, n - row * width));
    return TR_OK;
}

static enum tr_status walk_rows(const struct joining *j, int param)
{
    enum tr_status st = TR_OK;
    int64_t n_all = j->k->sv->s.model->param[param].n;
    for (int64_t at = 0; at < n_all && st == TR_OK; at += JOIN) {
        int64_t n = tr_min64(JOIN, n_all - at);
        st = fetch(j, param, 1, at, n, n, n, j->to);
        if (st == TR_OK && j->is_writer)
            tr_save_take(j->k, j->to, j->dtype, n);
    }
    return st;
}

static enum tr_status walk_columns(const struct joining *j, int param, int start)
{
    enum tr_status st = TR_OK;
    const struct tr_param *p = &j->k->sv->s.model->param[param];
    int64_t r = p->cols, most = tr_max64(1, JOIN / (2 * r));
    for (int64_t row = 0; row < p->rows && st == TR_OK; row += most) {
        int64_t n = tr_min64(most, p->rows - row) * r;
        st = fetch(j, param, 1, row * r, n, r, 2 * r, j->to);
        if (st == TR_OK)
            st = fetch(j, start, -1, row * r, n, r, 2 * r, j->to + (size_t)r * tr_dtype_bytes(j->dtype));
        if (st == TR_OK && j->is_writer)
            tr_save_take(j->k, j->to, j->dtype, 2 * n);
    }
    return st;
}

enum tr_status tr_save_walk_joined(struct tr_save_sink *k, int param, int start)
{
    const struct tr_saver *sv = k->sv;
    int writer = sv->s.writer ? sv->s.writer(sv->s.ctx, param) : 0;
    struct joining j = { .k = k,
                         .is_writer = writer == sv->rank,
                         .dtype = sv->s.states.row[tr_store_weights(&sv->s, param)].dtype,
                         .wide = (float *)(void *)sv->join,
                         .to = sv->join + (size_t)chunk_of(sv) * sizeof(double) };
    if (tr_save_join_dim(sv, param) == 1)
        return walk_columns(&j, param, start);
    enum tr_status st = walk_rows(&j, param);
    return st == TR_OK ? walk_rows(&j, start) : st;
}
