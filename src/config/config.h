/* config.h - room header of config: one option = one row of options.c -> parse, help, man page, environment name, dump.
 *
 * tr_config_load fills a struct once; after that it is const. Precedence: command line, --set, file (--config),
 * environment TRIREME_NAME, default; each value remembers its origin. All errors of a load come back together, one a
 * line.
 */
#ifndef TR_CONFIG_CONFIG_H
#define TR_CONFIG_CONFIG_H

#include "base/base.h"
#include "config/choices.h"
#include "config/pair_loss.h"

struct tr_data_source {
    const char *path;
    double weight;    /* > 0; 1 when not given */
    const char *map;  /* a JSON object: how its records are read (data/map.h); NULL: by the usual names */
    const char *name; /* eval_data: of the set that it belongs to; NULL: none */
};
struct tr_data_list {
    const struct tr_data_source *item;
    size_t n;
};
struct tr_words {
    const char *const *item;
    size_t n;
    const int *position; /* of each item, in the order in which the items of all lists were given */
};

/* Strings that were not given are NULL. Every value is inside the range of its row. */
struct tr_config {
    const struct config_full *full; /* private: where each value came from; a copy of a configuration has it too */
    enum tr_verb verb;
    struct tr_words args; /* words that are not options: `data check`, `ckpt show DIR` */
    bool help;            /* --help: nothing was required, print tr_config_help() */

    /* run */
    const char *config;       /* the run file; for init the model's config.json is model_config */
    const char *model_config; /* init only: --config */
    const char *from;         /* the tool whose file config is; NULL: by its keys */
    struct tr_words skip;     /* keys of such a file that are left out */
    const char *output;
    const char *http; /* watch: [ADDR:]PORT or "auto" */
    const char *html; /* watch: file of the page */
    bool any_interface, plain;
    int64_t seed, data_seed; /* data_seed: seed when not given */
    bool json, quiet;
    const char *resume_from_checkpoint; /* "auto", "none" or a path; default "none" */
    struct tr_words allow_change;       /* on resume */
    enum tr_reproducible reproducible;
    enum tr_export to;   /* ckpt export */
    enum tr_show show;   /* plan */
    bool legal;          /* plan: print the rules of what can be combined */
    const char *machine; /* plan and train */
    bool search, table;
    int64_t gpus; /* -1: one node */
    enum tr_objective objective;
    const char *scale, *tokens;         /* "auto" or counts; a count of tokens */
    double price, days;                 /* 0: the machine's; no bound */
    double mttf_hours, restart_minutes; /* 0: the machine's */
    const char *timeline, *memory_picture, *compare;
    const char *against; /* replay */
    enum tr_count_as conventions;

    /* model and data */
    const char *model;
    bool resize_vocab;
    bool from_scratch;     /* random weights for model's config.json */
    const char *tokenizer; /* init: "bytes" or NULL */
    struct tr_words ignore_config_keys;
    double dropout; /* < 0: as the model's config says */
    double neftune_noise_alpha;
    bool use_dft_loss;
    double label_smoothing_factor, z_loss;
    struct tr_data_list data, eval_data;
    const char *eval_choices; /* multiple choice; NULL: none */
    int64_t sequence_length;  /* 0: the model's max_position_embeddings decides */
    enum tr_data_format data_format;
    const char *text_key, *chat_template; /* NULL: "text"; the model's own */
    const char *fetch_command;            /* for data that is an address; NULL: it is refused */
    const char *chat_template_kwargs;     /* a JSON object, or NULL */
    const char *chat_date;                /* for templates that ask; NULL: that of the run's first start */
    enum tr_train_on train_on;
    bool loss_weights;
    enum tr_packing_choice packing;
    enum tr_long_documents long_documents;
    enum tr_streaming streaming;
    enum tr_sampling train_sampling_strategy;
    enum tr_data_proof_choice data_proof;
    int64_t max_skipped;
    int64_t max_samples, max_eval_samples; /* records of a source; 0: all */
    double eval_split;                     /* share of the rows held out for evaluation */
    int64_t step;                          /* data show, replay, explain */

    /* batch and length: per_device * accumulation * dp == train_batch_size holds after load */
    int64_t per_device_train_batch_size, gradient_accumulation_steps, train_batch_size;
    bool finds_batch; /* per_device_train_batch_size auto: it is that of the whole share until tr_find_batch */
    int64_t per_device_eval_batch_size;
    int64_t max_steps; /* -1: num_train_epochs decides */
    double num_train_epochs;

