/* fast_elementwise.c - activations, gated units, add, scale, dropout, cast and the two sums: one pass over memory each.
 *
 * gelu_tanh is written on the sigmoid, (1 + tanh u) / 2 = sigmoid(2u): no cancellation in the negative tail.
 */
#include "ops/cpu/dropout.h"
#include "ops/cpu/fast.h"
#include "ops/cpu/simd.h"

static inline vf sigmoid(vf x, vf *rest) /* rest: 1 - sigmoid, without cancellation */
{
    vf e = v_exp(-x), s = 1.0f / (e + 1.0f);
    *rest = e * s;
    return s;
}

/* Returns the value and sets the derivative. The function is inlined: a caller that ignores one does not pay for it. */
static inline vf act(int32_t kind, vf x, vf *slope)
{
    vf s, rest, bell, inner;
    switch (kind) {
    case TR_ACT_RELU:
        *slope = v_select(x > 0.0f, v_set(1.0f), v_set(0.0f));
        return v_select(x < 0.0f, v_set(0.0f), x); /* NaN stays */
    case TR_ACT_GELU:
        v_normal(x, &s, &bell);
        *slope = s + x * bell * 0.398942280f;
        return x * s;
    case TR_ACT_GELU_TANH: /* 2 sqrt(2 / pi) (x + 0.044715 x^3) and its derivative */
        s = sigmoid(x * (x * x * 0.0713548163f + 1.59576912f), &rest);
        inner = x * x * 0.214064449f + 1.59576912f;
        *slope = s + x * (s * rest) * inner;
        return x * s;
    case TR_ACT_SILU:
        s = sigmoid(x, &rest);
        *slope = s * (x * rest + 1.0f);
        return x * s;
    default:
        *slope = v_set(1.0f);
        return x;
    }
}

static void act_piece(const struct tr_call *c, int64_t row, int64_t col, int64_t end)
{
    struct run x = run_at(&c->in[0], row, 0), y = run_at(&c->out[0], row, 0);
    vf slope;
    for (int64_t j = col; j < end; j += TR_LANES)
        v_store(y, j, end, act(c->attr.act, v_load(x, j, end), &slope));
}

void TR_FAST(act)(const struct tr_call *c)
{
    tr_fast_run(c, c->out[0].rows, c->out[0].cols, TR_PIECE, act_piece);
}

static void act_bwd_piece(const struct tr_call *c, int64_t row, int64_t col, int64_t end)
{
    struct run dy = run_at(&c->in[0], row, 0), x = run_at(&c->in[1], row, 0), dx = run_at(&c->out[0], row, 0);
    vf slope;
    for (int64_t j = col; j < end; j += TR_LANES) {
        act(c->attr.act, v_load(x, j, end), &slope);
        v_store(dx, j, end, v_load(dy, j, end) * slope);
    }
}

void TR_FAST(act_bwd)(const struct tr_call *c)
{
    tr_fast_run(c, c->out[0].rows, c->out[0].cols, TR_PIECE, act_bwd_piece);
}

static void glu_piece(const struct tr_call *c, int64_t row, int64_t col, int64_t end)
{
    struct run g = run_at(&c->in[0], row, 0), u = run_at(&c->in[1], row, 0), y = run_at(&c->out[0], row, 0);
    vf slope;
    for (int64_t j = col; j < end; j += TR_LANES)
        v_store(y, j, end, act(c->attr.act, v_load(g, j, end), &slope) * v_load(u, j, end));
}

void TR_FAST(glu)(const struct tr_call *c)
{
    tr_fast_run(c, c->out[0].rows, c->out[0].cols, TR_PIECE, glu_piece);
}

static void glu_bwd_piece(const struct tr_call *c, int64_t row, int64_t col, int64_t end)
{
    struct run dy = run_at(&c->in[0], row, 0), g = run_at(&c->in[1], row, 0), u = run_at(&c->in[2], row, 0);
    struct run dg = run_at(&c->out[0], row, 0), du = run_at(&c->out[1], row, 0);
    for (int64_t j = col; j < end; j += TR_LANES) {
        vf slope, d = v_load(dy, j, end), up = v_load(u, j, end);
        vf y = act(c->attr.act, v_load(g, j, end), &slope);
        v_store(dg, j, end, d * up * slope);
        v_store(du, j, end, d * y);
    }
}

void TR_FAST(glu_bwd)(const struct tr_call *c)
{
    tr_fast_run(c, c->out[0].rows, c->out[0].cols, TR_PIECE, glu_bwd_piece);
}

