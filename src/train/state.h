/* state.h - what a checkpoint says about the run: trireme/state.json (ours) and trainer_state.json (HF's shape). */
#ifndef TR_TRAIN_STATE_H
#define TR_TRAIN_STATE_H

#include "train/train.h"

struct tr_run_best { /* evaluation of a step that was saved */
    bool exists;
    int64_t step;
    double loss;
};
struct tr_run_state {
    char run_id[TR_CKPT_RUN_ID_MAX];
    int64_t step, tokens, generation;
    int64_t skipped; /* steps whose numbers were not finite */
    struct tr_run_best best;
};

enum tr_status tr_state_new(struct tr_run_state *s); /* a fresh run id */
enum tr_status tr_state_write(const struct tr_run_state *s, const struct tr_config *cfg, const struct tr_data *data,
                              int64_t total_steps, struct tr_str *out);
/* Refuses a checkpoint of another data set, batch, length or seed, naming every difference (reliability C14). */
enum tr_status tr_state_load(const char *dir, struct tr_run_state *s, const struct tr_config *cfg,
                             const struct tr_data *data, int64_t total_steps);
enum tr_status tr_trainer_state_write(const struct tr_config *cfg, const struct tr_data *data, const char *events_path,
                                      int64_t step, int64_t total_steps, int64_t tokens, double flops_per_token,
                                      struct tr_str *out);
#endif
