/* match.h - which answers of a batch of pairs a loss of transport compares with each other (AOT, arXiv 2406.05882).
 *
 * Such a loss sorts two lists of numbers, one number of each a pair, and compares what has the same place in both. The
 * lists are of all pairs of a step, whatever its micro-batches and ranks are, so that every layout trains the same
 * model; a forward pass over the step fills them before its first backward. For `aot` a number is the difference of the
 * log-probabilities of both answers, of the model in the first list and of the reference in the second; for
 * `aot_unpaired` it is the log-ratio of an answer to the reference, of the chosen ones in the first list and of the
 * rejected ones in the second. TRL sorts each micro-batch of each rank by itself. Equal numbers keep the order of
 * their pairs.
 */
#ifndef TR_DATA_MATCH_H
#define TR_DATA_MATCH_H

#include "base/batch.h"

struct tr_data;

struct tr_match {
    bool is_paired; /* `aot`: pairs stay together */
    int64_t row_tokens;
    uint64_t first, n_rows; /* samples [first, first + n_rows) */
    uint64_t *first_pair;   /* of each of them, and the number of all pairs */
    double *list[2];        /* by pair */
    uint32_t *order[2];     /* pairs by place */
    float *value;           /* two for each pair: what TR_B_MATCH of its answers is */
};

/* The bytes for n_rows samples, a multiple of 64: a row has a quarter as many pairs as tokens at most. */
size_t tr_match_bytes(uint64_t n_rows, int64_t row_tokens);
/* Places it in mem, which is aligned to 64, and counts the pairs. The lists are zeroes. */
enum tr_status tr_match_init(struct tr_match *m, bool is_paired, const struct tr_data *d, uint64_t first, uint64_t end,
                             void *mem);
static inline uint64_t tr_match_pairs(const struct tr_match *m)
{
    return m->first_pair[m->n_rows];
}
/* Takes the numbers of a batch with some of the samples. sums: n_cols for each token, of which those of the row where
 * an answer begins count: its loss in column i_loss, and that of the reference in column i_ref. */
void tr_match_take(struct tr_match *m, const struct tr_batch *b, int64_t n_tokens, const float *sums, int i_loss,
                   int i_ref, int n_cols);
/* The lists are complete: sorts them. */
void tr_match_sort(struct tr_match *m);
/* Writes TR_B_MATCH of a batch with some of the samples. */
void tr_match_set(const struct tr_match *m, const struct tr_batch *b, int64_t n_tokens);

#endif
