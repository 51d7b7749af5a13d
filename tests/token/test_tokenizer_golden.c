/* test_tokenizer_golden.c - small tokenizers of every family against what the tokenizers library says of them.
 *
 * tests/golden/tokenizers/make_tokenizers.py wrote the files. Every text is encoded whole, in two parts at every cut,
 * and through the stream. A text that came in parts must have the ids of the whole: parts are how large files are read.
 */
#include "token/token_test.h"
#include "token/token.h"

#include <cjson/cJSON.h>

static const char *const names[] = { "bert",    "cl100k", "clip",   "deepseek", "falcon",  "flags",   "gemma",
                                     "gpt2",    "llama2", "llama3", "mistral",  "o200k",   "pcre",    "qwen",
                                     "roberta", "smollm", "t5",     "tekken",   "unigram", "unknown", "words" };

static cJSON *load(const char *a, const char *b)
{
    char path[TR_PATH_MAX];
    cJSON *x = NULL;
    assert_ok(tr_format(path, sizeof path, "%s/tests/golden/tokenizers/%s%s", TR_SOURCE_DIR, a, b));
    assert_ok(tr_json_load(path, 1 << 22, &x));
    return x;
}

static void assert_ids(const char *what, const char *text, const struct tr_ids *got, const cJSON *want)
{
    size_t i = 0;
    const cJSON *x;
    cJSON_ArrayForEach(x, want)
    {
        if (i >= got->n || got->p[i] != (int32_t)x->valuedouble)
            fail_msg("%s: \"%s\": id %zu is %d, the library's is %.0f", what, text, i, i < got->n ? got->p[i] : -1,
                     x->valuedouble);
        i++;
    }
    if (i != got->n)
        fail_msg("%s: \"%s\": %zu ids, the library has %zu", what, text, got->n, i);
}

/* Cutting a byte-level character leaves bytes where the library has U+FFFD, but no whole text ends in half of one. */
static void assert_text(const char *what, const char *text, const struct tr_str *got, const cJSON *want)
{
    const char *expected = cJSON_IsNull(want) ? text : want->valuestring;
    if (strlen(expected) != got->n || memcmp(expected, got->p ? got->p : "", got->n) != 0)
        fail_msg("%s: \"%s\" decodes to \"%s\", the library's is \"%s\"", what, text, got->p ? got->p : "", expected);
}

typedef void case_fn(const struct tr_tokenizer *t, const char *name, const char *text, const cJSON *one);

static void for_every_case(case_fn *fn)
{
    cJSON *texts = load("texts.json", "");
    for (size_t i = 0; i < TR_COUNT_OF(names); i++) {
        struct tr_tokenizer *t = open_golden(names[i]);
        cJSON *cases = load(names[i], "/cases.json");
        const cJSON *text = texts->child, *one = cases->child;
        assert_int_equal(cJSON_GetArraySize(texts), cJSON_GetArraySize(cases));
        for (; text; text = text->next, one = one->next)
            fn(t, names[i], text->valuestring, one);
        cJSON_Delete(cases);
        tr_tokenizer_close(t);
    }
    cJSON_Delete(texts);
}

static void check_whole(const struct tr_tokenizer *t, const char *name, const char *text, const cJSON *one)
{
    struct tr_ids ids = { 0 }, special = { 0 };
    struct tr_str back = { 0 }, brief = { 0 };
    struct tr_tok_encoder *e = NULL;
    const cJSON *want = one->child, *n_special = want->next, *decoded = n_special->next, *skipped = decoded->next;
    assert_ok(tr_tokenizer_encode(t, text, strlen(text), &ids));
    assert_ids(name, text, &ids, want);
    assert_ok(tr_tok_encoder_open(t, &e));
    assert_ok(tr_tok_encoder_encode(e, text, strlen(text), true, &special));
    assert_int_equal(special.n, (size_t)n_special->valuedouble);
    assert_int_equal(special.n, ids.n + tr_tokenizer_before(t)->n + tr_tokenizer_after(t)->n);
    assert_ok(tr_tokenizer_decode(t, ids.p, ids.n, &back));
    assert_text(name, text, &back, decoded);
    assert_ok(tr_tokenizer_decode_text(t, special.p, special.n, true, &brief));
    assert_text(name, text, &brief, skipped);
    tr_tok_encoder_close(e);
    tr_ids_release(&ids);
    tr_ids_release(&special);
    tr_str_release(&back);
    tr_str_release(&brief);
}

static void ids_and_texts_are_the_librarys(void **state)
{
    (void)state;
    for_every_case(check_whole);
}

