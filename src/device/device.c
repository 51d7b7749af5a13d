/* device.c - the table of devices, and the code that is the same for every row: counting, noting failures, waiting. */
#include "device/device_impl.h"
#include <assert.h>
#include <stdarg.h>
#include <stdio.h>

static struct tr_module cuda_module = { .name = "cuda",
                                        .get = "install the package trireme-cuda of this release, or build the module "
                                               "where nvcc is (cmake --preset cuda)" };
/* What plans need of it; the whole row is in the module (cuda.cu). */
static const struct tr_device_row tr_cuda_row = { .name = "cuda", .is_offered = true, .module = &cuda_module };

/* Fastest first: tr_device_best takes the first one that is present. */
static const struct tr_device_row *const rows[] = { &tr_cuda_row, &tr_cpu_row, &tr_phantom_row, &tr_threads_row };

static const struct tr_device_row *listed(const char *name)
{
    for (size_t i = 0; i < TR_COUNT_OF(rows); i++)
        if (strcmp(rows[i]->name, name) == 0)
            return rows[i];
    return NULL;
}

/* The row of the module where there is one. */
static const struct tr_device_row *whole(const struct tr_device_row *row)
{
    const struct tr_device_row *own = row->module ? tr_module_symbol(row->module, TR_DEVICE_ROW_SYMBOL) : NULL;
    return own ? own : row;
}

const struct tr_device_row *tr_device_row(const char *name)
{
    const struct tr_device_row *row = listed(name);
    return row ? whole(row) : NULL;
}

struct tr_module *tr_device_module(const char *device)
{
    const struct tr_device_row *row = listed(device);
    return row ? row->module : NULL;
}

const void *tr_device_symbol(const char *device, const char *symbol)
{
    struct tr_module *m = tr_device_module(device);
    return m ? tr_module_symbol(m, symbol) : NULL;
}

bool tr_device_is_present(const struct tr_device_row *row)
{
    return row->open && (!row->is_present || row->is_present());
}

const struct tr_device_row *tr_device_best(void)
{
    size_t i = 0;
    while (!rows[i]->is_offered || !tr_device_is_present(whole(rows[i]))) /* ends at cpu, which is always present */
        i++;
    return whole(rows[i]);
}

/* The devices that a user may choose: "cuda, cpu". */
static const char *offered(char *buf, size_t n)
{
    buf[0] = 0;
    for (size_t i = 0, at = 0; i < TR_COUNT_OF(rows) && at < n; i++)
        if (rows[i]->is_offered)
            at += (size_t)snprintf(buf + at, n - at, "%s%s", at ? ", " : "", rows[i]->name);
    return buf;
}

enum tr_status tr_device_open(const char *name, struct tr_device *out)
{
    const struct tr_device_row *row = tr_device_row(name);
    char legal[64];
    *out = (struct tr_device){ 0 };
    if (!row)
        return tr_fail(TR_USAGE, "device \"%s\" is not known; there are: %s", name, offered(legal, sizeof legal));
    if (!row->open)
        return tr_fail(TR_USAGE, "device %s: %s; or use --device cpu", name, row->module->why);
    out->row = row;
    enum tr_status st = row->open(out);
    if (st != TR_OK)
        *out = (struct tr_device){ 0 };
    return st;
}

void tr_device_close(struct tr_device *d)
{
    if (d->row)
        d->row->close(d);
    *d = (struct tr_device){ 0 };
}

/* ---- memory ---- */

enum tr_status tr_device_reserve(struct tr_device *d, enum tr_space space, size_t bytes, const char *what, void **base)
{
    char human[32];
    TR_BUG_ON(space == TR_SPACE_DISK);
    if (space == TR_SPACE_PINNED && bytes > 0 && tr_failpoint("device.pin") != TR_OK)
        return tr_fail(TR_NOMEM, "arena %s: the host (pinned memory) refused %s; " TR_PINNED_ADVICE, what,
                       tr_human_bytes(bytes, human, sizeof human));
    enum tr_status st = d->row->memory->reserve(d, space, bytes, what, base);
    if (st == TR_OK) {
        d->reserved_bytes += bytes;
        d->n_reserves++;
    }
    return st;
}

void tr_device_release(struct tr_device *d, enum tr_space space, void *base, size_t bytes)
{
    d->row->memory->release(d, space, base, bytes);
    d->reserved_bytes -= bytes;
}

void tr_device_copy(struct tr_device *d, enum tr_stream s, void *dst, const void *src, size_t bytes)
{
    if (bytes) /* a rank that holds no part of a tensor has no address for it either */
        d->row->memory->copy(d, s, dst, src, bytes);
}

void tr_device_copy_now(struct tr_device *d, void *dst, const void *src, size_t bytes)
{
    tr_device_copy(d, TR_STREAM_COMPUTE, dst, src, bytes);
    d->row->stream->drain(d, TR_STREAM_COMPUTE);
}

void tr_device_clear(struct tr_device *d, enum tr_stream s, void *dst, size_t bytes)
{
    d->row->memory->clear(d, s, dst, bytes);
}

size_t tr_device_total(const struct tr_device_row *row)
{
    return row->memory && row->memory->total ? row->memory->total() : 0;
}

size_t tr_device_used(struct tr_device *d)
{
    return d->row->memory->used ? d->row->memory->used(d) : 0;
}

/* ---- streams ---- */

const char *tr_stream_name(enum tr_stream s)
{
    static const char *const names[] = { "compute", "comm", "in", "out", "host" };
    static_assert(TR_COUNT_OF(names) == TR_STREAM_COUNT, "one name a stream");
    return names[s];
}

static enum tr_status report(struct tr_device *d)
{
    enum tr_status st = d->failed;
    d->failed = TR_OK;
    return st == TR_OK ? TR_OK : tr_fail(st, "%s", d->cause);
}

enum tr_status tr_device_sync(struct tr_device *d, enum tr_stream s)
{
    d->row->stream->drain(d, s);
    return report(d);
}

enum tr_status tr_device_sync_all(struct tr_device *d)
{
    for (int s = 0; s < TR_STREAM_COUNT; s++)
        d->row->stream->drain(d, (enum tr_stream)s);
    return report(d);
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

void *tr_device_stream(const struct tr_device *d, enum tr_stream s)
{
    return d->row->stream->native ? d->row->stream->native(d, s) : NULL;
}

enum tr_status tr_stream_event_open(struct tr_device *d, void **event)
{
    return d->row->stream->event_open(d, event);
}

void tr_stream_event_close(struct tr_device *d, void *event)
{
    if (event)
        d->row->stream->event_close(d, event);
}

void tr_stream_record(struct tr_device *d, enum tr_stream s, void *event)
{
    d->row->stream->record(d, s, event);
}

void tr_stream_wait(struct tr_device *d, enum tr_stream s, void *event)
{
    d->row->stream->wait(d, s, event);
}

/* ---- recordings ---- */

bool tr_device_record(struct tr_device *d)
{
    return d->row->capture && d->row->capture->record(d);
}

void *tr_device_recorded(struct tr_device *d)
{
    return d->row->capture ? d->row->capture->recorded(d) : NULL;
}

void tr_device_replay(struct tr_device *d, void *recording)
{
    TR_BUG_ON(!d->row->capture);
    d->row->capture->replay(d, recording);
}

void tr_device_forget(struct tr_device *d, void *recording)
{
    if (recording)
        d->row->capture->forget(d, recording);
}
