/* hfquant_bnb.c - weights that bitsandbytes quantised: 4 bit (NF4, FP4, with and without double quantisation) and
 * LLM.int8.
 *
 * The planes of a 4-bit weight are bytes, whatever dtype the file gives them (bnb_4bit_quant_storage). What else is
 * known of it stands in a JSON text, which comes from a stranger: every number of it is checked against the planes.
 */
#include "ckpt/hf_impl.h"

#include <math.h>
#include <string.h>

/* ---- quant_state ---- */

static bool is_block_size(int64_t n)
{
    return n >= 32 && n <= 4096 && (n & (n - 1)) == 0;
}

static enum tr_status read_shape(const cJSON *json, struct tr_quant_state *out)
{
    const cJSON *shape = cJSON_GetObjectItemCaseSensitive(json, "shape");
    int n = cJSON_GetArraySize(shape);
    if (!cJSON_IsArray(shape) || n < 1 || n > TR_ST_MAX_DIMS)
        return tr_fail(TR_USAGE, "quant_state: \"shape\" is not a list of 1 to %d numbers", TR_ST_MAX_DIMS);
    int64_t n_elems = 1;
    for (const cJSON *x = shape->child; x; x = x->next) {
        double d = cJSON_IsNumber(x) ? x->valuedouble : 0;
        if (!(d >= 1 && d <= 0x1p40) || d != (double)(int64_t)d || n_elems > (INT64_C(1) << 50) / (int64_t)d)
            return tr_fail(TR_USAGE, "quant_state: \"shape\" holds %g, or more than 2^50 elements", d);
        n_elems *= (int64_t)d;
        out->dims[out->n_dims++] = (int64_t)d;
    }
    out->n_elems = n_elems;
    return TR_OK;
}

static enum tr_status read_nesting(const cJSON *json, struct tr_quant_state *out)
{
    int64_t block = 0;
    double offset = 0;
    out->is_nested = cJSON_GetObjectItemCaseSensitive(json, "nested_offset") != NULL;
    if (!out->is_nested)
        return TR_OK;
    TR_PASS(tr_json_int(json, "nested_blocksize", true, 1, INT32_MAX, &block));
    if (block != TR_Q4_NEST)
        return tr_fail(TR_USAGE, "quant_state: nested_blocksize %" PRId64 " is not %d", block, TR_Q4_NEST);
    TR_PASS(tr_json_real(json, "nested_offset", true, &offset));
    out->offset = (float)offset;
    if (!isfinite(out->offset))
        return tr_fail(TR_USAGE, "quant_state: nested_offset %g is no float32", offset);
    return TR_OK;
}

enum tr_status tr_quant_state_parse(const char *text, size_t n, struct tr_quant_state *out)
{
    enum tr_status st = TR_OK;
    cJSON *json = NULL;
    const char *type = NULL, *dtype = NULL;
    struct tr_quant_state s = { 0 };
    TR_TRY(tr_json_parse(text, n, "quant_state", &json));
    if (!cJSON_IsObject(json))
        TR_TRY(tr_fail(TR_USAGE, "quant_state is not an object"));
    TR_TRY(tr_json_str(json, "quant_type", true, &type));
    while (s.type < TR_Q4_COUNT && strcmp(tr_storage_q4(s.type)->name, type) != 0)
        s.type++;
    if (s.type == TR_Q4_COUNT)
        TR_TRY(tr_fail(TR_USAGE, "quant_state: quant_type \"%.20s\" is neither nf4 nor fp4", type));
    TR_TRY(tr_json_int(json, "blocksize", true, 0, INT32_MAX, &s.block));
    if (!is_block_size(s.block))
        TR_TRY(tr_fail(TR_USAGE, "quant_state: blocksize %" PRId64 " is not one of 32, 64, 128, ... 4096", s.block));
    TR_TRY(tr_json_str(json, "dtype", true, &dtype));
    if (tr_dtype_parse(dtype, &s.dtype) != TR_OK || s.dtype > TR_F16)
        TR_TRY(tr_fail(TR_USAGE, "quant_state: dtype \"%.20s\" is not float32, bfloat16 or float16", dtype));
    TR_TRY(read_shape(json, &s));
    TR_TRY(read_nesting(json, &s));
    *out = s;
out:
    cJSON_Delete(json);
    return st;
}

