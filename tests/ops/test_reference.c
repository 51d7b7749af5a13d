/* test_reference.c - the reference kernels against numbers worked out by hand.
 *
 * test_ops.c shows that backward belongs to forward and that fast belongs to the reference; this file pins the forward
 * definitions themselves.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>

#include "ops/ops.h"

#define F32(p, n_rows, n_cols)                                                                                         \
    {                                                                                                                  \
        .data = (p), .dtype = TR_F32, .rows = (n_rows), .cols = (n_cols), .ld = (n_cols)                               \
    }
#define I32(p, n_rows)                                                                                                 \
    {                                                                                                                  \
        .data = (p), .dtype = TR_I32, .rows = (n_rows), .cols = 1, .ld = 1                                             \
    }
#define I64(p, n_rows)                                                                                                 \
    {                                                                                                                  \
        .data = (p), .dtype = TR_I64, .rows = (n_rows), .cols = 1, .ld = 1                                             \
    }

static void run(const struct tr_call *c)
{
    tr_op_cpu_ref(c->op)(c);
}

/* Results are doubles rounded to float once; 2^-22 leaves room for the constants written here as floats. */
static void near(float got, double want)
{
    if (!(fabs((double)got - want) <= 0x1p-22 * fmax(1.0, fabs(want))))
        fail_msg("got %.9g, want %.9g", (double)got, want);
}

static void activations_have_their_textbook_values(void **state)
{
    /* 1 * Phi(1); the tanh form; sigmoid(1) */
    static const double at_one[] = { [TR_ACT_NONE] = 1,
                                     [TR_ACT_RELU] = 1,
                                     [TR_ACT_GELU] = 0.841344746,
                                     [TR_ACT_GELU_TANH] = 0.841191991,
                                     [TR_ACT_SILU] = 0.731058579 };
    (void)state;
    for (int act = TR_ACT_NONE; act <= TR_ACT_SILU; act++) {
        float x[] = { 1, -1 }, u[] = { 3, 3 }, y[2], z[2];
        struct tr_call c = { .op = TR_OP_ACT, .in = { F32(x, 1, 2) }, .out = { F32(y, 1, 2) }, .attr = { .act = act } };
        struct tr_call glu = {
            .op = TR_OP_GLU, .in = { F32(x, 1, 2), F32(u, 1, 2) }, .out = { F32(z, 1, 2) }, .attr = { .act = act }
        };
        run(&c);
        run(&glu);
        near(y[0], at_one[act]);
        near(y[1], act == TR_ACT_NONE ? -1 : at_one[act] - 1); /* f(-x) = f(x) - x for all the others */
        near(z[0], 3 * at_one[act]);
    }
}

static void norms_of_1_2_3_4(void **state)
{
    float x[] = { 1, 2, 3, 4 }, w[] = { 1, 1, 1, 2 }, b[] = { 0, 0, 0, 5 }, y[4], stats[2];
    struct tr_call ln = { .op = TR_OP_LAYERNORM,
                          .in = { F32(x, 1, 4), F32(w, 1, 4), F32(b, 1, 4) },
                          .out = { F32(y, 1, 4), F32(stats, 1, 2) } };
    struct tr_call rms = { .op = TR_OP_RMSNORM,
                           .in = { F32(x, 1, 4), F32(w, 1, 2) },
                           .out = { F32(y, 1, 4), F32(stats, 1, 2) },
                           .attr = { .group = 2, .weight_offset = 1 } };
    (void)state;
    run(&ln);
    near(stats[0], 2.5);
    near(stats[1], 1 / sqrt(1.25));
    near(y[0], -1.5 / sqrt(1.25));
    near(y[3], 1.5 / sqrt(1.25) * 2 + 5);
    run(&rms); /* groups (1, 2) and (3, 4): mean squares 2.5 and 12.5 */
    near(stats[1], 1 / sqrt(12.5));
    near(y[1], 2 / sqrt(2.5) * 2);
    near(y[2], 3 / sqrt(12.5) * 2);
}

