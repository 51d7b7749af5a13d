/* hfquant.c - what the tensors of a quantised HF directory stand for.
 *
 * config.json names the method; the names of the tensors say which weights are quantised. Every group of planes becomes
 * one weight with the name and shape that the model asks for, and all other tensors stay as they are, so that nobody
 * above knows the difference. Shapes are checked here, when the directory is opened: nothing is sized by them before.
 */
#include "ckpt/ckpt.h"
#include "ckpt/hf_impl.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct tr_hf_scheme *const lists[] = { tr_hf_bnb, tr_hf_grids, tr_hf_columns };

/* Scales of activations and caches: they do not change a weight. */
static const char *const unread[] = { ".input_scale",  ".activation_scale", ".input_zero_point", ".input_global_scale",
                                      ".output_scale", ".k_scale",          ".v_scale" };

enum tr_status tr_hf_refuse(const struct tr_hf_item *it, const char *fmt, ...)
{
    char text[400], name[120];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return tr_fail(TR_USAGE, "quantised tensor %s: %s", tr_escape(it->t.name, name, sizeof name), text);
}

/* ---- config.json ---- */

static bool has_method(const char *method)
{
    for (size_t k = 0; k < TR_COUNT_OF(lists); k++)
        for (const struct tr_hf_scheme *s = lists[k]; s->method; s++)
            if (strcmp(s->method, method) == 0)
                return true;
    return false;
}

static enum tr_status refuse_method(const char *method)
{
    struct tr_str known = { 0 };
    const char *last = "";
    char text[64];
    for (size_t k = 0; k < TR_COUNT_OF(lists); k++)
        for (const struct tr_hf_scheme *s = lists[k]; s->method; last = s++->method)
            if (strcmp(s->method, last) != 0)
                tr_str_addf(&known, "%s%s", known.n ? ", " : "", s->method);
    enum tr_status st = tr_fail(TR_USAGE,
                                "quantization_config: quant_method \"%s\" is not one of %s; write the model without "
                                "quantisation once in Python: model.dequantize().save_pretrained(out)",
                                tr_escape(method, text, sizeof text), tr_str_ok(&known) ? known.p : "the known ones");
    tr_str_release(&known);
    return st;
}

static enum tr_status read_blocks(const cJSON *q, const char *key, struct tr_hf_quant *out)
{
    const cJSON *b = cJSON_GetObjectItemCaseSensitive(q, key);
    if (!b || cJSON_IsNull(b))
        return TR_OK;
    for (int i = 0; i < 2; i++) {
        const cJSON *x = cJSON_GetArrayItem(b, i);
        if (cJSON_GetArraySize(b) != 2 || !cJSON_IsNumber(x) || !(x->valuedouble >= 1 && x->valuedouble <= 1 << 20) ||
            x->valuedouble != (double)(int64_t)x->valuedouble)
            return tr_fail(TR_USAGE, "quantization_config: %s is not two whole numbers above 0", key);
        out->block[i] = (int64_t)x->valuedouble;
    }
    return TR_OK;
}

/* compressed-tensors keeps the numbers of the weights in its first group. */
static enum tr_status read_groups(const cJSON *q, struct tr_hf_quant *out)
{
    const char *format = "";
    char text[64];
    static const char *const formats[] = { "", "pack-quantized", "int-quantized", "float-quantized",
                                           "naive-quantized" };
    size_t k = 0;
    TR_PASS(tr_json_str(q, "format", false, &format));
    while (k < TR_COUNT_OF(formats) && strcmp(formats[k], format) != 0)
        k++;
    if (k == TR_COUNT_OF(formats))
        return tr_fail(TR_USAGE,
                       "quantization_config: format \"%s\" of compressed-tensors is not read; those that are: "
                       "pack-quantized, int-quantized, float-quantized, naive-quantized",
                       tr_escape(format, text, sizeof text));
    const cJSON *groups = cJSON_GetObjectItemCaseSensitive(q, "config_groups");
    const cJSON *weights = groups && groups->child ? cJSON_GetObjectItemCaseSensitive(groups->child, "weights") : NULL;
    if (!cJSON_IsObject(weights))
        return TR_OK;
    TR_PASS(read_blocks(weights, "block_structure", out));
    TR_PASS(tr_json_int(weights, "num_bits", false, 1, 16, &out->bits));
    return tr_json_int(weights, "group_size", false, -1, INT32_MAX, &out->group_size);
}

