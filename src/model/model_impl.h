/* model_impl.h - private to the model room. */
#ifndef TR_MODEL_IMPL_H
#define TR_MODEL_IMPL_H

#include "model/model.h"

struct tr_build {
    struct tr_program *p;
    const struct tr_hparams *hp;
    int64_t n_tokens, sequence_length, n_positions; /* N, T, and rows of the rope table */
    int kind;                                       /* which tr_layer_kind; -1 outside blocks */
    bool wants_logits, wants_last, gives_sums;
    struct tr_pair_rule pair;
    double noise;
    bool is_dft, is_weighed;
    double label_smoothing, z_loss;
    int n_dropouts;
};

/* config.c: reading of config.json, shared by the architectures' configure(). A size that the family has set before is
 * the default of its key. */
enum tr_status tr_hp_common(const cJSON *config, struct tr_hparams *hp);
/* TR_USAGE where the heads together are not hidden_size: for families whose heads have no size of their own. */
enum tr_status tr_hp_even_heads(const struct tr_hparams *hp);
enum tr_status tr_hp_act(const cJSON *config, const char *key, const char *fallback, struct tr_hparams *hp);
/* The whole head rotates. As in transformers, partial_rotary_factor has no effect on such a family. */
enum tr_status tr_hp_rope(const cJSON *config, double default_theta, struct tr_hparams *hp);
/* The first columns of each head rotate: int(head_dim * part) of them. key: the older name beside rope_parameters
 * ("partial_rotary_factor", "rotary_pct"). */
enum tr_status tr_hp_rope_part(const cJSON *config, double default_theta, const char *key, double part,
                               struct tr_hparams *hp);
/* Two ropes: rope_parameters has one for full_attention and one for sliding_attention. Older files have rope_scaling
 * and rope_theta for the first, local_key (NULL: none) for the base of the second. The kinds of layers are set. */
enum tr_status tr_hp_rope_pair(const cJSON *config, double theta, double local_theta, const char *local_key,
                               struct tr_hparams *hp);
/* Layer kinds from `layer_types`, or full attention everywhere; window for "sliding_attention" layers. */
enum tr_status tr_hp_layers(const cJSON *config, int64_t window, struct tr_hparams *hp);
/* TR_USAGE, with the name of the key, when the key is present with another value. */
enum tr_status tr_hp_must_be(const cJSON *config, const char *key, bool value);
enum tr_status tr_hp_check_keys(const cJSON *config, const struct tr_arch *arch, struct tr_words ignore);

/* vision.c: the keys of the text model inside, as the file of that architecture wants them. */
enum tr_status tr_vision_text(const struct tr_arch *arch, const cJSON *config, cJSON **out);

/* rope.c: n_pos rows of cos[dim/2], sin[dim/2]. */
enum tr_status tr_rope_parse(const cJSON *obj, const cJSON *config, struct tr_rope *out);
enum tr_status tr_rope_check_factors(const struct tr_rope *r); /* of longrope */
/* The table (n_pos, dim) into out, for texts of up to n_context tokens. */
void tr_rope_fill(const struct tr_rope *r, int64_t max_positions, int64_t n_context, int64_t n_pos, float *out);

extern const struct tr_arch tr_arch_gpt_neox, tr_arch_falcon, tr_arch_stablelm, tr_arch_starcoder2, tr_arch_cohere,
    tr_arch_cohere2, tr_arch_glm, tr_arch_glm4;
extern const struct tr_arch tr_arch_gpt2, tr_arch_opt, tr_arch_llama, tr_arch_mistral, tr_arch_ministral, tr_arch_qwen2,
    tr_arch_qwen3, tr_arch_gemma, tr_arch_gemma2, tr_arch_gemma3, tr_arch_granite, tr_arch_smollm3, tr_arch_phi3,
    tr_arch_olmo2, tr_arch_olmo3, tr_arch_gemma3_vision, tr_arch_mistral3, tr_arch_qwen2_5_vl;

#endif
