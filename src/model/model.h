/* model.h - room header of model: architectures by HF model_type, and the vocabulary they are written in.
 *
 * A model is a list of segments: embed, block x L, head. An architecture writes each segment once, as if for a single
 * device; equal layers share one program. This room knows nothing about ranks.
 */
#ifndef TR_MODEL_MODEL_H
#define TR_MODEL_MODEL_H

#include "config/config.h"
#include "model/known.h"
#include "program/program.h"

enum { TR_MAX_LAYERS = 1024, TR_LAYER_KINDS = 4 };

enum tr_rope_type {
    TR_ROPE_NONE,
    TR_ROPE_DEFAULT,
    TR_ROPE_LINEAR,
    TR_ROPE_DYNAMIC,
    TR_ROPE_YARN,
    TR_ROPE_LLAMA3,
    TR_ROPE_LONGROPE
};

struct tr_rope {
    enum tr_rope_type type;
    double theta, factor, low_freq_factor, high_freq_factor, beta_fast, beta_slow;
    double attention_factor, mscale, mscale_all_dim; /* 0: derived from the others */
    int64_t original_max;                            /* positions the model was first trained on */
    int64_t dim;                                     /* columns of a head that rotate */
    const cJSON *short_factor, *long_factor;         /* longrope: lists of dim / 2 numbers in the config of the model */
    bool truncate;                                   /* yarn: round the correction range to whole dimensions */
    bool is_interleaved;                             /* pairs are neighbours; else they are dim / 2 apart */
};

/* What may differ between the layers of one model. */
struct tr_layer_kind {
    int64_t window; /* 0 = full attention */
    int rope;       /* enum tr_const_slot; TR_NONE = its heads do not rotate (NoPE) */
};

struct tr_hparams {
    int64_t vocab, hidden, layers, n_heads_q, n_heads_kv, head_dim, ffn, max_positions;
    int64_t token_cols; /* columns of embedding and head; 0: hidden */
    double norm_eps, init_std, attn_scale, attn_softcap, final_softcap;
    double norm_offset; /* of the weights of norms: Gemma stores w - 1 */
    bool scales_table;  /* embed_scale is a part of the embedding, not of the model behind it */
    double embed_scale, residual_scale, logit_scale; /* factors on embeddings, on what each half of a block adds, on
                                                        logits; 1 = none */
    int32_t act;
    bool is_tied, qkv_bias, o_bias, mlp_bias, has_qk_norm, is_post_norm, has_no_final_norm;
    bool norms_lack_bias;      /* layer norms have a weight only */
    bool is_parallel_residual; /* attention and MLP read the same x, and both are added to it */
    bool has_mlp_norm;         /* then: the MLP has a norm of its own */
    double dropout_embed, dropout_attn, dropout_resid;
    struct tr_rope rope[TR_C_COUNT];
    struct tr_layer_kind kind[TR_LAYER_KINDS];
    uint8_t kind_of[TR_MAX_LAYERS];
};

struct tr_build; /* one segment under construction */

/* TR_BY_QKV: q | k | v with grouped heads. TR_BY_NORM: all outputs share a norm, so every rank computes all of them and
 * uses those of its heads.
 * Which dim of a parameter the tensor axis splits, by local name without .weight/.bias; parameters without a row stay
 * whole. A bias is split like its weight when the weight is split along its outputs, and stays whole when it is split
 * along its inputs. */
enum tr_split_unit { TR_BY_ANY, TR_BY_HEAD, TR_BY_HEAD_KV, TR_BY_QKV, TR_BY_NORM };
struct tr_param_rule {
    const char *name;
    int split_dim;
    enum tr_split_unit unit;
    int n_parts; /* equal parts of that dim, each of which is split: 3 for q | k | v */
};

struct tr_arch;
/* A model of text and images around a text model, which is what is trained. */
struct tr_wrapper {
    const struct tr_arch *text;
    const char *text_type;           /* its model_type in text_config */
    const char *old_base, *old_head; /* prefixes in files of older versions: "language_model.model." */
    bool is_tied;                    /* where no key says it */
};

struct tr_arch {
    const char *model_type, *class_name;    /* "llama", "LlamaForCausalLM" */
    const char *base_prefix, *layer_prefix; /* "model.", "model.layers.%d." */
    enum tr_status (*configure)(const cJSON *config, struct tr_hparams *hp);
    tr_val (*embed)(struct tr_build *b);
    tr_val (*block)(struct tr_build *b, tr_val x);
    void (*head)(struct tr_build *b, tr_val x);
    const struct tr_param_rule *rules;
    size_t n_rules;
    const char *config_keys;          /* keys of config.json that configure() understands, blank-separated */
    const struct tr_wrapper *wrapper; /* with this, only the names above are its own; NULL: a text model */
};
const struct tr_arch *tr_arch_find(const char *model_type);               /* NULL: unknown */
static inline const struct tr_arch *tr_arch_text(const struct tr_arch *a) /* the network that is trained */
{
    return a->wrapper ? a->wrapper->text : a;
}
void tr_arch_list(struct tr_str *out);
bool tr_module_ends_with(const char *name, const char *part); /* name is part, or ends with "." part */
/* Does any family have a linear or a table of this name? "gate_proj", "mlp.gate_proj", "model.layers.0.mlp.gate_proj"
 */
