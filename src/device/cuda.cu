/* cuda.cu - one NVIDIA GPU: memory, copies and one stream.
 *
 * Everything of a step runs on one stream, so its order is the program's. Arenas are one cudaMalloc each; batches and
 * file buffers are pinned, which copies run five times faster from. A launch never waits: what fails is noted with the
 * name of what was started, and sync reports it. The runtime is linked statically and finds the driver when asked, so
 * this code starts on machines without one. Rejected: managed memory (it pages when the plan is wrong instead of
 * saying so) and the allocator pools (the plan has every byte already).
 */
#include <cuda_runtime.h>
extern "C" {
#include "device/device_impl.h"
}
#include <stdlib.h>

static cudaStream_t stream_of(const struct tr_device *d)
{
    return (cudaStream_t)d->stream;
}

static void note(struct tr_device *d, cudaError_t e, const char *what)
{
    if (e != cudaSuccess)
        tr_device_note(d, TR_IO, "device cuda: %s: %s", what, cudaGetErrorString(e));
}

static enum tr_status refuse(cudaError_t e, const char *what, size_t bytes, const char *where)
{
    char human[32];
    (void)cudaGetLastError(); /* not sticky: the next call starts clean */
    return tr_fail(TR_NOMEM, "arena %s: %s refused %s (%s); lower per_device_train_batch_size or use --recompute", what,
                   where, tr_human_bytes(bytes, human, sizeof human), cudaGetErrorString(e));
}

static enum tr_status reserve(struct tr_device *d, size_t bytes, const char *what, void **base)
{
    void *p = NULL;
    cudaError_t e = bytes ? cudaMalloc(&p, bytes) : cudaSuccess;
    if (e != cudaSuccess)
        return refuse(e, what, bytes, "the gpu");
    d->reserved_bytes += bytes;
    d->n_reserves++;
    *base = p;
    return TR_OK;
}

static void release(struct tr_device *d, void *base, size_t bytes)
{
    (void)cudaFree(base);
    d->reserved_bytes -= bytes;
}

static enum tr_status reserve_host(struct tr_device *d, size_t bytes, const char *what, void **base)
{
    void *p = NULL;
    cudaError_t e = bytes ? cudaMallocHost(&p, bytes) : cudaSuccess;
    if (e != cudaSuccess)
        return refuse(e, what, bytes, "the host (pinned memory)");
    d->reserved_bytes += bytes;
    d->n_reserves++;
    *base = p;
    return TR_OK;
}

static void release_host(struct tr_device *d, void *base, size_t bytes)
{
    (void)cudaFreeHost(base);
    d->reserved_bytes -= bytes;
}

static void send(struct tr_device *d, void *dst, const void *src, size_t bytes)
{
    note(d, cudaMemcpyAsync(dst, src, bytes, cudaMemcpyHostToDevice, stream_of(d)), "copy to the gpu");
}

static void upload(struct tr_device *d, void *dst, const void *src, size_t bytes)
{
    send(d, dst, src, bytes);
    note(d, cudaStreamSynchronize(stream_of(d)), "copy to the gpu");
}

static void download(struct tr_device *d, void *dst, const void *src, size_t bytes)
{
    note(d, cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToHost, stream_of(d)), "copy from the gpu");
    note(d, cudaStreamSynchronize(stream_of(d)), "copy from the gpu, or an op before it");
}

static void clear(struct tr_device *d, void *dst, size_t bytes)
{
    note(d, cudaMemsetAsync(dst, 0, bytes, stream_of(d)), "clear memory");
}

static enum tr_status sync(struct tr_device *d)
{
    note(d, cudaStreamSynchronize(stream_of(d)), "an op of this step");
    if (d->failed == TR_OK)
        return TR_OK;
    enum tr_status st = d->failed;
    d->failed = TR_OK;
    return tr_fail(st, "%s", d->cause);
}

extern "C" const struct tr_device_ops tr_cuda_ops = { "cuda", false, reserve,  release, reserve_host, release_host,
                                                      upload, send,  download, clear,   sync };

