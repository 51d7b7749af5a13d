/* layout_models.h - the models that layouts are tested on, and adapters for them. */
#ifndef TR_TESTS_TRAIN_LAYOUT_MODELS_H
#define TR_TESTS_TRAIN_LAYOUT_MODELS_H

#include "base/base.h"

static const char *const configs[] = {
    "{\"model_type\":\"llama\",\"vocab_size\":320,\"hidden_size\":32,\"intermediate_size\":48,\"num_hidden_layers\":6,"
    "\"num_attention_heads\":8,\"num_key_value_heads\":2}",
    "{\"model_type\":\"gpt2\",\"vocab_size\":320,\"n_embd\":32,\"n_layer\":3,\"n_head\":4,\"n_positions\":16}",
    "{\"model_type\":\"qwen3\",\"vocab_size\":64,\"hidden_size\":32,\"intermediate_size\":48,\"num_hidden_layers\":3,"
    "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":8,\"tie_word_embeddings\":true}",
    /* so wide that four tensor ranks split its matrices between grains */
    "{\"model_type\":\"llama\",\"vocab_size\":320,\"hidden_size\":256,\"intermediate_size\":256,\"num_hidden_layers\":"
    "3,"
    "\"num_attention_heads\":8,\"num_key_value_heads\":4}",
    /* as wide, with joined matrices: q | k | v and gate | up; a group for each head; for each key head; gate | up */
    "{\"model_type\":\"phi3\",\"vocab_size\":320,\"hidden_size\":256,\"intermediate_size\":256,\"num_hidden_layers\":3,"
    "\"num_attention_heads\":8,\"num_key_value_heads\":4}",
    "{\"model_type\":\"gpt_neox\",\"vocab_size\":320,\"hidden_size\":256,\"intermediate_size\":256,"
    "\"num_hidden_layers\":3,\"num_attention_heads\":8}",
    "{\"model_type\":\"falcon\",\"vocab_size\":320,\"hidden_size\":256,\"ffn_hidden_size\":256,\"num_hidden_layers\":3,"
    "\"num_attention_heads\":8,\"num_kv_heads\":4,\"new_decoder_architecture\":true,\"bias\":true}",
    "{\"model_type\":\"glm\",\"vocab_size\":320,\"hidden_size\":256,\"intermediate_size\":256,\"num_hidden_layers\":3,"
    "\"num_attention_heads\":8,\"num_key_value_heads\":4,\"head_dim\":32}",
};
enum { LLAMA, GPT2, QWEN, N_MODELS, WIDE = N_MODELS, N_CONFIGS = TR_COUNT_OF(configs) };

/* Adapters of each model, the second with DoRA. Their B's do not begin with zeros, so that every A learns from the
 * first step on. */
#define LORA            "{\"peft_type\":\"LORA\",\"init_lora_weights\":false,"
#define ALL_LINEAR      LORA "\"r\":4,\"lora_alpha\":8,\"target_modules\":\"all-linear\"}"
#define ALL_LINEAR_DORA LORA "\"r\":4,\"lora_alpha\":8,\"use_dora\":true,\"target_modules\":\"all-linear\"}"
static const char *const adapters[N_CONFIGS][2] = {
    { LORA "\"r\":4,\"lora_alpha\":8,\"lora_dropout\":0.1,\"target_modules\":\"all-linear\"}",
      LORA "\"r\":4,\"lora_alpha\":8,\"use_dora\":true,\"target_modules\":\"all-linear\"}" },
    { LORA "\"r\":3,\"lora_alpha\":6,\"lora_bias\":true,\"target_modules\":[\"c_attn\",\"c_proj\",\"c_fc\"],"
           "\"fan_in_fan_out\":true}",
      LORA "\"r\":2,\"lora_alpha\":3,\"use_dora\":true,\"bias\":\"all\",\"target_modules\":[\"c_attn\",\"c_proj\"],"
           "\"fan_in_fan_out\":true}" },
    { LORA "\"r\":8,\"lora_alpha\":8,\"target_modules\":[\"q_proj\",\"v_proj\",\"down_proj\",\"embed_tokens\"]}",
      LORA "\"r\":8,\"lora_alpha\":8,\"use_dora\":true,\"lora_dropout\":0.2,\"layers_to_transform\":[0,2],"
           "\"target_modules\":[\"q_proj\",\"k_proj\",\"down_proj\"]}" },
    { ALL_LINEAR, ALL_LINEAR_DORA }, /* the wide ones */
    { ALL_LINEAR, ALL_LINEAR_DORA },
    { ALL_LINEAR, ALL_LINEAR_DORA },
    { ALL_LINEAR, ALL_LINEAR_DORA },
    { ALL_LINEAR, ALL_LINEAR_DORA },
};

#endif