static enum tr_status read_quant(const cJSON *config, const cJSON *q, struct tr_hf_quant *out)
{
    const char *method = "bitsandbytes", *text = "", *type = ""; /* old files of bitsandbytes have no quant_method */
    if (!cJSON_IsObject(q))
        return tr_fail(TR_USAGE, "quantization_config is not an object");
    TR_PASS(tr_json_str(q, "quant_method", false, &method));
    if (strlen(method) >= sizeof out->method || !has_method(method))
        TR_PASS(refuse_method(method));
    memcpy(out->method, method, strlen(method) + 1);
    out->dtype = tr_config_dtype(config);
    TR_PASS(tr_json_int(q, "bits", false, 1, 16, &out->bits));
    TR_PASS(tr_json_int(q, "group_size", false, -1, INT32_MAX, &out->group_size));
    TR_PASS(read_blocks(q, "weight_block_size", out));
    TR_PASS(tr_json_str(q, "checkpoint_format", false, &text));
    out->is_gptq_v2 = strcmp(text, "gptq_v2") == 0;
    text = "gemm";
    TR_PASS(tr_json_str(q, "version", false, &text));
    if (strcmp(method, "awq") == 0 && strcasecmp(text, "gemm") != 0)
        return tr_fail(TR_USAGE, "quantization_config: version \"%.20s\" of awq is not read, only gemm", text);
    if (strcmp(method, "compressed-tensors") == 0)
        TR_PASS(read_groups(q, out));
    TR_PASS(tr_json_str(config, "model_type", false, &type));
    out->is_swapped =
        strcmp(method, "bitsandbytes") == 0 && strcmp(type, "gpt2") == 0; /* its Conv1D becomes a linear */
    return TR_OK;
}

static enum tr_status read_config(const struct tr_sums *sums, const char *dir, struct tr_hf_quant *out)
{
    enum tr_status st = TR_OK;
    char path[TR_PATH_MAX], *text = NULL;
    size_t n = 0;
    cJSON *config = NULL;
    TR_TRY(tr_path_join(path, dir, "config.json"));
    if (!tr_file_exists(path))
        return TR_OK;
    TR_TRY(tr_sums_read(sums, dir, "config.json", 16 << 20, &text, &n));
    TR_TRY(tr_json_parse(text, n, path, &config));
    static const char *const keys[] = { "quantization_config", "compression_config" };
    for (size_t i = 0; i < TR_COUNT_OF(keys) && !out->method[0]; i++) {
        const cJSON *q = cJSON_GetObjectItemCaseSensitive(config, keys[i]);
        if (q && !cJSON_IsNull(q) && (st = read_quant(config, q, out)) != TR_OK)
            TR_TRY(tr_fail_at(st, "%s: ", path));
    }
out:
    cJSON_Delete(config);
    free(text);
    return st;
}

/* ---- reading ---- */

enum { SWAP_ROWS = 256 };

/* A strip of rows at a time: in the stored order it is a short run of every row. */
static enum tr_status decode_swapped(const struct tr_hf *hf, const struct tr_hf_item *it, int64_t first, int64_t n,
                                     float *dst)
{
    int64_t rows = it->t.dims[0], cols = it->t.dims[1], end = first + n, row_end = (end - 1) / cols + 1;
    float run[SWAP_ROWS];
    for (int64_t row = first / cols, n_rows; row < row_end; row += n_rows) {
        n_rows = tr_min64(SWAP_ROWS, row_end - row);
        for (int64_t col = 0; col < cols; col++) {
            TR_PASS(it->scheme->read(hf, it, col * rows + row, n_rows, run));
            for (int64_t r = 0; r < n_rows; r++) {
                int64_t at = (row + r) * cols + col;
                if (at >= first && at < end)
                    dst[at - first] = run[r];
            }
        }
    }
    return TR_OK;
}

enum tr_status tr_hf_decode(const struct tr_hf *hf, const struct tr_hf_item *it, int64_t first, int64_t n, float *dst)
{
    return (it->is_swapped ? decode_swapped : it->scheme->read)(hf, it, first, n, dst);
}

/* ---- tensors into weights ---- */

static const char *before(const char *name, const char *tail, size_t *out_n)
{
    size_t n = strlen(name), n_tail = strlen(tail);
    if (n < n_tail || strcmp(name + n - n_tail, tail) != 0)
        return NULL;
    *out_n = n - n_tail;
    return name;
}

static bool is_unread(const char *name)
{
    size_t n;
    for (size_t i = 0; i < TR_COUNT_OF(unread); i++)
        if (before(name, unread[i], &n))
            return true;
    return false;
}

struct interpreting {
    struct tr_hf *hf;
    const struct tr_hf_scheme **scheme; /* by ref: of the marker of a weight */
    bool *is_taken;                     /* by ref: a plane of some weight */
};

static void plane_name(const char *base, size_t n_base, const char *tail, char out[TR_ST_MAX_NAME + 64])
{
    memcpy(out, base, n_base);
    memcpy(out + n_base, tail, strlen(tail) + 1);
}

