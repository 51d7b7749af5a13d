/* device.h - room header of device: bytes on one device. A device is a row of this table: cpu, phantom, cuda.
 *
 * Memory is reserved once, before step 0, exactly as planned; nothing here allocates later. The phantom device has no
 * memory and no arithmetic: it counts, so that a plan for any cluster can be made on a laptop.
 */
#ifndef TR_DEVICE_DEVICE_H
#define TR_DEVICE_DEVICE_H

#include "base/base.h"

struct tr_device;

/* What a process takes of a GPU beside its arenas: context, libraries, graphs. Measured: bench/results/h200.md. */
#define TR_GPU_BESIDE_BYTES ((size_t)590 * 1000 * 1000)

struct tr_device_ops {
    const char *name;
    bool is_host; /* what is reserved can be read and written by the host as it is */
    enum tr_status (*reserve)(struct tr_device *d, size_t bytes, const char *what, void **base);
    void (*release)(struct tr_device *d, void *base, size_t bytes);
    /* Host memory that the device reads and writes fastest: batches and buffers for files. */
    enum tr_status (*reserve_host)(struct tr_device *d, size_t bytes, const char *what, void **base);
    void (*release_host)(struct tr_device *d, void *base, size_t bytes);
    void (*upload)(struct tr_device *d, void *dst, const void *src, size_t bytes); /* host -> device */
    void (*send)(struct tr_device *d, void *dst, const void *src, size_t bytes);   /* the same; src stays until sync */
    void (*download)(struct tr_device *d, void *dst, const void *src, size_t bytes); /* device -> host */
    void (*clear)(struct tr_device *d, void *dst, size_t bytes);                     /* zeroes */
    enum tr_status (*sync)(struct tr_device *d); /* waits; reports what failed since the last sync */
};

struct tr_device {
    const struct tr_device_ops *ops;
    size_t reserved_bytes; /* now */
    int n_reserves;        /* ever: must not grow after step 0 */
    /* cuda only: the stream everything runs on, the chip, and what the ops keep (handles, plans). */
    void *stream, *library;
    int n_units, capability; /* multiprocessors; 90 = compute capability 9.0 */
    double peak_flops;       /* dense bf16, by the datasheet; 0 = unknown */
    double peak_bytes;       /* of its memory, a second; 0 = unknown */
    bool may_choose;         /* kernels may be chosen by timing them: other bits from start to start */
    enum tr_status failed;   /* first failure since the last sync, its text in `cause` */
    char cause[256];
};

/* "cpu", "phantom" or "cuda"; TR_USAGE names what there is. tr_device_close is safe on zeroes. */
enum tr_status tr_device_open(const char *name, struct tr_device *out);
void tr_device_close(struct tr_device *d);
/* cuda: what is started after record is noted down instead of run, until recorded gives it back to be replayed as one;
 * NULL: something in it cannot be, and nothing of it has run. Elsewhere nothing is recorded: false and NULL. */
bool tr_device_record(struct tr_device *d);
void *tr_device_recorded(struct tr_device *d);
void tr_device_replay(struct tr_device *d, void *recording);
void tr_device_forget(struct tr_device *d, void *recording);
/* Pages of the host that no device copies from or to by itself: made when they are first touched, which takes seconds
 * for as much as a checkpoint where a device holds on to them at once. */
enum tr_status tr_pages_reserve(struct tr_device *d, size_t bytes, const char *what, void **base);
void tr_pages_release(struct tr_device *d, void *base, size_t bytes);
/* Bytes in use on the device, by whomever; 0 = unknown. */
size_t tr_device_used(struct tr_device *d);
/* Is there a device of this name that could be opened here? */
bool tr_device_is_present(const char *name);
/* Remembers a failure of something that was only started; the first one is kept until the next sync. */
void tr_device_note(struct tr_device *d, enum tr_status st, const char *fmt, ...) TR_PRINTF(3, 4);

/* Marks in time, for profiles: mark i is set when a stream (NULL: the device's own) comes to it; on the host, now. All
 * are read after a sync, on the clock of tr_clock_us. */
struct tr_marks;
enum tr_status tr_marks_open(struct tr_device *d, int n, struct tr_marks **out);
void tr_marks_close(struct tr_marks *m);           /* NULL is fine */
enum tr_status tr_marks_start(struct tr_marks *m); /* before the first */
void tr_mark(struct tr_marks *m, int i, void *stream);
double tr_mark_us(const struct tr_marks *m, int i);
/* A named range for the tools of the GPU's vendor; nothing on other devices. Ranges nest. */
void tr_range_begin(const struct tr_device *d, const char *name);
void tr_range_end(const struct tr_device *d);

#endif
