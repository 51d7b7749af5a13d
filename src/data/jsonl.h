/* jsonl.h - the text of one JSONL record. */
#ifndef TR_DATA_JSONL_H
#define TR_DATA_JSONL_H

#include "base/base.h"

/* Sets out to the string member `key` of the record; invalid UTF-8 becomes U+FFFD first. TR_USAGE with a text that says
 * why when the record is to be skipped: not JSON, not an object, member missing, not a string or empty, escaped U+0000
 * or half a surrogate pair. Other statuses are real failures. */
enum tr_status tr_jsonl_text(const char *line, size_t n, const char *key, struct tr_str *out);

#endif
