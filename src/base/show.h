/* show.h - text on its way to a terminal or to a log that people read: what a terminal would obey is escaped. */
#ifndef TR_BASE_SHOW_H
#define TR_BASE_SHOW_H

#include "base/str.h"

/* Copies text without what a terminal obeys: control bytes but line end and tab, C1 controls, bytes that are not UTF-8
 * become \xNN. The colours that our own views use stay. Returns the bytes written to buf (at least 64 long, no NUL),
 * and in *used how many bytes of text they are; call it again with the rest. */
size_t tr_show(const char *text, size_t n, char *buf, size_t n_buf, size_t *used);
/* How many bytes of text, which goes on, tr_show can judge; the rest, less than TR_SHOW_CUT bytes, may be the beginning
 * of a character or a colour. */
enum { TR_SHOW_CUT = 8 };
size_t tr_show_whole(const char *text, size_t n);
/* The same of a whole text, at the end of s. */
void tr_str_show(struct tr_str *s, const char *text, size_t n);

#endif
