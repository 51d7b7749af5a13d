/* utf8.h - makes any bytes valid UTF-8: one U+FFFD for each maximal invalid piece, as Unicode recommends and as
 * Python's errors="replace" does. */
#ifndef TR_TOKEN_UTF8_H
#define TR_TOKEN_UTF8_H

#include "base/base.h"

/* Appends the cleaned text to out. Without is_last, an incomplete sequence at the end is not used: then *n_used is up
 * to 3 less than n. */
void tr_utf8_clean(const char *text, size_t n, bool is_last, struct tr_str *out, size_t *n_used);

#endif
