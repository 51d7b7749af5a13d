/* config.c - config.json -> struct tr_hparams, the parts that architectures share.
 *
 * Every key of config.json is one of three: the architecture reads it, it is known not to change the arithmetic, or it
 * is refused by name. A feature we do not implement is never ignored silently (reliability F27).
 */
#include "model/model_impl.h"
#include <math.h>

/* Keys that never change what a causal language model computes in training. How weights are quantised is the business
 * of the reader of weights. */
static const char inert_keys[] =
    "architectures model_type torch_dtype dtype transformers_version use_cache "
    "_name_or_path _model_name_or_path initializer_range return_dict output_hidden_states output_attentions "
    "torchscript use_bfloat16 pruned_heads is_encoder_decoder is_decoder cross_attention_hidden_size "
    "add_cross_attention tie_encoder_decoder max_length min_length do_sample early_stopping num_beams "
    "num_beam_groups diversity_penalty temperature top_k top_p typical_p repetition_penalty "
    "length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids num_return_sequences "
    "output_scores return_dict_in_generate remove_invalid_values "
    "exponential_decay_length_penalty suppress_tokens begin_suppress_tokens id2label label2id "
    "finetuning_task tokenizer_class prefix task_specific_params "
    "problem_type tf_legacy_loss _attn_implementation_autoset attn_implementation _attn_implementation "
    "cache_implementation unsloth_version unsloth_fixed quantization_config compression_config gradient_checkpointing "
    "chunk_size_feed_forward";

/* Keys that real files have and that no network of transformers reads, for all families and for one;
 * tests/model/inert.py holds them against transformers. */
static const struct {
    const char *model_type, *keys;
} inert_of[] = {
    { "*", "transformers.js_config _flash_attn_2_enabled use_flash_attention_2 is_llama_config rope_interleaved "
           "_num_labels output_past n_special predict_special_tokens model_max_length license mlx_lm_version "
           "eos_token_ids custom_pipelines max_sequence_length _commit_hash" },
    { "llama", "activation" },
    { "stablelm", "norm_eps rope_pct rotary_scaling_factor" },
    { "mistral", "attention_bias mlp_bias max_window_layers use_sliding_window pretraining_tp" },
    { "qwen2", "use_mrope attention_bias mlp_bias pretraining_tp" },
    { "phi3", "attention_bias mlp_bias lm_head_bias full_attn_mod interpolate_factor" },
    { "qwen3", "use_mrope mlp_bias pretraining_tp" },
    { "gemma", "hidden_activation" },
    { "gpt_neox", "attention_probs_dropout_prob hidden_dropout_prob" },
    { "falcon", "apply_residual_connection_post_layernorm ff_factor" },
    { "starcoder2", "activation_function attention_softmax_in_fp32 layer_norm_epsilon mlp_type norm_type "
                    "scale_attention_softmax_in_fp32 scale_attn_weights" },
    { "cohere", "pretraining_tp" },
    { "cohere2", "layer_switch order_of_interleaved_layers position_embedding_type rotary_pct use_embedding_sharing "
                 "use_gated_activation use_parallel_block use_parallel_embedding" },
    { "gemma2", "hidden_act sliding_window_size" },
    { "gemma3_text", "hidden_act" },
    { "opt", "activation_dropout learned_embeddings scale_embeddings" },
};

/* Token ids (bos_token_id, unk_token_id, ...) describe texts and do not change what is computed. */
static bool is_token_id(const char *key)
{
    size_t n = strlen(key), n_end = strlen("_token_id");
    return n > n_end && strcmp(key + n - n_end, "_token_id") == 0;
}

/* Is key a word of the blank-separated list? */
static bool in_list(const char *key, const char *list)
{
    size_t n = strlen(key);
    for (const char *at = strstr(list, key); n && at; at = strstr(at + 1, key))
        if ((at == list || at[-1] == ' ') && (at[n] == ' ' || at[n] == 0))
            return true;
    return false;
}

