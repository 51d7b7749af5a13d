/* marks.cu - events of a GPU as marks in time (marks.c), and ranges for NVIDIA's tools, which cost nothing unless one
 * of them is attached: the header looks for it when the first range begins. */
#include <cuda_runtime.h>
#include <nvtx3/nvToolsExt.h>
extern "C" {
#include "device/device_impl.h"
}

static bool open_event(void **out)
{
    cudaEvent_t e = NULL;
    bool is_ok = cudaEventCreate(&e) == cudaSuccess;
    *out = is_ok ? e : NULL;
    return is_ok;
}

static void close_event(void *event)
{
    (void)cudaEventDestroy((cudaEvent_t)event);
}

static void set_event(struct tr_device *d, void *event, void *stream)
{
    (void)cudaEventRecord((cudaEvent_t)event, (cudaStream_t)(stream ? stream : tr_device_stream(d, TR_STREAM_COMPUTE)));
}

static double between_us(void *from, void *to)
{
    float ms = 0;
    return cudaEventElapsedTime(&ms, (cudaEvent_t)from, (cudaEvent_t)to) == cudaSuccess ? (double)ms * 1e3 : 0.0;
}

static void range(const char *name)
{
    if (name)
        (void)nvtxRangePushA(name);
    else
        (void)nvtxRangePop();
}

extern "C" const struct tr_mark_ops tr_cuda_marks = { open_event, close_event, set_event, between_us, range };
