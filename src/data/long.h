/* long.h - what is used of a document that is longer than a row.
 *
 * A record is turns, each of them a prompt and an answer (tokens that are not targets, then targets). Turns are kept
 * whole while they fit. The first one that does not shares the rest of the row: s tokens of prompt and t of answer in c
 * places. With 2t < c the answer stays whole; else with 2s < c the prompt does; else both keep their share of c. Both
 * lose their ends. These are the lengths of LLaMA-Factory (cutoff_len), but that one target always stays.
 */
#ifndef TR_DATA_LONG_H
#define TR_DATA_LONG_H

#include "data/shard.h"
#include "data/shape.h"

/* Tokens [0, n) of the document, then [then, then + n_then). */
struct tr_kept {
    uint64_t n, then, n_then;
    uint64_t n_targets_lost; /* of those that a token before them could have predicted */
};

/* Document [first, first + n_doc) of a shard with a mask, n_doc > row_tokens: what FIT or CUT keeps of it. Nothing
 * (n = 0): no target would be left. */
enum tr_status tr_long_keep(const struct tr_shard *s, int fd, uint64_t first, uint64_t n_doc, uint64_t row_tokens,
                            enum tr_long how, struct tr_kept *out);
/* The same of a document that is a pair: each half loses its end, and both keep as much as fits. A half that is shorter
 * than half a row stays whole. Nothing: a half would have no target. */
enum tr_status tr_long_keep_pair(const struct tr_shard *s, int fd, uint64_t first, uint64_t n_doc, uint64_t row_tokens,
                                 struct tr_kept *out);
/* The places of a prompt of s and an answer of t tokens in c < s + t: out[0] + out[1] = c. */
void tr_long_share(uint64_t s, uint64_t t, uint64_t c, uint64_t out[2]);

#endif