static bool is_inert(const char *key, const char *model_type)
{
    for (size_t i = 0; i < TR_COUNT_OF(inert_of); i++)
        if ((inert_of[i].model_type[0] == '*' || strcmp(inert_of[i].model_type, model_type) == 0) &&
            in_list(key, inert_of[i].keys))
            return true;
    return in_list(key, inert_keys) || is_token_id(key);
}

static bool is_vouched(const char *key, struct tr_words words)
{
    return tr_row_find(words.item, words.n, sizeof *words.item, key) != NULL;
}

enum tr_status tr_hp_check_keys(const cJSON *config, const struct tr_arch *arch, struct tr_words ignore)
{
    struct tr_str bad = { 0 };
    char esc[80];
    int n_bad = 0;
    for (const cJSON *k = config->child; k; k = k->next) {
        if (is_inert(k->string, arch->model_type) || in_list(k->string, arch->config_keys) ||
            is_vouched(k->string, ignore) || cJSON_IsNull(k)) /* null: the switch of something that is not there */
            continue;
        if (n_bad++ < 20)
            tr_str_addf(&bad, "%s%s", n_bad > 1 ? ", " : "", tr_escape(k->string, esc, sizeof esc));
    }
    enum tr_status st = TR_OK;
    if (n_bad)
        st = tr_fail(TR_USAGE,
                     "config.json: %d key%s not implemented for model_type %s: %s; a key that does not change the "
                     "arithmetic can be passed with --ignore_config_keys",
                     n_bad, n_bad > 1 ? "s" : "", arch->model_type, bad.p ? bad.p : "");
    tr_str_release(&bad);
    return st;
}

enum tr_status tr_hp_must_be(const cJSON *config, const char *key, bool value)
{
    bool got = value;
    TR_PASS(tr_json_bool(config, key, false, &got));
    if (got != value)
        return tr_fail(TR_USAGE, "config.json: %s = %s is not implemented", key, got ? "true" : "false");
    return TR_OK;
}

enum tr_status tr_hp_common(const cJSON *config, struct tr_hparams *hp)
{
    const int64_t big = 1 << 24;
    TR_PASS(tr_json_int(config, "vocab_size", hp->vocab == 0, 1, big, &hp->vocab));
    TR_PASS(tr_json_int(config, "hidden_size", hp->hidden == 0, 1, 1 << 20, &hp->hidden));
    TR_PASS(tr_json_int(config, "num_hidden_layers", hp->layers == 0, 1, TR_MAX_LAYERS, &hp->layers));
    TR_PASS(tr_json_int(config, "num_attention_heads", hp->n_heads_q == 0, 1, 1 << 16, &hp->n_heads_q));
    if (hp->n_heads_kv == 0)
        hp->n_heads_kv = hp->n_heads_q;
    TR_PASS(tr_json_int(config, "num_key_value_heads", false, 1, hp->n_heads_q, &hp->n_heads_kv));
    if (hp->n_heads_q % hp->n_heads_kv != 0)
        return tr_fail(TR_USAGE,
                       "config.json: num_key_value_heads %" PRId64 " does not divide num_attention_heads %" PRId64,
                       hp->n_heads_kv, hp->n_heads_q);
    if (hp->head_dim == 0)
        hp->head_dim = hp->hidden / hp->n_heads_q;
    TR_PASS(tr_json_int(config, "head_dim", false, 1, 1024, &hp->head_dim));
    if (hp->head_dim < 1 || hp->head_dim > 1024)
        return tr_fail(TR_USAGE, "config.json: head size %" PRId64 " is outside 1..1024", hp->head_dim);
    TR_PASS(tr_json_int(config, "intermediate_size", false, 1, 1 << 24, &hp->ffn));
    if (hp->max_positions == 0)
        hp->max_positions = 2048;
    TR_PASS(tr_json_int(config, "max_position_embeddings", false, 1, INT32_MAX, &hp->max_positions));
    if (!(hp->norm_eps > 0))
        hp->norm_eps = 1e-6;
    TR_PASS(tr_json_real(config, "rms_norm_eps", false, &hp->norm_eps));
    TR_PASS(tr_json_real(config, "attention_dropout", false, &hp->dropout_attn));
    TR_PASS(tr_json_bool(config, "tie_word_embeddings", false, &hp->is_tied));
    hp->attn_scale = 1.0 / sqrt((double)hp->head_dim);
    return TR_OK;
}

