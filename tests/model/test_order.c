/* One model, one program: the order of ops and values does not depend on the compiler. C leaves the order of two
 * arguments open, so a model file that adds two ops in the arguments of one call fails here under gcc or under clang.
 */
#include "base/base.h"
#include "model/model.h"
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define SIZES                                                                                                          \
    "\"vocab_size\":64,\"hidden_size\":32,\"intermediate_size\":48,\"num_hidden_layers\":2,"                           \
    "\"num_attention_heads\":4,\"head_dim\":8"

/* The ops of a block from the projections to attention, each with the name of what it reads. */
static const struct {
    const char *config, *ops;
} models[] = {
    { "{\"model_type\":\"llama\"," SIZES "}",
      "rmsnorm:in linear:input_layernorm linear:input_layernorm linear:input_layernorm rope:self_attn.k_proj "
      "rope:self_attn.q_proj attention:rope" },
    { "{\"model_type\":\"qwen3\"," SIZES "}",
      "rmsnorm:in linear:input_layernorm linear:input_layernorm linear:input_layernorm rmsnorm:self_attn.q_proj "
      "rmsnorm:self_attn.k_proj rope:self_attn.k_norm rope:self_attn.q_norm attention:rope" },
    { "{\"model_type\":\"gemma2\"," SIZES "}",
      "rmsnorm:in linear:input_layernorm linear:input_layernorm linear:input_layernorm rope:self_attn.k_proj "
      "rope:self_attn.q_proj attention:rope" },
    { "{\"model_type\":\"gpt2\",\"vocab_size\":64,\"n_embd\":32,\"n_layer\":2,\"n_head\":4}",
      "layernorm:in linear:ln_1 attention:slice" },
};

static struct tr_model *open_model(const char *config)
{
    cJSON *j = NULL;
    struct tr_model *m = NULL;
    struct tr_model_options opt = { .rows = 2, .sequence_length = 8, .dropout = 0 };
    assert_int_equal(tr_json_parse(config, strlen(config), "config.json", &j), TR_OK);
    assert_int_equal(tr_model_from_json(j, &opt, &m), TR_OK);
    return m;
}

static void ops_are_in_the_order_of_the_model_file(void **state)
{
    (void)state;
    for (size_t i = 0; i < TR_COUNT_OF(models); i++) {
        struct tr_model *m = open_model(models[i].config);
        const struct tr_program *p = m->program[1];
        struct tr_str ops = { 0 };
        for (int k = 0; k < p->n_nodes; k++) {
            const struct tr_node *n = &p->node[k];
            tr_str_addf(&ops, "%s%s:%s", k ? " " : "", tr_op_row(n->op)->name, p->value[n->in[0]].name);
            if (n->op == TR_OP_ATTENTION)
                break;
        }
        assert_true(tr_str_ok(&ops));
        assert_string_equal(ops.p, models[i].ops);
        tr_str_release(&ops);
        tr_model_close(m);
    }
}

/* gpt2 reads q, k and v as columns of one product: those are values without an op. */
static void slices_are_in_the_order_of_the_model_file(void **state)
{
    (void)state;
    struct tr_model *m = open_model(models[3].config);
    const struct tr_program *p = m->program[1];
    int64_t col[3], n = 0;
    for (int v = 0; v < p->n_values; v++)
        if (p->value[v].base != TR_NONE && n < 3)
            col[n++] = p->value[v].col;
    assert_int_equal(n, 3);
    assert_true(col[0] == 64 && col[1] == 32 && col[2] == 0);
    tr_model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ops_are_in_the_order_of_the_model_file),
        cmocka_unit_test(slices_are_in_the_order_of_the_model_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