static void rope_turns_pairs_half_a_head_apart(void **state)
{
    /* position 1 turns by 90 degrees: (a, b) -> (-b, a); the last column of the head passes */
    float table[] = { 1, 0, 0, 1 }, x[] = { 5, 7, 9 }, y[3];
    int32_t position[] = { 1 };
    struct tr_call c = {
        TR_OP_ROPE, { F32(x, 1, 3), I32(position, 1), F32(table, 2, 2) }, { F32(y, 1, 3) }, .attr = { .head_dim = 3 }
    };
    (void)state;
    run(&c);
    assert_true(y[0] == -7 && y[1] == 5 && y[2] == 9);
    c.attr.inverse = true;
    run(&c);
    assert_true(y[0] == 7 && y[1] == -5 && y[2] == 9);
}

static void rope_turns_neighbours_where_they_are_interleaved(void **state)
{
    /* the first pair of the head turns by 90 degrees, the second by 180; the last column passes */
    float table[] = { 0, -1, 1, 0 }, x[] = { 1, 2, 3, 4, 5 }, y[5];
    int32_t position[] = { 0 };
    struct tr_call c = { TR_OP_ROPE,
                         { F32(x, 1, 5), I32(position, 1), F32(table, 1, 4) },
                         { F32(y, 1, 5) },
                         .attr = { .head_dim = 5, .is_interleaved = true } };
    (void)state;
    run(&c);
    assert_true(y[0] == -2 && y[1] == 1 && y[2] == -3 && y[3] == -4 && y[4] == 5);
}

static void regroup_sets_queries_keys_and_values_apart(void **state)
{
    /* two groups of two query heads, a key head and a value head, of one column each */
    float x[] = { 1, 2, 10, 20, 3, 4, 30, 40 }, y[8], back[8], want[] = { 1, 2, 3, 4, 10, 30, 20, 40 };
    struct tr_attr attr = { .n_heads_q = 4, .n_heads_kv = 2, .head_dim = 1 };
    struct tr_call c = { TR_OP_REGROUP, { F32(x, 1, 8) }, { F32(y, 1, 8) }, .attr = attr };
    struct tr_call inverse = { TR_OP_REGROUP, { F32(y, 1, 8) }, { F32(back, 1, 8) }, .attr = attr };
    (void)state;
    run(&c);
    inverse.attr.inverse = true;
    run(&inverse);
    for (int i = 0; i < 8; i++)
        assert_true(y[i] == want[i] && back[i] == x[i]);
}

static void attention_with_equal_scores_averages_what_a_row_sees(void **state)
{
    /* rows 0..2 and 3..5 are two documents; window 2 */
    float q[6] = { 0 }, k[6] = { 1, 2, 3, 4, 5, 6 }, v[6] = { 1, 2, 4, 8, 16, 32 }, o[6], lse[6];
    int32_t begin[] = { 0, 0, 0, 3, 3, 3 };
    struct tr_call c = { .op = TR_OP_ATTENTION,
                         .in = { F32(q, 6, 1), F32(k, 6, 1), F32(v, 6, 1), I32(begin, 6) },
                         .out = { F32(o, 6, 1), F32(lse, 6, 1) },
                         .attr = { .n_heads_q = 1, .n_heads_kv = 1, .head_dim = 1 } };
    (void)state;
    run(&c);
    near(o[2], 7.0 / 3);
    near(o[3], 8);
    near(o[5], 56.0 / 3);
    near(lse[5], log(3));
    c.attr.window = 2;
    run(&c);
    near(o[2], 3);
    near(o[3], 8);
    near(o[5], 24);
    near(lse[5], log(2));
}