bool tr_arch_has_module(const char *name);

/* A parameter of the whole model, by its HF name. */
struct tr_param {
    char name[TR_NAME_MAX];
    int n_dims;
    int64_t dim[2];
    int64_t rows, cols, n; /* shape as a matrix, and the number of elements */
    enum tr_init init;
    float init_std;
    struct tr_split split;
    bool has_decay;
    bool in_adapter; /* an adapter run has it in the file of the adapter and trains most of them; all others are frozen
                      */
};

/* Rows of a table that an adapter trains by themselves: what parameters with TR_INIT_ROWS and its kin begin with. */
struct tr_model_rows {
    char module[TR_NAME_MAX]; /* "model.embed_tokens", "lm_head" */
    int table;                /* the parameter that has the rows */
    int64_t *id, n;
};

struct tr_segment {
    int program, layer; /* layer < 0: embed or head */
    int *param;         /* local parameter -> global */
};

struct tr_model {
    const struct tr_arch *arch;
    struct tr_hparams hp;
    cJSON *config;     /* the parsed file */
    cJSON *text;       /* of a model of text and images: the keys of its text model; NULL: it is one */
    char *config_text; /* the text of the file (NULL: there was none); it is written back with only our changes */
    int64_t vocab_was; /* of the file, where hp.vocab has grown beyond it (least_vocab); 0: it has not */
    bool was_tied;     /* the file has one matrix for embedding and head, and this model two (unties) */
    int64_t n_tokens, sequence_length; /* of one micro-batch: rows * T, and T */
    int64_t n_positions;               /* rows of the rope tables */
    int64_t n_context;                 /* positions that a text may fill, at most n_positions */
    struct tr_program **program;
    int n_programs;
    struct tr_segment *segment;
    int n_segments;
    struct tr_param *param;
    int n_params;
    int64_t n_elements;
    struct tr_model_rows *rows;
    int n_rows;
    struct tr_pair_rule pair; /* as in tr_model_options */
    int n_losses;             /* numbers that the head adds up: the loss, and of pairs enum tr_metric */
    int64_t const_rows[TR_C_COUNT], const_cols[TR_C_COUNT]; /* rope tables; 0 rows: the model has none */
};

/* The matrix of the head (V, D); of a tied model that of the embedding. */
static inline int tr_model_head(const struct tr_model *m)
{
    const struct tr_segment *g = &m->segment[m->n_segments - 1];
    int i = 0;
    /* norms, and OPT's linear in front of a narrow table, come first, adapters last */
    while (m->param[g->param[i]].n_dims != 2 || m->param[g->param[i]].dim[0] != m->hp.vocab)
        i++;
    return g->param[i];
}

/* Is it an adapted model, of which only the adapter is trained and saved? */
static inline bool tr_model_has_adapter(const struct tr_model *m)
{
    int i = 0;
    while (i < m->n_params && !m->param[i].in_adapter)
        i++;
    return i < m->n_params;
}

struct tr_model_options {
    int64_t rows, sequence_length; /* micro-batch */
    int64_t n_positions;           /* positions that may occur; 0 = sequence_length */
    int64_t n_context;             /* positions that a text may fill; 0 = all of them */
    int64_t least_vocab;           /* a smaller vocab_size of config.json grows to it; 0: as it is */
    bool unties;                   /* the head of a tied model is a matrix of its own, which begins as the embedding */
    double dropout;                /* < 0: as config.json says */
    struct tr_words ignore_keys;   /* keys of config.json that the user declares harmless */
    bool wants_logits;             /* the head ends in logits (generate), not in the loss */
    bool takes_names;              /* a name or a size of known.h is a model too, where no path has that name */
    bool wants_last;               /* with wants_logits: only those of the row that the first target names */
    double noise;                  /* alpha of NEFTune; 0: none */
    bool is_dft;                   /* each token's loss is weighed by its probability */
    bool is_weighed;               /* and this by what the batch says */
    double label_smoothing, z_loss;
    struct tr_pair_rule pair; /* the loss is that of pairs of documents; NONE: of tokens */
    bool gives_sums;          /* the head ends in the sums of documents, beside the loss */
};