static void check_parts(const struct tr_tokenizer *t, const char *name, const char *text, const cJSON *one)
{
    size_t n = strlen(text);
    for (size_t from = 0; from <= n; from += n > 300 ? 7 : 1) {
        struct tr_ids ids = { 0 };
        size_t cut = tr_tokenizer_cut(t, text, n, from);
        assert_in_range(cut, from, n);
        assert_ok(tr_tokenizer_encode_part(t, text, cut, true, &ids));
        assert_ok(tr_tokenizer_encode_part(t, text + cut, n - cut, false, &ids));
        assert_ids(name, text, &ids, one->child);
        tr_ids_release(&ids);
    }
}

static void a_text_in_two_parts_has_the_ids_of_the_whole(void **state)
{
    (void)state;
    for_every_case(check_parts);
}

static void check_stream(const struct tr_tokenizer *t, const char *name, const char *text, const cJSON *one)
{
    struct tr_ids ids = { 0 };
    struct tr_str out = { 0 }, whole = { 0 };
    struct tr_tok_stream *s = NULL;
    (void)one;
    assert_ok(tr_tokenizer_encode(t, text, strlen(text), &ids));
    assert_ok(tr_tokenizer_decode(t, ids.p, ids.n, &whole));
    assert_ok(tr_tok_stream_open(t, false, &s));
    for (size_t i = 0; i < ids.n; i++) {
        size_t before = out.n;
        assert_ok(tr_tok_stream_add(s, ids.p[i], &out));
        for (size_t k = before, len; k < out.n; k += len)
            if ((len = tr_utf8_len(out.p + k, out.n - k)) == 0)
                fail_msg("%s: \"%s\": a character was cut after %zu ids", name, text, i + 1);
    }
    assert_ok(tr_tok_stream_end(s, &out));
    if (out.n != whole.n || (out.n && memcmp(out.p, whole.p, out.n) != 0))
        fail_msg("%s: \"%s\" streams as \"%s\", decodes as \"%s\"", name, text, out.p ? out.p : "",
                 whole.p ? whole.p : "");
    tr_tok_stream_close(s);
    tr_ids_release(&ids);
    tr_str_release(&out);
    tr_str_release(&whole);
}

static void a_stream_gives_the_same_text_in_whole_characters(void **state)
{
    (void)state;
    for_every_case(check_stream);
}

/* Those whose patterns, strips or merges across spaces leave no place to cut. */
static bool is_never_cut(const char *name)
{
    static const char *const whole[] = { "clip", "falcon", "flags", "pcre", "unigram" };
    for (size_t i = 0; i < TR_COUNT_OF(whole); i++)
        if (strcmp(whole[i], name) == 0)
            return true;
    return false;
}

static void long_texts_are_cut_into_chunks_without_changing_ids(void **state)
{
    (void)state;
    cJSON *texts = load("texts.json", "");
    struct tr_str all = { 0 };
    for (int k = 0; all.n < 200000; k++) {
        const cJSON *x;
        cJSON_ArrayForEach(x, texts) tr_str_addf(&all, "%s%s", x->valuestring, k % 3 ? " and so " : "\n");
    }
    for (size_t i = 0; i < TR_COUNT_OF(names); i++) {
        /* the parts of this size go through one chunk each, the whole through many */
        struct tr_tokenizer *t = open_golden(names[i]);
        struct tr_ids whole = { 0 }, parts = { 0 };
        size_t n_parts = 0;
        assert_ok(tr_tokenizer_encode(t, all.p, all.n, &whole));
        for (size_t from = 0, end; from < all.n; from = end, n_parts++) {
            end = tr_tokenizer_cut(t, all.p, all.n, from + 5000);
            assert_ok(tr_tokenizer_encode_part(t, all.p + from, end - from, from == 0, &parts));
        }
        if ((n_parts == 1) != is_never_cut(names[i]))
            fail_msg("%s: the text came in %zu parts", names[i], n_parts);
        if (whole.n != parts.n || memcmp(whole.p, parts.p, whole.n * sizeof *whole.p) != 0)
            fail_msg("%s: %zu ids whole, %zu in parts", names[i], whole.n, parts.n);
        tr_ids_release(&whole);
        tr_ids_release(&parts);
        tr_tokenizer_close(t);
    }
    tr_str_release(&all);
    cJSON_Delete(texts);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_and_texts_are_the_librarys),
        cmocka_unit_test(a_text_in_two_parts_has_the_ids_of_the_whole),
        cmocka_unit_test(a_stream_gives_the_same_text_in_whole_characters),
        cmocka_unit_test(long_texts_are_cut_into_chunks_without_changing_ids),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
