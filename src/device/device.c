/* device.c - the table of devices, with the two that need no library: cpu and phantom.
 *
 * The CPU reserves anonymous memory and asks for huge pages: step kernels stream through gigabytes, and 4 KiB pages
 * cost them 5-10 % in TLB misses. Phantom hands out addresses from a range that nobody may touch.
 */
#include "device/device_impl.h"
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/mman.h>

enum tr_status tr_pages_reserve(struct tr_device *d, size_t bytes, const char *what, void **base)
{
    void *p = NULL;
    if (bytes) {
        p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED) {
            char human[32];
            return tr_fail(TR_NOMEM, "arena %s: the machine refused %s (%s)", what,
                           tr_human_bytes(bytes, human, sizeof human), strerror(errno));
        }
        (void)madvise(p, bytes, MADV_HUGEPAGE);
    }
    d->reserved_bytes += bytes;
    d->n_reserves++;
    *base = p;
    return TR_OK;
}

void tr_pages_release(struct tr_device *d, void *base, size_t bytes)
{
    if (base)
        munmap(base, bytes);
    d->reserved_bytes -= bytes;
}

static void cpu_copy(struct tr_device *d, void *dst, const void *src, size_t bytes)
{
    (void)d;
    memcpy(dst, src, bytes);
}

static void cpu_clear(struct tr_device *d, void *dst, size_t bytes)
{
    (void)d;
    memset(dst, 0, bytes);
}

static enum tr_status nothing_failed(struct tr_device *d)
{
    (void)d;
    return TR_OK;
}

static enum tr_status phantom_reserve(struct tr_device *d, size_t bytes, const char *what, void **base)
{
    (void)what;
    *base = (void *)(uintptr_t)(4096 + d->reserved_bytes); /* an address to do sums with, in memory nobody maps */
    d->reserved_bytes += bytes;
    d->n_reserves++;
    return TR_OK;
}

static void phantom_release(struct tr_device *d, void *base, size_t bytes)
{
    (void)base;
    d->reserved_bytes -= bytes;
}

static void phantom_copy(struct tr_device *d, void *dst, const void *src, size_t bytes)
{
    (void)d;
    (void)dst;
    (void)src;
    (void)bytes;
}

static void phantom_clear(struct tr_device *d, void *dst, size_t bytes)
{
    phantom_copy(d, dst, NULL, bytes);
}

static const struct tr_device_ops devices[] = {
    { "cpu", true, tr_pages_reserve, tr_pages_release, tr_pages_reserve, tr_pages_release, cpu_copy, cpu_copy, cpu_copy,
      cpu_clear, nothing_failed },
    { "phantom", true, phantom_reserve, phantom_release, phantom_reserve, phantom_release, phantom_copy, phantom_copy,
      phantom_copy, phantom_clear, nothing_failed },
};

enum tr_status tr_device_open(const char *name, struct tr_device *out)
{
    *out = (struct tr_device){ 0 };
    for (size_t i = 0; i < TR_COUNT_OF(devices); i++)
        if (strcmp(devices[i].name, name) == 0) {
            out->ops = &devices[i];
            return TR_OK;
        }
#ifdef TR_HAS_CUDA
    if (strcmp(name, "cuda") == 0) {
        out->ops = &tr_cuda_ops;
        return tr_cuda_open(out);
    }
    return tr_fail(TR_USAGE, "device \"%s\" is not built in; this build has: cpu, cuda", name);
#else
    return tr_fail(TR_USAGE, "device \"%s\" is not in this build, which has: cpu; build with cmake --preset cuda",
                   name);
#endif
}

void tr_device_close(struct tr_device *d)
{
#ifdef TR_HAS_CUDA
    if (d->ops == &tr_cuda_ops)
        tr_cuda_close(d);
#endif
    *d = (struct tr_device){ 0 };
}

bool tr_device_is_present(const char *name)
{
#ifdef TR_HAS_CUDA
    if (strcmp(name, "cuda") == 0)
        return tr_cuda_count() > 0;
#endif
    return strcmp(name, "cpu") == 0;
}

void tr_device_note(struct tr_device *d, enum tr_status st, const char *fmt, ...)
{
    if (d->failed != TR_OK)
        return;
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(d->cause, sizeof d->cause, fmt, ap);
    va_end(ap);
    d->failed = st;
}

static bool is_cuda(const struct tr_device *d)
{
    return strcmp(d->ops->name, "cuda") == 0;
}

#ifdef TR_HAS_CUDA
bool tr_device_record(struct tr_device *d)
{
    return is_cuda(d) && tr_cuda_record(d);
}

void *tr_device_recorded(struct tr_device *d)
{
    return is_cuda(d) ? tr_cuda_recorded(d) : NULL;
}

void tr_device_replay(struct tr_device *d, void *recording)
{
    tr_cuda_replay(d, recording);
}

void tr_device_forget(struct tr_device *d, void *recording)
{
    if (is_cuda(d))
        tr_cuda_forget(recording);
}

size_t tr_device_used(struct tr_device *d)
{
    return is_cuda(d) ? tr_cuda_used() : 0;
}
#else
bool tr_device_record(struct tr_device *d)
{
    TR_BUG_ON(is_cuda(d));
    return false;
}

void *tr_device_recorded(struct tr_device *d)
{
    (void)d;
    return NULL;
}

void tr_device_replay(struct tr_device *d, void *recording)
{
    (void)d;
    TR_BUG_ON(recording != NULL);
}

void tr_device_forget(struct tr_device *d, void *recording)
{
    (void)d;
    TR_BUG_ON(recording != NULL);
}

size_t tr_device_used(struct tr_device *d)
{
    (void)d;
    return 0;
}
#endif
