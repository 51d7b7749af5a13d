/* write_bnb.c - a directory of plain weights, written with its linears in 4 bits as bitsandbytes and transformers read
 * it.
 *
 * Weights stream through buffers of one chunk. A file wants its wider dtypes first, so absmax come before codes: a
 * weight is read once for its absmax and once more for its codes, instead of being kept. Nested absmax are kept until
 * the bytes of the same file (1/64 byte an element). What a linear's JSON says ends in blanks, because its length must
 * be known before the mean of absmax is.
 */
#include "ckpt/adapter_keys.h"
#include "ckpt/load_impl.h"
#include "ckpt/save_impl.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CHUNK = TR_LOAD_CHUNK, TASK = 1 << 15, STATE_BYTES = 256 };
_Static_assert(TASK % TR_Q4_BLOCK == 0 && CHUNK % TASK == 0 && CHUNK % 2 == 0, "tasks hold whole blocks");

struct q4_weight { /* of one tensor of the source */
    bool is_quantised;
    int param, file;
    uint8_t *scales; /* codes of absmax, while the file of this tensor is written */
    float *nested, offset;
};

struct q4_writing {
    const struct tr_hf *hf;
    struct tr_store source; /* its model and its threads */
    struct tr_bnb4_options opt;
    struct q4_weight *weight; /* by tensor */
    struct tr_st_entry *entries;
    struct q4_part {
        size_t tensor;
        const struct q4_row *row; /* NULL: the tensor as it is */
    } * parts;                    /* by entry */
    int *file_of;
    size_t n_entries;
    float *x, *absmax; /* of a chunk; absmax of the largest tensor */
    uint8_t *codes;
    struct tr_st_writer *to;
};

static int64_t n_elems(const struct q4_writing *w, size_t tensor)
{
    return (int64_t)tr_hf_tensor(w->hf, tensor)->n_elems;
}

static int64_t blocks_of(int64_t n, int64_t block)
{
    return (n + block - 1) / block;
}

/* ---- what is written of a tensor ---- */

struct encoding {
    struct q4_writing *w;
    int64_t n;
    float *absmax;
};

static void encode_task(void *ctx, int64_t task, int worker)
{
    const struct encoding *e = ctx;
    int64_t at = task * TASK;
    (void)worker;
    tr_q4_encode(e->w->opt.type, e->w->x + at, tr_min64(TASK, e->n - at), e->w->codes + at / 2,
                 e->absmax + at / TR_Q4_BLOCK);
}

static enum tr_status encode_chunk(struct q4_writing *w, size_t tensor, int64_t first, int64_t n, float *absmax)
{
    struct encoding e = { w, n, absmax };
    TR_PASS(tr_load_floats(&w->source, w->hf, tensor, w->weight[tensor].param, first, n, w->x));
    tr_pool_run(w->opt.pool, blocks_of(n, TASK), encode_task, &e);
    return TR_OK;
}

static enum tr_status write_absmax(struct q4_writing *w, size_t tensor)
{
    int64_t n = n_elems(w, tensor);
    for (int64_t at = 0; at < n; at += CHUNK) {
        int64_t n_now = tr_min64(CHUNK, n - at);
        TR_PASS(encode_chunk(w, tensor, at, n_now, w->absmax));
        TR_PASS(tr_st_writer_add(w->to, w->absmax, TR_F32, (size_t)blocks_of(n_now, TR_Q4_BLOCK)));
    }
    return TR_OK;
}

static enum tr_status write_nested(struct q4_writing *w, size_t tensor)
{
    struct q4_weight *q = &w->weight[tensor];
    int64_t n = n_elems(w, tensor), n_absmax = blocks_of(n, TR_Q4_BLOCK), n_nested = blocks_of(n_absmax, TR_Q4_NEST);
    for (int64_t at = 0; at < n; at += CHUNK)
        TR_PASS(encode_chunk(w, tensor, at, tr_min64(CHUNK, n - at), w->absmax + at / TR_Q4_BLOCK));
    q->scales = malloc((size_t)n_absmax);
    q->nested = malloc((size_t)n_nested * sizeof *q->nested);
    if (!q->scales || !q->nested)
        return tr_fail(TR_NOMEM, "no memory for %" PRId64 " absmax", n_absmax);
    tr_q4_nest(w->absmax, n_absmax, q->scales, q->nested, &q->offset);
    return tr_st_writer_add(w->to, q->nested, TR_F32, (size_t)n_nested);
}

