/* train.h - room header of train: a compiled run is trained, evaluated, asked for text, and proven. */
#ifndef TR_TRAIN_TRAIN_H
#define TR_TRAIN_TRAIN_H

#include "build/build.h"
#include "ckpt/ckpt.h"
#include "exec/exec.h"
#include "observe/observe.h"
#include "train/decode.h"
#include "train/merge.h"

/* The store that ckpt reads and writes, over an executor. */
struct tr_store tr_exec_store(struct tr_exec *e);

/* Loads a checkpoint and compares it with the executor's state. TR_NUMBERS names the first element that differs. */
enum tr_status tr_compare_checkpoint(struct tr_exec *e, const char *dir, enum tr_dtype save_dtype);

/* The directory where eval and data keep the tokens of a text. */
enum tr_status tr_reader_cache(const struct tr_config *cfg, char out[TR_PATH_MAX]);
/* Opens the data of cfg->data or cfg->eval_data. The tokenizer is opened from the model directory when the data is
 * text. */
enum tr_status tr_open_data(const struct tr_config *cfg, const struct tr_setup *s, const struct tr_data_list *list,
                            bool is_training, const char *cache_dir, struct tr_tokenizer **tokenizer,
                            struct tr_data **out);
/* Adds a line for each option of records that has no effect on this data. */
void tr_note_idle_data(const struct tr_config *cfg, const struct tr_data *d, struct tr_str *out);

/* chat_files.c: refuses conversations that begin with BOS twice, and those in which the end of a turn is nowhere a
 * target. notes: a source in which it is not, beside others in which it is. data_proof none: nothing is checked. */
enum tr_status tr_check_turns(const struct tr_setup *s, const struct tr_data *data, const struct tr_tokenizer *tok,
                              struct tr_str *notes);

struct tr_eval_result {
    bool is_first; /* this rank reports for all */
    double loss, perplexity;
    int64_t tokens; /* or pairs; 0: there is no data, and no loss */
    struct tr_event_pairs pairs;
    struct tr_event_choices choices;
    char note[160]; /* a line about the rows, or "" */
};
/* The means of n pairs, or of n answers with labels, from their sums (enum tr_metric). */
struct tr_event_pairs tr_pairs_of(const struct tr_pair_rule *k, const double sum[TR_METRICS], int64_t n, double kl);
/* How far the model is from its reference: the mean of log p - log r over the mismatched documents of samples [first,
 * end), all ranks together, and at least 0. 0 where the loss reads none. rows, batch_mem: as for tr_evaluate. */
enum tr_status tr_measure_kl(struct tr_exec *e, const struct tr_data *d, uint64_t first, uint64_t end, int64_t rows,
                             void *batch_mem, double *kl);
/* Of a loss of transport: runs the samples of a step forward, and writes into its micro-batches what each answer is
 * compared with. Nothing where the loss is none. match_mem: tr_setup_match_bytes of a step. */
enum tr_status tr_match_step(struct tr_exec *e, const struct tr_data *d, const struct tr_step_batch *b, int64_t rows,
                             const struct tr_loader_shape *shape, void *batch_mem, void *match_mem);
/* The log-likelihoods of the choices of one item of --choices. */
typedef void tr_item_fn(void *ctx, const double *ll, size_t n);
/* Called after each batch, with the number of batches done, of all batches, and the mean loss so far. */
struct tr_eval_watch {
    void (*tell)(void *ctx, uint64_t n_done, uint64_t n_all, double loss);
    tr_item_fn *on_item; /* may be NULL */
    void *ctx;
};
/* Mean loss over all of the data; the ranks share the batches. `batch_mem` is eval_batch_bytes of memory. watch may be
 * NULL. */
enum tr_status tr_evaluate(struct tr_exec *e, const struct tr_data *d, int64_t rows, void *batch_mem,
                           const struct tr_eval_watch *watch, struct tr_eval_result *out);

/* Proves two properties on a given batch: changing one document changes no bit of its neighbours, and the loss of the
 * batch is the sum over its documents. TR_NUMBERS with both values when one does not hold. */