static void attention_weighs_by_capped_scaled_scores(void **state)
{
    float q[] = { 0, 3 }, k[] = { 0, 2 }, v[] = { 0, 1 }, o[2], lse[2];
    int32_t begin[] = { 0, 0 };
    struct tr_call c = { .op = TR_OP_ATTENTION,
                         .in = { F32(q, 2, 1), F32(k, 2, 1), F32(v, 2, 1), I32(begin, 2) },
                         .out = { F32(o, 2, 1), F32(lse, 2, 1) },
                         .attr = { .n_heads_q = 1, .n_heads_kv = 1, .head_dim = 1, .scale = 0.5f, .softcap = 2 } };
    double s = 2 * tanh(0.5 * 6 / 2);
    (void)state;
    run(&c);
    near(o[1], exp(s) / (1 + exp(s)));
    near(lse[1], log(1 + exp(s)));
}

static void head_loss_of_equal_logits_is_log_vocabulary(void **state)
{
    float x[] = { 1, 1, 1 }, w[5] = { 0 }, bias[] = { 0, 0, 0, 0, 3 }, loss[3];
    int32_t target[] = { 2, -1, 4 };
    struct tr_call c = { .op = TR_OP_HEAD_LOSS,
                         .in = { F32(x, 3, 1), F32(w, 5, 1), { 0 }, I32(target, 3) },
                         .out = { F32(loss, 3, 1) } };
    (void)state;
    run(&c);
    near(loss[0], log(5));
    assert_true(loss[1] == 0);
    c.in[2] = (struct tr_view)F32(bias, 1, 5);
    c.attr.softcap = 1;
    run(&c);
    near(loss[2], log(4 + exp(tanh(3))) - tanh(3));
}

static void embedding_rows_outside_the_shard_are_zero(void **state)
{
    float w[] = { 1, 2, 3, 4 }, y[6];
    int32_t index[] = { 5, 6, 7 };
    struct tr_call c = {
        TR_OP_EMBED, { I32(index, 3), F32(w, 2, 2) }, { F32(y, 3, 2) }, .attr = { .index_offset = -6, .scale = 10 }
    };
    (void)state;
    run(&c);
    assert_true(y[0] == 0 && y[1] == 0 && y[2] == 10 && y[3] == 20 && y[4] == 30 && y[5] == 40);
}

enum { N_MANY = 40000 };

static void step_at(float *s, float lr)
{
    s[TR_STEP_LR] = lr;
    s[TR_STEP_CLIP] = 0.5f;
    s[TR_STEP_BETA1] = 0.5f;
    s[TR_STEP_BETA2] = 0.75f;
    s[TR_STEP_DECAY] = 0.5f;
    s[TR_STEP_BIAS1] = 0.5f;
    s[TR_STEP_BIAS2] = 0.25f;
    s[TR_STEP_NUMBER_LO] = 1;
}

static void optimizers_take_the_step_of_their_papers(void **state)
{
    float step[TR_STEP_COUNT] = { 0 }, g[] = { -8 }, p[] = { 2 }, m[] = { 0 }, v[] = { 0 };
    struct tr_call c = { .op = TR_OP_ADAMW,
                         .in = { F32(g, 1, 1), F32(step, 1, TR_STEP_COUNT) },
                         .out = { F32(p, 1, 1), { 0 }, F32(m, 1, 1), F32(v, 1, 1) },
                         .attr = { .decay = true } };
    (void)state;
    step_at(step, 0.25f);
    run(&c); /* g clipped to -4; a first step moves by lr against the sign, after decay by 1 - 0.25 * 0.5 */
    near(m[0], -2);
    near(v[0], 4);
    near(p[0], 2 * 0.875 + 0.25);
    c.op = TR_OP_LION;
    p[0] = 2;
    m[0] = 5; /* 0.5 * 5 + 0.5 * -4 > 0: the momentum wins */
    c.out[3].data = NULL;
    run(&c);
    near(p[0], 2 * 0.875 - 0.25);
    near(m[0], 0.75 * 5 + 0.25 * -4);
    c.op = TR_OP_SGD;
    c.attr.decay = false;
    p[0] = 2;
    m[0] = 2;
    run(&c);
    near(m[0], 0.5 * 2 - 4);
    near(p[0], 2 + 0.25 * 3);
}

