/* device.h - room header of device: memory and streams of one device. A device is a row of one table; it is looked up
 * by name once, when it is opened. Its kernels are a column of `ops`, found by the same name.
 *
 * Memory is reserved once, before step 0, exactly as planned; nothing here allocates later. Work is issued to a stream:
 * one stream runs its work in order, two streams are ordered only by events. On cpu and phantom all work runs
 * immediately in the calling thread, so an event is over when it is recorded. The phantom device has no memory and does
 * no arithmetic. It only counts, so that a laptop can plan for any cluster. `threads` is for tests: a CPU whose streams
 * are threads.
 */
#ifndef TR_DEVICE_DEVICE_H
#define TR_DEVICE_DEVICE_H

#include "base/base.h"
#include "device/spill.h"

struct tr_device;

/* GPU memory that a process uses besides its arenas: context, libraries, graphs. Measured: bench/results/h200.md. */
#define TR_GPU_BESIDE_BYTES ((size_t)590 * 1000 * 1000)

/* Where memory is. On a device whose memory is the host's (is_host) the first three are the same. */
enum tr_space {
    TR_SPACE_DEVICE,
    TR_SPACE_PINNED, /* host memory that the device can copy by DMA, zeroed; GPU collectives never use it */
    TR_SPACE_HOST, /* pageable host memory: virtual memory is reserved now, pages are faulted in on first touch. Pinning
                      as much as a checkpoint would take seconds */
    TR_SPACE_DISK, /* files: counted in budgets, never reserved here */
    TR_SPACE_COUNT
};

enum tr_stream {
    TR_STREAM_COMPUTE, /* kernels, and copies that must stay in order with them */
    TR_STREAM_COMM,    /* copies for communication; the communicators of a GPU have further streams of their own */
    TR_STREAM_IN,      /* copies to the device, ahead of their use */
    TR_STREAM_OUT,     /* copies from the device */
    TR_STREAM_HOST,    /* the thread that issues work: its work runs immediately, its waits block */
    TR_STREAM_COUNT
};
const char *tr_stream_name(enum tr_stream s); /* "compute" */

/* Scratch, workspaces, thread pools and library handles belong to one stream; struct tr_call is defined in ops. */
struct tr_call;
typedef void (*tr_kernel)(const struct tr_call *c);

struct tr_memory_ops {
    enum tr_status (*reserve)(struct tr_device *d, enum tr_space space, size_t bytes, const char *what, void **base);
    void (*release)(struct tr_device *d, enum tr_space space, void *base, size_t bytes);
    /* Asynchronous, in any direction: the caller must not change dst or src before the stream has done the copy. */
    void (*copy)(struct tr_device *d, enum tr_stream s, void *dst, const void *src, size_t bytes);
    void (*clear)(struct tr_device *d, enum tr_stream s, void *dst, size_t bytes);
    size_t (*used)(struct tr_device *d); /* bytes in use by all processes; NULL: unknown */
    size_t (*total)(void);               /* bytes of the device that this process would open; NULL: unknown */
};

struct tr_stream_ops {
    enum tr_status (*event_open)(struct tr_device *d, void **event);
    void (*event_close)(struct tr_device *d, void *event);
    void (*record)(struct tr_device *d, enum tr_stream s, void *event);
    void (*wait)(struct tr_device *d, enum tr_stream s, void *event);
    /* Runs a kernel on a stream. The caller may change `call` (`bytes` long) as soon as launch returns. */
    void (*launch)(struct tr_device *d, enum tr_stream s, tr_kernel kernel, const struct tr_call *call, size_t bytes);
    void (*drain)(struct tr_device *d, enum tr_stream s); /* blocks until its work is done; failures are noted */
    void *(*native)(const struct tr_device *d, enum tr_stream s); /* the vendor's handle; NULL: there is none */
};

/* A recording holds work that was issued to the compute stream; it is replayed as one unit. */
struct tr_capture_ops {
    bool (*record)(struct tr_device *d);
    void *(*recorded)(struct tr_device *d);
    void (*replay)(struct tr_device *d, void *recording);
    void (*forget)(struct tr_device *d, void *recording);
};

/* Times on the clock of the device, and named ranges for the vendor's tools. */
struct tr_mark_ops {
    bool (*open)(void **mark);
    void (*close)(void *mark);
    void (*set)(struct tr_device *d, void *mark, void *native_stream); /* NULL: the compute stream */
    double (*us)(void *from, void *to);
    void (*range)(const char *name); /* NULL: ends the last one */
    void (*profile)(bool is_on);     /* the vendor's tools take down what lies between */
};

struct tr_device_row {
    const char *name;
    bool is_host;                                /* the host may read and write the reserved memory */
    bool is_offered;                             /* a user may choose it */
    bool (*is_present)(void);                    /* NULL: present wherever it can be opened */
    enum tr_status (*open)(struct tr_device *d); /* NULL: without its module one can only plan for it */
    void (*close)(struct tr_device *d);
    const struct tr_memory_ops *memory;
    const struct tr_stream_ops *stream;
    const struct tr_capture_ops *capture; /* NULL: the device cannot record */
    const struct tr_mark_ops *mark;       /* NULL: the host's clock */
    struct tr_module *module; /* where the whole row is, as TR_DEVICE_ROW_SYMBOL; NULL: this is the whole row */
};
#define TR_DEVICE_ROW_SYMBOL "tr_device_row_of_module"

