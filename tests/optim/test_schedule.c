/* Learning rates, step by step, against those of transformers and DeepSpeed (tests/golden/make_schedules.py). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "optim/optim.h"

/* Splits text at blanks; returns how many words there are. */
static int words_of(char *text, char **word, int max)
{
    int n = 0;
    for (char *save = NULL, *w = strtok_r(text, " ", &save); w && n < max; w = strtok_r(NULL, " ", &save))
        word[n++] = w;
    return n;
}

static void rates_are_those_of_the_tools_that_define_them(void **state)
{
    char line[4096], *argv[32];
    int n_lines = 0;
    (void)state;
    FILE *f = fopen(TR_SOURCE_DIR "/tests/golden/schedules.txt", "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        const struct tr_config *cfg = NULL;
        char *total_text = strchr(line, '|'), *rates = strrchr(line, '|'), options[1024];
        assert_true(total_text && rates && rates > total_text && total_text - line < 1000);
        *total_text = 0;
        int64_t total = strtoll(total_text + 1, NULL, 10);
        snprintf(options, sizeof options, "%.1000s", line);
        int argc = words_of(line, argv, 32);
        assert_int_equal(tr_config_load(TR_VERB_CONFIG, argc, argv, NULL, &cfg), TR_OK);
        char *at = rates + 1;
        for (int64_t step = 0; step < total; step++) {
            double want = strtod(at, &at), got = tr_lr_at(cfg, step, total);
            /* A handful of roundings of numbers up to the peak rate, in another order. */
            if (!(fabs(got - want) <= 8 * DBL_EPSILON * cfg->learning_rate))
                fail_msg("%sstep %d: %.17g, want %.17g", options, (int)step, got, want);
        }
        tr_config_close(cfg);
        n_lines++;
    }
    fclose(f);
    assert_true(n_lines >= 30);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rates_are_those_of_the_tools_that_define_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
