/* chat_date.h - one date for all conversations of a run. */
#ifndef TR_DATA_CHAT_DATE_H
#define TR_DATA_CHAT_DATE_H

#include "text/text.h"

/* Sets the date of a chat whose template uses it, and does nothing otherwise. The date is `date` (2026-01-31) or, when
 * that is NULL, the date of the first call with this directory. That call writes it to the file chat_date. */
enum tr_status tr_data_fix_date(struct tr_chat *c, const char *date, const char *dir);

#endif
