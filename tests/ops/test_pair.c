/* test_pair.c - the loss of a pair and its derivatives are those of PyTorch's autograd (tests/golden/pairs), for every
 * loss of the list. */
#include "ops/pair.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

static enum tr_divergence divergence_named(const char *word)
{
    static const char *const words[TR_DIVERGENCE_COUNT] = {
#define X(id, text) [TR_DIVERGENCE_##id] = text,
        TR_DIVERGENCE_LIST(X)
#undef X
    };
    for (int i = 0; i < TR_DIVERGENCE_COUNT; i++)
        if (strcmp(words[i], word) == 0)
            return (enum tr_divergence)i;
    fail_msg("no divergence %s", word);
    return TR_DIVERGENCE_REVERSE_KL;
}

static enum tr_pair_loss loss_named(const char *word)
{
    static const char *const words[TR_PAIR_COUNT] = {
#define X(id, text, needs_ref, is_mean) [TR_PAIR_##id] = text,
        TR_PAIR_LOSS_LIST(X)
#undef X
    };
    for (int i = 1; i < TR_PAIR_COUNT; i++)
        if (strcmp(words[i], word) == 0)
            return (enum tr_pair_loss)i;
    fail_msg("no loss %s", word);
    return TR_PAIR_NONE;
}

/* The next word of a line. */
enum { WORD = 64 };
static char *take_word(char *at, char word[WORD])
{
    char *end = strchr(at, ' ');
    assert_true(end && end - at < WORD);
    memcpy(word, at, (size_t)(end - at));
    word[end - at] = 0;
    return end + 1;
}

/* Both compute in double; a formula has some twenty roundings, and differences of sums of a hundred lose two digits. */
static void assert_near(double got, double want, const char *word, const char *what)
{
    if (!(fabs(got - want) <= 1e-11 * (1 + fabs(want))))
        fail_msg("%s: %s is %.17g, PyTorch's %.17g", word, what, got, want);
}

/* "sigmoid:0.8,sft:1". Returns how many there are. */
static int read_terms(const char *words, struct tr_pair_term term[TR_PAIR_TERMS])
{
    char text[WORD], *rest = text;
    int n = 0;
    memcpy(text, words, strlen(words) + 1);
    for (char *item; (item = strsep(&rest, ",")) != NULL; n++) {
        char *weight = item, *kind = strsep(&weight, ":");
        assert_true(n < TR_PAIR_TERMS);
        term[n] = (struct tr_pair_term){ loss_named(kind), weight ? strtof(weight, NULL) : 1 };
    }
    return n;
}

static void losses_and_derivatives_are_those_of_pytorch(void **state)
{
    (void)state;
    bool is_seen[TR_PAIR_COUNT] = { true }, is_met[TR_DIVERGENCE_COUNT] = { false };
    char line[1024], word[WORD], divergence[WORD];
    double x[14];
    int n_sums = 0;
    FILE *f = fopen(TR_SOURCE_DIR "/tests/golden/pairs/losses.txt", "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        char *at = take_word(take_word(line, word), divergence);
        for (int i = 0; i < 14; i++)
            x[i] = strtod(at, &at);
        struct tr_pair_rule k = { .divergence = divergence_named(divergence),
                                  .alpha = (float)x[0],
                                  .tau = (float)x[1],
                                  .beta = (float)x[2],
                                  .label_smoothing = (float)x[3],
                                  .gamma = (float)x[4] };
        n_sums += read_terms(word, k.term) > 2;
        struct tr_pair_in in = { { x[5], x[6] }, { x[7], x[8] }, { x[9], x[10] }, { x[5], x[6] } };
        struct tr_pair_out out = tr_pair_loss(&k, &in);
        assert_near(out.loss, x[11], word, "the loss");
        assert_near(out.dp[TR_CHOSEN] + out.dall[TR_CHOSEN], x[12], word, "the derivative by the chosen answer");
        assert_near(out.dp[TR_REJECTED] + out.dall[TR_REJECTED], x[13], word, "the derivative by the rejected answer");
        is_seen[k.term[0].loss] = is_met[k.divergence] = true;
    }
    fclose(f);
    assert_true(n_sums > 3);
    is_seen[TR_PAIR_AOT] = is_seen[TR_PAIR_AOT_UNPAIRED] = true; /* of a whole batch: data/test_match */
    for (int i = 0; i < TR_PAIR_COUNT; i++)
        assert_true(is_seen[i] != tr_pair_is_labelled((enum tr_pair_loss)i));
    for (int i = 0; i < TR_DIVERGENCE_COUNT; i++)
        assert_true(is_met[i]);
}