/* The weight whose marker is tensor `ref`. */
static enum tr_status make_item(struct interpreting *x, size_t ref, const struct tr_hf_scheme *s, struct tr_hf_item *it)
{
    char name[TR_ST_MAX_NAME + 64];
    size_t n = 0, at = 0;
    const char *base = before(tr_hf_ref_tensor(x->hf, ref)->name, s->marker, &n);
    plane_name(base, n, s->name, name);
    if (tr_hf_ref_find(x->hf, name, &at))
        it->t.name = tr_hf_ref_tensor(x->hf, at)->name;
    else
        it->t.name = it->own_name = strdup(name);
    if (!it->t.name)
        return tr_fail(TR_NOMEM, "no memory for a name");
    it->scheme = s;
    for (int k = 0; k < TR_HF_PLANES; k++) {
        it->plane[k] = TR_HF_NO_PLANE;
        if (!s->plane[k])
            continue;
        plane_name(base, n, s->plane[k], name);
        if (tr_hf_ref_find(x->hf, name, &at)) {
            it->plane[k] = (int32_t)at;
            x->is_taken[at] = true;
        } else if (k < s->n_required) {
            return tr_hf_refuse(it, "%s%s is missing", "the tensor that ends in ",
                                *s->plane[k] ? s->plane[k] : "its name");
        }
    }
    return TR_OK;
}

/* Rows in their order: a tensor that an earlier row took is no marker of a later one. */
static void find_markers(struct interpreting *x)
{
    size_t n;
    for (size_t k = 0; k < TR_COUNT_OF(lists); k++)
        for (const struct tr_hf_scheme *s = lists[k]; s->method; s++) {
            if (strcmp(s->method, x->hf->quant.method) != 0)
                continue;
            for (size_t r = 0; r < x->hf->n_refs; r++)
                if (!x->scheme[r] && !x->is_taken[r] && before(tr_hf_ref_tensor(x->hf, r)->name, s->marker, &n)) {
                    struct tr_hf_item it = { 0 };
                    x->scheme[r] = s;
                    (void)make_item(x, r, s, &it); /* takes its planes; what is missing is told when it is made */
                    free(it.own_name);
                    tr_error_clear();
                }
        }
}

static enum tr_status open_item(const struct tr_hf *hf, struct tr_hf_item *it)
{
    TR_PASS(it->scheme->open(hf, it));
    size_t n = 1;
    for (int d = 0; d < it->t.n_dims; d++)
        if (it->t.dims[d] < 1 || !tr_mul_size(n, (size_t)it->t.dims[d], &n) || n > INT64_MAX)
            return tr_hf_refuse(it, "its shape has no or too many elements");
    it->t.n_elems = n;
    if (hf->quant.is_swapped && it->t.n_dims == 2) {
        int64_t out = it->t.dims[0];
        it->is_swapped = true;
        it->t.dims[0] = it->t.dims[1];
        it->t.dims[1] = out;
    }
    it->t.dtype_name = tr_dtype_safetensors(it->t.dtype);
    return TR_OK;
}

static enum tr_status make_items(struct interpreting *x)
{
    struct tr_hf *hf = x->hf;
    bool is_quantised = hf->quant.method[0] != 0;
    for (size_t r = 0; r < hf->n_refs; r++) {
        const struct tr_st_tensor *t = tr_hf_ref_tensor(hf, r);
        struct tr_hf_item *it = &hf->items[hf->n];
        if (x->scheme[r]) {
            hf->n++;
            TR_PASS(make_item(x, r, x->scheme[r], it));
            enum tr_status st = open_item(hf, it);
            if (st != TR_OK)
                return tr_fail_at(st, "%s: ", tr_hf_ref_path(hf, r));
        } else if (!x->is_taken[r] && !(is_quantised && is_unread(t->name))) {
            hf->n++;
            *it = (struct tr_hf_item){ .t = *t, .plane = { (int32_t)r } };
        }
    }
    return TR_OK;
}

enum tr_status tr_hf_interpret(struct tr_hf *hf, const char *dir)
{
    enum tr_status st = TR_OK;
    struct interpreting x = { .hf = hf };
    if (dir)
        TR_TRY(read_config(hf->sums, dir, &hf->quant));
    TR_TRY(TR_ALLOC(hf->items, hf->n_refs + 1, "%zu tensors", hf->n_refs));
    TR_TRY(TR_ALLOC(x.scheme, hf->n_refs + 1, "%zu tensors", hf->n_refs));
    TR_TRY(TR_ALLOC(x.is_taken, hf->n_refs + 1, "%zu tensors", hf->n_refs));
    find_markers(&x);
    TR_TRY(make_items(&x));
out:
    free(x.scheme);
    free(x.is_taken);
    return st;
}
