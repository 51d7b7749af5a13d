/* pack.h - decides, once and from their lengths, which documents share a row.
 *
 * Documents are taken in a keyed order that depends on the seed alone, in windows of TR_PACK_WINDOW. Inside a window
 * the longest comes first; each goes into the row with the least room that is enough for it, or into a new row. Rows
 * are the same in every epoch; epochs shuffle rows. Memory: 4 bytes for each document and for each row, and as much
 * again while packing. Rejected: packing again for each epoch (epochs would not have the same number of rows, so a
 * sample number would not give its epoch) and packing per rank (the rows would depend on the world).
 */
#ifndef TR_DATA_PACK_H
#define TR_DATA_PACK_H

#include "data/data.h"

enum { TR_PACK_WINDOW = 1 << 16 };

/* A document of n tokens is n / T chunks of T tokens, each of which is a row, and a tail of n % T tokens. Of a document
 * that is truncated, chunk 0 is what is kept of it. */
struct tr_pack {
    uint64_t row_tokens; /* T */
    uint64_t n_docs, n_rows;
    uint32_t *doc;       /* the documents whose tails are in tail rows, row after row */
    uint32_t *row_first; /* tail row r holds doc[row_first[r]] up to doc[row_first[r + 1]] */
    uint64_t n_tail_rows;
    struct tr_pack_chunk {
        uint32_t doc, chunk;
    } * chunks; /* the rows after the tail rows */
    uint64_t n_chunks;
    size_t n_chunks_cap;
    struct tr_pack_kept {
        uint32_t doc, n; /* its tokens [0, n), then [then, then + T - n) */
        uint64_t then;
    } * kept; /* of truncated documents, in their order */
    uint64_t n_kept;
    size_t n_kept_cap;
    uint64_t n_row_tokens; /* in all rows, padding not counted */
    uint32_t *tail;        /* of each document, until the pack is finished */
};

enum tr_status tr_pack_init(struct tr_pack *p, int64_t row_tokens, uint64_t n_docs);
/* The next document: whole, in as many rows as it takes. */
enum tr_status tr_pack_add(struct tr_pack *p, uint64_t n_tokens);
/* The next document in parts: any of its chunks, or what is kept of it, then its tail, which may be 0. */
enum tr_status tr_pack_add_chunk(struct tr_pack *p, uint64_t chunk);
enum tr_status tr_pack_add_kept(struct tr_pack *p, uint64_t n, uint64_t then);
void tr_pack_end_doc(struct tr_pack *p, uint64_t n_tail);
enum tr_status tr_pack_finish(struct tr_pack *p, enum tr_packing how, bool shuffle, uint64_t seed);
void tr_pack_release(struct tr_pack *p);

/* What is kept of a truncated document. NULL: it is whole. */
const struct tr_pack_kept *tr_pack_find_kept(const struct tr_pack *p, uint64_t doc);

/* The tail of a document of n_tokens: tokens [first, first + n). */
static inline void tr_pack_tail(const struct tr_pack *p, uint64_t n_tokens, uint64_t *first, uint64_t *n)
{
    *n = n_tokens % p->row_tokens;
    *first = n_tokens - *n;
}

#endif
