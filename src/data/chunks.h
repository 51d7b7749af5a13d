/* chunks.h - encodes one long text with several threads and passes the ids on in order.
 *
 * The text is collected into a batch of bounded size and cut into tasks where the tokenizer allows it. The size of a
 * task depends on bytes alone, so neither the tasks nor the result depend on the number of threads. A tokenizer that
 * allows no cut gets the whole text at the end.
 */
#ifndef TR_DATA_CHUNKS_H
#define TR_DATA_CHUNKS_H

#include "token/token.h"

struct tr_chunks {
    const struct tr_tokenizer *tokenizer;
    struct tr_str text; /* valid UTF-8, not yet encoded; the caller appends */
    size_t n_batch;     /* bytes of a batch, if fewer than usual; 0: as usual */
    size_t n_left;      /* bytes at its start that the last batch left: they hold no place to cut */
    bool is_inside;     /* an earlier batch has encoded the beginning of the text */
    struct tr_chunk {
        size_t begin, end;
        struct tr_ids ids;
        enum tr_status failed;
        char why[256];
    } * tasks;
    size_t n_tasks, n_tasks_cap;
    const char *path;    /* of the file, for messages */
    struct tr_work work; /* of the file */
};

void tr_chunks_release(struct tr_chunks *c); /* safe on zeroes */
bool tr_chunks_is_full(const struct tr_chunks *c);

typedef enum tr_status tr_take_fn(void *ctx, const int32_t *ids, size_t n);
/* Encodes the text whose ids no later text can change (with is_last, all of it), passes the ids to `take` and keeps the
 * rest of the text. Without `take` the same text is passed over. */
enum tr_status tr_chunks_encode(struct tr_chunks *c, bool is_last, struct tr_pool *pool, tr_take_fn *take, void *ctx);

#endif
