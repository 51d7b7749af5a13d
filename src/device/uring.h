/* uring.h - many reads or writes of one file at once, through io_uring. Private to the room. */
#ifndef TR_DEVICE_URING_H
#define TR_DEVICE_URING_H

#include "base/base.h"

struct tr_uring;
/* NULL: the kernel refuses io_uring (containers often do), and the caller reads and writes piece by piece. The n_bytes
 * at `buffers` are registered where the limit of locked memory allows it. One thread uses a ring. */
struct tr_uring *tr_uring_open(int fd, void *buffers, size_t n_bytes);
void tr_uring_close(struct tr_uring *u); /* NULL is fine */
/* Moves `bytes` between the file, from `at` on, and memory inside `buffers`. 0, or errno. */
int tr_uring_move(struct tr_uring *u, bool is_write, size_t at, char *memory, size_t bytes);

#endif