/* ---- 4 bit ---- */

enum { CODES, ABSMAX, STATE, MAP, NESTED, NESTED_MAP };
enum { SEGMENT = 1 << 14, MOST_STATE = 1 << 16 };
_Static_assert(TR_F32 < TR_F16 && TR_BF16 < TR_F16 && TR_F16 + 1 == TR_F64, "floats of weights come first");

static uint64_t plane_bytes(const struct tr_hf *hf, const struct tr_hf_item *it, int k)
{
    const struct tr_st_tensor *t = tr_hf_ref_tensor(hf, (size_t)it->plane[k]);
    return t->end - t->begin;
}

static enum tr_status check_plane(const struct tr_hf *hf, const struct tr_hf_item *it, int k, const char *what,
                                  enum tr_dtype dtype, int64_t n)
{
    if (!tr_hf_has(it, k))
        return tr_hf_refuse(it, "its %s is missing", what);
    const struct tr_st_tensor *t = tr_hf_ref_tensor(hf, (size_t)it->plane[k]);
    if (t->dtype != dtype || t->n_elems != (uint64_t)n)
        return tr_hf_refuse(it, "its %s has %" PRIu64 " elements of %s, not %" PRId64 " of %s", what, t->n_elems,
                            t->dtype_name, n, tr_dtype_safetensors(dtype));
    return TR_OK;
}

/* The values are fixed by the type; a file with others means something else. */
static enum tr_status check_map(const struct tr_hf *hf, const struct tr_hf_item *it)
{
    float map[16];
    if (!tr_hf_has(it, MAP))
        return TR_OK;
    TR_PASS(check_plane(hf, it, MAP, "quant_map", TR_F32, 16));
    TR_PASS(tr_hf_ref_read(hf, (size_t)it->plane[MAP], 0, 16, map, TR_F32));
    for (int i = 0; i < 16; i++)
        if (!(fabsf(map[i] - tr_q4_values(it->q4)[i]) < 1e-4f))
            return tr_hf_refuse(it, "value %d of its quant_map is %g, not %s's %g", i, (double)map[i],
                                tr_storage_q4(it->q4)->name, (double)tr_q4_values(it->q4)[i]);
    return TR_OK;
}

static enum tr_status check_nesting(const struct tr_hf *hf, const struct tr_hf_item *it, int64_t n_absmax)
{
    float map[256];
    TR_PASS(check_plane(hf, it, ABSMAX, "absmax", it->is_nested ? TR_U8 : TR_F32, n_absmax));
    if (!it->is_nested)
        return TR_OK;
    TR_PASS(check_plane(hf, it, NESTED, "nested_absmax", TR_F32, (n_absmax + TR_Q4_NEST - 1) / TR_Q4_NEST));
    TR_PASS(check_plane(hf, it, NESTED_MAP, "nested_quant_map", TR_F32, 256));
    TR_PASS(tr_hf_ref_read(hf, (size_t)it->plane[NESTED_MAP], 0, 256, map, TR_F32));
    for (int i = 0; i < 256; i++)
        if (!isfinite(map[i]))
            return tr_hf_refuse(it, "value %d of its nested_quant_map is not finite", i);
    return TR_OK;
}