static enum tr_status write_map(struct q4_writing *w, size_t tensor)
{
    float map[16];
    (void)tensor;
    for (int i = 0; i < 16; i++)
        map[i] = tr_q4_values(w->opt.type)[i] + 0.0f; /* -0 of fp4 is written as 0 */
    return tr_st_writer_add(w->to, map, TR_F32, 16);
}

static enum tr_status write_nested_map(struct q4_writing *w, size_t tensor)
{
    float map[256];
    (void)tensor;
    tr_dynamic_map(true, map);
    return tr_st_writer_add(w->to, map, TR_F32, 256);
}

static enum tr_status write_codes(struct q4_writing *w, size_t tensor)
{
    int64_t n = n_elems(w, tensor);
    for (int64_t at = 0; at < n; at += CHUNK) {
        int64_t n_now = tr_min64(CHUNK, n - at);
        TR_PASS(encode_chunk(w, tensor, at, n_now, w->absmax));
        TR_PASS(tr_st_writer_add(w->to, w->codes, TR_U8, (size_t)blocks_of(n_now, 2)));
    }
    return TR_OK;
}

static enum tr_status write_scales(struct q4_writing *w, size_t tensor)
{
    struct q4_weight *q = &w->weight[tensor];
    enum tr_status st = tr_st_writer_add(w->to, q->scales, TR_U8, (size_t)blocks_of(n_elems(w, tensor), TR_Q4_BLOCK));
    free(q->scales);
    free(q->nested);
    q->scales = NULL;
    q->nested = NULL;
    return st;
}

static enum tr_status write_state(struct q4_writing *w, size_t tensor)
{
    const struct tr_st_tensor *t = tr_hf_tensor(w->hf, tensor);
    char nested[128] = "", text[STATE_BYTES + 1];
    if (w->opt.is_double)
        (void)snprintf(nested, sizeof nested,
                       ", \"nested_blocksize\": %d, \"nested_dtype\": \"float32\", \"nested_offset\": %.17g",
                       TR_Q4_NEST, (double)w->weight[tensor].offset);
    TR_PASS(tr_format(
        text, sizeof text,
        "{\"quant_type\": \"%s\", \"blocksize\": %d, \"dtype\": \"%s\", \"shape\": [%" PRId64 ", %" PRId64 "]%s}",
        tr_storage_q4(w->opt.type)->name, TR_Q4_BLOCK, tr_dtype_name(t->dtype), t->dims[0], t->dims[1], nested));
    size_t n = strlen(text);
    memset(text + n, ' ', STATE_BYTES - n);
    return tr_st_writer_add(w->to, text, TR_U8, STATE_BYTES);
}

enum { ALWAYS, WITHOUT_NESTING, WITH_NESTING };
static const struct q4_row {
    const char *tail;
    enum tr_dtype dtype;
    int when;
    int64_t per, fixed; /* elements of the weight behind one here; 0: `fixed` elements stand for the whole weight */
    enum tr_status (*write)(struct q4_writing *w, size_t tensor);
} rows[] = {
    { ".absmax", TR_F32, WITHOUT_NESTING, TR_Q4_BLOCK, 0, write_absmax },
    { ".nested_absmax", TR_F32, WITH_NESTING, TR_Q4_BLOCK *TR_Q4_NEST, 0, write_nested },
    { ".quant_map", TR_F32, ALWAYS, 0, 16, write_map },
    { ".nested_quant_map", TR_F32, WITH_NESTING, 0, 256, write_nested_map },
    { "", TR_U8, ALWAYS, 2, 0, write_codes },
    { ".absmax", TR_U8, WITH_NESTING, TR_Q4_BLOCK, 0, write_scales },
    { ".quant_state.bitsandbytes__", TR_U8, ALWAYS, 0, STATE_BYTES, write_state },
};

