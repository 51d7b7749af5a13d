/* case_check.h - runs a check over every row of cases.h in every mode, and compares a kernel's outputs with the
 * reference's. Shared by the CPU and the CUDA tests. */
#ifndef TR_TESTS_OPS_CASE_CHECK_H
#define TR_TESTS_OPS_CASE_CHECK_H

#include <float.h>
#include "ops/case_call.h"

static const struct mode modes[] = {
    { "f32", TR_F32, TR_F32, TR_F32, TR_F32, .is_padded = false, .accumulate = false },
    { "f32 padded acc", TR_F32, TR_F32, TR_F32, TR_F32, .is_padded = true, .accumulate = true },
    { "bf16", TR_BF16, TR_F32, TR_F32, TR_F32, .is_padded = false, .accumulate = true },
    { "bf16 padded", TR_BF16, TR_F32, TR_F32, TR_F32, .is_padded = true, .accumulate = false },
    { "bf16 all", TR_BF16, TR_BF16, TR_BF16, TR_F32, .is_padded = false, .accumulate = true },
    { "f16 padded acc", TR_F16, TR_F32, TR_F32, TR_F32, .is_padded = true, .accumulate = true },
};

/* Every op of the table, forward and backward, with the inputs it would see in training: fn(call, its twin). */
typedef void check_fn(struct built *a, struct built *b);

/* Those of one op; TR_OP_COUNT: of every. */
static inline void each_call_of(const struct op_case *row, const struct mode *m, enum tr_opcode only, check_fn *check)
{
    struct built a, b, forward;
    if (only == TR_OP_COUNT || row->op == only) {
        build(&a, row, row->op, m);
        build(&b, row, row->op, m);
        check(&a, &b);
        release(&a);
        release(&b);
    }
    for (size_t g = 0; g < TR_COUNT_OF(grads); g++) {
        if (grads[g].forward != row->op || (only != TR_OP_COUNT && grads[g].backward != only))
            continue;
        build(&forward, row, row->op, m);
        tr_op_cpu_ref(row->op)(&forward.c);
        build_backward(&a, &forward, &grads[g], m);
        build_backward(&b, &forward, &grads[g], m);
        check(&a, &b);
        release(&a);
        release(&b);
        release(&forward);
    }
}

static inline void each_call(enum tr_opcode only, check_fn *check)
{
    for (size_t i = 0; i < TR_COUNT_OF(cases); i++)
        for (size_t m = 0; m < TR_COUNT_OF(modes) && !cases[i].is_speed; m++)
            each_call_of(&cases[i], &modes[m], only, check);
}

/* A NaN goes through every activation, so that the loss shows it. */
static inline void assert_nan_stays(tr_kernel act)
{
    for (int kind = TR_ACT_NONE; kind <= TR_ACT_SILU; kind++) {
        float x[37], y[37];
        for (int i = 0; i < 37; i++)
            x[i] = i % 5 == 2 ? NAN : (float)(i - 18);
        struct tr_view in = { .data = x, .dtype = TR_F32, .rows = 1, .cols = 37, .ld = 37 }, out = in;
        out.data = y;
        act(&(struct tr_call){ .op = TR_OP_ACT, .in = { in }, .out = { out }, .attr = { .act = kind } });
        for (int i = 0; i < 37; i++)
            assert_int_equal(isnan(y[i]), i % 5 == 2);
    }
}

/* Spacing of neighbouring numbers near x, relative: two correct results round to neighbours at worst. */
static inline double spacing(enum tr_dtype d)
{
    return d == TR_E5M2   ? 0x1p-2
           : d == TR_E4M3 ? 0x1p-3
           : d == TR_BF16 ? 0x1p-7
           : d == TR_F16  ? 0x1p-10
           : d == TR_F64  ? 0x1p-52
                          : 0x1p-23;
}

static inline int64_t longest_side(struct built *b)
{
    int64_t n = 1;
    for (int i = 0; i < TR_MAX_IN; i++)
        if (b->c.in[i].data)
            n = tr_max64(n, tr_max64(b->c.in[i].rows, b->c.in[i].cols));
    return n;
}

/* Set by a test whose matrix products may round a partial result to the stored type (a bias or an old value added in a
 * second kernel, logits kept in bf16, probabilities as the operand of a product): a few roundings of the largest result
 * more. */
static bool products_round;

static inline bool rounds_inside(struct built *b)
{
    static const enum tr_opcode products[] = {
        TR_OP_LINEAR,        TR_OP_LINEAR_DX,      TR_OP_LINEAR_DW,          TR_OP_ATTENTION,
        TR_OP_ATTENTION_BWD, TR_OP_RING_ATTENTION, TR_OP_RING_ATTENTION_BWD,
    };
    bool is_product = false;
    for (size_t i = 0; i < TR_COUNT_OF(products); i++)
        is_product |= b->c.op == products[i];
    return shape_of(b->c.op)->rounds_inside || (products_round && is_product);
}

