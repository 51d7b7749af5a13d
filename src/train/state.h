/* state.h - what a checkpoint records about the run: trireme/state.json (our format) and trainer_state.json (HF's
 * format). */
#ifndef TR_TRAIN_STATE_H
#define TR_TRAIN_STATE_H

#include "train/control.h"
#include "train/history.h"
#include "train/scaler.h"
#include "train/train.h"

struct tr_run_best { /* the best evaluation of a saved step */
    bool exists;
    int64_t step;
    double loss; /* or another metric, negative where the largest is the best */
};
struct tr_run_patience { /* of the evaluations so far, saved steps or not */
    bool exists;
    double best; /* the least loss, after best_step */
    int64_t best_step;
    int64_t n_worse; /* evaluations in a row that were no better */
};
struct tr_run_state {
    char run_id[TR_CKPT_RUN_ID_MAX];
    int64_t step, tokens, generation;
    int64_t skipped;         /* steps whose loss or norm was not finite */
    struct tr_scaler scaler; /* of float16 */
    struct tr_run_best best;
    struct tr_run_patience patience;
    bool lacks_eval;              /* a signal cut the evaluation of this step short: a resume makes it */
    struct tr_ledger ledger;      /* values that were set while the run went on */
    struct tr_amax_history *amax; /* fp8 with delayed scales: owned by the executor; NULL: none */
    char *origin;                 /* JSON: where the run comes from; owned by the trainer */
};

enum tr_status tr_state_new(struct tr_run_state *s); /* a fresh run id */
/* The inputs of a run; everything it points to outlives the run. */
struct tr_run_inputs {
    const struct tr_config *cfg;
    const struct tr_data *data;
    const struct tr_tokenizer *tok; /* NULL: the data is token ids */
    const struct tr_param_groups *groups;
    int64_t total_steps;
    const struct tr_base_id *base; /* NULL: the run trains no adapter */
    bool may_differ;               /* a replay: other inputs are said, not refused */
};
/* Does every name of --allow_change name an input? Else TR_USAGE lists the inputs. */
enum tr_status tr_state_check_allowed(const struct tr_config *cfg);
enum tr_status tr_state_write(const struct tr_run_state *s, const struct tr_run_inputs *in, struct tr_str *out);
/* Refuses a checkpoint of other inputs (data, tokenizer, batch, length, seed, optimizer, groups, schedule, precision),
 * naming every difference, unless --allow_change names it (C14). A longer or shorter run, and in a replay every
 * difference, is a line of notes instead. Refuses a checkpoint of a newer format (C15). sums: of dir when it was
 * verified. */
enum tr_status tr_state_load(const char *dir, const struct tr_sums *sums, struct tr_run_state *s,
                             const struct tr_run_inputs *in, struct tr_str *notes);
/* {"command": [...], "directory", "version", "build", "git_commit"}: where a run comes from. */
void tr_origin_write(struct tr_str *out);
enum tr_status tr_trainer_state_write(const struct tr_config *cfg, struct tr_history *history, int64_t step,
                                      int64_t total_steps, int64_t tokens, double flops_per_token, struct tr_str *out);
#endif
