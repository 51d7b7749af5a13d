/* llama.h - what the models of llama_kin.c take from Llama: the network, its rules, and the shared part of the
 * configuration. Gemma takes the rules: its parameters have the same names. */
#ifndef TR_MODEL_LLAMA_H
#define TR_MODEL_LLAMA_H

#include "model/model_impl.h"

tr_val tr_llama_embed(struct tr_build *b);
tr_val tr_llama_block(struct tr_build *b, tr_val x);
void tr_llama_head(struct tr_build *b, tr_val x);
enum tr_status tr_llama_configure(const cJSON *config, struct tr_hparams *hp);

enum { TR_LLAMA_RULES = 9 };
extern const struct tr_param_rule tr_llama_rules[TR_LLAMA_RULES];
extern const char tr_llama_keys[];

#define TR_LLAMA_ROW(type, class, conf)                                                                                \
    {                                                                                                                  \
        .model_type = type, .class_name = class, .base_prefix = "model.", .layer_prefix = "model.layers.%d.",          \
        .configure = conf, .embed = tr_llama_embed, .block = tr_llama_block, .head = tr_llama_head,                    \
        .rules = tr_llama_rules, .n_rules = TR_LLAMA_RULES, .config_keys = tr_llama_keys,                              \
    }

#endif