static enum tr_status open_q4(const struct tr_hf *hf, struct tr_hf_item *it)
{
    struct tr_quant_state s = { 0 };
    char text[MOST_STATE];
    uint64_t n = plane_bytes(hf, it, STATE);
    if (n > sizeof text)
        TR_PASS(tr_hf_refuse(it, "its quant_state has %" PRIu64 " bytes; the limit is %zu", n, sizeof text));
    TR_PASS(tr_hf_ref_bytes(hf, (size_t)it->plane[STATE], 0, (size_t)n, text));
    enum tr_status st = tr_quant_state_parse(text, (size_t)n, &s);
    if (st != TR_OK)
        return tr_hf_refuse(it, "%s", tr_error_text());
    size_t n_name = strlen(it->scheme->marker), n_type = strlen(tr_storage_q4(s.type)->name);
    if (strcmp(it->scheme->marker + n_name - n_type, tr_storage_q4(s.type)->name) != 0)
        return tr_hf_refuse(it, "its quant_state says %s and is named %s", tr_storage_q4(s.type)->name,
                            it->scheme->marker);
    it->q4 = s.type;
    it->absmax_block = s.block;
    it->is_nested = s.is_nested;
    it->offset = s.offset;
    it->t.dtype = s.dtype;
    it->t.n_dims = s.n_dims;
    memcpy(it->t.dims, s.dims, sizeof s.dims);
    if (plane_bytes(hf, it, CODES) != (uint64_t)(s.n_elems + 1) / 2)
        TR_PASS(tr_hf_refuse(it, "its codes have %" PRIu64 " bytes; %" PRId64 " elements need %" PRId64,
                             plane_bytes(hf, it, CODES), s.n_elems, (s.n_elems + 1) / 2));
    TR_PASS(check_map(hf, it));
    return check_nesting(hf, it, (s.n_elems + s.block - 1) / s.block);
}

/* absmax [first, first + n), n at most SEGMENT / 32 + 1. */
static enum tr_status read_absmax(const struct tr_hf *hf, const struct tr_hf_item *it, int64_t first, int64_t n,
                                  float *out)
{
    enum { MOST = SEGMENT / 32 + 1 + TR_Q4_NEST };
    float map[256], nested[MOST / TR_Q4_NEST + 1];
    uint8_t codes[MOST];
    int64_t from = first - first % TR_Q4_NEST, end = first + n;
    if (!it->is_nested) {
        TR_PASS(tr_hf_ref_read(hf, (size_t)it->plane[ABSMAX], first, n, out, TR_F32));
    } else {
        TR_PASS(tr_hf_ref_read(hf, (size_t)it->plane[NESTED_MAP], 0, 256, map, TR_F32));
        TR_PASS(tr_hf_ref_read(hf, (size_t)it->plane[ABSMAX], from, end - from, codes, TR_U8));
        TR_PASS(tr_hf_ref_read(hf, (size_t)it->plane[NESTED], from / TR_Q4_NEST,
                               (end - from + TR_Q4_NEST - 1) / TR_Q4_NEST, nested, TR_F32));
        tr_q4_unnest(map, codes, nested, it->offset, first - from, n, out);
    }
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(out[i]))
            return tr_hf_refuse(it, "absmax %" PRId64 " is not finite", first + i);
    return TR_OK;
}

static enum tr_status read_q4(const struct tr_hf *hf, const struct tr_hf_item *it, int64_t first, int64_t n, float *dst)
{
    int64_t block = it->absmax_block, run = tr_min64(block, TR_Q4_BLOCK), end = first + n;
    uint8_t codes[SEGMENT / 2 + 1];
    float absmax[SEGMENT / 32 + 1], wide[TR_Q4_BLOCK];
    while (first < end) {
        int64_t from = first - first % run, to = tr_min64(end, from + SEGMENT), b = from / block;
        TR_PASS(tr_hf_ref_bytes(hf, (size_t)it->plane[CODES], (uint64_t)from / 2, (size_t)((to + 1) / 2 - from / 2),
                                codes));
        TR_PASS(read_absmax(hf, it, b, (to - 1) / block - b + 1, absmax));
        for (int64_t at = from; at < to; at += run) { /* within one block, and within 64 elements */
            int64_t lo = tr_max64(at, first), n_now = tr_min64(at + run, to) - lo;
            tr_q4_decode(it->q4, codes + (at - from) / 2, &absmax[at / block - b], lo - at, n_now, wide, it->t.dtype);
            tr_convert(wide, it->t.dtype, dst, TR_F32, (size_t)n_now);
            dst += n_now;
        }
        first = to;
    }
    return TR_OK;
}

/* Blocks of 128 and more are held as blocks of 64 with the same absmax. */
static const struct tr_storage_format *q4_storage(const struct tr_hf_item *it)
{
    return it->absmax_block % TR_Q4_BLOCK == 0 ? tr_storage_q4(it->q4) : NULL;
}