static void add_piece(const struct tr_call *c, int64_t row, int64_t col, int64_t end)
{
    struct run a = run_at(&c->in[0], row, 0), b = run_at(&c->in[1], row, 0), y = run_at(&c->out[0], row, 0);
    for (int64_t j = col; j < end; j += TR_LANES)
        v_store(y, j, end, v_load(a, j, end) + v_load(b, j, end));
}

void TR_FAST(add)(const struct tr_call *c)
{
    tr_fast_run(c, c->out[0].rows, c->out[0].cols, TR_PIECE, add_piece);
}

static void scale_piece(const struct tr_call *c, int64_t row, int64_t col, int64_t end)
{
    struct run x = run_at(&c->in[0], row, 0), y = run_at(&c->out[0], row, 0);
    float factor = v_factor(c);
    for (int64_t j = col; j < end; j += TR_LANES)
        v_store(y, j, end, v_load(x, j, end) * factor);
}

void TR_FAST(scale)(const struct tr_call *c)
{
    tr_fast_run(c, c->out[0].rows, c->out[0].cols, TR_PIECE, scale_piece);
}

static void cast_piece(const struct tr_call *c, int64_t row, int64_t col, int64_t end)
{
    const struct tr_view *x = &c->in[0], *y = &c->out[0];
    int64_t x_bytes = (int64_t)tr_dtype_bytes(x->dtype), y_bytes = (int64_t)tr_dtype_bytes(y->dtype);
    tr_convert((const char *)x->data + (row * x->ld + col) * x_bytes, x->dtype,
               (char *)y->data + (row * y->ld + col) * y_bytes, y->dtype, (size_t)(end - col));
}

static bool is_vector_type(const struct tr_view *v)
{
    return v->dtype == TR_F32 || v->dtype == TR_BF16 || v->dtype == TR_F16;
}

static void copy_piece(const struct tr_call *c, int64_t row, int64_t col, int64_t end)
{
    struct run x = run_at(&c->in[0], row, 0), y = run_at(&c->out[0], row, 0);
    for (int64_t j = col; j < end; j += TR_LANES)
        v_store(y, j, end, v_load(x, j, end));
}

void TR_FAST(cast)(const struct tr_call *c)
{
    bool is_fast = is_vector_type(&c->in[0]) && is_vector_type(&c->out[0]);
    tr_fast_run(c, c->out[0].rows, c->out[0].cols, TR_PIECE, is_fast ? copy_piece : cast_piece);
}

static void zero_piece(const struct tr_call *c, int64_t row, int64_t col, int64_t end)
{
    const struct tr_view *y = &c->out[0];
    size_t size = tr_dtype_bytes(y->dtype);
    memset((char *)y->data + (size_t)(row * y->ld + col) * size, 0, (size_t)(end - col) * size);
}

void TR_FAST(zero)(const struct tr_call *c)
{
    tr_fast_run(c, c->out[0].rows, c->out[0].cols, TR_PIECE, zero_piece);
}

/* The four words of each of n counters from (hi, lo) on; up to TR_LANES / 2 more are written. */
enum { DRAW = 256 };
static inline void draw_words(int n_rounds, uint64_t key, uint64_t hi, uint64_t lo, int64_t n, uint32_t *word)
{
    for (int64_t at = 0; at < 4 * n; at += 2 * TR_LANES, lo += TR_LANES / 2) {
        vl w[4];
        uint64_t lane[2][TR_LANES / 2];
        v_philox(n_rounds, key, hi, v_count_from(lo), w);
        w[0] = (w[0] & 0xffffffffu) | w[1] << 32;
        w[2] = (w[2] & 0xffffffffu) | w[3] << 32;
        memcpy(lane[0], &w[0], sizeof w[0]);
        memcpy(lane[1], &w[2], sizeof w[2]);
        for (int l = 0; l < TR_LANES / 2; l++)
            for (int k = 0; k < 2; k++)
                memcpy(&word[at + 4 * l + 2 * k], &lane[k][l], sizeof(uint64_t));
    }
}

static int64_t sample_in(const struct tr_call *c, int64_t row)
{
    return ((const int64_t *)c->in[1].data)[row * c->in[1].ld];
}

static int32_t position_in(const struct tr_call *c, int64_t row)
{
    return ((const int32_t *)c->in[2].data)[row * c->in[2].ld];
}

