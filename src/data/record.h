/* record.h - turns one record, the text of a JSON object, into one document: token ids, and which of them are targets.
 */
#ifndef TR_DATA_RECORD_H
#define TR_DATA_RECORD_H

#include "data/data.h"
#include "data/map.h"

struct tr_record_rules {
    enum tr_shape shape; /* not AUTO */
    const char *text_key;
    const struct tr_tokenizer *tokenizer; /* may be NULL for TR_SHAPE_TOKENS */
    const struct tr_chat *chat;           /* may be NULL, but not for conversations */
    enum tr_chat_mask mask;
    bool reads_weights;              /* records have weights of their targets */
    const struct tr_source_map *map; /* NULL: records have the usual names */
};

/* The buffers to which documents are appended. */
struct tr_doc {
    struct tr_ids ids;
    struct tr_str mask; /* one byte for each id, 1 = target; stays empty for TR_SHAPE_TEXT, where all ids are targets */
    struct tr_str weight; /* with reads_weights: a uint32_t for each id, its weight in units (data.h) */
    struct tr_str line;   /* scratch */
};
void tr_doc_release(struct tr_doc *doc);

/* ---- the table of shapes (shapes.c) ---- */

enum tr_shape_chat { TR_CHAT_NOT_USED, TR_CHAT_IF_THERE, TR_CHAT_REQUIRED };

struct tr_shape_row {
    const char *keys[2];       /* members that a record of this shape has */
    const char *or_keys[2][2]; /* or these, where the shape has other names too */
    bool are_lists;            /* these members are lists, else anything */
    bool is_text;              /* all tokens are targets: no mask, and documents become one stream */
    bool is_ids;               /* needs no tokenizer */
    bool is_pair;              /* documents are two answers to one prompt */
    bool is_labelled;          /* documents are one answer, and the mask of their first token says whether it is good */
    enum tr_shape_chat chat;
    /* Appends the ids and, but for is_text, a byte of mask for each. The record may be changed. */
    enum tr_status (*encode)(const struct tr_record_rules *r, cJSON *record, struct tr_doc *doc);
};
const struct tr_shape_row *tr_shape_row(enum tr_shape shape); /* not AUTO */
bool tr_rules_use_chat(const struct tr_record_rules *r);      /* the chat template writes the documents */
/* The shape whose members the record holds: the first one in the order of detection, those with a member that the map
 * names (which may be NULL) before others. wants_pairs: two answers come first, whatever the map names. */
enum tr_status tr_shape_find(const cJSON *record, const struct tr_source_map *map, bool wants_pairs,
                             enum tr_shape *out);

/* ---- records ---- */

/* Finds the shape whose members the record holds. TR_USAGE: the line is not a JSON object or, with *is_object, the
 * object has no known shape. */
enum tr_status tr_record_detect(const struct tr_source_map *map, bool wants_pairs, const char *line, size_t n,
                                bool *is_object, enum tr_shape *out);

/* Appends the document of this line. Invalid UTF-8 becomes U+FFFD first. TR_USAGE means that the record must be
 * skipped: the error text is the reason, and nothing is appended. Other statuses are real failures. Ids of
 * TR_SHAPE_TOKENS are not compared with a vocabulary here. Any number of threads may call this, each with its own doc.
 */
enum tr_status tr_record_encode(const struct tr_record_rules *r, const char *line, size_t n, struct tr_doc *doc);

/* Append the ids around a document that is text: before it, those that the tokenizer puts before any text (<bos> or
 * nothing); after it, <eos>. */
enum tr_status tr_doc_begin(const struct tr_tokenizer *t, struct tr_ids *ids);
enum tr_status tr_doc_end(const struct tr_tokenizer *t, struct tr_ids *ids);

#endif
