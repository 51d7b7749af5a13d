/* device.h - room header of device: memory and streams of one device. A device is a row of one table, found by name
 * once, when it is opened; kernels are a column of `ops` that is joined to the row by the same name.
 *
 * Memory is reserved once, before step 0, exactly as planned; nothing here allocates later. Work is issued to a stream:
 * one stream runs its work in order, two streams are ordered only by events. On cpu and phantom every stream runs in
 * place, so events are done when they are recorded. The phantom device has no memory and no arithmetic: it counts, so
 * that a plan for any cluster can be made on a laptop. `threads` is for tests: a CPU whose streams are threads.
 */
#ifndef TR_DEVICE_DEVICE_H
#define TR_DEVICE_DEVICE_H

#include "base/base.h"

struct tr_device;

/* GPU memory that a process uses beside its arenas: context, libraries, graphs. Measured: bench/results/h200.md. */
#define TR_GPU_BESIDE_BYTES ((size_t)590 * 1000 * 1000)

/* Where memory is. On a device whose memory is the host's (is_host) the first three are the same. */
enum tr_space {
    TR_SPACE_DEVICE,
    TR_SPACE_PINNED, /* host memory that the device copies from and to by itself; never a piece of a GPU collective */
    TR_SPACE_HOST,   /* pageable host memory: reserved as addresses, faulted in on first touch, which spares the seconds
                        that pinning as much as a checkpoint takes */
    TR_SPACE_DISK,   /* files: counted in budgets, never reserved here */
    TR_SPACE_COUNT
};

enum tr_stream {
    TR_STREAM_COMPUTE, /* kernels, and the copies that must keep their order with them */
    TR_STREAM_COMM,    /* copies for communication; a GPU's communicators have streams of their own beside it */
    TR_STREAM_IN,      /* copies to the device, ahead of their use */
    TR_STREAM_OUT,     /* copies from the device */
    TR_STREAM_HOST,    /* the thread that issues: its work runs in place, its waits block */
    TR_STREAM_COUNT
};
const char *tr_stream_name(enum tr_stream s); /* "compute" */

/* Scratch, workspaces, thread pools and library handles belong to one stream; struct tr_call is defined in ops. */
struct tr_call;
typedef void (*tr_kernel)(const struct tr_call *c);

struct tr_memory_ops {
    enum tr_status (*reserve)(struct tr_device *d, enum tr_space space, size_t bytes, const char *what, void **base);
    void (*release)(struct tr_device *d, enum tr_space space, void *base, size_t bytes);
    /* Any direction, asynchronous: dst and src stay as they are until the stream has passed the copy. */
    void (*copy)(struct tr_device *d, enum tr_stream s, void *dst, const void *src, size_t bytes);
    void (*clear)(struct tr_device *d, enum tr_stream s, void *dst, size_t bytes);
    size_t (*used)(struct tr_device *d); /* bytes in use by all processes; NULL: unknown */
};

struct tr_stream_ops {
    enum tr_status (*event_open)(struct tr_device *d, void **event);
    void (*event_close)(struct tr_device *d, void *event);
    void (*record)(struct tr_device *d, enum tr_stream s, void *event);
    void (*wait)(struct tr_device *d, enum tr_stream s, void *event);
    /* Runs a kernel on a stream. `call` (bytes long) may change as soon as launch returns. */
    void (*launch)(struct tr_device *d, enum tr_stream s, tr_kernel kernel, const struct tr_call *call, size_t bytes);
    void (*drain)(struct tr_device *d, enum tr_stream s); /* blocks until its work is done; failures are noted */
    void *(*native)(const struct tr_device *d, enum tr_stream s); /* the vendor's handle; NULL: there is none */
};

/* A recording holds what was issued to the compute stream, to be replayed as one. */
struct tr_capture_ops {
    bool (*record)(struct tr_device *d);
    void *(*recorded)(struct tr_device *d);
    void (*replay)(struct tr_device *d, void *recording);
    void (*forget)(struct tr_device *d, void *recording);
};

/* Times on the device's own clock, and named ranges for its vendor's tools. */
struct tr_mark_ops {
    bool (*open)(void **mark);
    void (*close)(void *mark);
    void (*set)(struct tr_device *d, void *mark, void *native_stream); /* NULL: the compute stream */
    double (*us)(void *from, void *to);
    void (*range)(const char *name); /* NULL: ends the last one */
};

