/* partner.h - the answers to other prompts that answers with labels are compared with.
 *
 * The loss of such an answer needs to know how far the model is from its reference on answers that do not fit their
 * prompts (KTO). The mismatched document of a record is its prompt with the answer of its partner: the record before it
 * in its shard whose prompt is another one, and the last such record for those at the start. It depends on the data
 * alone, so that a reference has to be asked once. TRL pairs the records of a batch in the same way, by position alone;
 * where neighbours have the same prompt, that compares nothing. Rejected: the records of a batch (what is compared, and
 * with it the reference, would depend on the batch size and the shuffle).
 */
#ifndef TR_DATA_PARTNER_H
#define TR_DATA_PARTNER_H

#include "data/shard.h"

/* For each document of a shard with labels: its partner, and the tokens of its mismatched document. Both arrays are of
 * n_docs. TR_USAGE: the shard has one document. */
enum tr_status tr_partners_find(const struct tr_shard *s, int fd, uint32_t *partner, uint64_t *n_mismatched);
/* Finds the answer of document `doc`: its tokens in the shard. */
enum tr_status tr_partner_answer(const struct tr_shard *s, int fd, uint64_t doc, uint64_t *first, uint64_t *n);

#endif
