/* test_ops.c - one case table (cases.h), three uses: derivatives of the reference, fast against reference, speed.
 *
 * Derivatives run the reference on F64 views, so central differences are good to seven digits and a wrong term cannot
 * hide. Parity tolerances come from the stored type and the reduction length, see close_enough().
 */
#include "ops/case_check.h"
#include "ops/cpu/fast.h"
#include <stdio.h>

static const struct mode DOUBLE = { "f64", TR_F64, TR_F64, TR_F64, TR_F64, .is_padded = false };

/* ---- derivatives ---- */

/* sum(dy * y) of the forward op: what the backward op differentiates. Head losses are weighed by INV_TOKENS instead. */
static double weighed_sum(struct built *forward, const struct tr_view *dy)
{
    const struct tr_view *y = &forward->c.out[0];
    double sum = 0;
    tr_op_cpu_ref(forward->c.op)(&forward->c);
    for (int64_t row = 0; row < y->rows; row++)
        for (int64_t col = 0; col < y->cols; col++)
            sum += tr_ref_get(y, row, col) * (dy ? tr_ref_get(dy, row, col) : (double)INV_TOKENS);
    return sum;
}

/* Step h = 2^-16. Rounding: a sum of up to 10^4 terms of size 1, about 100 in all, is off by 2^-53 * 100 * (a few), so
 * the quotient by 2^-15 of that by 2e-9 * (a few). Truncation: h^2 / 6 * f''' = 4e-11 f''', with f''' up to some 100. A
 * tolerance of 3e-8 (relative above 1) covers both; a wrong term is off by 1e-6 or more. */
static void check_element(struct built *forward, const struct tr_view *dy, const struct tr_view *x, int64_t at,
                          double got)
{
    const double h = 0x1p-16;
    int64_t row = at / x->cols, col = at % x->cols;
    double old = tr_ref_get(x, row, col);
    tr_ref_put(x, row, col, old + h);
    double up = weighed_sum(forward, dy);
    tr_ref_put(x, row, col, old - h);
    double want = (up - weighed_sum(forward, dy)) / (2 * h);
    tr_ref_put(x, row, col, old);
    if (!(fabs(got - want) <= 3e-8 * fmax(1.0, fabs(want))))
        fail_msg("%s: d/dx[%d, %d] is %.12g, differences say %.12g", forward->label, (int)row, (int)col, got, want);
}

/* Up to 40 elements of each input, spread over it. */
static void check_gradients(struct built *forward, const struct op_grad *g)
{
    struct built b;
    const char *in_y = strchr(g->in, 'y');
    tr_op_cpu_ref(forward->c.op)(&forward->c);
    build_backward(&b, forward, g, &DOUBLE);
    for (int i = 0; g->in[i]; i++)
        if (g->in[i] == 'n')
            b.c.in[i].data = NULL;
    tr_op_cpu_ref(g->backward)(&b.c);
    for (int k = 0; g->out[k]; k++) {
        const struct tr_view *dx = &b.c.out[k], *x = g->out[k] == '-' ? NULL : &forward->c.in[g->out[k] - '0'];
        if (!x || !x->data)
            continue;
        int64_t n = x->rows * x->cols, stride = n / 40 + 1;
        for (int64_t at = 0; at < n; at += stride)
            check_element(forward, in_y ? &b.c.in[in_y - g->in] : NULL, x, at,
                          tr_ref_get(dx, at / x->cols, at % x->cols));
    }
    release(&b);
}

static void reference_gradients_match_central_differences(void **state)
{
    (void)state;
    for (size_t i = 0; i < TR_COUNT_OF(cases); i++) {
        for (size_t g = 0; g < TR_COUNT_OF(grads) && !cases[i].is_speed; g++) {
            struct built forward;
            if (grads[g].forward != cases[i].op)
                continue;
            build(&forward, &cases[i], cases[i].op, &DOUBLE);
            check_gradients(&forward, &grads[g]);
            release(&forward);
        }
    }
}

/* ---- parity ---- */

static void check_parity(struct built *fast, struct built *ref)
{
    run_fast(fast, NULL);
    tr_op_cpu_ref(ref->c.op)(&ref->c);
    for (int k = 0; k < tr_op_n_out(ref->c.op); k++) {
        if (!ref->c.out[k].data)
            continue;
        compare_view(fast, ref, k);
        check_padding(fast, k);
        check_padding(ref, k);
    }
}

static void fast_matches_reference(void **state)
{
    (void)state;
    each_call(TR_OP_COUNT, check_parity);
}

/* ---- bits ---- */

static struct tr_pool *two_threads;

static void same_bytes(struct built *a, struct built *b, int k, const char *claim)
{
    if (a->base[TR_MAX_IN + k] &&
        memcmp(a->base[TR_MAX_IN + k], b->base[TR_MAX_IN + k], a->n_bytes[TR_MAX_IN + k]) != 0)
        fail_msg("%s: out[%d] depends on %s", a->label, k, claim);
}