/* Each token has the derivative that PyTorch finds by its own log-probability. */
static void weights_of_tokens_and_pairs_are_those_of_pytorch(void **state)
{
    (void)state;
    int n_both = 0, n_tails = 0;
    char line[1024], word[WORD];
    double x[19];
    FILE *f = fopen(TR_SOURCE_DIR "/tests/golden/pairs/weighed.txt", "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        char *at = take_word(line, word);
        for (int i = 0; i < 19; i++)
            x[i] = strtod(at, &at);
        double tail = x[0];
        struct tr_pair_rule k = { .beta = (float)x[2],
                                  .label_smoothing = (float)x[3],
                                  .gamma = 0.5f,
                                  .weighs_tokens = tail<1, .weighs_pairs = x[1]> 0 };
        struct tr_pair_in in = { { 0 } };
        read_terms(word, k.term);
        for (int i = 0; i < 2; i++) {
            const double *a = x + 4 + 5 * i; /* targets, shared, tail, squares, reference */
            in.p[i] = a[1] + tail * a[2];
            in.all[i] = a[1] + a[2];
            in.n[i] = a[0], in.squares[i] = a[3], in.r[i] = a[4];
        }
        struct tr_pair_out out = tr_pair_loss(&k, &in);
        assert_near(out.loss, x[14], word, "the loss");
        for (int i = 0; i < 2; i++) {
            assert_near(out.dp[i] + out.dall[i], x[15 + 2 * i], word, "the derivative by a token that both have");
            if (in.n[i] > in.n[1 - i])
                assert_near(tail * out.dp[i] + out.dall[i], x[16 + 2 * i], word, "the derivative by a token behind");
            n_tails += in.n[i] > in.n[1 - i] && tail < 1;
        }
        n_both += k.weighs_tokens && k.weighs_pairs;
    }
    fclose(f);
    assert_true(n_both > 3 && n_tails > 8);
}

static void losses_of_labels_are_those_of_pytorch(void **state)
{
    (void)state;
    bool is_seen[TR_PAIR_COUNT] = { false };
    char line[1024], word[WORD];
    double x[9];
    FILE *f = fopen(TR_SOURCE_DIR "/tests/golden/pairs/labels.txt", "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        char *at = take_word(line, word);
        for (int i = 0; i < 9; i++)
            x[i] = strtod(at, &at);
        struct tr_pair_rule k = { .term = { { loss_named(word), 1 } },
                                  .beta = (float)x[0],
                                  .weight = { (float)x[1], (float)x[2] } };
        double dp, loss = tr_label_loss(&k, x[4] - x[5], x[3] > 0, x[6], &dp);
        assert_near(loss, x[7], word, "the loss");
        assert_near(dp, x[8], word, "the derivative");
        is_seen[k.term[0].loss] = true;
    }
    fclose(f);
    for (int i = 1; i < TR_PAIR_COUNT; i++)
        assert_int_equal(is_seen[i], tr_pair_is_labelled((enum tr_pair_loss)i));
}

/* Answers that are far more or far less likely than the reference's give finite numbers. */
static void extreme_pairs_are_finite(void **state)
{
    (void)state;
    for (int loss = 1; loss < TR_PAIR_KTO; loss++)
        for (int sign = -1; sign <= 1; sign += 2) {
            if (loss == TR_PAIR_DISCOPOP && sign < 0) /* it is exponential in the distance */
                continue;
            struct tr_pair_rule k = { { { (enum tr_pair_loss)loss, 1 } }, 2,    0.1f,  0.5f,
                                      TR_DIVERGENCE_REVERSE_KL,           0.5f, 0.05f, { 1, 1 } };
            struct tr_pair_in in = { { sign > 0 ? 0 : -5000, sign > 0 ? -5000 : 0 }, { -2500, -2500 }, { 10, 10 } };
            memcpy(in.all, in.p, sizeof in.all);
            for (int f = 0; f < (loss == TR_PAIR_DISCOPOP ? 1 : TR_DIVERGENCE_COUNT); f++) {
                k.divergence = (enum tr_divergence)f;
                struct tr_pair_out out = tr_pair_loss(&k, &in);
                assert_true(isfinite(out.loss) && isfinite(out.dp[0]) && isfinite(out.dp[1]));
            }
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(losses_and_derivatives_are_those_of_pytorch),
                                        cmocka_unit_test(losses_of_labels_are_those_of_pytorch),
                                        cmocka_unit_test(weights_of_tokens_and_pairs_are_those_of_pytorch),
                                        cmocka_unit_test(extreme_pairs_are_finite) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
