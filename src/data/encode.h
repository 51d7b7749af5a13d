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

/* The mask of the ids that were appended since the last call. */
enum tr_status tr_doc_mask(struct tr_doc *doc, bool is_target);

#endif