enum tr_status tr_hp_even_heads(const struct tr_hparams *hp)
{
    if (hp->n_heads_q * hp->head_dim == hp->hidden)
        return TR_OK;
    return tr_fail(TR_USAGE,
                   "config.json: %" PRId64 " heads (num_attention_heads) of %" PRId64 " columns are not hidden_size "
                   "%" PRId64,
                   hp->n_heads_q, hp->head_dim, hp->hidden);
}

enum tr_status tr_hp_act(const cJSON *config, const char *key, const char *fallback, struct tr_hparams *hp)
{
    static const struct {
        const char *name;
        int32_t act; /* enum tr_act */
    } acts[] = {
        { "relu", TR_ACT_RELU },
        { "gelu", TR_ACT_GELU },
        { "gelu_new", TR_ACT_GELU_TANH },
        { "gelu_pytorch_tanh", TR_ACT_GELU_TANH },
        { "gelu_fast", TR_ACT_GELU_TANH },
        { "silu", TR_ACT_SILU },
        { "swish", TR_ACT_SILU },
        { "gelu_python", TR_ACT_GELU },
        { "gelu_accurate", TR_ACT_GELU_TANH },
        { "gelu_python_tanh", TR_ACT_GELU_TANH },
    };
    const char *name = fallback;
    TR_PASS(tr_json_str(config, key, false, &name));
    for (size_t i = 0; i < TR_COUNT_OF(acts); i++)
        if (strcmp(acts[i].name, name) == 0) {
            hp->act = acts[i].act;
            return TR_OK;
        }
    char esc[80];
    return tr_fail(TR_USAGE,
                   "config.json: %s \"%s\" is not implemented; known: relu gelu gelu_new gelu_pytorch_tanh silu", key,
                   tr_escape(name, esc, sizeof esc));
}

/* part: the part of each head that rotates when neither place names it. transformers keeps it in the object of the rope
 * (partial_rotary_factor), older files beside it (key). */
static enum tr_status read_rope(const cJSON *config, double default_theta, const char *key, double *part,
                                struct tr_hparams *hp)
{
    struct tr_rope *r = &hp->rope[TR_C_ROPE];
    const cJSON *old = cJSON_GetObjectItemCaseSensitive(config, "rope_scaling");
    const cJSON *now = cJSON_GetObjectItemCaseSensitive(config, "rope_parameters");
    const cJSON *obj = cJSON_IsObject(old) ? old : cJSON_IsObject(now) ? now : NULL;
    *r = (struct tr_rope){ .type = TR_ROPE_DEFAULT, .theta = default_theta, .original_max = hp->max_positions };
    TR_PASS(tr_json_real(config, "rope_theta", false, &r->theta));
    TR_PASS(tr_json_real(config, key, false, part));
    if (obj) {
        TR_PASS(tr_json_real(obj, "partial_rotary_factor", false, part));
        TR_PASS(tr_rope_parse(obj, config, r));
    }
    return TR_OK;
}

enum tr_status tr_hp_rope_part(const cJSON *config, double default_theta, const char *key, double part,
                               struct tr_hparams *hp)
{
    struct tr_rope *r = &hp->rope[TR_C_ROPE];
    enum tr_status st = read_rope(config, default_theta, key, &part, hp);
    if (st != TR_OK)
        return st;
    if (!(part > 0 && part <= 1))
        return tr_fail(TR_USAGE, "config.json: %s %g is outside (0, 1]", key, part);
    r->dim = (int64_t)((double)hp->head_dim * part);
    if (r->dim < 2 || r->dim % 2)
        st = tr_fail(TR_USAGE,
                     "config.json: %" PRId64 " rotary columns of a head of %" PRId64
                     "; the number must be even, and at least 2",
                     r->dim, hp->head_dim);
    return st;
}

