/* chat_record.h - alpaca and ShareGPT records as a prompt with its answer, or as messages for a chat template. */
#ifndef TR_TEXT_CHAT_RECORD_H
#define TR_TEXT_CHAT_RECORD_H

#include "base/base.h"

/* Appends the prompt of an alpaca record. *answer points into the record. */
enum tr_status tr_chat_alpaca_text(const cJSON *record, struct tr_str *prompt, const char **answer);
/* Both append the turns of a record to messages, a cJSON array. */
enum tr_status tr_chat_alpaca_messages(const cJSON *record, cJSON *messages);
enum tr_status tr_chat_sharegpt_messages(const cJSON *record, cJSON *messages);
/* A copy of the record's tools, which the caller deletes. NULL: the record has none. */
enum tr_status tr_chat_record_tools(const cJSON *record, cJSON **tools);

#endif
