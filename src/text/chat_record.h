/* chat_record.h - alpaca and ShareGPT records as a prompt with its answer, or as messages for a chat template. */
#ifndef TR_TEXT_CHAT_RECORD_H
#define TR_TEXT_CHAT_RECORD_H

#include "base/base.h"

/* Appends the prompt; *answer points into the record. */
enum tr_status tr_chat_alpaca_text(const cJSON *record, struct tr_str *prompt, const char **answer);
/* Append to messages, a cJSON array. */
enum tr_status tr_chat_alpaca_messages(const cJSON *record, cJSON *messages);
enum tr_status tr_chat_sharegpt_messages(const cJSON *record, cJSON *messages);
/* The tools of a record, to be deleted by the caller. NULL: the record has none. */
enum tr_status tr_chat_record_tools(const cJSON *record, cJSON **tools);

#endif
