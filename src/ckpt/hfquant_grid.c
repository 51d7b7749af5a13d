/* hfquant_grid.c - weights whose codes lie in the order of the weight, with a grid of scales: 8-bit floats (one scale,
 * one for each row, or one for each block), compressed-tensors (8-bit codes, or packed ones of 4 and 8 bits), MXFP4.
 *
 * weight[r, c] = (code[r, c] - zero) * scale[r / block rows, c / block columns], rounded to the dtype that the Python
 * library gives it: compressed-tensors computes in the dtype of the scales, the others in float32 for the model's.
 */
#include "ckpt/hf_impl.h"

#include <math.h>
#include <string.h>

enum { CODES, SCALES, ZEROS, ORDER, SHAPE };
enum { SEGMENT = 4096 };

static const struct tr_st_tensor *plane(const struct tr_hf *hf, const struct tr_hf_item *it, int k)
{
    return tr_hf_ref_tensor(hf, (size_t)it->plane[k]);
}

/* Scales as a grid: none or one dimension of 1 element is one scale for all; [rows] is [rows, 1]. */
static enum tr_status open_scales(const struct tr_hf *hf, struct tr_hf_item *it, int64_t block_rows, int64_t block_cols)
{
    const struct tr_st_tensor *s = plane(hf, it, SCALES);
    if (s->dtype > TR_F16 || s->n_dims > 2)
        return tr_hf_refuse(it, "its scales are %s of %d dimensions, not a matrix of F32, BF16 or F16", s->dtype_name,
                            s->n_dims);
    int64_t rows = s->n_elems == 1 ? 1 : s->dims[0], cols = s->n_dims == 2 ? s->dims[1] : 1;
    bool is_of_config = block_rows > 0 && block_cols > 0 && rows == (it->rows + block_rows - 1) / block_rows &&
                        cols == (it->cols + block_cols - 1) / block_cols;
    if (!is_of_config) {
        if (rows < 1 || cols < 1 || it->rows % rows != 0 || it->cols % cols != 0)
            return tr_hf_refuse(it, "[%" PRId64 ", %" PRId64 "] does not fit its scales of [%" PRId64 ", %" PRId64 "]",
                                it->rows, it->cols, rows, cols);
        block_rows = it->rows / rows;
        block_cols = it->cols / cols;
    }
    it->block[0] = block_rows;
    it->block[1] = block_cols;
    it->n_groups = cols;
    return TR_OK;
}

static void set_matrix(struct tr_hf_item *it, int64_t rows, int64_t cols, enum tr_dtype dtype)
{
    it->t.n_dims = 2;
    it->rows = it->t.dims[0] = rows;
    it->cols = it->t.dims[1] = cols;
    it->t.dtype = dtype;
}

static enum tr_status open_codes(const struct tr_hf *hf, struct tr_hf_item *it, unsigned legal)
{
    const struct tr_st_tensor *w = plane(hf, it, CODES);
    if (w->dtype >= TR_DTYPE_COUNT || !(legal >> w->dtype & 1u) || w->n_dims != 2 || w->n_elems == 0)
        return tr_hf_refuse(it, "its codes are %s of %d dimensions, not a matrix of 8 bits", w->dtype_name, w->n_dims);
    set_matrix(it, w->dims[0], w->dims[1], hf->quant.dtype);
    it->bits = 8;
    return TR_OK;
}

static enum tr_status open_fp8(const struct tr_hf *hf, struct tr_hf_item *it)
{
    enum tr_status st = open_codes(hf, it, 1u << TR_E4M3);
    return st == TR_OK ? open_scales(hf, it, hf->quant.block[0], hf->quant.block[1]) : st;
}

static enum tr_status check_like(const struct tr_hf *hf, const struct tr_hf_item *it, int k, const char *what,
                                 enum tr_dtype dtype, int64_t n)
{
    if (!tr_hf_has(it, k))
        return tr_hf_refuse(it, "its %s is missing", what);
    const struct tr_st_tensor *t = plane(hf, it, k);
    if (t->dtype == dtype && t->n_elems == (uint64_t)n)
        return TR_OK;
    return tr_hf_refuse(it, "its %s has %" PRIu64 " elements of %s, not %" PRId64 " of %s", what, t->n_elems,
                        t->dtype_name, n, tr_dtype_safetensors(dtype));
}

static int64_t n_scales(const struct tr_hf_item *it)
{
    return (it->rows + it->block[0] - 1) / it->block[0] * it->n_groups;
}

