/* After step 0 nothing allocates: malloc and friends are counted while steps run. */
#include "base/base.h"
#include "train/train.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>
#include <stdatomic.h>

void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);

static atomic_int n_allocations;

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define CAN_COUNT 1
void *malloc(size_t n)
{
    atomic_fetch_add(&n_allocations, 1);
    return __libc_malloc(n);
}
void *calloc(size_t n, size_t size)
{
    atomic_fetch_add(&n_allocations, 1);
    return __libc_calloc(n, size);
}
void *realloc(void *p, size_t n)
{
    atomic_fetch_add(&n_allocations, 1);
    return __libc_realloc(p, n);
}
#else
#define CAN_COUNT 0
#endif

static const char config[] =
    "{\"model_type\":\"qwen3\",\"vocab_size\":64,\"hidden_size\":32,\"intermediate_size\":48,"
    "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":16,"
    "\"max_position_embeddings\":64,\"tie_word_embeddings\":true}";

static struct tr_model *open_model(int64_t rows, int64_t length, bool wants_logits)
{
    cJSON *j = NULL;
    struct tr_model *m = NULL;
    struct tr_model_options opt = { .rows = rows,
                                    .sequence_length = length,
                                    .n_positions = 64,
                                    .wants_logits = wants_logits,
                                    .wants_last = wants_logits && length > 1 };
    assert_int_equal(tr_json_parse(config, sizeof config - 1, "config", &j), TR_OK);
    assert_int_equal(tr_model_from_json(j, &opt, &m), TR_OK);
    return m;
}

static void fill(const struct tr_batch *b, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        b->tokens[i] = (int32_t)(i * 7 % 64);
        b->targets[i] = (int32_t)((i + 1) * 7 % 64);
        b->positions[i] = (int32_t)(i % 16);
        b->begin[i] = (int32_t)(i / 16 * 16);
        b->sample[i] = i / 16;
    }
}

/* Text of three prompts, two at a time: chunks, single tokens, random picks. */
static void make_text(struct tr_decoder *d, const struct tr_prompts *prompts, struct tr_texts *texts)
{
    assert_int_equal(tr_decoder_run(d, prompts, NULL, NULL, texts), TR_OK);
    for (size_t i = 0; i < texts->n; i++)
        assert_int_equal(texts->n_ids[i], prompts->item[i].n_new);
}

static void steps_evaluation_and_text_allocate_nothing(void **state)
{
    (void)state;
    if (!CAN_COUNT)
        skip();
    const char *dtypes[] = { "float32", "bfloat16" };
    for (size_t d = 0; d < 2; d++) {
        const struct tr_config cfg = { .optim = TR_OPTIM_ADAMW,
                                       .learning_rate = 1e-2,
                                       .adam_beta1 = 0.9,
                                       .adam_beta2 = 0.999,
                                       .adam_epsilon = 1e-8,
                                       .max_grad_norm = 1,
                                       .lr_scheduler_type = TR_LR_CONSTANT };
        struct tr_model *m = open_model(2, 16, false), *ev = open_model(2, 16, false);
        struct tr_config text_cfg = { .temperature = 0.8, .top_p = 0.9, .repetition_penalty = 1.1 };
        struct tr_setup s = { .cfg = &text_cfg,
                              .text = { .n_sequences = 2, .n_context = 40, .n_small = 8 },
                              .text_model = {
                                  [TR_FOR_CHUNK] = open_model(1, 8, true), [TR_FOR_DECODE] = open_model(2, 1, true) } };
        int32_t prompt_ids[3][12] = { { 1, 2, 3 }, { 4 }, { 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16 } };
        struct tr_prompt items[3] = { { .ids = { prompt_ids[0], 3, 3 }, .n_new = 5 },
                                      { .ids = { prompt_ids[1], 1, 1 }, .n_new = 20 },
                                      { .ids = { prompt_ids[2], 12, 12 }, .n_new = 9 } };
        struct tr_prompts prompts = { items, 3 };
        struct tr_texts texts;
        struct tr_decoder *decoder = NULL;
        struct tr_compile_options opt = { .grad_dtype = TR_F32,
                                          .master_dtype = TR_F32,
                                          .moment_dtype = TR_F32,
                                          .optim = &tr_adamw,
                                          .n_micro = 2,
                                          .n_threads = 2,
                                          .data_bytes = tr_batch_bytes(8),
                                          .cache_rows = s.text.n_context,
                                          .cache_sequences = s.text.n_sequences,
                                          .recompute = d ? TR_RECOMPUTE_BLOCK : TR_RECOMPUTE_NONE };
        assert_int_equal(tr_dtype_parse(dtypes[d], &opt.compute_dtype), TR_OK);
        struct tr_compiled *c = NULL;
        struct tr_exec *e = NULL;
        struct tr_pool *pool = NULL;
        struct tr_device dev;
        const struct tr_model *const models[TR_PURPOSES] = { [TR_FOR_TRAIN] = m,
                                                             [TR_FOR_EVAL] = ev,
                                                             [TR_FOR_CHUNK] = s.text_model[TR_FOR_CHUNK],
                                                             [TR_FOR_DECODE] = s.text_model[TR_FOR_DECODE] };
        assert_int_equal(tr_compile(models, &opt, &c), TR_OK);
        assert_int_equal(tr_pool_open(2, &pool), TR_OK);
        assert_int_equal(tr_device_open("cpu", &dev), TR_OK);
        assert_int_equal(tr_exec_open(c, &dev, pool, NULL, 1, &e), TR_OK);
        struct tr_store store = tr_exec_store(e);
        float *buf = malloc(TR_IO_CHUNK * sizeof *buf);
        assert_int_equal(tr_load_random(&store, 1, pool, buf), TR_OK);
        void *mem = aligned_alloc(64, 2 * tr_batch_bytes(32));
        struct tr_batch b[2] = { tr_batch_in(mem, 32), tr_batch_in((char *)mem + tr_batch_bytes(32), 32) };
        assert_int_equal(tr_texts_open(&prompts, &texts), TR_OK);
        assert_int_equal(tr_decoder_open(e, &s, NULL, &decoder), TR_OK);
        fill(&b[0], 32);
        fill(&b[1], 32);
        int reserves = dev.n_reserves, before = atomic_load(&n_allocations);
        double first = 0;
        for (int64_t step = 0; step < 4; step++) {
            float values[TR_STEP_COUNT];
            struct tr_step_result r;
            tr_step_values(&cfg, step, 4, 64, values);
            if (tr_exec_step(e, &cfg, b, values, &r) != TR_OK)
                break;
            if (step == 0)
                first = r.loss_sum;
            else
                assert_true(r.loss_sum != first); /* it does train */
        }
        double sum[TR_METRICS];
        (void)tr_exec_eval(e, &b[0], sum);
        make_text(decoder, &prompts, &texts);
        assert_int_equal(atomic_load(&n_allocations) - before, 0);
        assert_int_equal(dev.n_reserves, reserves);
        assert_int_equal(dev.reserved_bytes, tr_compiled_bytes(c));
        tr_decoder_close(decoder);
        tr_texts_close(&texts);
        free(mem);
        free(buf);
        tr_exec_close(e);
        assert_int_equal(dev.reserved_bytes, 0);
        tr_pool_close(pool);
        tr_compiled_close(c);
        tr_model_close(m);
        tr_model_close(ev);
        tr_model_close(s.text_model[TR_FOR_CHUNK]);
        tr_model_close(s.text_model[TR_FOR_DECODE]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(steps_evaluation_and_text_allocate_nothing) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
