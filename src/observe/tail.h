/* tail.h - part of the room header: a file of lines, read line by line, to its end or while it grows.
 *
 * Memory is one buffer of four lines of the longest kind, whatever the size of the file. A longer line is read past and
 * told apart.
 */
#ifndef TR_OBSERVE_TAIL_H
#define TR_OBSERVE_TAIL_H

#include "base/base.h"

enum tr_tail_line { TR_TAIL_LINE, TR_TAIL_TOO_LONG, TR_TAIL_NONE };

struct tr_tail;
/* Regular files only. A path that does not exist: TR_IO or TR_USAGE. */
/* max_line: bytes of the longest line. tail_bytes > 0: only the lines that begin in the last so many bytes, and the one
 * they begin in. */
enum tr_status tr_tail_open(const char *path, size_t max_line, uint64_t tail_bytes, struct tr_tail **out);
void tr_tail_follow(struct tr_tail *t); /* the file grows: a last line without its newline is left for a later call */
void tr_tail_seek(struct tr_tail *t,
                  uint64_t at);               /* before the first line: the one that begins at this byte comes first */
uint64_t tr_tail_at(const struct tr_tail *t); /* the byte behind the last line that was read */
void tr_tail_close(struct tr_tail *t);        /* NULL is fine */
/* The next line without its newline, NUL-terminated and valid until the next call. TR_TAIL_NONE: there are no more; of
 * a file that is followed, more may come. */
enum tr_tail_line tr_tail_next(struct tr_tail *t, char **line, size_t *n);
/* Another file has taken the name since, or the file became shorter: what was read no longer counts. */
bool tr_tail_was_replaced(const struct tr_tail *t);
enum tr_status tr_tail_failed(const struct tr_tail *t); /* TR_IO: reading stopped before the end */
const char *tr_tail_path(const struct tr_tail *t);

#endif
