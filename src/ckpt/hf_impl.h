/* hf_impl.h - inside the reader of HF directories: tensors of the files, and the weights that quantised ones stand for.
 *
 * A quantised weight is spread over several tensors of the files (planes): codes, scales, zero points. A scheme is one
 * way to do that: a row of names, a check of shapes, and a function that decodes a range.
 */
#ifndef TR_CKPT_HF_IMPL_H
#define TR_CKPT_HF_IMPL_H

#include "ckpt/hfdir.h"

enum { TR_HF_PLANES = 6, TR_HF_NO_PLANE = -1 };

/* quantization_config of config.json: what the schemes read of it. */
struct tr_hf_quant {
    char method[32];                    /* quant_method; "": the directory is not quantised */
    int64_t bits, group_size, block[2]; /* 0: not said */
    bool is_gptq_v2, is_swapped;        /* is_swapped: matrices are stored (out, in) that the model has (in, out) */
    enum tr_dtype dtype;                /* of the model */
};

struct tr_hf_scheme;
struct tr_hf_item {
    struct tr_st_tensor t;             /* as the model sees it; dtype: what its values are rounded to */
    const struct tr_hf_scheme *scheme; /* NULL: a tensor of a file, as it is */
    int32_t plane[TR_HF_PLANES];       /* tensors of the files: all of one, [0] */
    char *own_name;                    /* where no tensor of the files has it */
    bool is_swapped;                   /* t.dims are; everything below is as stored */
    int64_t rows, cols;                /* the weight as a matrix */
    int64_t block[2];                  /* rows and columns that share a scale */
    int64_t n_groups;                  /* scales in a row */
    int32_t bits;
    /* bitsandbytes, 4 bit */
    enum tr_q4 q4;
    int64_t absmax_block;
    bool is_nested;
    float offset;
};

struct tr_hf {
    const struct tr_sums *sums; /* NULL: reads are not compared */
    struct tr_st **shards;
    size_t n_shards;
    struct tr_hf_ref {
        uint32_t shard, tensor;
    } * refs; /* tensors of the files, shard by shard */
    uint32_t *refs_by_name;
    size_t n_refs;
    struct tr_hf_quant quant;
    struct tr_hf_item *items; /* tensors as the model sees them, in the order of the files */
    uint32_t *by_name;
    size_t n;
};

struct tr_hf_scheme {
    const char *method, *marker; /* a tensor whose name ends so, in a directory of this method, is one; */
    const char *name;            /* the weight's name ends so instead; */
    const char *plane[TR_HF_PLANES];
    int n_required; /* planes that must be there; the others may be */
    bool is_transposed;
    enum tr_status (*open)(const struct tr_hf *hf, struct tr_hf_item *it);
    enum tr_status (*read)(const struct tr_hf *hf, const struct tr_hf_item *it, int64_t first, int64_t n, float *dst);
    /* NULL: held decoded only */
    const struct tr_storage_format *(*storage)(const struct tr_hf_item *it);
    enum tr_status (*read_planes)(const struct tr_hf *hf, const struct tr_hf_item *it, int64_t first, int64_t n,
                                  void *const *planes);
};

/* hfdir.c: tensors of the files. */
const struct tr_st_tensor *tr_hf_ref_tensor(const struct tr_hf *hf, size_t ref);
const char *tr_hf_ref_path(const struct tr_hf *hf, size_t ref);
bool tr_hf_ref_find(const struct tr_hf *hf, const char *name, size_t *out_ref);
enum tr_status tr_hf_ref_read(const struct tr_hf *hf, size_t ref, int64_t first, int64_t n, void *dst,
                              enum tr_dtype dtype);
enum tr_status tr_hf_ref_bytes(const struct tr_hf *hf, size_t ref, uint64_t first, size_t n, void *dst);

/* hfquant.c: fills hf->quant and hf->items. dir: of config.json; NULL: tensors are what they are. */
enum tr_status tr_hf_interpret(struct tr_hf *hf, const char *dir);
extern const struct tr_hf_scheme tr_hf_bnb[], tr_hf_grids[], tr_hf_columns[]; /* each ends with a row without method */

/* scheme->read in the order of t. */
enum tr_status tr_hf_decode(const struct tr_hf *hf, const struct tr_hf_item *it, int64_t first, int64_t n, float *dst);
/* "M.weight: what", TR_USAGE. */
enum tr_status tr_hf_refuse(const struct tr_hf_item *it, const char *fmt, ...) TR_PRINTF(2, 3);
static inline bool tr_hf_has(const struct tr_hf_item *it, int plane)
{
    return it->plane[plane] != TR_HF_NO_PLANE;
}

#endif