/* The order of columns of compressed-tensors: -1 says that there is none. */
static enum tr_status open_order(const struct tr_hf *hf, struct tr_hf_item *it)
{
    int32_t group = 0;
    if (!tr_hf_has(it, ORDER))
        return TR_OK;
    TR_PASS(check_like(hf, it, ORDER, "weight_g_idx", TR_I32, it->cols));
    TR_PASS(tr_hf_ref_read(hf, (size_t)it->plane[ORDER], 0, 1, &group, TR_I32));
    if (group < 0)
        it->plane[ORDER] = TR_HF_NO_PLANE;
    else if (it->n_groups > SEGMENT)
        TR_PASS(
            tr_hf_refuse(it, "%" PRId64 " groups in a row with weight_g_idx; the limit is %d", it->n_groups, SEGMENT));
    return TR_OK;
}

/* int-quantized, float-quantized */
static enum tr_status open_compressed(const struct tr_hf *hf, struct tr_hf_item *it)
{
    bool has_blocks = hf->quant.block[0] > 0;
    TR_PASS(open_codes(hf, it, 1u << TR_E4M3 | 1u << TR_I8));
    TR_PASS(open_scales(hf, it, has_blocks ? hf->quant.block[0] : 1,
                        has_blocks ? hf->quant.block[1] : hf->quant.group_size));
    it->t.dtype = plane(hf, it, SCALES)->dtype;
    if (tr_hf_has(it, ZEROS))
        TR_PASS(check_like(hf, it, ZEROS, "weight_zero_point", TR_I8, n_scales(it)));
    TR_PASS(open_order(hf, it));
    return TR_OK;
}

static int64_t n_words(int64_t n, int32_t bits)
{
    return (n + 32 / bits - 1) / (32 / bits);
}

/* pack-quantized: rows of 32-bit words; zero points are packed along the rows. */
static enum tr_status open_packed(const struct tr_hf *hf, struct tr_hf_item *it)
{
    const struct tr_st_tensor *w = plane(hf, it, CODES);
    int64_t shape[2] = { 0, 0 };
    TR_PASS(check_like(hf, it, SHAPE, "weight_shape", TR_I64, 2));
    TR_PASS(tr_hf_ref_read(hf, (size_t)it->plane[SHAPE], 0, 2, shape, TR_I64));
    it->bits = hf->quant.bits ? (int32_t)hf->quant.bits : 4;
    if (it->bits != 4 && it->bits != 8)
        return tr_hf_refuse(it, "num_bits %d is neither 4 nor 8", it->bits);
    if (w->dtype != TR_I32 || w->n_dims != 2 || shape[0] != w->dims[0] || shape[1] < 1 || shape[0] < 1 ||
        shape[1] > INT64_C(1) << 40 || n_words(shape[1], it->bits) != w->dims[1])
        return tr_hf_refuse(it, "weight_shape [%" PRId64 ", %" PRId64 "] of %d bits does not fit its weight_packed",
                            shape[0], shape[1], it->bits);
    set_matrix(it, shape[0], shape[1], plane(hf, it, SCALES)->dtype);
    TR_PASS(open_scales(hf, it, 1, hf->quant.group_size));
    if (tr_hf_has(it, ZEROS) && it->block[0] != 1)
        return tr_hf_refuse(it, "packed zero points of one scale for all rows are not read");
    if (tr_hf_has(it, ZEROS))
        TR_PASS(check_like(hf, it, ZEROS, "weight_zero_point", TR_I32, n_words(it->rows, it->bits) * it->n_groups));
    TR_PASS(open_order(hf, it));
    return TR_OK;
}

/* ---- reading ---- */

struct segment {
    int64_t row, col, n;
    int64_t scales_from, n_scales; /* columns of the grid */
    float code[SEGMENT], scale[SEGMENT + 1], zero[SEGMENT + 1];
    int32_t group[SEGMENT]; /* of each column, from scales_from on */
    union {
        uint8_t bytes[SEGMENT];
        uint32_t words[SEGMENT + 1];
    } raw;
};

static void unpack(const uint32_t *words, int64_t first, int64_t n, int32_t bits, float *out)
{
    int64_t per = 32 / bits;
    uint32_t mask = (1u << bits) - 1;
    for (int64_t i = 0; i < n; i++) {
        uint32_t code = words[(first + i) / per - first / per] >> ((first + i) % per * bits) & mask;
        out[i] = (float)((int32_t)code - (1 << (bits - 1)));
    }
}

