/* What an update reads from the step buffer at the edges: no targets (D9), and counters past 2^31 (D10). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include "optim/optim.h"

static const struct tr_config *load(char *schedule)
{
    const struct tr_config *cfg = NULL;
    char *argv[] = { "--max_steps", "900000000000000", "--warmup_steps", "10", "--lr_scheduler_type", schedule };
    assert_int_equal(tr_config_load(TR_VERB_CONFIG, 6, argv, NULL, &cfg), TR_OK);
    return cfg;
}

static void a_batch_without_targets_divides_by_nothing(void **state)
{
    float values[TR_STEP_COUNT];
    const struct tr_config *cfg = load("linear");
    (void)state;
    tr_step_values(cfg, 0, 100, 0, values);
    assert_true(values[TR_STEP_INV_TOKENS] == 0);
    for (int i = 0; i < TR_STEP_COUNT; i++)
        assert_true(isfinite(values[i]));
    assert_true(tr_clip_factor(0, 1) == 1); /* a gradient of zeros */
    tr_config_close(cfg);
}

static void steps_keep_their_number_past_2_to_the_31(void **state)
{
    char *schedules[] = { "linear", "cosine", "wsd", "constant" };
    const int64_t edges[] = { INT64_C(1) << 24, INT64_C(1) << 31, INT64_C(1) << 32, INT64_C(1) << 40,
                              (INT64_C(1) << 48) - 2 };
    (void)state;
    for (int s = 0; s < 4; s++) {
        const struct tr_config *cfg = load(schedules[s]);
        for (size_t i = 0; i < TR_COUNT_OF(edges); i++)
            for (int64_t step = edges[i] - 2; step < edges[i] + 2; step++) {
                float v[TR_STEP_COUNT];
                tr_step_values(cfg, step, cfg->max_steps, 1 << 20, v);
                assert_true((int64_t)v[TR_STEP_NUMBER_HI] * (1 << 24) + (int64_t)v[TR_STEP_NUMBER_LO] == step);
                assert_true(v[TR_STEP_BIAS1] == 1 && v[TR_STEP_BIAS2] == 1); /* 1 - beta^step */
                assert_true(v[TR_STEP_LR] >= 0 && (double)v[TR_STEP_LR] <= cfg->learning_rate * (1 + 0x1p-23));
            }
        tr_config_close(cfg);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_batch_without_targets_divides_by_nothing),
        cmocka_unit_test(steps_keep_their_number_past_2_to_the_31),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