static void check_threads(struct built *one, struct built *two)
{
    run_fast(one, NULL);
    run_fast(two, two_threads);
    for (int k = 0; k < TR_MAX_OUT; k++)
        same_bytes(one, two, k, "the number of threads");
}

static void fast_gives_the_same_bits_for_any_number_of_threads(void **state)
{
    (void)state;
    each_call(TR_OP_COUNT, check_threads);
}

static enum tr_isa other_isa;

static void check_isa(struct built *best, struct built *other)
{
    tr_kernel kernel = tr_fast_kernel(other->c.op, other_isa);
    if (!kernel)
        return;
    run_fast(best, NULL);
    run_kernel(other, kernel, NULL);
    for (int k = 0; k < TR_MAX_OUT; k++)
        same_bytes(best, other, k, "the instruction set");
}

static void fast_gives_the_same_bits_on_every_instruction_set(void **state)
{
    (void)state;
    for (other_isa = TR_ISA_BASE; other_isa < TR_ISA_COUNT; other_isa++)
        each_call(TR_OP_COUNT, check_isa);
}

/* The same buffers, rows first .. first + n only. begin counts rows of the view, so it moves with them. */
static void run_rows(struct built *b, int64_t first, int64_t n)
{
    struct tr_call whole_call = b->c;
    for (int i = 0; i < N_VIEWS; i++) {
        struct tr_view *v = view_of(b, i);
        if (!v->data || b->row_dim[i] != 'N')
            continue;
        v->data = (char *)v->data + (size_t)(first * v->ld) * tr_dtype_bytes(v->dtype);
        v->rows = n;
    }
    bool is_forward = b->c.op == TR_OP_ATTENTION || b->c.op == TR_OP_RING_ATTENTION;
    bool is_backward = b->c.op == TR_OP_ATTENTION_BWD || b->c.op == TR_OP_RING_ATTENTION_BWD;
    struct tr_view *begin = is_forward ? &b->c.in[3] : is_backward ? &b->c.in[6] : NULL;
    for (int64_t i = 0; begin && i < n; i++)
        ((int32_t *)begin->data)[i * begin->ld] -= (int32_t)first;
    run_fast(b, NULL);
    b->c = whole_call;
}

static void check_split(struct built *whole_batch, struct built *parts)
{
    int64_t n = whole_batch->row->n, cut = n / 3 + 1;
    enum tr_opcode op = whole_batch->c.op;
    bool is_attention = op == TR_OP_ATTENTION || op == TR_OP_ATTENTION_BWD || op == TR_OP_RING_ATTENTION ||
                        op == TR_OP_RING_ATTENTION_BWD || op == TR_OP_ATTENTION_CACHED || op == TR_OP_CACHE_PUT;
    if (is_attention)
        cut = whole_batch->row->pack ? whole_batch->row->pack : n; /* documents and prompts stay whole */
    if (cut >= n || whole_batch->c.op == TR_OP_HEAD_COMBINE)       /* whose rows are ranks' one below the other */
        return;
    if (whole_batch->c.op == TR_OP_QUANT || whole_batch->c.op == TR_OP_ORTHOGONAL) /* one scale for all rows */
        return;
    if (whole_batch->c.op == TR_OP_DOC_SUMS || whole_batch->c.op == TR_OP_PAIR_LOSS) /* rows are named by number */
        return;
    run_fast(whole_batch, NULL);
    run_rows(parts, 0, cut);
    run_rows(parts, cut, n - cut);
    for (int k = 0; k < TR_MAX_OUT; k++)
        if (whole_batch->row_dim[TR_MAX_IN + k] == 'N')
            same_bytes(whole_batch, parts, k, "how rows are split");
}

static void fast_gives_the_same_bits_when_rows_are_split(void **state)
{
    (void)state;
    each_call(TR_OP_COUNT, check_split);
}

static void check_add_in_place(struct built *a, struct built *b)
{
    if (a->c.op != TR_OP_ADD)
        return;
    run_fast(a, NULL);
    copy_view(&b->c.in[0], &b->c.out[0]);
    b->c.in[0] = b->c.out[0];
    run_fast(b, NULL);
    same_bytes(a, b, 0, "y being a");
}

static void add_may_write_over_its_first_input(void **state)
{
    (void)state;
    each_call(TR_OP_COUNT, check_add_in_place);
}

static void every_op_has_a_case(void **state)
{
    (void)state;
    for (int op = 0; op < TR_OP_COUNT; op++) {
        bool is_covered = false;
        for (size_t i = 0; i < TR_COUNT_OF(cases); i++)
            is_covered |= (int)cases[i].op == op;
        for (size_t i = 0; i < TR_COUNT_OF(grads); i++)
            is_covered |= (int)grads[i].backward == op;
        if (!is_covered)
            fail_msg("op %s has no case", tr_op_row((enum tr_opcode)op)->name);
        assert_non_null(tr_op_cpu_ref((enum tr_opcode)op));
        assert_non_null(tr_op_cpu_fast((enum tr_opcode)op));
    }
}

