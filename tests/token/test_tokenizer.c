/* test_tokenizer.c - the byte tokenizer, added tokens, special tokens, old files (vocab.json, merges.txt), threads. */
#include "token/token_test.h"
#include "token/token_impl.h"

#include <pthread.h>

static void bytes_to_unicode_table_is_gpt2s(void **state)
{
    (void)state;
    /* Rebuilt the way GPT-2 does it: printable bytes as they are, the others numbered from 256 in order. */
    uint32_t next = 256;
    for (unsigned b = 0; b < 256; b++) {
        bool is_printable = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || (b >= 0xAE && b <= 0xFF);
        assert_int_equal(tr_tok_byte_char(b), is_printable ? b : next++);
    }
    assert_int_equal(next, 256 + 68);
}

static void byte_tokenizer_round_trips_every_byte(void **state)
{
    struct tr_tokenizer *t = byte_tokenizer(*state);
    struct tr_ids ids = { 0 };
    struct tr_str back = { 0 };
    char all[256];
    for (int i = 0; i < 256; i++)
        all[i] = (char)i;
    assert_int_equal(tr_tokenizer_vocab_size(t), 257);
    assert_int_equal(tr_tokenizer_eos(t), 256);
    assert_ok(tr_tokenizer_encode(t, all, sizeof all, &ids));
    assert_int_equal(ids.n, 256);
    for (int i = 0; i < 256; i++)
        assert_int_equal(ids.p[i], i);
    assert_ok(tr_ids_add(&ids, 256));
    assert_ok(tr_tokenizer_decode(t, ids.p, ids.n, &back));
    assert_int_equal(back.n, 256 + 13);
    assert_memory_equal(back.p, all, 256);
    assert_string_equal(back.p + 256, "<|endoftext|>");
    ids.p[0] = 257;
    assert_refused(tr_tokenizer_decode(t, ids.p, 1, &back), TR_USAGE, "257");
    tr_ids_release(&ids);
    tr_str_release(&back);
    tr_tokenizer_close(t);
}

/* The written tokenizer.json with one text replaced. */
static void edit(struct scratch *s, const char *file, const char *from, const char *to)
{
    char *text = NULL, path[TR_PATH_MAX];
    size_t n = 0;
    struct tr_str out = { 0 };
    assert_ok(tr_path_join(path, s->dir, file));
    assert_ok(tr_file_read(path, 1 << 20, &text, &n));
    char *at = strstr(text, from);
    if (!at)
        fail_msg("no %s in %s", from, file);
    tr_str_add(&out, text, (size_t)(at - text));
    tr_str_addf(&out, "%s%s", to, at + strlen(from));
    put_file(s, file, out.p, out.n);
    tr_str_release(&out);
    free(text);
}

static const char more_tokens[] =
    "\"added_tokens\": [{\"id\": 257, \"content\": \"<a>\", \"normalized\": false}, {\"id\": 258, \"content\": "
    "\"<a><b\", "
    "\"normalized\": false}, {\"id\": 259, \"content\": \"b<a\", \"normalized\": false}, ";

static void added_tokens_match_leftmost_longest_however_the_text_is_cut(void **state)
{
    static const char text[] = "x<a>b<a><b<a>b<|endoftext|><|endoftext";
    /* x, <a>, b<a, >, <, b<a, >, b, eos, then bytes */
    static const int32_t want[] = { 'x', 257, 259, '>', '<', 259, '>', 'b', 256, '<', '|', 'e' };
    struct scratch *s = *state;
    struct tr_tokenizer *t = NULL;
    struct tr_ids whole = { 0 };
    assert_ok(tr_tokenizer_write_bytes(s->dir));
    edit(s, "tokenizer.json", "\"added_tokens\": [", more_tokens);
    assert_ok(tr_tokenizer_open(s->dir, &t));
    assert_ok(tr_tokenizer_encode(t, text, sizeof text - 1, &whole));
    assert_memory_equal(whole.p, want, sizeof want);
    for (size_t from = 0; from < sizeof text; from++) {
        struct tr_ids parts = { 0 };
        size_t cut = tr_tokenizer_cut(t, text, sizeof text - 1, from);
        assert_ok(tr_tokenizer_encode_part(t, text, cut, true, &parts));
        assert_ok(tr_tokenizer_encode_part(t, text + cut, sizeof text - 1 - cut, false, &parts));
        assert_int_equal(parts.n, whole.n);
        assert_memory_equal(parts.p, whole.p, whole.n * sizeof *whole.p);
        tr_ids_release(&parts);
    }
    tr_ids_release(&whole);
    tr_tokenizer_close(t);
}

