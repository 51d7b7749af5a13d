/* batch.h - the parts of a micro-batch, listed once: what the data room fills, the executor sends to the device and the
 * programs read. A new part is a line of TR_BATCH_LIST and what fills it (data/fill.c). */
#ifndef TR_BASE_BATCH_H
#define TR_BASE_BATCH_H

#include "base/dtype.h"
#include "base/status.h"

/* X(enum, name, C type, dtype). Every part has one element a token. */
#define TR_BATCH_LIST(X)                                                                                               \
    X(TOKENS, tokens, int32_t, TR_I32)                                                                                 \
    /* the next token of the same document, else TR_TARGET_NONE */                                                     \
    X(TARGETS, targets, int32_t, TR_I32)                                                                               \
    /* from 0 at each document, and at the start of a row that continues one: element - begin */                       \
    X(POSITIONS, positions, int32_t, TR_I32)                                                                           \
    /* element where the token's document starts in this batch: attention sees begin .. itself. Generation: row of its \
     * sequence's cache that the token fills; -1: it is padding, and fills none */                                     \
    X(BEGIN, begin, int32_t, TR_I32)                                                                                   \
    /* g * T + offset of the document in its row: (sample, position) never repeats within a run */                     \
    X(SAMPLE, sample, int64_t, TR_I64)                                                                                 \
    /* of a pair of answers: element where the other one begins, and the chosen one lies first; of an answer with a    \
       label: begin, plus 1 where it is desirable; else -1 */                                                          \
    X(OTHER, other, int32_t, TR_I32)                                                                                   \
    /* of pairs and labels: at the first token of an answer its loss under the reference; else 0 */                    \
    X(VALUE, value, float, TR_F32)                                                                                     \
    /* of the token's target. With loss_weights: in units (data.h); of pairs with ld_alpha: in the log-probability of  \
       the answer; else 0 */                                                                                           \
    X(WEIGHT, weight, float, TR_F32)                                                                                   \
    /* of pairs with a loss of transport (data/match.h): at the first token of an answer what it is compared with;     \
       else 0 */                                                                                                       \
    X(MATCH, match, float, TR_F32)

enum tr_batch_slot {
#define X(id, name, type, dtype) TR_B_##id,
    TR_BATCH_LIST(X)
#undef X
        TR_B_COUNT
};

/* Arrays of n_rows * T elements, owned by the caller. Token t of row r is element r * T + t. */
struct tr_batch {
#define X(id, name, type, dtype) type *name;
    TR_BATCH_LIST(X)
#undef X
    int64_t
        n_used; /* a dense batch: what is behind its first n_used tokens is padding that no op reads; 0: all are used */
};

const char *tr_batch_name(enum tr_batch_slot slot);
enum tr_dtype tr_batch_dtype(enum tr_batch_slot slot);
static inline size_t tr_batch_elem_bytes(enum tr_batch_slot slot)
{
    return tr_dtype_bytes(tr_batch_dtype(slot));
}

void *tr_batch_part(const struct tr_batch *b, enum tr_batch_slot slot);
void tr_batch_set(struct tr_batch *b, enum tr_batch_slot slot, void *part);

/* A batch of n tokens inside mem: tr_batch_bytes(n) bytes; each part starts on a multiple of 64 from there. */
size_t tr_batch_bytes(int64_t n_tokens);
struct tr_batch tr_batch_in(void *mem, int64_t n_tokens);

#endif
