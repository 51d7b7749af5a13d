/* history.h - the log_history of trainer_state.json: the evaluations and logged steps of events.jsonl. Each event is
 * read once: a save reads what was logged since the save before, a resumed run begins with the history of its
 * checkpoint. */
#ifndef TR_TRAIN_HISTORY_H
#define TR_TRAIN_HISTORY_H

#include "data/data.h"
#include "train/train.h"

struct tr_history {
    const char *events_path; /* outlives it */
    uint64_t at;             /* bytes of the log that are in the text, or are known not to belong there */
    struct tr_str text;      /* entries, each on a line of its own, with commas between them */
    int64_t logging_steps;
    int64_t best_step;                         /* of the best checkpoint; -1: there is none */
    double best_metric;                        /* what metric_for_best_model says of it */
    double epoch_rows, batch_rows, total_rows; /* the last step of a run over epochs may have fewer rows than a batch */
};

void tr_history_init(struct tr_history *h, const struct tr_config *cfg, const struct tr_data *data, int64_t total_steps,
                     const char *events_path);
void tr_history_release(struct tr_history *h);
double tr_history_epoch(const struct tr_history *h, int64_t step);
/* Begins with what trainer_state.json of a checkpoint holds. The log then ends with that checkpoint's step. Where the
 * file is not as it was written here, the log is read from its start instead. */
void tr_history_resume(struct tr_history *h, const char *checkpoint);
/* Adds what the log holds up to a step; it may already hold later steps. A run without a log has no history. */
void tr_history_update(struct tr_history *h, int64_t step);

#endif