static void eos_comes_from_tokenizer_config_then_model_config(void **state)
{
    struct scratch *s = *state;
    struct tr_tokenizer *t = NULL;
    assert_ok(tr_tokenizer_write_bytes(s->dir));
    edit(s, "tokenizer_config.json", "\"eos_token\": \"<|endoftext|>\"",
         "\"eos_token\": {\"content\": \"<|endoftext|>\"}");
    assert_ok(tr_tokenizer_open(s->dir, &t));
    assert_int_equal(tr_tokenizer_eos(t), 256);
    tr_tokenizer_close(t);
    edit(s, "tokenizer_config.json", "\"eos_token\": {\"content\": \"<|endoftext|>\"}", "\"eos_token\": null");
    assert_ok(tr_tokenizer_open(s->dir, &t));
    assert_int_equal(tr_tokenizer_eos(t), -1);
    tr_tokenizer_close(t);
    put_text(s, "config.json", "{\"eos_token_id\": [256, 3]}");
    assert_ok(tr_tokenizer_open(s->dir, &t));
    assert_int_equal(tr_tokenizer_eos(t), 256);
    tr_tokenizer_close(t);
    put_text(s, "config.json", "{\"eos_token_id\": 900}");
    assert_refused(tr_tokenizer_open(s->dir, &t), TR_USAGE, "eos_token_id 900");
}

static void hash_follows_what_the_tokenizer_does(void **state)
{
    struct scratch *s = *state;
    struct tr_tokenizer *a = byte_tokenizer(s), *b = NULL, *c = NULL;
    edit(s, "tokenizer.json", "\"version\": \"1.0\",", "\"version\":    \"1.0\",");
    assert_ok(tr_tokenizer_open(s->dir, &b));
    edit(s, "tokenizer.json", "\"a\": 97, ", "\"a\": 400, ");
    assert_ok(tr_tokenizer_open(s->dir, &c));
    assert_true(tr_hash_eq(tr_tokenizer_hash(a), tr_tokenizer_hash(b)));
    assert_false(tr_hash_eq(tr_tokenizer_hash(a), tr_tokenizer_hash(c)));
    tr_tokenizer_close(a);
    tr_tokenizer_close(b);
    tr_tokenizer_close(c);
}

static const char small_vocab[] = "{\"<s>\": 0, \"ab\": 1, \"abc\": 2, \"</s>\": 3";

/* vocab.json with every byte character and a few more, as GPT-2's and OPT's directories have it. */
static void put_old_files(struct scratch *s, const char *merges)
{
    struct tr_str v = { 0 };
    tr_str_addf(&v, "%s", small_vocab);
    for (unsigned b = 0; b < 256; b++) {
        char u[5] = { 0 };
        tr_utf8_put(tr_tok_byte_char(b), u);
        tr_str_addf(&v, ", ");
        tr_str_json(&v, u);
        tr_str_addf(&v, ": %u", b + 10);
    }
    tr_str_addf(&v, "}");
    put_file(s, "vocab.json", v.p, v.n);
    put_text(s, "merges.txt", merges);
    tr_str_release(&v);
}

static void vocab_and_merges_are_read_where_there_is_no_tokenizer_json(void **state)
{
    struct scratch *s = *state;
    struct tr_tokenizer *t = NULL;
    struct tr_tok_encoder *e = NULL;
    struct tr_ids ids = { 0 };
    put_old_files(s, "#version: 0.2\na b\r\nab c\n");
    put_text(s, "special_tokens_map.json", "{\"eos_token\": \"</s>\", \"pad_token\": {\"content\": \"<pad>\"}}");
    put_text(s, "tokenizer_config.json", "{\"bos_token\": \"<s>\", \"add_bos_token\": true}");
    assert_ok(tr_tokenizer_open(s->dir, &t));
    assert_int_equal(tr_tokenizer_eos(t), 3);
    assert_int_equal(tr_tokenizer_bos(t), 0);
    assert_int_equal(tr_tokenizer_find(t, "<pad>"), 260); /* the next free one */
    assert_true(t->added[t->added_of_id[260]].is_special);
    assert_ok(tr_tok_encoder_open(t, &e));
    assert_ok(tr_tok_encoder_encode(e, "abcab</s>a<pad>", 15, true, &ids));
    static const int32_t want[] = { 0, 2, 1, 3, 'a' + 10, 260 };
    assert_int_equal(ids.n, TR_COUNT_OF(want));
    assert_memory_equal(ids.p, want, sizeof want);
    tr_ids_release(&ids);
    tr_tok_encoder_close(e);
    tr_tokenizer_close(t);
    put_old_files(s, "a b\nab z q\n");
    assert_refused(tr_tokenizer_open(s->dir, &t), TR_USAGE, "merge 1 is not two tokens");
    put_old_files(s, "a b\nab z\n");
    assert_refused(tr_tokenizer_open(s->dir, &t), TR_USAGE, "\"abz\" is not in model.vocab");
}

