/* hfquant_columns.c - weights that are stored transposed, a column of the weight beside the other: GPTQ and AWQ (gemm).
 *
 * weight[r, c] = (code - zero[group of c, r]) * scale[group of c, r], rounded to the dtype of the scales. Both pack
 * codes into 32-bit words, GPTQ along the columns and AWQ along the rows. A range is decoded a few rows at a time,
 * column by column; scales and zeros of those rows are read first.
 */
#include "ckpt/hf_impl.h"

#include <stdlib.h>
#include <string.h>

enum { CODES, SCALES, ZEROS, ORDER };
enum { MOST_ROWS = 256, MOST_SCALES = 1 << 16, ORDER_CHUNK = 1024 };

static const struct tr_st_tensor *plane(const struct tr_hf *hf, const struct tr_hf_item *it, int k)
{
    return tr_hf_ref_tensor(hf, (size_t)it->plane[k]);
}

static bool is_matrix(const struct tr_st_tensor *t, enum tr_dtype dtype, int64_t rows, int64_t cols)
{
    return t->dtype == dtype && t->n_dims == 2 && t->dims[0] == rows && t->dims[1] == cols;
}

static enum tr_status open_columns(const struct tr_hf *hf, struct tr_hf_item *it, bool is_awq)
{
    const struct tr_st_tensor *q = plane(hf, it, CODES), *s = plane(hf, it, SCALES), *z = plane(hf, it, ZEROS);
    it->bits = hf->quant.bits ? (int32_t)hf->quant.bits : 4;
    if (it->bits != 4 && (is_awq || (it->bits != 2 && it->bits != 8)))
        return tr_hf_refuse(it, "%d bits are not read; those that are: 4, and 2 and 8 of gptq", it->bits);
    int64_t per = 32 / it->bits;
    bool is_whole = s->dtype <= TR_F16 && s->n_dims == 2 && q->n_dims == 2 && s->n_elems > 0 && q->n_elems > 0;
    int64_t rows = is_whole ? s->dims[1] : 0, groups = is_whole ? s->dims[0] : 0;
    int64_t cols = is_whole ? q->dims[0] * (is_awq ? 1 : per) : 0;
    if (!is_whole || rows % per != 0 || !is_matrix(z, TR_I32, groups, rows / per) ||
        !is_matrix(q, TR_I32, is_awq ? cols : cols / per, is_awq ? rows / per : rows))
        return tr_hf_refuse(it, "shapes of qweight, qzeros and scales do not belong together at %d bits", it->bits);
    if (groups > MOST_SCALES)
        return tr_hf_refuse(it, "%" PRId64 " groups; the limit is %d", groups, MOST_SCALES);
    int64_t size = hf->quant.group_size > 0 ? hf->quant.group_size : (cols + groups - 1) / groups;
    if (tr_hf_has(it, ORDER) &&
        (plane(hf, it, ORDER)->dtype != TR_I32 || plane(hf, it, ORDER)->n_elems != (uint64_t)cols))
        return tr_hf_refuse(it, "its g_idx is not I32 [%" PRId64 "]", cols);
    if (!tr_hf_has(it, ORDER) && (cols + size - 1) / size != groups)
        return tr_hf_refuse(it, "%" PRId64 " columns in groups of %" PRId64 " do not make %" PRId64 " groups", cols,
                            size, groups);
    it->t.dtype = s->dtype;
    it->t.n_dims = 2;
    it->rows = it->t.dims[0] = rows;
    it->cols = it->t.dims[1] = cols;
    it->n_groups = groups;
    it->block[1] = size;
    return TR_OK;
}

static enum tr_status open_gptq(const struct tr_hf *hf, struct tr_hf_item *it)
{
    return open_columns(hf, it, false);
}

static enum tr_status open_awq(const struct tr_hf *hf, struct tr_hf_item *it)
{
    return open_columns(hf, it, true);
}

/* ---- reading ---- */

/* Rows [row, row + n) of the weight. */
struct row_strip {
    const struct tr_hf *hf;
    const struct tr_hf_item *it;
    bool is_awq;
    int64_t row, n;
    float *scale, *zero; /* [group][row] */
    uint32_t words[MOST_ROWS + 2];
    int64_t words_of; /* the line of qweight in `words`; -1: none */
    int32_t order[ORDER_CHUNK];
    int64_t order_from; /* -1: none */
};

/* Code of row r in a word that eight or fewer rows share. */
static uint32_t code_of_row(const struct row_strip *s, const uint32_t *words, int64_t r)
{
    static const uint8_t awq_place[8] = { 0, 4, 1, 5, 2, 6, 3, 7 };
    int64_t per = 32 / s->it->bits, at = r % per;
    uint32_t word = words[r / per - s->row / per];
    return word >> ((s->is_awq ? awq_place[at] : at) * s->it->bits) & ((1u << s->it->bits) - 1);
}

static enum tr_status read_row_words(struct row_strip *s, int plane_of, int64_t line)
{
    int64_t per = 32 / s->it->bits, from = s->row / per, to = (s->row + s->n - 1) / per;
    return tr_hf_ref_read(s->hf, (size_t)s->it->plane[plane_of], line * (s->it->rows / per) + from, to - from + 1,
                          s->words, TR_I32);
}

