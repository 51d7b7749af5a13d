/* device_impl.h - private to the device room: the rows, and what they share. */
#ifndef TR_DEVICE_IMPL_H
#define TR_DEVICE_IMPL_H

#include "device/device.h"

extern const struct tr_device_row tr_cpu_row, tr_phantom_row; /* host.c */
extern const struct tr_device_row tr_threads_row;             /* threads.c */
extern const struct tr_mark_ops tr_cuda_marks;                /* marks.cu, in the module */

/* host.c: pages of the host. */
enum tr_status tr_pages_reserve(struct tr_device *d, enum tr_space space, size_t bytes, const char *what, void **base);
void tr_pages_release(struct tr_device *d, enum tr_space space, void *base, size_t bytes);

#endif
