/* device_impl.h - private to the device room: the rows, and what they share. */
#ifndef TR_DEVICE_IMPL_H
#define TR_DEVICE_IMPL_H

#include "device/device.h"

extern const struct tr_device_row tr_cpu_row, tr_phantom_row; /* host.c */
extern const struct tr_device_row tr_threads_row;             /* threads.c */
extern const struct tr_mark_ops tr_cuda_marks;                /* marks.cu, in the module */

/* What to do where the host gives no pinned memory. */
#define TR_PINNED_ADVICE "offload less (--offload_share), or raise the limit of locked memory (ulimit -l)"

/* host.c: pages of the host, zeroed. Touch: the kernel gives all of them now, to all threads of this process at once,
 * from memory of a NUMA node (-1: of any) as long as that has some. */
enum tr_status tr_pages_reserve(struct tr_device *d, enum tr_space space, size_t bytes, const char *what, void **base);
void tr_pages_release(struct tr_device *d, enum tr_space space, void *base, size_t bytes);
void tr_pages_touch(void *base, size_t bytes, int node);

#endif
