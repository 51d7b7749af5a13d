/* token.h - room header of token: turns text into token ids and back, with the HF tokenizer files of a model directory.
 *
 * It reads tokenizer.json, or vocab.json and merges.txt; and for the special tokens tokenizer_config.json,
 * special_tokens_map.json and config.json. The models are BPE (byte-level, or on characters with byte fallback),
 * Unigram, WordPiece and WordLevel, with the normalizers, pre-tokenizers, post-processors and decoders of the
 * `tokenizers` library. The ids equal those of the library. A file that needs any other feature is refused with the
 * name of the feature, never approximated, because a nearly right tokenizer trains a wrong model. "truncation" and
 * "padding" are not applied, as in transformers' tok(text).
 */
#ifndef TR_TOKEN_TOKEN_H
#define TR_TOKEN_TOKEN_H

#include "base/base.h"
#include "token/utf8.h"

/* A growing vector of ids; {0} is empty. */
struct tr_ids {
    int32_t *p;
    size_t n, n_cap;
};
void tr_ids_release(struct tr_ids *v);
enum tr_status tr_ids_add(struct tr_ids *v, int32_t id);

/* Const after it is opened: any number of threads may use one tokenizer at the same time. */
struct tr_tokenizer;

enum tr_status tr_tokenizer_open(const char *model_dir, struct tr_tokenizer **out);
void tr_tokenizer_close(struct tr_tokenizer *t);

int32_t tr_tokenizer_eos(const struct tr_tokenizer *t);                     /* -1: the model has none */
int32_t tr_tokenizer_bos(const struct tr_tokenizer *t);                     /* -1: the model has none */
int64_t tr_tokenizer_vocab_size(const struct tr_tokenizer *t);              /* largest id + 1 */
int32_t tr_tokenizer_find(const struct tr_tokenizer *t, const char *token); /* the id of a token's text, or -1 */
/* The hash of what the tokenizer does, not of the bytes of its file. Tokenizers with equal hashes give equal ids for
 * every text. */
struct tr_hash128 tr_tokenizer_hash(const struct tr_tokenizer *t);
/* The ids that the post-processor puts before and after a text (add_special_tokens=True). They live as long as t. */
const struct tr_ids *tr_tokenizer_before(const struct tr_tokenizer *t);
const struct tr_ids *tr_tokenizer_after(const struct tr_tokenizer *t);

/* Appends the ids of the text (UTF-8). Added tokens are recognised, and nothing is put before or after the text:
 * transformers' tok(text, add_special_tokens=False). Bytes that are not UTF-8 count as U+FFFD, but a byte-level
 * tokenizer without a normalizer encodes them unchanged. */
enum tr_status tr_tokenizer_encode(const struct tr_tokenizer *t, const char *text, size_t n, struct tr_ids *out);
/* The first place inside the text, at or after `from`, where the text may be cut; n: there is none. The ids of the
 * parts between such places are together the ids of the whole text, even if the text continues after n. */
size_t tr_tokenizer_cut(const struct tr_tokenizer *t, const char *text, size_t n, size_t from);
/* Encodes a part that ends at such a place or at the end of the text. is_first: the text begins with this part. */
enum tr_status tr_tokenizer_encode_part(const struct tr_tokenizer *t, const char *text, size_t n, bool is_first,
                                        struct tr_ids *out);

/* The working memory and the word cache of one thread, for callers that encode many texts. tr_tokenizer_encode()
 * borrows one. */
struct tr_tok_encoder;
enum tr_status tr_tok_encoder_open(const struct tr_tokenizer *t, struct tr_tok_encoder **out);
void tr_tok_encoder_close(struct tr_tok_encoder *e);
enum tr_status tr_tok_encoder_encode(struct tr_tok_encoder *e, const char *text, size_t n, bool add_special,
                                     struct tr_ids *out);

/* Appends the text of the ids. A byte-level decoder returns bytes, which are not valid UTF-8 when the ids end inside a
 * character. An unknown id is TR_USAGE. tr_tokenizer_decode() keeps special tokens. */
enum tr_status tr_tokenizer_decode(const struct tr_tokenizer *t, const int32_t *ids, size_t n, struct tr_str *out);
enum tr_status tr_tokenizer_decode_text(const struct tr_tokenizer *t, const int32_t *ids, size_t n, bool skip_special,
                                        struct tr_str *out);

/* Decodes ids one by one into whole characters: bytes of an incomplete character are held back until the rest arrives.
 * tr_tok_stream_end() appends what is still held back. */
struct tr_tok_stream;
enum tr_status tr_tok_stream_open(const struct tr_tokenizer *t, bool skip_special, struct tr_tok_stream **out);
void tr_tok_stream_close(struct tr_tok_stream *s);
enum tr_status tr_tok_stream_add(struct tr_tok_stream *s, int32_t id, struct tr_str *out);
enum tr_status tr_tok_stream_end(struct tr_tok_stream *s, struct tr_str *out);

/* For a program that writes the tokenizer in another format (describe.c). */
enum tr_token_kind {
    TR_TOKEN_NONE, /* no token has the id */
    TR_TOKEN_NORMAL,
    TR_TOKEN_UNKNOWN,
    TR_TOKEN_SPECIAL, /* an added token that is special, */
    TR_TOKEN_ADDED,   /* and one that is not */
    TR_TOKEN_BYTE,    /* "<0x0A>" of a model with byte fallback */
};
/* The text is as the file has it: a byte-level model writes bytes as byte characters. It lives as long as t. */
enum tr_token_kind tr_tokenizer_token(const struct tr_tokenizer *t, int32_t id, const char **text, size_t *n);
struct tr_token_merge {
    int32_t left, right, made;
};
/* The merges of BPE, first to last; the caller frees the list. */
enum tr_status tr_tokenizer_merges(const struct tr_tokenizer *t, struct tr_token_merge **out, size_t *n);
struct tr_tokenizer_text {
    bool is_bpe, is_byte_level, has_byte_fallback, ignores_merges;
    struct tr_str steps; /* normalizer and pre-tokenizer, a line for each step; the caller releases it */
};
enum tr_status tr_tokenizer_describe(const struct tr_tokenizer *t, struct tr_tokenizer_text *out);

/* Writes tokenizer.json, tokenizer_config.json and special_tokens_map.json of the byte tokenizer into a directory:
 * byte b is id b, and <|endoftext|> is 256. AutoTokenizer of transformers loads these files and gives the same ids. */
enum tr_status tr_tokenizer_write_bytes(const char *dir);

#endif