static enum tr_status write_plain(struct q4_writing *w, size_t tensor)
{
    const struct tr_st_tensor *t = tr_hf_tensor(w->hf, tensor);
    int64_t n = n_elems(w, tensor), most = CHUNK / 2; /* 8 bytes an element fit the buffer of floats */
    for (int64_t at = 0; at < n; at += most) {
        int64_t n_now = tr_min64(most, n - at);
        TR_PASS(tr_hf_read(w->hf, tensor, (uint64_t)at, (size_t)n_now, w->x, t->dtype));
        TR_PASS(tr_st_writer_add(w->to, w->x, t->dtype, (size_t)n_now));
    }
    return TR_OK;
}

/* ---- which tensors, in which files ---- */

/* Linears: the matrices of the blocks. Embeddings and the head stay as they are, as in transformers. */
static enum tr_status choose_weights(struct q4_writing *w)
{
    const struct tr_model *m = w->source.model;
    for (int s = 0; s < m->n_segments; s++) {
        const struct tr_segment *g = &m->segment[s];
        for (int i = 0; g->layer >= 0 && i < m->program[g->program]->n_params; i++) {
            size_t at = 0;
            if (m->param[g->param[i]].n_dims != 2)
                continue;
            TR_BUG_ON(!tr_weights_find(w->hf, m, g->param[i], &at)); /* the caller has checked the directory */
            if (tr_hf_tensor(w->hf, at)->dtype > TR_F16)
                return tr_fail(TR_USAGE, "tensor %s is %s; weights of float32, bfloat16 and float16 are quantised",
                               tr_hf_tensor(w->hf, at)->name, tr_hf_tensor(w->hf, at)->dtype_name);
            w->weight[at] = (struct q4_weight){ .is_quantised = true, .param = g->param[i] };
        }
    }
    return TR_OK;
}

static bool is_of(const struct q4_writing *w, const struct q4_row *r)
{
    return r->when == ALWAYS || (r->when == WITH_NESTING) == w->opt.is_double;
}

static enum tr_status add_entry(struct q4_writing *w, size_t tensor, const struct q4_row *r)
{
    const struct tr_st_tensor *t = tr_hf_tensor(w->hf, tensor);
    struct tr_st_entry *e = &w->entries[w->n_entries];
    char name[TR_ST_MAX_NAME + 64];
    bool is_state = r && r->write == write_state;
    TR_PASS(tr_format(name, sizeof name, "%s%s%s", t->name, r ? r->tail : "",
                      is_state ? tr_storage_q4(w->opt.type)->name : ""));
    *e = (struct tr_st_entry){ strdup(name), r ? r->dtype : t->dtype, 1, { 0 } };
    w->parts[w->n_entries] = (struct q4_part){ tensor, r };
    w->file_of[w->n_entries++] = w->weight[tensor].file;
    if (!e->name)
        return tr_fail(TR_NOMEM, "no memory for a name");
    if (!r) {
        e->n_dims = t->n_dims;
        memcpy(e->dims, t->dims, sizeof e->dims);
        return t->dtype < TR_DTYPE_COUNT
                   ? TR_OK
                   : tr_fail(TR_USAGE, "tensor %s: dtype %s is not copied", t->name, t->dtype_name);
    }
    e->dims[0] = r->fixed ? r->fixed : blocks_of((int64_t)t->n_elems, r->per);
    if (r->write == write_codes) {
        e->n_dims = 2;
        e->dims[1] = 1;
    }
    return TR_OK;
}

/* Files of at most opt.shard_bytes; all that belongs to a tensor is in one. */
static int divide_into_files(struct q4_writing *w)
{
    uint64_t used = 0;
    int file = 0;
    for (size_t i = 0; i < tr_hf_count(w->hf); i++) {
        const struct tr_st_tensor *t = tr_hf_tensor(w->hf, i);
        uint64_t n = w->weight[i].is_quantised ? t->n_elems / 2 + t->n_elems / 16 + 4096 : t->end - t->begin;
        if (used > 0 && n > w->opt.shard_bytes - used) {
            file++;
            used = 0;
        }
        used = n > w->opt.shard_bytes ? w->opt.shard_bytes : used + n;
        w->weight[i].file = file;
    }
    return file + 1;
}

