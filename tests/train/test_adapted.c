/* Programs of models with adapters: what the passes make of them. */
#include "adapter/adapter.h"
#include "base/base.h"
#include "parallel/parallel.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

/* A model with an adapter, compiled for one rank or a pipeline rank; everything but the adapter is frozen. */
struct adapted {
    struct tr_model *m;
    struct tr_compiled *c;
    bool *is_frozen;
};

static struct adapted adapted_open_stage(const char *adapter, const struct tr_column *column, enum tr_dtype dtype,
                                         int n_ranks, int rank)
{
    struct adapted x = { 0 };
    struct tr_adapter *a = NULL;
    cJSON *j = NULL;
    struct tr_model_options mo = { .rows = 2, .sequence_length = 16 };
    char config[256];
    assert_int_equal(
        tr_format(config, sizeof config,
                  "{\"model_type\":\"llama\",\"vocab_size\":64,\"hidden_size\":32,\"intermediate_size\":48,"
                  "\"num_hidden_layers\":%d,\"num_attention_heads\":4,\"num_key_value_heads\":2}",
                  n_ranks == 1 ? 3 : 8),
        TR_OK);
    assert_int_equal(tr_json_parse(config, strlen(config), "config.json", &j), TR_OK);
    assert_int_equal(tr_model_from_json(j, &mo, &x.m), TR_OK);
    assert_int_equal(tr_adapter_parse(adapter, strlen(adapter), "adapter_config.json", &a), TR_OK);
    assert_int_equal(tr_adapt(x.m, a, true), TR_OK);
    tr_adapter_close(a);
    x.is_frozen = calloc((size_t)x.m->n_params, sizeof *x.is_frozen);
    assert_non_null(x.is_frozen);
    for (int i = 0; i < x.m->n_params; i++)
        x.is_frozen[i] = !x.m->param[i].in_adapter;
    struct tr_compile_options opt = { .compute_dtype = dtype,
                                      .optim = &tr_adamw,
                                      .n_micro = 1,
                                      .n_threads = 1,
                                      .column = column,
                                      .is_frozen = x.is_frozen,
                                      .layout = { .data_size = 1, .shard_size = 1 } };
    opt.layout.size[TR_AXIS_PP] = n_ranks;
    opt.layout.coord[TR_AXIS_PP] = rank;
    assert_int_equal(tr_compile((const struct tr_model *[TR_PURPOSES]){ [TR_FOR_TRAIN] = x.m }, &opt, &x.c), TR_OK);
    return x;
}

static struct adapted adapted_open(const char *adapter, const struct tr_column *column, enum tr_dtype dtype)
{
    return adapted_open_stage(adapter, column, dtype, 1, 0);
}

static void adapted_close(struct adapted *x)
{
    tr_compiled_close(x->c);
    tr_model_close(x->m);
    free(x->is_frozen);
}

/* In the last layer. */
static int count_nodes(const struct tr_compiled *c, enum tr_opcode op)
{
    const struct tr_schedule *s = &c->schedule[TR_FOR_TRAIN];
    const struct tr_program *p = s->program[s->program_of[s->model->n_segments - 2]];
    int n = 0;
    for (int k = 0; k < p->n_nodes; k++)
        n += p->node[k].op == op;
    return n;
}

#define LORA       "{\"peft_type\":\"LORA\",\"r\":4,"
#define ALL_LINEAR LORA "\"target_modules\":\"all-linear\"}"

