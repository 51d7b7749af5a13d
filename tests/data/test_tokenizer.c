/* test_tokenizer.c - the byte tokenizer, added tokens, and files that must be refused by the name of the feature. */
#include "data/data_test.h"
#include "data/tokenizer_impl.h"

static void bytes_to_unicode_table_is_gpt2s(void **state)
{
    (void)state;
    /* Rebuilt the way GPT-2 does it: printable bytes as they are, the others numbered from 256 in order. */
    uint32_t next = 256;
    for (unsigned b = 0; b < 256; b++) {
        bool is_printable = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || (b >= 0xAE && b <= 0xFF);
        assert_int_equal(tr_byte_char(b), is_printable ? b : next++);
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
    "\"added_tokens\": [{\"id\": 300, \"content\": \"<a>\", \"normalized\": false}, {\"id\": 301, \"content\": "
    "\"<a><b\", "
    "\"normalized\": false}, {\"id\": 302, \"content\": \"b<a\", \"normalized\": false}, ";

static void added_tokens_match_leftmost_longest_however_the_text_is_cut(void **state)
{
    static const char text[] = "x<a>b<a><b<a>b<|endoftext|><|endoftext";
    /* x, <a>, b<a, >, <, b<a, >, b, eos, then bytes */
    static const int32_t want[] = { 'x', 300, 302, '>', '<', 302, '>', 'b', 256, '<', '|', 'e' };
    struct scratch *s = *state;
    struct tr_tokenizer *t = NULL;
    struct tr_ids whole = { 0 };
    assert_ok(tr_tokenizer_write_bytes(s->dir));
    edit(s, "tokenizer.json", "\"added_tokens\": [", more_tokens);
    assert_ok(tr_tokenizer_open(s->dir, &t));
    assert_ok(tr_tokenizer_encode(t, text, sizeof text - 1, &whole));
    assert_memory_equal(whole.p, want, sizeof want);
    for (size_t cut = 0; cut < sizeof text; cut++) {
        struct tr_ids parts = { 0 };
        size_t n_used = 0, n_rest = 0;
        assert_ok(tr_tokenizer_encode_part(t, text, cut, false, &parts, &n_used));
        assert_true(n_used <= cut);
        assert_ok(tr_tokenizer_encode_part(t, text + n_used, sizeof text - 1 - n_used, true, &parts, &n_rest));
        assert_int_equal(n_used + n_rest, sizeof text - 1);
        assert_int_equal(parts.n, whole.n);
        assert_memory_equal(parts.p, whole.p, whole.n * sizeof *whole.p);
        tr_ids_release(&parts);
    }
    tr_ids_release(&whole);
    tr_tokenizer_close(t);
}

static void unsupported_features_are_refused_by_name(void **state)
{
    static const struct {
        const char *file, *from, *to, *says;
    } cases[] = {
        { "tokenizer.json", "\"merges\": []", "\"merges\": [\"a b\", \"c d\"]", "model.merges has 2 entries" },
        { "tokenizer.json", "\"type\": \"BPE\"", "\"type\": \"Unigram\"", "model.type \"Unigram\"" },
        { "tokenizer.json", "\"type\": \"BPE\", ", "", "\"type\" is missing" },
        { "tokenizer.json", "\"normalizer\": null", "\"normalizer\": {\"type\": \"NFC\"}", "a normalizer" },
        { "tokenizer.json", "\"padding\": null", "\"padding\": {}", "a padding" },
        { "tokenizer.json", "\"pre_tokenizer\": {\"type\": \"ByteLevel\"",
          "\"pre_tokenizer\": {\"type\": \"Metaspace\"", "pre_tokenizer \"Metaspace\"" },
        { "tokenizer.json", "\"add_prefix_space\": false", "\"add_prefix_space\": true", "add_prefix_space" },
        { "tokenizer.json", "\"post_processor\": {\"type\": \"ByteLevel\"",
          "\"post_processor\": {\"type\": \"TemplateProcessing\"", "post_processor \"TemplateProcessing\"" },
        { "tokenizer.json", "\"dropout\": null", "\"dropout\": 0.1", "model.dropout 0.1" },
        { "tokenizer.json", "\"end_of_word_suffix\": null", "\"end_of_word_suffix\": \"</w>\"", "end_of_word_suffix" },
        { "tokenizer.json", "\"a\": 97, ", "\"a\": 97, \"ab\": 300, ", "entry \"ab\"" },
        { "tokenizer.json", "\"a\": 97, ", "", "no entry for byte 97" },
        { "tokenizer.json", "\"a\": 97, ", "\"a\": 98, ", "id 98 is given twice" },
        { "tokenizer.json", "\"a\": 97, ", "\"a\": 97.5, ", "not a whole number" },
        { "tokenizer.json", "\"a\": 97, ", "\"a\": -1, ", "not a whole number" },
        { "tokenizer.json", "\"a\": 97, ", "\"a\": 1e300, ", "not a whole number" },
        { "tokenizer.json", "\"lstrip\": false", "\"lstrip\": true", "lstrip" },
        { "tokenizer.json", "\"added_tokens\": [",
          "\"added_tokens\": [{\"id\": 300, \"content\": \"<a>\", \"normalized\": true}, ", "mix normalized" },
        { "tokenizer.json", "{\"id\": 256", "{\"id\": 299", "neither a byte character nor an added token" },
        { "tokenizer_config.json", "\"eos_token\": \"<|endoftext|>\"", "\"eos_token\": \"</s>\"",
          "eos_token \"</s>\"" },
        { "tokenizer_config.json", "{", "{\"add_bos_token\": true, ", "add_bos_token" },
    };
    struct scratch *s = *state;
    for (size_t i = 0; i < TR_COUNT_OF(cases); i++) {
        struct tr_tokenizer *t = NULL;
        assert_ok(tr_tokenizer_write_bytes(s->dir));
        edit(s, cases[i].file, cases[i].from, cases[i].to);
        assert_refused(tr_tokenizer_open(s->dir, &t), TR_USAGE, cases[i].says);
        assert_null(t);
    }
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

#define T(f) cmocka_unit_test_setup_teardown(f, scratch_setup, scratch_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_to_unicode_table_is_gpt2s),
        T(byte_tokenizer_round_trips_every_byte),
        T(added_tokens_match_leftmost_longest_however_the_text_is_cut),
        T(unsupported_features_are_refused_by_name),
        T(eos_comes_from_tokenizer_config_then_model_config),
        T(hash_follows_what_the_tokenizer_does),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
