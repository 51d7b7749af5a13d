/* The tensor-core kernels of attention, and simple kernels, on a CPU (tests/emulate), the very files that nvcc
 * compiles, against the kernels of CPUs, which ops/test_ops compares with the reference: what a wrong index, mask,
 * barrier or wait does shows here without a GPU. Their speed does not. */
#include "ops/attention_cases.h"
#include "ops/cuda/scratch.h"

bool emulated_attention(const struct tr_call *c, int shared_of_gpu);
tr_kernel emulated_kernel(enum tr_opcode op);

/* Shared memory that a block of threads may have: of an H100, of an A100, of an RTX 3090. */
enum { H100 = 227 << 10, A100 = 163 << 10, RTX = 99 << 10 };

static bool run(struct built *b, const struct op_case *row, int shared)
{
    struct tr_call c = b->c;
    c.n_documents = documents_of(row);
    c.scratch = malloc((size_t)(row->n * row->attr.n_heads_q) * sizeof(float)); /* do.o of every row */
    assert_non_null(c.scratch);
    bool is_run = emulated_attention(&c, shared);
    free(c.scratch);
    return is_run;
}

/* Results in float32, as the ring of ranks sums them. */
static void widen(struct built *b)
{
    for (int k = 0; k < TR_MAX_OUT; k++) {
        struct tr_view *v = &b->c.out[k];
        unsigned char **base = &b->base[TR_MAX_IN + k];
        if (!v->data || v->dtype == TR_F32)
            continue;
        free(*base);
        v->data = *base = calloc((size_t)(v->rows * v->cols), sizeof(float));
        assert_non_null(v->data);
        v->dtype = TR_F32;
        v->ld = v->cols;
        b->c.accumulate[k] = b->c.op == TR_OP_ATTENTION_BWD; /* to zeros */
    }
}

static void check_attention(const struct op_case *row, const struct mode *m, int shared, bool is_wide)
{
    static const char *const names[] = { "dq", "dk", "dv" };
    struct built f, f_ref, b, b_ref;
    build(&f, row, TR_OP_ATTENTION, m);
    build(&f_ref, row, TR_OP_ATTENTION, m);
    if (row->attr.head_dim > 128 && shared < A100) {
        assert_false(run(&f, row, shared)); /* such a GPU takes another engine */
        release(&f);
        release(&f_ref);
        return;
    }
    assert_true(run(&f, row, shared));
    run_fast(&f_ref, NULL);
    assert_near(&f, &f.c.out[0], &f_ref.c.out[0], "o");
    check_padding(&f, 0);
    if (is_wide) {
        struct built w;
        build(&w, row, TR_OP_ATTENTION, m);
        widen(&w);
        assert_true(run(&w, row, shared));
        assert_near(&w, &w.c.out[0], &f_ref.c.out[0], "o");
        release(&w);
    }
    const struct op_grad *g = grads;
    while (g->backward != TR_OP_ATTENTION_BWD)
        g++;
    build_backward(&b_ref, &f_ref, g, m);
    build_backward(&b, &f, g, m); /* o and lse of these kernels: their layout is its own */
    if (is_wide)
        widen(&b);
    assert_true(run(&b, row, shared));
    run_fast(&b_ref, NULL);
    for (int k = 0; k < 3; k++) {
        assert_near(&b, &b.c.out[k], &b_ref.c.out[k], names[k]);
        if (!is_wide)
            check_padding(&b, k);
    }
    release(&f);
    release(&f_ref);
    release(&b);
    release(&b_ref);
}

static void kernels_of_a_gpu_match_the_reference(void **state)
{
    static const struct mode f16 = { "f16", TR_F16, TR_F32, TR_F32, TR_F32, .accumulate = true };
    static const struct mode wide = { "bf16 into f32", TR_BF16, TR_F32, TR_F32, TR_F32, .accumulate = false };
    const struct mode *of[] = { &modes[2], &f16, &modes[4] }; /* bf16, float16, bf16 results */
    (void)state;
    for (size_t i = 0; i < TR_COUNT_OF(attentions); i++) {
        check_attention(&attentions[i], of[i % 3], H100, false);
        if (attentions[i].attr.head_dim >= 128) /* shapes for less shared memory */
            check_attention(&attentions[i], of[(i + 1) % 3], attentions[i].attr.head_dim > 128 ? A100 : RTX, false);
        if (i % 5 == 0)
            check_attention(&attentions[i], &wide, H100, true);
    }
    check_attention(&attentions[TR_COUNT_OF(attentions) - 1], of[0], RTX, false);
}

static void check_parity(struct built *emulated, struct built *ref)
{
    struct tr_call c = emulated->c;
    struct tr_device dev;
    assert_int_equal(tr_device_open("cpu", &dev), TR_OK);
    dev.n_units = 4; /* fewer multiprocessors than rows */
    c.dev = &dev;
    c.scratch = malloc(tr_cuda_scratch(&c, 1) + 1);
    assert_non_null(c.scratch);
    emulated_kernel(c.op)(&c);
    free(c.scratch);
    tr_device_close(&dev);
    tr_op_cpu_ref(ref->c.op)(&ref->c);
    for (int k = 0; k < tr_op_n_out(ref->c.op); k++) {
        if (!ref->c.out[k].data)
            continue;
        compare_view(emulated, ref, k);
        check_padding(emulated, k);
    }
}

static void the_table_of_cases_matches_the_reference(void **state)
{
    (void)state;
    products_round = true;
    for (int op = 0; op < TR_OP_COUNT; op++)
        if (emulated_kernel((enum tr_opcode)op))
            each_call((enum tr_opcode)op, check_parity);
}

static void a_nan_goes_through_every_activation(void **state)
{
    (void)state;
    assert_nan_stays(emulated_kernel(TR_OP_ACT));
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(kernels_of_a_gpu_match_the_reference),
                                        cmocka_unit_test(the_table_of_cases_matches_the_reference),
                                        cmocka_unit_test(a_nan_goes_through_every_activation) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