static enum tr_status read_codes(const struct tr_hf *hf, const struct tr_hf_item *it, struct segment *g)
{
    enum tr_dtype dtype = plane(hf, it, CODES)->dtype;
    size_t ref = (size_t)it->plane[CODES];
    if (dtype == TR_I32) {
        int64_t per = 32 / it->bits, from = g->row * n_words(it->cols, it->bits) + g->col / per;
        TR_PASS(tr_hf_ref_read(hf, ref, from, (g->col + g->n - 1) / per - g->col / per + 1, g->raw.words, TR_I32));
        unpack(g->raw.words, g->col, g->n, it->bits, g->code);
        return TR_OK;
    }
    TR_PASS(tr_hf_ref_read(hf, ref, g->row * it->cols + g->col, g->n, g->raw.bytes, dtype));
    if (dtype == TR_E4M3)
        tr_f8_values(g->raw.bytes, g->n, g->code);
    else
        for (int64_t i = 0; i < g->n; i++)
            g->code[i] = (float)(int8_t)g->raw.bytes[i];
    return TR_OK;
}

static enum tr_status read_zeros(const struct tr_hf *hf, const struct tr_hf_item *it, struct segment *g)
{
    memset(g->zero, 0, (size_t)g->n_scales * sizeof g->zero[0]);
    if (!tr_hf_has(it, ZEROS))
        return TR_OK;
    size_t ref = (size_t)it->plane[ZEROS];
    if (plane(hf, it, ZEROS)->dtype == TR_I8) {
        TR_PASS(tr_hf_ref_read(hf, ref, g->row / it->block[0] * it->n_groups + g->scales_from, g->n_scales,
                               g->raw.words, TR_I8));
        for (int64_t i = 0; i < g->n_scales; i++)
            g->zero[i] = (float)((const int8_t *)g->raw.words)[i];
        return TR_OK;
    }
    int64_t per = 32 / it->bits;
    TR_PASS(tr_hf_ref_read(hf, ref, g->row / per * it->n_groups + g->scales_from, g->n_scales, g->raw.words, TR_I32));
    for (int64_t i = 0; i < g->n_scales; i++)
        unpack(&g->raw.words[i], g->row % per, 1, it->bits, &g->zero[i]);
    return TR_OK;
}

static enum tr_status read_order(const struct tr_hf *hf, const struct tr_hf_item *it, struct segment *g)
{
    g->scales_from = 0;
    g->n_scales = it->n_groups;
    TR_PASS(tr_hf_ref_read(hf, (size_t)it->plane[ORDER], g->col, g->n, g->group, TR_I32));
    for (int64_t i = 0; i < g->n; i++)
        if (g->group[i] < 0 || g->group[i] >= it->n_groups)
            return tr_hf_refuse(it, "weight_g_idx %" PRId64 " is %d, outside its %" PRId64 " groups", g->col + i,
                                g->group[i], it->n_groups);
    return TR_OK;
}

static enum tr_status read_segment(const struct tr_hf *hf, const struct tr_hf_item *it, struct segment *g, float *dst)
{
    g->scales_from = g->col / it->block[1];
    g->n_scales = (g->col + g->n - 1) / it->block[1] - g->scales_from + 1;
    if (tr_hf_has(it, ORDER))
        TR_PASS(read_order(hf, it, g));
    else
        for (int64_t i = 0; i < g->n; i++)
            g->group[i] = (int32_t)((g->col + i) / it->block[1] - g->scales_from);
    TR_PASS(read_zeros(hf, it, g));
    TR_PASS(tr_hf_ref_read(hf, (size_t)it->plane[SCALES], g->row / it->block[0] * it->n_groups + g->scales_from,
                           g->n_scales, g->scale, TR_F32));
    TR_PASS(read_codes(hf, it, g));
    for (int64_t i = 0; i < g->n; i++)
        g->code[i] = (g->code[i] - g->zero[g->group[i]]) * g->scale[g->group[i]];
    tr_convert(g->code, TR_F32, g->raw.words, it->t.dtype, (size_t)g->n);
    tr_convert(g->raw.words, it->t.dtype, dst, TR_F32, (size_t)g->n);
    return TR_OK;
}

static enum tr_status read_grid(const struct tr_hf *hf, const struct tr_hf_item *it, int64_t first, int64_t n,
                                float *dst)
{
    struct segment g;
    for (; n > 0; first += g.n, n -= g.n, dst += g.n) {
        g.row = first / it->cols;
        g.col = first % it->cols;
        g.n = tr_min64(tr_min64(n, SEGMENT), it->cols - g.col);
        TR_PASS(read_segment(hf, it, &g, dst));
    }
    return TR_OK;
}

/* ---- 8-bit floats as they are held ---- */

static const struct tr_storage_format *fp8_storage(const struct tr_hf_item *it)
{
    return it->cols % TR_F8_BLOCK == 0 && it->block[1] % TR_F8_BLOCK == 0 ? tr_storage_f8() : NULL;
}

