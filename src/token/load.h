/* load.h - functions that the loaders of the pipeline's stages share. */
#ifndef TR_TOKEN_LOAD_H
#define TR_TOKEN_LOAD_H

#include "token/token_impl.h"

/* A "type" of a stage and its loader. */
struct tr_tok_stage_type {
    const char *name;
    enum tr_status (*load)(struct tr_tokenizer *t, const cJSON *x);
};
/* Finds the type and loads it; loads each part of a Sequence, whose list is the member list_key. */
enum tr_status tr_tok_load_stage(struct tr_tokenizer *t, const cJSON *x, const char *stage,
                                 const struct tr_tok_stage_type *types, size_t n_types, const char *list_key);
/* Reads the member `key`, a string. */
enum tr_status tr_tok_load_text(const cJSON *x, const char *key, char **to, size_t *n);
/* Reads "pattern": {"String": "..."} or {"Regex": "..."}. */
enum tr_status tr_tok_load_pattern(const cJSON *x, struct tr_tok_pattern *out);
/* Reads the member `key`, a string of one character. */
enum tr_status tr_tok_load_char(const cJSON *x, const char *key, struct tr_tok_pattern *out);
enum tr_status tr_tok_load_scheme(const cJSON *x, enum tr_tok_prepend *out); /* of Metaspace */

enum tr_status tr_tok_load_input(struct tr_tokenizer *t, const cJSON *root);  /* normalizer, pre_tokenizer */
enum tr_status tr_tok_load_output(struct tr_tokenizer *t, const cJSON *root); /* post_processor, decoder */

#endif
