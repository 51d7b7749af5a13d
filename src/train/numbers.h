/* numbers.h - private to train: is a step's result believable, and if not, who made it and what happens (faults D1,
 * D2)?
 */
#ifndef TR_TRAIN_NUMBERS_H
#define TR_TRAIN_NUMBERS_H

#include "train/scaler.h"

/* What all ranks say of a step, in the same words. */
struct tr_verdict {
    bool is_odd;      /* worth a fault event */
    bool is_skipped;  /* no parameter was changed */
    bool is_overflow; /* the same, by the loss scale, which is smaller now: no fault */
    int rank;         /* where it began; -1: unknown */
    char cause[1024];
};

struct tr_numbers;
/* The scaler is the caller's, and moved by every step. */
enum tr_status tr_numbers_open(struct tr_exec *e, const struct tr_config *cfg, int64_t n_skipped,
                               struct tr_scaler *scaler, struct tr_numbers **out);
void tr_numbers_close(struct tr_numbers *n); /* NULL is fine */
int64_t tr_numbers_skipped(const struct tr_numbers *n);

/* One optimizer step, on all ranks. A result that is not finite, or far above those before it, is computed again: other
 * bits mean hardware, and the second result counts; the same bits mean data or model. What is not finite then is
 * skipped within the budget (cfg->nonfinite); beyond it TR_NUMBERS, and the verdict holds the cause. Gradients that
 * only a smaller loss scale can hold are neither judged nor counted. */
enum tr_status tr_numbers_step(struct tr_numbers *n, const struct tr_step_batch *b, const float values[TR_STEP_COUNT],
                               struct tr_step_result *out, struct tr_verdict *verdict);

#endif
