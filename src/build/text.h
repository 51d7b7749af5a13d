/* text.h - part of the room header: text that a run makes. The prompts, the shape of the models that continue them, and
 * the bytes of it all are known before step 0. */
#ifndef TR_BUILD_TEXT_H
#define TR_BUILD_TEXT_H

#include "config/config.h"
#include "model/model.h"
#include "token/token.h"

struct tr_dirs;

struct tr_prompt {
    char *text; /* as the model reads it: a conversation is rendered */
    struct tr_ids ids;
    int64_t n_new; /* tokens that may follow */
};
struct tr_prompts {
    struct tr_prompt *item;
    size_t n;
};
/* The prompts of a file: a line of text each; of a .jsonl file the member `prompt`, or `messages` through the chat
 * template. path NULL: one prompt, `text` (NULL: the end-of-text token). A prompt without room for max_new_tokens,
 * which the options give, is refused. */
enum tr_status tr_prompts_open(const struct tr_config *cfg, const struct tr_dirs *from, const char *path,
                               const char *text, struct tr_prompts *out);
void tr_prompts_close(struct tr_prompts *p);
/* Positions of the longest of them, new tokens included; and the most new tokens. */
int64_t tr_prompts_context(const struct tr_prompts *p);
int64_t tr_prompts_new(const struct tr_prompts *p);

/* How text is made: so many sequences at once on a rank, each of at most n_context tokens; a prompt is read in large
 * and small chunks. */
struct tr_text_shape {
    int64_t n_sequences;      /* 0: the run makes no text */
    int64_t n_context;        /* positions of a sequence */
    int64_t n_large, n_small; /* tokens of a chunk; n_large 0: there are no large ones */
    bool wants_each;          /* logits of every token, not of the last one of a chunk */
};
struct tr_text_shape tr_text_shape_of(int64_t n_sequences, int64_t n_context, bool wants_each);
/* The sequences that a rank decodes at once, of n prompts over n_ranks ranks. */
int64_t tr_text_sequences(const struct tr_config *cfg, size_t n_prompts, int n_ranks);

#endif
