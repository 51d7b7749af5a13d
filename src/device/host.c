/* host.c - the devices that need no library and no threads: cpu and phantom. Their streams run in the calling thread.
 *
 * The CPU reserves anonymous memory and asks for huge pages: step kernels stream through gigabytes, and 4 KiB pages
 * cost them 5-10 % in TLB misses. Phantom hands out addresses from a range that no code may touch.
 */
#include "base/pool.h"
#include "device/device_impl.h"
#include <errno.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { TOUCH_BYTES = 64 << 20 }; /* that one thread touches at once */

struct pages {
    char *base;
    size_t bytes;
};

enum tr_status tr_pages_reserve(struct tr_device *d, enum tr_space space, size_t bytes, const char *what, void **base)
{
    void *p = NULL;
    (void)d;
    (void)space;
    if (bytes) {
        p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED) {
            char human[32];
            return tr_fail(TR_NOMEM, "arena %s: the machine refused %s (%s)", what,
                           tr_human_bytes(bytes, human, sizeof human), strerror(errno));
        }
        (void)madvise(p, bytes, MADV_HUGEPAGE);
    }
    *base = p;
    return TR_OK;
}

void tr_pages_release(struct tr_device *d, enum tr_space space, void *base, size_t bytes)
{
    (void)d;
    (void)space;
    if (base)
        munmap(base, bytes);
}

/* One write to each page of a part; the first one makes a huge page where the kernel has one. */
static void touch_part(void *ctx, int64_t part, int worker)
{
    enum { PAGE = 4096 };
    const struct pages *x = ctx;
    size_t at = (size_t)part * TOUCH_BYTES, end = x->bytes - at < TOUCH_BYTES ? x->bytes : at + TOUCH_BYTES;
    (void)worker;
    for (; at < end; at += PAGE)
        *(volatile char *)(x->base + at) = 0;
}

void tr_pages_touch(void *base, size_t bytes, int node)
{
    enum { PREFERRED = 1 }; /* MPOL_PREFERRED: another node where this one is full */
    struct pages x = { base, bytes };
    struct tr_pool *pool = NULL;
    unsigned long nodes[16] = { 0 };
    if (node >= 0 && node < (int)(8 * sizeof nodes)) {
        nodes[(size_t)node / (8 * sizeof *nodes)] = 1UL << (size_t)node % (8 * sizeof *nodes);
        (void)syscall(SYS_mbind, base, bytes, PREFERRED, nodes, 8 * sizeof nodes,
                      0); /* a kernel without nodes refuses */
    }
    if (bytes > TOUCH_BYTES && tr_pool_open(0, &pool) != TR_OK)
        tr_error_clear(); /* one thread does it too */
    tr_pool_run(pool, (int64_t)((bytes + TOUCH_BYTES - 1) / TOUCH_BYTES), touch_part, &x);
    tr_pool_close(pool);
}

static enum tr_status open_nothing(struct tr_device *d)
{
    (void)d;
    return TR_OK;
}

static void close_nothing(struct tr_device *d)
{
    (void)d;
}

/* ---- streams in the calling thread: an event is over when it is recorded ---- */

static enum tr_status event_open(struct tr_device *d, void **event)
{
    (void)d;
    *event = NULL;
    return TR_OK;
}

static void event_close(struct tr_device *d, void *event)
{
    (void)d;
    (void)event;
}

static void done_at_once(struct tr_device *d, enum tr_stream s, void *event)
{
    (void)d;
    (void)s;
    (void)event;
}

static void launch(struct tr_device *d, enum tr_stream s, tr_kernel kernel, const struct tr_call *call, size_t bytes)
{
    (void)d;
    (void)s;
    (void)bytes;
    kernel(call);
}

static void drain(struct tr_device *d, enum tr_stream s)
{
    (void)d;
    (void)s;
}

static const struct tr_stream_ops in_place = {
    event_open, event_close, done_at_once, done_at_once, launch, drain, NULL
};

/* ---- cpu ---- */

static void cpu_copy(struct tr_device *d, enum tr_stream s, void *dst, const void *src, size_t bytes)
{
    (void)d;
    (void)s;
    memcpy(dst, src, bytes);
}

static void cpu_clear(struct tr_device *d, enum tr_stream s, void *dst, size_t bytes)
{
    (void)d;
    (void)s;
    memset(dst, 0, bytes);
}

static const struct tr_memory_ops cpu_memory = { tr_pages_reserve, tr_pages_release, cpu_copy, cpu_clear, NULL, NULL };

const struct tr_device_row tr_cpu_row = { .name = "cpu",
                                          .is_host = true,
                                          .is_offered = true,
                                          .open = open_nothing,
                                          .close = close_nothing,
                                          .memory = &cpu_memory,
                                          .stream = &in_place };

/* ---- phantom ---- */

static enum tr_status phantom_reserve(struct tr_device *d, enum tr_space space, size_t bytes, const char *what,
                                      void **base)
{
    (void)space;
    (void)bytes;
    (void)what;
    *base = (void *)(uintptr_t)(4096 + d->reserved_bytes); /* such addresses are only compared and added to; the first
                                                              pages are unmapped */
    return TR_OK;
}

static void phantom_release(struct tr_device *d, enum tr_space space, void *base, size_t bytes)
{
    (void)d;
    (void)space;
    (void)base;
    (void)bytes;
}

static void phantom_copy(struct tr_device *d, enum tr_stream s, void *dst, const void *src, size_t bytes)
{
    (void)d;
    (void)s;
    (void)dst;
    (void)src;
    (void)bytes;
}

static void phantom_clear(struct tr_device *d, enum tr_stream s, void *dst, size_t bytes)
{
    phantom_copy(d, s, dst, NULL, bytes);
}

static const struct tr_memory_ops phantom_memory = {
    phantom_reserve, phantom_release, phantom_copy, phantom_clear, NULL, NULL
};

const struct tr_device_row tr_phantom_row = { .name = "phantom",
                                              .is_host = true,
                                              .open = open_nothing,
                                              .close = close_nothing,
                                              .memory = &phantom_memory,
                                              .stream = &in_place };
