/* shard_format.c - reads and writes the 128-byte header of a token shard. docs/formats/token-shard.md is normative. */
#include "data/shard.h"
#include "data/le.h"

#include <string.h>

static const unsigned char magic[8] = { 0x89, 'T', 'R', 'T', 'O', 'K', '\r', '\n' };

enum {
    FLAG_MASK = 1,
    FLAG_LAST = 2,
    FLAG_WHOLE = 4,
    FLAG_PAIRS = 8,
    FLAG_LABELS = 16,
    FLAG_WEIGHTS = 32,
    ALL_FLAGS = 63
};
enum { HASHED_BYTES = TR_SHARD_HEADER_BYTES - 16 };

static void put_hash(unsigned char *p, struct tr_hash128 h)
{
    tr_put_u64(p, h.lo);
    tr_put_u64(p + 8, h.hi);
}

static struct tr_hash128 get_hash(const unsigned char *p)
{
    return (struct tr_hash128){ .lo = tr_get_u64(p), .hi = tr_get_u64(p + 8) };
}

bool tr_shard_layout(const struct tr_shard_info *info, struct tr_shard_sections *out)
{
    /* 2^56 times 8 is far below 2^63, so that no sum below can wrap. */
    if (info->n_tokens >> 56 || info->n_docs >> 56)
        return false;
    out->docs = TR_SHARD_HEADER_BYTES + (info->n_tokens * info->token_bytes + 7) / 8 * 8;
    out->mask = out->docs + (info->n_docs + 1) * 8;
    out->weights = out->mask + (info->has_mask ? (info->n_tokens + 7) / 8 : 0);
    out->end = out->weights + (info->has_weights ? info->n_tokens * 4 : 0);
    return true;
}

void tr_shard_format(const struct tr_shard_info *info, unsigned char h[TR_SHARD_HEADER_BYTES])
{
    memset(h, 0, TR_SHARD_HEADER_BYTES);
    memcpy(h, magic, sizeof magic);
    tr_put_u32(h + 8, TR_SHARD_VERSION);
    tr_put_u32(h + 12, TR_SHARD_HEADER_BYTES);
    tr_put_u32(h + 16, info->token_bytes);
    tr_put_u32(h + 20, (info->has_mask ? FLAG_MASK : 0u) | (info->is_last ? FLAG_LAST : 0u) |
                           (info->keeps_whole ? FLAG_WHOLE : 0u) | (info->has_pairs ? FLAG_PAIRS : 0u) |
                           (info->has_labels ? FLAG_LABELS : 0u) | (info->has_weights ? FLAG_WEIGHTS : 0u));
    tr_put_u64(h + 24, info->n_tokens);
    tr_put_u64(h + 32, info->n_docs);
    tr_put_u64(h + 40, info->vocab_size);
    tr_put_u64(h + 48, info->n_skipped);
    tr_put_u32(h + 56, info->part);
    put_hash(h + 64, info->tokenizer);
    put_hash(h + 80, info->source);
    put_hash(h + 96, info->payload);
    put_hash(h + HASHED_BYTES, tr_hash(h, HASHED_BYTES));
}

enum tr_status tr_shard_parse(const unsigned char h[TR_SHARD_HEADER_BYTES], uint64_t n_file, struct tr_shard_info *out)
{
    uint32_t version = tr_get_u32(h + 8), n_header = tr_get_u32(h + 12), flags = tr_get_u32(h + 20);
    struct tr_shard_info i = {
        .token_bytes = tr_get_u32(h + 16),
        .part = tr_get_u32(h + 56),
        .has_mask = flags & FLAG_MASK,
        .is_last = flags & FLAG_LAST,
        .keeps_whole = flags & FLAG_WHOLE,
        .has_pairs = flags & FLAG_PAIRS,
        .has_labels = flags & FLAG_LABELS,
        .has_weights = flags & FLAG_WEIGHTS,
        .n_tokens = tr_get_u64(h + 24),
        .n_docs = tr_get_u64(h + 32),
        .n_skipped = tr_get_u64(h + 48),
        .vocab_size = tr_get_u64(h + 40),
        .tokenizer = get_hash(h + 64),
        .source = get_hash(h + 80),
        .payload = get_hash(h + 96),
    };
    struct tr_shard_sections at;
    if (memcmp(h, magic, sizeof magic) != 0)
        return tr_fail(TR_USAGE, "byte 0: not a token shard (bad magic)");
    if (version != TR_SHARD_VERSION || n_header != TR_SHARD_HEADER_BYTES)
        return tr_fail(TR_USAGE,
                       "token shard version %" PRIu32 " with a header of %" PRIu32
                       " bytes is not supported; this program reads version %d with %d bytes",
                       version, n_header, TR_SHARD_VERSION, TR_SHARD_HEADER_BYTES);
    if (!tr_hash_eq(tr_hash(h, HASHED_BYTES), get_hash(h + HASHED_BYTES)))
        return tr_fail(TR_USAGE,
                       "bytes 0 to %d: the header does not match its checksum: the file is damaged; make it again",
                       TR_SHARD_HEADER_BYTES - 1);
    if (i.token_bytes != 2 && i.token_bytes != 4)
        return tr_fail(TR_USAGE, "token_bytes %" PRIu32 " at offset 16 is not 2 or 4", i.token_bytes);
    if (flags & ~(uint32_t)ALL_FLAGS || tr_get_u32(h + 60) != 0)
        return tr_fail(TR_USAGE, "flags 0x%" PRIx32 " has unknown bits, or a reserved field is not zero", flags);
    if ((i.has_pairs || i.has_labels) && (!i.has_mask || !i.keeps_whole || (i.has_pairs && i.has_labels)))
        return tr_fail(TR_USAGE,
                       "flags 0x%" PRIx32
                       ": a shard of pairs, or of answers with labels, has a mask and documents that "
                       "are kept whole",
                       flags);
    if (i.has_weights && (!i.has_mask || i.has_pairs || i.has_labels))
        return tr_fail(TR_USAGE, "flags 0x%" PRIx32 ": a shard with weights has a mask, and no pairs and no labels",
                       flags);
    if (i.n_tokens == 0 || i.n_docs == 0 || i.n_docs > i.n_tokens)
        return tr_fail(TR_USAGE, "%" PRIu64 " documents with %" PRIu64 " tokens in total are not possible", i.n_docs,
                       i.n_tokens);
    if (i.vocab_size == 0 || i.vocab_size > INT32_MAX || (i.token_bytes == 2 && i.vocab_size > 65536))
        return tr_fail(TR_USAGE, "vocab_size %" PRIu64 " does not fit %" PRIu32 "-byte tokens", i.vocab_size,
                       i.token_bytes);
    if (!tr_shard_layout(&i, &at) || at.end != n_file)
        return tr_fail(TR_USAGE,
                       "byte %" PRIu64 ": the file ends here, which does not match its header: it was truncated or has "
                       "grown; make it again",
                       n_file);
    *out = i;
    return TR_OK;
}
