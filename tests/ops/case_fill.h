/* case_fill.h - the numbers in the views of a case: a function of the view and of the element. */
#ifndef TR_TESTS_OPS_CASE_FILL_H
#define TR_TESTS_OPS_CASE_FILL_H

#include "base/quant.h"
#include "ops/cases.h"
#include "ops/cpu/ref.h"
#include <math.h>
#include <string.h>

/* Number of the first token: tokens cross the 32 bits that dropout keeps, and the 24 of noise. */
static const int64_t FIRST_TOKEN = (1LL << 32) - 64;

/* Uniform in (-1, 1): a function of view and element. */
static inline double number(uint64_t stream, int64_t row, int64_t col)
{
    struct tr_philox r = tr_philox(stream, (uint64_t)row, (uint64_t)col);
    return 2.0 * (double)tr_u01(r.v[0]) - 1.0;
}

/* The first row of the document of a row. Ragged ones begin anew in every row of tokens. */
static inline int64_t document_of(const struct op_case *r, int64_t row)
{
    static const int lengths[] = { 1, 70, 1, 2, 130, 7, 64, 33 };
    int64_t len = r->pack ? r->pack : r->n;
    if (r->pack != RAGGED)
        return row / len * len;
    int64_t at = row / r->attr.seq_len * r->attr.seq_len;
    for (size_t i = 0; at + lengths[i % TR_COUNT_OF(lengths)] <= row; i++)
        at += lengths[i % TR_COUNT_OF(lengths)];
    return at;
}

static inline int64_t whole(const struct op_case *r, char kind, uint64_t stream, int64_t row)
{
    int64_t len = r->pack > 0 ? r->pack : r->n;
    int64_t span = r->v + 2 * r->index_spread;
    int64_t random = span > 0 ? (int64_t)(tr_philox(stream, 0, (uint64_t)row).v[1] % (uint64_t)span) : 0;
    switch (kind) {
    case 'i':
        return random - r->index_spread - r->attr.index_offset;
    case 't':
        return row % 4 == 3 ? -1 : random; /* every fourth row has no target */
    case 'b':
        return document_of(r, row);
    case 'o': { /* documents 2k and 2k + 1 are a pair; one that is left has none */
        int64_t doc = row / len, other = doc ^ 1;
        return other * len < r->n ? other * len : -1;
    }
    case 's':
        return FIRST_TOKEN + document_of(r, row);
    case 'l':
        if (r->attr.seq_len > 0) { /* each sequence is at another place of its cache */
            int64_t n_rows = tr_cache_rows(&r->attr, r->n, r->v), left = n_rows - r->attr.seq_len;
            return row / r->attr.seq_len * 7 % (left + 1) + row % r->attr.seq_len;
        }
        return row < len ? r->v - len + row : row - len; /* the last of a cache, then padding that counts from 0 */
    default:
        return row - document_of(r, row);
    }
}

#define INV_TOKENS 0.5f

static inline void fill_step(float *s)
{
    static const float values[TR_STEP_COUNT] = {
        [TR_STEP_LR] = 0.01f,        [TR_STEP_INV_TOKENS] = INV_TOKENS, [TR_STEP_CLIP] = 0.75f,
        [TR_STEP_BETA1] = 0.9f,      [TR_STEP_BETA2] = 0.95f,           [TR_STEP_EPS] = 1e-8f,
        [TR_STEP_DECAY] = 0.1f,      [TR_STEP_BIAS1] = 0.271f,          [TR_STEP_BIAS2] = 0.143f,
        [TR_STEP_NUMBER_LO] = 70001, [TR_STEP_NUMBER_HI] = 3,           [TR_STEP_MOMENTUM] = 0.95f,
        [TR_STEP_ADJUST] = 1,
    };
    memcpy(s, values, sizeof values);
}

/* Weights like those of a model, as a device would hold them. */
static inline void fill_grains(const struct op_case *r, const struct tr_view *v, uint64_t stream)
{
    int64_t n = r->d * r->o, grain = tr_packed_format((enum tr_packed)r->attr.packed)->grain;
    for (int64_t at = 0; at < n; at += grain) {
        float x[TR_PACKED_GRAIN_MAX];
        for (int64_t i = 0; i < grain; i++)
            x[i] = (float)number(stream, at, i);
        tr_packed_encode((enum tr_packed)r->attr.packed, x, tr_min64(grain, n - at),
                         (char *)v->data + at / grain * v->ld);
    }
}

static inline void fill(const struct op_case *r, const struct tr_view *v, char kind, uint64_t stream)
{
    if (kind == 'z') {
        fill_step(v->data);
        return;
    }
    if (kind == 'x') {
        fill_grains(r, v, stream);
        return;
    }
    for (int64_t row = 0; row < v->rows; row++) {
        for (int64_t col = 0; col < v->cols; col++) {
            double angle = (double)row * pow(10.0, -2.0 * (double)(col % (v->cols / 2 + 1)) / (double)v->cols);
            if (v->dtype == TR_I32)
                ((int32_t *)v->data)[row * v->ld] = (int32_t)whole(r, kind, stream, row);
            else if (v->dtype == TR_I64)
                ((int64_t *)v->data)[row * v->ld] = whole(r, kind, stream, row);
            else if (kind == 'r')
                tr_ref_put(v, row, col, col < v->cols / 2 ? cos(angle) : sin(angle));
            else if (v->dtype == TR_U8)
                ((uint8_t *)v->data)[row * v->ld + col] = (uint8_t)(128 + 127 * number(stream, row, col));
            else if (strchr("vkewFy", kind))
                tr_ref_put(v, row, col, 0.01 + fabs(number(stream, row, col)));
            else
                tr_ref_put(v, row, col, number(stream, row, col));
        }
    }
}

#endif
