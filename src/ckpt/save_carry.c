/* save_carry.c - tensors of the source directory that are no parameters of the model: the parts of a model of text and
 * images that see. They are entries of the plan like all others, in files of their own, which rank 0 writes; their
 * bytes go from file to file and never wait in staging memory.
 */
#include "ckpt/save_impl.h"
#include <stdlib.h>

enum tr_status tr_save_carry_open(struct tr_saver *sv)
{
    const struct tr_model *m = sv->s.model;
    enum tr_status st = TR_OK;
    sv->naming.m = m;
    if (!m->arch->wrapper || tr_model_has_adapter(m))
        return TR_OK;
    const char *from = sv->has_base ? sv->base : sv->source;
    if (!sv->has_base && !sv->has_source)
        return tr_fail(TR_USAGE,
                       "model_type %s: a model of text and images is not made anew here, because its other parts are "
                       "carried over from a directory; use a config.json of its text model",
                       m->arch->model_type);
    TR_TRY(tr_hf_open(from, &sv->carry.hf));
    tr_naming_of(m, sv->carry.hf, &sv->naming);
    size_t n = tr_hf_count(sv->carry.hf);
    TR_TRY(TR_ALLOC(sv->carry.tensor, n + 1, "the tensors that are carried over"));
    TR_TRY(TR_ALLOC(sv->carry.buf, TR_IO_CHUNK, "the tensors that are carried over"));
    for (size_t bytes = 8; bytes >= 1; bytes /= 2) /* wider dtypes come first */
        for (size_t i = 0; i < n; i++) {
            const struct tr_st_tensor *t = tr_hf_tensor(sv->carry.hf, i);
            if (t->dtype < TR_DTYPE_COUNT && tr_dtype_bytes(t->dtype) == bytes &&
                tr_naming_carries(&sv->naming, t->name))
                sv->carry.tensor[sv->carry.n++] = i;
        }
    for (size_t i = 0; i < n; i++) {
        const struct tr_st_tensor *t = tr_hf_tensor(sv->carry.hf, i);
        if (t->dtype == TR_DTYPE_COUNT && tr_naming_carries(&sv->naming, t->name))
            TR_TRY(tr_fail(TR_USAGE, "%s: tensor %s is of type %s, which is not carried over", from, t->name,
                           t->dtype_name));
    }
out:
    return st;
}

struct tr_st_entry tr_save_carry_entry(const struct tr_saver *sv, size_t k)
{
    const struct tr_st_tensor *t = tr_hf_tensor(sv->carry.hf, sv->carry.tensor[k]);
    struct tr_st_entry e = { .name = t->name, .dtype = t->dtype, .n_dims = t->n_dims };
    memcpy(e.dims, t->dims, sizeof e.dims);
    return e;
}

enum tr_status tr_save_carry_copy(struct tr_saver *sv, size_t k, struct tr_st_writer *w)
{
    const size_t i = sv->carry.tensor[k];
    const struct tr_st_tensor *t = tr_hf_tensor(sv->carry.hf, i);
    size_t most = TR_IO_CHUNK * sizeof *sv->carry.buf / tr_dtype_bytes(t->dtype);
    for (uint64_t at = 0; at < t->n_elems; at += most) {
        size_t n = t->n_elems - at < most ? (size_t)(t->n_elems - at) : most;
        TR_PASS(tr_hf_read(sv->carry.hf, i, at, n, sv->carry.buf, t->dtype));
        TR_PASS(tr_st_writer_add(w, sv->carry.buf, t->dtype, n));
    }
    return TR_OK;
}

void tr_save_carry_close(struct tr_saver *sv)
{
    tr_hf_close(sv->carry.hf);
    free(sv->carry.tensor);
    free(sv->carry.buf);
}
