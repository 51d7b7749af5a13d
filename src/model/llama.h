/* llama.h - what the models of llama_kin.c take from Llama: the network, its rules, and the shared part of the
 * configuration. Families with the same names of parameters take the rules. */
#ifndef TR_MODEL_LLAMA_H
#define TR_MODEL_LLAMA_H

#include "model/model_impl.h"

tr_val tr_llama_embed(struct tr_build *b);
/* Attention and MLP of the input h, which a norm has made; nothing is added yet. */
tr_val tr_llama_attend(struct tr_build *b, tr_val h);
tr_val tr_llama_mlp(struct tr_build *b, tr_val h);
tr_val tr_llama_block(struct tr_build *b, tr_val x);
void tr_llama_head(struct tr_build *b, tr_val x);
enum tr_status tr_llama_configure(const cJSON *config, struct tr_hparams *hp);
enum tr_status tr_llama_biases(const cJSON *config, struct tr_hparams *hp); /* attention_bias, mlp_bias */

enum { TR_LLAMA_RULES = 9 };
extern const struct tr_param_rule tr_llama_rules[TR_LLAMA_RULES];

#define TR_LLAMA_KEYS                                                                                                  \
    "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads "              \
    "head_dim hidden_act max_position_embeddings rms_norm_eps rope_theta rope_scaling rope_parameters "                \
    "partial_rotary_factor original_max_position_embeddings attention_bias attention_dropout mlp_bias "                \
    "tie_word_embeddings pretraining_tp sliding_window use_sliding_window max_window_layers layer_types"

/* more: keys that the family reads besides, each after a blank */
#define TR_LLAMA_ROW(type, class, conf, more)                                                                          \
    {                                                                                                                  \
        .model_type = type, .class_name = class, .base_prefix = "model.", .layer_prefix = "model.layers.%d.",          \
        .configure = conf, .embed = tr_llama_embed, .block = tr_llama_block, .head = tr_llama_head,                    \
        .rules = tr_llama_rules, .n_rules = TR_LLAMA_RULES, .config_keys = TR_LLAMA_KEYS more,                         \
    }

#endif