/* Seven linears of a layer, and its two residual sums. */
static void products_of_adapters_add_to_the_base_in_place(void **state)
{
    (void)state;
    struct tr_column apart = *tr_column_of("cpu");
    apart.add_terms = 0;
    struct adapted joined = adapted_open(ALL_LINEAR, tr_column_of("cpu"), TR_F32);
    struct adapted two_ops = adapted_open(ALL_LINEAR, &apart, TR_F32);
    struct adapted half = adapted_open(ALL_LINEAR, tr_column_of("cpu"), TR_BF16);
    assert_int_equal(count_nodes(two_ops.c, TR_OP_LINEAR_ADD), 0);
    assert_int_equal(count_nodes(joined.c, TR_OP_LINEAR_ADD), 7);
    assert_int_equal(count_nodes(two_ops.c, TR_OP_ADD) - count_nodes(joined.c, TR_OP_ADD), 7);
    assert_int_equal(count_nodes(half.c, TR_OP_LINEAR_ADD), 0); /* it would round once instead of twice */
    const struct tr_schedule *s = &joined.c->schedule[TR_FOR_TRAIN];
    for (int i = 0; i < s->n_programs; i++)
        for (int k = 0; k < s->program[i]->n_nodes; k++) {
            const struct tr_node *n = &s->program[i]->node[k];
            if (n->op == TR_OP_LINEAR_ADD)
                assert_int_equal(tr_value_root(s->program[i], n->in[3]), tr_value_root(s->program[i], n->out[0]));
        }
    assert_true(joined.c->memory.bytes[TR_A_WORK] <= two_ops.c->memory.bytes[TR_A_WORK]);
    adapted_close(&joined);
    adapted_close(&two_ops);
    adapted_close(&half);
}

/* The longest sum that the CPU's column promises for. */
static void a_joined_product_has_the_bits_of_two_ops(void **state)
{
    (void)state;
    enum { N = 37, O = 45 };
    int64_t terms = tr_column_of("cpu")->add_terms, n_x = N * terms, n_w = O * terms;
    float *x = malloc((size_t)(n_x + n_w) * sizeof *x), *w = x + n_x, base[N * O], delta[N * O], two[N * O];
    assert_non_null(x);
    for (int64_t i = 0; i < n_x + n_w; i++)
        x[i] = (float)(tr_philox(1, 0, (uint64_t)i).v[0] % 1000) / 500 - 1;
    for (int i = 0; i < N * O; i++)
        base[i] = (float)(tr_philox(2, 0, (uint64_t)i).v[0] % 1000) / 500 - 1;
    struct tr_call c = { .op = TR_OP_LINEAR };
    c.in[0] = (struct tr_view){ .data = x, .rows = N, .cols = terms, .ld = terms, .dtype = TR_F32 };
    c.in[1] = (struct tr_view){ .data = w, .rows = O, .cols = terms, .ld = terms, .dtype = TR_F32 };
    c.out[0] = (struct tr_view){ .data = delta, .rows = N, .cols = O, .ld = O, .dtype = TR_F32 };
    c.scratch = malloc(tr_op_scratch(&c, 1));
    assert_non_null(c.scratch);
    tr_op_cpu_fast(c.op)(&c);
    struct tr_call add = { .op = TR_OP_ADD, .in = { c.out[0], c.out[0] }, .out = { c.out[0] } };
    add.in[0].data = base;
    add.out[0].data = two;
    tr_op_cpu_fast(add.op)(&add);
    c.op = TR_OP_LINEAR_ADD;
    c.out[0].data = base;
    c.in[3] = c.out[0];
    tr_op_cpu_fast(c.op)(&c);
    assert_memory_equal(base, two, sizeof two);
    free(c.scratch);
    free(x);
}

/* The keys of the dropouts of a layer, in the order of its nodes. */
static int dropout_keys(const char *adapter, uint64_t key[8])
{
    struct adapted x = adapted_open(adapter, tr_column_of("cpu"), TR_F32);
    const struct tr_program *p = x.m->program[x.m->segment[1].program];
    int n = 0;
    for (int i = 0; i < p->n_nodes; i++)
        if (p->node[i].op == TR_OP_DROPOUT) {
            assert_true(n < 8);
            key[n++] = p->node[i].attr.key;
        }
    adapted_close(&x);
    return n;
}

static void every_linear_draws_a_mask_of_its_own(void **state)
{
    (void)state;
    uint64_t all[8], some[8];
    assert_int_equal(dropout_keys(ALL_LINEAR, all), 0);
    assert_int_equal(dropout_keys(LORA "\"lora_dropout\":0.1,\"target_modules\":\"all-linear\"}", all), 7);
    for (int i = 0; i < 7; i++)
        for (int k = 0; k < i; k++)
            assert_true(all[i] != all[k]);
    /* and the same mask, whichever others are targets */
    assert_int_equal(dropout_keys(LORA "\"lora_dropout\":0.1,\"target_modules\":[\"v_proj\",\"up_proj\"]}", some), 2);
    assert_int_equal(some[0], all[2]);
    assert_int_equal(some[1], all[5]);
}

