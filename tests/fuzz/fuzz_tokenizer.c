/* fuzz_tokenizer.c - any tokenizer.json (the bytes up to the first 0xFF) on any text (the bytes behind it); without an
 * 0xFF the text goes through fixed tokenizers. An opened tokenizer encodes without error or refuses in one line, gives
 * the same ids in parts, and decodes and streams what it made to the same bytes. */
#include "token/token.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static char dir[64];

static void remove_dir(void)
{
    (void)tr_remove_tree(dir);
}

static struct tr_tokenizer *open_json(const char *text, size_t n)
{
    char path[TR_PATH_MAX];
    struct tr_tokenizer *t = NULL;
    if (!*dir) {
        (void)tr_format(dir, sizeof dir, "/tmp/fuzz-tokenizer-%d", (int)getpid());
        TR_BUG_ON(tr_mkdirs(dir) != TR_OK);
        atexit(remove_dir);
    }
    TR_BUG_ON(tr_path_join(path, dir, "tokenizer.json") != TR_OK);
    FILE *f = fopen(path, "wb");
    TR_BUG_ON(!f || fwrite(text, 1, n, f) != n || fclose(f) != 0);
    if (tr_tokenizer_open(dir, &t) != TR_OK)
        TR_BUG_ON(t || strchr(tr_error_text(), '\n'));
    return t;
}

static void check_parts(const struct tr_tokenizer *t, const char *p, size_t n, const struct tr_ids *whole)
{
    struct tr_ids ids = { 0 };
    size_t cut = tr_tokenizer_cut(t, p, n, n / 2);
    TR_BUG_ON(tr_tokenizer_encode_part(t, p, cut, true, &ids) != TR_OK || cut > n);
    TR_BUG_ON(tr_tokenizer_encode_part(t, p + cut, n - cut, false, &ids) != TR_OK);
    TR_BUG_ON(ids.n != whole->n || (ids.n && memcmp(ids.p, whole->p, ids.n * sizeof *ids.p) != 0));
    tr_ids_release(&ids);
}

static void check_stream(const struct tr_tokenizer *t, const struct tr_ids *ids)
{
    struct tr_tok_stream *s = NULL;
    struct tr_str out = { 0 };
    TR_BUG_ON(tr_tok_stream_open(t, true, &s) != TR_OK);
    for (size_t i = 0; i < ids->n && i < 256; i++)
        if (tr_tok_stream_add(s, ids->p[i], &out) != TR_OK)
            break; /* a slow pattern of a decoder */
    (void)tr_tok_stream_end(s, &out);
    tr_tok_stream_close(s);
    tr_str_release(&out);
}

static void check(const struct tr_tokenizer *t, const char *p, size_t n)
{
    struct tr_ids ids = { 0 };
    struct tr_str text = { 0 };
    if (tr_tokenizer_encode(t, p, n, &ids) == TR_OK) {
        for (size_t i = 0; i < ids.n; i++)
            TR_BUG_ON(ids.p[i] < 0 || ids.p[i] >= tr_tokenizer_vocab_size(t));
        check_parts(t, p, n, &ids);
        (void)tr_tokenizer_decode(t, ids.p, ids.n, &text);
        check_stream(t, &ids);
    }
    tr_ids_release(&ids);
    tr_str_release(&text);
}

#define PIECES "\"<unk>\", -9], [\"\\u2581\", -2], [\"a\", -1], [\"\\u2581a\", -1.5], [\"b\", -3], [\"ab\", -2.5"
static const char *const fixed[] = {
    "{\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"NFKC\"}, {\"type\": \"Lowercase\"}]},"
    "\"pre_tokenizer\": {\"type\": \"Metaspace\", \"replacement\": \"\\u2581\", \"prepend_scheme\": \"first\"},"
    "\"decoder\": {\"type\": \"Metaspace\", \"replacement\": \"\\u2581\"},"
    "\"model\": {\"type\": \"Unigram\", \"unk_id\": 0, \"vocab\": [[" PIECES "]]}}",
    "{\"added_tokens\": [{\"id\": 5, \"content\": \"<s>\", \"lstrip\": true, \"rstrip\": true}],"
    "\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"Prepend\", \"prepend\": \"\\u2581\"},"
    "{\"type\": \"NFD\"}, {\"type\": \"Replace\", \"pattern\": {\"String\": \" \"}, \"content\": \"\\u2581\"}]},"
    "\"model\": {\"type\": \"BPE\", \"unk_token\": \"?\", \"vocab\": {\"?\": 0, \"a\": 1, \"b\": 2, \"ab\": 3,"
    "\"\\u2581\": 4}, \"merges\": [\"a b\"]}}",
    "{\"normalizer\": {\"type\": \"BertNormalizer\", \"clean_text\": true, \"handle_chinese_chars\": true,"
    "\"strip_accents\": null, \"lowercase\": true}, \"pre_tokenizer\": {\"type\": \"BertPreTokenizer\"},"
    "\"decoder\": {\"type\": \"WordPiece\", \"prefix\": \"##\", \"cleanup\": true}, \"model\": {\"type\": "
    "\"WordPiece\","
    "\"unk_token\": \"?\", \"continuing_subword_prefix\": \"##\", \"max_input_chars_per_word\": 9,"
    "\"vocab\": {\"?\": 0, \"a\": 1, \"##b\": 2, \"##a\": 3, \"ab\": 4}}}",
    "{\"normalizer\": {\"type\": \"NFC\"}, \"pre_tokenizer\": {\"type\": \"Split\", \"behavior\": \"Isolated\","
    "\"invert\": false, \"pattern\": {\"Regex\": "
    "\"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|"
    "\\\\p{N}{1,3}| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+\"}},"
    "\"model\": {\"type\": \"WordLevel\", \"unk_token\": \"?\", \"vocab\": {\"?\": 0, \" a\": 1}}}",
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static struct tr_tokenizer *ready[TR_COUNT_OF(fixed)];
    const uint8_t *end = memchr(data, 0xFF, n);
    const char *text = (const char *)data;
    if (end) {
        size_t n_json = (size_t)(end - data);
        struct tr_tokenizer *t = open_json(text, n_json);
        if (t)
            check(t, text + n_json + 1, n - n_json - 1);
        tr_tokenizer_close(t);
        return 0;
    }
    for (size_t i = 0; i < TR_COUNT_OF(fixed); i++) {
        if (!ready[i])
            ready[i] = open_json(fixed[i], strlen(fixed[i]));
        TR_BUG_ON(!ready[i]);
        check(ready[i], text, n);
    }
    return 0;
}