enum tr_status tr_hp_rope(const cJSON *config, double default_theta, struct tr_hparams *hp)
{
    double ignored = 1;
    enum tr_status st = read_rope(config, default_theta, "partial_rotary_factor", &ignored, hp);
    struct tr_rope *r = &hp->rope[TR_C_ROPE];
    if (st != TR_OK)
        return st;
    if (ignored != 1 && r->type != TR_ROPE_DEFAULT)
        return tr_fail(TR_USAGE,
                       "config.json: partial_rotary_factor %g with a scaled rope is not implemented for this "
                       "model_type; transformers cannot run it either",
                       ignored);
    r->dim = hp->head_dim;
    if (r->dim < 2 || r->dim % 2)
        st = tr_fail(TR_USAGE, "config.json: a head of %" PRId64 " cannot rotate; its size must be even", r->dim);
    return st;
}

enum tr_status tr_hp_rope_pair(const cJSON *config, double theta, double local_theta, const char *local_key,
                               struct tr_hparams *hp)
{
    const cJSON *both = cJSON_GetObjectItemCaseSensitive(config, "rope_parameters");
    const cJSON *old = cJSON_GetObjectItemCaseSensitive(config, "rope_scaling");
    const cJSON *full = cJSON_GetObjectItemCaseSensitive(both, "full_attention");
    const cJSON *local = cJSON_GetObjectItemCaseSensitive(both, "sliding_attention");
    for (int i = 0; i < TR_C_COUNT; i++)
        hp->rope[i] = (struct tr_rope){ .type = TR_ROPE_DEFAULT,
                                        .theta = i == TR_C_ROPE ? theta : local_theta,
                                        .original_max = hp->max_positions,
                                        .dim = hp->head_dim };
    TR_PASS(tr_json_real(config, "rope_theta", false, &hp->rope[TR_C_ROPE].theta));
    if (local_key)
        TR_PASS(tr_json_real(config, local_key, false, &hp->rope[TR_C_ROPE_LOCAL].theta));
    if (cJSON_IsObject(full))
        TR_PASS(tr_rope_parse(full, config, &hp->rope[TR_C_ROPE]));
    if (cJSON_IsObject(old))
        TR_PASS(tr_rope_parse(old, config, &hp->rope[TR_C_ROPE]));
    if (cJSON_IsObject(local))
        TR_PASS(tr_rope_parse(local, config, &hp->rope[TR_C_ROPE_LOCAL]));
    hp->kind[1].rope = TR_C_ROPE_LOCAL;
    if (hp->head_dim % 2)
        return tr_fail(TR_USAGE, "config.json: a head of %" PRId64 " cannot rotate; its size must be even",
                       hp->head_dim);
    return TR_OK;
}

enum tr_status tr_hp_layers(const cJSON *config, int64_t window, struct tr_hparams *hp)
{
    const cJSON *types = cJSON_GetObjectItemCaseSensitive(config, "layer_types");
    hp->kind[0] = (struct tr_layer_kind){ .window = 0, .rope = TR_C_ROPE };
    hp->kind[1] = (struct tr_layer_kind){ .window = window, .rope = TR_C_ROPE };
    if (!types || cJSON_IsNull(types))
        return TR_OK;
    if (!cJSON_IsArray(types) || cJSON_GetArraySize(types) != hp->layers)
        return tr_fail(TR_USAGE, "config.json: layer_types must be a list of num_hidden_layers = %" PRId64 " names",
                       hp->layers);
    int i = 0;
    for (const cJSON *t = types->child; t; t = t->next, i++) {
        char esc[80];
        if (cJSON_IsString(t) && strcmp(t->valuestring, "full_attention") == 0)
            hp->kind_of[i] = 0;
        else if (cJSON_IsString(t) && strcmp(t->valuestring, "sliding_attention") == 0)
            hp->kind_of[i] = 1;
        else
            return tr_fail(TR_USAGE, "config.json: layer_types[%d] \"%s\" is not implemented", i,
                           cJSON_IsString(t) ? tr_escape(t->valuestring, esc, sizeof esc) : "?");
    }
    return TR_OK;
}
