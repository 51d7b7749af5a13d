/* cuda.cu - one NVIDIA GPU: memory, copies, streams and graphs.
 *
 * All kernels of a step run on the compute stream, in the order of the program; the other streams are for copies, which
 * events order. Arenas are one cudaMalloc each; batches and file buffers are pinned, because copies from pinned memory
 * are five times faster. A large pinned arena is made of our own pages, which the driver locks: all cores fault them
 * in, as huge pages where the kernel has them, on the NUMA node of the GPU. cudaMallocHost faults them in one by one on
 * one thread; it serves drivers that refuse to lock pages. A launch never waits: a failure is noted with the name of
 * the operation, and sync reports it. The runtime is linked statically and looks for the driver at its first use, so
 * this program also starts on machines without one. Rejected: managed memory (when the plan is wrong it pages instead
 * of failing) and the allocator pools (the plan already places every byte).
 */
#include <cuda_runtime.h>
extern "C" {
#include "device/device_impl.h"
}
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* LARGE: a pinned arena from this size on is made of pages of our own. PAGE: a huge one. */
enum { LARGE_BYTES = 256 << 20, PAGE_BYTES = 2 << 20, MOST_REGISTERED = 16 };

struct gpu {
    cudaStream_t stream[TR_STREAM_HOST]; /* the host stream is the issuing thread */
    void *registered[MOST_REGISTERED];   /* arenas of pages of our own */
    int n_registered;
};

static bool is_registered(const struct tr_device *d, const void *base)
{
    const struct gpu *g = (const struct gpu *)d->impl;
    for (int i = 0; i < g->n_registered; i++)
        if (g->registered[i] == base)
            return true;
    return false;
}

static cudaStream_t stream_of(const struct tr_device *d, enum tr_stream s)
{
    TR_BUG_ON(s >= TR_STREAM_HOST); /* the driver does not know the host stream */
    return ((const struct gpu *)d->impl)->stream[s];
}

static void note(struct tr_device *d, cudaError_t e, const char *what)
{
    if (e != cudaSuccess)
        tr_device_note(d, TR_IO, "device cuda: %s: %s", what, cudaGetErrorString(e));
}

/* ---- memory ---- */

static enum tr_status refuse(cudaError_t e, const char *what, size_t bytes, bool is_pinned)
{
    char human[32];
    (void)cudaGetLastError(); /* clears the error, so that the next call does not report it again */
    return tr_fail(TR_NOMEM, "arena %s: %s refused %s (%s); %s", what,
                   is_pinned ? "the host (pinned memory)" : "the gpu", tr_human_bytes(bytes, human, sizeof human),
                   cudaGetErrorString(e),
                   is_pinned ? TR_PINNED_ADVICE : "lower per_device_train_batch_size or use --recompute");
}

/* The NUMA node of the current GPU; -1: unknown, or there is one only. */
static int numa_node(void)
{
    char id[32] = "", path[96];
    int ordinal = 0, node = -1;
    if (cudaGetDevice(&ordinal) != cudaSuccess || cudaDeviceGetPCIBusId(id, sizeof id, ordinal) != cudaSuccess) {
        (void)cudaGetLastError();
        return -1;
    }
    for (char *c = id; *c; c++)
        *c = *c >= 'A' && *c <= 'Z' ? (char)(*c - 'A' + 'a') : *c;
    (void)snprintf(path, sizeof path, "/sys/bus/pci/devices/%s/numa_node", id);
    FILE *f = fopen(path, "r");
    if (f) {
        if (fscanf(f, "%d", &node) != 1)
            node = -1;
        (void)fclose(f);
    }
    return node;
}

/* Pages of our own that the driver has locked; NULL: it refuses them, or they are few. Their bytes are a multiple of a
 * page of any size, as cudaHostRegister wants it. */
static void *register_pages(struct tr_device *d, size_t bytes, const char *what)
{
    struct gpu *g = (struct gpu *)d->impl;
    size_t whole = tr_round_up(bytes, PAGE_BYTES);
    void *p = NULL;
    if (bytes < LARGE_BYTES || g->n_registered == MOST_REGISTERED)
        return NULL;
    if (tr_pages_reserve(d, TR_SPACE_PINNED, whole, what, &p) != TR_OK) {
        tr_error_clear();
        return NULL;
    }
    tr_pages_touch(p, whole, numa_node());
    if (cudaHostRegister(p, whole, cudaHostRegisterDefault) == cudaSuccess) {
        g->registered[g->n_registered++] = p;
        return p;
    }
    (void)cudaGetLastError();
    tr_pages_release(d, TR_SPACE_PINNED, p, whole);
    return NULL;
}

/* The driver's own memory is not zeroed. */
static cudaError_t pin(struct tr_device *d, size_t bytes, const char *what, void **out)
{
    *out = register_pages(d, bytes, what);
    cudaError_t e = *out ? cudaSuccess : cudaMallocHost(out, bytes);
    if (e == cudaSuccess && !is_registered(d, *out))
        memset(*out, 0, bytes);
    return e;
}

