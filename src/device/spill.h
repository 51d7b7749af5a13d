/* spill.h - part of the room header: a file that holds what fits in no memory.
 *
 * The file has no name and ends with its process, so no later process can read half-written data. Its blocks are
 * allocated when it is opened. Between steps the host reads and writes it as memory (tr_spill_base). Inside a step,
 * jobs move ranges of it past the page cache, on one thread for reads and one for writes. The hash of each written
 * range is kept in memory and compared when the range is read again.
 */
#ifndef TR_DEVICE_SPILL_H
#define TR_DEVICE_SPILL_H

#include "base/base.h"

enum { TR_DISK_ALIGN = 4096, TR_DISK_JOBS = 2 }; /* ranges and buffers; jobs of each direction */

struct tr_spill;
/* TR_USAGE: dir has no room for so many bytes, both named, or is no directory. buffers: where jobs move to and from. */
enum tr_status tr_spill_open(const char *dir, size_t bytes, void *buffers, size_t n_bytes, struct tr_spill **out);
void tr_spill_close(struct tr_spill *d); /* waits for jobs; NULL is fine */
char *tr_spill_base(const struct tr_spill *d);
/* Starts job `job` of a direction, after the one before it was waited for. A read of a range starts when the write of
 * that range is over. */
void tr_spill_start(struct tr_spill *d, bool is_write, int job, size_t at, char *memory, size_t bytes);
/* Waits for it. TR_IO names the directory and the cause; a job that was never started is over. */
enum tr_status tr_spill_wait(struct tr_spill *d, bool is_write, int job);
enum tr_status tr_spill_sync(struct tr_spill *d);     /* all writes */
void tr_spill_changed(struct tr_spill *d, size_t at); /* the host has written to the range that begins here */

#endif
