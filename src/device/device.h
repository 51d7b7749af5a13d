/* device.h - room header of device: bytes on one device. A device is a row of this table: cpu, phantom; a GPU adds one.
 *
 * Memory is reserved once, before step 0, exactly as planned; nothing here allocates later. The phantom device has no
 * memory and no arithmetic: it counts, so that a plan for any cluster can be made on a laptop.
 */
#ifndef TR_DEVICE_DEVICE_H
#define TR_DEVICE_DEVICE_H

#include "base/base.h"

struct tr_device;

struct tr_device_ops {
    const char *name;
    enum tr_status (*reserve)(struct tr_device *d, size_t bytes, const char *what, void **base);
    void (*release)(struct tr_device *d, void *base, size_t bytes);
    void (*upload)(struct tr_device *d, void *dst, const void *src, size_t bytes);   /* host -> device */
    void (*download)(struct tr_device *d, void *dst, const void *src, size_t bytes); /* device -> host */
    void (*clear)(struct tr_device *d, void *dst, size_t bytes);                     /* zeroes */
    enum tr_status (*sync)(struct tr_device *d); /* waits; reports what failed since the last sync */
};

struct tr_device {
    const struct tr_device_ops *ops;
    size_t reserved_bytes; /* now */
    int n_reserves;        /* ever: must not grow after step 0 */
};

/* "cpu" or "phantom"; TR_USAGE names what there is. */
enum tr_status tr_device_open(const char *name, struct tr_device *out);

#endif