static void dropout_piece(const struct tr_call *c, int64_t row, int64_t col, int64_t end)
{
    struct tr_dropout d = tr_dropout_init(&c->attr, c->in[3].data);
    uint32_t token = tr_drop_token(sample_in(c, row), position_in(c, row));
    struct run x = run_at(&c->in[0], row, 0), y = run_at(&c->out[0], row, 0);
    union {
        uint32_t word[DRAW / 2 + 4 * TR_LANES];
        uint16_t number[DRAW + 8 * TR_LANES]; /* number 2 k is the low half of word k */
    } r;
    _Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the low half of a word comes first");
    for (int64_t from = col; from < end; from += DRAW) {
        int64_t column = c->attr.first + from, to = tr_min64(from + DRAW, end), skip = tr_drop_at_of_column(column);
        draw_words(7, d.key, d.step, tr_drop_lo_of_column(token, column), (skip + to - from + 7) / 8, r.word);
        for (int64_t j = from; j < to; j += TR_LANES) {
            vh number;
            memcpy(&number, r.number + skip + (j - from), sizeof number);
            vi is_kept = __builtin_convertvector(number, vu) >= d.threshold;
            v_store(y, j, to, v_select(is_kept, v_load(x, j, to) * d.scale, v_set(0.0f)));
        }
    }
}

static void noise_piece(const struct tr_call *c, int64_t row, int64_t col, int64_t end)
{
    struct tr_dropout d = tr_noise_init(&c->attr, c->in[3].data);
    uint64_t hi = d.step << 24 | ((uint64_t)sample_in(c, row) & 0xffffffu);
    struct run x = run_at(&c->in[0], row, 0), y = run_at(&c->out[0], row, 0);
    uint32_t word[DRAW + 4 * TR_LANES];
    for (int64_t from = col; from < end; from += DRAW) {
        int64_t column = c->attr.first + from, to = tr_min64(from + DRAW, end);
        uint64_t lo = (uint64_t)position_in(c, row) << 32 | (uint64_t)column >> 2;
        draw_words(10, d.key, hi, lo, ((column & 3) + to - from + 3) / 4, word);
        for (int64_t j = from; j < to; j += TR_LANES) {
            vi w;
            memcpy(&w, word + (column & 3) + (j - from), sizeof w);
            v_store(y, j, to, v_load(x, j, to) + __builtin_convertvector(w, vf) * d.scale);
        }
    }
}

void TR_FAST(noise)(const struct tr_call *c)
{
    tr_fast_run(c, c->out[0].rows, c->out[0].cols, TR_PIECE, noise_piece);
}

void TR_FAST(dropout)(const struct tr_call *c)
{
    tr_fast_run(c, c->out[0].rows, c->out[0].cols, TR_PIECE, c->attr.dropout_p > 0 ? dropout_piece : copy_piece);
}

void TR_FAST(sum)(const struct tr_call *c) /* in row order, by one thread: only a few thousand additions */
{
    const struct tr_view *x = &c->in[0];
    for (int64_t j = 0; j < x->cols; j++) {
        double *out = (double *)c->out[0].data + j, sum = c->accumulate[0] ? *out : 0.0;
        for (int64_t n = 0; n < x->rows; n++)
            sum += (double)((const float *)x->data)[n * x->ld + j];
        *out = sum;
    }
}

/* One chunk, in sixteen sums of doubles whatever the vector width, so that every instruction set gives the same bits.
 */
static void sumsq_chunk(const struct tr_call *c, int64_t row, int64_t col, int64_t end)
{
    typedef float half __attribute__((vector_size(TR_LANES * 2)));
    typedef double vd __attribute__((vector_size(TR_LANES * 4)));
    enum { N = 32 / TR_LANES };
    struct run g = run_at(&c->in[0], row, 0);
    vd sum[N] = { 0 };
    double lane[16];
    for (int64_t j = col; j < end; j += 16) {
#pragma GCC unroll 16
        for (int k = 0; k < N; k += 2) {
            vf f = v_load(g, j + k * TR_LANES / 2, end);
            half h[2];
            memcpy(h, &f, sizeof h);
            vd a = __builtin_convertvector(h[0], vd), b = __builtin_convertvector(h[1], vd);
            sum[k] += a * a;
            sum[k + 1] += b * b;
        }
    }
    memcpy(lane, sum, sizeof lane);
    for (int h = 8; h > 0; h /= 2)
        for (int i = 0; i < h; i++)
            lane[i] += lane[i + h];
    ((double *)c->scratch)[col / TR_SUMSQ_CHUNK] = lane[0];
}

void TR_FAST(sumsq)(const struct tr_call *c)
{
    int64_t n = c->in[0].cols;
    const double *part = c->scratch;
    double *out = c->out[0].data, sum = 0.0;
    tr_fast_run(c, 1, n, TR_SUMSQ_CHUNK, sumsq_chunk);
    for (int64_t i = 0; i * TR_SUMSQ_CHUNK < n; i++)
        sum += part[i];
    *out = c->accumulate[0] ? *out + sum : sum;
}
