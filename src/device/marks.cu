/* marks.cu - events of a GPU as marks in time (marks.c), and ranges for NVIDIA's tools, which cost nothing unless one
 * of them is attached: the header looks for it when the first range begins. */
#include <cuda_profiler_api.h>
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

/* The ranges have a domain of their own, so that a timeline can show or hide them together. */
static nvtxDomainHandle_t domain(void)
{
    static nvtxDomainHandle_t d = nvtxDomainCreateA("trireme");
    return d;
}

static void range(const char *name)
{
    nvtxEventAttributes_t a = {};
    a.version = NVTX_VERSION;
    a.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    a.messageType = NVTX_MESSAGE_TYPE_ASCII;
    a.message.ascii = name;
    if (name)
        (void)nvtxDomainRangePushEx(domain(), &a);
    else
        (void)nvtxDomainRangePop(domain());
}

static void profile(bool is_on)
{
    (void)(is_on ? cudaProfilerStart() : cudaProfilerStop());
}

extern "C" const struct tr_mark_ops tr_cuda_marks = { open_event, close_event, set_event, between_us, range, profile };