struct tr_proof_batch {
    struct tr_exec *e;
    struct tr_batch *micro; /* already filled; the call changes tokens and targets */
    int64_t n_micro, n_tokens, row_tokens;
    const float
        *values; /* the step buffer: the training schedule runs, on all ranks together; NULL: the eval schedule */
};
struct tr_proof {
    int64_t n_pairs; /* documents that stand behind another one in their row */
    bool is_finite;  /* a loss that is not finite proves nothing about documents: the first step finds its cause */
    bool is_isolated;
    double split_error; /* relative */
};
enum tr_status tr_prove(const struct tr_proof_batch *b, struct tr_proof *out);
bool tr_proof_has_pair(const struct tr_batch *b, int64_t n_tokens, int64_t row_tokens);
void tr_proof_show(const struct tr_proof *p, struct tr_str *out); /* a line for people */

/* What a run reports about its data before its first step (cfg->data_proof): counts, skips, masks, a sample, and where
 * it is cheap the proof above, on the batch, program and layout of the step. It uses the loader's memory. All ranks
 * call it together. */
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

/* The verbs of the command line. They print only through observe. */
enum tr_status tr_check_output(const struct tr_config *cfg); /* may a run begin in cfg->output? Writes nothing */
enum tr_status tr_train(const struct tr_config *cfg);
enum tr_status tr_eval(const struct tr_config *cfg, const struct tr_eval_watch *watch, struct tr_eval_result *out);

/* A step of the run in cfg->output, made again (replay.c): cfg->step. */
struct tr_replay_numbers {
    bool exists;
    double loss, grad_norm;
};
struct tr_fingerprint { /* of gradients, by parameter */
    int n;
    char **name; /* NULL: it does not learn */
    double *norm;
    uint64_t *hash; /* equal hashes: equal bits, on any layout */
};
struct tr_replay {
    int64_t step, from; /* from: steps of the checkpoint that it began with; 0: the start of the run */
    struct tr_replay_numbers made, recorded;
    bool is_equal;     /* to the record, to the bit */
    int64_t first_off; /* the first step on the way that is not as recorded; -1: none */
    struct tr_fingerprint gradients;
    bool is_first; /* this rank reports for all */
};
enum tr_status tr_replay(const struct tr_config *cfg, struct tr_replay *out);
void tr_replay_release(struct tr_replay *r);
bool tr_replay_same(double a, double b); /* are two numbers the same, as a log can tell them? */

/* What is behind the loss of a step (explain.c): its samples and tokens by loss, and its layers by gradient norm beside
 * those of the steps around it. Losses are without dropout and noise. */
enum { TR_EXPLAIN_SAMPLES = 5, TR_EXPLAIN_TOKENS = 10, TR_EXPLAIN_LAYERS = 5, TR_EXPLAIN_TEXT = 48 };
struct tr_explain_loss {
    uint64_t sample;
    int64_t token;                                       /* in the row; of a sample: its first target */
    int32_t id;                                          /* of a token */
    int64_t n_targets;                                   /* of a sample */
    double loss;                                         /* of a sample: the mean over its targets */
    char text[TR_EXPLAIN_TEXT], before[TR_EXPLAIN_TEXT]; /* of a token, and of those before it */
    char path[TR_PATH_MAX];                              /* of the record */
    int64_t line;                                        /* 0: unknown */
};
struct tr_explain_layer {
    char name[32];
    double norm, usual; /* usual: the median of other steps */
};
struct tr_explain {
    int64_t step, from;
    struct tr_replay_numbers made, recorded;
    double usual_loss, usual_norm; /* medians of n_logged steps of the log around it */
    int n_logged, n_around;        /* n_around: steps that layers are compared with */
    int64_t n_targets;
    double loss; /* mean over all targets, as they are listed here */
    struct tr_explain_loss sample[TR_EXPLAIN_SAMPLES], token[TR_EXPLAIN_TOKENS];
    struct tr_explain_layer layer[TR_EXPLAIN_LAYERS];
    int n_samples, n_tokens, n_layers;
};
enum tr_status tr_explain(const struct tr_config *cfg, struct tr_explain *out);

