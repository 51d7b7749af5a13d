/* test_fp8.c - products in 8-bit floats: gradients stay near those of float32, recompute keeps their bits, and less is
 * kept for the backward. On the CPU the reference kernels run, which are the definition. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include "train/train.h"

enum { ROWS = 2, LENGTH = 32, VOCAB = 128 };

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

static void open_run(struct run *r, const char *json, bool fp8, enum tr_recompute recompute)
{
    cJSON *config = NULL;
    struct tr_model_options mo = { .rows = ROWS, .sequence_length = LENGTH };
    struct tr_compile_options co = { .compute_dtype = TR_F32,
                                     .grad_dtype = TR_F32,
                                     .master_dtype = TR_F32,
                                     .moment_dtype = TR_F32,
                                     .n_moments = 2,
                                     .n_micro = 1,
                                     .n_threads = 1,
                                     .recompute = recompute,
                                     .fp8 = fp8,
                                     .save_bytes = TR_IO_CHUNK * sizeof(float),
                                     .data_bytes = tr_batch_bytes(ROWS * LENGTH) };
    *r = (struct run){ 0 };
    must(tr_json_parse(json, strlen(json), "model", &config));
    must(tr_model_from_json(config, &mo, &r->m));
    must(tr_pool_open(1, &r->pool));
    must(tr_compile(r->m, NULL, NULL, &co, &r->c));
    must(tr_device_open("cpu", &r->dev));
    must(tr_exec_open(r->c, &r->dev, r->pool, NULL, 1, &r->e));
    struct tr_store store = tr_exec_store(r->e);
    must(tr_load_random(&store, 1, r->pool, (float *)(void *)r->e->base[TR_A_SAVE]));
    struct tr_batch b = tr_batch_in(r->e->base[TR_A_DATA], ROWS * LENGTH);
    for (int64_t i = 0; i < (int64_t)ROWS * LENGTH; i++) {
        b.tokens[i] = (int32_t)(tr_philox(7, 0, (uint64_t)i).v[0] % VOCAB);
        b.targets[i] = (int32_t)(tr_philox(7, 1, (uint64_t)i).v[0] % VOCAB);
        b.positions[i] = (int32_t)(i % LENGTH);
        b.begin[i] = (int32_t)(i / LENGTH * LENGTH);
        b.sample[i] = i / LENGTH;
    }
    float values[TR_STEP_COUNT] = { [TR_STEP_INV_TOKENS] = 1.0f / (ROWS * LENGTH) };
    must(tr_exec_gradients(r->e, &b, values, &r->loss));
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
 * products one after the other: sqrt(10) * 5 % = 16 %; twice that is a wrong scale or a missing transpose. */
static void gradients_are_near(const char *json)
{
    struct run a, b;
    int n_other = 0;
    open_run(&a, json, false, TR_RECOMPUTE_NONE);
    open_run(&b, json, true, TR_RECOMPUTE_NONE);
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
        if (!(sqrt(off) <= 0.32 * sqrt(size) + 1e-9))
            fail_msg("gradient of %s is off by %.3g of its size", a.m->param[i].name, sqrt(off / size));
    }
    assert_true(n_other > a.m->n_params / 2); /* something was quantised */
    close_run(&a);
    close_run(&b);
}

static void gradients_stay_near_float32(void **state)
{
    (void)state;
    gradients_are_near(llama);
    gradients_are_near(gpt2);
}

static void recompute_keeps_every_bit(void **state)
{
    struct run a, b;
    (void)state;
    open_run(&a, llama, true, TR_RECOMPUTE_NONE);
    for (int mode = TR_RECOMPUTE_OP; mode <= TR_RECOMPUTE_BLOCK; mode++) {
        open_run(&b, llama, true, (enum tr_recompute)mode);
        assert_true(a.loss == b.loss);
        for (int i = 0; i < a.m->n_params; i++)
            assert_memory_equal(grad(&a, i), grad(&b, i), (size_t)a.m->param[i].n * sizeof(float));
        close_run(&b);
    }
    close_run(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_stay_near_float32),
        cmocka_unit_test(recompute_keeps_every_bit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
