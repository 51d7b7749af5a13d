/* adapter.h - room header of adapter: LoRA and its kin (rsLoRA, LoRA+, DoRA, PiSSA, OLoRA), in PEFT's format.
 *
 * An adapter is described by what PEFT's adapter_config.json says. tr_adapt() rewrites a model before any pass sees it:
 * each target gets parameters and a few nodes of its own, everything else is frozen. From there on an adapter's
 * parameter is an ordinary one: buckets, shards, optimizer, plan and checkpoints treat it like any other. Model files
 * know nothing of it.
 */
#ifndef TR_ADAPTER_ADAPTER_H
#define TR_ADAPTER_ADAPTER_H

#include "config/config.h"
#include "model/model.h"

/* The version of PEFT whose keys and rules are followed; it is written into adapter_config.json. */
#define TR_PEFT_VERSION "0.21.2"

enum tr_adapter_init {
    TR_ADAPTER_KAIMING, /* true: A uniform, B zero */
    TR_ADAPTER_DEFAULT, /* false: both as a new linear has them */
    TR_ADAPTER_GAUSSIAN,
    TR_ADAPTER_ORTHOGONAL,
    TR_ADAPTER_PISSA, /* these two change the base */
    TR_ADAPTER_OLORA
};

/* A rank or an alpha for the modules whose name the Python regex (.*\.)?(KEY)$ matches. */
struct tr_adapter_pattern {
    const char *key;
    double value;
};

/* Rows of an embedding, or of the head, that are trained by themselves (trainable_token_indices). */
struct tr_adapter_tokens {
    char *module; /* the end of its name; NULL: the input embedding */
    int64_t *id;
    size_t n;
};

struct tr_adapter_regexes; /* the patterns, compiled */

struct tr_adapter {
    int64_t r;
    double alpha, dropout;
    bool use_rslora, use_dora;
    bool has_b_bias; /* PEFT's lora_bias: B has a bias */
    enum tr_lora_bias bias;
    enum tr_adapter_init init;
    int pissa_iterations;   /* pissa_niter_N of PEFT; singular vectors are exact here either way. 0: pissa */
    double loraplus_ratio;  /* learning rate of B over that of A; 1: the same. PEFT keeps it outside the file */
    bool ensures_tying;     /* ensure_weight_tying: what is trained of a tied embedding is trained of the head too */
    bool may_untie;         /* a tied embedding or head of modules_to_save is trained apart from the other */
    struct tr_words target; /* names or suffixes, or one regex; empty: PEFT's default of the family */
    bool is_regex, is_all_linear;
    struct tr_words exclude, saved, layers_pattern; /* exclude_modules, modules_to_save */
    bool exclude_is_regex;
    int64_t *layer; /* layers_to_transform */
    size_t n_layers;
    struct tr_adapter_pattern *rank_pattern, *alpha_pattern; /* in the order of the file: the first match counts */
    size_t n_rank_patterns, n_alpha_patterns;
    struct tr_adapter_tokens *tokens; /* a list for each table */
    size_t n_tokens;
    bool is_lenient; /* of options: what does not fit the model is passed over as PEFT does */
    char *base;      /* base_model_name_or_path; NULL: not said */
    cJSON *config;   /* the file as it was read; NULL: made from options. Keys that are not known are kept. */
    struct tr_adapter_regexes *regexes;
};

/* Does it begin with a part of the base, which is then trained without that part (PiSSA, OLoRA)? */
static inline bool tr_adapter_changes_base(const struct tr_adapter *a)
{
    return a->init == TR_ADAPTER_PISSA || a->init == TR_ADAPTER_OLORA;
}

const char *tr_adapter_start_name(const struct tr_adapter *a); /* "pissa", "olora"; NULL: it leaves the base alone */
/* Turns what tr_adapter_print() wrote of an adapter with this start, and was read again, into that adapter. */
enum tr_status tr_adapter_halve(struct tr_adapter *a, const char *start);

/* What the options ask for: a new adapter (finetuning_type lora), or the one of a directory that --model names. NULL in
 * *out: none. An option that contradicts the directory is TR_USAGE. */
