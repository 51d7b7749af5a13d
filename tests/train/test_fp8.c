/* test_fp8.c - products in 8-bit floats: gradients stay near those of float32, recompute keeps their bits, less is kept
 * for the backward, and scales of the past are those of the steps before. On the CPU the reference kernels run, which
 * are the definition. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include "train/train.h"

enum { ROWS = 2, LENGTH = 32, VOCAB = 128 };
enum { NO_FP8 = 0, FP8 = 1, E5M2 = 2, PAST = 4 };

static const char llama[] = "{\"model_type\":\"llama\",\"vocab_size\":128,\"hidden_size\":64,\"intermediate_size\":128,"
                            "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":2,"
                            "\"max_position_embeddings\":64,\"rms_norm_eps\":1e-6,\"tie_word_embeddings\":false,"
                            "\"hidden_act\":\"silu\"}";
static const char gpt2[] = "{\"model_type\":\"gpt2\",\"vocab_size\":128,\"n_embd\":64,\"n_layer\":2,\"n_head\":4,"
                           "\"n_positions\":64,\"resid_pdrop\":0,\"embd_pdrop\":0,\"attn_pdrop\":0}";

struct run {
    struct tr_model *m;
    struct tr_compiled *c;
    struct tr_pool *pool;
    struct tr_device dev;
    struct tr_exec *e;
    double loss;
};

static void must(enum tr_status st)
{
    if (st != TR_OK)
        fail_msg("%s", tr_error_text());
}

static const float values[TR_STEP_COUNT] = { [TR_STEP_INV_TOKENS] = 1.0f / (ROWS * LENGTH), [TR_STEP_LOSS_SCALE] = 1 };

static void compute(struct run *r)
{
    struct tr_batch b = tr_batch_in(tr_exec_arena(r->e, TR_A_DATA), ROWS * LENGTH);
    must(tr_exec_gradients(r->e, &b, values, &r->loss));
}

/* An update that changes nothing (learning rate 0), from which the next step learns. */
static void step(struct run *r)
{
    static const struct tr_config cfg = { .optim = TR_OPTIM_SGD, .max_grad_norm = 1 };
    struct tr_batch b = tr_batch_in(tr_exec_arena(r->e, TR_A_DATA), ROWS * LENGTH);
    struct tr_step_result result;
    must(tr_exec_step(r->e, &cfg, &b, values, &result));
}

static void open_run(struct run *r, const char *json, int how, enum tr_recompute recompute)
{
    cJSON *config = NULL;
    struct tr_model_options mo = { .rows = ROWS, .sequence_length = LENGTH };
    struct tr_compile_options co = { .compute_dtype = TR_F32,
                                     .grad_dtype = TR_F32,
                                     .master_dtype = TR_F32,
                                     .moment_dtype = TR_F32,
                                     .optim = &tr_sgd,
                                     .n_micro = 1,
                                     .n_threads = 1,
                                     .recompute = recompute,
                                     .fp8 = (how & FP8) != 0,
                                     .fp8_e5m2 = (how & E5M2) != 0,
                                     .fp8_history = (how & PAST) != 0,
                                     .save_bytes = TR_IO_CHUNK * sizeof(float),
                                     .data_bytes = tr_batch_bytes(ROWS * LENGTH) };
    *r = (struct run){ 0 };
    must(tr_json_parse(json, strlen(json), "model", &config));
    must(tr_model_from_json(config, &mo, &r->m));
    must(tr_pool_open(1, &r->pool));
    must(tr_compile((const struct tr_model *[TR_PURPOSES]){ r->m }, &co, &r->c));
    must(tr_device_open("cpu", &r->dev));
    must(tr_exec_open(r->c, &r->dev, r->pool, NULL, 1, &r->e));
    struct tr_store store = tr_exec_store(r->e);
    must(tr_load_random(&store, 1, r->pool, (float *)(void *)tr_exec_arena(r->e, TR_A_SAVE)));
    struct tr_batch b = tr_batch_in(tr_exec_arena(r->e, TR_A_DATA), ROWS * LENGTH);
    for (int64_t i = 0; i < (int64_t)ROWS * LENGTH; i++) {
        b.tokens[i] = (int32_t)(tr_philox(7, 0, (uint64_t)i).v[0] % VOCAB);
        b.targets[i] = (int32_t)(tr_philox(7, 1, (uint64_t)i).v[0] % VOCAB);
        b.positions[i] = (int32_t)(i % LENGTH);
        b.begin[i] = (int32_t)(i / LENGTH * LENGTH);
        b.sample[i] = i / LENGTH;
    }
    compute(r);
}

static void close_run(struct run *r)
{
    tr_exec_close(r->e);
    tr_device_close(&r->dev);
    tr_pool_close(r->pool);
    tr_compiled_close(r->c);
    tr_model_close(r->m);
}

static const float *grad(const struct run *r, int param)
{
    int64_t first = 0, n = 0;
    return (const float *)(const void *)tr_exec_at(r->e, TR_S_GRAD, param, &first, &n);
}

