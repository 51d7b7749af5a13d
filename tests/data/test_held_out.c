/* test_held_out.c - what eval_split holds out and what is trained on are one data set: every record is on one side, and
 * on one side only, for every way of packing and every order. */
#include "data/data_files.h"

enum { RECORDS = 400 };

/* Marks the records of a side; the number of a record is its text. */
static void mark_side(struct bench *b, const char *path, bool is_held_out, int seen[RECORDS])
{
    b->options.is_held_out_side = is_held_out;
    b->options.shuffle = !is_held_out; /* as runs open them */
    struct tr_data *d = bench_open(b, path);
    int64_t T = tr_data_row_tokens(d), n_targets, n_tokens;
    struct rows r = rows_new(1, T);
    for (uint64_t g = 0; g < tr_data_rows(d); g++) {
        char text[256] = "";
        assert_ok(tr_data_fill(d, g, 1, g + 1, &r.b, &n_targets));
        assert_ok(tr_data_tokens(d, g, 1, g + 1, &n_tokens));
        for (int64_t i = 0; i < n_tokens; i++)
            text[i] = r.b.tokens[i] < 256 ? (char)r.b.tokens[i] : ' ';
        for (char *at = strchr(text, '<'); at; at = strchr(at + 1, '<'))
            seen[strtol(at + 1, NULL, 10)]++;
    }
    rows_free(&r);
    tr_data_close(d);
}

static void every_record_is_on_one_side(void **state)
{
    static char text[RECORDS * 64];
    static const enum tr_packing how[] = { TR_PACK_BESTFIT, TR_PACK_NONE };
    size_t at = 0;
    for (int i = 0; i < RECORDS; i++)
        at += (size_t)snprintf(text + at, sizeof text - at, "{\"prompt\": \"<%d>\", \"completion\": \"%.*s\"}\n", i,
                               1 + i * 7 % 13, "xxxxxxxxxxxxx");
    for (size_t k = 0; k < TR_COUNT_OF(how); k++) {
        int trained[RECORDS] = { 0 }, held[RECORDS] = { 0 }, n_held = 0;
        struct bench b;
        bench_init(&b, *state);
        b.options.packing = how[k];
        b.options.row_tokens = 96;
        b.options.held_out = 0.2;
        b.options.seed = 5;
        const char *path = put_text(*state, "h.jsonl", text);
        mark_side(&b, path, false, trained);
        mark_side(&b, path, true, held);
        for (int i = 0; i < RECORDS; i++) {
            if (trained[i] + held[i] != 1)
                fail_msg("record %d is trained on %d times and held out %d times", i, trained[i], held[i]);
            n_held += held[i];
        }
        assert_in_range(n_held, RECORDS / 8, RECORDS / 4);
        bench_release(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { TEST(every_record_is_on_one_side) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