/* Says that there is no such directory, and where a model of the hub comes from when the name could be one of it.
 * nearest: a sentence in between, or "". */
enum tr_status tr_model_missing(const char *path, const char *nearest);
/* Reads <dir>/config.json, or a config.json by its own path, and builds the programs. Needs no weights. */
enum tr_status tr_model_open(const char *path, const struct tr_model_options *opt, struct tr_model **out);
enum tr_status tr_model_from_json(cJSON *config /* taken over on success */, const struct tr_model_options *opt,
                                  struct tr_model **out);
void tr_model_close(struct tr_model *m);
/* The index of the parameter of this name, or of the name module + tail; -1: there is none. */
int tr_model_param(const struct tr_model *m, const char *name);
int tr_model_sibling(const struct tr_model *m, const char *module, int n_module, const char *tail);
/* For a room that rewrites a model (adapter). Adds a program, which the model takes over on success; returns its index
 * in *out. */
enum tr_status tr_model_add_program(struct tr_model *m, struct tr_program *p, int *out);
/* Gives a segment another program. Its first parameters are those of the program before; those behind them are added
 * to the parameters of the model. */
enum tr_status tr_model_use_program(struct tr_model *m, int segment, int program);
/* Notes the rows of a table that the adapter trains; parameters called module + ".token_adapter..." are made of them.
 */
enum tr_status tr_model_add_rows(struct tr_model *m, const char *module, int table, const int64_t *id, size_t n);
const struct tr_model_rows *tr_model_rows_of(const struct tr_model *m, int param); /* NULL: it is not made of any */
/* The constant of a slot, (const_rows, const_cols). Only a run needs its numbers: a plan compiles one model for each
 * pipeline rank, and the sines would take longer than the compile. */
void tr_model_fill_constant(const struct tr_model *m, int slot, float *out);
/* The frequencies of a text of max_positions tokens, dim / 2 <= TR_ROPE_FREQS of them; returns the factor on cosines
 * and sines (1 but for yarn and longrope). */
enum { TR_ROPE_FREQS = 512 };
double tr_rope_frequencies(const struct tr_rope *r, int64_t max_positions, float *out);
/* Random weights of parameter i, elements [first, first + n). They depend only on seed, name and position. pool may be
 * NULL. */
enum tr_status tr_model_init_param(const struct tr_model *m, int i, uint64_t seed, int64_t first, int64_t n,
                                   struct tr_pool *pool, float *out);
/* Forward and backward flops of one token without recompute, counted from the programs (the usual 6 N + 12 L D T). */
double tr_model_flops_per_token(const struct tr_model *m);

/* ---- the vocabulary model files are written in (blocks.c) ---- */

const struct tr_hparams *tr_build_hparams(const struct tr_build *b);
tr_val tr_embed(struct tr_build *b, enum tr_batch_slot index, const char *param, int64_t rows, int index_offset);
/* y = x W^T + b with W = <param>.weight (n_out, n_in), b = <param>.bias when has_bias */
tr_val tr_linear(struct tr_build *b, tr_val x, const char *param, int64_t n_out, bool has_bias);
/* the same with W stored (n_in, n_out), as GPT-2's Conv1D; init_std 0 = the model's */
tr_val tr_conv1d(struct tr_build *b, tr_val x, const char *param, int64_t n_out, double init_std);
tr_val tr_layernorm(struct tr_build *b, tr_val x, const char *param);
tr_val tr_rmsnorm(struct tr_build *b, tr_val x, const char *param, double weight_offset);
tr_val tr_headnorm(struct tr_build *b, tr_val x, const char *param, double weight_offset); /* per head: qk-norm */
tr_val tr_rope(struct tr_build *b, tr_val x); /* x itself where the layer has no rope */
/* The queries, keys and values of a product whose heads are in groups: the query heads of a key head, that head, its
 * values. */
void tr_split_heads(struct tr_build *b, tr_val x, tr_val *q, tr_val *k, tr_val *v);
tr_val tr_attention(struct tr_build *b, tr_val q, tr_val k, tr_val v);
tr_val tr_act(struct tr_build *b, tr_val x);
tr_val tr_glu(struct tr_build *b, tr_val g, tr_val u); /* act(g) * u */
tr_val tr_add(struct tr_build *b, tr_val x, tr_val y);
tr_val tr_scale(struct tr_build *b, tr_val x, double factor); /* x itself where factor is 1 */
tr_val tr_dropout(struct tr_build *b, tr_val x, double p);
tr_val tr_slice(struct tr_build *b, tr_val x, int64_t col, int64_t n_cols); /* a view */
/* Loss of the next token through <param>.weight (V, D): the end of every head. */
void tr_head(struct tr_build *b, tr_val x, const char *param);

#endif
