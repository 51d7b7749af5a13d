/* token.h - room header of token: text to token ids and back, as the HF tokenizer files of a model directory say.
 *
 * Reads tokenizer.json, or vocab.json and merges.txt; tokenizer_config.json, special_tokens_map.json and config.json
 * for the special tokens. BPE (byte-level, or on characters with byte fallback), Unigram, WordPiece and WordLevel, with
 * the `tokenizers` library's normalizers, pre-tokenizers, post-processors and decoders; ids are equal to the library's.
 * A file that asks for anything else is refused with the name of the feature, never approximated: a nearly right
 * tokenizer trains a wrong model. "truncation" and "padding" are not applied, as in transformers' tok(text).
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

/* Const once open: any number of threads may use one tokenizer at the same time. */
struct tr_tokenizer;

enum tr_status tr_tokenizer_open(const char *model_dir, struct tr_tokenizer **out);
void tr_tokenizer_close(struct tr_tokenizer *t);

int32_t tr_tokenizer_eos(const struct tr_tokenizer *t);                     /* -1: the model has none */
int32_t tr_tokenizer_bos(const struct tr_tokenizer *t);                     /* -1: the model has none */
int64_t tr_tokenizer_vocab_size(const struct tr_tokenizer *t);              /* largest id + 1 */
int32_t tr_tokenizer_find(const struct tr_tokenizer *t, const char *token); /* the id of a token's text, or -1 */
bool tr_tokenizer_is_special(const struct tr_tokenizer *t, int32_t id);
/* Of what the tokenizer does, not of its file's bytes: equal hash = equal ids for every text. */
struct tr_hash128 tr_tokenizer_hash(const struct tr_tokenizer *t);
/* What the post-processor puts in front of and behind a text (add_special_tokens=True). Live as long as t. */
const struct tr_ids *tr_tokenizer_before(const struct tr_tokenizer *t);
const struct tr_ids *tr_tokenizer_after(const struct tr_tokenizer *t);

/* Appends the ids of the text (UTF-8), added tokens recognised, nothing put in front or behind:
 * transformers' tok(text, add_special_tokens=False). Bytes that are not UTF-8 count as U+FFFD, except that a byte-level
 * tokenizer without a normalizer takes them as they are. */
enum tr_status tr_tokenizer_encode(const struct tr_tokenizer *t, const char *text, size_t n, struct tr_ids *out);
/* The first place at or after `from`, inside the text, where it may be cut; n: there is none. The ids of the parts
 * between such places, put together, are those of the whole text, also when it goes on behind n. */
size_t tr_tokenizer_cut(const struct tr_tokenizer *t, const char *text, size_t n, size_t from);
/* A part that ends at such a place or with the text. is_first: the text begins here. */
enum tr_status tr_tokenizer_encode_part(const struct tr_tokenizer *t, const char *text, size_t n, bool is_first,
                                        struct tr_ids *out);

/* One thread's working memory and cache of words, for whom encodes much; tr_tokenizer_encode() borrows one. */
struct tr_tok_encoder;
enum tr_status tr_tok_encoder_open(const struct tr_tokenizer *t, struct tr_tok_encoder **out);
void tr_tok_encoder_close(struct tr_tok_encoder *e);
enum tr_status tr_tok_encoder_encode(struct tr_tok_encoder *e, const char *text, size_t n, bool add_special,
                                     struct tr_ids *out);

/* Appends the text of the ids. A byte-level decoder gives bytes: they need not be valid UTF-8 when a character was cut.
 * TR_USAGE on an unknown id. tr_tokenizer_decode() keeps special tokens. */
enum tr_status tr_tokenizer_decode(const struct tr_tokenizer *t, const int32_t *ids, size_t n, struct tr_str *out);
enum tr_status tr_tokenizer_decode_text(const struct tr_tokenizer *t, const int32_t *ids, size_t n, bool skip_special,
                                        struct tr_str *out);

/* Ids one by one into whole characters: what a cut one needs is waited for. tr_tok_stream_end() gives what is left. */
struct tr_tok_stream;
enum tr_status tr_tok_stream_open(const struct tr_tokenizer *t, bool skip_special, struct tr_tok_stream **out);
void tr_tok_stream_close(struct tr_tok_stream *s);
enum tr_status tr_tok_stream_add(struct tr_tok_stream *s, int32_t id, struct tr_str *out);
enum tr_status tr_tok_stream_end(struct tr_tok_stream *s, struct tr_str *out);

/* Writes tokenizer.json, tokenizer_config.json and special_tokens_map.json of the byte tokenizer into a directory:
 * byte b is id b, <|endoftext|> is 256. `transformers` AutoTokenizer loads it and gives the same ids. */
enum tr_status tr_tokenizer_write_bytes(const char *dir);

#endif
