/* record.h - one JSONL record to one document: token ids, and which of them are targets. */
#ifndef TR_DATA_RECORD_H
#define TR_DATA_RECORD_H

#include "data/data.h"

struct tr_record_rules {
    enum tr_shape shape; /* not AUTO */
    const char *text_key;
    const struct tr_tokenizer *tokenizer; /* may be NULL for TR_SHAPE_TOKENS */
    const struct tr_chat *chat;           /* may be NULL, but not for conversations */
    enum tr_chat_mask mask;
};

/* What documents are appended to. */
struct tr_doc {
    struct tr_ids ids;
    struct tr_str mask; /* one byte an id, 1 = target; stays empty for TR_SHAPE_TEXT, where all are */
    struct tr_str line; /* scratch */
};
void tr_doc_release(struct tr_doc *doc);

/* The shape of a record that holds all members of one. TR_USAGE: it is not a JSON object, or *is_object and nothing
 * known. */
enum tr_status tr_record_detect(const char *line, size_t n, bool *is_object, enum tr_shape *out);

/* Appends the document of this line; invalid UTF-8 becomes U+FFFD first. TR_USAGE with a text that says why when the
 * record is to be skipped; nothing is appended then. Other statuses are real failures. Ids of TR_SHAPE_TOKENS are not
 * compared with any vocabulary here. Any number of threads may call this with a doc each. */
enum tr_status tr_record_encode(const struct tr_record_rules *r, const char *line, size_t n, struct tr_doc *doc);

/* What stands around a document that is text: what the tokenizer puts in front of any text (<bos>, or nothing), and
 * <eos> behind it. */
enum tr_status tr_doc_begin(const struct tr_tokenizer *t, struct tr_ids *ids);
enum tr_status tr_doc_end(const struct tr_tokenizer *t, struct tr_ids *ids);

#endif
