/* saving.h - checkpoints of a training: when one is taken, and how its result is reported. All ranks call every
 * function together. */
#ifndef TR_TRAIN_SAVING_H
#define TR_TRAIN_SAVING_H

#include "train/state.h"

/* chat_files.c: what a run on conversations writes beside the weights, so that the model is used as it was trained.
 * Empty where the model's own file is right. */
struct tr_chat_files {
    struct tr_str jinja;      /* chat_template.jinja: the template of --chat_template */
    struct tr_str generation; /* generation_config.json with the end of a turn among its eos_token_id */
    char note[320];           /* a line for the user; "": none */
};
/* tok may be NULL. */
enum tr_status tr_chat_files_make(const struct tr_setup *s, const struct tr_data *data, const struct tr_tokenizer *tok,
                                  struct tr_chat_files *out);
void tr_chat_files_release(struct tr_chat_files *f);

struct tr_saving;
struct tr_saving_options { /* everything it points to outlives the saving */
    const struct tr_setup *s;
    struct tr_exec *e;
    const struct tr_run_inputs *in;
    struct tr_observe *ob;
    struct tr_run_state *state;
    const char *events_path;
    const char *resumed_from; /* the directory of a checkpoint; NULL: a new run */
};
enum tr_status tr_saving_open(const struct tr_saving_options *opt, struct tr_saving **out);
/* False: a save hangs in the disk, and its thread may still use what the options point to. */
bool tr_saving_close(struct tr_saving *v);

/* Called after every step: checks the save in flight, and starts one when it is due. A failed save costs a checkpoint,
 * never the training (C1). An error ends the training: ranks that cannot communicate, or max_save_failures. */
enum tr_status tr_saving_step(struct tr_saving *v, bool is_due, int64_t step, int64_t tokens);
/* Saves the state if it is not saved yet, and returns when everything is on the disk or reported. */
enum tr_status tr_saving_finish(struct tr_saving *v, int64_t step, int64_t tokens);
enum tr_status tr_saving_model(struct tr_saving *v);
int64_t tr_saving_last(const struct tr_saving *v);                /* the step that is saved or in flight; -1: none */
bool tr_saving_is_saved(const struct tr_saving *v, int64_t step); /* its checkpoint is complete */
double tr_saving_seconds(const struct tr_saving *v); /* how long the last save took, from its start to its end */
/* records an evaluation, for the best checkpoint */
void tr_saving_evaluated(struct tr_saving *v, int64_t step, double loss);

#endif