static enum tr_status read_q4_planes(const struct tr_hf *hf, const struct tr_hf_item *it, int64_t first, int64_t n,
                                     void *const *planes)
{
    float absmax[SEGMENT / 32 + 1], *to = planes[1];
    TR_PASS(tr_hf_ref_bytes(hf, (size_t)it->plane[CODES], (uint64_t)first / 2, (size_t)(n + 1) / 2, planes[0]));
    for (int64_t at = first, end = first + n; at < end;) {
        int64_t stop = tr_min64(end, at + SEGMENT), b = at / it->absmax_block;
        TR_PASS(read_absmax(hf, it, b, (stop - 1) / it->absmax_block - b + 1, absmax));
        for (; at < stop; at += TR_Q4_BLOCK)
            *to++ = absmax[at / it->absmax_block - b];
        at = stop;
    }
    return TR_OK;
}

/* ---- LLM.int8 ---- */

enum { SCALES = 1, FORMAT };

static enum tr_status open_int8(const struct tr_hf *hf, struct tr_hf_item *it)
{
    const struct tr_st_tensor *w = tr_hf_ref_tensor(hf, (size_t)it->plane[CODES]);
    uint8_t format = 0;
    if (w->dtype != TR_I8 || w->n_dims != 2 || w->n_elems == 0)
        return tr_hf_refuse(it, "it is %s of %d dimensions, not an I8 matrix", w->dtype_name, w->n_dims);
    it->t.dtype = TR_F32;
    it->t.n_dims = 2;
    it->rows = it->t.dims[0] = w->dims[0];
    it->cols = it->t.dims[1] = w->dims[1];
    TR_PASS(check_plane(hf, it, SCALES, "SCB", TR_F32, it->rows));
    if (tr_hf_has(it, FORMAT) && plane_bytes(hf, it, FORMAT) == 1)
        TR_PASS(tr_hf_ref_bytes(hf, (size_t)it->plane[FORMAT], 0, 1, &format));
    if (format != 0)
        TR_PASS(tr_hf_refuse(it, "weight_format %d is not read; save it with bitsandbytes 0.45 or later", format));
    return TR_OK;
}

static enum tr_status read_int8(const struct tr_hf *hf, const struct tr_hf_item *it, int64_t first, int64_t n,
                                float *dst)
{
    int8_t codes[SEGMENT];
    float scale = 0;
    for (int64_t n_now; n > 0; first += n_now, n -= n_now, dst += n_now) {
        n_now = tr_min64(tr_min64(n, SEGMENT), it->cols - first % it->cols);
        TR_PASS(tr_hf_ref_read(hf, (size_t)it->plane[CODES], first, n_now, codes, TR_I8));
        TR_PASS(tr_hf_ref_read(hf, (size_t)it->plane[SCALES], first / it->cols, 1, &scale, TR_F32));
        for (int64_t i = 0; i < n_now; i++)
            dst[i] = (float)codes[i] * scale * 7.874015718698502e-3f; /* 1 / 127, as bitsandbytes writes it */
    }
    return TR_OK;
}

#define Q4_ROW(type)                                                                                                   \
    {                                                                                                                  \
        .method = "bitsandbytes", .marker = ".quant_state.bitsandbytes__" type, .name = "",                            \
        .plane = { "",           ".absmax",        ".quant_state.bitsandbytes__" type,                                 \
                   ".quant_map", ".nested_absmax", ".nested_quant_map" },                                              \
        .n_required = 3, .open = open_q4, .read = read_q4, .storage = q4_storage, .read_planes = read_q4_planes        \
    }
const struct tr_hf_scheme tr_hf_bnb[] = {
    Q4_ROW("nf4"),
    Q4_ROW("fp4"),
    { .method = "bitsandbytes",
      .marker = ".SCB",
      .name = ".weight",
      .plane = { ".weight", ".SCB", ".weight_format" },
      .n_required = 2,
      .open = open_int8,
      .read = read_int8 },
    { 0 },
};
