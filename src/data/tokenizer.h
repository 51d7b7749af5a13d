/* tokenizer.h - text to token ids and back, as the HF `tokenizer.json` of a model directory says.
 *
 * Reads byte-level BPE without merges: 256 byte characters, plus added tokens. A file that asks for anything else is
 * refused with the name of the feature, never approximated: a nearly right tokenizer trains a wrong model.
 */
#ifndef TR_DATA_TOKENIZER_H
#define TR_DATA_TOKENIZER_H

#include "base/base.h"

/* A growing vector of ids; {0} is empty. */
struct tr_ids {
    int32_t *p;
    size_t n, n_cap;
};
void tr_ids_release(struct tr_ids *v);
enum tr_status tr_ids_add(struct tr_ids *v, int32_t id);

struct tr_tokenizer;

enum tr_status tr_tokenizer_open(const char *model_dir, struct tr_tokenizer **out);
void tr_tokenizer_close(struct tr_tokenizer *t);

int32_t tr_tokenizer_eos(const struct tr_tokenizer *t);        /* -1: the model has none */
int64_t tr_tokenizer_vocab_size(const struct tr_tokenizer *t); /* largest id + 1 */
/* Of what the tokenizer does, not of its file's bytes: equal hash = equal ids for every text. */
struct tr_hash128 tr_tokenizer_hash(const struct tr_tokenizer *t);

/* Appends the ids of the text (UTF-8), added tokens recognised, nothing put in front or behind:
 * transformers' tok(text, add_special_tokens=False). */
enum tr_status tr_tokenizer_encode(const struct tr_tokenizer *t, const char *text, size_t n, struct tr_ids *out);
/* A text that comes in parts: takes as much of this part as no later part can change, and says how much in *n_used; the
 * caller puts the rest in front of the next part. With is_last all of it is taken. */
enum tr_status tr_tokenizer_encode_part(const struct tr_tokenizer *t, const char *text, size_t n, bool is_last,
                                        struct tr_ids *out, size_t *n_used);

/* Appends the bytes of the ids; they need not be valid UTF-8 when a character was cut. TR_USAGE on an unknown id. */
enum tr_status tr_tokenizer_decode(const struct tr_tokenizer *t, const int32_t *ids, size_t n, struct tr_str *out);

/* Writes tokenizer.json, tokenizer_config.json and special_tokens_map.json of the byte tokenizer into a directory:
 * byte b is id b, <|endoftext|> is 256. `transformers` AutoTokenizer loads it and gives the same ids. */
enum tr_status tr_tokenizer_write_bytes(const char *dir);

#endif
