/* hfdir.h - the weights of a Hugging Face model directory: model.safetensors, or model.safetensors.index.json + shards.
 *
 * No path leaves the directory: shard names are plain, links are refused (but for the hub cache's ../../blobs/<hash>).
 * No pickle is ever opened.
 */
#ifndef TR_CKPT_HFDIR_H
#define TR_CKPT_HFDIR_H

#include "base/quant.h"
#include "ckpt/safetensors.h"

#define TR_HF_SHARD_BYTES UINT64_C(50000000000) /* default of transformers v5 */
enum { TR_HF_MAX_SHARDS = 4096, TR_HF_MAX_INDEX = 64 << 20 };

struct tr_hf;
enum tr_status tr_hf_open(const char *dir, struct tr_hf **out);
/* sums: of this directory when it was verified, with which all reads are compared, or NULL; outlives *out. */
enum tr_status tr_hf_open_sums(const char *dir, const struct tr_sums *sums, struct tr_hf **out);
/* The same of one file of the directory, whatever else is there. */
enum tr_status tr_hf_open_file(const char *dir, const char *name, const struct tr_sums *sums, struct tr_hf **out);
void tr_hf_close(struct tr_hf *hf);
/* Tensors of all shards, shard by shard. In a directory with a quantization_config (bitsandbytes 4 and 8 bit, fp8,
 * mxfp4, gptq, awq, compressed-tensors) the tensors that make up a quantised weight are one tensor here, with the name
 * and shape that the weight has without quantisation ([out, in]; experts of mxfp4: [experts, out, in]). Its dtype is
 * that of its values, which are read as F32. */
size_t tr_hf_count(const struct tr_hf *hf);
const struct tr_st_tensor *tr_hf_tensor(const struct tr_hf *hf, size_t i);
const char *tr_hf_shard(const struct tr_hf *hf, size_t i); /* path of the file that holds tensor i */
bool tr_hf_find(const struct tr_hf *hf, const char *name, size_t *out_i);
/* Elements [first, first + n) as dst_dtype: of a quantised weight decoded, exactly as its Python library does. May be
 * called by several threads. */
enum tr_status tr_hf_read(const struct tr_hf *hf, size_t i, uint64_t first, size_t n, void *dst,
                          enum tr_dtype dst_dtype);
/* Stored column by column (gptq, awq, GPT-2 by bitsandbytes): many elements should be read at once, because a call
 * reads all columns of its rows. */
bool tr_hf_is_transposed(const struct tr_hf *hf, size_t i);
/* How a quantised weight can be held without loss (nf4, fp4, fp8); NULL: it is plain, or can only be held decoded. Its
 * planes are in the order of the file: of a transposed weight, that of the transpose. */
const struct tr_storage_format *tr_hf_storage(const struct tr_hf *hf, size_t i);
/* The planes of elements [first, first + n) in that format; first is a multiple of its grain, and so is n unless the
 * tensor ends there. Refuses scales that are not finite. */
enum tr_status tr_hf_read_planes(const struct tr_hf *hf, size_t i, uint64_t first, size_t n, void *const *planes);

/* Missing, wrong-shaped, unreadable and extra tensors, all in one message (20 lines, then a count).
 * may_ignore(ctx, name) true: an extra tensor that does no harm; NULL: tr_hf_ignorable. wanted reuses tr_st_entry;
 * its dtype is not compared (reading converts). */
typedef bool tr_hf_ignore_fn(const void *ctx, const char *name);
bool tr_hf_ignorable(const void *ctx, const char *name); /* rotary_emb.inv_freq, attn.bias, attn.masked_bias */
enum tr_status tr_hf_check(const struct tr_hf *hf, const struct tr_st_entry *wanted, size_t n_wanted,
                           tr_hf_ignore_fn *may_ignore, const void *ctx);

/* The JSON text that describes a 4-bit weight of bitsandbytes, as a pure function. */
struct tr_quant_state {
    enum tr_q4 type;
    enum tr_dtype dtype; /* F32, BF16, F16 */
    int n_dims;
    int64_t dims[TR_ST_MAX_DIMS], n_elems, block;
    bool is_nested;
    float offset; /* of absmax, where they are nested */
};
enum tr_status tr_quant_state_parse(const char *text, size_t n, struct tr_quant_state *out);

/* model.safetensors.index.json as a pure function. Strings live as long as *out. */
struct tr_hf_mapped {
    const char *name, *shard;
};
struct tr_hf_index {
    struct cJSON *json;
    struct tr_hf_mapped *map; /* sorted by name */
    const char **shards;      /* unique, sorted */
    size_t n_map, n_shards;
};
enum tr_status tr_hf_parse_index(const char *json, size_t n, struct tr_hf_index *out);
void tr_hf_index_release(struct tr_hf_index *ix);

/* How a model is cut into files: greedy in the order given, one file when it fits, and a new one wherever part_of (by
 * entry; NULL: one part) changes. Every rank computes the same plan. stem: "model", the start of every file's name.
 * All texts (headers, index) are built here, once; saving only streams:
 *   for k: tr_st_writer_begin(tr_hf_plan_writer(p, k), pump, dir, tr_hf_plan_name(p, k)), add entries [first, first +
 * n), finish then the index text, when there is one, as model.safetensors.index.json. */
struct tr_hf_plan;
enum tr_status tr_hf_plan_open(const char *stem, const struct tr_st_entry *entries, size_t n_entries,
                               const int *part_of, uint64_t max_shard_bytes, struct tr_hf_plan **out);
void tr_hf_plan_close(struct tr_hf_plan *p);
size_t tr_hf_plan_shards(const struct tr_hf_plan *p);
const char *tr_hf_plan_name(const struct tr_hf_plan *p, size_t k); /* "model-00001-of-00002.safetensors" */
void tr_hf_plan_range(const struct tr_hf_plan *p, size_t k, size_t *out_first, size_t *out_n);
struct tr_st_writer *tr_hf_plan_writer(struct tr_hf_plan *p, size_t k);
const char *tr_hf_plan_index(const struct tr_hf_plan *p); /* NULL: one file, no index */
#define TR_HF_INDEX_NAME "model.safetensors.index.json"

#endif
