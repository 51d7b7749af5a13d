/* test_match.c - what a loss of transport compares is found over a whole batch, in whatever pieces it comes, and makes
 * the loss and the derivatives of PyTorch's sort (tests/golden/pairs/transport.txt). */
#include "data/match.h"
#include "data/data_files.h"
#include "ops/pair.h"

enum { MOST = 32, ROW = 64, PAIRS_OF_ROW = 3 };

/* Batches of answers with one token, three pairs in a row, of pairs [first, first + n). */
struct answers {
    int32_t positions[2 * MOST], other[2 * MOST];
    int64_t sample[2 * MOST];
    float match[2 * MOST], sums[2 * MOST][2];
    struct tr_batch b;
};

static void make(struct answers *a, const double (*x)[6], int first, int n)
{
    memset(a, 0, sizeof *a);
    a->b = (struct tr_batch){ .positions = a->positions, .other = a->other, .sample = a->sample, .match = a->match };
    for (int i = 0; i < 2 * MOST; i++) {
        int pair = first + i / 2;
        a->other[i] = i < 2 * n ? i ^ 1 : -1;
        a->sample[i] = pair / PAIRS_OF_ROW * ROW + i % ROW;
        if (i < 2 * n) {
            a->sums[i][0] = -(float)x[pair][i % 2];
            a->sums[i][1] = -(float)x[pair][2 + i % 2];
        }
    }
}

static void check_batch(struct tr_pair_rule k, const double (*x)[6], int n, double want, int at_once)
{
    double list[2][MOST] = { { 0 } }, loss = 0;
    uint32_t order[2][MOST];
    uint64_t first_pair[MOST];
    float value[2 * MOST];
    struct answers a;
    uint64_t n_rows = (uint64_t)(n + PAIRS_OF_ROW - 1) / PAIRS_OF_ROW;
    for (uint64_t r = 0; r <= n_rows; r++)
        first_pair[r] = r < n_rows ? r * PAIRS_OF_ROW : (uint64_t)n;
    struct tr_match m = { .is_paired = k.term[0].loss == TR_PAIR_AOT,
                          .row_tokens = ROW,
                          .n_rows = n_rows,
                          .first_pair = first_pair,
                          .list = { list[0], list[1] },
                          .order = { order[0], order[1] },
                          .value = value };
    for (int at = (n - 1) / at_once * at_once; at >= 0; at -= at_once) { /* the last first */
        make(&a, x, at, n - at < at_once ? n - at : at_once);
        tr_match_take(&m, &a.b, 2 * MOST, a.sums[0], 0, 1, 2);
    }
    tr_match_sort(&m);
    for (int at = 0; at < n; at += at_once) {
        int here = n - at < at_once ? n - at : at_once;
        make(&a, x, at, here);
        tr_match_set(&m, &a.b, 2 * MOST);
        for (int i = 0; i < here; i++) {
            const double *p = x[at + i];
            struct tr_pair_in in = { .p = { p[0], p[1] }, .r = { p[2], p[3] }, .n = { 1, 1 } };
            for (int side = 0; side < 2; side++)
                in.match[side] = (double)a.match[2 * i + side];
            struct tr_pair_out out = tr_pair_loss(&k, &in);
            loss += out.loss / n;
            for (int side = 0; side < 2; side++) /* a match is a float of up to some 60: 2^-24 of it, times beta */
                assert_true(fabs(out.dp[side] / n - p[4 + side]) < 1e-5);
        }
    }
    assert_true(fabs(loss - want) < 1e-5);
}

static void batches_are_sorted_as_pytorch_sorts_them(void **state)
{
    (void)state;
    char line[8192], word[32];
    int n_lines = 0;
    FILE *f = fopen(TR_SOURCE_DIR "/tests/golden/pairs/transport.txt", "r");
    assert_non_null(f);
    for (; fgets(line, sizeof line, f); n_lines++) {
        double x[MOST][6], head[3], want;
        char *at = strchr(line, ' ');
        snprintf(word, sizeof word, "%.*s", (int)(at - line), line);
        for (int i = 0; i < 3; i++)
            head[i] = strtod(at, &at);
        int n = (int)head[2];
        assert_true(n <= MOST);
        for (int i = 0; i < 6 * n; i++)
            x[i / 6][i % 6] = strtod(at, &at);
        want = strtod(at, &at);
        struct tr_pair_rule k = { .term = { { strcmp(word, "aot") == 0 ? TR_PAIR_AOT : TR_PAIR_AOT_UNPAIRED, 1 } },
                                  .beta = (float)head[0],
                                  .label_smoothing = (float)head[1],
                                  .is_matched = true };
        check_batch(k, (const double(*)[6])x, n, want, MOST);
        check_batch(k, (const double(*)[6])x, n, want, PAIRS_OF_ROW);
        check_batch(k, (const double(*)[6])x, n, want, 2 * PAIRS_OF_ROW);
    }
    fclose(f);
    assert_int_equal(n_lines, 16);
}

/* The memory has room for rows that are full of the shortest pairs. */
static void memory_has_room_for_the_shortest_pairs(void **state)
{
    char text[4000];
    size_t at = 0;
    for (int i = 0; i < 40; i++)
        at += (size_t)snprintf(text + at, sizeof text - at,
                               "{\"prompt\": \"\", \"chosen\": \"a\", \"rejected\": \"b\"}\n");
    struct bench b;
    bench_init(&b, *state);
    b.options.wants_pairs = true;
    b.options.row_tokens = 9;
    struct tr_data *d = bench_open(&b, put_text(*state, "short.jsonl", text));
    uint64_t n_rows = tr_data_rows(d);
    size_t n = tr_match_bytes(n_rows, 9);
    assert_true(n % 64 == 0);
    void *mem = aligned_alloc(64, n + 64);
    assert_non_null(mem);
    memset(mem, 0x5a, n + 64);
    struct tr_match m;
    assert_ok(tr_match_init(&m, true, d, 0, n_rows, mem));
    assert_int_equal(tr_match_pairs(&m), 40);
    tr_match_sort(&m);
    assert_true((char *)(m.value + 80) <= (char *)mem + n);
    for (int i = 0; i < 64; i++)
        assert_int_equal(((char *)mem)[n + (size_t)i], 0x5a);
    free(mem);
    tr_data_close(d);
    bench_release(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(batches_are_sorted_as_pytorch_sorts_them),
                                        TEST(memory_has_room_for_the_shortest_pairs) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