/* ---- speed ---- */

static struct tr_pool *all_threads;

static double view_bytes(struct built *b)
{
    double sum = 0;
    for (int i = 0; i < N_VIEWS; i++)
        if (view_of(b, i)->data)
            sum += (double)(view_of(b, i)->rows * view_of(b, i)->cols) * (double)tr_dtype_bytes(view_of(b, i)->dtype);
    return sum;
}

/* Fastest of the runs that fit in 0.3 s, at least two: the first one warms up. */
static double seconds_of(struct built *b, tr_kernel kernel)
{
    double best = INFINITY, spent = 0;
    for (int i = 0; i < 2 || spent < 0.3; i++) {
        int64_t t0 = tr_clock_us();
        kernel(&b->c);
        double s = (double)tr_max64(tr_clock_us() - t0, 1) * 1e-6;
        best = fmin(best, s);
        spent += s;
    }
    return best;
}

static void a_nan_goes_through_every_activation(void **state)
{
    (void)state;
    assert_nan_stays(tr_op_cpu_ref(TR_OP_ACT));
    assert_nan_stays(tr_op_cpu_fast(TR_OP_ACT));
}

static void print_speed(struct built *b, const char *column, double seconds)
{
    printf("%-48s %-5s %10.3f ms %8.2f GB/s", b->label, column, seconds * 1e3, view_bytes(b) / seconds * 1e-9);
    if (tr_op_flops(&b->c) > 0)
        printf(" %9.1f GFLOP/s", tr_op_flops(&b->c) / seconds * 1e-9);
    printf("\n");
    fflush(stdout);
}

/* The reference is timed where it ends within about a second. */
static void check_speed(struct built *fast, struct built *ref)
{
    size_t bytes = tr_op_scratch(&fast->c, tr_pool_threads(all_threads));
    fast->c.scratch = aligned_alloc(64, tr_round_up(bytes, 64) + 64);
    fast->c.pool = all_threads;
    print_speed(fast, "fast", seconds_of(fast, tr_op_cpu_fast(fast->c.op)));
    bool is_slow = ref->c.op == TR_OP_EMBED_DW || tr_op_flops(&ref->c) > 1e8;
    if (!is_slow)
        print_speed(ref, "ref", seconds_of(ref, tr_op_cpu_ref(ref->c.op)));
}

static void speed_of(const struct op_case *row, enum tr_opcode op, const char *only)
{
    if (only && strcmp(only, tr_op_row(op)->name) != 0)
        return;
    for (size_t m = 0; m < 3; m += 2) { /* f32, bf16 */
        struct built fast, ref;
        build(&fast, row, op, &modes[m]);
        build(&ref, row, op, &modes[m]);
        check_speed(&fast, &ref);
        release(&fast);
        release(&ref);
    }
}

/* Unlike each_call(), backward ops get random inputs: running the reference forward first would take minutes. */
static void speed(const char *only)
{
    for (size_t i = 0; i < TR_COUNT_OF(cases); i++) {
        if (!cases[i].is_speed)
            continue;
        speed_of(&cases[i], cases[i].op, only);
        for (size_t g = 0; g < TR_COUNT_OF(grads); g++)
            if (grads[g].forward == cases[i].op && grads[g].backward != cases[i].op)
                speed_of(&cases[i], grads[g].backward, only);
    }
}

/* No argument: the tests. --speed [op]: time per case instead. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_op_has_a_case),
        cmocka_unit_test(reference_gradients_match_central_differences),
        cmocka_unit_test(fast_matches_reference),
        cmocka_unit_test(fast_gives_the_same_bits_for_any_number_of_threads),
        cmocka_unit_test(fast_gives_the_same_bits_on_every_instruction_set),
        cmocka_unit_test(fast_gives_the_same_bits_when_rows_are_split),
        cmocka_unit_test(add_may_write_over_its_first_input),
        cmocka_unit_test(a_nan_goes_through_every_activation),
    };
    enum tr_gemm_choice got;
    /* Bit identity is promised by the built-in engine. */
    if (tr_gemm_select(TR_GEMM_BUILTIN, &got) != TR_OK || tr_pool_open(2, &two_threads) != TR_OK ||
        tr_pool_open(0, &all_threads) != TR_OK)
        return 1;
    int failed = 0;
    if (argc > 1 && strcmp(argv[1], "--speed") == 0)
        speed(argc > 2 ? argv[2] : NULL);
    else
        failed = cmocka_run_group_tests(tests, NULL, NULL);
    tr_pool_close(two_threads);
    tr_pool_close(all_threads);
    return failed;
}