/* An element of e4m3 is off by up to 2^-4 of itself, 2^-4 / sqrt(3) in the root mean square; a product of two, in which
 * errors of both signs add up, by sqrt(2) times that: 5 % of the result's size. A gradient has passed up to ten such
 * products one after the other: sqrt(10) * 5 % = 16 %; twice that is a wrong scale or a missing transpose. e5m2 is off
 * by twice as much as e4m3, and a product of both by sqrt(5 / 2) times as much as one of two e4m3. */
static void gradients_are_near(const char *json, int how)
{
    struct run a, b;
    int n_other = 0;
    open_run(&a, json, NO_FP8, TR_RECOMPUTE_NONE);
    open_run(&b, json, how, TR_RECOMPUTE_NONE);
    if (how & PAST) {
        step(&b);
        compute(&b);
    }
    double bound = how & E5M2 ? 0.32 * sqrt(2.5) : 0.32;
    if (!(fabs(a.loss - b.loss) <= 1e-2 * a.loss))
        fail_msg("loss %g in 8 bits, %g in float32", b.loss, a.loss);
    for (int i = 0; i < a.m->n_params; i++) {
        double off = 0, size = 0;
        const float *x = grad(&a, i), *y = grad(&b, i);
        for (int64_t k = 0; k < a.m->param[i].n; k++) {
            off += ((double)x[k] - (double)y[k]) * ((double)x[k] - (double)y[k]);
            size += (double)x[k] * (double)x[k];
        }
        n_other += off > 0;
        if (!(sqrt(off) <= bound * sqrt(size) + 1e-9))
            fail_msg("gradient of %s is off by %.3g of its size", a.m->param[i].name, sqrt(off / size));
    }
    assert_true(n_other > a.m->n_params / 2); /* something was quantised */
    close_run(&a);
    close_run(&b);
}

static void gradients_stay_near_float32(void **state)
{
    (void)state;
    for (int how = FP8; how < 2 * PAST; how += E5M2) {
        gradients_are_near(llama, how);
        gradients_are_near(gpt2, how);
    }
}

static void same_bits(const struct run *a, const struct run *b)
{
    assert_true(a->loss == b->loss);
    for (int i = 0; i < a->m->n_params; i++)
        assert_memory_equal(grad(a, i), grad(b, i), (size_t)a->m->param[i].n * sizeof(float));
}

static void recompute_keeps_every_bit(void **state)
{
    struct run a, b;
    (void)state;
    for (int how = FP8; how <= (FP8 | PAST); how += PAST) {
        open_run(&a, llama, how, TR_RECOMPUTE_NONE);
        step(&a);
        compute(&a);
        for (int mode = TR_RECOMPUTE_OP; mode <= TR_RECOMPUTE_BLOCK; mode++) {
            open_run(&b, llama, how, (enum tr_recompute)mode);
            step(&b);
            compute(&b);
            same_bits(&a, &b);
            close_run(&b);
        }
        close_run(&a);
    }
}

/* Of all values whose largest element is known: the largest of the past over `of`, at its most. */
static double most_past(const struct run *r, const float *of)
{
    double most = 0;
    for (size_t i = 0; i < tr_exec_amax(r->e)->n; i++)
        most = of[i] > 0 ? fmax(most, (double)(tr_exec_amax(r->e)->pair[i].before / of[i])) : most;
    return most;
}

/* Nothing known: the scales of now. The same numbers again: their largest is what the past had, so the same bits. A
 * past of three times that: other bits, until sixteen updates later it is forgotten; what came of it by rounding is a
 * few percent off. */
static void scales_come_from_the_last_steps(void **state)
{
    struct run a, b;
    float first[256] = { 0 };
    (void)state;
    open_run(&a, llama, FP8, TR_RECOMPUTE_NONE);
    open_run(&b, llama, FP8 | PAST, TR_RECOMPUTE_NONE);
    assert_true(tr_exec_amax(b.e)->n > 0 && tr_exec_amax(b.e)->n <= TR_COUNT_OF(first) &&
                tr_exec_amax(b.e)->n_steps == 0);
    same_bits(&a, &b);
    step(&b);
    compute(&b);
    same_bits(&a, &b);
    memcpy(first, tr_exec_amax(b.e)->amax, tr_exec_amax(b.e)->n * sizeof *first);
    for (size_t i = 0; i < tr_exec_amax(b.e)->n; i++)
        tr_exec_amax(b.e)->amax[i] *= 3;
    for (int i = 1; i < TR_AMAX_STEPS; i++) {
        compute(&b);
        assert_true(a.loss != b.loss && most_past(&b, first) > 2.9);
        step(&b);
    }
    step(&b); /* in the place of the first */
    compute(&b);
    assert_true(most_past(&b, first) < 1.5);
    close_run(&a);
    close_run(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_stay_near_float32),
        cmocka_unit_test(recompute_keeps_every_bit),
        cmocka_unit_test(scales_come_from_the_last_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
