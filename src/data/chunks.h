/* chunks.h - one long text, encoded by several threads and given out in order.
 *
 * The text is collected into a batch of bounded size and cut where the tokenizer allows it, by bytes alone: neither the
 * result nor the tasks depend on the number of threads. A tokenizer that allows no cut gets its text whole, at the end.
 */
#ifndef TR_DATA_CHUNKS_H
#define TR_DATA_CHUNKS_H

#include "token/token.h"

struct tr_chunks {
    const struct tr_tokenizer *tokenizer;
    struct tr_str text; /* valid UTF-8, not yet encoded; the caller appends */
    size_t n_left;      /* of it were left by the last batch: no cut in them */
    bool is_inside;     /* something was encoded before */
    struct tr_chunk {
        size_t begin, end;
        struct tr_ids ids;
        enum tr_status failed;
        char why[256];
    } * tasks;
    size_t n_tasks, n_tasks_cap;
};

void tr_chunks_release(struct tr_chunks *c); /* safe on zeroes */
bool tr_chunks_is_full(const struct tr_chunks *c);

typedef enum tr_status tr_take_fn(void *ctx, const int32_t *ids, size_t n);
/* Encodes what no later text can change, with is_last everything; gives it out; keeps the rest. */
enum tr_status tr_chunks_encode(struct tr_chunks *c, bool is_last, struct tr_pool *pool, tr_take_fn *take, void *ctx);

#endif
