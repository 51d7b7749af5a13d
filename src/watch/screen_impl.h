/* screen_impl.h - what the pages of a terminal share: a block of lines, and texts of a log. */
#ifndef TR_WATCH_SCREEN_IMPL_H
#define TR_WATCH_SCREEN_IMPL_H

#include "watch/watch_impl.h"

struct screen_block { /* lines, each `columns` wide at most */
    struct tr_str text;
    int columns, rows, n; /* rows: at most */
    bool has_color, has_unicode;
};
void tr_block_add(struct screen_block *b, const char *text); /* the first line of a text, cut at the right edge */
void tr_block_line(struct screen_block *b, const char *fmt, ...) TR_PRINTF(2, 3);
void tr_block_title(struct screen_block *b, const char *text);
void tr_block_bar(struct tr_str *out, double share, int columns, bool has_unicode);
const char *tr_screen_text(const cJSON *j, const char *key, char *buf, size_t n_buf); /* escaped; "": it has none */

/* Pages; `skip`: lines that were scrolled over. */
void tr_screen_data(struct screen_block *b, const struct tr_watch_run *w, int skip);
void tr_screen_machine(struct screen_block *b, const struct tr_watch_run *w, int skip);
void tr_screen_layers(struct screen_block *b, const struct tr_watch_run *w, int skip);

#endif