static enum tr_status read_groups(struct row_strip *s)
{
    /* GPTQ's first format stores zero - 1. It is subtracted from whole words, so that a zero of 0 borrows from its
     * neighbour: only a sum over the word gives both back. */
    uint32_t add = !s->is_awq && !s->hf->quant.is_gptq_v2 ? UINT32_MAX / ((1u << s->it->bits) - 1) : 0;
    for (int64_t g = 0; g < s->it->n_groups; g++) {
        TR_PASS(tr_hf_ref_read(s->hf, (size_t)s->it->plane[SCALES], g * s->it->rows + s->row, s->n, s->scale + g * s->n,
                               TR_F32));
        TR_PASS(read_row_words(s, ZEROS, g));
        for (size_t i = 0; i < TR_COUNT_OF(s->words); i++)
            s->words[i] += add;
        for (int64_t r = 0; r < s->n; r++)
            s->zero[g * s->n + r] = (float)code_of_row(s, s->words, s->row + r);
    }
    return TR_OK;
}

static enum tr_status group_of(struct row_strip *s, int64_t col, int64_t *out)
{
    *out = col / s->it->block[1];
    if (!tr_hf_has(s->it, ORDER))
        return TR_OK;
    if (s->order_from < 0 || col < s->order_from || col >= s->order_from + ORDER_CHUNK) {
        s->order_from = col;
        TR_PASS(tr_hf_ref_read(s->hf, (size_t)s->it->plane[ORDER], col, tr_min64(ORDER_CHUNK, s->it->cols - col),
                               s->order, TR_I32));
    }
    *out = s->order[col - s->order_from];
    if (*out < 0 || *out >= s->it->n_groups)
        TR_PASS(tr_hf_refuse(s->it, "g_idx %" PRId64 " is %" PRId64 ", outside its %" PRId64 " groups", col, *out,
                             s->it->n_groups));
    return TR_OK;
}

static enum tr_status read_column(struct row_strip *s, int64_t col, float *out)
{
    int64_t per = 32 / s->it->bits, line = s->is_awq ? col : col / per, group = 0;
    uint32_t mask = (1u << s->it->bits) - 1;
    float values[MOST_ROWS];
    TR_PASS(group_of(s, col, &group));
    if (s->words_of != line && s->is_awq)
        TR_PASS(read_row_words(s, CODES, line));
    else if (s->words_of != line)
        TR_PASS(
            tr_hf_ref_read(s->hf, (size_t)s->it->plane[CODES], line * s->it->rows + s->row, s->n, s->words, TR_I32));
    s->words_of = line;
    for (int64_t r = 0; r < s->n; r++) {
        uint32_t code =
            s->is_awq ? code_of_row(s, s->words, s->row + r) : s->words[r] >> (col % per * s->it->bits) & mask;
        values[r] = ((float)code - s->zero[group * s->n + r]) * s->scale[group * s->n + r];
    }
    uint16_t rounded[2 * MOST_ROWS];
    tr_convert(values, TR_F32, rounded, s->it->t.dtype, (size_t)s->n);
    tr_convert(rounded, s->it->t.dtype, out, TR_F32, (size_t)s->n);
    return TR_OK;
}

/* The part of elements [first, end) that lies in this strip. */
static enum tr_status read_strip(struct row_strip *s, int64_t first, int64_t end, float *dst)
{
    int64_t cols = s->it->cols, col = 0, col_end = cols;
    float column[MOST_ROWS];
    if (s->n == 1) {
        col = tr_max64(0, first - s->row * cols);
        col_end = tr_min64(cols, end - s->row * cols);
    }
    TR_PASS(read_groups(s));
    s->words_of = s->order_from = -1;
    for (; col < col_end; col++) {
        TR_PASS(read_column(s, col, column));
        for (int64_t r = 0; r < s->n; r++) {
            int64_t at = (s->row + r) * cols + col;
            if (at >= first && at < end)
                dst[at - first] = column[r];
        }
    }
    return TR_OK;
}

static enum tr_status read_columns(const struct tr_hf *hf, const struct tr_hf_item *it, int64_t first, int64_t n,
                                   float *dst)
{
    enum tr_status st = TR_OK;
    int64_t end = first + n, row_end = (end - 1) / it->cols + 1;
    int64_t most = tr_min64(MOST_ROWS, tr_max64(1, MOST_SCALES / it->n_groups));
    struct row_strip s = { .hf = hf, .it = it, .is_awq = strcmp(it->scheme->method, "awq") == 0 };
    s.scale = malloc((size_t)(2 * it->n_groups * most) * sizeof *s.scale);
    if (!s.scale)
        return tr_fail(TR_NOMEM, "no memory for %" PRId64 " scales", it->n_groups * most);
    for (s.row = first / it->cols; s.row < row_end; s.row += s.n) {
        s.n = tr_min64(most, row_end - s.row);
        s.zero = s.scale + it->n_groups * s.n;
        TR_TRY(read_strip(&s, first, end, dst));
    }
out:
    free(s.scale);
    return st;
}

const struct tr_hf_scheme tr_hf_columns[] = {
    { .method = "gptq",
      .marker = ".qweight",
      .name = ".weight",
      .plane = { ".qweight", ".scales", ".qzeros", ".g_idx" },
      .n_required = 3,
      .is_transposed = true,
      .open = open_gptq,
      .read = read_columns },
    { .method = "awq",
      .marker = ".qweight",
      .name = ".weight",
      .plane = { ".qweight", ".scales", ".qzeros" },
      .n_required = 3,
      .is_transposed = true,
      .open = open_awq,
      .read = read_columns },
    { 0 },
};