/* |fast - ref| may reach one spacing of the stored type, plus what summing k terms in fp32 costs: rounding errors are
 * independent, so sqrt(k) * 2^-24 of the largest partial sum, times 4 for the tail and for exp, tanh and erf good to a
 * few ulp. The largest partial sum is at least 1 (all inputs fill (-1, 1)) and at least the largest result. Kernels
 * that keep an intermediate in 16 bits add half its spacing (2^-8 in bf16) of the largest result, on each term of a sum
 * of both signs.
 */
static inline double tolerance(struct built *b, const struct tr_view *ref, double x)
{
    double largest = 0;
    for (int64_t row = 0; row < ref->rows; row++)
        for (int64_t col = 0; col < ref->cols; col++)
            if (fabs(tr_ref_get(ref, row, col)) < (double)FLT_MAX) /* which marks a row without a number */
                largest = fmax(largest, fabs(tr_ref_get(ref, row, col)));
    enum tr_dtype inside = b->c.op == TR_OP_MATMUL8      ? ref->dtype
                           : b->c.op == TR_OP_ORTHOGONAL ? TR_BF16 /* between its products */
                                                         : b->c.in[0].dtype;
    double half_spacing = spacing(inside) / 2; /* of an intermediate */
    bool rounds = (inside == TR_BF16 || inside == TR_F16) && rounds_inside(b);
    bool is_8bit = b->c.op == TR_OP_MATMUL8 && products_round; /* tensor cores add 8-bit products with 13 bits or so */
    return spacing(ref->dtype) * fabs(x) + 4.0 * sqrt((double)longest_side(b)) * 0x1p-24 * fmax(1.0, largest) +
           (rounds ? (products_round ? 3 : 1) * half_spacing * largest : 0.0) + (is_8bit ? 0x1p-10 * largest : 0.0);
}

/* Codes of optimizer state: fp32 arithmetic may find the neighbour of a code, for one element in fifty at most. */
static inline void compare_codes(struct built *fast, const struct tr_view *f, const struct tr_view *r)
{
    int64_t n_different = 0;
    for (int64_t i = 0; i < r->cols; i++) {
        int x = ((const uint8_t *)f->data)[i], want = ((const uint8_t *)r->data)[i];
        n_different += x != want;
        if (x < want - 1 || x > want + 1)
            fail_msg("%s: code %d is %d, reference %d", fast->label, (int)i, x, want);
    }
    if (n_different > 1 + r->cols / 50)
        fail_msg("%s: %d of %d codes differ from the reference", fast->label, (int)n_different, (int)r->cols);
}

/* A tolerance of one spacing would accept a wrong rounding, so exact results are counted as well: fp32 arithmetic lands
 * on the other side of a bf16 boundary for one element in thousands; 2 % (and 2 in tiny views) is generous. Boundaries
 * of fp16 are eight times as close: 16 %. */
static inline void compare_view(struct built *fast, struct built *ref, int k)
{
    const struct tr_view *f = &fast->c.out[k], *r = &ref->c.out[k];
    if (r->dtype == TR_U8) {
        compare_codes(fast, f, r);
        return;
    }
    double slack = tolerance(ref, r, 0.0);
    int64_t n_different = 0;
    for (int64_t row = 0; row < r->rows; row++) {
        for (int64_t col = 0; col < r->cols; col++) {
            double x = tr_ref_get(f, row, col), want = tr_ref_get(r, row, col);
            n_different += x != want;
            if (!(fabs(x - want) <= slack + spacing(r->dtype) * fabs(want)))
                fail_msg("%s: out[%d][%d, %d] is %.9g, reference %.9g, tolerance %.3g", fast->label, k, (int)row,
                         (int)col, x, want, slack + spacing(r->dtype) * fabs(want));
        }
    }
    int64_t one_in = r->dtype == TR_BF16 ? 50 : 6;
    bool is_exact = (r->dtype == TR_BF16 || r->dtype == TR_F16) && !rounds_inside(ref);
    if (is_exact && n_different > 2 + r->rows * r->cols / one_in)
        fail_msg("%s: out[%d]: %d of %d 16-bit results differ from the reference", fast->label, k, (int)n_different,
                 (int)(r->rows * r->cols));
}

/* Bytes of the buffer outside the view. */
static inline void check_padding(struct built *b, int k)
{
    const struct tr_view *v = &b->c.out[k];
    const unsigned char *base = b->base[TR_MAX_IN + k], *data = v->data;
    size_t elem = tr_dtype_bytes(v->dtype), start = (size_t)(data - base), pitch = (size_t)v->ld * elem;
    for (size_t i = 0; i < b->n_bytes[TR_MAX_IN + k]; i++) {
        size_t in = i - start;
        bool is_inside = i >= start && in / pitch < (size_t)v->rows && in % pitch < (size_t)v->cols * elem;
        if (!is_inside && base[i] != 0xff)
            fail_msg("%s: writes byte %zu, outside out[%d]", b->label, i, k);
    }
}

#endif