static void unpin(struct tr_device *d, void *base, size_t bytes)
{
    struct gpu *g = (struct gpu *)d->impl;
    if (!is_registered(d, base)) {
        (void)cudaFreeHost(base);
        return;
    }
    for (int i = 0; i < g->n_registered; i++)
        if (g->registered[i] == base)
            g->registered[i] = g->registered[--g->n_registered];
    (void)cudaHostUnregister(base); /* waits for nothing: the caller has */
    tr_pages_release(d, TR_SPACE_PINNED, base, tr_round_up(bytes, PAGE_BYTES));
}

static enum tr_status reserve(struct tr_device *d, enum tr_space space, size_t bytes, const char *what, void **base)
{
    void *p = NULL;
    if (space == TR_SPACE_HOST)
        return tr_pages_reserve(d, space, bytes, what, base);
    bool is_pinned = space == TR_SPACE_PINNED;
    cudaError_t e = bytes == 0 ? cudaSuccess : is_pinned ? pin(d, bytes, what, &p) : cudaMalloc(&p, bytes);
    if (e != cudaSuccess)
        return refuse(e, what, bytes, is_pinned);
    *base = p;
    return TR_OK;
}

static void release(struct tr_device *d, enum tr_space space, void *base, size_t bytes)
{
    if (space == TR_SPACE_HOST)
        tr_pages_release(d, space, base, bytes);
    else if (space == TR_SPACE_PINNED)
        unpin(d, base, bytes);
    else
        (void)cudaFree(base);
}

/* The driver finds the direction from the two addresses. On the host stream both addresses are host memory. */
static void copy(struct tr_device *d, enum tr_stream s, void *dst, const void *src, size_t bytes)
{
    if (s == TR_STREAM_HOST)
        memcpy(dst, src, bytes);
    else
        note(d, cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, stream_of(d, s)),
             "copy between the host and the gpu");
}

static void clear(struct tr_device *d, enum tr_stream s, void *dst, size_t bytes)
{
    if (s == TR_STREAM_HOST)
        memset(dst, 0, bytes);
    else
        note(d, cudaMemsetAsync(dst, 0, bytes, stream_of(d, s)), "clear memory");
}

static size_t used(struct tr_device *d)
{
    size_t free_bytes = 0, all = 0;
    (void)d;
    return cudaMemGetInfo(&free_bytes, &all) == cudaSuccess ? all - free_bytes : 0;
}

/* The GPU of this process among those that are visible; -1: there is none. Ranks of a host take them in turn. */
static int ordinal_of(cudaError_t *e)
{
    const char *local = getenv("LOCAL_RANK");
    int n = 0;
    (void)setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0); /* streams that share a connection wait for each other */
    *e = cudaGetDeviceCount(&n);
    if (*e == cudaSuccess && n == 0)
        *e = cudaErrorNoDevice;
    return *e != cudaSuccess ? -1 : local ? (int)(strtol(local, NULL, 10) % n) : 0;
}

static size_t total(void)
{
    cudaError_t e;
    cudaDeviceProp p;
    int ordinal = ordinal_of(&e);
    if (e == cudaSuccess)
        e = cudaGetDeviceProperties(&p, ordinal);
    (void)cudaGetLastError();
    return e == cudaSuccess ? p.totalGlobalMem : 0;
}

static const struct tr_memory_ops memory = { reserve, release, copy, clear, used, total };

/* ---- streams ---- */

static enum tr_status event_open(struct tr_device *d, void **event)
{
    cudaEvent_t e = NULL;
    (void)d;
    if (cudaEventCreateWithFlags(&e, cudaEventDisableTiming) != cudaSuccess)
        return tr_fail(TR_NOMEM, "device cuda: the driver refused an event");
    *event = e;
    return TR_OK;
}

static void event_close(struct tr_device *d, void *event)
{
    (void)d;
    (void)cudaEventDestroy((cudaEvent_t)event);
}

/* The host stream has no pending work, so an event recorded there holds no other stream. */
static void record_event(struct tr_device *d, enum tr_stream s, void *event)
{
    if (s != TR_STREAM_HOST)
        note(d, cudaEventRecord((cudaEvent_t)event, stream_of(d, s)), "record of an event");
}

static void wait_event(struct tr_device *d, enum tr_stream s, void *event)
{
    if (s == TR_STREAM_HOST)
        note(d, cudaEventSynchronize((cudaEvent_t)event), "an op before an event");
    else
        note(d, cudaStreamWaitEvent(stream_of(d, s), (cudaEvent_t)event, 0), "wait for an event");
}

/* The kernel function itself starts the GPU kernel on the call's stream. */
static void launch(struct tr_device *d, enum tr_stream s, tr_kernel kernel, const struct tr_call *call, size_t bytes)
{
    (void)d;
    (void)s;
    (void)bytes;
    kernel(call);
}