/* The module of a device; NULL: it has none. A column of kernels and an engine of communication may be there too:
 * tr_device_symbol finds their tables; NULL: the device has no module, or the module's `why` says what is wrong. */
struct tr_module *tr_device_module(const char *device);
const void *tr_device_symbol(const char *device, const char *symbol);

struct tr_device {
    const struct tr_device_row *row;
    void *impl;              /* private to the row: streams */
    void *library;           /* private to the kernel column: handles, plans, workspaces */
    size_t reserved_bytes;   /* now */
    int n_reserves;          /* reservations so far; must not grow after step 0 */
    int n_units, capability; /* multiprocessors; 90 = compute capability 9.0; 0 = unknown */
    double peak_flops;       /* dense bf16, by the datasheet; 0 = unknown */
    double peak_bytes;       /* memory bandwidth in bytes per second; 0 = unknown */
    enum tr_status failed;   /* the first failure since the last sync; `cause` has its text */
    char cause[256];
};

/* NULL: no row has this name. A device whose module is not here has a row too, because plans need its facts. */
const struct tr_device_row *tr_device_row(const char *name);
/* The fastest device that is present and that a user may choose. */
const struct tr_device_row *tr_device_best(void);
bool tr_device_is_present(const struct tr_device_row *row);
/* TR_USAGE names the devices that there are, or says why a module cannot be opened. tr_device_close accepts a zeroed
 * struct. */
enum tr_status tr_device_open(const char *name, struct tr_device *out);
void tr_device_close(struct tr_device *d);

enum tr_status tr_device_reserve(struct tr_device *d, enum tr_space space, size_t bytes, const char *what, void **base);
void tr_device_release(struct tr_device *d, enum tr_space space, void *base, size_t bytes);
/* With no bytes both addresses may be NULL. */
void tr_device_copy(struct tr_device *d, enum tr_stream s, void *dst, const void *src, size_t bytes);
/* Copies on the compute stream and waits for the copy. Failures are noted for the next sync. */
void tr_device_copy_now(struct tr_device *d, void *dst, const void *src, size_t bytes);
void tr_device_clear(struct tr_device *d, enum tr_stream s, void *dst, size_t bytes); /* zeroes */
/* Waits for one stream, or for all of them, and returns the first failure since the last sync. */
enum tr_status tr_device_sync(struct tr_device *d, enum tr_stream s);
enum tr_status tr_device_sync_all(struct tr_device *d);
/* Notes a failure of asynchronous work; the first one is kept until the next sync. */
void tr_device_note(struct tr_device *d, enum tr_status st, const char *fmt, ...) TR_PRINTF(3, 4);
/* Bytes of the device of this row that this process would open; 0 = unknown, or its memory is the host's. */
size_t tr_device_total(const struct tr_device_row *row);
size_t tr_device_used(struct tr_device *d); /* bytes in use on the device, by all processes; 0 = unknown */
/* The vendor's handle of a stream; NULL where streams have none. */
void *tr_device_stream(const struct tr_device *d, enum tr_stream s);

/* Events. A wait holds the stream until the last record issued before it is over; an event that was never recorded
 * holds nothing. A caller may record an event on another stream only after its last record is over. */
enum tr_status tr_stream_event_open(struct tr_device *d, void **event);
void tr_stream_event_close(struct tr_device *d, void *event); /* NULL is fine */
void tr_stream_record(struct tr_device *d, enum tr_stream s, void *event);
void tr_stream_wait(struct tr_device *d, enum tr_stream s, void *event);

/* After record, work for the compute stream is recorded instead of run. recorded ends this and returns the recording;
 * NULL: some of the work cannot be recorded, and none of it has run. Devices without capture return false and NULL. */
bool tr_device_record(struct tr_device *d);
void *tr_device_recorded(struct tr_device *d);
void tr_device_replay(struct tr_device *d, void *recording);
void tr_device_forget(struct tr_device *d, void *recording); /* NULL is fine */

/* Sets the delays before the jobs of the device `threads`: up to max_us, drawn from the seed. Call it before work is
 * issued. */
void tr_threads_delays(struct tr_device *d, uint64_t seed, int max_us);

/* Marks in time, for profiles. Mark i takes the time at which a stream (a native handle; NULL: the compute stream)
 * reaches it; on the host, the current time. Marks are read after a sync, on the clock of tr_clock_us. */
struct tr_marks;
enum tr_status tr_marks_open(struct tr_device *d, int n, struct tr_marks **out);
void tr_marks_close(struct tr_marks *m);           /* NULL is fine */
enum tr_status tr_marks_start(struct tr_marks *m); /* call it before the first mark */
void tr_mark(struct tr_marks *m, int i, void *stream);
double tr_mark_us(const struct tr_marks *m, int i);
double tr_marks_now_us(void); /* the host's time now, on the same clock */
/* A named range for the tools of the device's vendor; nothing on other devices. Ranges nest. */
void tr_range_begin(const struct tr_device *d, const char *name);
void tr_range_end(const struct tr_device *d);
void tr_profile_range(const struct tr_device *d, bool is_on); /* the vendor's tools take down what lies between */

#endif