    /* optim */
    struct tr_words trainable, frozen; /* patterns of parameter names */
    const char *optim_groups;
    enum tr_optim_kind optim;
    enum tr_offload offload_optimizer, offload_param;
    const char *offload_optimizer_dir, *offload_param_dir; /* of TR_OFFLOAD_DISK; one directory where both are */
    bool offload_activations, offload_gradients;
    enum tr_update_place offload_update;
    double offload_share; /* < 0: as little as fits */
    enum tr_muon_adjust muon_adjust_lr_fn;
    double muon_momentum;
    bool adafactor_relative_step, adafactor_scale_parameter;
    double learning_rate, weight_decay, adam_beta1, adam_beta2, adam_epsilon, momentum;
    double max_grad_norm; /* 0 = off */
    enum tr_lr_schedule lr_scheduler_type;
    double warmup_steps, decay_steps; /* < 1: share of all steps; see tr_config_steps() */
    double min_lr_ratio;
    enum tr_lr_curve warmup_type, decay_type;
    double lr_num_cycles, lr_end, lr_power, lr_timescale; /* cycles, timescale < 0: the schedule's own */

    /* preference training; tr_config_pair() has it together */
    enum tr_task task;
    const char *loss_type;
    double beta; /* < 0: that of the task */
    double label_smoothing, simpo_gamma, rpo_alpha, desirable_weight, undesirable_weight;
    enum tr_divergence f_divergence_type;
    double f_alpha_divergence_coef, discopop_tau, ld_alpha;
    bool use_weighting;
    const char *ref_model; /* NULL: the model itself, before the first step */

    /* adapters: what adapter_config.json calls them, where PEFT has the key */
    enum tr_tuning finetuning_type;
    int64_t lora_r;
    double lora_alpha; /* < 0: 2 x lora_r */
    double lora_dropout;
    struct tr_words lora_target_modules, lora_modules_to_save, exclude_modules;
    bool use_rslora, use_dora;
    const char *init_lora_weights;
    double loraplus_lr_ratio;                    /* 1: A and B learn at one rate */
    struct tr_words rank_pattern, alpha_pattern; /* NAME=NUMBER */
    struct tr_words layers_to_transform, layers_pattern, trainable_token_indices;
    enum tr_lora_bias lora_bias; /* PEFT's bias */
    bool lora_b_bias;            /* PEFT's lora_bias */
    bool ensure_weight_tying;
    bool peft_rules;        /* what does not fit the model is passed over as PEFT does */
    const char *model_base; /* the base of the adapter that `model` names */
    enum tr_onto onto;      /* ckpt merge */
    int64_t rows;
    bool untie;

    /* log and checkpoint: 0 = never (save: only at the end; limit: keep all) */
    struct tr_words report_to;           /* trackers */
    const char *run_name, *metrics_file; /* NULL: none */
    int64_t profile, profile_steps;      /* first step of a profile, 0 = none; how many */
    int64_t save_total_limit, replica_check_steps, grad_norm_steps;
    double logging_steps, eval_steps, save_steps; /* < 1: share of all steps; see tr_config_steps() */
    enum tr_when eval_strategy, save_strategy;
    double eval_delay; /* steps, or epochs with eval_strategy epoch */
    bool eval_on_start, load_best_model_at_end;
    const char *metric_for_best_model; /* see struct tr_best_rule */
    int64_t early_stopping_patience;
    double early_stopping_threshold;
    int64_t save_keep_every, max_save_failures;
    bool save_best, save_only_model, verify_restore;
    enum tr_save_choice async_save;
    double save_wait, save_timeout; /* seconds */

    /* faults */
    enum tr_nonfinite nonfinite;
    int64_t nonfinite_budget;
    bool sdc_check;
    double spike_zscore;  /* 0 = off */
    double preempt_grace; /* seconds; 0 = no limit */

    /* precision */
    enum tr_dtype dtype, master_dtype, grad_dtype, moment_dtype, reduce_dtype;
    enum tr_packed base_dtype;
    bool load_in_4bit, bnb_4bit_use_double_quant;
    enum tr_packed bnb_4bit_quant_type;

    /* engine and memory */
    enum tr_device_choice device;
    enum tr_gemm_choice gemm;
    int64_t threads; /* 0 = all */
    enum tr_recompute recompute;
    int64_t memory_budget; /* bytes; 0 = what the machine has */

    /* mesh */
    int64_t dp, zero, hybrid_shard, tp, pp, pp_chunks, cp;
    bool fp8;
    enum tr_dtype fp8_gradient; /* TR_E4M3 or TR_E5M2 */
    enum tr_fp8_scaling fp8_scaling;
    bool sp;
    const char *pp_schedule;
    enum tr_cp_mode cp_mode;
    enum tr_sync sync;
    enum tr_comm_choice comm;
    double ddp_timeout; /* seconds */

    /* bench */
    int64_t bytes_max;
    double seconds;
    bool heap;

    /* generate */
    const char *prompt, *prompts, *sample_prompts, *system;
    const char *sort;                              /* runs */
    double wait;                                   /* ctl: seconds to wait for an answer */
    int64_t max_new_tokens, top_k;                 /* top_k 0 = all */
    double temperature, top_p, repetition_penalty; /* temperature 0 = greedy */
};

/* The format that the options ask to hold frozen weights in. */
static inline enum tr_packed tr_config_packed(const struct tr_config *cfg)
{
    return cfg->load_in_4bit ? cfg->bnb_4bit_quant_type : cfg->base_dtype;
}

