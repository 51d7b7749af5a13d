/* text.h - room header of text: conversations become text, token ids and loss masks.
 *
 * Chat templates are rendered by a subset of Jinja (jinja.h), records of other layouts become lists of messages
 * (chat_record.h), and each conversation becomes ids with a mask of the tokens that have a loss (chat.h).
 */
#ifndef TR_TEXT_TEXT_H
#define TR_TEXT_TEXT_H

#include "text/chat.h"
#include "text/chat_record.h"

#endif
