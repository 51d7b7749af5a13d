/* build.h - room header of build: a configuration turned into a compiled run, without data, weights or ranks. `train`,
 * `plan` and `eval` all compile here, so that a plan has the bytes of the run. */
#ifndef TR_BUILD_BUILD_H
#define TR_BUILD_BUILD_H

#include "adapter/adapter.h"
#include "build/text.h"
#include "ckpt/ckpt.h"
#include "data/data.h"
#include "parallel/parallel.h"

/* Where a model comes from: --model names a model's directory or an adapter's. */
struct tr_dirs {
    struct tr_adapter *adapter; /* NULL: none. A new one, or that of `dir` */
    const char *dir;            /* the adapter's directory; NULL: none, or a new adapter. It is cfg->model */
    int64_t n_ids;          /* of the tokenizer, which the vocabulary grows to (resize_vocab); 0: it does not grow */
    char base[TR_PATH_MAX]; /* config.json and weights */
    char text[TR_PATH_MAX]; /* tokenizer and chat template: the adapter's own where it has them, else the base's */
};
/* Refuses a directory of several adapters by listing them, and an adapter whose base is not found. */
enum tr_status tr_dirs_open(const struct tr_config *cfg, struct tr_dirs *out);
/* Is the model's directory there? For verbs that take no name in its place. */
enum tr_status tr_dirs_need_model(const struct tr_dirs *s);
/* The same of a directory that a tool works on: there are no options of a run. dir outlives it. */
enum tr_status tr_dirs_of(const char *dir, const char *model_base, struct tr_dirs *out);
void tr_dirs_close(struct tr_dirs *s);
/* The model of the base as an adapter wants it: with as many rows as its file has, and a head of its own where it
 * trains one. dir and a may be NULL. */
enum tr_status tr_adapted_open(const char *base, const char *dir, const struct tr_adapter *a,
                               const struct tr_model_options *opt, struct tr_model **out);
/* The model of the base, with the adapter in it. */
enum tr_status tr_dirs_model(const struct tr_dirs *s, const struct tr_model_options *opt, bool is_training,
                             struct tr_model **out);
/* Names and shapes of both directories against the model, and the identity of the base; only headers and samples are
 * read. */
enum tr_status tr_dirs_check(const struct tr_dirs *s, const struct tr_model *m);
/* Weights of the base, then those of the adapter. A new adapter is left as it is. */
enum tr_status tr_dirs_load(const struct tr_dirs *s, const struct tr_store *store, float *buf);
/* The same with a checkpoint of the run instead: all of a model, or the adapter, once the base is there. */
enum tr_status tr_dirs_restore_base(const struct tr_dirs *s, const struct tr_store *store, float *buf);
enum tr_status tr_dirs_restore(const struct tr_dirs *s, const struct tr_store *store, const char *checkpoint,
                               float *buf);
/* Calls fn for every adapter directory below dir, up to two levels down, in the order of names. */
typedef enum tr_status tr_adapter_dir_fn(void *ctx, const char *path);
enum tr_status tr_adapter_dirs(const char *dir, tr_adapter_dir_fn *fn, void *ctx);

/* Everything decided before step 0 that needs no data and no weights. `plan` stops here; `train` goes on from here. */
struct tr_setup {
    const struct tr_config *cfg;
    struct tr_dirs from;
    int64_t sequence_length;
    int n_threads;
    struct tr_model *model, *eval_model;
    int axis[TR_AXES]; /* sizes of the mesh */
    const struct tr_device_row *device;
    struct tr_comm_env env; /* of this process; for plans: rank 0 of as many as the mesh has */
    struct tr_loader_shape loader;
    /* data arena: the loader's, then a batch of evaluation, then one of text, then what tr_setup_match_bytes says */
    size_t loader_bytes, eval_batch_bytes, text_batch_bytes, match_bytes;
    struct tr_prompts prompts; /* sample_prompts of a training */
    struct tr_text_shape text;
    struct tr_model *text_model[TR_PURPOSES]; /* prefill, chunk, decode; NULL: the run makes no text */
    enum tr_dtype save_dtype;
    bool *is_frozen;    /* by parameter; NULL: all learn */
    uint8_t *n_saved;   /* by parameter: tensors of the adapter's file that hold it; NULL: the run trains no adapter */
    uint8_t *packed_of; /* by parameter, enum tr_packed; NULL: none is packed */
    struct tr_param_groups groups;
    struct tr_compiled *compiled;
    tr_make_fn *on_make; /* of the data that is opened; may be NULL */
    void *on_make_ctx;
};

enum tr_use { TR_USE_TRAIN, TR_USE_EVAL, TR_USE_TEXT, TR_USE_PROOF };
enum { TR_PROOF_ROWS = 2 };             /* of a proof's batch */
enum { TR_SAVE_PART_BYTES = 16 << 20 }; /* weights below this share a file and a writer */
enum tr_status tr_setup_open(const struct tr_config *cfg, enum tr_use use, struct tr_setup **out);
/* A model that makes text. config: that of the model, whose weights are in memory; NULL: cfg->model is a directory. */
enum tr_status tr_setup_open_text(const struct tr_config *cfg, const struct tr_text_shape *text, const cJSON *config,
                                  struct tr_setup **out);
/* What measuring n_rows samples in batches of eval_rows needs before a loss of transport: the memory of data/match.h,
 * then the sums of a batch; 0: the rule has no such loss. */
size_t tr_setup_match_bytes(const struct tr_pair_rule *k, int64_t row_tokens, int64_t eval_rows, uint64_t n_rows);
/* Bytes that one rank may have on this machine (tr_setup_budget); 0: not known. */
uint64_t tr_setup_memory(const struct tr_setup *s);
/* The same for another rank than this process: for plans. */
enum tr_status tr_setup_open_rank(const struct tr_config *cfg, enum tr_use use, int rank, struct tr_setup **out);
void tr_setup_axes(const struct tr_config *cfg, int axis[TR_AXES]); /* sizes of the mesh that the options ask for */
/* The legality rules, and with a model what they say of the mesh that was asked for. */
enum tr_status tr_setup_legal(const struct tr_config *cfg, struct tr_str *out);
/* The positions that config.json gives the model. */
enum tr_status tr_setup_positions(const struct tr_config *cfg, int64_t *out);
/* Bytes that a rank may take where no budget is given; 0: unknown. host_bytes: of the host, which n_ranks share. */
uint64_t tr_setup_budget(const struct tr_device_row *device, uint64_t host_bytes, uint64_t n_ranks);
/* Tokens of a row: as asked, else what the model was made for, up to a bound. */
enum tr_status tr_setup_length(const struct tr_config *cfg, int64_t *out);
/* How each parameter is held packed (free it): as the files of `dir` have it, else by the options; NULL: none is.
 * is_frozen NULL: none learns. */
enum tr_status tr_setup_packed(const struct tr_config *cfg, const char *dir, const struct tr_model *m,
                               const bool *is_frozen, uint8_t **out);
void tr_setup_close(struct tr_setup *s);
/* A line, with its end, about rows that are longer than the model's positions; nothing when they are not. */
void tr_setup_note_positions(const struct tr_setup *s, struct tr_str *out);
/* The device that was asked for; when none was and the run has one rank, the fastest that is here; else the CPU. */
const struct tr_device_row *tr_choose_device(const struct tr_config *cfg, int n_ranks);

#endif
