/* numbers.h - private to train: decides whether the result of a step is plausible and, if not, which rank caused it and
 * what happens (faults D1, D2). */
#ifndef TR_TRAIN_NUMBERS_H
#define TR_TRAIN_NUMBERS_H

#include "train/scaler.h"

/* The judgement of a step. It is the same on all ranks. */
struct tr_verdict {
    bool is_odd;     /* worth a fault event */
    bool is_skipped; /* no parameter was changed */
    /* no parameter was changed, because gradients overflowed; the loss scale is smaller now. Not a fault. */
    bool is_overflow;
    int rank; /* rank of the origin; -1: unknown */
    char cause[1024];
};

struct tr_numbers;
/* The caller owns the scaler; every step updates it. */
enum tr_status tr_numbers_open(struct tr_exec *e, const struct tr_config *cfg, int64_t n_skipped,
                               struct tr_scaler *scaler, struct tr_numbers **out);
void tr_numbers_close(struct tr_numbers *n); /* n may be NULL */
int64_t tr_numbers_skipped(const struct tr_numbers *n);

/* One optimizer step, on all ranks. A result that is not finite, or far above those before it, is computed again. Other
 * bits mean a hardware fault, and the second result is used. The same bits mean data or model. If the result is still
 * not finite, the step is skipped within the budget (cfg->nonfinite). Beyond the budget the call returns TR_NUMBERS,
 * and the verdict holds the cause. Gradients that overflow only because of the loss scale are neither judged nor
 * counted. */
enum tr_status tr_numbers_step(struct tr_numbers *n, const struct tr_step_batch *b, const float values[TR_STEP_COUNT],
                               struct tr_step_result *out, struct tr_verdict *verdict);

#endif
