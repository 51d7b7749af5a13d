/* device_impl.h - private to the device room: the row that needs a library. */
#ifndef TR_DEVICE_IMPL_H
#define TR_DEVICE_IMPL_H

#include "device/device.h"

/* cuda.cu, when the build has it. open fills `out` but for ops. */
extern const struct tr_device_ops tr_cuda_ops;
enum tr_status tr_cuda_open(struct tr_device *out);
void tr_cuda_close(struct tr_device *d);
bool tr_cuda_record(struct tr_device *d);
void *tr_cuda_recorded(struct tr_device *d);
void tr_cuda_replay(struct tr_device *d, void *recording);
void tr_cuda_forget(void *recording);
size_t tr_cuda_used(void);
int tr_cuda_count(void); /* GPUs this process can use; 0 without a driver */

/* marks.cu */
bool tr_cuda_event_open(void **out);
void tr_cuda_event_close(void *event);
void tr_cuda_event_set(struct tr_device *d, void *event, void *stream);
double tr_cuda_event_us(void *from, void *to);
void tr_cuda_range(const char *name); /* NULL: ends the last one */

#endif