static int count_in_backward(const struct tr_schedule *s, int segment, enum tr_opcode op)
{
    const struct tr_program *p = s->program[s->program_of[segment]];
    int n = 0;
    for (int k = 0; k < p->n_nodes; k++)
        n += p->node[k].op == op && p->node[k].phase != TR_FORWARD;
    return n;
}

/* Layers 1 and 2 of 0 to 2 learn. The first that learns makes no gradient of its input: q, k and v and their A's have
 * no dx, and its first norm no backward. What is in front of it has no backward at all and saves nothing. */
static void gradients_end_where_nothing_learns(void **state)
{
    (void)state;
    struct adapted upper = adapted_open(LORA "\"target_modules\":[\"q_proj\",\"k_proj\",\"v_proj\",\"o_proj\","
                                             "\"gate_proj\",\"up_proj\",\"down_proj\"],\"layers_to_transform\":[1,2]}",
                                        tr_column_of("cpu"), TR_F32);
    const struct tr_schedule *s = &upper.c->schedule[TR_FOR_TRAIN];
    bool has_backward[5] = { false };
    for (int i = 0; i < s->n_actions; i++)
        if (s->action[i].kind == TR_DO_BACKWARD)
            has_backward[s->action[i].segment] = true;
    for (int g = 0; g < 5; g++) /* the embedding, three layers, the head */
        assert_int_equal(has_backward[g], g >= 2);
    assert_int_equal(s->program[s->program_of[1]]->saved_bytes, 0);
    assert_int_equal(count_in_backward(s, 3, TR_OP_LINEAR_DX) - count_in_backward(s, 2, TR_OP_LINEAR_DX), 6);
    assert_int_equal(count_in_backward(s, 3, TR_OP_RMSNORM_BWD) - count_in_backward(s, 2, TR_OP_RMSNORM_BWD), 1);
    assert_int_equal(count_in_backward(s, 2, TR_OP_LINEAR_DW), 14);
    assert_int_equal(tr_schedule_check(s), TR_OK);
    double flops = tr_flops_per_token(&upper.c->place) * (double)upper.m->n_tokens;
    assert_true(flops > 0 && s->flops - flops <= 1e-9 * flops && flops - s->flops <= 1e-9 * flops);
    adapted_close(&upper);
}

/* Only the last layer learns: a stage that learns nothing still sends the gradient that the stage before it waits for.
 */
static void stages_that_learn_nothing_pass_gradients_on(void **state)
{
    (void)state;
    for (int n_ranks = 2; n_ranks <= 3; n_ranks++)
        for (int rank = 0; rank < n_ranks; rank++) {
            struct adapted x = adapted_open_stage(LORA "\"target_modules\":[\"q_proj\"],\"layers_to_transform\":[7]}",
                                                  tr_column_of("cpu"), TR_F32, n_ranks, rank);
            const struct tr_schedule *s = &x.c->schedule[TR_FOR_TRAIN];
            int n_sent = 0, n_received = 0;
            for (int i = 0; i < s->n_actions; i++) {
                n_sent += s->action[i].kind == TR_DO_SEND;
                n_received += s->action[i].kind == TR_DO_RECV;
            }
            int n_neighbours = (rank > 0) + (rank < n_ranks - 1);
            assert_int_equal(n_sent, n_neighbours);
            assert_int_equal(n_received, n_neighbours);
            assert_int_equal(tr_schedule_check(s), TR_OK);
            adapted_close(&x);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_of_adapters_add_to_the_base_in_place),
        cmocka_unit_test(a_joined_product_has_the_bits_of_two_ops),
        cmocka_unit_test(every_linear_draws_a_mask_of_its_own),
        cmocka_unit_test(gradients_end_where_nothing_learns),
        cmocka_unit_test(stages_that_learn_nothing_pass_gradients_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
