/* chat_record.h - alpaca and ShareGPT records as a prompt with its answer, or as messages for a chat template. */
#ifndef TR_TEXT_CHAT_RECORD_H
#define TR_TEXT_CHAT_RECORD_H

#include "base/base.h"

/* Appends the prompt of an alpaca record. *answer points into the record. */
enum tr_status tr_chat_alpaca_text(const cJSON *record, struct tr_str *prompt, const char **answer);
/* Both append the turns of a record to messages, a cJSON array. */
enum tr_status tr_chat_alpaca_messages(const cJSON *record, cJSON *messages);
enum tr_status tr_chat_sharegpt_messages(const cJSON *record, cJSON *messages);
/* What a role is called in messages, by the names of ShareGPT and its kin; "function_call" is one of them. NULL: the
 * name is not known. */
const char *tr_chat_usual_role(const char *name);
/* Appends the calls of a JSON text, one or a list of them, to the tool_calls of a message. */
enum tr_status tr_chat_add_calls(cJSON *message, const char *text);
/* Makes an assistant turn with tool_calls of a message whose content is a call, or a list of calls, as JSON text. */
enum tr_status tr_chat_take_call(cJSON *message);
/* Appends {"role": role, "content": content}. */
enum tr_status tr_chat_add_message(cJSON *messages, const char *role, const char *content);
/* A copy of the record's tools, which the caller deletes. NULL: the record has none. */
enum tr_status tr_chat_record_tools(const cJSON *record, cJSON **tools);

#endif