static void drain(struct tr_device *d, enum tr_stream s)
{
    if (s != TR_STREAM_HOST)
        note(d, cudaStreamSynchronize(stream_of(d, s)), "an op or a copy of this step");
}

static void *native(const struct tr_device *d, enum tr_stream s)
{
    return s == TR_STREAM_HOST ? NULL : stream_of(d, s);
}

static const struct tr_stream_ops streams = {
    event_open, event_close, record_event, wait_event, launch, drain, native
};

/* ---- a step as one graph ---- */

static bool begin_capture(struct tr_device *d)
{
    return cudaStreamBeginCapture(stream_of(d, TR_STREAM_COMPUTE), cudaStreamCaptureModeThreadLocal) == cudaSuccess;
}

static void *end_capture(struct tr_device *d)
{
    cudaGraph_t graph = NULL;
    cudaGraphExec_t ready = NULL;
    if (cudaStreamEndCapture(stream_of(d, TR_STREAM_COMPUTE), &graph) != cudaSuccess ||
        cudaGraphInstantiate(&ready, graph, 0) != cudaSuccess)
        ready = NULL;
    if (graph)
        (void)cudaGraphDestroy(graph);
    if (!ready) { /* the recording caused the failures noted since it began, so they are dropped */
        (void)cudaGetLastError();
        d->failed = TR_OK;
    }
    return ready;
}

static void replay(struct tr_device *d, void *recording)
{
    note(d, cudaGraphLaunch((cudaGraphExec_t)recording, stream_of(d, TR_STREAM_COMPUTE)), "replay of a step");
}

static void forget(struct tr_device *d, void *recording)
{
    (void)d;
    (void)cudaGraphExecDestroy((cudaGraphExec_t)recording);
}

static const struct tr_capture_ops capture = { begin_capture, end_capture, replay, forget };

/* ---- the row ---- */

static bool is_present(void)
{
    int n = 0;
    if (cudaGetDeviceCount(&n) != cudaSuccess)
        (void)cudaGetLastError();
    return n > 0;
}

/* Dense bf16 flops of one multiprocessor in one clock, from the data sheets at boost clock. */
static double datasheet_flops(const cudaDeviceProp *p)
{
    int cc = p->major * 10 + p->minor;
    if (cc == 90)
        return p->multiProcessorCount * 4096.0 * 1.83e9;
    if (cc == 80)
        return p->multiProcessorCount * 2048.0 * 1.41e9;
    return 0;
}

/* Memory bandwidth of the current device: two transfers a clock. */
static double memory_bytes(void)
{
    int ordinal = 0, khz = 0, bits = 0;
    (void)cudaGetDevice(&ordinal);
    (void)cudaDeviceGetAttribute(&khz, cudaDevAttrMemoryClockRate, ordinal);
    (void)cudaDeviceGetAttribute(&bits, cudaDevAttrGlobalMemoryBusWidth, ordinal);
    return 2.0 * khz * 1e3 * bits / 8;
}

static void close_gpu(struct tr_device *d)
{
    struct gpu *g = (struct gpu *)d->impl;
    for (int i = 0; g && i < TR_STREAM_HOST; i++)
        if (g->stream[i])
            (void)cudaStreamDestroy(g->stream[i]);
    free(g);
}

static cudaError_t open_streams(struct gpu *g)
{
    cudaError_t e = cudaSuccess;
    for (int i = 0; e == cudaSuccess && i < TR_STREAM_HOST; i++)
        e = cudaStreamCreateWithFlags(&g->stream[i], cudaStreamNonBlocking);
    return e;
}

static enum tr_status open_gpu(struct tr_device *d)
{
    struct gpu *g = (struct gpu *)calloc(1, sizeof *g);
    if (!g)
        return tr_fail(TR_NOMEM, "device cuda: out of memory");
    d->impl = g;
    cudaError_t e;
    cudaDeviceProp p;
    int ordinal = ordinal_of(&e);
    if (e == cudaSuccess)
        e = cudaSetDevice(ordinal);
    if (e == cudaSuccess)
        e = cudaGetDeviceProperties(&p, ordinal);
    if (e == cudaSuccess)
        e = open_streams(g);
    if (e != cudaSuccess) {
        (void)cudaGetLastError();
        close_gpu(d);
        return tr_fail(TR_USAGE, "device cuda: %s; use --device cpu, or install the NVIDIA driver",
                       cudaGetErrorString(e));
    }
    d->n_units = p.multiProcessorCount;
    d->capability = p.major * 10 + p.minor;
    d->peak_flops = datasheet_flops(&p);
    d->peak_bytes = memory_bytes();
    return TR_OK;
}

extern "C" TR_EXPORT const struct tr_device_row tr_device_row_of_module = {
    "cuda", false, true, is_present, open_gpu, close_gpu, &memory, &streams, &capture, &tr_cuda_marks, NULL
};
