/* test_proof.c - what is shown is what is trained; and processes that start together agree. */
#include "data/data_files.h"

#include <sys/wait.h>
#include <unistd.h>

static void a_proof_shows_texts_targets_boundaries_and_padding(void **state)
{
    struct bench b;
    struct tr_proof_row row;
    bench_init(&b, *state);
    b.options.row_tokens = 24;
    b.options.packing = TR_PACK_BESTFIT;
    struct tr_data *d = bench_open(&b, put_text(*state, "a.jsonl",
                                                "{\"prompt\": \"abc\", \"completion\": \"defgh\"}\n"
                                                "{\"prompt\": \"x\", \"completion\": \"\xC3\xA9\"}\n"));
    assert_int_equal(tr_data_rows(d), 1);
    assert_ok(tr_data_prove(d, b.tokenizer, 0, &row));
    assert_int_equal(row.n_docs, 2);
    assert_int_equal(row.n_tokens, 13); /* 3 + 5 + eos, 1 + 2 bytes + eos */
    assert_int_equal(row.n_targets, 6 + 3);
    static const char want[] = "...DDDDDD.DDD"; /* the longer document first */
    for (int i = 0; i < 24; i++) {
        const struct tr_proof_token *t = &row.tokens[i];
        assert_int_equal(t->is_pad, i >= 13);
        assert_int_equal(t->is_target, i < 13 && want[i] == 'D');
        assert_int_equal(t->position, i < 9 ? i : i < 13 ? i - 9 : i - 13);
        if (i < 8)
            assert_memory_equal(t->text, &"abcdefgh"[i], t -> n_text);
        assert_int_equal(t->n_text, i == 8 || i == 12 ? 13 : i == 10 || i == 11 ? 3 : i < 13 ? 1 : 0);
    }
    assert_memory_equal(row.tokens[8].text, "<|endoftext|>", 13);
    assert_memory_equal(row.tokens[10].text, "\xEF\xBF\xBD", 3); /* half a character */
    tr_proof_row_release(&row);
    tr_data_close(d);
    bench_release(&b);
}

static void a_proof_follows_epochs(void **state)
{
    struct bench b;
    struct tr_proof_row row;
    bench_init(&b, *state);
    b.options.row_tokens = 4;
    b.options.shuffle = true;
    struct tr_data *d = bench_open(&b, put_text(*state, "a.txt", "some text of a few rows"));
    uint64_t n = tr_data_rows(d);
    for (uint64_t g = 0; g < 3 * n; g++) {
        assert_ok(tr_data_prove(d, NULL, g, &row));
        assert_int_equal(row.epoch, g / n);
        assert_int_equal(row.sample, g);
        assert_int_equal(row.tokens[0].n_text, 0);
        tr_proof_row_release(&row);
    }
    tr_data_close(d);
    bench_release(&b);
}

static void processes_that_start_together_get_the_same_data(void **state)
{
    enum { N = 4 };
    struct bench b;
    struct tr_str text = { 0 };
    struct tr_data_info want, got[N];
    int pipes[2];
    bench_init(&b, *state);
    for (int i = 0; i < 5000; i++)
        tr_str_addf(&text, "{\"text\": \"document %d\"}\n", i);
    put_file(*state, "a.jsonl", text.p, text.n);
    assert_int_equal(pipe(pipes), 0);
    for (int i = 0; i < N; i++)
        if (fork() == 0) {
            struct tr_data *d = NULL;
            const char *path = b.s->path;
            int rc = tr_data_open(&path, 1, b.tokenizer, &b.options, &d) != TR_OK;
            if (rc == 0) {
                tr_data_get_info(d, &want);
                rc = write(pipes[1], &want, sizeof want) != (ssize_t)sizeof want;
            }
            _exit(rc);
        }
    for (int i = 0; i < N; i++) {
        int status;
        assert_true(wait(&status) > 0);
        assert_int_equal(status, 0);
        assert_int_equal(read(pipes[0], &got[i], sizeof got[i]), sizeof got[i]);
    }
    struct tr_data *d = bench_open(&b, b.s->path);
    tr_data_get_info(d, &want);
    assert_int_equal(want.n_docs, 5000);
    for (int i = 0; i < N; i++)
        assert_true(tr_hash_eq(got[i].hash, want.hash));
    tr_data_close(d);
    close(pipes[0]);
    close(pipes[1]);
    tr_str_release(&text);
    bench_release(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_proof_shows_texts_targets_boundaries_and_padding),
        TEST(a_proof_follows_epochs),
        TEST(processes_that_start_together_get_the_same_data),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
