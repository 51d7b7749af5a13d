/* test_prove.c - the data proof: it holds for packed documents under both schedules, and a leak cannot pass it. */
#include <math.h>
#include "exec/exec_impl.h" /* a kernel is replaced by a wrong one */
#include "train/golden_rig.h"

#define GOLDEN TR_SOURCE_DIR "/tests/golden/"

static struct tr_proof_batch batch_of(struct rig *r, int n_micro, const float *values)
{
    return (struct tr_proof_batch){ .e = r->exec,
                                    .micro = r->micro,
                                    .n_micro = n_micro,
                                    .n_tokens = r->g.rows * r->g.length / n_micro,
                                    .row_tokens = r->g.length,
                                    .values = values };
}

/* Three documents a row, whatever the golden case has. */
static void pack(struct rig *r)
{
    int64_t n = r->g.length, third = n / 3;
    for (int64_t i = 0; i < r->g.rows * n; i++) {
        int64_t row = i / n * n, doc = (i - row) / third < 2 ? (i - row) / third : 2, begin = row + doc * third;
        int32_t moved = (int32_t)(begin - r->g.begin[i]);
        r->g.begin[i] = (int32_t)begin;
        r->micro_begin[i] += moved;
        r->g.positions[i] = (int32_t)(i - begin);
        bool is_last = i + 1 == row + n || (doc < 2 && i + 1 == begin + third);
        r->g.targets[i] = is_last ? TR_TARGET_NONE : r->g.tokens[i + 1];
    }
}

static void open_packed(struct rig *r, const char *dir, int n_micro, float values[TR_STEP_COUNT])
{
    rig_open(r, dir, (struct rig_shape){ .n_micro = n_micro, .n_threads = 2 });
    pack(r);
    tr_step_values(&r->cfg, 0, 1, 1, values);
}

static void packed_documents_are_isolated_in_the_program_that_trains(void **state)
{
    static const char *const cases[] = { GOLDEN "llama_gqa_tied", GOLDEN "gpt2_tied", GOLDEN "mistral_window",
                                         GOLDEN "gemma3" };
    (void)state;
    for (size_t i = 0; i < TR_COUNT_OF(cases); i++)
        for (int n_micro = 1; n_micro <= 2; n_micro++) {
            struct rig r;
            struct tr_proof proof;
            float values[TR_STEP_COUNT];
            open_packed(&r, cases[i], n_micro, values);
            struct tr_proof_batch b = batch_of(&r, n_micro, values);
            must(tr_prove(&b, &proof));
            assert_true(proof.is_isolated);
            assert_int_equal(proof.n_pairs, 2 * r.g.rows);
            assert_true(proof.split_error < 1e-12); /* sums of doubles, a few hundred terms */
            rig_close(&r);
        }
}

/* An attention that takes every row for one document. */
static tr_kernel honest;
static int32_t row_start[4096];

static void leaky(const struct tr_call *c)
{
    enum { BEGIN = 3 };
    struct tr_call x = *c;
    x.in[BEGIN].data = row_start;
    x.in[BEGIN].ld = 1;
    honest(&x);
}

static void a_leak_between_documents_is_refused(void **state)
{
    struct rig r;
    struct tr_proof proof;
    float values[TR_STEP_COUNT];
    (void)state;
    open_packed(&r, GOLDEN "llama_gqa_tied", 1, values);
    assert_true(r.g.rows * r.g.length <= (int64_t)TR_COUNT_OF(row_start));
    for (int64_t i = 0; i < r.g.rows * r.g.length; i++)
        row_start[i] = (int32_t)(i / r.g.length * r.g.length);
    honest = r.exec->kernel[TR_OP_ATTENTION];
    r.exec->kernel[TR_OP_ATTENTION] = leaky;
    struct tr_proof_batch b = batch_of(&r, 1, values);
    assert_int_equal(tr_prove(&b, &proof), TR_NUMBERS);
    assert_non_null(strstr(tr_error_text(), "neighbour"));
    rig_close(&r);
}

static void blown(const struct tr_call *c)
{
    honest(c);
    ((float *)c->out[0].data)[0] = INFINITY;
}

/* A model that overflows says nothing about its data: the first step finds the layer. */
static void a_loss_that_is_not_finite_is_not_blamed_on_documents(void **state)
{
    struct rig r;
    struct tr_proof proof;
    float values[TR_STEP_COUNT];
    (void)state;
    open_packed(&r, GOLDEN "llama_gqa_tied", 1, values);
    honest = r.exec->kernel[TR_OP_ATTENTION];
    r.exec->kernel[TR_OP_ATTENTION] = blown;
    struct tr_proof_batch b = batch_of(&r, 1, values);
    must(tr_prove(&b, &proof));
    assert_false(proof.is_finite);
    rig_close(&r);
}

static void documents_without_a_loss_are_no_pairs(void **state)
{
    struct rig r;
    struct tr_proof proof;
    float values[TR_STEP_COUNT];
    (void)state;
    open_packed(&r, GOLDEN "llama_gqa_tied", 1, values);
    for (int64_t i = 0; i < r.g.rows * r.g.length; i++)
        if (i % r.g.length >= r.g.length / 3)
            r.g.targets[i] = TR_TARGET_NONE; /* padding looks like this */
    assert_false(tr_proof_has_pair(&r.micro[0], r.g.rows * r.g.length, r.g.length));
    struct tr_proof_batch b = batch_of(&r, 1, values);
    must(tr_prove(&b, &proof));
    assert_int_equal(proof.n_pairs, 0);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(packed_documents_are_isolated_in_the_program_that_trains),
        cmocka_unit_test(a_leak_between_documents_is_refused),
        cmocka_unit_test(a_loss_that_is_not_finite_is_not_blamed_on_documents),
        cmocka_unit_test(documents_without_a_loss_are_no_pairs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
