/* decode_impl.h - private to the decoder: what its files use of each other. */
#ifndef TR_TRAIN_DECODE_IMPL_H
#define TR_TRAIN_DECODE_IMPL_H

#include "train/decode.h"

enum { TR_MAX_STOPS = 16 };

/* A place in the cache, and the prompt that is continued there. */
struct tr_sequence {
    const struct tr_prompt *prompt; /* NULL: the place is free */
    size_t index;                   /* of the prompt */
    int32_t *ids;                   /* (n_context): prompt and new tokens */
    int64_t n_ids, n_read;          /* of these ids; those that are in the cache */
};

struct tr_decoder {
    struct tr_exec *e;
    const struct tr_config *cfg;
    const struct tr_text_shape *shape;
    struct tr_batch batch;
    int64_t vocab, n_ids; /* logits of a token; ids that can be picked */
    double softcap;
    int32_t stop[TR_MAX_STOPS];
    int n_stops;
    uint64_t key;
    float (*pair)[2]; /* (score, id), one for each token of the vocabulary */
    int32_t *ids;     /* of all sequences */
    struct tr_sequence *sequence;
    double *shared; /* what ranks tell each other */
    int64_t n_shared;
};

#endif
