/* test_schedule.c - the proof that no action touches bytes which a posted one may still use, and bugs planted for it.
 */
#include "parallel/parallel.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char config[] = "{\"model_type\":\"llama\",\"vocab_size\":64,\"hidden_size\":32,\"intermediate_size\":48,"
                             "\"num_hidden_layers\":3,\"num_attention_heads\":4,\"num_key_value_heads\":2}";

/* What lives on the host: optimizer state; with OFFLOAD_ALL frozen parameters and activations too; with
 * OFFLOAD_LEARNING parameters that learn, their gradients and activations. */
enum offload { OFFLOAD_NONE, OFFLOAD_STATE, OFFLOAD_ALL, OFFLOAD_LEARNING, N_OFFLOADS };

/* Rank 0 of four: pp x shard, two micro-batches. */
static struct tr_compiled *compile_offloaded(struct tr_model **m, int pp, int zero, enum offload offload)
{
    enum { PARAMS_MAX = 64 };
    bool is_frozen[PARAMS_MAX] = { false };
    struct tr_compiled *c = NULL;
    struct tr_model_options mo = { .rows = 2, .sequence_length = 16, .dropout = -1 };
    int shard = 4 / pp;
    struct tr_compile_options opt = {
        .compute_dtype = TR_F32,
        .grad_dtype = TR_F32,
        .master_dtype = TR_F32,
        .moment_dtype = TR_F32,
        .reduce_dtype = TR_F32,
        .optim = &tr_adamw,
        .n_micro = 2,
        .n_threads = 1,
        .offload_share = offload != OFFLOAD_NONE,
        .offload_param_share = offload >= OFFLOAD_ALL && zero < 3,
        .offloads_grads = offload == OFFLOAD_LEARNING,
        .stows_activations = offload >= OFFLOAD_ALL,
        .recompute = offload >= OFFLOAD_ALL ? TR_RECOMPUTE_BLOCK : TR_RECOMPUTE_NONE,
        .is_frozen = offload == OFFLOAD_ALL ? is_frozen : NULL,
        .layout = { .data_size = shard, .shard_size = shard, .size = { pp, 1, shard, 1, 1 }, .zero = zero }
    };
    assert_int_equal(tr_model_from_json(cJSON_Parse(config), &mo, m), TR_OK);
    assert_true((*m)->n_params <= PARAMS_MAX);
    for (int i = 0; i < (*m)->n_params; i++)
        is_frozen[i] = strstr((*m)->param[i].name, "mlp") != NULL;
    assert_int_equal(tr_compile((const struct tr_model *[TR_PURPOSES]){ *m }, &opt, &c), TR_OK);
    return c;
}

static struct tr_compiled *compile(struct tr_model **m, int pp, int zero)
{
    return compile_offloaded(m, pp, zero, OFFLOAD_NONE);
}

static int n_waits(const struct tr_schedule *s, int lag)
{
    int n = 0;
    for (int i = 0; i < s->n_waits; i++)
        n += s->wait[i].lag == lag;
    return n;
}

/* Each wait in turn is forgotten: the first action that the posted one is then in the way of is named. Sends are read
 * only: what a forgotten wait for one breaks is the reuse of its buffer. */
static void every_missing_wait_is_found(void **state)
{
    (void)state;
    for (int pp = 1; pp <= 2; pp++)
        for (int i_zero = 0; i_zero < 4 * N_OFFLOADS; i_zero++) {
            struct tr_model *m = NULL;
            struct tr_compiled *c = compile_offloaded(&m, pp, i_zero % 4, (enum offload)(i_zero / 4));
            struct tr_schedule *s = &c->schedule[TR_FOR_TRAIN];
            assert_int_equal(tr_schedule_check(s), TR_OK);
            assert_true(s->n_waits > 0);
            for (int i = 0; i < s->n_actions; i++)
                for (int k = 0; k < s->action[i].n_waits; k++) {
                    struct tr_wait *w = &s->wait[s->action[i].first_wait + k], whole = *w;
                    w->action = i; /* nothing is under way there */
                    assert_int_equal(tr_schedule_check(s), TR_BUG);
                    assert_non_null(strstr(tr_error_text(), "action"));
                    *w = whole;
                }
            assert_int_equal(tr_schedule_check(s), TR_OK);
            tr_compiled_close(c);
            tr_model_close(m);
        }
}

/* Slots that live at once are moved onto each other. */
static void an_early_reuse_is_found(void **state)
{
    (void)state;
    struct tr_model *m = NULL;
    struct tr_compiled *c = compile(&m, 2, 3);
    struct tr_schedule *s = &c->schedule[TR_FOR_TRAIN];
    int n_found = 0, n_slots = 0;
    for (int i = 0; i < s->n_buffers; i++) {
        struct tr_buffer *b = &s->buffer[i];
        if (b->region >= TR_BUF_SLOTS || b->offset == 0)
            continue;
        size_t offset = b->offset;
        b->offset = 0;
        n_slots++;
        n_found += tr_schedule_check(s) == TR_BUG;
        b->offset = offset;
    }
    assert_true(n_slots > 4 && n_found == n_slots);
    tr_compiled_close(c);
    tr_model_close(m);
}

/* zero 1 and 2: new parameters travel behind the forwards of the next step; 3 gathers them anew. */
static void gathers_of_new_parameters_are_waited_for_in_the_next_step(void **state)
{
    (void)state;
    for (int zero = 0; zero <= 3; zero++) {
        struct tr_model *m = NULL;
        struct tr_compiled *c = compile(&m, 1, zero);
        assert_int_equal(n_waits(&c->schedule[TR_FOR_TRAIN], 1), zero == 1 || zero == 2 ? m->n_segments : 0);
        for (int i = 0; i < c->schedule[TR_FOR_TRAIN].n_waits; i++)
            if (c->schedule[TR_FOR_TRAIN].wait[i].lag)
                assert_int_equal(c->schedule[TR_FOR_TRAIN].action[c->schedule[TR_FOR_TRAIN].wait[i].action].kind,
                                 TR_DO_GATHER);
        tr_compiled_close(c);
        tr_model_close(m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_missing_wait_is_found),
        cmocka_unit_test(an_early_reuse_is_found),
        cmocka_unit_test(gathers_of_new_parameters_are_waited_for_in_the_next_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
