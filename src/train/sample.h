/* sample.h - what the model writes while it is trained: sample_prompts, continued at each evaluation. */
#ifndef TR_TRAIN_SAMPLE_H
#define TR_TRAIN_SAMPLE_H

#include "observe/observe.h"
#include "train/decode.h"

struct tr_sampler;
/* tok NULL: the sampler opens the model's own. */
enum tr_status tr_sampler_open(struct tr_exec *e, const struct tr_setup *s, const struct tr_tokenizer *tok,
                               struct tr_sampler **out);
void tr_sampler_close(struct tr_sampler *s);
/* Continues all prompts; all ranks call it together. A signal ends it on all of them, with TR_STOPPED. */
enum tr_status tr_sampler_run(struct tr_sampler *s);
/* The first rank logs a `sample` event for each. It allocates nothing but the text of one sample at a time. */
enum tr_status tr_sampler_report(struct tr_sampler *s, struct tr_observe *ob, int64_t step);

#endif