static enum tr_status read_fp8_planes(const struct tr_hf *hf, const struct tr_hf_item *it, int64_t first, int64_t n,
                                      void *const *planes)
{
    float *to = planes[1], scale[SEGMENT / TR_F8_BLOCK];
    TR_PASS(tr_hf_ref_read(hf, (size_t)it->plane[CODES], first, n, planes[0], TR_E4M3));
    for (int64_t at = first, end = first + n; at < end;) { /* a part of a row at a time */
        int64_t col = at % it->cols, stop = at + tr_min64(tr_min64(SEGMENT, end - at), it->cols - col);
        int64_t from = col / it->block[1], n_now = (col + stop - at - 1) / it->block[1] - from + 1;
        TR_PASS(tr_hf_ref_read(hf, (size_t)it->plane[SCALES], at / it->cols / it->block[0] * it->n_groups + from, n_now,
                               scale, TR_F32));
        for (; at < stop; at += TR_F8_BLOCK, col += TR_F8_BLOCK) {
            *to++ = scale[col / it->block[1] - from];
            if (!isfinite(to[-1]))
                return tr_hf_refuse(it, "the scale at element %" PRId64 " is not finite", at);
        }
    }
    return TR_OK;
}

/* ---- MXFP4: 32 elements, in 16 bytes with the earlier one in the low half, share a power of 2 ---- */

enum { MX_BLOCK = 32 };

static enum tr_status open_mxfp4(const struct tr_hf *hf, struct tr_hf_item *it)
{
    const struct tr_st_tensor *w = plane(hf, it, CODES), *s = plane(hf, it, SCALES);
    int n = w->n_dims;
    if (w->dtype != TR_U8 || s->dtype != TR_U8 || n < 2 || s->n_dims != n - 1 || w->dims[n - 1] != MX_BLOCK / 2 ||
        memcmp(w->dims, s->dims, (size_t)(n - 1) * sizeof w->dims[0]) != 0)
        return tr_hf_refuse(it, "its blocks and scales are not U8 [..., %d] and U8 [...]", MX_BLOCK / 2);
    it->t.dtype = TR_BF16;
    it->t.n_dims = n - 1;
    memcpy(it->t.dims, w->dims, (size_t)(n - 1) * sizeof w->dims[0]);
    it->t.dims[n - 2] *= MX_BLOCK;
    return TR_OK;
}

static enum tr_status read_mxfp4(const struct tr_hf *hf, const struct tr_hf_item *it, int64_t first, int64_t n,
                                 float *dst)
{
    uint8_t codes[SEGMENT / 2 + MX_BLOCK / 2], scale[SEGMENT / MX_BLOCK + 1];
    for (int64_t end = first + n; first < end;) {
        int64_t from = first - first % MX_BLOCK, stop = tr_min64(end, from + SEGMENT);
        TR_PASS(tr_hf_ref_read(hf, (size_t)it->plane[CODES], from / 2, (stop + 1) / 2 - from / 2, codes, TR_U8));
        TR_PASS(tr_hf_ref_read(hf, (size_t)it->plane[SCALES], from / MX_BLOCK,
                               (stop - 1) / MX_BLOCK - from / MX_BLOCK + 1, scale, TR_U8));
        for (; first < stop; first++) {
            int64_t i = first - from;
            *dst++ = tr_mx4_value(codes[i / 2] >> (i % 2 * 4) & 15, scale[i / MX_BLOCK]);
        }
    }
    return TR_OK;
}

#define FP8_ROW(of, tail)                                                                                              \
    {                                                                                                                  \
        .method = of, .marker = tail, .name = ".weight", .plane = { ".weight", tail }, .n_required = 2,                \
        .open = open_fp8, .read = read_grid, .storage = fp8_storage, .read_planes = read_fp8_planes                    \
    }
const struct tr_hf_scheme tr_hf_grids[] = {
    FP8_ROW("fp8", ".weight_scale_inv"),
    FP8_ROW("fp8", ".weight_scale"),
    FP8_ROW("fbgemm_fp8", ".weight_scale"),
    { .method = "compressed-tensors",
      .marker = ".weight_packed",
      .name = ".weight",
      .plane = { ".weight_packed", ".weight_scale", ".weight_zero_point", ".weight_g_idx", ".weight_shape" },
      .n_required = 2,
      .open = open_packed,
      .read = read_grid },
    { .method = "compressed-tensors",
      .marker = ".weight_scale",
      .name = ".weight",
      .plane = { ".weight", ".weight_scale", ".weight_zero_point", ".weight_g_idx" },
      .n_required = 2,
      .open = open_compressed,
      .read = read_grid },
    { .method = "mxfp4",
      .marker = "_blocks",
      .name = "",
      .plane = { "_blocks", "_scales" },
      .n_required = 2,
      .open = open_mxfp4,
      .read = read_mxfp4 },
    { 0 },
};