/* The same as trireme/base.json of an adapter records it: "nf4", "fp4:double", "fp8"; "": not packed. Returns out. */
enum { TR_CONFIG_QUANT_MAX = 32 };
const char *tr_config_quant(const struct tr_config *cfg, char out[TR_CONFIG_QUANT_MAX]);

/* argv holds what follows the verb. envp may be NULL. TR_USAGE: the error text has one line per error.
 * Close with tr_config_close (NULL is fine). */
enum tr_status tr_config_load(enum tr_verb verb, int argc, char *const *argv, char *const *envp,
                              const struct tr_config **out);
void tr_config_close(const struct tr_config *cfg);

/* Lines for the user that are no errors (old names, values without effect); "" when there are none. */
struct tr_import;
const struct tr_import *tr_config_import(const struct tr_config *cfg); /* NULL: no file of another trainer was read */
void tr_config_import_json(const struct tr_config *cfg, struct tr_str *out);
const char *tr_config_notices(const struct tr_config *cfg);
/* "command line --lr", "run.yaml:3:5", "default" ...; name is a canonical option name. */
const char *tr_config_origin(const struct tr_config *cfg, const char *name);
bool tr_config_is_set(const struct tr_config *cfg, const char *name); /* origin is not the default */

/* warmup_steps or decay_steps as a count: n >= 1 is itself, a share is rounded up (as transformers does). */
int64_t tr_config_steps(double steps_or_share, int64_t total_steps);

/* eval_sets.c: the sets of eval_data: *n names in the order in which they were first given, or one that is NULL where
 * no source has a name. TR_USAGE: some sources have names and some have not, there are more than TR_EVAL_SETS_MAX, or
 * there is no such metric. */
enum { TR_EVAL_SETS_MAX = 16 };
enum tr_best_of {
    TR_BEST_LOSS,
    TR_BEST_ACC,
    TR_BEST_ACC_NORM,
    TR_BEST_ACC_BYTES,
    TR_BEST_REWARD_ACCURACY,
    TR_BEST_MARGIN
};
struct tr_best_rule { /* what metric_for_best_model means */
    size_t i_set;
    enum tr_best_of of; /* of losses the least is the best, of all others the largest */
};
enum tr_status tr_config_eval_sets(const struct tr_config *cfg, const char *name[TR_EVAL_SETS_MAX], size_t *n,
                                   struct tr_best_rule *best);
enum tr_best_of tr_config_best_of(const struct tr_config *cfg); /* of options that were checked */

/* preference.c: how pairs are trained, by options that were checked; not tr_pair_is_on(): the task has none. */
struct tr_pair_rule tr_config_pair(const struct tr_config *cfg);
bool tr_config_needs_reference(const struct tr_config *cfg);

/* Words of enums, as a user types them. name is the canonical option name: tr_config_word("optim", TR_OPTIM_LION). */
const char *tr_config_word(const char *name, int value);
/* One more word for --optim, before options are parsed. The rows of optimizers are in optim/optim.h. */
enum { TR_CONFIG_OPTIMS_MAX = 8 };
enum tr_status tr_config_add_optim(const char *word, int value);
bool tr_verb_parse(const char *word, enum tr_verb *out);
const char *tr_verb_word(enum tr_verb verb);
const char *tr_verb_what(enum tr_verb verb);
enum tr_status tr_verb_misused(enum tr_verb verb); /* fails with the words that may follow it */

/* Every option that must be the same on all ranks: its name, and a number that differs where values do (an integer
 * itself). Returns how many there are, at most max. */
enum { TR_CONFIG_KEYS_MAX = 256 };
int tr_config_keys(const struct tr_config *cfg, int max, const char **names, int64_t *values);

/* All append; check tr_str_ok(). */
void tr_config_dump(const struct tr_config *cfg, struct tr_str *out); /* name, value, origin: one line each */
/* One flat object {"learning_rate": 5e-05, ...}; with_origin: {"learning_rate": {"value": .., "origin": ".."}, ...}. */
void tr_config_json(const struct tr_config *cfg, bool with_origin, struct tr_str *out);
/* " --name value" for every option that was given, as the command line of `verb` takes it: in words of a shell, without
 * options that `verb` does not have and without those of `except`, which NULL ends. */
void tr_config_arguments(const struct tr_config *cfg, enum tr_verb verb, const char *const *except, struct tr_str *out);
void tr_config_help(enum tr_verb verb, struct tr_str *out);
void tr_config_man(enum tr_verb verb, struct tr_str *out);
void tr_config_man_all(struct tr_str *out);                                 /* trireme(1) */
enum tr_status tr_config_completion(const char *shell, struct tr_str *out); /* bash, zsh, fish */
void tr_config_list(struct tr_str *out); /* every row, one line each: frozen by tests/config/options.txt */

#include "config/legal.h"

#endif
