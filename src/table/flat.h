/* flat.h - reads FlatBuffers by hand, in which Arrow writes its metadata. Every offset is held against the end of the
 * text before it is followed; what is absent or outside reads as its default. */
#ifndef TR_TABLE_FLAT_H
#define TR_TABLE_FLAT_H

#include "base/base.h"

struct tr_flat {
    const uint8_t *p; /* the whole text */
    size_t n;
};
/* A table or a vector of it; at = 0: absent. */
struct tr_flat_at {
    size_t at, n; /* n: elements of a vector, bytes of a string */
};

static inline uint64_t tr_flat_le(const struct tr_flat *f, size_t at, size_t n_bytes)
{
    uint64_t x = 0;
    if (at > f->n || n_bytes > f->n - at)
        return 0;
    for (size_t i = 0; i < n_bytes; i++)
        x |= (uint64_t)f->p[at + i] << (8 * i);
    return x;
}

/* Where field `id` of a table is; 0: it has its default. */
static inline size_t tr_flat_field(const struct tr_flat *f, struct tr_flat_at table, unsigned id)
{
    int64_t vtable = (int64_t)table.at - (int32_t)tr_flat_le(f, table.at, 4);
    if (table.at == 0 || vtable < 0 || (uint64_t)vtable > f->n)
        return 0;
    size_t slot = 4 + 2 * (size_t)id;
    if (slot + 2 > tr_flat_le(f, (size_t)vtable, 2))
        return 0;
    size_t offset = (size_t)tr_flat_le(f, (size_t)vtable + slot, 2);
    return offset > 0 && offset < f->n - table.at ? table.at + offset : 0;
}

static inline int64_t tr_flat_int(const struct tr_flat *f, struct tr_flat_at table, unsigned id, size_t n_bytes,
                                  int64_t absent)
{
    size_t at = tr_flat_field(f, table, id);
    if (at == 0)
        return absent;
    uint64_t x = tr_flat_le(f, at, n_bytes);
    unsigned shift = 64 - 8 * (unsigned)n_bytes;
    return (int64_t)(x << shift) >> shift;
}

/* What the offset at this place leads to; a place outside is absent. */
static inline struct tr_flat_at tr_flat_follow(const struct tr_flat *f, size_t at)
{
    size_t to = at ? at + (size_t)tr_flat_le(f, at, 4) : 0;
    return (struct tr_flat_at){ to > at && to <= f->n - 4 && f->n >= 4 ? to : 0, 0 };
}

static inline struct tr_flat_at tr_flat_table(const struct tr_flat *f, struct tr_flat_at table, unsigned id)
{
    return tr_flat_follow(f, tr_flat_field(f, table, id));
}

/* A vector of elements of n_bytes, or a string (1). A vector that does not fit into the text is absent. */
static inline struct tr_flat_at tr_flat_vector(const struct tr_flat *f, struct tr_flat_at table, unsigned id,
                                               size_t n_bytes)
{
    struct tr_flat_at v = tr_flat_table(f, table, id);
    uint64_t n = tr_flat_le(f, v.at, 4);
    if (v.at == 0 || n > (f->n - v.at - 4) / n_bytes)
        return (struct tr_flat_at){ 0, 0 };
    return (struct tr_flat_at){ v.at + 4, (size_t)n };
}

#endif