/* A model that continues token ids, with its key/value cache. */
struct tr_generator;
/* tok limits the ids that can be picked (a vocabulary may be padded) and gives the stop token; NULL: neither. */
enum tr_status tr_generator_open(const struct tr_config *cfg, int64_t n_context, const struct tr_tokenizer *tok,
                                 struct tr_generator **out);
/* A generator for tr_generator_each, of the model that a store holds; NULL: that of cfg->model. */
enum tr_status tr_generator_open_each(const struct tr_config *cfg, int64_t n_context, const struct tr_store *weights,
                                      struct tr_generator **out);
void tr_generator_close(struct tr_generator *g);
/* Appends ids to the context. *logits (V) are those of the next token, valid until the next call. TR_USAGE when the
 * context is full. */
enum tr_status tr_generator_feed(struct tr_generator *g, const int32_t *ids, size_t n, const float **logits);
/* The same of a generator for it, with the logits of every token. */
enum tr_status tr_generator_each(struct tr_generator *g, const int32_t *ids, size_t n, tr_logits_fn *fn, void *ctx);
/* Drops everything after the first n tokens of the context. */
void tr_generator_rewind(struct tr_generator *g, int64_t n);
/* Does the id end a text? Stop ids are eos_token_id of generation_config.json and config.json, and the tokenizer's. */
bool tr_generator_is_stop(const struct tr_generator *g, int32_t id);
/* The next token under cfg's temperature, top_k, top_p and repetition_penalty; `seen` are the ids so far. */
int32_t tr_generator_pick(struct tr_generator *g, const float *logits, const int32_t *seen, size_t n_seen);

/* Continues cfg->prompt, or the prompts of cfg->prompts one after the other; on_text gets whole characters, piece by
 * piece, on the first rank only. id is -1 after the last token of a prompt. */
typedef void tr_text_fn(void *ctx, const char *prompt, int32_t id, const char *text, size_t n);
enum tr_status tr_generate(const struct tr_config *cfg, tr_text_fn *on_text, void *ctx);
/* An HF directory with random weights from a config.json. */
enum tr_status tr_init_model(const struct tr_config *cfg);

/* Requests to a running training (`trireme ctl`). The run reads one between two steps and logs a `control` event with
 * its id. */
enum tr_control_action {
    TR_CONTROL_NONE,
    TR_CONTROL_SAVE,
    TR_CONTROL_STOP,
    TR_CONTROL_PAUSE,
    TR_CONTROL_RESUME,
    TR_CONTROL_EVAL,
    TR_CONTROL_SAMPLE,
    TR_CONTROL_SET,
    TR_CONTROL_ACTIONS
};
const char *tr_control_word(enum tr_control_action a);
enum tr_status tr_control_parse(const char *word, enum tr_control_action *out);
/* key and value: of `set`, else "". TR_USAGE: no run takes requests there, or not from this user. wait_s: how long a
 * request of somebody else that the run has not read yet is waited for. */
enum tr_status tr_control_send(const char *output, const char *action, const char *key, const char *value,
                               double wait_s, char id[33]);

/* SIGINT, SIGTERM, SIGUSR1 or SIGHUP, once or many times: finish the step, save, return TR_STOPPED, or TR_UNSAVED when
 * the save did not succeed. Ctrl-C twice at a terminal, or grace_s seconds after the first that is no SIGINT (0: no
 * limit): the process ends at once with TR_EXIT_UNSAVED. */
void tr_stop_on_signals(double grace_s);
/* For verbs that save nothing: a process that has not ended by itself 0.3 s after the first of these signals, because a
 * batch or a chunk takes longer, ends then with TR_EXIT_RETRY. */
void tr_stop_soon_on_signals(void);
bool tr_stop_wanted(void);
/* After each batch of what takes long: all ranks end it, with TR_STOPPED, when one of them was told to stop. */
enum tr_status tr_stop_together(struct tr_exec *e, const char *what);

#endif