extern "C" int tr_cuda_count(void)
{
    int n = 0;
    if (cudaGetDeviceCount(&n) != cudaSuccess) {
        (void)cudaGetLastError();
        return 0;
    }
    return n;
}

/* Dense bf16 flops of one multiprocessor and clock: the datasheets' numbers, at their boost clocks. */
static double datasheet_flops(const cudaDeviceProp *p)
{
    int cc = p->major * 10 + p->minor;
    if (cc == 90)
        return p->multiProcessorCount * 4096.0 * 1.83e9;
    if (cc == 80)
        return p->multiProcessorCount * 2048.0 * 1.41e9;
    return 0;
}

/* Of the device at hand: two transfers a clock. */
static double memory_bytes(void)
{
    int ordinal = 0, khz = 0, bits = 0;
    (void)cudaGetDevice(&ordinal);
    (void)cudaDeviceGetAttribute(&khz, cudaDevAttrMemoryClockRate, ordinal);
    (void)cudaDeviceGetAttribute(&bits, cudaDevAttrGlobalMemoryBusWidth, ordinal);
    return 2.0 * khz * 1e3 * bits / 8;
}

extern "C" enum tr_status tr_cuda_open(struct tr_device *d)
{
    const char *local = getenv("LOCAL_RANK");
    int n = 0;
    (void)setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0); /* streams that share one wait for each other's waits */
    cudaError_t e = cudaGetDeviceCount(&n);
    cudaDeviceProp p;
    cudaStream_t stream = NULL;
    if (e == cudaSuccess && n == 0)
        e = cudaErrorNoDevice;
    if (e == cudaSuccess)
        e = cudaSetDevice(local ? (int)(strtol(local, NULL, 10) % n) : 0);
    if (e == cudaSuccess)
        e = cudaGetDeviceProperties(&p, local ? (int)(strtol(local, NULL, 10) % n) : 0);
    if (e == cudaSuccess)
        e = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    if (e != cudaSuccess) {
        (void)cudaGetLastError();
        return tr_fail(TR_USAGE, "device cuda: %s; use --device cpu, or install the NVIDIA driver",
                       cudaGetErrorString(e));
    }
    d->stream = stream;
    d->n_units = p.multiProcessorCount;
    d->capability = p.major * 10 + p.minor;
    d->peak_flops = datasheet_flops(&p);
    d->peak_bytes = memory_bytes();
    return TR_OK;
}

extern "C" void tr_cuda_close(struct tr_device *d)
{
    if (d->stream)
        (void)cudaStreamDestroy(stream_of(d));
}

/* ---- a step as one graph ---- */

extern "C" bool tr_cuda_record(struct tr_device *d)
{
    return cudaStreamBeginCapture(stream_of(d), cudaStreamCaptureModeThreadLocal) == cudaSuccess;
}

extern "C" void *tr_cuda_recorded(struct tr_device *d)
{
    cudaGraph_t graph = NULL;
    cudaGraphExec_t ready = NULL;
    if (cudaStreamEndCapture(stream_of(d), &graph) != cudaSuccess ||
        cudaGraphInstantiate(&ready, graph, 0) != cudaSuccess)
        ready = NULL;
    if (graph)
        (void)cudaGraphDestroy(graph);
    if (!ready) { /* what was noted while recording came of the recording */
        (void)cudaGetLastError();
        d->failed = TR_OK;
    }
    return ready;
}

extern "C" void tr_cuda_replay(struct tr_device *d, void *recording)
{
    note(d, cudaGraphLaunch((cudaGraphExec_t)recording, stream_of(d)), "replay of a step");
}

extern "C" void tr_cuda_forget(void *recording)
{
    if (recording)
        (void)cudaGraphExecDestroy((cudaGraphExec_t)recording);
}

extern "C" size_t tr_cuda_used(void)
{
    size_t free_bytes = 0, all = 0;
    return cudaMemGetInfo(&free_bytes, &all) == cudaSuccess ? all - free_bytes : 0;
}