static void config_overrides_the_prefix_space_of_a_byte_level_pre_tokenizer(void **state)
{
    struct scratch *s = *state;
    struct tr_tokenizer *t = NULL;
    struct tr_ids ids = { 0 };
    assert_ok(tr_tokenizer_write_bytes(s->dir));
    edit(s, "tokenizer_config.json", "{", "{\"add_prefix_space\": true, ");
    assert_ok(tr_tokenizer_open(s->dir, &t));
    assert_ok(tr_tokenizer_encode(t, "a", 1, &ids));
    assert_int_equal(ids.n, 2);
    assert_int_equal(ids.p[0], ' ');
    tr_ids_release(&ids);
    tr_tokenizer_close(t);
}

enum { N_THREADS = 4, N_TEXTS = 200 };

struct job {
    const struct tr_tokenizer *t;
    uint64_t sum;
};

/* Texts that no two threads meet in the same order; the sum must not know. */
static void *encode_many(void *arg)
{
    struct job *job = arg;
    for (uint64_t k = 0; k < N_TEXTS; k++) {
        struct tr_ids ids = { 0 };
        char text[64];
        int n = snprintf(text, sizeof text, "abcab %d aabbcc\n<s>x%d", (int)(k * 7919 % 1000), (int)k);
        if (tr_tokenizer_encode(job->t, text, (size_t)n, &ids) != TR_OK)
            return "encode failed";
        for (size_t i = 0; i < ids.n; i++)
            job->sum = job->sum * 31 + (uint64_t)ids.p[i];
        tr_ids_release(&ids);
    }
    return NULL;
}

static void threads_share_one_tokenizer(void **state)
{
    struct scratch *s = *state;
    struct tr_tokenizer *t = NULL;
    pthread_t threads[N_THREADS];
    struct job jobs[N_THREADS + 1] = { 0 };
    void *failed = NULL;
    put_old_files(s, "a b\nab c\n");
    put_text(s, "special_tokens_map.json", "{\"bos_token\": \"<s>\"}");
    assert_ok(tr_tokenizer_open(s->dir, &t));
    for (int i = 0; i <= N_THREADS; i++)
        jobs[i].t = t;
    for (int i = 0; i < N_THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, encode_many, &jobs[i]), 0);
    assert_null(encode_many(&jobs[N_THREADS]));
    for (int i = 0; i < N_THREADS; i++) {
        assert_int_equal(pthread_join(threads[i], &failed), 0);
        assert_null(failed);
        assert_true(jobs[i].sum == jobs[N_THREADS].sum);
    }
    tr_tokenizer_close(t);
}

static void a_stream_waits_for_the_rest_of_a_character(void **state)
{
    struct tr_tokenizer *t = byte_tokenizer(*state);
    struct tr_tok_stream *s = NULL;
    struct tr_str out = { 0 };
    static const char text[] = "a\xE4\xB8\xAD\xF0\x9F\x98\x80";
    static const size_t n_out[] = { 1, 1, 1, 4, 4, 4, 4, 8 };
    assert_ok(tr_tok_stream_open(t, false, &s));
    for (size_t i = 0; i < sizeof text - 1; i++) {
        assert_ok(tr_tok_stream_add(s, (unsigned char)text[i], &out));
        assert_int_equal(out.n, n_out[i]);
    }
    assert_string_equal(out.p, text);
    assert_ok(tr_tok_stream_add(s, 0xE4, &out)); /* the other half never comes */
    assert_int_equal(out.n, 8);
    assert_ok(tr_tok_stream_end(s, &out));
    assert_int_equal(out.n, 9);
    for (int i = 0; i < 100; i++) /* and bytes that are none do not pile up */
        assert_ok(tr_tok_stream_add(s, 0x80, &out));
    assert_true(out.n >= 9 + 90);
    assert_refused(tr_tok_stream_add(s, 999, &out), TR_USAGE, "999");
    tr_tok_stream_close(s);
    tr_str_release(&out);
    tr_tokenizer_close(t);
}

#define T(f) cmocka_unit_test_setup_teardown(f, scratch_setup, scratch_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_to_unicode_table_is_gpt2s),
        T(byte_tokenizer_round_trips_every_byte),
        T(added_tokens_match_leftmost_longest_however_the_text_is_cut),
        T(eos_comes_from_tokenizer_config_then_model_config),
        T(hash_follows_what_the_tokenizer_does),
        T(vocab_and_merges_are_read_where_there_is_no_tokenizer_json),
        T(config_overrides_the_prefix_space_of_a_byte_level_pre_tokenizer),
        T(threads_share_one_tokenizer),
        T(a_stream_waits_for_the_rest_of_a_character),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
