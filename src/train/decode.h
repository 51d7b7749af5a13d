/* decode.h - sequences of tokens that grow, on an executor whose plan has the models of text (build/text.h).
 *
 * Every rank of the data axes continues prompts of its own; the other axes share the work of one token. All memory is
 * taken when the decoder is opened. Random numbers are counter based and a text does not depend on its neighbours, so
 * each text is the one that its prompt would give alone.
 */
#ifndef TR_TRAIN_DECODE_H
#define TR_TRAIN_DECODE_H

#include "build/build.h"
#include "exec/exec.h"

/* New tokens of n prompts, at most `most` of each. */
struct tr_texts {
    size_t n;
    int64_t most;
    int32_t *id;    /* (n, most) */
    int64_t *n_ids; /* of each prompt, without the token that ended it */
};
enum tr_status tr_texts_open(const struct tr_prompts *p, struct tr_texts *out);
void tr_texts_close(struct tr_texts *t);

struct tr_decoder;
/* tok limits the ids that can be picked (a vocabulary may be padded) and gives the stop token; NULL: neither. How a
 * token is picked is in the options of the setup. */
enum tr_status tr_decoder_open(struct tr_exec *e, const struct tr_setup *s, const struct tr_tokenizer *tok,
                               struct tr_decoder **out);
void tr_decoder_close(struct tr_decoder *d);

/* A token of a prompt that this rank continues, when it is picked. */
typedef enum tr_status tr_token_fn(void *ctx, size_t prompt, int32_t id);
/* Continues all prompts; afterwards every rank has all texts. All ranks call it together. Nothing is allocated. fn may
 * be NULL. TR_STOPPED: a signal came, and this rank runs alone. */
enum tr_status tr_decoder_run(struct tr_decoder *d, const struct tr_prompts *p, tr_token_fn *fn, void *ctx,
                              struct tr_texts *out);

/* The parts of it, for a caller that steers one sequence itself: the first one, on a rank that runs alone. */
/* Reads ids as the tokens from `first` on. *logits (V) are those of the next token, valid until the next call. each
 * (may be NULL) gets the logits of every token, where the shape has them: n of them (n, V), from token `at` of the ids
 * on. */
typedef void tr_logits_fn(void *ctx, int64_t at, int64_t n, const float *logits);
enum tr_status tr_decoder_feed(struct tr_decoder *d, int64_t first, const int32_t *ids, size_t n, tr_logits_fn *each,
                               void *ctx, const float **logits);
/* The next token under the options' temperature, top_k, top_p and repetition_penalty: pick number n_picked of its
 * sequence. `seen` are the ids so far. */
int32_t tr_decoder_pick(struct tr_decoder *d, const float *logits, const int32_t *seen, size_t n_seen,
                        uint64_t n_picked);
/* Does the id end a text? Stop ids are eos_token_id of generation_config.json and config.json, and the tokenizer's. */
bool tr_decoder_is_stop(const struct tr_decoder *d, int32_t id);

#endif