struct tr_device_row {
    const char *name;
    bool is_host;                                /* the host may read and write what is reserved */
    bool is_offered;                             /* a user may choose it */
    bool (*is_present)(void);                    /* NULL: wherever it is built */
    enum tr_status (*open)(struct tr_device *d); /* NULL: known to plans, not in this build */
    void (*close)(struct tr_device *d);
    const struct tr_memory_ops *memory;
    const struct tr_stream_ops *stream;
    const struct tr_capture_ops *capture; /* NULL: it records nothing */
    const struct tr_mark_ops *mark;       /* NULL: the host's clock */
};

struct tr_device {
    const struct tr_device_row *row;
    void *impl;              /* the row's own: streams */
    void *library;           /* the kernel column's own: handles, plans, workspaces */
    size_t reserved_bytes;   /* now */
    int n_reserves;          /* ever: must not grow after step 0 */
    int n_units, capability; /* multiprocessors; 90 = compute capability 9.0; 0 = unknown */
    double peak_flops;       /* dense bf16, by the datasheet; 0 = unknown */
    double peak_bytes;       /* of its memory, a second; 0 = unknown */
    enum tr_status failed;   /* first failure since the last sync, its text in `cause` */
    char cause[256];
};

/* NULL: no row has this name. Rows that are not in this build are found too: plans need their facts. */
const struct tr_device_row *tr_device_row(const char *name);
/* The offered row that is present here and fastest. */
const struct tr_device_row *tr_device_best(void);
bool tr_device_is_present(const struct tr_device_row *row);
/* TR_USAGE names what there is. tr_device_close is safe on zeroes. */
enum tr_status tr_device_open(const char *name, struct tr_device *out);
void tr_device_close(struct tr_device *d);

enum tr_status tr_device_reserve(struct tr_device *d, enum tr_space space, size_t bytes, const char *what, void **base);
void tr_device_release(struct tr_device *d, enum tr_space space, void *base, size_t bytes);
void tr_device_copy(struct tr_device *d, enum tr_stream s, void *dst, const void *src, size_t bytes);
/* A copy on the compute stream that is over when this returns; failures are noted, for the next sync. */
void tr_device_copy_now(struct tr_device *d, void *dst, const void *src, size_t bytes);
void tr_device_clear(struct tr_device *d, enum tr_stream s, void *dst, size_t bytes); /* zeroes */
/* Waits for one stream, or for all of them; reports what failed since the last sync. */
enum tr_status tr_device_sync(struct tr_device *d, enum tr_stream s);
enum tr_status tr_device_sync_all(struct tr_device *d);
/* Notes a failure of work that was only started; the first one is kept until the next sync. */
void tr_device_note(struct tr_device *d, enum tr_status st, const char *fmt, ...) TR_PRINTF(3, 4);
size_t tr_device_used(struct tr_device *d); /* bytes in use on the device, by all processes; 0 = unknown */
/* The vendor's handle of a stream; NULL where streams have none. */
void *tr_device_stream(const struct tr_device *d, enum tr_stream s);

/* Events. A wait holds the stream until the last record that was issued before it is over; an event that was never
 * recorded holds nothing. An event is recorded on another stream only after its last record is over. */
enum tr_status tr_stream_event_open(struct tr_device *d, void **event);
void tr_stream_event_close(struct tr_device *d, void *event); /* NULL is fine */
void tr_stream_record(struct tr_device *d, enum tr_stream s, void *event);
void tr_stream_wait(struct tr_device *d, enum tr_stream s, void *event);

/* After record, work for the compute stream is noted down instead of run, until recorded gives it back to be replayed
 * as one; NULL: some of it cannot be recorded, and none of it has run. Devices without capture: false and NULL. */
bool tr_device_record(struct tr_device *d);
void *tr_device_recorded(struct tr_device *d);
void tr_device_replay(struct tr_device *d, void *recording);
void tr_device_forget(struct tr_device *d, void *recording); /* NULL is fine */

/* The device `threads`: delays before its jobs, up to max_us, drawn from the seed. Call it before work is issued. */
void tr_threads_delays(struct tr_device *d, uint64_t seed, int max_us);

/* Marks in time, for profiles: mark i is set when a stream (a native handle; NULL: the compute stream) comes to it; on
 * the host, now. All are read after a sync, on the clock of tr_clock_us. */
struct tr_marks;
enum tr_status tr_marks_open(struct tr_device *d, int n, struct tr_marks **out);
void tr_marks_close(struct tr_marks *m);           /* NULL is fine */
enum tr_status tr_marks_start(struct tr_marks *m); /* before the first */
void tr_mark(struct tr_marks *m, int i, void *stream);
double tr_mark_us(const struct tr_marks *m, int i);
/* A named range for the tools of the device's vendor; nothing on other devices. Ranges nest. */
void tr_range_begin(const struct tr_device *d, const char *name);
void tr_range_end(const struct tr_device *d);

#endif
