/* pack.h - which documents share a row, decided once from their lengths.
 *
 * Documents are taken in one keyed order that depends on the seed alone, in windows of TR_PACK_WINDOW; inside a window,
 * longest first, each goes into the row with the least room that still holds it, or into a new row. Rows are the same
 * in every epoch; epochs shuffle rows. Memory: 4 bytes a document and 4 a row, and as much again while packing.
 * Rejected: packing anew each epoch (an epoch would not have a fixed number of rows, so a sample number would not say
 * its epoch) and packing per rank (the rows would depend on the world).
 */
#ifndef TR_DATA_PACK_H
#define TR_DATA_PACK_H

#include "data/data.h"

enum { TR_PACK_WINDOW = 1 << 16 };

/* A document of n tokens is n / T chunks of T tokens, each a row by itself, and a tail of n % T tokens. When long
 * documents are cut, one with n > T is its first chunk and nothing else. */
struct tr_pack {
    uint64_t row_tokens; /* T */
    bool cuts_long;
    uint64_t n_docs, n_rows;
    uint32_t *doc;       /* documents whose tails stand in tail rows, row after row */
    uint32_t *row_first; /* tail row r holds doc[row_first[r]] up to doc[row_first[r + 1]] */
    uint64_t n_tail_rows;
    struct tr_pack_chunk {
        uint32_t doc, chunk;
    } * chunks; /* the rows behind the tail rows */
    uint64_t n_chunks, n_chunks_cap;
    uint64_t n_row_tokens;                  /* in all rows, padding not counted */
    uint64_t n_split, n_cut, n_tokens_lost; /* long documents; tokens behind the cut */
    uint32_t *tail;                         /* of each document, until the pack is finished */
};

enum tr_status tr_pack_init(struct tr_pack *p, int64_t row_tokens, bool cuts_long, uint64_t n_docs);
enum tr_status tr_pack_add(struct tr_pack *p, uint64_t n_tokens); /* the next document */
enum tr_status tr_pack_finish(struct tr_pack *p, enum tr_packing how, bool shuffle, uint64_t seed);
void tr_pack_release(struct tr_pack *p);

/* Tokens [first, first + n) of a document of n_tokens that stand in its tail row, or in a chunk. */
static inline void tr_pack_tail(const struct tr_pack *p, uint64_t n_tokens, uint64_t *first, uint64_t *n)
{
    *n = n_tokens % p->row_tokens;
    *first = n_tokens - *n;
}

#endif
