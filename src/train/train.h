/* train.h - room header of train: a compiled run is trained, evaluated, asked for text, and proven. */
#ifndef TR_TRAIN_TRAIN_H
#define TR_TRAIN_TRAIN_H

#include "build/build.h"
#include "ckpt/ckpt.h"
#include "exec/exec.h"
#include "observe/observe.h"

/* The store that ckpt reads and writes, over an executor. */
struct tr_store tr_exec_store(struct tr_exec *e);

/* Loads a checkpoint into a state that only compares: TR_NUMBERS names the first element that is not the executor's. */
enum tr_status tr_compare_checkpoint(struct tr_exec *e, const char *dir, enum tr_dtype save_dtype);

/* Opens the data of cfg->data or cfg->eval_data; the tokenizer is opened from the model directory when text needs it.
 */
enum tr_status tr_open_data(const struct tr_config *cfg, const struct tr_setup *s, const struct tr_data_list *list,
                            bool is_training, const char *cache_dir, struct tr_tokenizer **tokenizer,
                            struct tr_data **out);

struct tr_eval_result {
    double loss, perplexity;
    int64_t tokens;
};
/* Told after each batch: of how many, and the mean loss so far. */
struct tr_eval_watch {
    void (*tell)(void *ctx, uint64_t n_done, uint64_t n_all, double loss);
    void *ctx;
};
/* Mean loss over all of the data, the batches shared out over the ranks; `batch_mem` is eval_batch_bytes of memory.
 * watch may be NULL. */
enum tr_status tr_evaluate(struct tr_exec *e, const struct tr_data *d, int64_t rows, void *batch_mem,
                           const struct tr_eval_watch *watch, struct tr_eval_result *out);

/* Two properties shown on a batch at hand: changing one document changes nothing in its neighbours (bit for bit), and
 * the loss of the batch is the sum over its documents. TR_NUMBERS with both values when one does not hold. */
struct tr_proof_batch {
    struct tr_exec *e;
    struct tr_batch *micro; /* filled; tokens and targets come back changed */
    int64_t n_micro, n_tokens, row_tokens;
    const float
        *values; /* the step buffer: the training schedule runs, on all ranks together; NULL: the eval schedule */
};
struct tr_proof {
    int64_t n_pairs; /* documents that stand behind another one in their row */
    bool is_isolated;
    double split_error; /* relative */
};
enum tr_status tr_prove(const struct tr_proof_batch *b, struct tr_proof *out);
bool tr_proof_has_pair(const struct tr_batch *b, int64_t n_tokens, int64_t row_tokens);
void tr_proof_show(const struct tr_proof *p, struct tr_str *out); /* a line for people */

/* What a run says of its data before its first step (cfg->data_proof): counts, skips, masks, a sample, and where it is
 * cheap the proof above, on the step's own batch, program and layout. Uses the loader's memory; all ranks together. */
struct tr_data_proof {
    const struct tr_setup *s;
    struct tr_exec *e;
    const struct tr_data *data;
    const struct tr_tokenizer *tok; /* may be NULL */
    int64_t first_step, total_steps;
    uint64_t total_samples;
    bool has_color;
};
enum tr_status tr_prove_data(const struct tr_data_proof *p, struct tr_observe *ob);

/* Verbs. Each returns with nothing printed but what observe shows. */
enum tr_status tr_check_output(const struct tr_config *cfg); /* may a run begin there? Writes nothing */
enum tr_status tr_train(const struct tr_config *cfg);
enum tr_status tr_eval(const struct tr_config *cfg, const struct tr_eval_watch *watch, struct tr_eval_result *out);
/* A model that continues token ids, with its key/value cache. */
struct tr_generator;
/* tok bounds what can be picked (a vocabulary may be padded) and ends texts; NULL: neither. */
enum tr_status tr_generator_open(const struct tr_config *cfg, int64_t n_context, const struct tr_tokenizer *tok,
                                 struct tr_generator **out);
void tr_generator_close(struct tr_generator *g);
/* Appends ids to what the model has read; *logits (V) of the next token, valid until the next call. TR_USAGE when the
 * context is full. */
enum tr_status tr_generator_feed(struct tr_generator *g, const int32_t *ids, size_t n, const float **logits);
/* Forgets everything after the first n tokens. */
void tr_generator_rewind(struct tr_generator *g, int64_t n);
/* An id that ends a text: eos_token_id of generation_config.json and config.json, and the tokenizer's. */
bool tr_generator_is_stop(const struct tr_generator *g, int32_t id);
/* The next token under cfg's temperature, top_k, top_p and repetition_penalty; `seen` are the ids so far. */
int32_t tr_generator_pick(struct tr_generator *g, const float *logits, const int32_t *seen, size_t n_seen);

/* Continues cfg->prompt; on_text gets whole characters, piece by piece. */
typedef void tr_text_fn(void *ctx, int32_t id, const char *text, size_t n); /* id: -1 behind the last token */
enum tr_status tr_generate(const struct tr_config *cfg, tr_text_fn *on_text, void *ctx);
/* An HF directory with random weights from a config.json. */
enum tr_status tr_init_model(const struct tr_config *cfg);

/* First SIGINT, SIGTERM, SIGUSR1 or SIGHUP: finish the step, save, return TR_STOPPED. Second, or grace_s seconds after
 * any but SIGINT (0: no limit): the process ends at once with "retry me". */
void tr_stop_on_signals(double grace_s);
bool tr_stop_wanted(void);

#endif
