/* choices.h - multiple choice as lm-evaluation-harness counts it: which continuation of a context is the likeliest. */
#ifndef TR_TRAIN_CHOICES_H
#define TR_TRAIN_CHOICES_H

#include "build/build.h"
#include "exec/exec.h"
#include "observe/observe.h"

/* The items of a file, as token ids in rows of tokens. All memory is taken when it is opened. */
struct tr_choices;
/* A line of the file is {"context": TEXT, "choices": [TEXT, ...], "gold": N}, and may have a "delimiter" between
 * context and choice (a blank). A pair that is longer than a row keeps its end. */
enum tr_status tr_choices_open(const char *path, const struct tr_setup *s, const struct tr_tokenizer *tok,
                               struct tr_choices **out);
void tr_choices_close(struct tr_choices *c);
/* Runs all of them with the eval schedule, whose model gives sums of documents; the ranks share the rows. batch_mem: as
 * of tr_evaluate. All ranks call it together and get the same result. */
enum tr_status tr_choices_run(struct tr_choices *c, struct tr_exec *e, void *batch_mem, struct tr_event_choices *out);
/* After a run: the log-likelihoods of the choices of item i. */
size_t tr_choices_count(const struct tr_choices *c);
const double *tr_choices_of(const struct tr_choices *c, size_t item, size_t *n);

#endif
