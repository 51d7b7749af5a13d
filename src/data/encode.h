/* encode.h - one function for each way in which a record becomes tokens; the table of shapes names them. */
#ifndef TR_DATA_ENCODE_H
#define TR_DATA_ENCODE_H

#include "data/record.h"

/* encode_text.c */
enum tr_status tr_encode_text(const struct tr_record_rules *r, cJSON *record, struct tr_doc *doc);
enum tr_status tr_encode_completion(const struct tr_record_rules *r, cJSON *record, struct tr_doc *doc);
enum tr_status tr_encode_alpaca(const struct tr_record_rules *r, cJSON *record, struct tr_doc *doc);
enum tr_status tr_encode_segments(const struct tr_record_rules *r, cJSON *record, struct tr_doc *doc);
enum tr_status tr_encode_tokens(const struct tr_record_rules *r, cJSON *record, struct tr_doc *doc);
/* encode_chat.c */
enum tr_status tr_encode_messages(const struct tr_record_rules *r, cJSON *record, struct tr_doc *doc);
enum tr_status tr_encode_sharegpt(const struct tr_record_rules *r, cJSON *record, struct tr_doc *doc);
enum tr_status tr_encode_chat_completion(const struct tr_record_rules *r, cJSON *record, struct tr_doc *doc);
enum tr_status tr_encode_alpaca_chat(const struct tr_record_rules *r, cJSON *record, struct tr_doc *doc);
/* encode_pair.c */
enum tr_status tr_encode_pair(const struct tr_record_rules *r, cJSON *record, struct tr_doc *doc);
/* The parts of it that a record with one answer needs too. add_answer: a text is the assistant's, n_skip messages of a
 * list are the prompt's. read_prompt: the messages that the columns of a record ask with. */
enum tr_status tr_pair_add_texts(const struct tr_record_rules *r, const char *prompt, const char *answer,
                                 struct tr_doc *doc);
enum tr_status tr_pair_add_answer(const struct tr_record_rules *r, const cJSON *source, const cJSON *prompt,
                                  const cJSON *answer, int n_skip, struct tr_doc *doc);
enum tr_status tr_pair_read_prompt(const cJSON *record, cJSON *out);
cJSON *tr_pair_member(const cJSON *record, const char *const *names); /* the first that is there; names end with NULL */
/* encode_label.c */
enum tr_status tr_encode_labelled(const struct tr_record_rules *r, cJSON *record, struct tr_doc *doc);

/* weights.c: a member that is a weight, in units; without --loss_weights only 0 and 1 are. what: its name in messages.
 */
enum tr_status tr_weight_read(const struct tr_record_rules *r, const cJSON *x, const char *what, uint32_t *out);
enum tr_status tr_weight_times(uint32_t a, uint32_t b, uint32_t *out);
/* The weight of the ids that were appended since the last call. */
enum tr_status tr_doc_weigh(struct tr_doc *doc, uint32_t weight);
uint32_t tr_doc_get_weight(const struct tr_doc *doc, size_t i);
void tr_doc_put_weight(struct tr_doc *doc, size_t i, uint32_t weight);
/* Ids from first on that have no weight yet have 1, all are multiplied by that of the record, and those of 0 are no
 * targets. */
enum tr_status tr_doc_finish_weights(const struct tr_record_rules *r, const cJSON *record, size_t first,
                                     struct tr_doc *doc);

/* The mask of the ids that were appended since the last call. */
enum tr_status tr_doc_mask(struct tr_doc *doc, bool is_target);

#endif