static enum tr_status list_entries(struct q4_writing *w)
{
    size_t n = tr_hf_count(w->hf), most = n * TR_COUNT_OF(rows) + 1;
    int n_files = divide_into_files(w);
    TR_PASS(TR_ALLOC(w->entries, most, "%zu tensors", most));
    TR_PASS(TR_ALLOC(w->parts, most, "%zu tensors", most));
    TR_PASS(TR_ALLOC(w->file_of, most, "%zu tensors", most));
    size_t from = 0, to = 0;
    for (int f = 0; f < n_files; f++, from = to) {
        while (to < n && w->weight[to].file == f)
            to++;
        for (size_t bytes = 8; bytes >= 1; bytes /= 2)
            for (size_t i = from; i < to; i++) {
                if (!w->weight[i].is_quantised && tr_dtype_bytes(tr_hf_tensor(w->hf, i)->dtype) == bytes)
                    TR_PASS(add_entry(w, i, NULL));
                for (size_t r = 0; w->weight[i].is_quantised && r < TR_COUNT_OF(rows); r++)
                    if (is_of(w, &rows[r]) && tr_dtype_bytes(rows[r].dtype) == bytes)
                        TR_PASS(add_entry(w, i, &rows[r]));
            }
    }
    return TR_OK;
}

/* ---- the directory ---- */

static cJSON *describe(const struct tr_bnb4_options *opt, enum tr_dtype dtype)
{
    struct tr_str s = { 0 };
    tr_str_addf(&s,
                "{\"_load_in_4bit\":true,\"_load_in_8bit\":false,\"bnb_4bit_compute_dtype\":\"%s\","
                "\"bnb_4bit_quant_storage\":\"uint8\",\"bnb_4bit_quant_type\":\"%s\",\"bnb_4bit_use_double_quant\":%s,"
                "\"llm_int8_enable_fp32_cpu_offload\":false,\"llm_int8_has_fp16_weight\":false,"
                "\"llm_int8_skip_modules\":null,\"load_in_4bit\":true,\"load_in_8bit\":false,"
                "\"quant_method\":\"bitsandbytes\"}",
                tr_dtype_name(dtype), tr_storage_q4(opt->type)->name, opt->is_double ? "true" : "false");
    cJSON *q = tr_str_ok(&s) ? cJSON_Parse(s.p) : NULL;
    tr_str_release(&s);
    if (q && cJSON_AddRawToObject(q, "llm_int8_threshold", "6.0")) /* transformers does not take 6 */
        return q;
    cJSON_Delete(q);
    return NULL;
}

static enum tr_status write_file(struct q4_writing *w, struct tr_hf_plan *plan, size_t k, const char *dir,
                                 struct tr_pump *pump, uint64_t *bytes)
{
    size_t first = 0, n = 0;
    uint64_t n_bytes = 0;
    struct tr_hash128 hash;
    tr_hf_plan_range(plan, k, &first, &n);
    w->to = tr_hf_plan_writer(plan, k);
    TR_PASS(tr_st_writer_begin(w->to, pump, dir, tr_hf_plan_name(plan, k)));
    for (size_t i = first; i < first + n; i++) {
        const struct q4_part *p = &w->parts[i];
        enum tr_status st = p->row ? p->row->write(w, p->tensor) : write_plain(w, p->tensor);
        if (st != TR_OK)
            tr_st_writer_abort(w->to);
        TR_PASS(st);
    }
    TR_PASS(tr_st_writer_finish(w->to, &n_bytes, &hash));
    *bytes += n_bytes;
    return TR_OK;
}

static enum tr_status write_texts(const struct tr_model *m, enum tr_dtype dtype, const struct tr_bnb4_options *opt,
                                  struct tr_hf_plan *plan, const char *from, const char *to)
{
    enum tr_status st = TR_OK;
    char *config = NULL;
    const char *index = tr_hf_plan_index(plan);
    cJSON *quant = describe(opt, dtype);
    if (!quant)
        TR_TRY(tr_fail(TR_NOMEM, "config.json: out of memory"));
    TR_TRY(tr_saved_config(m, dtype, quant, &config));
    if (index)
        TR_TRY(tr_out_write(to, TR_HF_INDEX_NAME, index, strlen(index)));
    TR_TRY(tr_save_copy_files(from, to));
    TR_TRY(tr_out_write(to, "config.json", config, strlen(config)));
    TR_TRY(tr_fsync_dir(to));
out:
    cJSON_Delete(quant);
    free(config);
    return st;
}

