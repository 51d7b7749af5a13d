/* bytes.c - writes the byte tokenizer as an HF directory: byte b is id b, <|endoftext|> is 256.
 *
 * tokenizer_class is PreTrainedTokenizerFast, so that transformers uses tokenizer.json unchanged.
 */
#include "token/token_impl.h"

static const char eos_text[] = "<|endoftext|>";

/* Writes a byte character as a JSON string. All byte characters are below U+0800. */
static void add_byte_char(struct tr_str *s, unsigned b)
{
    uint32_t c = tr_tok_byte_char(b);
    char u[3] = { (char)c, 0, 0 };
    if (c >= 0x80) {
        u[0] = (char)(0xC0u | c >> 6);
        u[1] = (char)(0x80u | (c & 0x3Fu));
    }
    tr_str_json(s, u);
}

static void write_tokenizer(struct tr_str *s)
{
    tr_str_addf(s,
                "{\"version\": \"1.0\", \"truncation\": null, \"padding\": null,\n"
                " \"added_tokens\": [{\"id\": %d, \"content\": \"%s\", \"single_word\": false, \"lstrip\": false,"
                " \"rstrip\": false, \"normalized\": false, \"special\": true}],\n"
                " \"normalizer\": null,\n",
                TR_TOK_BYTES, eos_text);
    static const char *const stages[] = { "pre_tokenizer", "post_processor", "decoder" };
    for (size_t i = 0; i < TR_COUNT_OF(stages); i++)
        tr_str_addf(s,
                    " \"%s\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true,"
                    " \"use_regex\": true},\n",
                    stages[i]);
    tr_str_addf(s, " \"model\": {\"type\": \"BPE\", \"dropout\": null, \"unk_token\": null,"
                   " \"continuing_subword_prefix\": null, \"end_of_word_suffix\": null, \"fuse_unk\": false,"
                   " \"byte_fallback\": false, \"ignore_merges\": false, \"vocab\": {");
    for (unsigned b = 0; b < TR_TOK_BYTES; b++) {
        add_byte_char(s, b);
        tr_str_addf(s, ": %u, ", b);
    }
    tr_str_addf(s, "\"%s\": %d}, \"merges\": []}}\n", eos_text, TR_TOK_BYTES);
}

static void write_config(struct tr_str *s)
{
    tr_str_addf(s,
                "{\"tokenizer_class\": \"PreTrainedTokenizerFast\", \"clean_up_tokenization_spaces\": false,\n"
                " \"bos_token\": \"%s\", \"eos_token\": \"%s\", \"pad_token\": \"%s\",\n"
                " \"model_max_length\": 1000000000000000019884624838656}\n",
                eos_text, eos_text, eos_text);
}

static void write_special(struct tr_str *s)
{
    tr_str_addf(s, "{\"bos_token\": \"%s\", \"eos_token\": \"%s\", \"pad_token\": \"%s\"}\n", eos_text, eos_text,
                eos_text);
}

enum tr_status tr_tokenizer_write_bytes(const char *dir)
{
    static const struct {
        const char *name;
        void (*write)(struct tr_str *s);
    } files[] = {
        { "tokenizer.json", write_tokenizer },
        { "tokenizer_config.json", write_config },
        { "special_tokens_map.json", write_special },
    };
    enum tr_status st = TR_OK;
    struct tr_str s = { 0 };
    for (size_t i = 0; i < TR_COUNT_OF(files); i++) {
        tr_str_clear(&s);
        files[i].write(&s);
        TR_TRY(tr_str_check(&s, "%s", files[i].name));
        TR_TRY(tr_out_write(dir, files[i].name, s.p, s.n));
    }
out:
    tr_str_release(&s);
    return st;
}
