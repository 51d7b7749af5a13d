/* chat_date.h - one date for all conversations of a run. */
#ifndef TR_DATA_CHAT_DATE_H
#define TR_DATA_CHAT_DATE_H

#include "text/text.h"

/* Sets the date of a chat whose template asks for it; does nothing otherwise. `date` (2026-01-31) is taken when it is
 * given. With NULL, the date is that of the first call with this directory, which keeps it in the file chat_date. */
enum tr_status tr_data_fix_date(struct tr_chat *c, const char *date, const char *dir);

#endif