/* A value a quarter of the way between two bf16 numbers goes up once in four: 5 sigma of a binomial around N / 4. */
static void stochastic_rounding_is_right_on_average(void **state)
{
    float step[TR_STEP_COUNT] = { 0 }, *g = calloc(N_MANY, sizeof *g);
    uint16_t *p = malloc(N_MANY * sizeof *p);
    const uint16_t low = tr_bf16_of_f32(1.0f), high = tr_bf16_of_f32(1.0f + 0x1p-7f);
    int64_t n_up = 0;
    (void)state;
    step_at(step, 1);
    for (int i = 0; i < N_MANY; i++) {
        p[i] = low;
        g[i] = -2 * 0x1p-9f; /* halved by CLIP: p + 2^-9 */
    }
    struct tr_call c = { .op = TR_OP_SGD,
                         .in = { F32(g, 1, N_MANY), F32(step, 1, TR_STEP_COUNT) },
                         .out = { { .data = p, .dtype = TR_BF16, .rows = 1, .cols = N_MANY, .ld = N_MANY } } };
    run(&c);
    for (int i = 0; i < N_MANY; i++) {
        assert_true(p[i] == low || p[i] == high);
        n_up += p[i] == high;
    }
    double sigma = sqrt(N_MANY * 0.25 * 0.75);
    assert_true(fabs((double)n_up - N_MANY * 0.25) < 5 * sigma);
    free(g);
    free(p);
}

static void dropout_keeps_the_right_share_and_the_same_mask_in_a_column_shard(void **state)
{
    enum { ROWS = 40, COLS = 1000, FIRST = 333 };
    float step[TR_STEP_COUNT] = { 0 }, *x = malloc(ROWS * COLS * sizeof *x), *y = malloc(ROWS * COLS * sizeof *y);
    float shard[ROWS] = { 0 };
    int64_t sample[ROWS], n_kept = 0;
    int32_t position[ROWS];
    (void)state;
    for (int i = 0; i < ROWS * COLS; i++)
        x[i] = 1;
    for (int i = 0; i < ROWS; i++) {
        sample[i] = i / 8 * 8;
        position[i] = i % 8;
    }
    struct tr_call c = { .op = TR_OP_DROPOUT,
                         .in = { F32(x, ROWS, COLS), I64(sample, ROWS), I32(position, ROWS),
                                 F32(step, 1, TR_STEP_COUNT) },
                         .out = { F32(y, ROWS, COLS) },
                         .attr = { .dropout_p = 0.2f, .key = 3 } };
    run(&c);
    for (int i = 0; i < ROWS * COLS; i++) {
        n_kept += y[i] > 0;
        assert_true(y[i] == 0 || y[i] == 65536.0f / (65536 - 13107)); /* 0.2 in steps of 2^-16 */
    }
    assert_true(fabs((double)n_kept - 0.8 * ROWS * COLS) < 5 * sqrt(0.8 * 0.2 * ROWS * COLS));
    c.in[0].cols = 1;
    c.out[0] = (struct tr_view)F32(shard, ROWS, 1);
    c.attr.first = FIRST;
    run(&c);
    for (int i = 0; i < ROWS; i++)
        assert_true(shard[i] == y[i * COLS + FIRST]);
    free(x);
    free(y);
}

