/* batch.c - what can be said of every part of a micro-batch, from the one list. */
#include "base/base.h"

static const struct {
    const char *name;
    enum tr_dtype dtype;
} parts[] = {
#define X(id, part, type, part_dtype) { #part, part_dtype },
    TR_BATCH_LIST(X)
#undef X
};

const char *tr_batch_name(enum tr_batch_slot slot)
{
    return parts[slot].name;
}

enum tr_dtype tr_batch_dtype(enum tr_batch_slot slot)
{
    return parts[slot].dtype;
}

void *tr_batch_part(const struct tr_batch *b, enum tr_batch_slot slot)
{
    void *const at[] = {
#define X(id, name, type, dtype) b->name,
        TR_BATCH_LIST(X)
#undef X
    };
    TR_BUG_ON((unsigned)slot >= TR_COUNT_OF(at));
    return at[slot];
}

void tr_batch_set(struct tr_batch *b, enum tr_batch_slot slot, void *part)
{
    switch (slot) {
#define X(id, name, type, dtype)                                                                                       \
    case TR_B_##id:                                                                                                    \
        b->name = part;                                                                                                \
        return;
        TR_BATCH_LIST(X)
#undef X
    default:
        TR_BUG_ON(true);
    }
}

static size_t part_bytes(enum tr_batch_slot slot, int64_t n_tokens)
{
    return tr_round_up((size_t)n_tokens * tr_batch_elem_bytes(slot), 64);
}

size_t tr_batch_bytes(int64_t n_tokens)
{
    size_t sum = 0;
    for (int i = 0; i < TR_B_COUNT; i++)
        sum += part_bytes((enum tr_batch_slot)i, n_tokens);
    return sum;
}

struct tr_batch tr_batch_in(void *mem, int64_t n_tokens)
{
    struct tr_batch b = { 0 };
    char *at = mem;
    for (int i = 0; i < TR_B_COUNT; i++) {
        tr_batch_set(&b, (enum tr_batch_slot)i, at);
        at += part_bytes((enum tr_batch_slot)i, n_tokens);
    }
    return b;
}