enum tr_status tr_adapter_open(const struct tr_config *cfg, struct tr_adapter **out);
/* The two halves of it. tr_adapter_from_options: NULL in *out when the options ask for none. */
enum tr_status tr_adapter_from_options(const struct tr_config *cfg, struct tr_adapter **out);
enum tr_status tr_adapter_read(const char *dir, struct tr_adapter **out); /* reads dir/adapter_config.json */
/* The text of one; what: leads messages. It is checked as a whole: what cannot be trained here is refused by name. */
enum tr_status tr_adapter_parse(const char *text, size_t n, const char *what, struct tr_adapter **out);
void tr_adapter_close(struct tr_adapter *a);

/* What is done with one module of the model ("model.layers.3.self_attn.q_proj", "lm_head", "model.embed_tokens"). */
struct tr_adapter_target {
    char module[TR_NAME_MAX];
    bool is_target;   /* it gets A and B */
    bool is_saved;    /* modules_to_save: the module itself is trained and saved, whole */
    bool trains_bias; /* its bias, where it has one, is trained by the option bias */
    int64_t r;
    double scale;                           /* alpha / r, or alpha / sqrt(r) */
    const struct tr_adapter_tokens *tokens; /* rows that are trained by themselves; NULL: none */
    bool shares_tokens;                     /* of a tied head: they are those of the embedding */
};
/* Decides for one module, as PEFT does. is_linear: nn.Linear or Conv1D, the head too; the head of the model has is_head
 * (a tied head is the module lm_head as well). TR_USAGE: the target is neither linear nor embedding, or a pattern takes
 * too many steps. */
enum tr_status tr_adapter_decide(const struct tr_adapter *a, const struct tr_model *m, const char *module,
                                 bool is_linear, bool is_embedding, bool is_head, struct tr_adapter_target *out);

/* Every module of the model that has parameters, in HF's order, and what is done with it. */
enum tr_module_kind { TR_MODULE_LINEAR, TR_MODULE_CONV1D, TR_MODULE_EMBEDDING, TR_MODULE_HEAD, TR_MODULE_NORM };
struct tr_adapter_module {
    struct tr_adapter_target target;
    enum tr_module_kind kind;
    int64_t n_in, n_out; /* embedding: rows of the table, columns; norm: 0, size */
    bool has_bias;
};
struct tr_adapter_choice {
    struct tr_adapter_module *module;
    size_t n, n_targets, n_saved;
    int64_t n_trained; /* elements that are trained, with A, B, magnitudes, biases and saved modules */
};
/* Decides for all modules and checks the whole: TR_USAGE lists the nearest names when nothing is targeted or a name of
 * the options is misspelt, and names a rank that is larger than its matrix. Release with free(out->module). */
enum tr_status tr_adapter_choose(const struct tr_adapter *a, const struct tr_model *m, struct tr_adapter_choice *out);
/* Appends a sentence for each list of the options with names that no module of this model has and that are passed over,
 * as PEFT does: names of other families' modules, and all that a file of another trainer has; and one for a rank of
 * such a file that is above both sides of every matrix. Nothing: there are none. */
enum tr_status tr_adapter_passed(const struct tr_adapter *a, const struct tr_model *m, struct tr_str *out);

/* Is it the head, or the table of tokens? */
bool tr_adapter_is_tied(const struct tr_model *m, const struct tr_adapter_module *mod);
/* Does it train embedding or head of this tied model as a matrix of its own? Then it is for the model that
 * tr_model_options.unties opens. */
enum tr_status tr_adapter_unties(const struct tr_adapter *a, const struct tr_model *m, bool *out);

/* Appends the text of adapter_config.json for this model: every key that PEFT writes, sorted and indented as it does.
 * An adapter that changes the base is written as PEFT converts it: an ordinary one of twice the rank and the same
 * scale, for the base as it is (ckpt/save_join.c). */
enum tr_status tr_adapter_print(const struct tr_adapter *a, const struct tr_model *m, struct tr_str *out);

/* Appends one line of what is trained: "LoRA r 16 alpha 32 on 210 modules: 4.88 M parameters". */
enum tr_status tr_adapter_summary(const struct tr_adapter *a, const struct tr_model *m, struct tr_str *out);

/* Rewrites m. Fails as tr_adapter_choose does. */
enum tr_status tr_adapt(struct tr_model *m, const struct tr_adapter *a, bool is_training);

#endif
