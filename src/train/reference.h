/* reference.h - private to the training room: the log-probabilities of pairs under a reference. */
#ifndef TR_TRAIN_REFERENCE_H
#define TR_TRAIN_REFERENCE_H

#include "train/train.h"

struct tr_reference {
    const struct tr_setup *s; /* with an eval model */
    struct tr_exec *e;
    struct tr_pool *pool;
    const char *cache_dir; /* exists */
};
/* Fills the references of what the first total_samples samples of d read, from the cache or by a forward pass of the
 * reference, on all ranks together; those of other documents become NaN. *has_loaded: the weights of the reference are
 * loaded; they are loaded when first needed, and the caller loads those of the model afterwards. */
enum tr_status tr_reference_fill(const struct tr_reference *r, struct tr_data *d, uint64_t total_samples,
                                 bool *has_loaded, struct tr_str *notes);

#endif