static enum tr_status check_target(const char *dir)
{
    static const char *const names[] = { "config.json", "model.safetensors", TR_HF_INDEX_NAME };
    char path[TR_PATH_MAX];
    struct stat info;
    for (size_t i = 0; i < TR_COUNT_OF(names); i++)
        if (tr_path_join(path, dir, names[i]) == TR_OK && lstat(path, &info) == 0) /* a link, too */
            return tr_fail(TR_USAGE, "%s is there already; write to a directory without a model", path);
    return TR_OK;
}

static enum tr_status open_writing(struct q4_writing *w)
{
    int64_t most = CHUNK / TR_Q4_BLOCK;
    TR_PASS(TR_ALLOC(w->weight, tr_hf_count(w->hf) + 1, "%zu tensors", tr_hf_count(w->hf)));
    TR_PASS(choose_weights(w));
    TR_PASS(list_entries(w));
    for (size_t i = 0; i < tr_hf_count(w->hf); i++)
        if (w->weight[i].is_quantised)
            most = tr_max64(most, blocks_of(n_elems(w, i), TR_Q4_BLOCK));
    w->x = malloc(CHUNK * sizeof *w->x);
    w->absmax = malloc((size_t)most * sizeof *w->absmax);
    w->codes = malloc(CHUNK / 2);
    if (!w->x || !w->absmax || !w->codes)
        return tr_fail(TR_NOMEM, "no memory for %" PRId64 " absmax", most);
    return TR_OK;
}

static void close_writing(struct q4_writing *w, size_t n_tensors)
{
    for (size_t i = 0; w->weight && i < n_tensors; i++) {
        free(w->weight[i].scales);
        free(w->weight[i].nested);
    }
    for (size_t i = 0; i < w->n_entries; i++)
        free((void *)(uintptr_t)w->entries[i].name);
    free(w->weight);
    free(w->entries);
    free(w->parts);
    free(w->file_of);
    free(w->x);
    free(w->absmax);
    free(w->codes);
}

enum tr_status tr_write_bnb4(const struct tr_model *m, const char *from, const char *to,
                             const struct tr_bnb4_options *opt, uint64_t *out_bytes)
{
    enum tr_status st = TR_OK;
    struct q4_writing w = { .opt = *opt, .source = { .model = m, .pool = opt->pool } };
    struct tr_hf *hf = NULL;
    struct tr_hf_plan *plan = NULL;
    struct tr_pump *pump = NULL;
    size_t n_done = 0;
    uint64_t bytes = 0;
    if (strcmp(m->arch->model_type, "gpt2") == 0)
        TR_TRY(tr_fail(TR_USAGE, "bitsandbytes stores the weights of gpt2 transposed, which is not written"));
    if (m->arch->wrapper)
        TR_TRY(tr_fail(TR_USAGE,
                       "model_type %s: a model of text and images is not written in 4 bits here; write its text "
                       "model, or train with load_in_4bit",
                       m->arch->model_type));
    if (cJSON_GetObjectItemCaseSensitive(m->config, "quantization_config"))
        TR_TRY(tr_fail(TR_USAGE, "%s is quantised already; quantise the directory that it was made from", from));
    TR_TRY(tr_check_weights(m, from));
    TR_TRY(check_target(to));
    TR_TRY(tr_hf_open(from, &hf));
    w.hf = hf;
    TR_TRY(open_writing(&w));
    TR_TRY(tr_hf_plan_open("model", w.entries, w.n_entries, w.file_of, UINT64_MAX, &plan));
    TR_TRY(tr_pump_open(NULL, &pump));
    TR_TRY(tr_mkdirs(to));
    for (; n_done < tr_hf_plan_shards(plan); n_done++)
        TR_TRY(write_file(&w, plan, n_done, to, pump, &bytes));
    TR_TRY(write_texts(m, tr_hf_tensor(hf, 0)->dtype, opt, plan, from, to));
    if (out_bytes)
        *out_bytes = bytes;
out:
    for (size_t k = 0; st != TR_OK && k < n_done; k++)
        (void)tr_out_unlink(to, tr_hf_plan_name(plan, k));
    tr_pump_close(pump);
    tr_hf_plan_close(plan);
    close_writing(&w, hf ? tr_hf_count(hf) : 0);
    tr_hf_close(hf);
    return st;
}
