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

/* ---- a row and the heads of a key head, by themselves ---- */

enum { QUERY, KEY, VALUE, D_OUT, OUT, D_QUERY, D_KEY, D_VALUE, N_MATS, N_ROWS = 2, HEADS_Q = 4, HEADS_KV = 2 };

struct parts {
    int64_t s, d, document;
    uint16_t *x[N_MATS];
    float *lse;
    int32_t *begin;
    float *delta;
};

/* Rows [row, row + n_rows) and key heads [head, head + n_heads) with their query heads. */
static void run_part(const struct parts *b, bool is_bwd, int64_t row, int64_t n_rows, int64_t head, int64_t n_heads)
{
    static const int ins[2][5] = { { QUERY, KEY, VALUE }, { D_OUT, QUERY, KEY, VALUE, OUT } };
    int64_t group = HEADS_Q / HEADS_KV, n = n_rows * b->s;
    int n_in = is_bwd ? 5 : 3, n_out = is_bwd ? 3 : 1;
    struct tr_call c = { .op = is_bwd ? TR_OP_ATTENTION_BWD : TR_OP_ATTENTION,
                         .scratch = b->delta,
                         .attr = { .n_heads_q = (int32_t)(n_heads * group),
                                   .n_heads_kv = (int32_t)n_heads,
                                   .head_dim = (int32_t)b->d,
                                   .scale = 0.1f,
                                   .seq_len = b->s } };
    for (int i = 0; i < n_in + n_out; i++) {
        int what = i < n_in ? ins[is_bwd][i] : is_bwd ? D_QUERY + i - n_in : OUT;
        bool is_of_keys = what == KEY || what == VALUE || what == D_KEY || what == D_VALUE;
        int64_t ld = b->d * (is_of_keys ? HEADS_KV : HEADS_Q), each = is_of_keys ? b->d : b->d * group;
        struct tr_view v = { b->x[what] + row * b->s * ld + head * each, TR_BF16, n, n_heads * each, ld };
        if (i < n_in)
            c.in[i] = v;
        else
            c.out[i - n_in] = v;
    }
    struct tr_view begin = { b->begin, TR_I32, n, 1, 1 }; /* of row 0, and of any row by itself */
    struct tr_view lse = { b->lse + (row * HEADS_Q + head * group) * b->s, TR_F32, n, n_heads * group,
                           n_heads * group };
    if (is_bwd)
        c.in[5] = lse, c.in[6] = begin;
    else
        c.in[3] = begin, c.out[1] = lse;
    assert_true(emulated_attention(&c, H100));
}

/* What a rank computes does not depend on which other rows and heads it has. */
static void a_part_of_a_call_has_its_bits(void **state)
{
    (void)state;
    for (int64_t d = 64; d <= 128; d += 64) {
        struct parts b = { .s = 256, .d = d, .document = 70 };
        size_t n = (size_t)(N_ROWS * b.s), wide = n * HEADS_Q * (size_t)d, bytes = wide * sizeof(uint16_t);
        for (int t = 0; t < N_MATS; t++) {
            assert_non_null(b.x[t] = calloc(wide, sizeof(uint16_t)));
            for (size_t i = 0; t <= D_OUT && i < wide; i++)
                b.x[t][i] = tr_bf16_of_f32((float)(int32_t)tr_philox(7 + (uint64_t)t, 0, i).v[0] * 0x1p-31f);
        }
        b.lse = calloc(n * HEADS_Q, sizeof *b.lse), b.delta = calloc(n * HEADS_Q, sizeof *b.delta);
        b.begin = calloc(n, sizeof *b.begin);
        assert_true(b.lse && b.delta && b.begin);
        for (int64_t i = 0; i < (int64_t)n; i++)
            b.begin[i] = (int32_t)(i / b.s * b.s + i % b.s / b.document * b.document);
        run_part(&b, false, 0, N_ROWS, 0, HEADS_KV);
        run_part(&b, true, 0, N_ROWS, 0, HEADS_KV);
        uint16_t *whole[N_MATS];
        for (int t = OUT; t < N_MATS; t++) {
            assert_non_null(whole[t] = malloc(bytes));
            memcpy(whole[t], b.x[t], bytes);
            memset(b.x[t], 0xff, bytes);
        }
        for (int is_bwd = 0; is_bwd < 2; is_bwd++)
            for (int64_t row = 0; row < N_ROWS; row++)
                for (int64_t head = 0; head < HEADS_KV; head++)
                    run_part(&b, is_bwd, row, 1, head, 1);
        for (int t = OUT; t < N_MATS; t++) {
            bool is_of_keys = t == D_KEY || t == D_VALUE;
            assert_memory_equal(b.x[t], whole[t], is_of_keys ? bytes * HEADS_KV / HEADS_Q : bytes);
            free(whole[t]);
        }
        for (int t = 0; t < N_MATS; t++)
            free(b.x[t]);
        free(b.lse);
        free(b.delta);
        free(b.begin);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(kernels_of_a_gpu_match_the_reference),
                                        cmocka_unit_test(a_part_of_a_call_has_its_bits),
                                        cmocka_unit_test(the_table_of_cases_matches_the_reference),
                                        cmocka_unit_test(a_nan_goes_through_every_activation) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