/* Uniform in [-scale, scale): mean 0, variance scale^2 / 3; another step has other noise, a column shard the same. */
static void noise_is_uniform_and_the_same_in_a_column_shard(void **state)
{
    enum { ROWS = 40, COLS = 1000, FIRST = 333 };
    float step[TR_STEP_COUNT] = { 0 }, *x = malloc(ROWS * COLS * sizeof *x), *y = malloc(ROWS * COLS * sizeof *y);
    float shard[ROWS] = { 0 };
    int64_t sample[ROWS];
    int32_t position[ROWS];
    double sum = 0, squares = 0, n = ROWS * COLS, scale = 0.5;
    (void)state;
    for (int i = 0; i < ROWS * COLS; i++)
        x[i] = 1;
    for (int i = 0; i < ROWS; i++) {
        sample[i] = i / 8;
        position[i] = i % 8;
    }
    struct tr_call c = { .op = TR_OP_NOISE,
                         .in = { F32(x, ROWS, COLS), I64(sample, ROWS), I32(position, ROWS),
                                 F32(step, 1, TR_STEP_COUNT) },
                         .out = { F32(y, ROWS, COLS) },
                         .attr = { .scale = (float)scale, .key = 3 } };
    run(&c);
    for (int i = 0; i < ROWS * COLS; i++) {
        double noise = (double)y[i] - 1;
        assert_true(noise >= -scale && noise <= scale);
        sum += noise;
        squares += noise * noise;
    }
    assert_true(fabs(sum / n) < 5 * scale / sqrt(3 * n));
    assert_true(fabs(squares / n - scale * scale / 3) < 5 * scale * scale * sqrt(4.0 / 45 / n));
    c.in[0].cols = 1;
    c.out[0] = (struct tr_view)F32(shard, ROWS, 1);
    c.attr.first = FIRST;
    run(&c);
    for (int i = 0; i < ROWS; i++)
        assert_true(shard[i] == y[i * COLS + FIRST]);
    step[TR_STEP_NUMBER_LO] = 1;
    run(&c);
    assert_true(shard[0] != y[FIRST] && shard[1] != y[COLS + FIRST]);
    free(x);
    free(y);
}

static void flops_count_products_and_visible_pairs(void **state)
{
    struct tr_call c = { .op = TR_OP_LINEAR,
                         .in = { { .rows = 10, .cols = 3 } },
                         .out = { { .rows = 10, .cols = 7 } } };
    struct tr_call a = { .op = TR_OP_ATTENTION,
                         .in = { { .rows = 8, .cols = 6 } },
                         .attr = { .n_heads_q = 3, .n_heads_kv = 1, .head_dim = 2, .seq_len = 4 } };
    (void)state;
    assert_true(tr_op_flops(&c) == 2.0 * 10 * 3 * 7);
    assert_true(tr_op_flops(&a) == 4.0 * 3 * 2 * (2 * (1 + 2 + 3 + 4)));
    a.attr.window = 2;
    assert_true(tr_op_flops(&a) == 4.0 * 3 * 2 * (2 * (1 + 2 + 2 + 2)));
    a.op = TR_OP_ATTENTION_BWD;
    assert_true(tr_op_flops(&a) == 8.0 * 3 * 2 * (2 * (1 + 2 + 2 + 2)));
    a.op = TR_OP_ADD;
    assert_true(tr_op_flops(&a) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(activations_have_their_textbook_values),
        cmocka_unit_test(norms_of_1_2_3_4),
        cmocka_unit_test(rope_turns_pairs_half_a_head_apart),
        cmocka_unit_test(rope_turns_neighbours_where_they_are_interleaved),
        cmocka_unit_test(regroup_sets_queries_keys_and_values_apart),
        cmocka_unit_test(attention_with_equal_scores_averages_what_a_row_sees),
        cmocka_unit_test(attention_weighs_by_capped_scaled_scores),
        cmocka_unit_test(head_loss_of_equal_logits_is_log_vocabulary),
        cmocka_unit_test(embedding_rows_outside_the_shard_are_zero),
        cmocka_unit_test(optimizers_take_the_step_of_their_papers),
        cmocka_unit_test(stochastic_rounding_is_right_on_average),
        cmocka_unit_test(dropout_keeps_the_right_share_and_the_same_mask_in_a_column_shard),
        cmocka_unit_test(noise_is_uniform_and_the_same_in_a_column_shard),
        cmocka_unit_test(flops_count_products_and_visible_pairs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
