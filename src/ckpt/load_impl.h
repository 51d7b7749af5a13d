/* load_impl.h - what the files that read checkpoints share. */
#ifndef TR_CKPT_LOAD_IMPL_H
#define TR_CKPT_LOAD_IMPL_H

#include "ckpt/ckpt.h"

/* Every trireme/optim-*.safetensors of a checkpoint, in no order. */
typedef enum tr_status tr_optim_file_fn(void *ctx, const char *path);
enum tr_status tr_each_optim_file(const char *dir, tr_optim_file_fn *fn, void *ctx);

/* Elements that move at once, and those that a thread reads or converts of them. The buffer holds a chunk as F32 and
 * behind it once more in 16 bits, or packed. */
enum { TR_LOAD_PIECE = 1 << 15, TR_LOAD_CHUNK = TR_IO_CHUNK / 3 * 2 / TR_LOAD_PIECE * TR_LOAD_PIECE };

/* Elements [first, first + n) of tensor `at`, at most a chunk, as F32. Those of a packed parameter are counted in the
 * order of its grains (tr_param_is_in_out). Refuses what is not finite. */
enum tr_status tr_load_floats(const struct tr_store *s, const struct tr_hf *hf, size_t at, int param, int64_t first,
                              int64_t n, float *buf);

/* Do two tensors hold the same numbers? buf: TR_IO_CHUNK floats. */
enum tr_status tr_load_compare(const struct tr_hf *hf, size_t a, size_t b, float *buf, bool *out);

/* Floats buf[from, from + n) into VALUE, and into MASTER where it is held. */
enum tr_status tr_put_weights(const struct tr_store *s, int param, int64_t first, int64_t n, float *buf, int64_t from);
/* Magnitudes of a new DoRA adapter: the norms of the rows of the base's weights, as the run sees them. */
enum tr_status tr_load_magnitudes(const struct tr_store *s, const char *base, float *buf);

/* Does this rank hold any of elements [first, first + n)? What it does not hold need not be read. */
bool tr_load_wants(const struct tr_store *s, enum tr_state what, int param, int64_t first, int64_t n);

/* load_grown.c: a table of the vocabulary that has more rows than its file (resize_vocab). Has it, here? */
bool tr_is_grown(const struct tr_model *m, int param, const struct tr_hf *hf, size_t at);
/* Its new rows begin as the mean of those of the file. */
enum tr_status tr_load_grown(const struct tr_store *s, const struct tr_hf *hf, size_t at, int param, float *buf);

/* load_rows.c: rows of tables that learn by themselves, from the base: those that stay as they are, and which they are;
 * with_live: those that learn too. */
enum tr_status tr_load_rows(const struct tr_store *s, const struct tr_hf *hf, bool with_live, float *buf);
enum tr_status tr_load_new_rows(const struct tr_store *s, const char *base, float *buf); /* of a new adapter */

/* load_start.c: what PiSSA and OLoRA take out of the base, from the base's directory; with_live: A and B begin with it
 * too. */
enum tr_status tr_load_starts(const struct tr_store *s, const char *base, bool with_live, float *buf);
/* The matrix of a head that is a target, without what the file `adapter` says it began with. */
enum tr_status tr_load_head_rest(const struct tr_store *s, const char *base, const struct tr_hf *adapter, float *buf);
/* A tensor of both halves, [A; A0] or [B, -B0], into its two parameters. */
enum tr_status tr_load_joined(const struct tr_store *s, const struct tr_hf *hf, size_t at, int param, int start,
                              float *buf);

/* load_packed.c: parameters whose VALUE is held in grains. */
static inline enum tr_packed tr_store_packed(const struct tr_store *s, int param)
{
    return s->packed_of ? (enum tr_packed)s->packed_of[param] : TR_NOT_PACKED;
}
/* Does this rank hold any of elements [first, first + n)? */
bool tr_wants_packed(const struct tr_store *s, int param, int64_t first, int64_t n);
/* Packs floats buf[0, n), elements [first, first + n), and puts them. scales: those of the whole tensor, to hold
 * instead of those that packing finds; NULL: those. */
enum tr_status tr_put_packed(const struct tr_store *s, int param, int64_t first, int64_t n, float *buf,
                             const float *scales);
enum tr_status tr_load_packed(const struct tr_store *s, const struct tr_hf *hf, size_t at, int param, float *buf);
/* The scales of a whole tensor that loading makes itself, for double quantisation (free them); NULL: packing finds
 * them. */
enum tr_status tr_load_scales(const struct tr_store *s, const struct tr_hf *hf, size_t at, int param, float *buf,
                              float **out);
/* tr_load_floats of what kernels read: through the grains of a packed parameter, rounded to the dtype of VALUE. first
 * is a multiple of a chunk; scales are those of tr_load_scales. */
enum tr_status tr_load_seen(const struct tr_store *s, const struct tr_hf *hf, size_t at, int param, int64_t first,
                            int64_t n, const float *scales, float *buf);

/* Tensor `at` of a directory into the weights of a parameter. Its shape has been checked; its values are finite. */
enum tr_status tr_load_tensor(const struct tr_store *s, const struct tr_hf *hf, size_t at, int param, float *buf);

#endif
