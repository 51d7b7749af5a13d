/* pump.h - bytes into a file past the page cache, in a thread of their own; private to ckpt. */
#ifndef TR_CKPT_PUMP_H
#define TR_CKPT_PUMP_H

#include "base/status.h"
#include <stddef.h>

/* One file at a time, by one caller at a time. Everything is allocated at open; pages, of TR_SAVE_PAGES_BYTES and from
 * a multiple of TR_DIRECT_BLOCK on, outlive it (NULL: its own). */
struct tr_pump;
enum tr_status tr_pump_open(void *pages, struct tr_pump **out);
void tr_pump_close(struct tr_pump *p); /* NULL is fine */

/* fd is empty, open for writing, and the pump's until finish or drop. path outlives it. */
void tr_pump_begin(struct tr_pump *p, int fd, const char *path);
/* src is free again at once. An error may be of bytes that were put before. */
enum tr_status tr_pump_put(struct tr_pump *p, const void *src, size_t n);
/* All bytes are written, not synced; or why not. */
enum tr_status tr_pump_finish(struct tr_pump *p);
void tr_pump_drop(struct tr_pump *p);

#endif
